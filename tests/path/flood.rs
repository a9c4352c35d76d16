//! SYNs from forged addresses, as many as the machine sends. Nothing is stored for them, and clients connect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tests::addresses::{FAMILIES, Family, TLS_PORT, backend};
use tests::config::{Config, DIRECT_PORT};
use tests::net::{End, Namespace, veth};
use tests::packet::segment;
use tests::raw;
use tests::server::read_line;
use tests::tap::Tap;
use tests::tls;
use tests::topology::{Lab, Options, UPLINK};

use crate::crowd::reach;
use crate::scene::{ECHO_PORT, Scene, all, eventually, turn};
use tests::stop::Stop;

/// The number of different SYNs in a flood: more than there are source ports towards a backend.
const FLOOD: u32 = 100_000;
/// The rate above which a flood goes on no faster, in SYNs a second.
const RATE: u64 = 300_000;
/// Delay between clients and the balancer, in each direction: a round trip takes 200 ms.
const DELAY: Duration = Duration::from_millis(100);

/// The balancer's device towards the forgers.
const DEVICE: &str = "forgers";

/// Who floods: a namespace of its own, so that the flood goes by no other link.
struct Forgers {
    tap: Tap,
    /// The SYNs of each family, in the order of [`FAMILIES`].
    frames: [Vec<Vec<u8>>; 2],
    _namespace: Namespace,
}

impl Forgers {
    /// Forges SYNs to a port of the VIPs.
    fn new(lab: &Lab, port: u16) -> Self {
        let namespace = Namespace::new("forgers").unwrap();
        let addresses = &["10.96.0.1/24", "fd96::1/64"];
        let near = End { namespace: &lab.balancer, device: DEVICE, addresses };
        let far = End { namespace: &namespace, device: UPLINK, addresses: &["10.96.0.2/24", "fd96::2/64"] };
        veth(near, far, 1500).unwrap();
        let routes = [
            // Answers to forged addresses go back to the forgers.
            "route add 10.98.0.0/16 via 10.96.0.2\nroute add fd98::/32 via fd96::2\n",
            // The daemon serves the devices of default routes.
            "route add default via 10.96.0.2 metric 500\n",
        ];
        lab.balancer.ip(&routes.concat()).unwrap();
        let (to, from) = (lab.balancer.mac(DEVICE).unwrap(), namespace.mac(UPLINK).unwrap());
        // Each SYN has its own source, port and number.
        let frame = |family, number: u32| {
            let spread = number.wrapping_mul(2_654_435_761);
            let source = (forged(family, (spread >> 8) as u16), 1024 + (spread % 60_000) as u16);
            segment(source.into(), lab.vip(family, port))
                .ethernet(to, from)
                .syn(spread)
                .linux_syn_options(1460, spread, 7)
                .bytes()
        };
        let frames = FAMILIES.map(|family| (0..FLOOD).map(|number| frame(family, number)).collect());
        let tap = Tap::open(&namespace, UPLINK).unwrap();
        Self { tap, frames, _namespace: namespace }
    }

    /// Floods the family's VIP while `story` runs. Returns the number of SYNs and their rate too.
    fn flood<T: Send>(&self, family: Family, story: impl FnOnce() -> T + Send) -> (T, u64, u64) {
        let frames = &self.frames[usize::from(!family.is_v4())];
        let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = Instant::now();
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                for frame in frames.iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let due = start.elapsed().as_micros() as u64 * RATE / 1_000_000;
                    if sent.load(Ordering::Relaxed) < due && self.tap.send(frame).is_ok() {
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let _stop = Stop(&over);
            story()
        });
        let sent = sent.into_inner();
        let rate = sent * 1_000 / start.elapsed().as_millis().max(1) as u64;
        println!("{sent} SYNs, {rate} a second, {family:?}");
        (told, sent, rate)
    }
}

/// A forged address.
fn forged(family: Family, host: u16) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 98, 0, 0)) + u32::from(host)).into(),
        // Each is a source of its own: a /64.
        Family::V6 => Ipv6Addr::new(0xfd98, 0, 0, host, 0, 0, 0, 1).into(),
    }
}

/// A lab whose backends send their name and echo what they receive, and forgers who flood a port of the VIP.
fn scene(options: &Options, port: u16, hello_timeout: &str) -> (Scene, Forgers) {
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.hello_timeout = Some(hello_timeout.into());
    config.settings.max_hellos = Some(65_536);
    let lab = Lab::with(&Options { servers: false, ..options.clone() }).unwrap();
    // Before the daemon looks for devices.
    let forgers = Forgers::new(&lab, port);
    let echoes = lab.echo_servers(ECHO_PORT).unwrap();
    let daemon = lab.vestibule(&config).unwrap();
    (Scene { daemon, echoes, lab }, forgers)
}

