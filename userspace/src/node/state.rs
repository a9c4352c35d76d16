//! The last compiled state, and what the node reports about the state in effect. Pure.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;

use super::identity::Identity;
use crate::compile::Compiler;
use crate::model::{Desired, DesiredRoute, ObjectRef, Problem};
use crate::outputs::OnDevices;
use crate::outputs::l2::written;
use crate::sources::kubernetes::api::node_state::{
    self, ANNOUNCED_MAX, CONFLICTS_MAX, DEVICES_MAX, FAILING_MAX, NodeAnnounced, NodeConflict, NodeProblem,
    NodeStateSpec, STALE_MAX, TEXT_BYTES_MAX,
};
use crate::status::cut;

/// The most problems that a node reports. Of further ones it reports only the number, and so of what the maps have no room for, and of
/// failing backends.
const PROBLEMS_MAX: usize = node_state::PROBLEMS_MAX - 3;
/// The most bytes that a node reports, as JSON, so that 500 nodes with problems do not fill the API server's memory.
const BYTES_MAX: usize = 32 << 10;
/// Those for the numbers of what is not listed.
const NUMBERS_BYTES: usize = 768;
/// The most bytes of sources that cannot be followed, and of failing backends: they leave room for each other.
const LIST_BYTES_MAX: usize = 8 << 10;
/// The most bytes of announced addresses, besides those. On one node many are announced only where others announce few.
const ANNOUNCED_BYTES_MAX: usize = 64 << 10;
/// The most bytes of foreign hosts, and of silent nodes, of each device.
const SEGMENT_BYTES_MAX: usize = 4 << 10;
/// What their names take.
const SEGMENT_NAMES_BYTES: usize = 32;
/// The bytes that problems leave to failing backends.
const FAILING_BYTES: usize = 4 << 10;

/// The last compiled state.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// What the maps should hold.
    pub desired: Arc<Desired>,
    /// Every Claim up to this version is in it; 0: none is known.
    pub claims_version: u64,
    /// Its problems, of all objects.
    pub problems: Vec<Problem>,
    /// What of these Claims is not in it, each with its object.
    pub left_out: Arc<[Problem]>,
    /// What it is, if it is of no Claims that are known, for those who read reports; `None`: it is compiled.
    pub saved: Option<Arc<str>>,
}

impl State {
    /// The state that the compiler produced from all Claims up to this version.
    pub(super) fn of(compiler: &Compiler, claims_version: u64) -> Self {
        Self {
            desired: Arc::clone(compiler.desired()),
            claims_version,
            problems: compiler.problems().to_vec(),
            left_out: Arc::clone(compiler.left_out()),
            saved: None,
        }
    }

    /// A state that was saved, of which this is reported: what of Claims is in it is not known.
    pub(super) fn saved(desired: Desired, what: Arc<str>) -> Self {
        let (desired, saved) = (Arc::new(desired), Some(what));
        Self { desired, claims_version: 0, problems: Vec::new(), left_out: Arc::default(), saved }
    }

    /// Updates the state after single entries changed, or versions of Claims alone: every Claim up to this one is in it.
    pub(super) fn follow(&mut self, compiler: &Compiler, claims_version: u64) {
        self.desired = Arc::clone(compiler.desired());
        self.claims_version = claims_version;
        self.problems = compiler.problems().to_vec();
        self.left_out = Arc::clone(compiler.left_out());
    }

    /// Returns the number of backends that fail their probe, by route. Routes without any are omitted.
    pub(super) fn failing_by_route(&self) -> BTreeMap<String, i64> {
        let count = |route: &Arc<DesiredRoute>| {
            let failing = route.backends.iter().filter(|backend| backend.failing).count();
            (failing > 0).then(|| (route.name.to_string(), i64::try_from(failing).unwrap_or(i64::MAX)))
        };
        self.desired.routes.iter().filter_map(count).collect()
    }
}

