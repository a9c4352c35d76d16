//! What is to be given before it is taken from others. A loss of anything else waits for no grant: that one's write may hang.
//!
//! It follows what changes, claim by claim, and is asked by name: thousands of grants may hang while thousands of claims lose something.

use super::Claims;
use crate::model::claim::{Grant, Granted};
use crate::model::{Pattern, ServerName};
use foldhash::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Bound;

/// What claims are to get, and is not known to be there yet.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// By the name of the claim.
    of: HashMap<String, Vec<Grant>>,
    at: HashMap<SocketAddr, There>,
    stale: Stale,
}

/// Which claims are to be looked at again.
#[derive(Debug)]
enum Stale {
    Some(BTreeSet<String>),
    All,
}

impl Default for Stale {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

/// What is awaited at an address and port.
#[derive(Debug, Default)]
struct There {
    /// How many await anything.
    all: usize,
    /// How many await all that no pattern takes.
    rests: usize,
    /// How many await each pattern. They are in the order of names with the last label first: those below a name follow it.
    patterns: BTreeMap<String, BTreeMap<Pattern, usize>>,
}

impl Awaited {
    /// A claim has changed, or what is known of its writes.
    pub(super) fn touch(&mut self, name: &str) {
        if let Stale::Some(names) = &mut self.stale {
            names.insert(name.to_owned());
        }
    }

    /// All may have changed.
    pub(super) fn touch_all(&mut self) {
        self.stale = Stale::All;
    }

    /// A claim is to get these.
    fn set(&mut self, name: &str, grants: Vec<Grant>) {
        #[cfg(test)]
        tests::looks(1);
        for grant in self.of.remove(name).unwrap_or_default() {
            self.drop(&grant);
        }
        grants.iter().for_each(|grant| self.at.entry(grant.at()).or_default().add(&grant.what));
        if !grants.is_empty() {
            self.of.insert(name.to_owned(), grants);
        }
    }

    fn drop(&mut self, grant: &Grant) {
        let Some(there) = self.at.get_mut(&grant.at()) else { return };
        there.remove(&grant.what);
        if there.all == 0 {
            self.at.remove(&grant.at());
        }
    }

    /// Whether a claim is to get this, or part of it.
    fn has(&self, lost: &Grant) -> bool {
        self.at.get(&lost.at()).is_some_and(|there| there.has(&lost.what))
    }
}

impl There {
    fn add(&mut self, what: &Granted) {
        self.all += 1;
        match what {
            Granted::Binding => {}
            Granted::Rest => self.rests += 1,
            Granted::Names(pattern) => {
                let of_name = self.patterns.entry(reversed(name(pattern))).or_default();
                *of_name.entry(pattern.clone()).or_default() += 1;
            }
        }
    }

    fn remove(&mut self, what: &Granted) {
        self.all -= 1;
        match what {
            Granted::Binding => {}
            Granted::Rest => self.rests -= 1,
            Granted::Names(pattern) => {
                let at = reversed(name(pattern));
                let Some(of_name) = self.patterns.get_mut(&at) else { return };
                if let Some(count) = of_name.get_mut(pattern) {
                    *count -= 1;
                }
                of_name.retain(|_, count| *count > 0);
                if of_name.is_empty() {
                    self.patterns.remove(&at);
                }
            }
        }
    }

    /// Whether connections that this took are for what is awaited here.
    fn has(&self, lost: &Granted) -> bool {
        match lost {
            Granted::Binding | Granted::Rest => self.all > 0,
            // Who only answers there leads them nowhere.
            Granted::Names(lost) => self.rests > 0 || self.overlaps(lost),
        }
    }

    /// Whether a pattern is awaited that has a name in common with this one: then one is within the other.
    fn overlaps(&self, lost: &Pattern) -> bool {
        let own = reversed(name(lost));
        let is_common = |won: &Pattern| {
            #[cfg(test)]
            tests::looks(1);
            lost.covers(won) || won.covers(lost)
        };
        // The name itself, and each that it is below.
        let mut above = own
            .match_indices('.')
            .filter_map(|(end, _)| self.patterns.get(&own[..=end]))
            .flat_map(BTreeMap::keys);
        let is_within = || {
            let below = self
                .patterns
                .range::<str, _>((Bound::Included(&*own), Bound::Unbounded))
                .take_while(|(at, _)| at.starts_with(&own));
            below.flat_map(|(_, patterns)| patterns.keys()).any(is_common)
        };
        above.any(is_common) || !matches!(lost, Pattern::Exact(_)) && is_within()
    }
}

fn name(pattern: &Pattern) -> &ServerName {
    match pattern {
        Pattern::Exact(name) | Pattern::OneLabel(name) | Pattern::Wildcard(name) => name,
    }
}

/// `org.example.`
fn reversed(name: &ServerName) -> String {
    let mut text = String::with_capacity(name.as_str().len() + 1);
    for label in name.as_str().rsplit('.') {
        text.push_str(label);
        text.push('.');
    }
    text
}

impl Claims {
    /// Looks again at what has changed.
    pub(super) fn follow_awaited(&mut self) {
        let mut awaited = std::mem::take(&mut self.awaited);
        let stale = match std::mem::take(&mut awaited.stale) {
            Stale::Some(names) => names,
            Stale::All => {
                awaited = Awaited::default();
                self.wanted.keys().cloned().collect()
            }
        };
        for name in stale {
            awaited.set(&name, self.awaited_of(&name));
        }
        self.awaited = awaited;
    }

