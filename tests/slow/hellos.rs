//! Many clients at once send long hellos, each on two CPUs: every connection is answered, and every RST has its reason.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use common::maps::name;
use common::reason::Reason;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, sockopt};
use tests::at_once::{pin, two_cpus};
use tests::config::{Backend, Config, SHARED, listener, route};
use tests::daemon::Daemon;
use tests::hello::hello;
use tests::net::{End, Namespace, veth};
use tests::offload;
use tests::pinned::pinned_by_cpu;
use tests::resets::capture::Capture;
use tests::resets::ledger::{self, Verdict};
use tests::server::reset;
use tests::topology::UPLINK;

use crate::loads;

/// Bytes of a hello. It arrives in two super-packets, or in nine segments. All but the last are acknowledged by us, and so are
/// undelivered until the backend acknowledges them, several times and from both CPUs.
const HELLO_BYTES: usize = 12_000;
/// Offset of the client's number in its hello, in the random of the ClientHello.
const NUMBER_AT: usize = 15;
const HOST: &str = "slow.example.com";

/// Number of backends. With [`SOURCE_PORTS`], one takes 6,000 connections a second: each keeps its source port for 10 s after
/// its end.
const BACKENDS: u16 = 8;
const SOURCE_PORTS: &str = "1024-60999";
/// Threads that answer, per backend.
const SERVERS: usize = 2;
/// Number of clients at once, throughout.
const CLIENTS: usize = 32;
/// All of them start and end together this often. In every other round the clients' device sends no super-packets; in two of three
/// each hello is [`Sent::OnTwo`] CPUs.
const ROUNDS: u64 = 6;
/// One of this many clients resets its connection after the answer, so that there are RSTs to compare.
const RESETS: u64 = 8;
/// Number of client addresses: an ended connection keeps its port for a minute.
const ADDRESSES: u32 = 32;
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 97, 1, 2);
/// The node's, towards the backends.
const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 97, 2, 1);
const FIRST_BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 97, 2, 2), 20_000);

/// Number of connections; `SOAKED` with `VESTIBULE_SOAK=1`. `VESTIBULE_CONNECTIONS` overrides both.
const CONNECTIONS: u64 = 3_000;
const SOAKED: u64 = 1_000_000;
/// How long a client waits for its answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bounds that would excuse a failure elsewhere. This load is far below all of them, so here they excuse none: 32 hellos take
/// 192 of 8,192 buffers, and `maxFlows`, backends and client ports suffice for 30,000 connections a second.
const BOUNDS: [Reason; 8] = [
    Reason::AdmitConnecting,
    Reason::AdmitRouteFull,
    Reason::ConnectNoPort,
    Reason::ConnectTableFull,
    Reason::ConnectExhausted,
    Reason::HelloSourceFull,
    Reason::HelloEvicted,
    Reason::HelloTimeout,
];

/// How a client sends its hello.
#[derive(Clone, Copy, Debug)]
enum Sent {
    /// Whole, wherever the client runs.
    Whole,
    /// In two parts, the first one on the first CPU, the second one at once on the other. A veth device handles a packet on the CPU
    /// that sends it.
    OnTwo([usize; 2]),
}

/// Number of segments of hellos that were handled on each CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ByCpu {
    /// With more of the hello to come.
    first: Vec<u64>,
    /// That completed it.
    last: Vec<u64>,
}

impl ByCpu {
    fn since(&self, before: &Self) -> Self {
        let moved =
            |now: &[u64], before: &[u64]| now.iter().zip(before).map(|(now, before)| now - before).collect();
        Self { first: moved(&self.first, &before.first), last: moved(&self.last, &before.last) }
    }
}

/// Fields are dropped in order: the daemon before its namespaces.
struct Rig {
    daemon: Daemon,
    capture: Capture,
    client: Namespace,
    backends: Namespace,
    node: Namespace,
}

