//! Who has a name on a binding.
//!
//! Within a Gateway the listener decides first: a name belongs to its most specific listener, and only routes of that one
//! may have it (listener isolation). Between routes the pattern as written decides, not what a listener leaves of it: the
//! more specific one, then the static file, then the oldest object. The data plane looks up the longest pattern, so where
//! that would lead to the wrong route, an entry of its own leads to the right one.

use super::isolation::{Isolation, Site};
use super::listener::Parents;
use super::pattern::{self, above};
use super::precedence::Claimant;
use crate::model::Pattern;
use common::decide::server_name::RESERVED;
use foldhash::{HashMap, HashMapExt};
use std::cmp::Reverse;

/// [`Candidate::attachment`] and [`Candidate::listener`] of what is no route of the cluster.
pub(super) const NONE: usize = usize::MAX;

/// A route that wants a pattern on a binding.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    /// Place of the binding.
    pub(super) binding: usize,
    /// What the listener leaves of `written`; `None`: every name, and the binding itself where it is TCP.
    pub(super) pattern: Option<&'a Pattern>,
    /// As in the route.
    pub(super) written: Option<&'a Pattern>,
    /// Place of the route among the targets.
    pub(super) target: usize,
    /// Place of the attachment that it comes from.
    pub(super) attachment: usize,
    /// Place of the listener that it comes through.
    pub(super) listener: usize,
}

/// A name, or a binding, that a route wanted and does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss<'a> {
    /// Place of the binding.
    pub(super) binding: usize,
    /// As in the route; `None`: the binding as a whole.
    pub(super) written: Option<&'a Pattern>,
    /// Who has it; `None`: nobody may.
    pub(super) owner: Option<Claimant<'a>>,
}

/// What a pattern on a binding leads to.
pub(super) struct Entry<'a> {
    pub(super) binding: usize,
    pub(super) pattern: Option<&'a Pattern>,
    pub(super) lead: Lead,
}

/// Where an entry leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// To a target, because of this candidate.
    To { target: usize, candidate: usize },
    /// To nobody: a listener of this Gateway has the name and no route.
    Refused { gateway: usize },
}

/// Binding and pattern.
type Key<'a> = (usize, pattern::Key<'a>);

/// What wishes are settled with.
pub(super) struct Ownership<'b, 'a> {
    /// The claimants that candidates mean, by place.
    pub(super) targets: &'b [Claimant<'a>],
    pub(super) parents: &'b Parents<'a>,
    pub(super) isolation: &'b Isolation<'a>,
}

/// Everyone's wishes, settled.
pub(super) struct Names<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    /// What each pattern leads to, in the order of the candidates that first wanted it.
    held: Vec<Held<'a>>,
    /// Places in `held`.
    places: HashMap<Key<'a>, usize>,
}

#[derive(Clone, Copy)]
struct Held<'a> {
    binding: usize,
    pattern: Option<&'a Pattern>,
    lead: Lead,
    /// Place of the Gateway that the name comes through; `NONE`: the static file or a Service.
    gateway: usize,
}

