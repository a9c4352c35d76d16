//! What was said stays: an object that is programmed ceases to be so, in one generation, only where it is refused, or where more nodes than
//! may be behind have not held it for ten seconds.

use super::nodes;
use super::{Event, Simulation};
use crate::controller::agents::Reported;
use crate::model::{Kind, ObjectRef};
use crate::sources::kubernetes::api::node_state::{NodeProblem, NodeStateSpec};
use crate::status;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long too many nodes do not hold an object before it says so.
const GRACE: Duration = Duration::from_secs(10);
/// How many routes nodes do not hold.
const ROUTES: usize = 5;

/// The generation in which each object said last that it is programmed.
#[derive(Default)]
pub(super) struct Said(BTreeMap<ObjectRef, i64>);

/// Routes that some nodes do not hold, although they hold the Claims.
pub(super) struct Missed {
    pub(super) routes: BTreeSet<ObjectRef>,
    nodes: usize,
    since: Instant,
}

impl Simulation {
    /// How many nodes may be behind.
    pub(super) fn few(&self) -> usize {
        (self.nodes.count() / 20).max(1)
    }

    /// A node joins, which lists all Claims.
    pub(super) fn join(&mut self) {
        let node = self.nodes.count();
        let holds = self.nodes.join(self.server.version(), self.now, &mut self.dice);
        self.at(self.now, Event::Renewal(node));
        // Until its Lease says so, and what was delayed is written.
        self.absent_until = self.absent_until.max(holds + Duration::from_secs(3));
        if let Some(pause) = self.options.joins {
            self.at(self.now + pause, Event::Join);
        }
    }

    /// The agents of this many nodes are restarted, and read all Claims after this time.
    pub(super) fn restart_agents(&mut self, nodes: usize, lasts: Duration) {
        let at = self.now + lasts;
        // The first one may be dead.
        for node in 1..=nodes {
            self.nodes.restart(node, self.server.version(), self.now, at);
            self.at(self.now, Event::Renewal(node));
        }
        self.absent_until = self.absent_until.max(at + Duration::from_secs(3));
    }

    /// This many nodes do not hold some programmed routes from now on.
    pub(super) fn miss(&mut self, nodes: usize) {
        let is_programmed =
            |route: &ObjectRef| !self.changed.contains_key(route) && self.server.says_programmed(route);
        let routes: BTreeSet<_> =
            self.server.routes().into_iter().filter(is_programmed).take(ROUTES).collect();
        let problem = |route: &ObjectRef| NodeProblem {
            object: Some(status::key(route)),
            missing: true,
            message: "its entry cannot be written".to_owned(),
            ..NodeProblem::default()
        };
        let spec =
            NodeStateSpec { problems: routes.iter().map(problem).collect(), ..NodeStateSpec::default() };
        // The first one may be dead.
        for node in 1..=nodes {
            let (uid, version) = ("u".to_owned(), "1".to_owned());
            self.states.insert(nodes::name(node), Reported { spec: spec.clone(), uid, version });
        }
        self.seen.missed = routes.len();
        self.missed = Some(Missed { routes, nodes, since: self.now });
        self.core.touch();
        self.wake();
    }

    /// They hold them again.
    pub(super) fn regain(&mut self) {
        self.states.clear();
        self.core.touch();
        self.wake();
    }

    /// A status was written.
    pub(super) fn note_said(&mut self, object: &ObjectRef) {
        let Some(generation) = self.server.generation(object) else { return };
        if self.server.says_programmed(object) {
            self.said.0.insert(object.clone(), generation);
            return;
        }
        if self.said.0.get(object) != Some(&generation) {
            return;
        }
        self.said.0.remove(object);
        if self.server.is_refused(object) {
            return;
        }
        let few = self.few();
        let missed =
            self.missed.as_ref().filter(|missed| missed.routes.contains(object) && missed.nodes > few);
        let fell = missed.map(|missed| self.now - missed.since);
        assert!(
            fell.is_some_and(|fell| fell >= GRACE),
            "{object} is not programmed any more, after {fell:?}: {}",
            self.server.statuses[object].status
        );
        self.seen.fell.extend(fell);
    }

    /// Completes what was seen.
    pub(super) fn look_back(&mut self) {
        let gateway = |object: &&ObjectRef| object.kind == Kind::Gateway;
        let hangs = self.said.0.keys().next().is_none();
        assert!(hangs || self.said.0.keys().any(|object| gateway(&object)), "the Gateway is programmed");
        if let Some(missed) = &self.missed {
            let says = |route: &&ObjectRef| self.server.says_programmed(route);
            self.seen.regained = missed.routes.iter().filter(says).count();
        }
        let ends = self.secret.rotated.iter().copied().skip(1).chain([self.now]);
        self.seen.rotations = self.secret.rotated.iter().zip(ends).map(|(from, to)| to - *from).collect();
    }
}
