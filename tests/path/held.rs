//! Connections that are held open without taking part: the daemon itself ends them, or asks their ends.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::maps::flow::{ClientTuple, FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ESTABLISHED, Flow};
use common::maps::name;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use tests::addresses::{FAMILIES, Family, TLS_PORT, backend, server_name};
use tests::config::{Backend, Config};
use tests::hello::hello;
use tests::packet::{Segment, flag};
use tests::pinned::pinned_entries;
use tests::raw::{End, end_of};
use tests::tap::Tap;
use tests::tls::{self, PATIENCE};
use tests::topology::{Options, UPLINK};
use tests::tuple::client_tuple;
use tests::walker::{Walker, has_clocks};

use crate::crowd::Crowd;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// How many clients say hello and never acknowledge what the backend answers.
const SILENT: usize = 5;
/// They have a minute, and the daemon looks at all flows every ten seconds.
const LATEST: Duration = Duration::from_secs(100);

/// Returns how many flows are open.
fn open(scene: &Scene) -> usize {
    let flows = pinned_entries::<ClientTuple, Flow>(&scene.daemon.pins().join(name::FLOWS)).unwrap();
    flows.iter().filter(|(_, flow)| flow.connection.state == FLOW_ESTABLISHED).count()
}

/// Each of them held a source port of its backend for 25 hours.
#[test]
fn clients_that_never_acknowledge_are_ended_after_a_minute() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &Config::lab_on(ECHO_PORT));
    let mut crowd = Crowd::new(&scene, SILENT);
    crowd.connect();
    crowd.say_all(&hello().name(server_name(0)).bytes());
    assert!(eventually(Duration::from_secs(10), || open(&scene) == SILENT), "{:?}", scene.daemon.reasons());
    // Longer than a walk: they are not ended early.
    std::thread::sleep(Duration::from_secs(45));
    assert_eq!(open(&scene), SILENT, "{:?}", scene.daemon.reasons());
    assert!(eventually(LATEST, || open(&scene) == 0), "{:?}", scene.daemon.reasons());
    assert_eq!(scene.daemon.reasons().unwrap().get("ExpireHeld"), Some(&(SILENT as u64)));
}

/// What the kernel or an end does at once, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// A walk comes after ten seconds, and a question a second or two later.
pub(crate) const TRIED: Duration = Duration::from_secs(30);
/// Port of a server that says nothing of itself.
pub(crate) const MUTE_PORT: u16 = 7001;

/// Starts Vestibule; tenant b's server, for each family, is the test itself.
pub(crate) fn mute() -> (Scene, [TcpListener; 2]) {
    let at = FAMILIES.map(|family| SocketAddr::new(backend(family, 1, 0), MUTE_PORT));
    let mut config = Config::lab_on(ECHO_PORT);
    config.route_mut("tenant-b").backends = at.map(|at| Backend::new(at.ip(), MUTE_PORT)).to_vec();
    let scene = Scene::echo_with(&Options::default(), &config);
    let listeners = at.map(|at| scene.lab.tenants[1].namespace.run(|| TcpListener::bind(at)).unwrap());
    for listener in &listeners {
        let patience = TimeVal::seconds(PATIENCE.as_secs() as i64);
        setsockopt(listener, sockopt::ReceiveTimeout, &patience).unwrap();
    }
    (scene, listeners)
}

/// Both ends of a connection to tenant b, which has carried data in both directions.
pub(crate) struct Pair {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    pub(crate) tuple: ClientTuple,
}

impl Pair {
    pub(crate) fn open(scene: &Scene, family: Family, listener: &TcpListener) -> Self {
        let (vip, bytes) = (scene.lab.vip(family, TLS_PORT), hello().name(server_name(1)).bytes());
        let mut client = scene.lab.client.run(|| tls::dial(vip)).unwrap();
        client.write_all(&bytes).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_exact(&mut vec![0; bytes.len()]).unwrap();
        let tuple = client_tuple(client.local_addr().unwrap(), vip);
        let mut pair = Self { client, server, tuple };
        pair.progress(scene);
        pair
    }

