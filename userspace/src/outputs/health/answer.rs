//! Which ports are served, what is said at each, and what is wrong with some. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use serde::Serialize;

use crate::model::{Kind, ObjectName, ObjectRef, Problem};
use crate::plan::Health;

/// The most ports that a node serves: each takes a file descriptor.
pub(super) const PORTS_MAX: usize = 1024;
/// The most ports that are reported one by one, for others of the node's problems need room, too.
const TOLD_MAX: usize = 16;
/// The field that a problem is about.
const FIELD: &str = "spec.healthCheckNodePort";
/// What to do about a port that another process has.
const REMEDY: &str = "set serveHealthCheckNodePorts: false in the chart's values, or stop kube-proxy's (or Cilium's) health checks of Services";

/// What is said at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The status is 200, otherwise 503.
    pub(super) is_ok: bool,
    /// The number of ready endpoints on this node.
    pub(super) endpoints: usize,
    /// JSON.
    pub(super) body: String,
}

/// The body, in the form of kube-proxy's.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Service<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Service<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Answer {
    /// Returns what is said of a Service. `is_refusing`: the node takes no new connections.
    pub(super) fn of(health: &Health, is_refusing: bool) -> Self {
        let Health { service: ObjectName { namespace, name }, is_held, endpoints } = health;
        let service_proxy_healthy = *is_held && !is_refusing;
        let service = Service { namespace, name };
        let body = Body { service, local_endpoints: *endpoints, service_proxy_healthy };
        Self {
            is_ok: service_proxy_healthy && *endpoints > 0,
            endpoints: *endpoints,
            // Numbers and names alone: there is nothing that JSON cannot say.
            body: serde_json::to_string(&body).unwrap_or_default(),
        }
    }
}

/// Returns which of these ports to serve, as far as there is room: those that the node holds before others, and of each namespace as many as
/// of others that have as many, first those that were `chosen` before, then the lowest.
pub(super) fn choose(
    health: &BTreeMap<NonZeroU16, Health>,
    chosen: &BTreeSet<NonZeroU16>,
) -> BTreeSet<NonZeroU16> {
    let mut by_namespace: BTreeMap<(bool, &str), Vec<(bool, NonZeroU16)>> = BTreeMap::new();
    for (port, Health { service, is_held, .. }) in health {
        let of_namespace = by_namespace.entry((!is_held, service.namespace.as_ref())).or_default();
        of_namespace.push((!chosen.contains(port), *port));
    }
    let mut ranked: Vec<(bool, usize, bool, NonZeroU16)> = Vec::new();
    for ((is_unheld, _), mut ports) in by_namespace {
        ports.sort_unstable();
        ranked.extend((0..).zip(ports).map(|(rank, (is_new, port))| (is_unheld, rank, is_new, port)));
    }
    ranked.sort_unstable();
    ranked.into_iter().take(PORTS_MAX).map(|(_, _, _, port)| port).collect()
}

