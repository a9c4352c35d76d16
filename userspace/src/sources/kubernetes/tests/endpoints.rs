use super::super::endpoints::{Slices, normalise};
use super::super::watch_event::Slice;
use crate::model::ObjectName;
use crate::model::cluster::{Endpoint, EndpointState};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const READY: EndpointState = EndpointState::Ready;
const NOT_READY: EndpointState = EndpointState::NotReady;
const DEPARTED: EndpointState = EndpointState::Departed;

/// A table of endpoints, and its time.
struct Table {
    slices: Slices,
    endpoints: BTreeMap<ObjectName, Arc<[Endpoint]>>,
    now: Instant,
}

impl Table {
    fn new() -> Self {
        Self { slices: Slices::default(), endpoints: BTreeMap::new(), now: Instant::now() }
    }

    fn put(&mut self, slice: &str, service: &str, endpoints: &[(u8, EndpointState)]) {
        self.slices.put(name(slice), slice_of(service, endpoints));
    }

    fn settle(&mut self, after_ms: u64) -> bool {
        self.now += Duration::from_millis(after_ms);
        self.slices.settle(&mut self.endpoints, self.now)
    }

    fn of(&self, service: &str) -> Vec<(u8, EndpointState)> {
        let all = self.endpoints.get(&name(service)).map_or(&[][..], |all| all);
        let last = |endpoint: &Endpoint| match endpoint.address {
            std::net::IpAddr::V4(v4) => v4.octets()[3],
            std::net::IpAddr::V6(_) => 0,
        };
        all.iter().map(|endpoint| (last(endpoint), endpoint.state)).collect()
    }
}

fn name(text: &str) -> ObjectName {
    ObjectName::new("tenant", text)
}

fn slice_of(service: &str, endpoints: &[(u8, EndpointState)]) -> Slice {
    let endpoint = |(last, state): &(u8, EndpointState)| Endpoint {
        port_name: "https".into(),
        address: [10, 0, 0, *last].into(),
        port: 6443,
        state: *state,
        zones: Arc::new([]),
        node: None,
    };
    Slice { service: service.into(), endpoints: normalise(endpoints.iter().map(endpoint).collect()) }
}

#[test]
fn an_endpoint_in_no_slice_departs_for_one_second() {
    let mut table = Table::new();
    table.put("a-1", "a", &[(1, READY), (2, READY)]);
    assert!(table.settle(0));
    table.put("a-1", "a", &[(2, READY)]);
    assert!(table.settle(0));
    assert_eq!(table.of("a"), [(1, DEPARTED), (2, READY)]);
    assert_eq!(table.slices.next_expiry(), Some(table.now + Duration::from_secs(1)));
    assert!(!table.settle(999));
    assert_eq!(table.of("a"), [(1, DEPARTED), (2, READY)]);
    assert!(table.settle(1));
    assert_eq!(table.of("a"), [(2, READY)]);
    assert_eq!(table.slices.next_expiry(), None);
}

#[test]
fn the_grace_counts_from_the_departure_whatever_else_changes() {
    let mut table = Table::new();
    table.put("a-1", "a", &[(1, READY), (2, READY), (3, READY)]);
    table.settle(0);
    table.put("a-1", "a", &[(2, READY), (3, READY)]);
    table.settle(0);
    table.put("a-1", "a", &[(3, READY)]);
    table.settle(600);
    assert_eq!(table.of("a"), [(1, DEPARTED), (2, DEPARTED), (3, READY)]);
    table.settle(400);
    assert_eq!(table.of("a"), [(2, DEPARTED), (3, READY)]);
    table.settle(600);
    assert_eq!(table.of("a"), [(3, READY)]);
}

#[test]
fn one_that_comes_back_within_its_grace_was_never_gone() {
    let mut table = Table::new();
    table.put("a-1", "a", &[(1, READY)]);
    table.settle(0);
    table.slices.take_away(&name("a-1"));
    table.settle(0);
    assert_eq!(table.of("a"), [(1, DEPARTED)]);
    table.put("a-2", "a", &[(1, NOT_READY)]);
    table.settle(500);
    assert_eq!(table.of("a"), [(1, NOT_READY)]);
    assert_eq!(table.slices.next_expiry(), None);
    assert!(!table.settle(5000));
}