    /// The server sends something, and the client acknowledges it.
    pub(crate) fn progress(&mut self, scene: &Scene) {
        self.server.write_all(b"more").unwrap();
        self.client.read_exact(&mut [0; 4]).unwrap();
        self.wait(scene, |flow| flow.client.acked.number == flow.backend.sent.next);
    }

    pub(crate) fn flow(&self, scene: &Scene) -> Flow {
        let flows = pinned_entries::<ClientTuple, Flow>(&scene.daemon.pins().join(name::FLOWS)).unwrap();
        flows.into_iter().find(|(tuple, _)| *tuple == self.tuple).expect("its flow").1
    }

    #[track_caller]
    fn wait(&self, scene: &Scene, is_so: impl Fn(&Flow) -> bool) {
        assert!(eventually(SOON, || is_so(&self.flow(scene))), "{:#?}", self.flow(scene));
    }

    /// Asserts that both ends were reset. The server has the client's FIN.
    #[track_caller]
    fn assert_reset(&mut self) {
        assert_eq!(end_of(&mut self.client, SOON).unwrap(), End::Reset);
        assert!(eventually(SOON, || self.server.take_error().unwrap().is_some()), "the server is not reset");
    }
}

/// Makes a host lose what matches this of all that reaches it.
fn lose(host: &tests::net::Namespace, what: &str) {
    let text = format!(
        "table inet lossy {{\nchain in {{\ntype filter hook input priority filter\n{what} drop\n}}\n}}\n"
    );
    host.nft(&text).unwrap();
}

/// Starts walks ahead of the daemon's.
pub(crate) fn walker(scene: &Scene) -> Walker {
    Walker::start(env!("CARGO_BIN_EXE_walker"), &scene.lab, &scene.daemon)
}

/// A client that had finished, and whose server did not, held a source port of the backend for 25 hours.
#[test]
fn a_half_closed_connection_is_ended_five_minutes_after_its_last_progress() {
    tests::skip_without_root!();
    if !has_clocks() {
        return;
    }
    let (scene, listeners) = mute();
    let [mut still, mut going] = [0, 1].map(|which| Pair::open(&scene, FAMILIES[which], &listeners[which]));
    for pair in [&mut still, &mut going] {
        pair.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(pair.server.read(&mut [0]).unwrap(), 0);
        pair.wait(&scene, |flow| {
            flow.client.sent.fin == 1 && flow.backend.acked.number == flow.client.sent.next
        });
    }
    let mut walker = walker(&scene);
    assert_eq!([walker.walk(0), walker.walk(200)], [0, 0]);
    going.progress(&scene);
    assert_eq!(walker.walk(250), 0, "too early, {:?}", scene.daemon.reasons());
    assert_eq!(walker.walk(301), 1, "too late, or both: {:?}", scene.daemon.reasons());
    still.assert_reset();
    // The other one's last progress was found at 250.
    assert_eq!(walker.walk(500), 0, "too early, {:?}", scene.daemon.reasons());
    assert_eq!(going.flow(&scene).connection.state, FLOW_ESTABLISHED);
    assert_eq!(walker.walk(551), 1, "too late, {:?}", scene.daemon.reasons());
    going.assert_reset();
    assert_eq!(scene.daemon.reasons().unwrap().get("ExpireHeld"), Some(&2));
}

/// Sequence numbers of the probes to both ends of a flow: one byte before what each expects.
fn probes(flow: &Flow) -> [u32; 2] {
    let to_client = flow.client.acked.number.wrapping_sub(flow.seq_delta);
    [to_client.wrapping_sub(1), flow.backend.acked.number.wrapping_sub(1)]
}

