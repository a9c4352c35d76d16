//! Routes to backends on the node itself.

use super::check::{carried_out, fresh};
use super::*;
use crate::model::{Elsewhere, HealthCheck, ObjectName, TrafficPolicy};
use crate::plan::{Health, Leading};
use common::maps::address::Address;
use common::maps::backend::{BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend, DELIVERY_DNAT, DELIVERY_NAT};
use common::maps::listener::ROLE_BACKEND;
use std::net::IpAddr;
use std::num::NonZeroU16;

const VIP: &str = "192.0.2.7";

/// One TCP listener that leads to these backends.
fn only(traffic: TrafficPolicy, backends: &[(&str, u16)]) -> Desired {
    let route = RouteSpec { traffic, ..route("r", &["l"], &[], backends) };
    desired(vec![listener("l", &[VIP, "2001:db8::7"], 443, Protocol::Tcp, None)], vec![route])
}

fn backends(world: &MapsImage) -> Vec<(IpAddr, Backend)> {
    let mut all: Vec<_> = world.backends.values().map(|own| (IpAddr::from(own.address), *own)).collect();
    all.sort_by_key(|(address, _)| *address);
    all
}

fn is_seeing(world: &MapsImage, address: &str) -> bool {
    world.addresses.get(&Address::from(ip(address))).is_some_and(|flags| flags & ROLE_BACKEND != 0)
}

#[test]
fn backends_on_the_node_see_their_clients_and_no_others_do() {
    let desired = only(TrafficPolicy::Local, &[("10.1.0.1", 1), ("fd01::1", 1)]);
    let world = fresh(&desired, &ways(&desired));
    assert!(backends(&world).iter().all(|(_, own)| own.delivery == DELIVERY_DNAT && own.flags == 0));
    assert!(is_seeing(&world, "10.1.0.1") && is_seeing(&world, "fd01::1"));
    assert_eq!(world.settings.deliveries, 1 << DELIVERY_DNAT);
    let desired = only(TrafficPolicy::Cluster, &[("10.1.0.1", 1)]);
    let world = fresh(&desired, &ways(&desired));
    assert_eq!(backends(&world)[0].1.delivery, DELIVERY_NAT);
    assert!(!is_seeing(&world, "10.1.0.1") && world.settings.deliveries == 0);
}

/// Connections keep their delivery, and their replies are known only while some backend has it.
#[test]
fn a_backend_whose_clients_become_hidden_is_another_and_the_old_ones_connections_end() {
    let local = only(TrafficPolicy::Local, &[("10.1.0.1", 1)]);
    let hops = ways(&local);
    let first = plan(&Applied::default(), &local, &hops);
    let world = carried_out(&MapsImage::default(), &first);
    let hidden = only(TrafficPolicy::Cluster, &[("10.1.0.1", 1)]);
    let second = plan(&first.applied, &hidden, &hops);
    let [(old, _)] = world.backends.iter().collect::<Vec<_>>()[..] else { panic!("{world:?}") };
    let ended = second
        .changes
        .iter()
        .any(|change| matches!(change, Change::Reset(selector) if selector.backends.contains(old)));
    let retired = second.changes.iter().any(|change| {
        matches!(change, Change::PutBackend(id, value) if id == old && value.flags & BACKEND_RETIRED != 0)
    });
    assert!(ended && retired, "{:?}", second.changes);
    let world = carried_out(&world, &second);
    assert_eq!(backends(&world)[0].1.delivery, DELIVERY_NAT);
    let world = forgotten(&world, second.applied, &hidden, &hops);
    assert!(!world.addresses.contains_key(&Address::from(ip("10.1.0.1"))), "addresses of pods come and go");
    assert_eq!(world.settings.deliveries, 0);
}

/// Returns the world after the first plan behind the end of connections to the backends that are gone.
fn forgotten(world: &MapsImage, mut applied: Applied, desired: &Desired, hops: &Hops) -> MapsImage {
    applied.forget_senders(applied.gone_senders());
    let planned = plan(&applied, desired, hops);
    assert_eq!(planned.applied.gone_senders(), [].into());
    carried_out(world, &planned)
}

