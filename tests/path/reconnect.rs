//! All nodes behind one address lose their connections at once, and connect again within a second.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::maps::flow::{ClientTuple, Pending};
use common::maps::name;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage};
use tests::addresses::{FAMILIES, Family, TLS_PORT, backend, server_name};
use tests::config::{Config, Settings};
use tests::daemon::Daemon;
use tests::hello::hello;
use tests::net::Namespace;
use tests::pinned::pinned_entries;
use tests::topology::{Lab, Options};

use crate::scene::{ECHO_PORT, turn};
use tests::stop::Stop;

/// Nodes behind the one address.
const NODES: usize = 15_000;
/// The time over which their SYNs are spread; hellos follow as they connect.
const WITHIN: Duration = Duration::from_secs(1);
/// The backends answer no SYN for this long, as a server that has just been started: thousands of hellos wait at once.
const SLOW: Duration = Duration::from_millis(200);
/// The time by which all are served: SYNs and hellos lost meanwhile are sent again.
const SERVED: Duration = Duration::from_secs(20);
/// The nodes' sockets, those that the backends serve at one moment, and what the test itself has open.
const FILES: u64 = NODES as u64 + 4_000;
const HELLO_BYTES: usize = 517;

/// Raises the limit of open files to what this test needs.
fn raise_limit() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let is_enough = |limit: &str| limit.parse().map_or(limit == "unlimited", |limit: u64| limit >= FILES);
    if line.split_whitespace().next().is_some_and(is_enough) {
        return;
    }
    let (pid, limit) = (std::process::id().to_string(), format!("--nofile={FILES}:"));
    let set = Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap();
    assert!(set.success(), "this test needs {FILES} open files");
}

/// Returns a socket for a connection to this address.
fn unconnected(to: SocketAddr) -> TcpStream {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket::socket(family, SockType::Stream, flags, None).unwrap().into()
}

/// Sends the SYN.
fn begin(stream: &TcpStream, to: SocketAddr) {
    match socket::connect(stream.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(nix::errno::Errno::EINPROGRESS) => {}
        Err(error) => panic!("connecting: {error}"),
    }
}

/// Calls `ready` for each socket that has something, until it must stop.
fn serve(epoll: &Epoll, stop: &AtomicBool, mut ready: impl FnMut(u64)) {
    let mut events = [EpollEvent::empty(); 256];
    while !stop.load(Ordering::Relaxed) {
        match epoll.wait(&mut events, EpollTimeout::from(20u8)) {
            Ok(count) => events[..count].iter().for_each(|event| ready(event.data())),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => panic!("epoll_wait: {error}"),
        }
    }
}

/// A backend: answers each whole hello by one byte, and ends.
fn backend_at(listener: &TcpListener, stop: &AtomicBool) {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let mut open: Vec<Option<(TcpStream, usize)>> = Vec::new();
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, u64::MAX)).unwrap();
    let mut buffer = [0; 4096];
    serve(&epoll, stop, |token| {
        if token == u64::MAX {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).unwrap();
                epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, open.len() as u64)).unwrap();
                open.push(Some((stream, 0)));
            }
            return;
        }
        let place = &mut open[token as usize];
        let Some((stream, have)) = place else { return };
        match stream.read(&mut buffer) {
            Ok(0) => *place = None,
            Ok(came) => {
                *have += came;
                if *have == HELLO_BYTES {
                    stream.write_all(b"!").unwrap();
                    *place = None;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => *place = None,
        }
    });
}

/// The nodes: connect within [`WITHIN`], and send their hellos as soon as they have; returns what went wrong.
fn nodes(to: SocketAddr, hello: &[u8], greeted: &AtomicUsize) -> Vec<String> {
    let mut streams: Vec<TcpStream> = (0..NODES).map(|_| unconnected(to)).collect();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let (mut faults, mut served, mut next) = (Vec::new(), 0, 0);
    let begun = Instant::now();
    let mut events = [EpollEvent::empty(); 256];
    while served + faults.len() < NODES && begun.elapsed() < WITHIN + SERVED {
        let due = (NODES as f64 * begun.elapsed().as_secs_f64() / WITHIN.as_secs_f64()) as usize;
        // A busy machine is late; hellos go on meanwhile.
        let due = due.min(next + events.len()).min(NODES);
        while next < due {
            begin(&streams[next], to);
            epoll.add(&streams[next], EpollEvent::new(EpollFlags::EPOLLOUT, next as u64)).unwrap();
            next += 1;
            if next == NODES {
                eprintln!("the last SYN {:.2?} after the first", begun.elapsed());
            }
        }
        let count = epoll.wait(&mut events, EpollTimeout::from(1u8)).unwrap();
        for event in &events[..count] {
            let place = event.data() as usize;
            let stream = &mut streams[place];
            // Not with an error.
            let is_connected = event.events() == EpollFlags::EPOLLOUT;
            if is_connected && stream.write_all(hello).is_ok() {
                greeted.fetch_add(1, Ordering::Relaxed);
                epoll.modify(stream, &mut EpollEvent::new(EpollFlags::EPOLLIN, place as u64)).unwrap();
                continue;
            }
            match stream.read(&mut [0; 8]) {
                Ok(1) => served += 1,
                other => {
                    faults.push(format!("node {place}: {other:?}, {:.1?} after the first", begun.elapsed()))
                }
            }
            epoll.delete(stream).unwrap();
        }
    }
    eprintln!("{served} of {NODES} nodes served in {:.1?}, {} refused", begun.elapsed(), faults.len());
    if served + faults.len() < NODES {
        faults.push(format!("{} nodes without an answer", NODES - served - faults.len()));
    }
    faults
}

