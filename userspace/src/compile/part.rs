//! The compiled static file, kept so that a change of some of its routes is compiled alone.

use super::kept::{Edited, Kept};
use super::warn::{self, Attachments};
use super::{capacity, file};
use crate::model::{Change, Delta, Desired, Facts, ListenerSpec, NodeFacts, Places, Problem, RouteSpec};
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

/// The compiled static file.
#[derive(Clone, Debug)]
pub(super) struct FilePart {
    /// The listeners as written in the file.
    listeners: Vec<ListenerSpec>,
    /// What the data plane would do without a cluster.
    pub(super) desired: Desired,
    /// Contradictions in the file.
    pub(super) problems: Vec<Problem>,
    /// Warnings about routes, by the route's position in the file.
    warnings: BTreeMap<usize, Vec<Problem>>,
    kept: Keeping,
}

/// The state needed to change some routes.
#[derive(Clone, Debug)]
enum Keeping {
    /// Not created yet.
    Due,
    Kept(Kept),
    /// Only compiling the whole file gives the result of a change.
    Impossible,
}

impl FilePart {
    /// Compiles the whole file.
    pub(super) fn new(facts: &Facts) -> Self {
        let (listeners, routes, problems) = file::compile(facts);
        let attachments = Attachments::new(&facts.listeners);
        let mut warnings: BTreeMap<usize, Vec<Problem>> = BTreeMap::new();
        let mut of_route = Vec::new();
        for route in &facts.routes {
            attachments.check(route, &mut of_route);
            if !of_route.is_empty() {
                warnings.entry(route.place).or_default().append(&mut of_route);
            }
        }
        let routes = routes.into_iter().map(Arc::new).collect();
        Self {
            listeners: facts.listeners.clone(),
            desired: Desired { settings: facts.settings.clone(), listeners, routes, ..Desired::default() },
            kept: if problems.is_empty() { Keeping::Due } else { Keeping::Impossible },
            problems,
            warnings,
        }
    }

    /// Returns contradictions, and what the maps have no room for.
    pub(super) fn errors(&self) -> Vec<Problem> {
        let mut problems = self.problems.clone();
        capacity::check(&self.desired, &mut problems);
        problems
    }

    /// Adds the warnings about the file on this node. `is_alone`: there is no cluster.
    pub(super) fn warn(&self, node: &NodeFacts, is_alone: bool, problems: &mut Vec<Problem>) {
        self.warn_of_all(node, is_alone, problems);
        problems.extend(self.warnings.values().flatten().cloned());
    }

    /// Adds the warnings that are not about single routes.
    fn warn_of_all(&self, node: &NodeFacts, is_alone: bool, problems: &mut Vec<Problem>) {
        warn::source_ports(&self.desired.settings, node, problems);
        if is_alone {
            warn::no_listener(&self.listeners, problems);
        }
    }

    /// Whether [`FilePart::warn`] adds any.
    pub(super) fn has_warnings(&self, node: &NodeFacts, is_alone: bool) -> bool {
        let mut of_all = Vec::new();
        self.warn_of_all(node, is_alone, &mut of_all);
        !of_all.is_empty() || !self.warnings.is_empty()
    }

    /// Prepares for a change. To be called when idle.
    pub(super) fn settle(&mut self) {
        if matches!(self.kept, Keeping::Due) {
            self.kept = Kept::new(&self.desired).map_or(Keeping::Impossible, Keeping::Kept);
        }
    }

    /// Takes changed routes. `None`: compile the whole file; nothing is changed here.
    pub(super) fn change(&mut self, delta: Delta) -> Option<Edited> {
        self.settle();
        let Keeping::Kept(kept) = &mut self.kept else { return None };
        let (mut gone, mut new): (Vec<Arc<str>>, Vec<RouteSpec>) = (Vec::new(), Vec::new());
        for change in delta.changes {
            match change {
                Change::Route(_, Some(spec)) => new.push(spec),
                Change::Route(name, None) => gone.push(name),
                _ => {}
            }
        }
        let edited = kept.change(&mut self.desired, &gone, &new)?;
        self.warnings = moved(take(&mut self.warnings), &delta.places);
        let attachments = Attachments::new(&self.listeners);
        for route in new {
            let mut of_route = Vec::new();
            attachments.check(&route, &mut of_route);
            if !of_route.is_empty() {
                self.warnings.insert(route.place, of_route);
            }
        }
        Some(edited)
    }
}

/// Returns the warnings about routes that still exist, at their new positions.
fn moved(warnings: BTreeMap<usize, Vec<Problem>>, places: &Places) -> BTreeMap<usize, Vec<Problem>> {
    let moved = |(old, mut problems): (usize, Vec<Problem>)| {
        let now = places.to(old)?;
        for problem in problems.iter_mut().filter(|_| now != old) {
            let rest = problem.field.find(']').and_then(|end| problem.field.get(end..));
            problem.field = format!("routes[{now}{}", rest.unwrap_or("]"));
        }
        Some((now, problems))
    };
    warnings.into_iter().filter_map(moved).collect()
}
