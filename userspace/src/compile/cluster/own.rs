//! Who has a name on a door.
//!
//! Within a Gateway the listener decides first: a name belongs to its most specific listener, and only routes of that one
//! may have it (listener isolation). Between routes the pattern as written decides, not what a listener leaves of it: the
//! more specific one, then the static file, then the oldest object. The data plane looks up the longest pattern, so where
//! that would lead to the wrong route, an entry of its own leads to the right one.

use super::listener::Parents;
use super::rank::Claimant;
use crate::model::Pattern;
use common::decide::server_name::RESERVED;
use foldhash::{HashMap, HashMapExt};
use std::cmp::Reverse;

/// [`Candidate::attachment`] and [`Candidate::listener`] of what is no route of the cluster.
pub(super) const NONE: usize = usize::MAX;

/// A route that wants a pattern on a door.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    /// Place of the door.
    pub(super) door: usize,
    /// What the listener leaves of `written`; `None`: every name, and the door itself where it is TCP.
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

/// A name, or a door, that a route wanted and does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss<'a> {
    /// Place of the door.
    pub(super) door: usize,
    /// As in the route; `None`: the door as a whole.
    pub(super) written: Option<&'a Pattern>,
    /// Who has it; `None`: nobody may.
    pub(super) owner: Option<Claimant<'a>>,
}

/// What a pattern on a door leads to.
pub(super) struct Entry<'a> {
    pub(super) door: usize,
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

/// Door, whether the pattern is exact, and the name; an empty wildcard is every name.
type Key<'a> = (usize, bool, &'a str);

/// Everyone's wishes, settled.
pub(super) struct Names<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    held: HashMap<Key<'a>, Held<'a>>,
}

#[derive(Clone, Copy)]
struct Held<'a> {
    pattern: Option<&'a Pattern>,
    lead: Lead,
    /// Place of the Gateway that the name comes through; `NONE`: the static file or a Service.
    gateway: usize,
}