impl Rig {
    fn new() -> Result<Self> {
        let [client, node, backends] = ["client", "node", "backends"].map(Namespace::new);
        let (client, node, backends) = (client?, node?, backends?);
        node.forward()?;
        let own: Vec<String> = (0..ADDRESSES).map(|n| format!("{}/24", own_address(n))).collect();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let served = format!("{}/24", FIRST_BACKEND.ip());
        for (device, ours, far, theirs) in [
            ("client", "10.97.1.1/24", &client, own.as_slice()),
            ("backends", "10.97.2.1/24", &backends, &[served.as_str()]),
        ] {
            let near = End { namespace: &node, device, addresses: &[ours] };
            veth(near, End { namespace: far, device: UPLINK, addresses: theirs }, 1500)?;
        }
        client.ip("route add default via 10.97.1.1\n")?;
        node.ip(&format!("route add default via {FIRST_ADDRESS}\n"))?;
        client.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
        client.sysctl("net/ipv4/tcp_max_tw_buckets", "2000000")?;
        let capture = Capture::start(&node, &[IpAddr::V4(*VIP.ip()), IpAddr::V4(SOURCE)])?;
        let daemon = Daemon::start(&node, &config(), &[])?;
        Ok(Self { daemon, capture, client, backends, node })
    }

    fn by_cpu(&self) -> Result<ByCpu> {
        let of = |reason| pinned_by_cpu::<u64>(&self.daemon.pins().join(name::COUNTERS), reason as u32);
        let (buffered, acked) = (of(Reason::HelloBuffered)?, of(Reason::HelloAcked)?);
        let first = buffered.iter().zip(&acked).map(|(buffered, acked)| buffered + acked).collect();
        Ok(ByCpu { first, last: of(Reason::ConnectSyn)? })
    }
}

fn own_address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(FIRST_ADDRESS) + n)
}

fn config() -> Config {
    let mut config = Config::empty();
    config.settings.max_flows = Some(400_000);
    config.settings.max_hellos = Some(8_192);
    config.settings.source_ports = Some(SOURCE_PORTS.into());
    config.listeners.push(listener(SHARED, VIP.port(), "TLS"));
    let backend = |n| Backend::new(IpAddr::V4(*FIRST_BACKEND.ip()), FIRST_BACKEND.port() + n);
    config.routes.push(route("slow", &[SHARED], &[HOST], (0..BACKENDS).map(backend).collect()));
    config
}

/// The IPv4 address of [`tests::addresses::vip`].
const VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 97, 0, 10), 443);

/// Serves until it is stopped: reads a hello, and returns its number if every other byte is right.
fn serve(server: &TcpListener, hello: &[u8], stop: &AtomicBool) {
    let mut came = vec![0; HELLO_BYTES];
    while let Ok((mut stream, _)) = server.accept() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // A client that disconnects reports its own errors.
        let _ = stream.set_read_timeout(Some(PATIENCE));
        if stream.read_exact(&mut came).is_err() {
            continue;
        }
        let number = &came[NUMBER_AT..NUMBER_AT + 8];
        let right =
            came[..NUMBER_AT] == hello[..NUMBER_AT] && came[NUMBER_AT + 8..] == hello[NUMBER_AT + 8..];
        let answer = if right { number.to_vec() } else { vec![0xff; 8] };
        let _ = stream.write_all(&answer);
        // Waits until the client has closed, so that its side keeps its port for a minute.
        let _ = stream.read(&mut [0]);
    }
}

