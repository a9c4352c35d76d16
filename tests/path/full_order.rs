//! The order in which a crowded flow map is emptied: connections never acknowledged, half-closed ones, idle ones whose ends do
//! not answer. All others stay, and of those no more go than have to.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use common::maps::flow::{ClientTuple, FLOW_CLOSED, FLOW_ESTABLISHED, Flow};
use common::maps::name;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage};
use tests::addresses::{Family, TLS_PORT, backend, server_name};
use tests::config::{Backend, Config};
use tests::hello::hello;
use tests::pinned::{insert_pinned, pinned_entries};
use tests::raw::{self, End, end_of};
use tests::server::read_line;
use tests::topology::{Options, UPLINK};
use tests::tuple::client_tuple;

use crate::crowd::Crowd;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// Slots of the map of flows, and those that may be taken before any flow is evicted.
const SLOTS: usize = 250;
const BOUND: usize = SLOTS * 4 / 5;
/// As many of those are free before it is crowded.
const FREE: usize = 5;

/// How many connections there are of each kind.
const SILENT: usize = 10;
const HALF_CLOSED: usize = 20;
/// Idle ones whose clients are gone.
const GONE: usize = 10;
/// Idle ones whose ends answer, idle for longer.
const IDLE: usize = 3;

/// A half-closed connection is evicted after so long without progress.
const HALF_CLOSED_SECS: u64 = 30;
/// With that, longer than a minute: a flow with a packet in that time is not idle.
const AGED_SECS: u32 = 40;

/// Port of a server that never says anything, and never accepts.
const MUTE_PORT: u16 = 7001;
/// The address of the clients that are about to be gone.
const LEAVING: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Connections of one kind.
struct Group {
    streams: Vec<TcpStream>,
    tuples: Vec<ClientTuple>,
}

impl Group {
    /// Opens connections to this tenant from this address, or from the client's own.
    fn open(scene: &Scene, count: usize, from: Option<Ipv4Addr>, tenant: usize) -> Self {
        let vip = scene.lab.vip(Family::V4, TLS_PORT);
        let hello = hello().name(server_name(tenant)).bytes();
        let from = SocketAddr::from((from.unwrap_or(Ipv4Addr::UNSPECIFIED), 0));
        let streams: Vec<_> = (0..count)
            .map(|_| {
                let mut stream = scene.lab.client.run(|| dial(from, vip));
                stream.write_all(&hello).unwrap();
                stream
            })
            .collect();
        let tuples = streams.iter().map(|stream| client_tuple(stream.local_addr().unwrap(), vip)).collect();
        let mut group = Self { streams, tuples };
        assert!(
            eventually(Duration::from_secs(10), || group.left(scene) == count),
            "{} of {count} connections, {:?}",
            group.left(scene),
            scene.daemon.reasons()
        );
        if tenant == 0 {
            for stream in &mut group.streams {
                read_line(stream).unwrap();
                stream.read_exact(&mut vec![0; hello.len()]).unwrap();
            }
        }
        group
    }

    /// The number of those that are open.
    fn left(&self, scene: &Scene) -> usize {
        left(scene, &self.tuples)
    }

    /// Makes them look as if they had been idle for longer.
    fn age(&self, scene: &Scene, secs: u32) {
        let flows = flows(scene);
        for tuple in &self.tuples {
            let flow = flows[tuple];
            let seen_secs = flow.seen_secs.saturating_sub(secs);
            insert_pinned(&pin(scene), *tuple, Flow { seen_secs, ..flow }).unwrap();
        }
    }

    fn assert_echo(&mut self) {
        for stream in &mut self.streams {
            let mut echo = [0; 5];
            stream.write_all(b"still").unwrap();
            stream.read_exact(&mut echo).unwrap();
            assert_eq!(&echo, b"still");
        }
    }
}

fn dial(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let fd = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(from)).unwrap();
    socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(tests::tls::PATIENCE)).unwrap();
    stream
}

fn pin(scene: &Scene) -> PathBuf {
    scene.daemon.pins().join(name::FLOWS)
}

fn flows(scene: &Scene) -> HashMap<ClientTuple, Flow> {
    pinned_entries::<ClientTuple, Flow>(&pin(scene)).unwrap().into_iter().collect()
}