/// Otherwise what its pod sends on them meanwhile would reach the client past us, from an address that it has not dialled.
#[test]
fn a_backend_that_is_gone_is_known_by_its_address_until_its_connections_are_ended() {
    let local = only(TrafficPolicy::Local, &[("10.1.0.1", 1)]);
    let hops = Hops { edition: 1, ..ways(&local) };
    let first = plan(&Applied::default(), &local, &hops);
    let begun = carried_out(&MapsImage::default(), &first);
    for after in [only(TrafficPolicy::Cluster, &[("10.1.0.1", 1)]), only(TrafficPolicy::Local, &[])] {
        let second = plan(&first.applied, &after, &hops);
        let mut world = carried_out(&begun, &second);
        assert!(is_seeing(&world, "10.1.0.1") && world.settings.deliveries == 1 << DELIVERY_DNAT);
        assert_eq!(second.applied.gone_senders(), [Address::from(ip("10.1.0.1"))].into());
        // Nor do other plans end it, nor a daemon that continues from the maps.
        for applied in [&second.applied, &Applied::from_maps(content(&world))] {
            let third = plan(applied, &after, &hops);
            world = carried_out(&world, &third);
            assert!(is_seeing(&world, "10.1.0.1"));
            assert_eq!(third.applied.gone_senders(), second.applied.gone_senders());
        }
        // It may be back before its connections are ended.
        let mut back = second.applied.clone();
        back.forget_senders(back.gone_senders());
        let back = carried_out(&world, &plan(&back, &local, &hops));
        assert!(is_seeing(&back, "10.1.0.1") && back.settings.deliveries == 1 << DELIVERY_DNAT);
        let world = forgotten(&world, second.applied, &after, &hops);
        assert!(!is_seeing(&world, "10.1.0.1") && world.settings.deliveries == 0);
    }
}

/// Word that the connections of its first time are ended may come as late as that, and says nothing of those since.
#[test]
fn a_backend_that_was_back_in_time_is_known_by_its_address_when_it_is_gone_again() {
    let (local, none) = (only(TrafficPolicy::Local, &[("10.1.0.1", 1)]), only(TrafficPolicy::Local, &[]));
    let hops = Hops { edition: 1, ..ways(&local) };
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    for desired in [&local, &none, &local] {
        let planned = plan(&applied, desired, &hops);
        (world, applied) = (carried_out(&world, &planned), planned.applied);
    }
    let gone = [Address::from(ip("10.1.0.1"))];
    applied.forget_senders(gone);
    let planned = plan(&applied, &none, &hops);
    let world = carried_out(&world, &planned);
    assert!(is_seeing(&world, "10.1.0.1") && world.settings.deliveries == 1 << DELIVERY_DNAT);
    assert_eq!(planned.applied.gone_senders(), gone.into());
    let world = forgotten(&world, planned.applied, &none, &hops);
    assert!(!is_seeing(&world, "10.1.0.1") && world.settings.deliveries == 0);
}

/// Its replies may come by a device without our program, and the node would send them to the client as they are.
#[test]
fn a_backend_behind_a_router_takes_no_connection_from_clients_that_it_would_see() {
    let local = only(TrafficPolicy::Local, &[("10.1.0.1", 1)]);
    let mut hops = ways(&local);
    let hop = *hops.towards.get(&ip("10.1.0.1")).unwrap();
    hops.towards.put(ip("10.1.0.1"), 1, Some(Hop { is_on_link: false, ..hop }));
    let planned = plan(&Applied::default(), &local, &hops);
    let world = carried_out(&MapsImage::default(), &planned);
    assert_eq!(backends(&world)[0].1.flags, BACKEND_UNREACHABLE);
    let [problem] = &planned.problems[..] else { panic!("{:?}", planned.problems) };
    assert!(problem.to_string().contains("10.1.0.1:6443 is reached over a router"), "{problem}");
    let out_of_reach =
        |applied: &Applied| applied.out_of_reach().flat_map(|(_, all)| all).collect::<Vec<_>>();
    assert_eq!(out_of_reach(&planned.applied), ["10.1.0.1:6443".parse().unwrap()]);
    let hidden = only(TrafficPolicy::Cluster, &[("10.1.0.1", 1)]);
    let planned = plan(&planned.applied, &hidden, &hops);
    assert_eq!(backends(&carried_out(&world, &planned))[0].1.flags, 0);
    assert_eq!(out_of_reach(&planned.applied), []);
}