/// What a node reports about itself, besides what it holds.
pub(super) struct Saying<'a> {
    /// The agent that reports.
    pub identity: &'a Identity,
    /// Sources that cannot be followed.
    pub stale: Vec<String>,
    /// Backends that fail their probes.
    pub failing: &'a BTreeSet<SocketAddr>,
    /// What the outputs refused, another source has or cannot be read, as NodeStates name it, or `None` for all of it, and why.
    pub exceptions: &'a [(Option<String>, &'a Problem)],
    /// Other objects of which the maps have no room for something.
    pub left_out: &'a [(String, &'a Problem)],
    /// What else this node cannot do. The controller itself detects problems of objects.
    pub problems: &'a [&'a Problem],
    /// What the node answers for on its segments.
    pub announced: &'a OnDevices,
}

impl Saying<'_> {
    /// Converts it to the spec of an API object. What the node does not hold comes first.
    pub(super) fn spec(self) -> NodeStateSpec {
        let mut spec = NodeStateSpec {
            node: self.identity.node.clone(),
            pod: self.identity.pod.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..NodeStateSpec::default()
        };
        let mut room = BYTES_MAX.saturating_sub(bytes(&spec) + NUMBERS_BYTES);
        let failing = self.failing.iter().take(FAILING_MAX).map(ToString::to_string);
        let kept = failing.clone().map(|one| bytes(&one)).sum::<usize>().min(FAILING_BYTES).min(room);
        room -= kept;
        let unheld =
            self.exceptions.iter().map(|(object, problem)| node_problem(object.clone(), problem, true));
        spec.problems = some(unheld.take(PROBLEMS_MAX), &mut room, BYTES_MAX);
        // Of what is not listed it is not known what is held.
        let missing = spec.problems.len() < self.exceptions.len();
        // What is left out for want of room has its verdict from the controller, too: what of it has no room here is only counted.
        let left_out = if missing { Vec::new() } else { self.some_left_out(&spec.problems, &mut room) };
        let uncounted = if missing { 0 } else { self.left_out.len() - left_out.len() };
        spec.problems.extend(left_out);
        let stale = self.stale.iter().take(STALE_MAX).map(|why| short(why));
        spec.stale = some(stale, &mut room, LIST_BYTES_MAX);
        room += kept;
        spec.failing = some(failing, &mut room, LIST_BYTES_MAX);
        // Some texts of exceptions are those of problems, too.
        let told: HashSet<_> = self.exceptions.iter().map(|(_, problem)| text(problem)).collect();
        let others: Vec<&&Problem> =
            self.problems.iter().filter(|problem| !told.contains(&text(problem))).collect();
        let all = self.exceptions.len() + self.left_out.len() + others.len();
        if !missing {
            let key = |problem: &Problem| problem.object.as_ref().map(ObjectRef::key);
            let others = others.into_iter().map(|problem| node_problem(key(problem), problem, false));
            let most = PROBLEMS_MAX - spec.problems.len();
            spec.problems.extend(some(others.take(most), &mut room, BYTES_MAX));
        }
        if let Some(more) = all.checked_sub(spec.problems.len() + uncounted).filter(|more| *more > 0) {
            spec.problems.push(NodeProblem {
                missing,
                message: format!("and {more} more like these"),
                remedy: "see the agent's log".into(),
                ..NodeProblem::default()
            });
        }
        if uncounted > 0 {
            spec.problems.push(NodeProblem {
                message: format!(
                    "{uncounted} more objects are not served than are listed: there is no room for them"
                ),
                remedy: "raise settings.maxNames, or use fewer source ranges; the agent's log names them"
                    .into(),
                ..NodeProblem::default()
            });
        }
        if let Some(more) = self.failing.len().checked_sub(spec.failing.len()).filter(|more| *more > 0) {
            spec.problems.push(NodeProblem {
                message: format!("{more} more backends fail their probe than are listed"),
                remedy: "see `vestibule backends` on the node, and whether its network works".into(),
                ..NodeProblem::default()
            });
        }
        (spec.announced, spec.announced_more) = listed(self.announced);
        spec
    }

    /// Returns as many of the objects that are left out as there is room for behind these problems: without remedies, if otherwise some
    /// had to be omitted.
    fn some_left_out(&self, before: &[NodeProblem], room: &mut usize) -> Vec<NodeProblem> {
        let listed = |has_remedy: bool, room: &mut usize| {
            let all = self.left_out.iter().map(|(object, problem)| {
                let listed = node_problem(Some(object.clone()), problem, true);
                if has_remedy { listed } else { NodeProblem { remedy: String::new(), ..listed } }
            });
            some(all.take(PROBLEMS_MAX - before.len()), room, BYTES_MAX)
        };
        let mut rest = *room;
        let whole = listed(true, &mut rest);
        if whole.len() == self.left_out.len() {
            *room = rest;
            return whole;
        }
        listed(false, room)
    }
}