/// One connection: connect, hello, answer, close or reset.
fn visit(n: u64, hello: &mut [u8], sent: Sent) -> Result<()> {
    let fd = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // The port is chosen by connect(2), which knows the other end.
    socket::setsockopt(&fd, sockopt::IpBindAddressNoPort, &true)?;
    let from = own_address((n % u64::from(ADDRESSES)) as u32);
    socket::bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    socket::connect(fd.as_raw_fd(), &SockaddrIn::from(VIP)).map_err(io::Error::from).context("connect")?;
    let mut stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(PATIENCE))?;
    hello[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&n.to_be_bytes());
    match sent {
        Sent::Whole => stream.write_all(hello).context("hello")?,
        Sent::OnTwo(cpus) => {
            stream.set_nodelay(true)?;
            let cut = 1 + (n.wrapping_mul(7919) % (HELLO_BYTES as u64 - 1)) as usize;
            for (cpu, part) in cpus.into_iter().zip([&hello[..cut], &hello[cut..]]) {
                pin(cpu);
                stream.write_all(part).context("a part of the hello")?;
            }
        }
    }
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).context("answer")?;
    ensure!(answer == n.to_be_bytes(), "answer: {answer:02x?} to number {n}");
    if n.is_multiple_of(RESETS) {
        reset(&stream).context("reset")?;
    }
    Ok(())
}

/// Describes an error in few words, so that equal ones are counted together.
fn named(error: &anyhow::Error) -> String {
    match error.downcast_ref::<io::Error>() {
        Some(io) => format!("{error}: {:?}", io.kind()),
        None => format!("{error:#}"),
    }
}

/// Makes the connections with these numbers, [`CLIENTS`] at once; returns what failed, and how often.
fn load(rig: &Rig, numbers: Range<u64>, hello: &[u8], sent: Sent) -> BTreeMap<String, u64> {
    let next = AtomicU64::new(numbers.start);
    let failures = Mutex::new(BTreeMap::new());
    let begin = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                rig.client.enter();
                let mut hello = hello.to_vec();
                begin.wait();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= numbers.end {
                        break;
                    }
                    if let Err(error) = visit(n, &mut hello, sent) {
                        *failures.lock().expect("no client panics").entry(named(&error)).or_insert(0) += 1;
                    }
                }
            });
        }
    });
    failures.into_inner().expect("no client panics")
}

fn connections() -> u64 {
    let told = std::env::var("VESTIBULE_CONNECTIONS").ok().and_then(|count| count.parse().ok());
    told.unwrap_or(if loads::is_long() { SOAKED } else { CONNECTIONS })
}

/// Two acknowledgements of one backend on two CPUs used to reset some 6 of 100,000 such connections, and no counter
/// showed it.
#[test]
fn long_hellos_of_many_clients_are_all_answered() {
    tests::skip_without_root!();
    if let Err(why) = two_cpus() {
        eprintln!("SKIPPED: {why:#}");
        return;
    }
    let _beside = loads::beside();
    let rig = Rig::new().unwrap();
    let bytes = hello().name(HOST).length(HELLO_BYTES).bytes();
    let before = rig.daemon.reasons().unwrap();
    let stop = AtomicBool::new(false);
    let (all, begun) = (connections(), Instant::now());
    let mut failures = BTreeMap::<String, u64>::new();
    std::thread::scope(|scope| {
        let stopped = Stop { rig: &rig, stop: &stop };
        for server in 0..BACKENDS {
            let at = SocketAddrV4::new(*FIRST_BACKEND.ip(), FIRST_BACKEND.port() + server);
            let listener = rig.backends.run(|| listen(at)).unwrap();
            for _ in 0..SERVERS {
                let listener = listener.try_clone().unwrap();
                let (bytes, stop) = (&bytes, &stop);
                scope.spawn(move || serve(&listener, bytes, stop));
            }
        }
        for round in 0..ROUNDS {
            let numbers = all * round / ROUNDS..all * (round + 1) / ROUNDS;
            for (what, times) in conduct(&rig, round, numbers, &bytes).unwrap() {
                *failures.entry(what).or_default() += times;
            }
        }
        drop(stopped);
    });
    let mut moved = rig.daemon.reasons().unwrap();
    moved.iter_mut().for_each(|(reason, count)| *count -= before.get(reason).copied().unwrap_or(0));
    moved.retain(|_, count| *count != 0);
    eprintln!("\n{all} connections in {:.0?}; packets by reason:", begun.elapsed());
    for (reason, count) in &moved {
        eprintln!("{count:>12} {reason}");
    }
    let count = |reason: Reason| moved.get(reason.name()).copied().unwrap_or(0);
    let bounds: BTreeMap<_, _> =
        BOUNDS.map(|reason| (reason.name(), count(reason))).into_iter().filter(|(_, met)| *met > 0).collect();
    let verdict = ledger::compare(&rig.daemon, &rig.node, &rig.capture).unwrap();
    let none_free = count(Reason::HelloBufferFailed);
    let fault = faults(&failures, &bounds, none_free, &verdict, all);
    loads::record("hellos", format!("{all} connections"), &fault, begun);
    if let Verdict::Equal(sums) = &verdict {
        eprintln!("RSTs, captured and counted: {:?}, {:?}", sums.totals(), sums.counted);
    }
    assert!(fault.is_empty(), "{fault}: {moved:?}, {verdict:#?}");
}