/// Makes a tenant's host ignore SYNs, or answer them again.
pub(crate) fn ignore_syns(namespace: &Namespace, ignore: bool) {
    let rules = match ignore {
        true => {
            "table inet slow {\nchain in {\ntype filter hook input priority filter\n\
             tcp flags & (syn | ack) == syn drop\n}\n}\n"
        }
        false => "flush ruleset\n",
    };
    namespace.nft(rules).unwrap();
}

fn waiting(daemon: &Daemon) -> usize {
    pinned_entries::<ClientTuple, Pending>(&daemon.pins().join(name::PENDING)).unwrap().len()
}

#[test]
fn fifteen_thousand_nodes_behind_one_address_all_connect_again_within_seconds() {
    tests::skip_without_root!();
    let _turn = turn();
    raise_limit();
    for family in FAMILIES {
        reconnect(family);
    }
}

fn reconnect(family: Family) {
    let lab = Lab::with(&Options { servers: false, ..Options::default() }).unwrap();
    let tenant = &lab.tenants[0].namespace;
    // Default limits.
    let config = Config { settings: Settings::default(), ..Config::lab_on(ECHO_PORT) };
    let daemon = lab.vestibule(&config).unwrap();
    lab.client.sysctl("net/ipv4/ip_local_port_range", "1024 65535").unwrap();
    tenant.sysctl("net/core/somaxconn", "16384").unwrap();
    tenant.sysctl("net/ipv4/tcp_max_syn_backlog", "16384").unwrap();
    let listeners = [0, 1].map(|index| {
        let listener = tenant.run(|| TcpListener::bind((backend(family, 0, index), ECHO_PORT))).unwrap();
        socket::listen(&listener, Backlog::new(4096).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let bytes = hello().name(server_name(0)).length(HELLO_BYTES).bytes();
    let vip = lab.vip(family, TLS_PORT);
    let (stop, greeted, most) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU64::new(0));
    let before = daemon.reasons().unwrap();
    ignore_syns(tenant, true);
    let faults = std::thread::scope(|scope| {
        let _stopped = Stop(&stop);
        for listener in &listeners {
            scope.spawn(|| backend_at(listener, &stop));
        }
        scope.spawn(|| {
            while greeted.load(Ordering::Relaxed) == 0 && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(SLOW);
            ignore_syns(tenant, false);
            // Most wait until their nodes send them again, 200 ms later at the earliest.
            most.store(waiting(&daemon) as u64, Ordering::Relaxed);
        });
        let dialled = scope.spawn(|| {
            lab.client.enter();
            nodes(vip, &bytes, &greeted)
        });
        dialled.join().unwrap()
    });
    let mut moved = daemon.reasons().unwrap();
    moved.iter_mut().for_each(|(reason, count)| *count -= before.get(reason).copied().unwrap_or(0));
    moved.retain(|_, count| *count != 0);
    let most = most.into_inner();
    eprintln!("{family:?}: {most} hellos waited at once; {moved:?}");
    assert!(
        faults.is_empty(),
        "{} of {NODES}, the first: {:?}\n{moved:?}",
        faults.len(),
        &faults[..faults.len().min(5)]
    );
    assert!(most > 1_000, "{family:?}: only {most} hellos waited at once");
    for reason in ["HelloSourceFull", "HelloEvicted", "AdmitConnecting", "AdmitSourceFull", "ConnectNoPort"] {
        assert_eq!(moved.get(reason), None, "{family:?}: {moved:?}");
    }
}