/// Returns as many announced addresses as a NodeState has room for, and the number of the others.
fn listed(announced: &OnDevices) -> (Vec<NodeAnnounced>, i64) {
    let all: usize = announced.values().map(|on| on.addresses.len()).sum();
    let (mut room, mut left) = (ANNOUNCED_BYTES_MAX, ANNOUNCED_MAX);
    let mut devices = Vec::new();
    for (device, segment) in announced.iter().take(DEVICES_MAX) {
        let mut on = NodeAnnounced { device: device.to_string(), ..NodeAnnounced::default() };
        room = room.saturating_sub(bytes(&on) + SEGMENT_NAMES_BYTES);
        // Few, and first, for they need a remedy.
        let conflicts = segment.conflicts.iter().take(CONFLICTS_MAX).map(|(address, link)| NodeConflict {
            address: address.to_string(),
            link_address: written(*link),
        });
        on.conflicts = some(conflicts, &mut room, SEGMENT_BYTES_MAX);
        let unheard = segment.unheard.iter().take(CONFLICTS_MAX).map(ToString::to_string);
        on.unheard = some(unheard, &mut room, SEGMENT_BYTES_MAX);
        let addresses = segment.addresses.iter().take(left).map(ToString::to_string);
        on.addresses = some(addresses, &mut room, ANNOUNCED_BYTES_MAX);
        left -= on.addresses.len();
        let is_empty = on.addresses.is_empty() && on.conflicts.is_empty() && on.unheard.is_empty();
        devices.extend((!is_empty).then_some(on));
    }
    let listed: usize = devices.iter().map(|on| on.addresses.len()).sum();
    (devices, i64::try_from(all - listed).unwrap_or(i64::MAX))
}

fn node_problem(object: Option<String>, problem: &Problem, missing: bool) -> NodeProblem {
    NodeProblem {
        object,
        missing,
        field: short(&problem.field),
        message: short(&problem.what),
        remedy: short(&problem.remedy),
    }
}

/// Returns what a problem says.
fn text(problem: &Problem) -> (&str, &str) {
    (&problem.field, &problem.what)
}

/// Returns the first of these, as many as there is room for, in `most` bytes at most.
fn some<T: Serialize>(all: impl Iterator<Item = T>, room: &mut usize, most: usize) -> Vec<T> {
    let most = most.min(*room);
    let mut left = most;
    let fits = |one: &T| {
        let rest = left.checked_sub(bytes(one));
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    let some = all.take_while(fits).collect();
    *room -= most - left;
    some
}

/// Returns the bytes of something as JSON, and of the comma behind it.
fn bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len() + 1)
}

/// Returns as much of a text as the API server takes.
fn short(text: &str) -> String {
    cut(text, TEXT_BYTES_MAX).to_owned()
}

