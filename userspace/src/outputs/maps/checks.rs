//! What keeps a configuration from being carried out on this node.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::devices::Chosen;
use crate::model::{Desired, DesiredListener, Node, Problem, Settings};
use crate::net::sysctl::{self, ForwardingOff};
use crate::outputs::{Exception, StartError};
use crate::plan::{Applied, Part};

/// What to do about a device that does not forward.
const FORWARDING: &str = "let the node's own settings say so at every boot, too";

/// Returns the problems of the node's own network that keep it from nothing that was asked.
pub(super) fn node_problems(node: &Node, chosen: &Chosen, desired: &Desired) -> Vec<Problem> {
    let remedy = "name another device in the chart's `devices`, or none to follow the routes";
    let unused = chosen.unusable.iter().chain(&chosen.beyond);
    let mut problems: Vec<Problem> = unused.map(|what| Problem::warning("devices", what, remedy)).collect();
    let others: BTreeSet<u32> = chosen.devices.difference(&chosen.needed).copied().collect();
    if let Err(error) = check_forwarding(node, &others, desired) {
        problems.push(Problem::warning("", error.to_string(), FORWARDING));
    }
    problems
}

/// Returns what is not served because a device that is needed for it lacks the program, or does not forward.
pub(super) fn node_exceptions(
    node: &Node,
    chosen: &Chosen,
    attached: &BTreeSet<u32>,
    desired: &Desired,
) -> Vec<Exception> {
    // Those that are just going are not waited for.
    let bare = chosen.needed.difference(attached).filter(|index| node.links.contains_key(*index));
    let exception = |index: &u32| {
        let what = format!("the program could not be attached to device {}", node.name(*index));
        let remedy = "the agent's log says why; `bpftool net` shows what is attached there";
        Exception { part: Part::Node, problem: Problem::error("devices", what, remedy) }
    };
    let mut exceptions: Vec<Exception> = bare.map(exception).collect();
    for is_v4 in [true, false] {
        let mut devices = chosen.needed.iter().map(|index| node.name(*index));
        let Some(off) = devices.find_map(|name| sysctl::forwarding(&name, is_v4, !is_v4).err()) else {
            continue;
        };
        let of_family =
            |listener: &&DesiredListener| listener.addresses.iter().any(|address| address.is_ipv4() == is_v4);
        exceptions.extend(desired.listeners.iter().filter(of_family).map(|listener| Exception {
            part: Part::Listener(Arc::clone(&listener.name)),
            problem: Problem::error("", off.to_string(), FORWARDING),
        }));
    }
    exceptions
}

/// Returns the listeners that are not served because there was no id for them, and the routes without room for their source
/// ranges.
pub(super) fn unserved<'a>(
    desired: &'a Desired,
    applied: &'a Applied,
    own: &'a HashSet<IpAddr>,
) -> impl Iterator<Item = Exception> + 'a {
    let listeners = desired.listeners.iter().filter(|_| applied.lacks_listener_ids());
    let parts = listeners
        .filter(|listener| !listener.addresses.is_empty())
        .map(|listener| Part::Listener(Arc::clone(&listener.name)));
    let without_id = parts.filter(|part| !applied.has(part)).map(|part| {
        let problem = Problem::error(
            "",
            "it is not served: all 65,535 ids of listeners are in use",
            "delete listeners that are not needed",
        );
        Exception { part, problem }
    });
    let without_room = desired.routes.iter().filter(|route| applied.lacks_room_for(route)).map(|route| {
        let what = "it admits nobody: there is no room for its source ranges beside those of other routes";
        let problem = Problem::error("", what, "use fewer ranges, or the same ones for several routes");
        Exception { part: Part::Route(Arc::clone(&route.name)), problem }
    });
    without_id.chain(without_room).chain(out_of_reach(applied, own))
}

/// Returns the routes to backends on this node that it cannot lead clients to.
fn out_of_reach<'a>(applied: &'a Applied, own: &'a HashSet<IpAddr>) -> impl Iterator<Item = Exception> + 'a {
    applied.out_of_reach().map(|(route, backends)| {
        let of_node = backends.iter().find(|backend| own.contains(&backend.ip()));
        let (why, remedy) = match of_node {
            Some(_) => ("it is an address of the node itself", "give the pods addresses of their own, without `hostNetwork`"),
            None => (
                "there is no route to them without a router, over a device that has our program",
                "write externalTrafficPolicy Cluster, or see `ip route get` and the chart's `devices`",
            ),
        };
        let what = format!(
            "externalTrafficPolicy Local: this node cannot lead clients to {} of its backends, such as {}, which take no \
             connection: {why}",
            backends.len(),
            of_node.unwrap_or(&backends[0])
        );
        Exception { part: Part::Route(Arc::clone(route)), problem: Problem::error("", what, remedy) }
    })
}

