//! Many unknown clients at once: slow hellos, hellos that never end, more hellos than slots. Other clients are not affected.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::maps::flow::ClientTuple;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, tenant_name};
use tests::config::Config;
use tests::hello::hello;
use tests::packet::{Segment, flag, segment};
use tests::raw;
use tests::tap::Tap;
use tests::topology::{CLIENT_DEVICE, Options, UPLINK};
use tests::tuple::client_tuple;

use crate::scene::{ECHO_PORT, Scene, eventually, turn};
use tests::stop::Stop;

/// The number of unknown clients in a crowd, each with its own address.
const CROWD: usize = 10_000;
/// The first sequence number of each of their connections.
const ISN: u32 = 1000;
/// The number of timed connections, whose median is judged.
const TIMED: usize = 100;

/// Returns client `index` of the crowd: from `10.98.0.0` on, beyond the client's router.
fn stranger(index: usize) -> SocketAddr {
    let address = u32::from(Ipv4Addr::new(10, 98, 0, 0)) + index as u32;
    SocketAddr::new(Ipv4Addr::from(address).into(), 40_000)
}

fn index_of(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(v4) = address.ip() else { return None };
    u32::from(v4).checked_sub(u32::from(Ipv4Addr::new(10, 98, 0, 0))).map(|index| index as usize)
}

/// Unknown clients, whose packets the test builds itself.
pub(crate) struct Crowd {
    tap: Tap,
    ethernet: ([u8; 6], [u8; 6]),
    vip: SocketAddr,
    /// What each client acknowledges: the sequence number of its SYN-ACK plus one.
    acks: Vec<Option<u32>>,
}

impl Crowd {
    pub(crate) fn new(scene: &Scene, size: usize) -> Self {
        let lab = &scene.lab;
        let tap = Tap::open(&lab.client, UPLINK).unwrap();
        let ethernet = (lab.balancer.mac(CLIENT_DEVICE).unwrap(), lab.client.mac(UPLINK).unwrap());
        Self { tap, ethernet, vip: lab.vip(Family::V4, TLS_PORT), acks: vec![None; size] }
    }

    fn from(&self, index: usize) -> Segment {
        segment(stranger(index), self.vip).ethernet(self.ethernet.0, self.ethernet.1)
    }

    /// The keys of their connections.
    pub(crate) fn tuples(&self) -> Vec<ClientTuple> {
        (0..self.acks.len()).map(|index| client_tuple(stranger(index), self.vip)).collect()
    }

    /// Sends a segment; waits while the queue is full.
    fn send(&self, segment: &Segment) {
        let bytes = segment.bytes();
        let sent = eventually(Duration::from_secs(5), || match self.tap.send(&bytes) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => false,
            Err(error) => panic!("sending: {error}"),
        });
        assert!(sent, "the link's queue stays full");
    }

    /// Completes the handshakes of all clients.
    pub(crate) fn connect(&mut self) {
        for batch in 0..self.acks.len().div_ceil(200) {
            for index in batch * 200..self.acks.len().min((batch + 1) * 200) {
                self.send(&self.from(index).syn(ISN).mss(1460));
            }
            self.listen();
        }
        assert!(
            eventually(Duration::from_secs(10), || {
                self.listen();
                self.acks.iter().all(Option::is_some)
            }),
            "{} SYNs have no answer",
            self.acks.iter().filter(|ack| ack.is_none()).count()
        );
    }

    /// Records the SYN-ACKs received so far.
    fn listen(&mut self) {
        for frame in self.tap.drain().unwrap() {
            let Some(answer) = Segment::parse(&frame) else { continue };
            if answer.flags == flag::SYN | flag::ACK
                && let Some(place) = index_of(answer.to).and_then(|index| self.acks.get_mut(index))
            {
                *place = Some(answer.seq.wrapping_add(1));
            }
        }
    }

    /// Sends these bytes, the first ones of every client.
    pub(crate) fn say_all(&self, bytes: &[u8]) {
        self.send_all(0, bytes);
    }

    fn send_all(&self, at: usize, bytes: &[u8]) {
        for (index, ack) in self.acks.iter().enumerate() {
            let ack = ack.expect("it has connected");
            let said = self.from(index).seq(ISN + 1 + at as u32).ack(ack).psh().payload(bytes);
            self.send(&said);
        }
        self.tap.drain().unwrap();
    }
}