/// Counts problems by kind of object. Problems without an object belong to the node or the file.
pub(super) fn by_kind<'a>(problems: impl Iterator<Item = &'a Problem>) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for problem in problems {
        let kind = problem.object.as_ref().map_or("Node", |object| object.kind.text());
        *counts.entry(kind.to_owned()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BackendSpec, Kind, ObjectName};
    use crate::outputs::OnSegment;
    use std::net::IpAddr;

    #[test]
    fn a_node_says_what_it_holds_and_which_backends_fail() {
        let identity = Identity { node: "n".into(), pod: "p".into(), namespace: "s".into() };
        let gateway = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("a", "b") };
        let problems: Vec<Problem> = (0..PROBLEMS_MAX + 2)
            .map(|i| Problem::warning("", format!("what {i}"), "do").object(gateway.clone()))
            .collect();
        let spec = Saying {
            identity: &identity,
            stale: vec!["services: gone".into()],
            failing: &["[2001:db8::1]:6443".parse().unwrap()].into(),
            exceptions: &[],
            left_out: &[],
            problems: &problems.iter().collect::<Vec<_>>(),
            announced: &OnDevices::new(),
        }
        .spec();
        assert_eq!(spec.failing, ["[2001:db8::1]:6443"]);
        assert_eq!(spec.problems.len(), PROBLEMS_MAX + 1);
        assert_eq!(spec.problems[PROBLEMS_MAX].message, "and 2 more like these");
        // What one Claim says may be long.
        let long = Problem::warning("", "x".repeat(10_000), "do").object(gateway.clone());
        let none = BTreeSet::new();
        let saying = Saying {
            identity: &identity,
            stale: vec![],
            failing: &none,
            exceptions: &[],
            left_out: &[],
            problems: &[&long; 20],
            announced: &OnDevices::new(),
        };
        let spec = saying.spec();
        assert_eq!((spec.problems.len(), spec.problems[0].message.len()), (16, TEXT_BYTES_MAX));
        assert_eq!(spec.problems[15].message, "and 5 more like these");
        assert!(spec.problems.iter().all(|problem| !problem.missing));
        // What is not held comes first; where not all of it has room, nothing is known to be held.
        let lost = Problem::error("", "lost", "do");
        let unheld = [(Some(gateway.key()), &lost), (None, &lost)];
        let exceptions: Vec<_> = unheld.iter().cycle().take(PROBLEMS_MAX + 1).cloned().collect();
        for (count, last) in [(PROBLEMS_MAX, false), (PROBLEMS_MAX + 1, true)] {
            let exceptions = &exceptions[..count];
            let saying = Saying {
                identity: &identity,
                stale: vec![],
                failing: &none,
                exceptions,
                left_out: &[],
                problems: &[&long],
                announced: &OnDevices::new(),
            };
            let spec = saying.spec();
            let objects: Vec<_> =
                spec.problems[..2].iter().map(|problem| problem.object.as_deref()).collect();
            assert_eq!(objects, [Some("Gateway/a/b"), None]);
            assert!(spec.problems[..PROBLEMS_MAX].iter().all(|problem| problem.missing));
            assert_eq!(spec.problems[PROBLEMS_MAX].missing, last);
        }
        assert_eq!(by_kind(problems.iter())["Gateway"], 101);
        assert_eq!(by_kind([Problem::error("", "", "")].iter())["Node"], 1);
    }

    /// As on a node that has lost its uplink, and on all others with it.
    #[test]
    fn of_very_many_failing_backends_some_are_named_and_the_rest_is_counted() {
        let identity = Identity { node: "n".into(), pod: "p".into(), namespace: "s".into() };
        let all = (0..FAILING_MAX + 7).map(|at| SocketAddr::from(([10, 0, (at >> 8) as u8, at as u8], 6443)));
        let failing = all.collect();
        let saying = Saying {
            identity: &identity,
            stale: vec!["x".repeat(9_999); 99],
            failing: &failing,
            exceptions: &[],
            left_out: &[],
            problems: &[],
            announced: &OnDevices::new(),
        };
        let spec = saying.spec();
        assert_eq!((spec.stale.len(), spec.stale[0].len()), (3, TEXT_BYTES_MAX));
        let listed = spec.failing.len();
        assert!(listed > 300 && listed < FAILING_MAX, "{listed}");
        assert_eq!(spec.problems.len(), 1);
        let said = format!("{} more backends", FAILING_MAX + 7 - listed);
        assert!(spec.problems[0].message.starts_with(&said) && !spec.problems[0].missing, "{spec:?}");
    }

    /// All of it together: 500 nodes that lose their network at once write it at once.
    #[test]
    fn whatever_a_node_has_to_report_is_below_32_kib() {
        let identity = Identity { node: "n".repeat(253), pod: "p".repeat(253), namespace: "s".into() };
        let failing =
            (0..2_000u16).map(|port| SocketAddr::from(([0xfd00, 1, 2, 3, 4, 5, 6, 7], 10_000 + port)));
        let failing = failing.collect();
        for length in [1, 50, 400, 9_999] {
            // Escaped, it takes twice the room.
            let long = Problem::warning("f", "\"".repeat(length), "do");
            let other = Problem { what: "x".repeat(length), ..long.clone() };
            for (exceptions, left_out, problems) in
                [(0, 0, 0), (3, 0, 3), (300, 0, 0), (0, 0, 300), (300, 0, 300), (0, 300, 300), (3, 300, 3)]
            {
                let saying = Saying {
                    identity: &identity,
                    stale: vec!["s".repeat(length); 99],
                    failing: &failing,
                    exceptions: &vec![(Some("Gateway/a/b".to_owned()), &long); exceptions],
                    left_out: &vec![("TLSRoute/a/b".to_owned(), &long); left_out],
                    problems: &vec![&other; problems],
                    announced: &OnDevices::new(),
                };
                let spec = saying.spec();
                let bytes = serde_json::to_vec(&spec).unwrap().len();
                assert!(bytes <= 32 << 10, "{length}, {exceptions}, {left_out}, {problems}: {bytes} bytes");
                assert!(spec.problems.len() <= node_state::PROBLEMS_MAX);
                assert!(spec.failing.len() >= 80, "problems leave room for them: {}", spec.failing.len());
                let is_unheld = |problem: &&NodeProblem| problem.object.as_deref() == Some("Gateway/a/b");
                let unheld = spec.problems.iter().filter(is_unheld).count();
                let of_all = spec.problems.iter().any(|problem| problem.missing && problem.object.is_none());
                assert!(unheld <= exceptions && of_all == (unheld < exceptions), "{spec:?}");
                assert!(exceptions == 0 || unheld > 2, "what is not held comes first");
            }
        }
    }

    /// As where one tenant has more routes than there is room for: `Programmed` of all objects turned `False`.
    #[test]
    fn of_very_many_routes_without_room_the_rest_is_counted_and_says_nothing_of_other_objects() {
        let identity = Identity { node: "n".into(), pod: "p".into(), namespace: "s".into() };
        let none = BTreeSet::new();
        for (routes, name, whole) in [(20, 1, true), (120, 1, false), (120, 200, false)] {
            let what = format!("{} is not served", "x".repeat(name));
            let problem = Problem::warning("settings.maxNames", what, "raise it");
            let left_out: Vec<_> = (0..routes).map(|at| (format!("TLSRoute/t/r{at:03}"), &problem)).collect();
            let (lost, other) = (Problem::error("", "lost", "do"), Problem::error("", "other", "do"));
            let spec = Saying {
                identity: &identity,
                stale: vec![],
                failing: &none,
                exceptions: &[(Some("Gateway/a/b".to_owned()), &lost)],
                left_out: &left_out,
                problems: &[&other],
                announced: &OnDevices::new(),
            }
            .spec();
            let said = &spec.problems;
            assert!(said.iter().all(|one| !one.missing || one.object.is_some()), "{said:?}");
            assert_eq!(said[0].object.as_deref(), Some("Gateway/a/b"), "they come after it");
            let of_routes =
                |one: &&NodeProblem| one.object.as_ref().is_some_and(|key| key.starts_with("TLSRoute/"));
            let listed: Vec<_> = said.iter().filter(of_routes).collect();
            assert!(listed.iter().all(|one| one.missing && one.remedy.is_empty() != whole), "{listed:?}");
            assert!(listed.len() >= 70.min(routes), "{}", listed.len());
            let rest = format!("{} more objects are not served", routes - listed.len());
            assert_eq!(said.iter().any(|one| one.message.starts_with(&rest)), !whole, "{said:?}");
            if whole {
                assert_eq!((listed.len(), &*said.last().unwrap().message), (routes, "other"));
            }
        }
    }

    /// A NodeState with more would be refused, and with it all else that the node says.
    #[test]
    fn announced_addresses_are_listed_by_device_as_far_as_there_is_room() {
        let some = |net: u16, count: u16| {
            (0..count).map(move |at| IpAddr::from([0x2001, 0xdb8, 1111, 2222, 3333, 4444, net, 0x1000 + at]))
        };
        let segment = |addresses| OnSegment { addresses, ..OnSegment::default() };
        let on = |device: &str, count| (Arc::from(device), segment(some(1, count).collect()));
        let few = OnDevices::from([on("eth0", 1), on("eth1", 2)]);
        let (devices, more) = listed(&few);
        assert_eq!((devices.len(), more), (2, 0));
        assert_eq!(
            (&*devices[0].device, &*devices[0].addresses),
            ("eth0", &[some(1, 1).next().unwrap().to_string()][..])
        );
        for (many, least) in [
            (OnDevices::from([on("eth0", 3_000)]), 1_300),
            (OnDevices::from([on("eth0", 1_000), on("eth1", 1_000)]), 1_300),
            ((0..100).map(|at| on(&format!("eth{at}"), 1)).collect(), DEVICES_MAX),
            (
                OnDevices::from([(
                    "eth0".into(),
                    segment((0..3_000u32).map(|at| IpAddr::from(at.to_be_bytes())).collect()),
                )]),
                ANNOUNCED_MAX,
            ),
        ] {
            let (devices, more) = listed(&many);
            let count: usize = devices.iter().map(|on| on.addresses.len()).sum();
            let all: usize = many.values().map(|on| on.addresses.len()).sum();
            assert!(count >= least && count + more as usize == all, "{count} of {all}");
            assert!(devices.len() <= DEVICES_MAX && count <= ANNOUNCED_MAX);
            assert!(serde_json::to_vec(&devices).unwrap().len() <= ANNOUNCED_BYTES_MAX);
        }
    }

    #[test]
    fn foreign_hosts_and_silent_nodes_are_listed_however_much_is_announced() {
        let all = |count: u32| (0..count).map(|at| IpAddr::from((0xc000_0000 + at).to_be_bytes()));
        let segment = |announced, conflicts, unheard: u32| OnSegment {
            addresses: all(announced).collect(),
            conflicts: all(conflicts).map(|address| (address, [2, 0, 0, 0, 0, 9])).collect(),
            unheard: (0..unheard).map(|at| Arc::from(format!("{at:03}-{}", "x".repeat(249)))).collect(),
        };
        let (devices, more) = listed(&OnDevices::from([("eth0".into(), segment(0, 1, 1))]));
        let [on] = devices.as_slice() else { panic!("{devices:?}") };
        let conflict = NodeConflict { address: "192.0.0.0".into(), link_address: "02:00:00:00:00:09".into() };
        assert_eq!((on.conflicts.as_slice(), on.unheard.len(), more), ([conflict].as_slice(), 1, 0));
        let many = (0..80).map(|at| (format!("eth{at}").into(), segment(3_000, 100, 100))).collect();
        let (devices, _) = listed(&many);
        assert_eq!((devices[0].conflicts.len(), devices[0].unheard.len()), (CONFLICTS_MAX, 16));
        assert!(devices[0].addresses.len() > 1_000);
        assert!(serde_json::to_vec(&devices).unwrap().len() <= ANNOUNCED_BYTES_MAX);
        assert_eq!(listed(&OnDevices::from([("eth0".into(), segment(0, 0, 0))])), (vec![], 0));
    }

    #[test]
    fn failing_backends_are_counted_by_route() {
        let backend = |host: u8, failing: bool| BackendSpec {
            address: [10, 0, 0, host].into(),
            port: 1,
            weight: u16::from(!failing),
            failing,
        };
        let route = |name: &str, failing: &[bool]| DesiredRoute {
            name: name.into(),
            backends: (0..).zip(failing).map(|(host, failing)| backend(host, *failing)).collect(),
            ..DesiredRoute::default()
        };
        let routes = vec![Arc::new(route("a", &[true, false, true])), Arc::new(route("b", &[false]))];
        let routes = routes.into_iter().collect();
        let state = State::saved(Desired { routes, ..Desired::default() }, "it".into());
        assert_eq!(state.failing_by_route(), [("a".to_owned(), 2)].into());
    }
}
