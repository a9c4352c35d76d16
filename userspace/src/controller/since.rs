//! Since when something cannot be followed, and why: an Event says so only if it lasts. Pure: time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After this time, an Event says that a source cannot be followed.
pub(super) const STALE: Duration = Duration::from_secs(60);

/// What cannot be followed now. The reason may change meanwhile.
#[derive(Debug)]
pub(super) struct Since<K> {
    all: BTreeMap<K, (Instant, String)>,
}

impl<K> Default for Since<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Since<K> {
    /// Takes what cannot be followed now, each with the reason. Returns whether that is something else than before.
    pub(super) fn note(&mut self, now: impl IntoIterator<Item = (K, String)>, at: Instant) -> bool {
        let mut before = std::mem::take(&mut self.all);
        let mut is_other = false;
        for (key, why) in now {
            let known = before.remove(&key);
            is_other |= known.as_ref().is_none_or(|(_, other)| *other != why);
            self.all.insert(key, (known.map_or(at, |(since, _)| since), why));
        }
        is_other || !before.is_empty()
    }

    /// All of it: since when, and why.
    pub(super) fn all(&self) -> impl Iterator<Item = (&K, Instant, &str)> {
        self.all.iter().map(|(key, (since, why))| (key, *since, why.as_str()))
    }
}

/// Returns what an agent cannot follow by node and source, with what it says of it: `services: 403 Forbidden`.
pub(super) fn by_source((node, line): (String, String)) -> ((String, String), String) {
    let source = line.split(':').next().unwrap_or_default().to_owned();
    ((node, source), line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_old_as_its_beginning_whatever_the_reason_is_by_now() {
        let (mut since, begun) = (Since::default(), Instant::now());
        let later = begun + STALE;
        let told = |why: &str| [("leases", why.to_owned())];
        assert!(since.note(told("403"), begun));
        assert!(!since.note(told("403"), later));
        assert!(since.note(told("timeout"), later));
        assert_eq!(since.all().collect::<Vec<_>>(), [(&"leases", begun, "timeout")]);
        assert!(since.note([], later) && !since.note([], later));
        assert!(since.note(told("403"), later));
        assert_eq!(since.all().next().unwrap().1, later, "it could be followed meanwhile");
    }
}
