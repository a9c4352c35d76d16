//! What is to be given before it is taken from others. A loss of anything else waits for no grant: that one's write may hang.

use super::Claims;
use crate::model::claim::{Grant, Granted};
use foldhash::HashMap;
use std::net::SocketAddr;

/// What claims are to get, and is not known to be there yet.
#[derive(Default)]
pub(super) struct Awaited<'a>(HashMap<SocketAddr, Vec<&'a Granted>>);

impl Awaited<'_> {
    /// Whether another claim is to get this, or part of it.
    fn has(&self, lost: &Grant) -> bool {
        self.0.get(&lost.at).is_some_and(|all| all.iter().any(|won| passes(&lost.what, won)))
    }
}

/// Whether connections that `lost` took are for `won`.
fn passes(lost: &Granted, won: &Granted) -> bool {
    match (lost, won) {
        (Granted::Names(lost), Granted::Names(won)) => lost.covers(won) || won.covers(lost),
        // Who only answers there leads them nowhere.
        (Granted::Names(_), Granted::Binding) => false,
        (Granted::Binding | Granted::Rest, _) | (Granted::Names(_), Granted::Rest) => true,
    }
}

impl Claims {
    /// Returns what is to be given, but not what failed twice: that keeps nothing from others.
    pub(super) fn awaited(&self) -> Awaited<'_> {
        let mut awaited = Awaited::default();
        let is_soon = |name: &&String| {
            !self.held.contains(*name) && self.flights.is_imminent(name) && self.differs(name)
        };
        for name in self.due.iter().filter(is_soon) {
            let Some((wanted, _)) = self.wanted.get(name) else { continue };
            let had = self.had(name);
            for grant in wanted.grants.iter().filter(|grant| !had.contains(grant)) {
                awaited.0.entry(grant.at).or_default().push(&grant.what);
            }
        }
        awaited
    }

    /// Whether a claim loses anything that others are to get.
    pub(super) fn loses_to(&self, name: &str, awaited: &Awaited<'_>) -> bool {
        if awaited.0.is_empty() {
            return false;
        }
        let keeps =
            |grant: &Grant| self.wanted.get(name).is_some_and(|(wanted, _)| wanted.grants.contains(grant));
        self.had(name).iter().any(|grant| !keeps(grant) && awaited.has(grant))
    }

    /// Returns what a claim has.
    fn had(&self, name: &str) -> Vec<Grant> {
        let stored = self.stored.as_ref().and_then(|stored| stored.get(name));
        stored.map(|stored| stored.spec.granted()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pattern, Protocol, ServerName};

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
            let awaited = Awaited(HashMap::from_iter([(at("192.0.2.1:443"), vec![&won])]));
            let mut lost = Grant { at: at("192.0.2.1:443"), protocol: Protocol::Tls, what };
            assert_eq!(awaited.has(&lost), waits, "{lost:?} {won:?}");
            for other in ["192.0.2.1:444", "192.0.2.2:443"] {
                lost.at = at(other);
                assert!(!awaited.has(&lost), "{lost:?} {won:?}");
            }
        }
    }
}
