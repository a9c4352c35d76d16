//! Backends that refuse, do not answer, or do not exist.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use tests::addresses::{FAMILIES, Family, TENANT_NETS, TLS_PORT, backend, host};
use tests::config::{Backend, Config, SHARED, listener, route};
use tests::hello::hello;
use tests::raw::{self, End, end_of};
use tests::server::read_line;
use tests::tls;
use tests::topology::Options;

use crate::open::Open;
use crate::reconnect::ignore_syns;
use crate::scene::{AT_ONCE, ECHO_PORT, Scene};

/// A port without a listener: the kernel refuses connections.
const CLOSED_PORT: u16 = 7999;
/// A host number that no host of the tenants' networks has.
const NOBODY: u8 = 99;

/// Returns a host of tenant a's network that accepts packets and never answers.
fn silent(family: Family) -> IpAddr {
    host(family, TENANT_NETS[0], NOBODY)
}

/// Returns backends of both families.
fn both(make: impl Fn(Family) -> Vec<Backend>) -> Vec<Backend> {
    FAMILIES.into_iter().flat_map(make).collect()
}

/// Returns routes to backends that are partly or all down, by name and by TCP listener.
fn config() -> Config {
    let mut config = Config::empty();
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    config.listeners.push(listener("closed", 20_001, "TCP"));
    let good = |family, index| Backend::new(backend(family, 0, index), ECHO_PORT);
    let closed = |family, index| Backend::new(backend(family, 0, index), CLOSED_PORT);
    let refusing = both(|family| vec![closed(family, 0), good(family, 1)]);
    config.routes.push(route("refusing", &[SHARED], &["refusing.example.org"], refusing));
    let mute = both(|family| vec![Backend::new(silent(family), ECHO_PORT), good(family, 1)]);
    config.routes.push(route("silent", &[SHARED], &["silent.example.org"], mute));
    let down = both(|family| {
        let ports = [CLOSED_PORT, CLOSED_PORT + 1];
        ports
            .into_iter()
            .flat_map(|port| (0..2).map(move |index| Backend::new(backend(family, 0, index), port)))
            .collect()
    });
    config.routes.push(route("down", &[SHARED, "closed"], &["down.example.org"], down));
    let v4 = vec![good(Family::V4, 0)];
    config.routes.push(route("v4", &[SHARED], &["v4.example.org"], v4));
    config.routes.push(route(
        "none",
        &[SHARED],
        &["none.example.org"],
        vec![Backend { weight: 0, ..good(Family::V4, 0) }],
    ));
    config
}

fn scene() -> Scene {
    let scene = Scene::echo_with(&Options::default(), &config());
    for family in FAMILIES {
        let address = silent(family);
        let batch = format!("neigh replace {address} lladdr 02:00:00:00:00:99 dev tenant-a nud permanent\n");
        scene.lab.balancer.ip(&batch).unwrap();
    }
    scene
}

#[test]
fn a_backend_that_refuses_is_replaced_at_once() {
    tests::skip_without_root!();
    let scene = scene();
    for family in FAMILIES {
        let ((), moved) = scene.counted(|| {
            for _ in 0..32 {
                let start = Instant::now();
                assert_eq!(Open::by_name(&scene, family, "refusing.example.org").backend, "tenant-a/1");
                assert!(start.elapsed() < AT_ONCE, "{family:?}: {:?}", start.elapsed());
            }
        });
        let next = moved.get("ConnectNext").copied().unwrap_or(0);
        assert!(
            (1..32).contains(&next),
            "{family:?}: some connections meet the refusing backend first: {moved:?}"
        );
        assert_eq!(moved.get("ConnectSyn").copied().unwrap_or(0), 32, "{family:?}: {moved:?}");
    }
    scene.assert_nothing_leaks();
}

#[test]
fn a_silent_backend_is_replaced_at_the_clients_second_retransmission() {
    tests::skip_without_root!();
    let scene = scene();
    for family in FAMILIES {
        let meet = || {
            let start = Instant::now();
            assert_eq!(Open::by_name(&scene, family, "silent.example.org").backend, "tenant-a/1");
            start.elapsed()
        };
        let met = (0..64).map(|_| scene.counted(meet)).find(|(_, moved)| moved.contains_key("ConnectNext"));
        let (took, moved) = met.expect("no connection met the silent backend");
        // The first retransmission repeats the SYN; the second one dials the next backend. Linux sends the
        // first, a tail loss probe (RFC 8985 section 7), after at most 200 ms, and the second 200 ms later.
        let count = |reason: &str| moved.get(reason).copied().unwrap_or(0);
        let syns = [count("ConnectSyn"), count("ConnectAgain"), count("ConnectNext")];
        assert_eq!(syns, [1, 1, 1], "{family:?}: {moved:?}");
        assert!(took > Duration::from_millis(200) && took < Duration::from_secs(2), "{family:?}: {took:?}");
    }
}

#[test]
fn refusals_of_all_are_the_end() {
    tests::skip_without_root!();
    let scene = scene();
    let bytes = hello().name("down.example.org").bytes();
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let (refused, moved) =
            scene.counted(|| scene.lab.client.run(|| raw::refused(to, &bytes, AT_ONCE * 5)));
        assert_eq!(refused.unwrap().0, End::Reset, "{family:?}: {moved:?}");
        let count = |reason: &str| moved.get(reason).copied().unwrap_or(0);
        let tries = [count("ConnectSyn"), count("ConnectNext"), count("ConnectExhausted")];
        assert_eq!(tries, [1, 3, 1], "{family:?}: {moved:?}");
    }
    scene.assert_nothing_leaks();
}