impl<'a> Names<'a> {
    /// Settles who has what. `loss` hears of each wish that is not fulfilled.
    pub(super) fn settle(
        candidates: Vec<Candidate<'a>>,
        ownership: &Ownership<'_, 'a>,
        mut loss: impl FnMut(usize, Loss<'a>),
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
                None => loss(candidate.attachment, lost(None)),
                Some(Lead::To { target, .. }) if target != candidate.target => {
                    loss(candidate.attachment, lost(Some(ownership.targets[target])));
                }
                Some(_) => {}
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

    /// What each pattern leads to.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'a>> {
        self.held.iter().map(|held| Entry { binding: held.binding, pattern: held.pattern, lead: held.lead })
    }

    /// Gives each pattern to the best of those that want it. By candidate: the place of its pattern; `None`: nobody may
    /// have it.
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
                && merit(candidate, ownership) < merit(&self.candidates[other], ownership)
            {
                *held = new;
            }
        }
        wanted
    }

    /// A pattern that a listener made more specific than it is written gives way to a wider one of another Gateway that
    /// is better as written. The widest go first: what they lost they cannot win from a narrower one.
    fn prefer_written(&mut self, ownership: &Ownership<'_, 'a>) {
        let mut narrowed: Vec<usize> =
            (0..self.held.len()).filter(|place| self.is_narrowed(*place)).collect();
        narrowed.sort_by_key(|place| width(self.held[*place].pattern));
        for place in narrowed {
            let held = self.held[place];
            let (Some(pattern), Some(own)) = (held.pattern, self.merit_of(&held, ownership)) else {
                continue;
            };
            let wider =
                self.wider(held.binding, pattern, ownership).filter(|wider| wider.gateway != held.gateway);
            let merits = wider.filter_map(|wider| Some((self.merit_of(wider, ownership)?, *wider)));
            let best = merits.min_by_key(|(merit, _)| *merit).filter(|(merit, _)| *merit < own);
            if let Some((_, best)) = best {
                self.held[place] = Held { pattern: held.pattern, ..best };
            }
        }
    }

    /// Whether a listener left less of a pattern than is written.
    fn is_narrowed(&self, place: usize) -> bool {
        let held = &self.held[place];
        let (Lead::To { candidate, .. }, Some(pattern)) = (held.lead, held.pattern) else { return false };
        // The usual case by the pointer.
        !self.candidates[candidate].written.is_some_and(|own| std::ptr::eq(own, pattern) || own == pattern)
    }

    fn merit_of(
        &self,
        held: &Held<'a>,
        ownership: &Ownership<'_, 'a>,
    ) -> Option<(Reverse<usize>, Claimant<'a>)> {
        match held.lead {
            Lead::To { candidate, .. } => Some(merit(&self.candidates[candidate], ownership)),
            Lead::Refused { .. } => None,
        }
    }

    /// What a listener's hostname without a route of its own must lead to; `None`: it needs no entry.
    fn shield(&self, site: &Site<'a>, ownership: &Ownership<'_, 'a>) -> Option<Held<'a>> {
        // What the name would lead to: where nothing, nothing need be kept from it.
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
                lead: Lead::Refused { gateway: site.gateway },
                gateway: site.gateway,
            }),
        }
    }

    /// What patterns wider than this one lead to on a binding, the most specific first, as far as they may have its names.
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

    /// Whether the names of a pattern may lead where a wider pattern leads: not where its Gateway has a more specific
    /// listener for them.
    fn may_have(&self, held: &Held<'a>, pattern: &'a Pattern, ownership: &Ownership<'_, 'a>) -> bool {
        match held.lead {
            Lead::To { candidate, .. } => match self.candidates[candidate].listener {
                NONE => true,
                listener => ownership.isolation.belongs(ownership.parents, Some(pattern), listener),
            },
            // Nobody else has them.
            Lead::Refused { .. } => true,
        }
    }
}

impl<'a> Candidate<'a> {
    fn key(&self) -> Key<'a> {
        (self.binding, pattern::key(self.pattern))
    }
}

/// The least one wins. Patterns that want the same are nested: the longer is the more specific.
fn merit<'a>(candidate: &Candidate<'a>, ownership: &Ownership<'_, 'a>) -> (Reverse<usize>, Claimant<'a>) {
    (Reverse(width(candidate.written)), ownership.targets[candidate.target])
}

/// The wider of two nested patterns has the lesser number.
fn width(pattern: Option<&Pattern>) -> usize {
    match pattern {
        Some(Pattern::Exact(_)) => usize::MAX,
        Some(Pattern::Wildcard(suffix)) => suffix.as_str().len(),
        None => 0,
    }
}

/// Whether the pattern is one of the names that every cluster's own API server has. The data plane refuses them before
/// any wildcard or default is looked at.
fn is_reserved(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Exact(name) => RESERVED.contains(&name.as_str()),
        Pattern::Wildcard(_) => false,
    }
}