/// Returns family (whether it is IPv4) and sequence number of each bare acknowledgement that reached a host, from or to this port.
fn bare(tap: &Tap, port: u16) -> Vec<(bool, u32)> {
    let frames = tap.drain().unwrap();
    let is_bare = |segment: &Segment| segment.flags == flag::ACK && segment.payload.is_empty();
    let is_of = |segment: &Segment| segment.to.port() == port || segment.from.port() == port;
    let segments = frames.iter().filter_map(|frame| Segment::parse(frame));
    segments
        .filter(|segment| is_bare(segment) && is_of(segment))
        .map(|segment| (segment.to.is_ipv4(), segment.seq))
        .collect()
}

/// The bytes may be a stranger's, and a reader may stop for hours: both ends are asked, and nobody is reset who answers.
#[test]
fn ends_with_unacknowledged_bytes_or_a_fin_are_asked_after_twenty_minutes() {
    tests::skip_without_root!();
    if !has_clocks() {
        return;
    }
    let (scene, listeners) = mute();
    let [mut data, mut fin] = [0, 1].map(|which| Pair::open(&scene, FAMILIES[which], &listeners[which]));
    let (client, tenant) = (&scene.lab.client, &scene.lab.tenants[1].namespace);
    // Probes and their answers pass.
    lose(client, &format!("tcp sport {TLS_PORT} meta length > 300"));
    lose(tenant, "tcp flags & fin == fin");
    data.server.write_all(&[7; 500]).unwrap();
    fin.client.shutdown(Shutdown::Write).unwrap();
    data.wait(&scene, |flow| flow.client.acked.number.wrapping_add(500) == flow.backend.sent.next);
    fin.wait(&scene, |flow| {
        flow.client.sent.fin == 1 && flow.backend.acked.number.wrapping_add(1) == flow.client.sent.next
    });
    let mut walker = walker(&scene);
    let taps = [Tap::open(client, UPLINK).unwrap(), Tap::open(tenant, UPLINK).unwrap()];
    // Those to clients, and those to servers.
    let found = || [bare(&taps[0], TLS_PORT), bare(&taps[1], MUTE_PORT)];
    let expected = [&data, &fin].map(|pair| (pair.tuple.client.is_v4(), probes(&pair.flow(&scene))));
    let are_asked = |found: &[Vec<(bool, u32)>; 2]| {
        expected.map(|(is_v4, probes)| [0, 1].map(|end| found[end].contains(&(is_v4, probes[end]))))
    };
    assert_eq!([walker.walk(0), walker.walk(1_180)], [0, 0]);
    assert_eq!(are_asked(&found()), [[false; 2]; 2], "too early");
    assert_eq!(walker.walk(1_201), 0, "{:?}", scene.daemon.reasons());
    // The probes are sent by now, and a tap may see them later.
    let mut seen = [vec![], vec![]];
    let are_all = eventually(SOON, || {
        seen.iter_mut().zip(found()).for_each(|(seen, more)| seen.extend(more));
        are_asked(&seen) == [[true; 2]; 2]
    });
    assert!(are_all, "client and server of each: {:?}, {:?}", are_asked(&seen), scene.daemon.reasons());
    for host in [client, tenant] {
        host.nft("flush ruleset\n").unwrap();
    }
    data.client.read_exact(&mut [0; 500]).unwrap();
    assert_eq!(fin.server.read(&mut [0]).unwrap(), 0);
    // The end that answered last is asked again: the daemon's next walk finds it on trial.
    for pair in [&data, &fin] {
        let is_acquitted = |flow: &Flow| {
            let trial = flow.connection.flags & (FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL);
            flow.connection.state == FLOW_ESTABLISHED && trial == 0
        };
        assert!(eventually(TRIED, || is_acquitted(&pair.flow(&scene))), "{:#?}", pair.flow(&scene));
    }
    let reasons = scene.daemon.reasons().unwrap();
    assert_eq!([reasons.get("ExpireHeld"), reasons.get("ExpireTrial")], [None; 2], "{reasons:?}");
}