fn left(scene: &Scene, tuples: &[ClientTuple]) -> usize {
    let flows = flows(scene);
    let is_open = |flow: &&Flow| flow.connection.state == FLOW_ESTABLISHED;
    tuples.iter().filter_map(|tuple| flows.get(tuple)).filter(is_open).count()
}

/// Starts Vestibule; tenant b has the server that says nothing.
fn scene() -> (Scene, TcpListener) {
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_flows = Some(SLOTS as u32);
    let mute = SocketAddr::new(backend(Family::V4, 1, 0), MUTE_PORT);
    config.route_mut("tenant-b").backends = vec![Backend::new(mute.ip(), MUTE_PORT)];
    let scene = Scene::echo_with(&Options::default(), &config);
    let listener = scene.lab.tenants[1].namespace.run(|| TcpListener::bind(mute)).unwrap();
    (scene, listener)
}

/// Opens connections whose clients then close their half, and waits until the backend has acknowledged that.
fn half_closed(scene: &Scene) -> Group {
    let group = Group::open(scene, HALF_CLOSED, None, 1);
    for stream in &group.streams {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let is_half =
        |flow: &Flow| flow.client.sent.fin == 1 && flow.backend.acked.number == flow.client.sent.next;
    let are_half = || {
        let flows = flows(scene);
        group.tuples.iter().all(|tuple| flows.get(tuple).is_some_and(is_half))
    };
    assert!(eventually(Duration::from_secs(10), are_half));
    group
}

/// Opens connections of clients whose address then vanishes: nobody answers for it.
fn gone(scene: &Scene) -> Group {
    let client = &scene.lab.client;
    client.ip(&format!("addr add {LEAVING}/32 dev {UPLINK}\n")).unwrap();
    let group = Group::open(scene, GONE, Some(LEAVING), 0);
    client.ip(&format!("addr del {LEAVING}/32 dev {UPLINK}\nroute add blackhole {LEAVING}/32\n")).unwrap();
    group
}

/// Waits until the daemon has looked at all flows: it then removes one that is over and was left behind, which this makes of
/// a connection.
fn wait_for_a_walk(scene: &Scene) {
    let marker = Group::open(scene, 1, None, 0);
    let mut flow = flows(scene)[&marker.tuples[0]];
    flow.connection.state = FLOW_CLOSED;
    flow.seen_secs = flow.seen_secs.saturating_sub(20);
    insert_pinned(&pin(scene), marker.tuples[0], flow).unwrap();
    let is_gone = || !flows(scene).contains_key(&marker.tuples[0]);
    assert!(eventually(Duration::from_secs(30), is_gone), "no walk over all flows");
}

/// The connections that may be evicted, and those that are used.
struct Kinds {
    silent: Vec<ClientTuple>,
    half_closed: Group,
    gone: Group,
    idle: Group,
    used: Vec<Group>,
}

impl Kinds {
    /// Opens all of them; five more fit.
    fn open(scene: &Scene) -> Self {
        let half_closed = half_closed(scene);
        let mut crowd = Crowd::new(scene, SILENT);
        crowd.connect();
        crowd.say_all(&hello().name(server_name(0)).bytes());
        let silent = crowd.tuples();
        let are_open = || left(scene, &silent) == SILENT;
        assert!(eventually(Duration::from_secs(10), are_open), "{:?}", scene.daemon.reasons());
        let (idle, gone) = (Group::open(scene, IDLE, None, 0), gone(scene));
        let rest = BOUND - FREE - SILENT - HALF_CLOSED - GONE - IDLE;
        let used = vec![Group::open(scene, rest, None, 0)];
        gone.age(scene, AGED_SECS);
        idle.age(scene, AGED_SECS + 10);
        Self { silent, half_closed, gone, idle, used }
    }

    /// Opens as many more as are then too many.
    fn crowd(&mut self, scene: &Scene, count: usize) {
        self.used.push(Group::open(scene, count, None, 0));
    }

    /// How many are left of each kind, in the order in which they may go.
    fn left(&self, scene: &Scene) -> [usize; 4] {
        [
            left(scene, &self.silent),
            self.half_closed.left(scene),
            self.gone.left(scene),
            self.idle.left(scene),
        ]
    }

    #[track_caller]
    fn assert_left(&self, scene: &Scene, expected: [usize; 4]) {
        let is_so = || self.left(scene) == expected;
        assert!(
            eventually(Duration::from_secs(20), is_so),
            "{:?} instead of {expected:?}, {:?}",
            self.left(scene),
            scene.daemon.reasons()
        );
    }
}

#[test]
fn in_a_full_map_connections_go_in_order_and_only_as_many_as_must() {
    tests::skip_without_root!();
    let (scene, _mute) = scene();
    let mut kinds = Kinds::open(&scene);
    wait_for_a_walk(&scene);
    // The daemon's clock of the half-closed ones runs since that walk, or one before it.
    std::thread::sleep(Duration::from_secs(HALF_CLOSED_SECS + 1));
    kinds.assert_left(&scene, [SILENT, HALF_CLOSED, GONE, IDLE]);

    let half = HALF_CLOSED / 2;
    kinds.crowd(&scene, FREE + SILENT + half);
    kinds.assert_left(&scene, [0, half, GONE, IDLE]);
    // The entries of those that went are still there, but nobody else goes for them.
    std::thread::sleep(Duration::from_secs(2));
    kinds.assert_left(&scene, [0, half, GONE, IDLE]);
    assert_eq!(scene.daemon.reasons().unwrap().get("ExpireProbe"), None, "none is asked yet");

    // All half-closed ones have to go, and three more: those that were idle for longer are asked first, and answer.
    kinds.crowd(&scene, half + 3);
    kinds.assert_left(&scene, [0, 0, GONE - 3, IDLE]);
    let reasons = scene.daemon.reasons().unwrap();
    let count = |reason: &str| reasons.get(reason).copied().unwrap_or(0) as usize;
    assert_eq!((count("ExpireCrowded"), count("ExpireTrial")), (SILENT + HALF_CLOSED, 3), "{reasons:?}");
    assert_eq!((count("ExpireHeld"), count("ExpireIdle")), (0, 0), "{reasons:?}");
    assert!(count("ExpireProbe") >= IDLE + 3 * 3, "{reasons:?}");
    for stream in &mut kinds.half_closed.streams {
        assert_eq!(end_of(stream, Duration::from_secs(5)).unwrap(), End::Reset);
    }
    kinds.idle.assert_echo();
    kinds.used.iter_mut().for_each(Group::assert_echo);
}

/// Source ports towards a backend.
const PORTS: usize = 20;
/// As many may be taken before any flow is evicted.
const PORTS_BOUND: usize = PORTS * 4 / 5;
/// Idle connections whose ends answer, to the backend that has no port left.
const ANSWERING: usize = 2;

/// One client could open as many connections as a backend has source ports, and vanish: nobody else reached that backend for 25 hours.
#[test]
fn connections_of_clients_that_are_gone_leave_a_backend_its_source_ports() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.source_ports = Some(format!("1024-{}", 1024 + PORTS - 1));
    config.route_mut("tenant-a").backends = vec![Backend::new(backend(Family::V4, 0, 0), ECHO_PORT)];
    let scene = Scene::echo_with(&Options::default(), &config);
    let (mut idle, gone) = (Group::open(&scene, ANSWERING, None, 0), gone(&scene));
    let mut used = Group::open(&scene, PORTS - ANSWERING - GONE, None, 0);
    let (vip, bytes) = (scene.lab.vip(Family::V4, TLS_PORT), hello().name(server_name(0)).bytes());
    let connects = || scene.lab.client.run(|| raw::hello(vip, &bytes, &[])).is_ok();
    assert!(!connects(), "no port is left");
    gone.age(&scene, 2 * AGED_SECS);
    // Asked first.
    idle.age(&scene, 2 * AGED_SECS + 10);
    let left = PORTS_BOUND - ANSWERING - used.streams.len();
    let is_left = || gone.left(&scene) == left;
    assert!(eventually(Duration::from_secs(60), is_left), "{:?}", scene.daemon.reasons());
    assert!(eventually(Duration::from_secs(10), connects), "{:?}", scene.daemon.reasons());
    // Two walks more, which evict no others.
    std::thread::sleep(Duration::from_secs(21));
    assert_eq!([gone.left(&scene), idle.left(&scene)], [left, ANSWERING], "{:?}", scene.daemon.reasons());
    idle.assert_echo();
    used.assert_echo();
}