/// What its pod then sends on an open connection would reach the client past us, from an address that it has not dialled.
#[test]
fn a_backend_whose_next_hop_is_lost_is_still_known_by_its_address() {
    let local = only(TrafficPolicy::Local, &[("10.1.0.1", 1), ("10.1.0.2", 1)]);
    let first = plan(&Applied::default(), &local, &ways(&local));
    let world = carried_out(&MapsImage::default(), &first);
    let own = Hops { own: [ip("10.1.0.2")].into(), ..Hops::default() };
    let second = plan(&first.applied, &local, &own);
    let world = carried_out(&world, &second);
    assert!(backends(&world).iter().all(|(_, own)| own.flags & BACKEND_UNREACHABLE != 0));
    assert!(is_seeing(&world, "10.1.0.1") && world.settings.deliveries == 1 << DELIVERY_DNAT);
    // The node's own traffic is not looked through for an address that is its own.
    assert!(!is_seeing(&world, "10.1.0.2"));
    let hidden = only(TrafficPolicy::Cluster, &[("10.1.0.1", 1)]);
    let third = plan(&second.applied, &hidden, &own);
    let world = forgotten(&carried_out(&world, &third), third.applied, &hidden, &own);
    assert!(!is_seeing(&world, "10.1.0.1") && world.settings.deliveries == 0);
}

#[test]
fn an_address_where_all_that_listens_leads_to_the_nodes_own_backends_is_led_by_who_has_some() {
    let leading = |desired: &Desired, hops: &Hops| -> Vec<String> {
        let planned = plan(&Applied::default(), desired, hops);
        let text = |(address, Leading { here, others, is_unknown }): (IpAddr, Leading)| {
            assert!(!is_unknown);
            let others = others.iter().map(|node| format!(" {node}"));
            format!("{address}{}{}", if here { " here" } else { "" }, others.collect::<String>())
        };
        planned.applied.leading(desired).into_iter().map(text).collect()
    };
    let only = |traffic, backends: &[_]| elsewhere(only(traffic, backends));
    for (traffic, backends, expected) in [
        (TrafficPolicy::Local, &[("10.1.0.1", 1), ("fd01::1", 1)][..], &[" here n4", " here n6"][..]),
        (TrafficPolicy::Local, &[("10.1.0.1", 1)], &[" here n4", " n6"]),
        (TrafficPolicy::Local, &[("10.1.0.1", 0), ("fd01::1", 1)], &[" n4", " here n6"]),
        (TrafficPolicy::Local, &[], &[" n4", " n6"]),
        (TrafficPolicy::Cluster, &[], &[]),
    ] {
        let desired = only(traffic, backends);
        let expected: Vec<String> =
            [VIP, "2001:db8::7"].iter().zip(expected).map(|(at, who)| format!("{at}{who}")).collect();
        assert_eq!(leading(&desired, &ways(&desired)), expected, "{traffic:?} {backends:?}");
    }
    let desired = only(TrafficPolicy::Local, &[("10.1.0.1", 1), ("fd01::1", 1)]);
    let none = [format!("{VIP} n4"), "2001:db8::7 n6".to_owned()];
    assert_eq!(leading(&desired, &Hops::default()), none, "no route to them");
    // Another port of the address is served on every node, or leads to a backend here.
    let two = |second: RouteSpec, protocol| {
        let listeners =
            vec![listener("l", &[VIP], 443, Protocol::Tcp, None), listener("m", &[VIP], 444, protocol, None)];
        let first = RouteSpec { traffic: TrafficPolicy::Local, ..route("r", &["l"], &[], &[]) };
        elsewhere(desired_of(listeners, vec![first, second]))
    };
    let other = |traffic, backends: &[_]| RouteSpec { traffic, ..route("s", &["m"], &[], backends) };
    for (desired, expected) in [
        (two(other(TrafficPolicy::Cluster, &[]), Protocol::Tcp), vec![]),
        (two(other(TrafficPolicy::Local, &[("10.1.0.1", 1)]), Protocol::Tcp), vec![format!("{VIP} here n4")]),
        (two(other(TrafficPolicy::Local, &[]), Protocol::Tcp), vec![format!("{VIP} n4")]),
        (
            two(
                RouteSpec {
                    patterns: vec![crate::config::pattern("a.example.com").unwrap()],
                    ..other(TrafficPolicy::Local, &[])
                },
                Protocol::Tls,
            ),
            vec![],
        ),
    ] {
        assert_eq!(leading(&desired, &ways(&desired)), expected, "{desired:?}");
    }
}

