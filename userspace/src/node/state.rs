//! The last compiled state, and what the node reports about the state in effect. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::identity::Identity;
use crate::compile::Compiler;
use crate::model::{Desired, DesiredRoute, ObjectRef, Problem};
use crate::sources::kubernetes::api::node_state::{
    self, FAILING_MAX, NodeProblem, NodeStateSpec, STALE_MAX, TEXT_BYTES_MAX,
};
use crate::status::cut;

/// The most problems that a node reports. Of further ones it reports only the number, and so of failing backends.
const PROBLEMS_MAX: usize = node_state::PROBLEMS_MAX - 2;
/// The most bytes of problems that a node reports, so that 500 nodes with problems do not fill the API server's memory.
const PROBLEM_BYTES_MAX: usize = 32 << 10;

/// The last compiled state.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// What the maps should hold.
    pub desired: Arc<Desired>,
    /// Every Claim up to this version is in it; 0: none is known.
    pub claims_version: u64,
    /// Its problems, of all objects.
    pub problems: Vec<Problem>,
}

impl State {
    /// The state that the compiler produced from all Claims up to this version.
    pub(super) fn of(compiler: &Compiler, claims_version: u64) -> Self {
        Self {
            desired: Arc::clone(compiler.desired()),
            claims_version,
            problems: compiler.problems().to_vec(),
        }
    }

    /// A state of any origin: nothing is reported about Claims.
    pub(super) fn plain(desired: Desired) -> Self {
        Self { desired: Arc::new(desired), claims_version: 0, problems: Vec::new() }
    }

    /// Updates the state after single entries changed.
    pub(super) fn follow(&mut self, compiler: &Compiler) {
        self.desired = Arc::clone(compiler.desired());
        self.problems = compiler.problems().to_vec();
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
    /// What the node does not hold: the object, or `None` for all of them, and why.
    pub exceptions: &'a [(Option<ObjectRef>, &'a Problem)],
    /// What else this node cannot do. The controller itself detects problems of objects.
    pub problems: &'a [&'a Problem],
}

impl Saying<'_> {
    /// Converts it to the spec of an API object.
    pub(super) fn spec(self) -> NodeStateSpec {
        let key = |object: &ObjectRef| format!("{}/{}", object.kind, object.name);
        let unheld = self.exceptions.iter().map(|(object, problem)| (object.as_ref(), *problem, true));
        let others = self.problems.iter().map(|problem| (problem.object.as_ref(), *problem, false));
        let mut room = PROBLEM_BYTES_MAX;
        let mut has_room = |(object, problem, _): &(Option<&ObjectRef>, &Problem, bool)| {
            let key = object.map_or(0, |object| key(object).len());
            let texts =
                [&problem.field, &problem.what, &problem.remedy].map(|text| text.len().min(TEXT_BYTES_MAX));
            let bytes = key + texts.iter().sum::<usize>();
            room = room.saturating_sub(bytes);
            room > 0
        };
        let mut problems: Vec<NodeProblem> = unheld
            .chain(others)
            .take(PROBLEMS_MAX)
            .take_while(&mut has_room)
            .map(|(object, problem, missing)| NodeProblem {
                object: object.map(key),
                missing,
                field: short(&problem.field),
                message: short(&problem.what),
                remedy: short(&problem.remedy),
            })
            .collect();
        let all = self.exceptions.len() + self.problems.len();
        if let Some(more) = all.checked_sub(problems.len()).filter(|more| *more > 0) {
            problems.push(NodeProblem {
                // Of what is not listed it is not known what is held.
                missing: problems.len() < self.exceptions.len(),
                message: format!("and {more} more like these"),
                remedy: "see the agent's log".into(),
                ..NodeProblem::default()
            });
        }
        if let Some(more) = self.failing.len().checked_sub(FAILING_MAX).filter(|more| *more > 0) {
            problems.push(NodeProblem {
                message: format!("{more} more backends fail their probe than are listed"),
                remedy: "see `vestibule backends` on the node, and whether its network works".into(),
                ..NodeProblem::default()
            });
        }
        NodeStateSpec {
            node: self.identity.node.clone(),
            pod: self.identity.pod.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            stale: self.stale.iter().take(STALE_MAX).map(|why| short(why)).collect(),
            failing: self.failing.iter().take(FAILING_MAX).map(ToString::to_string).collect(),
            digests: BTreeMap::new(),
            problems,
        }
    }
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
        let unheld = [(Some(gateway.clone()), &lost), (None, &lost)];
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
        assert_eq!(
            (spec.failing.len(), spec.stale.len(), spec.stale[0].len()),
            (FAILING_MAX, STALE_MAX, TEXT_BYTES_MAX)
        );
        assert_eq!(spec.problems.len(), 1);
        assert!(spec.problems[0].message.starts_with("7 more backends") && !spec.problems[0].missing);
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