#[test]
fn a_refusal_on_a_tcp_listener_reaches_the_client() {
    tests::skip_without_root!();
    let scene = scene();
    for family in FAMILIES {
        let to = scene.lab.vip(family, 20_001);
        let start = Instant::now();
        let refused = scene.lab.client.run(|| tls::dial(to)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{family:?}");
        assert!(start.elapsed() < AT_ONCE, "{family:?}: {:?}", start.elapsed());
    }
    scene.assert_nothing_leaks();
}

#[test]
fn a_route_without_a_backend_of_the_clients_family_refuses() {
    tests::skip_without_root!();
    let scene = scene();
    assert_eq!(Open::by_name(&scene, Family::V4, "v4.example.org").backend, "tenant-a/0");
    for (family, name, reason) in [
        (Family::V6, "v4.example.org", "PickNoFamily"),
        (Family::V6, "none.example.org", "PickNone"),
        (Family::V4, "none.example.org", "PickNone"),
    ] {
        let bytes = hello().name(name).bytes();
        let to = scene.lab.vip(family, TLS_PORT);
        let (refused, moved) =
            scene.counted(|| scene.lab.client.run(|| raw::refused(to, &bytes, AT_ONCE * 3)));
        let (end, after) = refused.unwrap();
        assert_eq!(end, End::Reset, "{family:?} {name}: {moved:?}");
        assert!(after < AT_ONCE, "{family:?} {name}: {after:?}");
        assert_eq!(moved.get(reason), Some(&1), "{family:?} {name}: {moved:?}");
    }
}

/// `helloTimeout`. It is looked at every second.
const LIMIT: Duration = Duration::from_secs(6);
const LATEST: Duration = Duration::from_secs(10);

/// Opens connections to the route `single`, of one backend for each family; both hellos are sent at once. Returns them, and since when each waits.
fn to_single(scene: &Scene) -> Vec<(TcpStream, Instant)> {
    let bytes = hello().name("single.example.org").bytes();
    let open = |family| {
        let mut stream = scene.lab.client.run(|| tls::dial(scene.lab.vip(family, TLS_PORT))).unwrap();
        let begun = Instant::now();
        stream.write_all(&bytes).unwrap();
        (stream, begun)
    };
    FAMILIES.map(open).into()
}

/// Starts Vestibule; tenant a's host, which has both backends, ignores SYNs.
fn single() -> Scene {
    let mut config = Config::empty();
    config.settings.hello_timeout = Some(format!("{}s", LIMIT.as_secs()));
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    let backends = both(|family| vec![Backend::new(backend(family, 0, 0), ECHO_PORT)]);
    config.routes.push(route("single", &[SHARED], &["single.example.org"], backends));
    let scene = Scene::echo_with(&Options::default(), &config);
    ignore_syns(&scene.lab.tenants[0].namespace, true);
    scene
}

/// It got two SYNs in 0.4 s, and then its client was reset.
#[test]
fn a_single_silent_backend_has_until_the_time_limit() {
    tests::skip_without_root!();
    let scene = single();
    let ((), moved) = scene.counted(|| {
        let mut streams = to_single(&scene);
        std::thread::scope(|scope| {
            for (stream, begun) in &mut streams {
                scope.spawn(|| {
                    let end = end_of(stream, LATEST).unwrap();
                    let after = begun.elapsed();
                    assert_eq!(end, End::Reset, "after {after:?}");
                    assert!(after > LIMIT - AT_ONCE, "reset after {after:?}");
                });
            }
        });
    });
    // By the client's next segment, or by the daemon, which looks once a second: on a busy machine it may be first.
    let ended = ["HelloTimeout", "ExpireHello"].map(|reason| moved.get(reason).copied().unwrap_or_default());
    assert_eq!(ended.iter().sum::<u64>(), 2, "{moved:?}");
    // 0.2, 0.6, 1.4 and 3 s after the first, as their clients send again: the same SYN, for there is no other backend.
    assert!(moved.get("ConnectAgain").is_some_and(|again| (4..=16).contains(again)), "{moved:?}");
    assert_eq!(moved.get("ConnectSyn"), Some(&2), "{moved:?}");
    assert_eq!([moved.get("ConnectNext"), moved.get("ConnectExhausted")], [None; 2], "{moved:?}");
    scene.assert_nothing_leaks();
}

#[test]
fn a_single_backend_that_answers_before_the_time_limit_serves() {
    tests::skip_without_root!();
    let scene = single();
    let (mut streams, moved) = scene.counted(|| {
        let mut streams = to_single(&scene);
        // Longer than two SYNs in 0.4 s.
        std::thread::sleep(Duration::from_secs(1));
        ignore_syns(&scene.lab.tenants[0].namespace, false);
        for (stream, _) in &mut streams {
            assert_eq!(read_line(stream).unwrap().as_deref(), Some("tenant-a/0"));
        }
        streams
    });
    let count = |reason: &str| moved.get(reason).copied().unwrap_or(0);
    assert_eq!([count("ConnectSyn"), count("ConnectHello"), count("HelloTimeout")], [2, 2, 0], "{moved:?}");
    assert!(count("ConnectAgain") >= 4, "the backends came too early: {moved:?}");
    for (stream, _) in &mut streams {
        let mut echo = vec![0; hello().name("single.example.org").bytes().len()];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(echo, hello().name("single.example.org").bytes());
    }
    drop(streams);
    scene.assert_nothing_leaks();
}
