//! What objects of the table of origins ask for at listeners of the chart, and what becomes of it.

use super::bindings::Binding;
use super::own::{Candidate, Loss, NONE};
use super::precedence::Claimant;
use super::references::References;
use super::{label, left_out, no};
use crate::model::kind::Says;
use crate::model::verdict::{OriginVerdict, Programmable};
use crate::model::{Cluster, Desired, Kind, ObjectRef, OriginObject, Problem};
use crate::origins::{self, Answer, Ask, AskView, Asking, Lost, Origin};
use crate::sources::kubernetes::value::PROBLEMS_MAX;
use foldhash::HashSet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// An ask, and what becomes of it.
pub(super) struct Wanted<'a> {
    pub(super) object: &'a OriginObject,
    kind: Kind,
    /// Indices of the file's listeners.
    pub(super) listeners: Arc<[usize]>,
    pub(super) ask: Ask<'a>,
    pub(super) label: Arc<str>,
    /// Indices of the bindings where it has what it asks for.
    pub(super) bindings: Vec<usize>,
    /// What it requested and does not have.
    pub(super) losses: Vec<Loss<'a>>,
    /// The maps have no room for its route.
    left_out: bool,
}

impl<'a> Wanted<'a> {
    pub(super) fn claimant(&self) -> Claimant<'a> {
        Claimant::object(self.kind, &self.object.meta)
    }

    fn answer(&self, bindings: &[Binding<'_>]) -> Answer<'_, 'a> {
        let lost = |loss: &Loss<'_>| Lost {
            at: bindings[loss.binding].at,
            owner: loss.owner.map(|owner| owner.origin()),
        };
        Answer { ask: &self.ask, lost: self.losses.iter().map(lost).collect() }
    }
}

/// An object that asks.
struct Asker<'a> {
    origin: &'static dyn Origin,
    object: &'a OriginObject,
    /// Indices of its asks.
    asks: Range<usize>,
}

/// Everything that is asked for.
#[derive(Default)]
pub(super) struct Asks<'a> {
    askers: Vec<Asker<'a>>,
    pub(super) all: Vec<Wanted<'a>>,
}

impl<'a> Asks<'a> {
    pub(super) fn new(cluster: &'a Cluster, file: &Desired, references: &References<'a>) -> Self {
        let mut this = Self::default();
        let view = AskView { cluster, file, references };
        let mut buffer = String::new();
        for origin in origins::all().filter(|origin| origin.is_on(&cluster.policy)) {
            let kind = origin.kind();
            for Asking { object, listeners, asks } in origin.asks(&view) {
                let first = this.all.len();
                this.all.extend(asks.into_iter().map(|ask| Wanted {
                    object,
                    kind,
                    listeners: Arc::clone(&listeners),
                    label: label::ask(&mut buffer, kind, &object.meta.name, &ask.part),
                    ask,
                    bindings: Vec::new(),
                    losses: Vec::new(),
                    left_out: false,
                }));
                this.askers.push(Asker { origin, object, asks: first..this.all.len() });
            }
        }
        this
    }

    /// Adds what they request. `first_target` and `first_attachment`: those of the first ask.
    pub(super) fn candidates(
        &self,
        file_doors: &[Vec<usize>],
        first_target: usize,
        first_attachment: usize,
        candidates: &mut Vec<Candidate<'a>>,
    ) {
        for (at, wanted) in self.all.iter().enumerate() {
            let pattern = Some(wanted.ask.pattern);
            let bindings = wanted.listeners.iter().flat_map(|listener| &file_doors[*listener]);
            candidates.extend(bindings.map(|binding| Candidate {
                binding: *binding,
                pattern,
                written: pattern,
                target: first_target + at,
                attachment: first_attachment + at,
                listener: NONE,
            }));
        }
    }

    /// Notes which of these routes the maps have no room for.
    pub(super) fn note_left_out(&mut self, routes: &HashSet<&str>) {
        self.all.iter_mut().for_each(|wanted| wanted.left_out = routes.contains(&*wanted.label));
    }

    /// Returns the verdict on each object that is served. Adds problems for those that do not have all they request.
    pub(super) fn verdicts(
        &self,
        cluster: &Cluster,
        bindings: &[Binding<'_>],
        problems: &mut Vec<Problem>,
    ) -> BTreeMap<ObjectRef, OriginVerdict> {
        let mut verdicts = BTreeMap::new();
        for Asker { origin, object, asks } in &self.askers {
            let (first, wanted) = (problems.len(), &self.all[asks.clone()]);
            let answers: Vec<Answer<'_, '_>> = wanted.iter().map(|wanted| wanted.answer(bindings)).collect();
            let says = origin.judge(cluster, object, &answers, problems);
            // Events are few a second for the whole cluster, and what an object asks for has no bound.
            problems.truncate(first + PROBLEMS_MAX);
            let generation = match origin.kind().programmed() {
                Says::Condition(_) | Says::ParentCondition(_) => object.meta.generation,
                Says::Addresses | Says::Nowhere => 0,
            };
            let has: Vec<SocketAddr> = wanted
                .iter()
                .flat_map(|wanted| &wanted.bindings)
                .map(|binding| bindings[*binding].at)
                .collect();
            let programmable = programmable(wanted, &has, &problems[first..]);
            let addresses = sorted(has.iter().map(SocketAddr::ip));
            let ports = sorted(has.iter().map(SocketAddr::port));
            let verdict = OriginVerdict { generation, addresses, ports, programmable, says };
            verdicts.insert(ObjectRef { kind: origin.kind(), name: object.meta.name.clone() }, verdict);
        }
        verdicts
    }
}

/// Returns whether an object is to be programmed that has something at these addresses and ports.
fn programmable(wanted: &[Wanted<'_>], has: &[SocketAddr], problems: &[Problem]) -> Programmable {
    if let Some(wanted) = wanted.iter().find(|wanted| wanted.left_out) {
        Programmable::No(no("Programmed", "NoResources", left_out(&wanted.label)))
    } else if has.is_empty() {
        let what = problems.first().map_or("nothing of what it asks for can be served", |one| &*one.what);
        Programmable::No(no("Programmed", "Invalid", what))
    } else {
        Programmable::Yes
    }
}

/// Returns each value once, in order.
fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}