/// Returns an error for each size that changed, since maps keep the sizes they were created with.
pub(super) fn size_changes(before: &Settings, after: &Settings) -> Vec<Problem> {
    let sizes = [
        ("maxFlows", before.max_flows, after.max_flows),
        ("maxNames", before.max_names, after.max_names),
        ("maxHellos", before.max_hellos, after.max_hellos),
    ];
    let changed = sizes.into_iter().filter(|(_, before, after)| before != after);
    changed
        .map(|(setting, before, after)| {
            Problem::error(
                format!("settings.{setting}"),
                format!("cannot change from {before} while the maps are pinned"),
                "put it back, or `vestibule detach` (which ends all connections) and start again",
            )
            .value(after)
        })
        .collect()
}

pub(super) fn refuse_errors(problems: &[Problem]) -> Result<(), StartError> {
    let errors: Vec<Problem> = problems.iter().filter(|problem| problem.is_error()).cloned().collect();
    if errors.is_empty() { Ok(()) } else { Err(StartError::Problems(errors)) }
}

pub(super) fn check_forwarding(
    node: &Node,
    devices: &BTreeSet<u32>,
    desired: &Desired,
) -> Result<(), ForwardingOff> {
    let listening = desired.listeners.iter().flat_map(|listener| &listener.addresses);
    let v4 = listening.clone().any(|address| address.is_ipv4());
    let v6 = listening.clone().any(|address| address.is_ipv6());
    for index in devices {
        sysctl::forwarding(&node.name(*index), v4, v6)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BackendSpec, DesiredRoute, Link, TrafficPolicy};
    use crate::plan::{self, Hop, Hops};
    use std::time::Duration;

    #[test]
    fn only_a_device_that_is_needed_makes_an_exception() {
        let link = |name: &str| Link { name: name.into(), mtu: 1500, ethernet: true, ..Link::default() };
        let links = [(2, link("no-such-device2")), (3, link("no-such-device3"))].into();
        let node = Node { links, ..Node::default() };
        let exceptions = |needed: &[u32], attached: &[u32]| -> Vec<String> {
            let needed = needed.iter().copied().collect();
            let chosen = Chosen { devices: [2, 3].into(), needed, ..Chosen::default() };
            let attached = attached.iter().copied().collect();
            let all = node_exceptions(&node, &chosen, &attached, &Desired::default());
            assert!(all.iter().all(|exception| exception.part == Part::Node && exception.problem.is_error()));
            all.into_iter().map(|exception| exception.problem.what).collect()
        };
        let lacks = "the program could not be attached to device no-such-device2".to_owned();
        assert_eq!(exceptions(&[2], &[]), [lacks]);
        assert_eq!(exceptions(&[2], &[2]), [""; 0]);
        assert_eq!(exceptions(&[], &[]), [""; 0]);
        assert_eq!(exceptions(&[7], &[]), [""; 0], "it is gone, and a change of the network follows");
    }

    #[test]
    fn a_route_whose_backends_on_this_node_cannot_be_led_to_is_an_exception() {
        let backend = BackendSpec { address: [10, 0, 0, 1].into(), port: 443, weight: 1, failing: false };
        let desired = |traffic, weight| {
            let backends = [BackendSpec { weight, ..backend }].into();
            let route = DesiredRoute { name: "r".into(), backends, traffic, ..DesiredRoute::default() };
            Desired { routes: [Arc::new(route)].into_iter().collect(), ..Desired::default() }
        };
        let told = |desired: &Desired, hops: &Hops| -> Vec<Exception> {
            unserved(desired, &plan::plan(&Applied::default(), desired, hops).applied, &hops.own).collect()
        };
        let [exception] = &told(&desired(TrafficPolicy::Local, 1), &Hops::default())[..] else {
            panic!("none")
        };
        assert_eq!(exception.part, Part::Route("r".into()));
        assert!(
            exception.problem.is_error() && exception.problem.what.contains("10.0.0.1:443"),
            "{exception:?}"
        );
        assert!(exception.problem.remedy.contains("Cluster"), "{exception:?}");
        let own = Hops { own: [backend.address].into(), ..Hops::default() };
        let [exception] = &told(&desired(TrafficPolicy::Local, 1), &own)[..] else { panic!("none") };
        assert!(exception.problem.what.contains("address of the node itself"), "{exception:?}");
        assert!(exception.problem.remedy.contains("hostNetwork"), "{exception:?}");
        let hop = Hop { source: [10, 0, 0, 9].into(), ifindex: 3, mtu: 1500, is_on_link: true };
        let reached = Hops { towards: [(backend.address, hop)].into_iter().collect(), ..Hops::default() };
        assert_eq!(told(&desired(TrafficPolicy::Local, 1), &reached), []);
        assert_eq!(told(&desired(TrafficPolicy::Local, 0), &Hops::default()), [], "it takes none anyway");
        assert_eq!(
            told(&desired(TrafficPolicy::Cluster, 1), &Hops::default()),
            [],
            "other nodes may reach it"
        );
    }

    #[test]
    fn a_changed_size_is_refused_by_field_and_value() {
        let before = Settings::default();
        assert!(size_changes(&before, &before).is_empty());
        let after = Settings { max_names: 7, idle_timeout: Duration::from_secs(9), ..Settings::default() };
        let problems = size_changes(&before, &after);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!((problem.field.as_str(), problem.value.as_str()), ("settings.maxNames", "7"));
        assert!(problem.is_error() && problem.remedy.contains("detach"));
    }
}
