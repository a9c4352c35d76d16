//! Paths narrower than the devices at their ends, unreachable hosts, and pings, with routers of the kernel.
//!
//! ```text
//! home (21) ── client, a router ── balancer ── tenant a, a router ── far (20)
//! ```

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use common::reason::Reason;
use tests::addresses::{
    BACKEND_PORT, FAMILIES, Family, TENANT_NETS, TLS_PORT, backend, balancer, client, host, server_name, vip,
};
use tests::bytes;
use tests::clients::User;
use tests::config::{Backend, Config, SHARED, listener, route};
use tests::icmp::{Icmp, echo, echo_reply};
use tests::net::{End, Namespace, veth};
use tests::server::{Server, Speech, read_line};
use tests::tap::Tap;
use tests::tls;
use tests::topology::{Lab, Options};
use tests::world::HOP_AGE;

use crate::scene::{AT_ONCE, Scene, eventually};

/// Networks beyond the routers.
const FAR: u8 = 20;
const HOME: u8 = 21;
const NARROW: u16 = 1_300;
const MIB: u64 = 1 << 20;

/// Returns a namespace behind a router. Its own device has the usual MTU; the router's device towards it has `mtu`.
fn behind(router: &Namespace, role: &'static str, net: u8, mtu: u16) -> Namespace {
    let inner = Namespace::new(role).unwrap();
    let ends = [1, 2].map(|number| {
        FAMILIES
            .map(|family| format!("{}/{}", host(family, net, number), if family.is_v4() { 24 } else { 64 }))
    });
    let addresses = ends.each_ref().map(|end| end.each_ref().map(String::as_str));
    let near = End { namespace: router, device: role, addresses: &addresses[0] };
    veth(near, End { namespace: &inner, device: "uplink", addresses: &addresses[1] }, 1500).unwrap();
    router.ip(&format!("link set {role} mtu {mtu}\n")).unwrap();
    router.forward().unwrap();
    for family in FAMILIES {
        inner.ip(&format!("route add default via {}\n", host(family, net, 1))).unwrap();
    }
    inner
}

/// The test's network. Fields drop in order.
struct Place {
    scene: Scene,
    user: User,
    home: Namespace,
    far: Namespace,
}

/// Builds it with one backend of each family in `far`. The MTUs are those of the routers' devices.
fn place(offloads: bool, far_mtu: u16, home_mtu: u16) -> Place {
    let lab = Lab::with(&Options { offloads, servers: false, ..Options::default() }).unwrap();
    let far = behind(&lab.tenants[0].namespace, "far", FAR, far_mtu);
    let home = behind(&lab.client, "home", HOME, home_mtu);
    let authority = &lab.tenants[0].authority;
    let identity = authority.server(&[&server_name(0)]).unwrap();
    let speech = authority.server_config(&identity).unwrap();
    let mut servers = Vec::new();
    let mut backends = Vec::new();
    for family in FAMILIES {
        let bits = if family.is_v4() { 24 } else { 64 };
        let (net, router) = (host(family, FAR, 0), backend(family, 0, 0));
        lab.balancer.ip(&format!("route add {net}/{bits} via {router}\n")).unwrap();
        let at = SocketAddr::new(host(family, FAR, 2), BACKEND_PORT);
        servers.push(Server::start(&far, at, "far/0", Speech::Tls(Arc::clone(&speech))).unwrap());
        backends.push(Backend::new(at.ip(), BACKEND_PORT));
    }
    let mut config = Config::empty();
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    config.routes.push(route("far", &[SHARED], &[&server_name(0)], backends));
    let user = User::new(authority, "alice").unwrap();
    let daemon = lab.vestibule(&config).unwrap();
    Place { scene: Scene { daemon, echoes: servers, lab }, user, home, far }
}