/// Returns the median time that a connection takes to reach its tenant and receive its name. Every connection
/// must succeed.
pub(crate) fn reach(scene: &Scene) -> Duration {
    let connect = |number: usize| {
        let (family, tenant) = (FAMILIES[number % 2], number % 3);
        let bytes = hello().name(server_name(tenant)).bytes();
        let start = Instant::now();
        let name = raw::hello(scene.lab.vip(family, TLS_PORT), &bytes, &[])
            .unwrap_or_else(|error| panic!("connection {number}: {error:#}; {:?}", scene.daemon.reasons()));
        assert!(name.starts_with(tenant_name(tenant)), "{name}");
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..TIMED).map(connect).collect();
    times.sort();
    times[times.len() / 2]
}

/// Asserts that the median did not change, except for the effect of busy cores: a client that had to
/// retransmit a SYN or a hello would have waited for at least 200 ms.
#[track_caller]
fn assert_unchanged(before: Duration, during: Duration) {
    let bound = before * 3 + Duration::from_millis(100);
    assert!(during < bound, "median time to reach a tenant: {before:?}, and {during:?} with the crowd");
}

/// Returns the refusals of waiting hellos by reason.
fn refused(scene: &Scene) -> BTreeMap<String, u64> {
    let mut reasons = scene.daemon.reasons().unwrap();
    reasons.retain(|name, _| ["ExpireHello", "HelloTimeout", "HelloEvicted"].contains(&name.as_str()));
    reasons
}

fn lab(max_hellos: u32) -> Scene {
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.hello_timeout = Some("5s".into());
    config.settings.max_hellos = Some(max_hellos);
    Scene::echo_with(&Options::default(), &config)
}

#[test]
fn ten_thousand_hellos_of_a_byte_a_second_change_nothing_for_others() {
    tests::skip_without_root!();
    let _turn = turn();
    let scene = lab(CROWD as u32 + 1000);
    let before = scene.lab.client.run(|| reach(&scene));
    let bytes = hello().name(server_name(0)).bytes();
    let mut crowd = Crowd::new(&scene, CROWD);
    crowd.connect();
    let mut during = Vec::new();
    // The first segment has two bytes: without timestamps, one client in 2,048 whose first segment has one byte seems to
    // send a keep-alive.
    for (at, said) in [(0, &bytes[..2]), (2, &bytes[2..3]), (3, &bytes[3..4])] {
        let second = Instant::now();
        crowd.send_all(at, said);
        during.push(scene.lab.client.run(|| reach(&scene)));
        std::thread::sleep(Duration::from_secs(1).saturating_sub(second.elapsed()));
    }
    assert_eq!(scene.entries()[1], CROWD, "all wait");
    during.sort();
    assert_unchanged(before, during[1]);
    // No hello is complete in time, and each is refused for this one reason.
    let over = |scene: &Scene| refused(scene).get("ExpireHello").copied().unwrap_or(0);
    assert!(eventually(Duration::from_secs(15), || over(&scene) == CROWD as u64), "{:?}", refused(&scene));
    scene.assert_nothing_leaks();
}

#[test]
fn more_hellos_than_there_is_room_for_push_out_the_oldest_and_no_client() {
    tests::skip_without_root!();
    let _turn = turn();
    const ROOM: u32 = 1000;
    let scene = lab(ROOM);
    let before = scene.lab.client.run(|| reach(&scene));
    let mut crowd = Crowd::new(&scene, CROWD);
    crowd.connect();
    let over = AtomicBool::new(false);
    let during = std::thread::scope(|scope| {
        let crowd = &crowd;
        let over = &over;
        scope.spawn(move || {
            // The same bytes are repeated: evicted clients are refused, the others wait.
            while !over.load(Ordering::Relaxed) {
                crowd.say_all(&[0x16, 3]);
            }
        });
        let _stop = Stop(over);
        scene.lab.client.run(|| reach(&scene))
    });
    assert_unchanged(before, during);
    let evicted = refused(&scene).get("HelloEvicted").copied().unwrap_or(0);
    let reasons = scene.daemon.reasons().unwrap();
    // A hello whose buffer another CPU took at the same moment is dropped, and its client says it again, for which the
    // crowd may have had no time.
    let busy = reasons.get("HelloBusy").copied().unwrap_or(0);
    assert!(evicted + busy >= (CROWD as u64) - u64::from(ROOM), "{:?}, {busy} busy", refused(&scene));
    // If two CPUs want the same slot at the same moment, one of them takes another.
    assert_eq!(reasons.get("HelloBufferFailed"), None);
    scene.assert_nothing_leaks();
}
