//! The condition of a route's status that reports failing probes of its backends. Pure: time is an argument.
//!
//! Each node probes for itself, and on some node a backend may go up and down several times a second. So the
//! message of a route changes at most once per [`GAP`].

use crate::model::cluster::{ClusterRoute, Endpoint};
use crate::model::verdict::{Condition, Status};
use crate::model::{ObjectName, ObjectRef};
use crate::status::node_names;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Type of the condition, which is present only while a backend fails.
pub(super) const HEALTHY: &str = "vestibule.dev/BackendsHealthy";
/// Minimum time between two changes of a route's message.
const GAP: Duration = Duration::from_secs(5);
/// Maximum number of backends that one message names.
const NAMED: usize = 8;

/// Backends that are down, each with the live nodes that see it down.
pub(super) type Failing = BTreeMap<SocketAddr, Vec<String>>;

/// The current message of each route.
#[derive(Debug, Default)]
pub(super) struct Health {
    said: BTreeMap<ObjectRef, Said>,
    /// When the next message that is held back may be written.
    again: Option<Instant>,
}

#[derive(Debug)]
struct Said {
    message: Option<String>,
    since: Instant,
}

impl Health {
    /// Starts a round.
    pub(super) fn begin(&mut self) {
        self.again = None;
    }

    /// Returns the message that the route's status must have now; `None`: no condition.
    pub(super) fn of(&mut self, route: &ObjectRef, message: Option<String>, now: Instant) -> Option<String> {
        let Some(said) = self.said.get_mut(route) else {
            if message.is_some() {
                self.said.insert(route.clone(), Said { message: message.clone(), since: now });
            }
            return message;
        };
        let due = said.since + GAP;
        if said.message == message {
            // Healthy for long enough: forget the route.
            if message.is_none() && due <= now {
                self.said.remove(route);
            }
            return message;
        }
        if due <= now {
            *said = Said { message: message.clone(), since: now };
            return message;
        }
        self.again = Some(self.again.map_or(due, |again| again.min(due)));
        said.message.clone()
    }

    /// Ends a round and forgets routes that no longer exist. Returns when the next message that is held back
    /// may be written.
    pub(super) fn end(&mut self, is_there: impl Fn(&ObjectRef) -> bool) -> Option<Instant> {
        self.said.retain(|route, _| is_there(route));
        self.again
    }
}

/// Describes which backends of a route fail, and on which nodes; `None`: none fails.
pub(super) fn message(
    route: &ClusterRoute,
    endpoints: &BTreeMap<ObjectName, Arc<[Endpoint]>>,
    failing: &Failing,
) -> Option<String> {
    if failing.is_empty() {
        return None;
    }
    let own = &route.meta.name.namespace;
    let services = route.rules.first().into_iter().flatten().map(|reference| {
        ObjectName::new(Arc::clone(reference.namespace.as_ref().unwrap_or(own)), Arc::clone(&reference.name))
    });
    let endpoints = services.filter_map(|service| endpoints.get(&service)).flat_map(|those| those.iter());
    let backends: BTreeSet<SocketAddr> =
        endpoints.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)).collect();
    let down: Vec<_> = backends.iter().filter_map(|at| Some((at, failing.get(at)?))).collect();
    if down.is_empty() {
        return None;
    }
    let mut text = format!("{} of {} backends fail their probe: ", down.len(), backends.len());
    let named = down.iter().take(NAMED).map(|(at, nodes)| {
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        format!("{at} on {}", node_names(&nodes))
    });
    text.push_str(&named.collect::<Vec<_>>().join("; "));
    if down.len() > NAMED {
        text.push_str(&format!("; and {} more", down.len() - NAMED));
    }
    Some(text)
}

/// Returns the condition with this message.
pub(super) fn condition(message: String) -> Condition {
    Condition { kind: HEALTHY, status: Status::False, reason: "ProbeFailed", message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::{BackendRef, EndpointState};
    use crate::model::{Kind, Meta};

    fn route() -> ClusterRoute {
        let reference = |name: &str, namespace: Option<&str>| BackendRef {
            kind: "Service".into(),
            name: name.into(),
            namespace: namespace.map(Into::into),
            group: "".into(),
            port: Some(443),
            weight: 1,
        };
        ClusterRoute {
            meta: Meta { name: ObjectName::new("a", "r"), ..Meta::default() },
            rules: vec![vec![reference("s", None), reference("t", Some("b"))]],
            ..ClusterRoute::default()
        }
    }

    fn endpoints(hosts: std::ops::Range<u8>) -> Arc<[Endpoint]> {
        let endpoint = |host: u8| Endpoint {
            port_name: "".into(),
            address: [10, 0, 0, host].into(),
            port: 6443,
            state: EndpointState::Ready,
            zones: Arc::new([]),
            node: None,
        };
        hosts.map(endpoint).collect()
    }

    #[test]
    fn backends_and_nodes_are_named_and_both_are_bounded() {
        let endpoints = BTreeMap::from([
            (ObjectName::new("a", "s"), endpoints(1..3)),
            (ObjectName::new("b", "t"), endpoints(10..22)),
            (ObjectName::new("a", "t"), endpoints(90..92)),
        ]);
        let at = |host: u8| SocketAddr::from(([10, 0, 0, host], 6443));
        let node = vec!["n1".to_owned()];
        let text = |hosts: &[u8]| {
            let failing = hosts.iter().map(|host| (at(*host), node.clone())).collect();
            message(&route(), &endpoints, &failing)
        };
        assert_eq!(text(&[]), None);
        assert_eq!(text(&[90]), None, "of a Service that is not referred to");
        let one = "1 of 14 backends fail their probe: 10.0.0.2:6443 on node n1";
        assert_eq!(text(&[2, 91]).as_deref(), Some(one));
        let many = text(&(10..20).collect::<Vec<_>>()).unwrap();
        assert!(many.starts_with("10 of 14 ") && many.ends_with("; and 2 more"), "{many}");
    }

    #[test]
    fn what_flaps_is_said_once_in_a_while_and_the_last_word_is_said() {
        let route = ObjectRef { kind: Kind::TlsRoute, name: ObjectName::new("a", "r") };
        let (mut health, start) = (Health::default(), Instant::now());
        let mut at = |ms: u64, message: Option<&str>| {
            health.begin();
            let now = start + Duration::from_millis(ms);
            let said = health.of(&route, message.map(str::to_owned), now);
            (said, health.end(|_| true).map(|again| (again - start).as_millis()))
        };
        let down = || Some("down".to_owned());
        assert_eq!(at(0, None), (None, None));
        assert_eq!(at(1000, Some("down")), (down(), None), "at once");
        assert_eq!(at(1100, None), (down(), Some(6000)));
        assert_eq!(at(1200, Some("down")), (down(), None));
        assert_eq!(at(1300, None), (down(), Some(6000)));
        assert_eq!(at(6000, None), (None, None));
        assert_eq!(at(6100, Some("down")), (None, Some(11_000)), "that is a change too");
        assert_eq!(at(11_000, Some("down")), (down(), None));
        assert_eq!(at(20_000, None), (None, None));
        assert_eq!(at(26_000, None), (None, None));
        assert_eq!(at(26_001, Some("down")), (down(), None));
        health.end(|_| false);
        assert!(health.said.is_empty());
    }
}