#[test]
fn what_health_checks_say_is_what_decides_who_has_an_address() {
    let port = |number| NonZeroU16::new(number).unwrap();
    let check = |number, service: &str, route: &str, is_draining| HealthCheck {
        port: port(number),
        service: ObjectName { namespace: "a".into(), name: service.into() },
        route: route.into(),
        is_draining,
    };
    let listeners = vec![
        listener("l", &[VIP, "2001:db8::7"], 443, Protocol::Tcp, None),
        listener("m", &[VIP, "2001:db8::7"], 444, Protocol::Tcp, None),
    ];
    let said = |checks: Vec<HealthCheck>, backends: [&[(&str, u16)]; 2], are_reached: bool| -> Vec<String> {
        let routes = [("r", "l"), ("s", "m")].iter().zip(backends);
        let routes = routes.map(|((name, at), backends)| RouteSpec {
            traffic: TrafficPolicy::Local,
            ..route(name, &[at], &[], backends)
        });
        let routes = routes.collect();
        let desired = Desired { health_checks: checks.into(), ..desired_of(listeners.clone(), routes) };
        let hops = if are_reached { ways(&desired) } else { Hops::default() };
        let planned = plan(&Applied::default(), &desired, &hops);
        let text = |(port, Health { service, is_held, endpoints })| {
            format!("{port} {service} {endpoints}{}", if is_held { "" } else { " not held" })
        };
        planned.applied.health(&desired).into_iter().map(text).collect()
    };
    let both = || vec![check(30_001, "x", "r", false), check(30_001, "x", "s", false)];
    let one: &[_] = &[("10.1.0.1", 1)];
    // The pods of all its ports, each once, of the family that has more of them.
    let pods: &[_] = &[("10.1.0.1", 1), ("10.1.0.2", 1), ("fd01::1", 1), ("10.1.0.3", 0)];
    assert_eq!(said(both(), [pods, one], true), ["30001 a/x 2"]);
    assert_eq!(said(both(), [pods, one], false), ["30001 a/x 0"], "no route to them");
    assert_eq!(said(both(), [&[("10.1.0.1", 0)], &[]], true), ["30001 a/x 0"]);
    // Those that drain take connections, as long as no other does, and nobody should send any.
    assert_eq!(said(vec![check(30_001, "x", "r", true)], [one, one], true), ["30001 a/x 0"]);
    let two = vec![check(30_001, "x", "r", false), check(30_002, "y", "gone", false)];
    assert_eq!(said(two, [one, one], true), ["30001 a/x 1", "30002 a/y 0 not held"]);
    // A port that changes hands.
    let twice = vec![check(30_001, "x", "gone", false), check(30_001, "y", "r", false)];
    assert_eq!(said(twice, [one, one], true), ["30001 a/x 0 not held"]);
    assert_eq!(said(Vec::new(), [one, one], true), [""; 0]);
}

/// Returns the same with backends on other nodes, one for each family, of all routes to backends on the node.
fn elsewhere(desired: Desired) -> Desired {
    let mut others = Elsewhere::default();
    others.add(true, &"n4".into());
    others.add(false, &"n6".into());
    let others = Arc::new(others);
    let with = |route: &Arc<DesiredRoute>| {
        let elsewhere = (route.traffic == TrafficPolicy::Local).then(|| Arc::clone(&others));
        Arc::new(DesiredRoute { elsewhere, ..DesiredRoute::clone(route) })
    };
    Desired { routes: desired.routes.iter().map(with).collect(), ..desired }
}

fn desired_of(listeners: Vec<ListenerSpec>, routes: Vec<RouteSpec>) -> Desired {
    compile(&Facts { listeners, routes, ..Facts::default() }).desired
}
