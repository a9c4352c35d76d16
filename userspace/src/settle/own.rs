//! Decides who has a name on a binding.
//!
//! Within a Gateway the listener decides first: a name belongs to its most specific listener, and only routes
//! of that listener may have it (listener isolation). Between namespaces, the one that has a name keeps it. Then the pattern as
//! written decides, not the part that the listener leaves of it: the more specific pattern, then the static file, then the oldest
//! object. The data plane looks up the narrowest pattern. Where that would lead to the wrong route, an
//! additional entry leads to the right one.

use super::bindings::Binding;
use super::isolation::{Isolation, Site};
use super::listener::Parents;
use super::pattern::{self, above};
use super::precedence::Claimant;
use crate::model::{Pattern, Possession};
use common::decide::server_name::RESERVED;
use foldhash::{HashMap, HashMapExt};
use std::cmp::Reverse;

/// [`Candidate::attachment`] and [`Candidate::listener`] if the target is not a route of the cluster.
pub(super) const NONE: usize = usize::MAX;

/// A route that wants a pattern on a binding.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    /// Index of the binding.
    pub(super) binding: usize,
    /// The part of `written` that the listener leaves. `None`: every name, and for TCP the binding itself.
    pub(super) pattern: Option<&'a Pattern>,
    /// The pattern as in the route.
    pub(super) written: Option<&'a Pattern>,
    /// Index of the route among the targets.
    pub(super) target: usize,
    /// Index of the attachment that it results from.
    pub(super) attachment: usize,
    /// Index of the listener that it is attached through.
    pub(super) listener: usize,
}

/// A name or a binding that a route requested and does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss<'a> {
    /// Index of the binding.
    pub(super) binding: usize,
    /// The pattern as in the route; `None`: the binding as a whole.
    pub(super) written: Option<&'a Pattern>,
    /// The owner; `None`: the name is reserved, so no route may have it.
    pub(super) owner: Option<Claimant<'a>>,
}

/// A pattern on a binding, and where it leads.
pub(super) struct Entry<'a> {
    pub(super) binding: usize,
    pub(super) pattern: Option<&'a Pattern>,
    pub(super) lead: Lead,
}

/// The destination of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// To a target, because of this candidate.
    To { target: usize, candidate: usize },
    /// Refused: this listener has the name, but no route.
    Refused { listener: usize },
}

/// Binding and pattern.
type Key<'a> = (usize, pattern::Key<'a>);

/// The context in which ownership is settled.
pub(super) struct Ownership<'b, 'a> {
    /// The claimants that `Candidate::target` refers to by index.
    pub(super) targets: &'b [Claimant<'a>],
    pub(super) parents: &'b Parents<'a>,
    pub(super) isolation: &'b Isolation<'a>,
    pub(super) bindings: &'b [Binding<'a>],
    /// Who had what before.
    pub(super) possession: &'b Possession,
}

/// The precedence of a candidate for a pattern: the least value wins. Whether its namespace does not have the pattern yet; the
/// width of the pattern as written; who it is.
type Merit<'a> = (bool, Reverse<usize>, Claimant<'a>);

/// All candidates, settled.
pub(super) struct Names<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    /// Where each pattern leads, in the order of the candidates that first requested it.
    held: Vec<Held<'a>>,
    /// Indices into `held`.
    places: HashMap<Key<'a>, usize>,
}

#[derive(Clone, Copy)]
struct Held<'a> {
    binding: usize,
    pattern: Option<&'a Pattern>,
    lead: Lead,
    /// Index of the Gateway that the name comes through; `NONE`: the static file or a Service.
    gateway: usize,
}