impl<'a> Names<'a> {
    /// Settles who has what. `targets` are the claimants by place; `loss` hears of each wish that is not fulfilled.
    pub(super) fn settle(
        candidates: Vec<Candidate<'a>>,
        targets: &[Claimant<'a>],
        parents: &Parents<'a>,
        doors_of: &[Vec<Site<'a>>],
        mut loss: impl FnMut(usize, Loss<'a>),
    ) -> Self {
        let held = HashMap::with_capacity(candidates.len());
        let mut this = Self { candidates, held };
        this.contest(targets, parents);
        this.prefer_written(targets);
        for candidate in &this.candidates {
            if candidate.attachment == NONE {
                continue;
            }
            let lost = |owner| Loss { door: candidate.door, written: candidate.written, owner };
            match this.held.get(&key(candidate.door, candidate.pattern)).map(|held| held.lead) {
                None => loss(candidate.attachment, lost(None)),
                Some(Lead::To { target, .. }) if target != candidate.target => {
                    loss(candidate.attachment, lost(Some(targets[target])));
                }
                Some(_) => {}
            }
        }
        for (gateway, sites) in doors_of.iter().enumerate() {
            this.isolate(gateway, sites);
        }
        this
    }

    /// What each pattern leads to, in any order.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'a>> {
        let entry = |(key, held): (&Key<'a>, &Held<'a>)| Entry {
            door: key.0,
            pattern: held.pattern,
            lead: held.lead,
        };
        self.held.iter().map(entry)
    }

    /// Gives each pattern to the best of those that want it.
    fn contest(&mut self, targets: &[Claimant<'a>], parents: &Parents<'a>) {
        for (index, candidate) in self.candidates.iter().enumerate() {
            if candidate.pattern.is_some_and(is_reserved) {
                continue;
            }
            let gateway = match candidate.listener {
                NONE => NONE,
                listener => parents.gateway_of(listener),
            };
            let lead = Lead::To { target: candidate.target, candidate: index };
            let new = Held { pattern: candidate.pattern, lead, gateway };
            let held = self.held.entry(key(candidate.door, candidate.pattern)).or_insert(new);
            if let Lead::To { candidate: other, .. } = held.lead
                && merit(candidate, targets) < merit(&self.candidates[other], targets)
            {
                *held = new;
            }
        }
    }

    /// A pattern that a listener made more specific than it is written gives way to a wider one of another Gateway that
    /// is better as written.
    fn prefer_written(&mut self, targets: &[Claimant<'a>]) {
        let mut better: Vec<(Key<'a>, Held<'a>)> = Vec::new();
        for (key, held) in &self.held {
            let (Lead::To { candidate, .. }, Some(pattern)) = (held.lead, held.pattern) else { continue };
            let candidate = &self.candidates[candidate];
            if candidate.written == Some(pattern) {
                continue;
            }
            let mut best = (merit(candidate, targets), *held);
            for wider in self.wider(key.0, pattern).filter(|wider| wider.gateway != held.gateway) {
                let Lead::To { candidate, .. } = wider.lead else { continue };
                let merit = merit(&self.candidates[candidate], targets);
                if merit < best.0 {
                    best = (merit, Held { pattern: held.pattern, ..*wider });
                }
            }
            if best.1.lead != held.lead {
                better.push((*key, best.1));
            }
        }
        self.held.extend(better);
    }

    /// Keeps names of a Gateway's listeners from the routes of its less specific listeners.
    fn isolate(&mut self, gateway: usize, sites: &[Site<'a>]) {
        for site in sites {
            let key = key(site.door, Some(site.hostname));
            if self.held.contains_key(&key) {
                continue;
            }
            if let Some(held) = self.shield(gateway, site) {
                self.held.insert(key, held);
            }
        }
    }

    /// What a listener's hostname without a route of its own must lead to; `None`: it needs no entry.
    fn shield(&self, gateway: usize, site: &Site<'a>) -> Option<Held<'a>> {
        let mut wider = self.wider(site.door, site.hostname);
        // What the name would lead to. If that is of another Gateway, it may.
        wider.next().filter(|wider| wider.gateway == gateway)?;
        let pattern = Some(site.hostname);
        match wider.find(|wider| wider.gateway != gateway) {
            Some(other) => Some(Held { pattern, ..*other }),
            None => Some(Held { pattern, lead: Lead::Refused { gateway }, gateway }),
        }
    }

    /// What patterns wider than this one lead to on a door, the most specific first.
    fn wider(&self, door: usize, pattern: &'a Pattern) -> impl Iterator<Item = &Held<'a>> {
        above(pattern).filter_map(move |name| self.held.get(&(door, false, name)))
    }
}

/// A listener's hostname on one of its doors, where the Gateway has other listeners too.
pub(super) struct Site<'a> {
    pub(super) door: usize,
    pub(super) hostname: &'a Pattern,
}

/// The host names of a Gateway's listeners on one port, and which listener has each.
#[derive(Default)]
pub(super) struct Hostnames<'a> {
    of: HashMap<(bool, &'a str), usize>,
}

impl<'a> Hostnames<'a> {
    pub(super) fn add(&mut self, hostname: Option<&'a Pattern>, listener: usize) {
        let (_, exact, name) = key(0, hostname);
        self.of.insert((exact, name), listener);
    }

    pub(super) fn is_single(&self) -> bool {
        self.of.len() < 2
    }

    /// The most specific listener for all names of a pattern.
    pub(super) fn listener_of(&self, pattern: Option<&'a Pattern>) -> Option<usize> {
        let (_, exact, name) = key(0, pattern);
        let own = self.of.get(&(exact, name)).copied();
        own.or_else(|| pattern.and_then(|p| above(p).find_map(|name| self.of.get(&(false, name)).copied())))
    }
}

fn key(door: usize, pattern: Option<&Pattern>) -> Key<'_> {
    match pattern {
        Some(Pattern::Exact(name)) => (door, true, name.as_str()),
        Some(Pattern::Wildcard(suffix)) => (door, false, suffix.as_str()),
        None => (door, false, ""),
    }
}

/// The suffixes of wildcards that match all that a pattern matches and more, the longest first; last the empty one.
fn above(pattern: &Pattern) -> impl Iterator<Item = &str> {
    let (Pattern::Exact(name) | Pattern::Wildcard(name)) = pattern;
    let name = name.as_str();
    name.match_indices('.').map(|(dot, _)| &name[dot + 1..]).chain([""])
}

/// The least one wins. Patterns that want the same are nested: the longer is the more specific.
fn merit<'a>(candidate: &Candidate<'a>, targets: &[Claimant<'a>]) -> (Reverse<usize>, Claimant<'a>) {
    let specific = match candidate.written {
        Some(Pattern::Exact(_)) => usize::MAX,
        Some(Pattern::Wildcard(suffix)) => suffix.as_str().len(),
        None => 0,
    };
    (Reverse(specific), targets[candidate.target])
}

/// Whether the pattern is one of the names that every cluster's own API server has. The data plane refuses them before
/// any wildcard or default is looked at.
fn is_reserved(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Exact(name) => RESERVED.contains(&name.as_str()),
        Pattern::Wildcard(_) => false,
    }
}