#[test]
fn a_move_between_slices_in_one_go_shows_nothing() {
    let mut table = Table::new();
    table.put("a-1", "a", &[(1, READY), (2, READY)]);
    table.settle(0);
    table.put("a-1", "a", &[(1, READY)]);
    table.put("a-2", "a", &[(2, READY)]);
    assert!(!table.settle(0));
    assert_eq!(table.of("a"), [(1, READY), (2, READY)]);
}

#[test]
fn in_two_slices_the_better_state_counts() {
    let mut table = Table::new();
    table.put("a-1", "a", &[(1, NOT_READY)]);
    table.put("a-2", "a", &[(1, READY)]);
    table.settle(0);
    assert_eq!(table.of("a"), [(1, READY)]);
}

#[test]
fn a_service_without_slices_is_forgotten_with_its_last_endpoint() {
    let mut table = Table::new();
    table.put("a-1", "a", &[(1, READY)]);
    table.settle(0);
    table.slices.take_away(&name("a-1"));
    table.settle(0);
    table.settle(1000);
    assert!(table.endpoints.is_empty());
}

#[test]
fn a_slice_may_change_its_service() {
    let mut table = Table::new();
    table.put("x", "a", &[(1, READY)]);
    table.settle(0);
    table.put("x", "b", &[(1, READY)]);
    table.settle(0);
    assert_eq!((table.of("a"), table.of("b")), (vec![(1, DEPARTED)], vec![(1, READY)]));
}

#[test]
fn other_services_are_not_touched() {
    let mut table = Table::new();
    table.put("a-1", "a", &[(1, READY)]);
    table.put("b-1", "b", &[(2, READY)]);
    table.settle(0);
    let before = Arc::clone(&table.endpoints[&name("b")]);
    table.put("a-1", "a", &[(3, READY)]);
    table.settle(0);
    assert!(Arc::ptr_eq(&before, &table.endpoints[&name("b")]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes in whatever order, what is there is the union of the slices, and what departed is what was there
    /// within the last second.
    #[test]
    fn endpoints_are_the_union_of_slices_and_of_what_left_within_a_second(
        steps in prop::collection::vec((0_u8..3, 0_u8..2, prop::collection::btree_set(0_u8..6, 0..4), 0_u64..700, any::<bool>()), 1..40)
    ) {
        let mut table = Table::new();
        let mut slices: BTreeMap<u8, (u8, BTreeSet<u8>)> = BTreeMap::new();
        let (mut before, mut left) = (BTreeSet::new(), BTreeMap::new());
        let mut time = 0;
        for (slice, service, members, wait, removed) in steps {
            let slice_name = format!("s{slice}");
            if removed {
                table.slices.take_away(&name(&slice_name));
                slices.remove(&slice);
            } else {
                let endpoints: Vec<_> = members.iter().map(|last| (*last, READY)).collect();
                table.put(&slice_name, &format!("v{service}"), &endpoints);
                slices.insert(slice, (service, members));
            }
            time += wait;
            table.settle(wait);
            let of_service = |(service, members): &(u8, BTreeSet<u8>)| {
                members.iter().map(|last| (*service, *last)).collect::<Vec<_>>()
            };
            let present: BTreeSet<(u8, u8)> = slices.values().flat_map(of_service).collect();
            left.extend(before.difference(&present).map(|endpoint| (*endpoint, time)));
            left.retain(|endpoint, at| !present.contains(endpoint) && time < *at + 1000);
            for service in 0..2 {
                let expected: Vec<_> = (0..6)
                    .filter_map(|last| match (present.contains(&(service, last)), left.get(&(service, last))) {
                        (true, _) => Some((last, READY)),
                        (false, Some(_)) => Some((last, DEPARTED)),
                        (false, None) => None,
                    })
                    .collect();
                prop_assert_eq!(table.of(&format!("v{service}")), expected, "v{} at {}", service, time);
            }
            before = present;
        }
    }
}
