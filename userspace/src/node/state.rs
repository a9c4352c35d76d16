//! The last compiled state, and what the node reports about the state in effect. Pure.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;

use super::identity::Identity;
use crate::compile::Compiler;
use crate::model::{Desired, DesiredRoute, ObjectRef, Problem};
use crate::sources::kubernetes::api::node_state::{
    self, FAILING_MAX, NodeProblem, NodeStateSpec, STALE_MAX, TEXT_BYTES_MAX,
};
use crate::status::cut;

/// The most problems that a node reports. Of further ones it reports only the number, and so of failing backends.
const PROBLEMS_MAX: usize = node_state::PROBLEMS_MAX - 2;
/// The most bytes that a node reports, as JSON, so that 500 nodes with problems do not fill the API server's memory.
const BYTES_MAX: usize = 32 << 10;
/// Those for the numbers of what is not listed.
const NUMBERS_BYTES: usize = 512;
/// The most bytes of sources that cannot be followed, and of failing backends: they leave room for each other.
const LIST_BYTES_MAX: usize = 8 << 10;

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
}

impl State {
    /// The state that the compiler produced from all Claims up to this version.
    pub(super) fn of(compiler: &Compiler, claims_version: u64) -> Self {
        Self {
            desired: Arc::clone(compiler.desired()),
            claims_version,
            problems: compiler.problems().to_vec(),
            left_out: Arc::clone(compiler.left_out()),
        }
    }

    /// A state of any origin: nothing is reported about Claims.
    pub(super) fn plain(desired: Desired) -> Self {
        Self { desired: Arc::new(desired), claims_version: 0, problems: Vec::new(), left_out: Arc::default() }
    }

    /// Updates the state after single entries changed.
    pub(super) fn follow(&mut self, compiler: &Compiler) {
        self.desired = Arc::clone(compiler.desired());
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
    /// What the node does not hold, as NodeStates name it, or `None` for all of it, and why.
    pub exceptions: &'a [(Option<String>, &'a Problem)],
    /// What else this node cannot do. The controller itself detects problems of objects.
    pub problems: &'a [&'a Problem],
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
        let unheld =
            self.exceptions.iter().map(|(object, problem)| node_problem(object.clone(), problem, true));
        spec.problems = some(unheld.take(PROBLEMS_MAX), &mut room, BYTES_MAX);
        let listed = spec.problems.len();
        // Of what is not listed it is not known what is held.
        let missing = listed < self.exceptions.len();
        let stale = self.stale.iter().take(STALE_MAX).map(|why| short(why));
        spec.stale = some(stale, &mut room, LIST_BYTES_MAX);
        let failing = self.failing.iter().take(FAILING_MAX).map(ToString::to_string);
        spec.failing = some(failing, &mut room, LIST_BYTES_MAX);
        // Some texts of exceptions are those of problems, too.
        let told: HashSet<_> = self.exceptions.iter().map(|(_, problem)| text(problem)).collect();
        let others: Vec<&&Problem> =
            self.problems.iter().filter(|problem| !told.contains(&text(problem))).collect();
        let all = self.exceptions.len() + others.len();
        if !missing {
            let key = |problem: &Problem| problem.object.as_ref().map(ObjectRef::key);
            let others = others.into_iter().map(|problem| node_problem(key(problem), problem, false));
            spec.problems.extend(some(others.take(PROBLEMS_MAX - listed), &mut room, BYTES_MAX));
        }
        if let Some(more) = all.checked_sub(spec.problems.len()).filter(|more| *more > 0) {
            spec.problems.push(NodeProblem {
                missing,
                message: format!("and {more} more like these"),
                remedy: "see the agent's log".into(),
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
        spec
    }
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
            problems: &problems.iter().collect::<Vec<_>>(),
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
            problems: &[&long; 20],
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
            let saying =
                Saying { identity: &identity, stale: vec![], failing: &none, exceptions, problems: &[&long] };
            let spec = saying.spec();
            let objects: Vec<_> =
                spec.problems[..2].iter().map(|problem| problem.object.as_deref()).collect();
            assert_eq!(objects, [Some("Gateway/a/b"), None]);
            assert!(spec.problems[..PROBLEMS_MAX].iter().all(|problem| problem.missing));
            assert_eq!(spec.problems[PROBLEMS_MAX].missing, last);
        }
        assert_eq!(by_kind(problems.iter())["Gateway"], 102);
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
            problems: &[],
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
            for (exceptions, problems) in [(0, 0), (3, 3), (300, 0), (0, 300), (300, 300)] {
                let saying = Saying {
                    identity: &identity,
                    stale: vec!["s".repeat(length); 99],
                    failing: &failing,
                    exceptions: &vec![(Some("Gateway/a/b".to_owned()), &long); exceptions],
                    problems: &vec![&other; problems],
                };
                let spec = saying.spec();
                let bytes = serde_json::to_vec(&spec).unwrap().len();
                assert!(bytes <= 32 << 10, "{length}, {exceptions}, {problems}: {bytes} bytes");
                let unheld = spec.problems.iter().filter(|problem| problem.object.is_some()).count();
                let of_all = spec.problems.iter().any(|problem| problem.missing && problem.object.is_none());
                assert!(unheld <= exceptions && of_all == (unheld < exceptions), "{spec:?}");
                assert!(exceptions == 0 || unheld > 2, "what is not held comes first");
            }
        }
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
        let state = State::plain(Desired { routes, ..Desired::default() });
        assert_eq!(state.failing_by_route(), [("a".to_owned(), 2)].into());
    }
}