impl<'a> Names<'a> {
    /// Settles the owner of each name and binding. Calls `outcome` for each candidate of an attachment, with what it lost; `None`: it
    /// has what it requested.
    pub(super) fn settle(
        candidates: Vec<Candidate<'a>>,
        ownership: &Ownership<'_, 'a>,
        mut outcome: impl FnMut(usize, Option<Loss<'a>>),
    ) -> Self {
        let places = HashMap::with_capacity(candidates.len());
        let mut this = Self { held: Vec::with_capacity(candidates.len()), candidates, places };
        let wanted = this.contest(ownership);
        this.prefer_written(ownership);
        for (candidate, place) in this.candidates.iter().zip(wanted) {
            if candidate.attachment == NONE {
                continue;
            }
            let lost = |owner| Loss { binding: candidate.binding, written: candidate.written, owner };
            match place.map(|place| this.held[place].lead) {
                None => outcome(candidate.attachment, Some(lost(None))),
                Some(Lead::To { target, .. }) if target != candidate.target => {
                    outcome(candidate.attachment, Some(lost(Some(ownership.targets[target]))));
                }
                Some(_) => outcome(candidate.attachment, None),
            }
        }
        for site in ownership.isolation.sites(ownership.parents) {
            let key = (site.binding, pattern::key(Some(site.hostname)));
            if !this.places.contains_key(&key)
                && let Some(held) = this.shield(&site, ownership)
            {
                this.places.insert(key, this.held.len());
                this.held.push(held);
            }
        }
        this
    }

    /// Returns where each pattern leads.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'a>> {
        self.held.iter().map(|held| Entry { binding: held.binding, pattern: held.pattern, lead: held.lead })
    }

    /// Gives each pattern to the candidate with the highest precedence. Returns, by candidate, the index of
    /// its pattern in `held`; `None`: the name is reserved.
    fn contest(&mut self, ownership: &Ownership<'_, 'a>) -> Vec<Option<usize>> {
        let mut wanted = Vec::with_capacity(self.candidates.len());
        for (index, candidate) in self.candidates.iter().enumerate() {
            if candidate.pattern.is_some_and(is_reserved) {
                wanted.push(None);
                continue;
            }
            let gateway = match candidate.listener {
                NONE => NONE,
                listener => ownership.parents.gateway_of(listener),
            };
            let lead = Lead::To { target: candidate.target, candidate: index };
            let new = Held { binding: candidate.binding, pattern: candidate.pattern, lead, gateway };
            let place = *self.places.entry(candidate.key()).or_insert(self.held.len());
            wanted.push(Some(place));
            let Some(held) = self.held.get_mut(place) else {
                self.held.push(new);
                continue;
            };
            if let Lead::To { candidate: other, .. } = held.lead
                && merit(candidate, candidate.pattern, ownership)
                    < merit(&self.candidates[other], candidate.pattern, ownership)
            {
                *held = new;
            }
        }
        wanted
    }

    /// Finds patterns that a listener narrowed. Gives each to the route of a wider pattern of another Gateway
    /// if that has precedence as written. Handles the widest first, so that a route that lost a pattern
    /// cannot take a narrower one through it.
    fn prefer_written(&mut self, ownership: &Ownership<'_, 'a>) {
        let mut narrowed: Vec<usize> =
            (0..self.held.len()).filter(|place| self.is_narrowed(*place)).collect();
        narrowed.sort_by_key(|place| width(self.held[*place].pattern));
        for place in narrowed {
            let held = self.held[place];
            let Some(pattern) = held.pattern else { continue };
            let Some(own) = self.merit_of(&held, pattern, ownership) else { continue };
            let wider =
                self.wider(held.binding, pattern, ownership).filter(|wider| wider.gateway != held.gateway);
            let merits = wider.filter_map(|wider| Some((self.merit_of(wider, pattern, ownership)?, *wider)));
            let best = merits.min_by_key(|(merit, _)| *merit).filter(|(merit, _)| *merit < own);
            if let Some((_, best)) = best {
                self.held[place] = Held { pattern: held.pattern, ..best };
            }
        }
    }