/// Describes in few words what is wrong; empty: nothing. `none_free`: packets without memory, though there is enough for all.
fn faults(
    failures: &BTreeMap<String, u64>,
    bounds: &BTreeMap<&'static str, u64>,
    none_free: u64,
    verdict: &Verdict,
    connections: u64,
) -> String {
    let failures = failures.iter().map(|(what, times)| format!("{times} times {what}"));
    let bounds = bounds.iter().map(|(reason, times)| format!("{times} times {reason}"));
    let memory = (none_free > 0).then(|| format!("{none_free} times {}", Reason::HelloBufferFailed.name()));
    let resets = match verdict {
        // The clients' own are captured.
        Verdict::Equal(sums) if sums.captured.passed >= connections / RESETS => None,
        Verdict::Equal(_) => Some("too few RSTs captured".into()),
        _ => Some("RSTs captured and counted differ".into()),
    };
    failures.chain(bounds).chain(memory).chain(resets).collect::<Vec<_>>().join(", ")
}

/// Makes the connections of one round; returns what failed, and how often.
fn conduct(rig: &Rig, round: u64, numbers: Range<u64>, hello: &[u8]) -> Result<BTreeMap<String, u64>> {
    let large = round.is_multiple_of(2);
    let [one, other] = two_cpus()?;
    let sent = [Sent::Whole, Sent::OnTwo([one, other]), Sent::OnTwo([other, one])][(round / 2 % 3) as usize];
    offload::set_large_packets(&rig.client, UPLINK, large)?;
    let (count, since, before) = (numbers.end - numbers.start, Instant::now(), rig.by_cpu()?);
    let failed = load(rig, numbers, hello, sent);
    let rate = count as f64 / since.elapsed().as_secs_f64();
    let moved = rig.by_cpu()?.since(&before);
    eprintln!(
        "super-packets: {large}, {sent:?}, {count} connections, {rate:.0} a second, segments by CPU: {moved:?}, failed: {failed:?}"
    );
    if let Sent::OnTwo(cpus) = sent {
        // So each hello was handled on both, but for segments that waited for an acknowledgement.
        for (segments, cpu) in [&moved.first, &moved.last].into_iter().zip(cpus) {
            let all = segments.iter().sum::<u64>();
            assert!(segments[cpu] * 2 > all && all >= count / 2, "too few on CPU {cpu}: {moved:?}");
        }
    }
    Ok(failed)
}

fn listen(at: SocketAddrV4) -> Result<TcpListener> {
    let fd = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    socket::setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    socket::bind(fd.as_raw_fd(), &SockaddrIn::from(at))?;
    socket::listen(&fd, Backlog::new(1024)?)?;
    Ok(fd.into())
}

/// Stops the servers when dropped, also when a client panics: each that waits for a connection gets one.
struct Stop<'a> {
    rig: &'a Rig,
    stop: &'a AtomicBool,
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.rig.backends.run(|| {
            for server in 0..BACKENDS {
                let at = SocketAddr::from((*FIRST_BACKEND.ip(), FIRST_BACKEND.port() + server));
                for _ in 0..SERVERS {
                    let _ = TcpStream::connect(at);
                }
            }
        });
    }
}