impl Place {
    /// Connects to the backend from `home`.
    fn talk(&self, family: Family, talk: impl FnOnce(tls::ClientStream) -> Result<()> + Send) {
        let to = self.scene.lab.vip(family, TLS_PORT);
        self.home
            .run(|| talk(tls::connect(to, self.user.config(), &server_name(0))?))
            .unwrap_or_else(|error| panic!("{family:?}: {error:#}"));
    }

    fn upload(&self, family: Family) {
        self.talk(family, |mut stream| {
            stream.write_all(format!("SINK {MIB}\n").as_bytes())?;
            bytes::send(&mut stream, MIB, 1).context("sending")?;
            let hash = read_line(&mut stream)?.context("ended before the hash")?;
            ensure!(hash == bytes::hash(MIB, 1), "other bytes came than were sent");
            Ok(())
        });
    }

    fn download(&self, family: Family) {
        self.talk(family, |mut stream| {
            stream.write_all(format!("SEND {MIB} 2\n").as_bytes())?;
            stream.flush()?;
            ensure!(
                bytes::receive(&mut stream, MIB)? == bytes::hash(MIB, 2),
                "other bytes came than were sent"
            );
            Ok(())
        });
    }
}

impl Place {
    /// Returns the MTU that the backend's host learned of its path to the balancer's address.
    fn known_mtu(&self, family: Family) -> Option<u16> {
        let source = balancer(family, TENANT_NETS[0]).to_string();
        let output = self.far.command("ip").args(["route", "get", &source]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut words = text.split_whitespace().skip_while(|word| *word != "mtu").skip(1);
        words.next().map(|mtu| mtu.parse().unwrap_or_else(|_| panic!("{text}")))
    }
}

fn count(moved: &BTreeMap<String, u64>, reason: Reason) -> u64 {
    moved.get(reason.name()).copied().unwrap_or(0)
}

#[test]
fn a_narrow_link_beyond_a_router_of_the_client_is_found() {
    tests::skip_without_root!();
    for offloads in [true, false] {
        let place = place(offloads, 1500, NARROW);
        for family in FAMILIES {
            let ((), moved) = place.scene.counted(|| place.download(family));
            let taken = if family.is_v4() { Reason::IcmpFragmented } else { Reason::IcmpToBackend };
            assert!(count(&moved, taken) > 0, "{family:?} {offloads}: {moved:?}");
            assert_eq!(count(&moved, Reason::IcmpStray), 0, "{moved:?}");
            // To the backend, all clients have one address. What it knows of the path there, all of them have to bear.
            let known = place.known_mtu(family);
            let expected = if family.is_v4() { None } else { Some(NARROW) };
            assert_eq!(
                known, expected,
                "{family:?} {offloads}: the MTU of the backend's path to all clients"
            );
        }
    }
}

#[test]
fn a_narrow_link_beyond_a_router_of_the_backend_is_found() {
    tests::skip_without_root!();
    for offloads in [true, false] {
        let place = place(offloads, NARROW, 1500);
        for family in FAMILIES {
            let ((), moved) = place.scene.counted(|| place.upload(family));
            assert!(count(&moved, Reason::IcmpToClient) > 0, "{family:?} {offloads}: {moved:?}");
        }
    }
}

#[test]
fn a_narrow_way_from_the_balancer_itself_is_heeded() {
    tests::skip_without_root!();
    for offloads in [true, false] {
        let place = place(offloads, 1500, 1500);
        for family in FAMILIES {
            let bits = if family.is_v4() { 24 } else { 64 };
            let (net, router) = (host(family, HOME, 0), client(family));
            let narrow = format!("route add {net}/{bits} via {router} mtu lock {NARROW}\n");
            place.scene.lab.balancer.ip(&narrow).unwrap();
            let ((), moved) = place.scene.counted(|| place.download(family));
            // An IPv4 segment is for the routers to fragment: a backend would believe it of all clients.
            let says = count(&moved, Reason::IcmpTooBig) > 0;
            assert_eq!(says, !family.is_v4(), "{family:?} {offloads}: {moved:?}");
            // Towards the backend, the route changes while a connection is open.
            let (net, router) = (host(family, FAR, 0), backend(family, 0, 0));
            let ((), moved) = place.scene.counted(|| {
                place.talk(family, |mut stream| {
                    stream.write_all(format!("SINK {MIB}\n").as_bytes())?;
                    stream.flush()?;
                    let narrow = format!("route replace {net}/{bits} via {router} mtu lock {NARROW}\n");
                    place.scene.lab.balancer.ip(&narrow)?;
                    std::thread::sleep(HOP_AGE);
                    bytes::send(&mut stream, MIB, 1).context("sending")?;
                    let hash = read_line(&mut stream)?.context("ended before the hash")?;
                    ensure!(hash == bytes::hash(MIB, 1), "other bytes came than were sent");
                    Ok(())
                });
            });
            assert!(count(&moved, Reason::IcmpTooBig) > 0, "{family:?} {offloads}: {moved:?}");
        }
        place.scene.assert_nothing_leaks();
    }
}

#[test]
fn a_backend_out_of_reach_is_replaced_at_once() {
    tests::skip_without_root!();
    let place = place(true, 1500, 1500);
    let lab = &place.scene.lab;
    for family in FAMILIES {
        // The router has no route to the second backend.
        let bits = if family.is_v4() { 32 } else { 128 };
        let gone = host(family, FAR, 3);
        lab.tenants[0].namespace.ip(&format!("route add unreachable {gone}/{bits}\n")).unwrap();
    }
    let mut config = Config::empty();
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    let both = FAMILIES.into_iter().flat_map(|f| [2, 3].map(|n| Backend::new(host(f, FAR, n), BACKEND_PORT)));
    config.routes.push(route("far", &[SHARED], &[&server_name(0)], both.collect()));
    place.scene.daemon.reload(&config).unwrap();
    for family in FAMILIES {
        let mut refused = false;
        for _ in 0..64 {
            let ((), moved) = place.scene.counted(|| {
                place.talk(family, |mut stream| {
                    stream.write_all(b"NAME\n")?;
                    let name = read_line(&mut stream)?.context("no name")?;
                    ensure!(name.starts_with("far/0"), "answered by {name}");
                    Ok(())
                });
            });
            refused = count(&moved, Reason::IcmpRefused) > 0;
            if refused {
                // At once: the client did not have to retransmit its hello.
                assert_eq!(count(&moved, Reason::ConnectAgain), 0, "{family:?}: {moved:?}");
                // The kernel limits the rate of a router's errors, so only the first one is certain.
                break;
            }
        }
        assert!(refused, "{family:?}: nobody was sent to the backend that is away");
    }
}

#[test]
fn a_ping_of_the_vip_comes_back() {
    tests::skip_without_root!();
    let place = place(true, 1500, 1500);
    let tap = Tap::open(&place.home, "uplink").unwrap();
    let own = place.home.mac("uplink").unwrap();
    let router = place.scene.lab.client.mac("home").unwrap();
    for family in FAMILIES {
        let ((), moved) = place.scene.counted(|| {
            for bytes in [0, 56, 1_400] {
                let asked = Icmp::new(echo(family), host(family, HOME, 2), vip(family))
                    .ethernet(router, own)
                    .rest(0x1234_0001)
                    .body(vec![0x5a; bytes]);
                let answer = Icmp::new(echo_reply(family), vip(family), host(family, HOME, 2))
                    .ethernet(own, router)
                    .hop_limit(63)
                    .rest(0x1234_0001)
                    .body(vec![0x5a; bytes])
                    .bytes();
                // Repeated, as ping does: a request may be lost while a router resolves its neighbour.
                let came = (0..5).any(|_| {
                    tap.send(&asked.bytes()).unwrap();
                    eventually(AT_ONCE, || tap.drain().unwrap().contains(&answer))
                });
                assert!(came, "{family:?}: {bytes} bytes");
            }
        });
        assert!(count(&moved, Reason::IcmpEcho) >= 3, "{family:?}: {moved:?}");
    }
}
