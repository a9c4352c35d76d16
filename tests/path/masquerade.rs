//! The node masquerades the connections of a pod to its own address, which is also Vestibule's source address. conntrack
//! gives them ports that the programs do not see, so both may meet on one four-tuple to a backend.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tests::addresses::{FAMILIES, Family, TLS_PORT, backend, balancer, server_name};
use tests::config::{Backend, Config};
use tests::hello::hello;
use tests::net::Namespace;
use tests::raw::write_split;
use tests::server::{read_line, reset};
use tests::tls;
use tests::topology::Options;

use crate::pod;
use crate::scene::{AT_ONCE, ECHO_PORT, Scene, eventually};

/// Vestibule's ports: each family's connections to the one backend use all of them by turns.
const PORTS: std::ops::RangeInclusive<u16> = 20_000..=20_007;
/// The one that the node masquerades to.
const MASQUERADED: u16 = 20_003;

/// A pod behind the node. Its namespace is dropped after the scene that has the node.
struct Node {
    scene: Scene,
    pod: Namespace,
}

impl Node {
    fn new() -> Self {
        let mut config = Config::lab_on(ECHO_PORT);
        config.settings.source_ports = Some(format!("{}-{}", PORTS.start(), PORTS.end()));
        let one = FAMILIES.map(|family| Backend::new(backend(family, 0, 0), ECHO_PORT)).to_vec();
        config.route_mut("tenant-a").backends = one;
        let scene = Scene::echo_with(&Options::default(), &config);
        let node = &scene.lab.balancer;
        let pod = pod::behind(node, 1500);
        node.nft(&format!(
            "table inet pods {{\nchain post {{\ntype nat hook postrouting priority srcnat\n\
                 iifname \"pod\" meta l4proto tcp masquerade to :{MASQUERADED}\n}}\n}}\n"
        ))
        .unwrap();
        Self { scene, pod }
    }

    fn at(family: Family) -> SocketAddr {
        SocketAddr::new(backend(family, 0, 0), ECHO_PORT)
    }

    /// Opens the pod's connection to the backend.
    fn masqueraded(&self, family: Family) -> TcpStream {
        let mut stream = self.pod.run(|| tls::dial(Self::at(family))).unwrap();
        assert_eq!(read_line(&mut stream).unwrap().unwrap(), "tenant-a/0");
        stream
    }

    /// Opens a connection through Vestibule to the same backend; returns how long that took.
    fn through(&self, family: Family) -> (TcpStream, Duration) {
        let begun = Instant::now();
        let vip = self.scene.lab.vip(family, TLS_PORT);
        let mut stream = self.scene.lab.client.run(|| tls::dial(vip)).unwrap();
        let bytes = hello().name(server_name(0)).bytes();
        write_split(&mut stream, &bytes, &[]).unwrap();
        assert_eq!(read_line(&mut stream).unwrap().unwrap(), "tenant-a/0");
        stream.read_exact(&mut vec![0; bytes.len()]).unwrap();
        (stream, begun.elapsed())
    }
}

/// Asserts that the backend echoes; returns how long that took.
#[track_caller]
fn echoes(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    stream.write_all(b"still there?").unwrap();
    let mut echo = [0; 12];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"still there?");
    begun.elapsed()
}

#[test]
fn a_masqueraded_connection_and_ours_to_one_backend_both_live() {
    tests::skip_without_root!();
    let node = Node::new();
    for family in FAMILIES {
        let mut masqueraded = node.masqueraded(family);
        let others = PORTS.count() - 1;
        let (mut ours, moved) =
            node.scene.counted(|| (0..others).map(|_| node.through(family)).collect::<Vec<_>>());
        // One of them met the masqueraded connection, unless the sequence of ports, which begins anywhere, has its port last.
        let met = moved.get("ConnectOld").copied().unwrap_or(0);
        assert!(met <= 1, "{family:?}: {moved:?}");
        assert_eq!(moved.get("ConnectHello"), Some(&(others as u64)), "{family:?}: {moved:?}");
        echoes(&mut masqueraded);
        for (stream, time) in &mut ours {
            assert!(*time < AT_ONCE, "{family:?}: {time:?} to connect, {moved:?}");
            echoes(stream);
        }
        // Another one finds every port taken. The backend's answers to it are the masqueraded connection's.
        let vip = node.scene.lab.vip(family, TLS_PORT);
        let mut more = node.scene.lab.client.run(|| tls::dial(vip)).unwrap();
        let ((), moved) = node.scene.counted(|| {
            more.write_all(&hello().name(server_name(0)).bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(700));
        });
        // If none did, this one meets it, and has no other port to take.
        assert!(met == 1 || moved.contains_key("ConnectStray"), "{family:?}: {moved:?}");
        echoes(&mut masqueraded);
        reset(&more).unwrap();
    }
}