    /// Whether a listener narrowed a pattern, so that it is not as written.
    fn is_narrowed(&self, place: usize) -> bool {
        let held = &self.held[place];
        let (Lead::To { candidate, .. }, Some(pattern)) = (held.lead, held.pattern) else { return false };
        // Comparing pointers suffices in the usual case.
        !self.candidates[candidate].written.is_some_and(|own| std::ptr::eq(own, pattern) || own == pattern)
    }

    /// Returns the precedence, for a pattern, of who has an entry.
    fn merit_of(
        &self,
        held: &Held<'a>,
        pattern: &Pattern,
        ownership: &Ownership<'_, 'a>,
    ) -> Option<Merit<'a>> {
        match held.lead {
            Lead::To { candidate, .. } => Some(merit(&self.candidates[candidate], Some(pattern), ownership)),
            Lead::Refused { .. } => None,
        }
    }

    /// Returns the entry for a listener's hostname that no route of its own has; `None`: it needs none.
    fn shield(&self, site: &Site<'a>, ownership: &Ownership<'_, 'a>) -> Option<Held<'a>> {
        // The entry that the name would match. If there is none, there is nothing to keep the name from.
        let nearest = above(site.hostname).find_map(|wider| self.at(site.binding, wider))?;
        if self.may_have(nearest, site.hostname, ownership) {
            return None;
        }
        let pattern = Some(site.hostname);
        match self.wider(site.binding, site.hostname, ownership).next() {
            Some(other) => Some(Held { pattern, ..*other }),
            None => Some(Held {
                binding: site.binding,
                pattern,
                lead: Lead::Refused { listener: site.listener },
                gateway: site.gateway,
            }),
        }
    }

    /// Returns the entries of wider patterns on a binding that may have this pattern's names, the most
    /// specific first.
    fn wider(
        &self,
        binding: usize,
        pattern: &'a Pattern,
        ownership: &Ownership<'_, 'a>,
    ) -> impl Iterator<Item = &Held<'a>> {
        let held = above(pattern).filter_map(move |wider| self.at(binding, wider));
        held.filter(move |held| self.may_have(held, pattern, ownership))
    }

    fn at(&self, binding: usize, pattern: pattern::Key<'a>) -> Option<&Held<'a>> {
        self.places.get(&(binding, pattern)).map(|place| &self.held[*place])
    }

    /// Whether the names of a pattern may lead where a wider pattern leads. They may not if its Gateway has a
    /// more specific listener for them.
    fn may_have(&self, held: &Held<'a>, pattern: &'a Pattern, ownership: &Ownership<'_, 'a>) -> bool {
        match held.lead {
            Lead::To { candidate, .. } => match self.candidates[candidate].listener {
                NONE => true,
                listener => ownership.isolation.belongs(ownership.parents, Some(pattern), listener),
            },
            // These names have no other owner.
            Lead::Refused { .. } => true,
        }
    }
}

impl<'a> Candidate<'a> {
    fn key(&self) -> Key<'a> {
        (self.binding, pattern::key(self.pattern))
    }
}

/// Returns the precedence of a candidate for a pattern. Competing patterns are nested, so the narrower one as written is more
/// specific.
fn merit<'a>(
    candidate: &Candidate<'a>,
    pattern: Option<&Pattern>,
    ownership: &Ownership<'_, 'a>,
) -> Merit<'a> {
    let (target, at) = (ownership.targets[candidate.target], ownership.bindings[candidate.binding].at);
    let has = |namespace| ownership.possession.has_names(namespace, at, pattern);
    let is_new = target.namespace().is_some_and(|namespace| !has(namespace));
    (is_new, Reverse(width(candidate.written)), target)
}

/// Returns a number that is smaller for the wider of two nested patterns.
fn width(pattern: Option<&Pattern>) -> usize {
    pattern.map_or(0, Pattern::width)
}

/// Whether the pattern is one of the names that every cluster's own API server has. The data plane refuses
/// them before it looks at any other pattern or default.
fn is_reserved(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Exact(name) => RESERVED.contains(&name.as_str()),
        Pattern::OneLabel(_) | Pattern::Wildcard(_) => false,
    }
}