#[test]
fn a_flood_of_syns_stores_nothing_and_clients_connect() {
    tests::skip_without_root!();
    let _turn = turn();
    let (scene, forgers) = scene(&Options::default(), TLS_PORT, "5s");
    let memory = scene.daemon.resident_bytes().unwrap();
    for family in FAMILIES {
        let ((median, sent, _), moved) =
            scene.counted(|| forgers.flood(family, || scene.lab.client.run(|| reach(&scene))));
        assert!(median < Duration::from_millis(100), "median to reach a tenant {median:?}, {moved:?}");
        let answered = moved.get("SynAnswered").copied().unwrap_or(0);
        assert!(answered > sent / 2, "{answered} of {sent} SYNs were answered, {family:?}: {moved:?}");
        assert_eq!(scene.entries()[1], 0, "a SYN is kept");
    }
    let grown = scene.daemon.resident_bytes().unwrap().saturating_sub(memory);
    assert!(grown < 4 << 20, "the daemon has grown by {grown} bytes");
    scene.assert_nothing_leaks();
}

/// The oldest half-open connections used to be evicted, at this rate after 50 ms, and the flood reached the backends.
#[test]
fn clients_far_away_connect_to_a_tcp_listener_during_a_flood_of_syns() {
    tests::skip_without_root!();
    let _turn = turn();
    let (scene, forgers) = scene(&Options { client_delay: DELAY, ..Options::default() }, DIRECT_PORT, "5s");
    for family in FAMILIES {
        flood_from_afar(&scene, &forgers, family);
        // Or the next family's flood would meet a listener that is crowded already.
        assert!(eventually(Duration::from_secs(30), || scene.entries() == [0; 3]), "{:?}", scene.entries());
    }
}

/// Asserts that clients of both families connect while one family's VIP is flooded.
fn flood_from_afar(scene: &Scene, forgers: &Forgers, family: Family) {
    let times = Mutex::new(Vec::new());
    let connect = |number: &usize| {
        let start = Instant::now();
        let to = scene.lab.vip(FAMILIES[number % 2], DIRECT_PORT);
        let name = match number / 2 % 2 {
            // The server speaks first: the client's ACK is all that dials.
            0 => read_line(&mut tls::dial(to)?)?.context("ended without a name")?,
            _ => raw::hello(to, b"anything", &[])?,
        };
        ensure!(name.starts_with("tenant-a/"), "answered by {name}");
        times.lock().unwrap().push(start.elapsed());
        Ok(())
    };
    let numbers: Vec<usize> = (0..100).collect();
    let (((), sent, rate), moved) = scene.counted(|| {
        forgers.flood(family, || {
            // Until the flood has what it can take.
            std::thread::sleep(Duration::from_millis(500));
            all(&scene.lab, 20, &numbers, connect);
        })
    });
    let mut times = times.into_inner().unwrap();
    times.sort();
    println!(
        "times to reach a tenant: median {:?}, 95th {:?}, longest {:?}",
        times[50], times[94], times[99]
    );
    // Two round trips; a client that had to repeat a SYN would have waited for a second.
    assert!(times[50] < Duration::from_millis(900), "median {:?}, {moved:?}", times[50]);
    // A flood that fills the links may cost a few a packet, but not one in twenty waits for that second.
    let repeated = Duration::from_secs(1) + 4 * DELAY;
    assert!(times[94] < repeated, "95th {:?}, median {:?}, {moved:?}", times[94], times[50]);
    let [answered, passed] =
        ["SynAnswered", "SynForwarded"].map(|reason| moved.get(reason).copied().unwrap_or(0));
    assert!(answered > sent / 2, "{answered} of {sent} SYNs, {rate} a second, were answered: {moved:?}");
    assert!(passed < sent / 10, "{passed} of {sent} SYNs reached backends: {moved:?}");
    assert_eq!(moved.get("ConnectNoPort"), None, "{moved:?}");
}

/// The daemon repeats the SYN for a client that waits for the server. It cannot wait for a link address as a packet can, so
/// every such SYN to that backend was lost.
#[test]
fn a_waiting_client_reaches_a_backend_whose_link_address_is_unknown() {
    tests::skip_without_root!();
    let _turn = turn();
    let (scene, forgers) = scene(&Options::default(), DIRECT_PORT, "60s");
    let (balancer, device) = (&scene.lab.balancer, scene.lab.tenants[0].name);
    // Half of all half-open slots stay taken for as long as SYNs wait, so clients are answered by cookie.
    forgers.flood(Family::V4, || std::thread::sleep(Duration::from_secs(1)));
    for family in FAMILIES {
        let (silent, unknown) = (backend(family, 0, 0), backend(family, 0, 1));
        let nobody = format!("neigh replace {silent} lladdr 02:00:5e:00:00:fe dev {device} nud permanent\n");
        balancer.ip(&nobody).unwrap();
        let mut moved = std::collections::BTreeMap::new();
        // Each client meets the silent backend first as likely as not.
        for _ in 0..40 {
            balancer.ip(&format!("neigh flush to {unknown} dev {device}\n")).unwrap();
            let (name, counted) = scene.counted(|| {
                let mut stream = scene.lab.client.run(|| tls::dial(scene.lab.vip(family, DIRECT_PORT)))?;
                read_line(&mut stream)
            });
            assert_eq!(name.unwrap().as_deref(), Some("tenant-a/1"), "{family:?}, {counted:?}");
            for (reason, count) in counted {
                *moved.entry(reason).or_insert(0) += count;
            }
            if moved.contains_key("EmitCopyLost") {
                break;
            }
        }
        assert!(moved.contains_key("ConnectNext") && moved.contains_key("EmitCopyLost"), "{moved:?}");
    }
}