/// The backend does not answer our SYN, so that ours waits for long.
#[test]
fn replies_to_a_masqueraded_connection_are_not_swallowed_while_we_connect() {
    tests::skip_without_root!();
    let node = Node::new();
    for family in FAMILIES {
        let mut masqueraded = node.masqueraded(family);
        node.scene.lab.tenants[0]
            .namespace
            .nft(
                "table inet quiet {\nchain in {\ntype filter hook input priority filter\n\
             tcp flags & (syn | ack) == syn drop\n}\n}\n",
            )
            .unwrap();
        let vip = node.scene.lab.vip(family, TLS_PORT);
        let bytes = hello().name(server_name(0)).bytes();
        let (waiting, moved) = node.scene.counted(|| {
            let dialled = PORTS.map(|_| {
                let mut stream = node.scene.lab.client.run(|| tls::dial(vip)).unwrap();
                stream.write_all(&bytes).unwrap();
                stream
            });
            let waiting: Vec<TcpStream> = dialled.collect();
            for _ in 0..3 {
                let time = echoes(&mut masqueraded);
                assert!(time < Duration::from_millis(150), "{family:?}: {time:?}: sent again");
            }
            waiting
        });
        assert!(moved.get("ConnectSyn") >= Some(&(PORTS.count() as u64)), "{family:?}: {moved:?}");
        assert!(moved.contains_key("ConnectStray"), "{family:?}: {moved:?}");
        node.scene.lab.tenants[0].namespace.nft("flush ruleset\n").unwrap();
        // All but the one on the masqueraded port, for which there is no other one.
        let answered = |mut stream: TcpStream| {
            stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
            let name = read_line(&mut stream).ok().flatten();
            reset(&stream).unwrap();
            name.as_deref() == Some("tenant-a/0")
        };
        let answered = waiting.into_iter().map(answered).filter(|answered| *answered).count();
        assert_eq!(answered, PORTS.count() - 1, "{family:?}");
        echoes(&mut masqueraded);
        reset(&masqueraded).unwrap();
    }
}

/// How a client ends its connection.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Close,
    Reset,
}

impl Ending {
    fn of(self, mut stream: TcpStream) {
        match self {
            Self::Reset => reset(&stream).unwrap(),
            Self::Close => {
                stream.shutdown(Shutdown::Write).unwrap();
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            }
        }
    }
}

/// The other direction: conntrack does not know our ports, so here it gives a new connection the port of an open one of ours. The
/// backend answers its SYNs by challenge ACKs (RFC 5961 section 4), which reach our client, and mean nothing to it.
#[test]
fn a_connection_that_conntrack_gives_the_port_of_an_open_one_of_ours_waits_until_that_ends() {
    tests::skip_without_root!();
    for end in [Ending::Close, Ending::Reset] {
        let node = Node::new();
        for family in FAMILIES {
            let challenged = || node.scene.lab.tenants[0].namespace.statistic("TcpExt", "TCPSYNChallenge");
            let mut ours: Vec<TcpStream> = PORTS.map(|_| node.through(family).0).collect();
            let before = challenged().unwrap();
            std::thread::scope(|scope| {
                let ((waiting, times), moved) = node.scene.counted(|| {
                    let waiting = scope.spawn(|| {
                        node.pod
                            .run(|| TcpStream::connect_timeout(&Node::at(family), Duration::from_secs(20)))
                    });
                    let mut times = Vec::new();
                    assert!(
                        eventually(Duration::from_secs(8), || {
                            times.extend(ours.iter_mut().map(echoes));
                            challenged().unwrap() >= before + 3
                        }),
                        "{family:?}: the masqueraded connection's SYN met none of ours"
                    );
                    (waiting, times)
                });
                // A connection that the SYNs disturb would send again each time; other work on the machine delays some.
                let mut times = times;
                times.sort_unstable();
                let most = times[times.len() * 19 / 20];
                assert!(most < Duration::from_millis(150), "{family:?}: {most:?}: sent again, {moved:?}");
                let passed =
                    |reason: &String| ["ForwardBackend", "ForwardClient", "NotOurs"].contains(&&**reason);
                assert!(moved.keys().all(passed), "{family:?}: {moved:?}");
                assert!(!waiting.is_finished(), "{family:?}: it connected, {moved:?}");
                ours.into_iter().for_each(|stream| end.of(stream));
                let mut masqueraded = waiting.join().unwrap().unwrap();
                masqueraded.set_read_timeout(Some(AT_ONCE)).unwrap();
                assert_eq!(
                    read_line(&mut masqueraded).unwrap().unwrap(),
                    "tenant-a/0",
                    "{family:?}, {end:?}"
                );
                echoes(&mut masqueraded);
                reset(&masqueraded).unwrap();
            });
        }
    }
}

#[test]
fn doctor_warns_of_a_source_address_that_the_node_masquerades_to() {
    tests::skip_without_root!();
    let node = Node::new();
    let told = || {
        let mut doctor = node.scene.daemon.command(&node.scene.lab.balancer).unwrap();
        let output = doctor.args(["doctor", "-o", "json"]).output().unwrap();
        let all = tests::report::objects(&String::from_utf8_lossy(&output.stdout)).unwrap();
        all.into_iter().find(|one| one["what"] == "masquerading").expect("it is checked")
    };
    let found = told();
    assert_eq!(found["verdict"], "warning", "{found}");
    let text = found["found"].as_str().unwrap();
    for family in FAMILIES {
        assert!(text.contains(&balancer(family, 2).to_string()), "{found}");
    }
    assert!(text.contains("20000 to 20007"), "{found}");
    node.scene
        .lab
        .balancer
        .nft(
            "flush ruleset\ntable inet pods {\nchain post {\ntype nat hook postrouting priority srcnat\n\
         meta l4proto tcp masquerade to :30000-60000\n}\n}\n",
        )
        .unwrap();
    assert_eq!(told()["verdict"], "ok");
}