/// Returns what is wrong: with ports that could not be bound, each with the error, and with those that are not `chosen`.
pub(super) fn problems(
    health: &BTreeMap<NonZeroU16, Health>,
    chosen: &BTreeSet<NonZeroU16>,
    unbound: &BTreeMap<NonZeroU16, String>,
) -> Vec<Problem> {
    let service = |port: &NonZeroU16| health.get(port).map(|health| health.service.clone());
    let mut problems: Vec<Problem> = unbound
        .iter()
        .take(TOLD_MAX)
        .filter_map(|(port, error)| {
            let object = ObjectRef { kind: Kind::Service, name: service(port)? };
            let what = format!("nodes do not answer health checks at port {port}: {error}");
            Some(Problem::warning(FIELD, what, REMEDY).object(object))
        })
        .collect();
    if let Some(more) = unbound.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
        let what = format!("{more} more ports cannot be bound at which the node is to answer health checks");
        problems.push(Problem::warning(FIELD, what, REMEDY));
    }
    let left: Vec<_> = health.iter().filter(|(port, _)| !chosen.contains(port)).collect();
    for (port, Health { service, .. }) in left.iter().take(TOLD_MAX) {
        let what = format!(
            "the node answers health checks at {PORTS_MAX} ports at most: not at port {port}, nor at {} more",
            left.len() - 1
        );
        let remedy = "let fewer Services have externalTrafficPolicy Local, or set serveHealthCheckNodePorts: false and run kube-proxy";
        let object = ObjectRef { kind: Kind::Service, name: service.clone() };
        problems.push(Problem::warning(FIELD, what, remedy).object(object));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn port(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    fn health(name: &str, is_held: bool, endpoints: usize) -> Health {
        let service = ObjectName { namespace: "tenant".into(), name: name.into() };
        Health { service, is_held, endpoints }
    }

    fn many(ports: impl IntoIterator<Item = u16>) -> BTreeMap<NonZeroU16, Health> {
        ports.into_iter().map(|number| (port(number), health(&format!("s{number}"), true, 1))).collect()
    }

    #[test]
    fn only_a_node_with_ready_endpoints_that_takes_connections_is_healthy() {
        for (is_held, endpoints, is_refusing, is_ok, is_proxy_healthy) in [
            (true, 2, false, true, true),
            (true, 0, false, false, true),
            (true, 2, true, false, false),
            (false, 0, false, false, false),
        ] {
            let body = format!(
                r#"{{"service":{{"namespace":"tenant","name":"lb"}},"localEndpoints":{endpoints},"serviceProxyHealthy":{is_proxy_healthy}}}"#
            );
            let answer = Answer::of(&health("lb", is_held, endpoints), is_refusing);
            assert_eq!(answer, Answer { is_ok, endpoints, body });
        }
    }

    /// Or a new Service with a low port would take the answers of another away.
    #[test]
    fn no_more_ports_are_served_than_may_and_those_that_are_stay() {
        let most = PORTS_MAX as u16;
        let first = choose(&many(1_000..1_000 + most), &BTreeSet::new());
        assert_eq!(first.len(), PORTS_MAX);
        let more = many((990..1_000).chain(1_001..1_000 + most));
        let second = choose(&more, &first);
        assert_eq!(second.len(), PORTS_MAX);
        let new: Vec<u16> = second.difference(&first).map(|port| port.get()).collect();
        assert_eq!(new, [990], "there is room for one");
        let problems = problems(&more, &second, &BTreeMap::new());
        assert_eq!(problems.len(), 9, "each Service learns of it");
        expect!["warning: Service tenant/s991: spec.healthCheckNodePort: the node answers health checks at 1024 ports at most: not at port 991, nor at 8 more; let fewer Services have externalTrafficPolicy Local, or set serveHealthCheckNodePorts: false and run kube-proxy"]
            .assert_eq(&problems[0].to_string());
    }

    /// Whatever ports they ask for, and whenever the node started.
    #[test]
    fn no_namespace_takes_all_ports_and_none_that_is_not_held_takes_one_of_those_that_are() {
        let of = |namespace: &str, is_held| Health {
            service: ObjectName { namespace: namespace.into(), name: "s".into() },
            is_held,
            endpoints: 1,
        };
        let most = PORTS_MAX as u16;
        let greedy = (1_000..1_000 + 2 * most).map(|number| (port(number), of("greedy", true)));
        let unheld = (100..200).map(|number| (port(number), of("unheld", false)));
        let others = (20_000..20_010).map(|number| (port(number), of("other", true)));
        let all: BTreeMap<_, _> = greedy.chain(unheld).chain(others).collect();
        let before = (1_000..1_000 + most).map(port).collect();
        for chosen in [BTreeSet::new(), before] {
            let chosen = choose(&all, &chosen);
            assert_eq!(chosen.len(), PORTS_MAX);
            assert!((20_000..20_010).all(|number| chosen.contains(&port(number))));
            assert!((100..200).all(|number| !chosen.contains(&port(number))));
        }
    }

    #[test]
    fn a_port_that_another_process_has_is_named_with_its_service_and_only_some_are() {
        let ports = many(1_000..1_020);
        let chosen = choose(&ports, &BTreeSet::new());
        let unbound = |count: usize| {
            ports.keys().take(count).map(|port| (*port, "Address already in use".to_owned())).collect()
        };
        assert_eq!(problems(&ports, &chosen, &unbound(0)), []);
        let one = problems(&ports, &chosen, &unbound(1));
        expect!["warning: Service tenant/s1000: spec.healthCheckNodePort: nodes do not answer health checks at port 1000: Address already in use; set serveHealthCheckNodePorts: false in the chart's values, or stop kube-proxy's (or Cilium's) health checks of Services"]
            .assert_eq(&one.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
        let all = problems(&ports, &chosen, &unbound(20));
        assert_eq!(all.len(), TOLD_MAX + 1);
        assert!(all[TOLD_MAX].what.starts_with("4 more ports"), "{all:?}");
    }
}