    /// Returns what a claim is to get, but not what failed twice: that keeps nothing from others.
    fn awaited_of(&self, name: &String) -> Vec<Grant> {
        let is_soon = !self.held.contains(name) && self.flights.is_imminent(name) && self.differs(name);
        let Some((wanted, _)) = self.wanted.get(name).filter(|_| is_soon) else { return Vec::new() };
        let had = self.had(name);
        wanted.grants.iter().filter(|grant| !had.contains(grant)).cloned().collect()
    }

    /// Whether a claim loses anything that others are to get, as far as that was followed.
    pub(super) fn loses_to_others(&self, name: &str) -> bool {
        if self.awaited.at.is_empty() {
            return false;
        }
        let keeps =
            |grant: &Grant| self.wanted.get(name).is_some_and(|(wanted, _)| wanted.grants.contains(grant));
        self.had(name).iter().any(|grant| !keeps(grant) && self.awaited.has(grant))
    }

    /// Returns what a claim has.
    fn had(&self, name: &str) -> Vec<Grant> {
        let stored = self.stored.as_ref().and_then(|stored| stored.get(name));
        stored.map(|stored| stored.spec.granted()).unwrap_or_default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::Protocol;
    use std::cell::Cell;

    thread_local! {
        /// How many claims and patterns were looked at.
        pub(in crate::controller::claims) static LOOKED: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn looks(more: usize) {
        LOOKED.with(|looked| looked.set(looked.get() + more));
    }

    /// What is asked by name is what comparing all with all shows.
    #[test]
    fn what_is_awaited_is_found_by_name_however_much_else_is() {
        let names = ["org", "x.org", "y.org", "a.x.org", "b.x.org", "b.a.x.org", "xx.org", "a.xx.org"];
        let patterns = names.iter().flat_map(|text| {
            let name = || ServerName::new(text).unwrap();
            [Pattern::Exact(name()), Pattern::OneLabel(name()), Pattern::Wildcard(name())]
        });
        let own = [Granted::Binding, Granted::Rest];
        let all: Vec<Granted> = patterns.map(Granted::Names).chain(own).collect();
        let takes = |lost: &Granted, won: &Granted| match (lost, won) {
            (Granted::Names(lost), Granted::Names(won)) => lost.covers(won) || won.covers(lost),
            (Granted::Names(_), Granted::Binding) => false,
            (Granted::Binding | Granted::Rest, _) | (Granted::Names(_), Granted::Rest) => true,
        };
        for (first, second) in all.iter().flat_map(|first| all.iter().map(move |second| (first, second))) {
            let mut there = There::default();
            [first, second, second].into_iter().for_each(|won| there.add(won));
            there.remove(second);
            for lost in &all {
                let expected = takes(lost, first) || takes(lost, second);
                assert_eq!(there.has(lost), expected, "{lost:?} of {first:?} and {second:?}");
            }
            there.remove(first);
            there.remove(second);
            assert!(there.all == 0 && there.rests == 0 && there.patterns.is_empty(), "{there:?}");
        }
    }

    #[test]
    fn only_what_takes_the_same_connections_is_waited_for() {
        // `-`: to answer; `*`: all that nobody else has; `+.` is one label.
        let granted = |text: &str| {
            let name = |text| ServerName::new(text).unwrap();
            match text {
                "-" => Granted::Binding,
                "*" => Granted::Rest,
                _ => Granted::Names(match text.split_at(2) {
                    ("*.", suffix) => Pattern::Wildcard(name(suffix)),
                    ("+.", suffix) => Pattern::OneLabel(name(suffix)),
                    _ => Pattern::Exact(name(text)),
                }),
            }
        };
        // What is lost, what is to be given, whether the first waits.
        let table = [
            ("a.x.org", "a.x.org", true),
            ("a.x.org", "b.x.org", false),
            ("a.x.org", "*.x.org", true),
            ("a.x.org", "+.x.org", true),
            ("*.x.org", "a.x.org", true),
            ("*.x.org", "+.y.org", false),
            ("+.x.org", "a.b.x.org", false),
            ("+.x.org", "*.org", true),
            ("a.x.org", "*", true),
            ("*", "a.x.org", true),
            ("a.x.org", "-", false),
            ("-", "a.x.org", true),
            ("*", "-", true),
        ];
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (lost, won, waits) in table {
            let (what, won) = (granted(lost), granted(won));
            let to_get = |what: &Granted| Grant::new(at("192.0.2.1:443"), Protocol::Tls, what.clone());
            let mut awaited = Awaited::default();
            awaited.set("won", vec![to_get(&won)]);
            let lost_at = |text| Grant::new(at(text), Protocol::Tls, what.clone());
            let lost = lost_at("192.0.2.1:443");
            assert_eq!(awaited.has(&lost), waits, "{lost:?} {won:?}");
            for other in ["192.0.2.1:444", "192.0.2.2:443"] {
                assert!(!awaited.has(&lost_at(other)), "{lost:?} {won:?} {other}");
            }
            // Another one is to get the same.
            awaited.set("other", vec![to_get(&won)]);
            awaited.set("won", Vec::new());
            assert_eq!(awaited.has(&lost), waits, "{lost:?} {won:?}");
            awaited.set("other", Vec::new());
            assert!(!awaited.has(&lost) && awaited.at.is_empty(), "{lost:?} {won:?}");
        }
    }
}
