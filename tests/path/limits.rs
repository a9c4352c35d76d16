//! Limits, and what happens when they are reached.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use tests::addresses::{
    CLIENT_NET, FAMILIES, Family, TENANT_NETS, TLS_PORT, balancer, host, server_name, vip,
};
use tests::config::{Backend, Config, SHARED, route};
use tests::hello::hello;
use tests::raw::{End, end_of};
use tests::server::read_line;
use tests::tls;
use tests::topology::{Options, UPLINK};

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// The number of waiting hellos that one source may have.
const PER_SOURCE: usize = 64;
/// The time within which a packet is answered.
const SOON: Duration = Duration::from_millis(500);

/// Opens a connection, sends the first bytes of a hello, and leaves it waiting.
fn begun(scene: &Scene, family: Family, bytes: &[u8]) -> TcpStream {
    let mut stream = scene.lab.client.run(|| tls::dial(scene.lab.vip(family, TLS_PORT))).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Makes the client dial the VIP from this host number of its network from now on.
fn dial_from(scene: &Scene, family: Family, number: u8) {
    let address = host(family, CLIENT_NET, number);
    let gateway = balancer(family, CLIENT_NET);
    let (bits, nodad) = if family.is_v4() { (24, "") } else { (64, " nodad") };
    scene
        .lab
        .client
        .ip(&format!(
            "addr replace {address}/{bits} dev {UPLINK}{nodad}\nroute replace {} via {gateway} src {address}\n",
            vip(family)
        ))
        .unwrap();
}

fn is_reset(stream: &mut TcpStream, within: Duration) -> bool {
    end_of(stream, within).unwrap() == End::Reset
}

#[test]
fn a_source_may_have_64_incomplete_hellos_once_half_of_the_buffers_are_taken() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_hellos = Some(126);
    let scene = Scene::echo_with(&Options::default(), &config);
    let bytes = hello().name(server_name(0)).bytes();
    for family in FAMILIES {
        let mut waiting: Vec<_> = (0..PER_SOURCE).map(|_| begun(&scene, family, &bytes[..20])).collect();
        let (reset, moved) = scene.counted(|| is_reset(&mut begun(&scene, family, &bytes[..20]), SOON));
        assert!(reset, "{family:?}: {moved:?}");
        assert_eq!(moved.get("HelloSourceFull"), Some(&1), "{family:?}: {moved:?}");
        // Another host of the same /64 counts as the same source; another IPv4 address does not.
        dial_from(&scene, family, 7);
        let (mut stream, moved) = scene.counted(|| begun(&scene, family, &bytes[..20]));
        assert_eq!(is_reset(&mut stream, SOON), !family.is_v4(), "{family:?}: {moved:?}");
        dial_from(&scene, family, tests::addresses::CLIENT);
        // A hello that is delivered makes room for another.
        let mut done = waiting.pop().unwrap();
        done.write_all(&bytes[20..]).unwrap();
        assert!(read_line(&mut done).unwrap().unwrap().starts_with("tenant-a/"));
        assert!(Open::by_name(&scene, family, &server_name(1)).backend.starts_with("tenant-b/"));
        for mut stream in waiting {
            assert!(!is_reset(&mut stream, Duration::from_millis(1)), "{family:?}: a waiting one was reset");
        }
    }
}

#[test]
fn the_oldest_waiting_hello_gives_way() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_hellos = Some(100);
    let scene = Scene::echo_with(&Options::default(), &config);
    let bytes = hello().name(server_name(0)).bytes();
    let mut waiting = Vec::new();
    let ((), moved) = scene.counted(|| {
        for number in [10, 11, 12] {
            dial_from(&scene, Family::V4, number);
            waiting.extend((0..40).map(|_| begun(&scene, Family::V4, &bytes[..20])));
        }
        // The daemon resets the clients, so give it time.
        std::thread::sleep(SOON);
    });
    assert_eq!(moved.get("HelloEvicted"), Some(&20), "{moved:?}");
    for (number, stream) in waiting.iter_mut().enumerate() {
        assert_eq!(is_reset(stream, Duration::from_millis(2)), number < 20, "connection {number}: {moved:?}");
    }
    for stream in &mut waiting[20..] {
        stream.write_all(&bytes[20..]).unwrap();
        assert!(read_line(stream).unwrap().unwrap().starts_with("tenant-a/"));
    }
}

#[test]
fn a_source_whose_backend_is_silent_takes_no_place_from_others() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_hellos = Some(100);
    let silent = FAMILIES.map(|family| Backend::new(host(family, TENANT_NETS[0], 99), ECHO_PORT)).to_vec();
    config.routes.push(route("silent", &[SHARED], &["silent.example.org"], silent));
    let scene = Scene::echo_with(&Options::default(), &config);
    let bytes = hello().name("silent.example.org").bytes();
    for family in FAMILIES {
        let address = host(family, TENANT_NETS[0], 99);
        scene
            .lab
            .balancer
            .ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:99 dev tenant-a\n"))
            .unwrap();
        dial_from(&scene, family, 7);
        let (_waiting, moved) =
            scene.counted(|| (0..120).map(|_| begun(&scene, family, &bytes)).collect::<Vec<_>>());
        // Complete hellos that wait for their backend are bounded for each source and route.
        let [full, over] =
            ["AdmitConnecting", "ConnectExhausted"].map(|reason| moved.get(reason).copied().unwrap_or(0));
        // An eighth of 100, rounded up.
        let beyond = 120 - 13;
        assert!(full > 0 && full <= beyond && full + over >= beyond, "{family:?}: {moved:?}");
        dial_from(&scene, family, tests::addresses::CLIENT);
        if family.is_v4() {
            Open::by_name(&scene, family, &server_name(1)).assert_alive();
        }
    }
}

#[test]
fn a_hello_that_is_not_complete_in_time_is_reset() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.hello_timeout = Some("2s".into());
    let scene = Scene::echo_with(&Options::default(), &config);
    let bytes = hello().name(server_name(0)).bytes();
    for family in FAMILIES {
        let ((), moved) = scene.counted(|| {
            let mut stream = begun(&scene, family, &bytes[..20]);
            assert!(!is_reset(&mut stream, Duration::from_millis(1500)), "{family:?}: too early");
            assert!(is_reset(&mut stream, Duration::from_millis(2500)), "{family:?}: not at all");
        });
        let expired =
            moved.get("ExpireHello").copied().unwrap_or(0) + moved.get("HelloTimeout").copied().unwrap_or(0);
        assert_eq!(expired, 1, "{family:?}: {moved:?}");
    }
    scene.assert_nothing_leaks();
}

#[test]
fn an_idle_flow_is_reset_on_both_sides() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.idle_timeout = Some("3s".into());
    let scene = Scene::echo_with(&Options::default(), &config);
    let open = || scene.echoes.iter().map(tests::server::Server::connections).sum::<usize>();
    for family in FAMILIES {
        let mut busy = Open::by_name(&scene, family, &server_name(0));
        let mut idle = Open::by_name(&scene, family, &server_name(1));
        let ((), moved) = scene.counted(|| {
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(700));
                busy.assert_alive();
            }
            idle.assert_reset(Duration::from_millis(10));
        });
        assert_eq!(moved.get("ExpireIdle"), Some(&1), "{family:?}: {moved:?}");
        assert!(eventually(SOON, || open() == 1), "{family:?}: {} open at the backends", open());
        drop(busy);
        assert!(eventually(SOON, || open() == 0));
    }
}
