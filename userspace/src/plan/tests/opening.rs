//! One node describes a connection and another opens it. Their maps were filled in a different order, so
//! their ids differ.

use super::*;
use crate::plan::opening::Unknown;
use common::maps::flow::{BackendTuple, Connection, End, FLOW_ESTABLISHED, FLOW_SYN_SEEN, Flow};
use common::maps::listener::{Listener, ListenerKey};
use common::maps::route::LABEL_ROUTE;
use common::maps::word::Agreed;
use common::wire::opening::Opening;
use zerocopy::{FromBytes, IntoBytes};

const VIP: &str = "10.97.0.10";

/// Returns the maps of a node that got these routes one after the other.
fn node(routes: &[&str]) -> MapsImage {
    let listeners = vec![listener("shared", &[VIP], 443, Protocol::Tls, None)];
    let (mut image, mut applied) = (MapsImage::default(), Applied::default());
    for count in 1..=routes.len() {
        let routes = routes[..count].iter().map(|name| {
            let host = format!("{name}.example.com");
            let (one, two) = (format!("10.97.2.{}", name.len()), format!("10.97.3.{}", name.len()));
            route(name, &["shared"], &[&host], &[(&one, 1), (&two, 1)])
        });
        let desired = desired(listeners.clone(), routes.collect());
        let plan = plan(&applied, &desired, &ways(&desired));
        plan.changes.iter().for_each(|change| image.apply(change));
        applied = plan.applied;
    }
    image
}

fn client() -> ClientTuple {
    ClientTuple::tcp(ip("192.0.2.7").into(), ip(VIP).into(), Port::new(40_000), Port::new(443))
}

/// Returns an open connection of tenant `name` on this node.
fn flow(image: &MapsImage, name: &str) -> Flow {
    let (key, _) = image
        .labels
        .iter()
        .find(|(key, _)| key.kind == LABEL_ROUTE && image.label(LABEL_ROUTE, key.id) == Some(name))
        .unwrap();
    let of_route = image.backends.iter().filter(|(_, backend)| backend.route == key.id);
    let (backend, record) = of_route.max_by_key(|(_, backend)| backend.address).unwrap();
    let key_of_listener = ListenerKey { address: ip(VIP).into(), port: Port::new(443), reserved: [0; 2] };
    let Listener { id: listener, .. } = image.listeners[&key_of_listener];
    let mut flow = Flow {
        connection: Connection {
            generation: 77,
            state: FLOW_ESTABLISHED,
            flags: FLOW_SYN_SEEN,
            listener,
            route: key.id,
            backend: *backend,
            ..Connection::zeroed()
        },
        nat: BackendTuple::tcp(record.address, ip("10.97.2.1").into(), record.port, Port::new(50_000)),
        seq_delta: 5,
        ts_delta: 6,
        client: end(7, 8, 1),
        backend: end(9, 10, 2),
        client_isn: 11,
        vip_isn: 12,
        seen_secs: 13,
        ..Flow::zeroed()
    };
    flow.agree(Agreed { scale: 7, scaled: true, declined: 1 }, Agreed::scale(9));
    flow
}

fn end(next: u32, number: u32, window: u16) -> End {
    let mut end = End::zeroed();
    (end.sent.next, end.acked.number, end.acked.window) = (next, number, window);
    end
}

#[test]
fn a_connection_goes_on_by_addresses_and_names() {
    let (here, there) = (node(&["a", "bb", "ccc"]), node(&["ccc", "x", "bb", "a"]));
    let before = flow(&here, "bb");
    let told = here.opening(&client(), &before).unwrap();
    // As sent to another node.
    let told = Opening::read_from_bytes(told.as_bytes()).unwrap();
    let after = there.open(&told).unwrap();
    let ids = |flow: &Flow| (flow.connection.route, flow.connection.backend);
    assert_ne!(ids(&before), ids(&after), "the ids of the two nodes differ, or nothing is shown");
    assert_eq!(after, Flow { connection: flow(&there, "bb").connection, ..before }.begun());
    assert_eq!(there.label(LABEL_ROUTE, after.connection.route), Some("bb"));
    let backend = there.backends[&after.connection.backend];
    assert_eq!((backend.address, backend.port), (before.nat.backend, before.nat.backend_port));
    // And back, to the original ids.
    let back = here.open(&there.opening(&client(), &after).unwrap()).unwrap();
    assert_eq!(back, before.begun());
}

#[test]
fn what_is_not_known_there_is_named() {
    let here = node(&["a", "bb"]);
    let told = here.opening(&client(), &flow(&here, "bb")).unwrap();
    assert_eq!(node(&["a"]).open(&told), Err(Unknown::Route));
    let elsewhere = Opening { client: ClientTuple { vip_port: Port::new(444), ..told.client }, ..told };
    assert_eq!(here.open(&elsewhere), Err(Unknown::Listener));
    let gone = Opening { nat: BackendTuple { backend_port: Port::new(1), ..told.nat }, ..told };
    assert_eq!(here.open(&gone), Err(Unknown::Backend));
    let mut retired = here.clone();
    retired.backends.values_mut().for_each(|backend| backend.flags |= BACKEND_RETIRED);
    assert_eq!(retired.open(&told), Err(Unknown::Backend));
}

trait Begun {
    fn begun(self) -> Self;
}

impl Begun for Flow {
    /// Returns the flow as it is right after opening.
    fn begun(mut self) -> Self {
        (self.connection.generation, self.connection.flags) = (0, 0);
        self
    }
}
