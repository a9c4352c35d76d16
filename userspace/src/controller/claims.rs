//! Claims: which objects are to be written, changed and deleted so that they say what was settled. Pure: time is an argument.
//!
//! A Claim changes only when what is asked or granted changes, so that its watchers see nothing else. One that was written is not
//! written again before the watch has reported it, or some seconds have passed.

use crate::model;
use crate::sources::kubernetes::api::claim::{ClaimOrigin, ClaimSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long to wait for the watch to report a write.
const NEWER_WAIT: Duration = Duration::from_secs(5);
/// Wait after the first failure; doubles up to [`FAILURE_WAIT_MAX`].
const FAILURE_WAIT: Duration = Duration::from_secs(1);
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(64);
/// The most writes in flight.
const FLIGHTS: usize = 16;

/// A Claim as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// What it says.
    pub(super) spec: ClaimSpec,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
    /// `metadata.uid`.
    pub(super) uid: String,
}

/// A write of a Claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimWrite {
    /// There is none yet.
    Create(ClaimSpec),
    /// It says something else, in this version.
    Replace(ClaimSpec, String),
    /// Nobody asks for it any more: this one, in this version.
    Delete { uid: String, version: String },
}

/// What the watch reports.
#[derive(Debug)]
pub(super) enum ClaimNews {
    /// These are all.
    Listed(BTreeMap<String, Stored>),
    /// New or changed.
    Put(String, Stored),
    /// Gone.
    Gone(String),
}

/// All Claims, as they are and as they should be.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// `None`: not listed yet. Nothing is written before.
    stored: Option<BTreeMap<String, Stored>>,
    /// What was settled, and the object that says so.
    wanted: BTreeMap<String, (model::Claim, ClaimSpec)>,
    /// Whether anything was settled since this controller leads. Nothing is written before, for nothing is wanted yet.
    is_settled: bool,
    /// Those whose last write is in flight, was not reported, or failed.
    pending: BTreeMap<String, Pending>,
    in_flight: usize,
    /// Names of those that may differ.
    due: BTreeSet<String>,
}

/// A Claim that is not written for now.
#[derive(Debug, Default)]
struct Pending {
    is_in_flight: bool,
    failures: u32,
    /// Not before.
    not_before: Option<Instant>,
}

impl Claims {
    /// Takes what the watch reports.
    pub(super) fn take(&mut self, news: ClaimNews) {
        match news {
            ClaimNews::Listed(stored) => {
                self.due.extend(self.wanted.keys().chain(stored.keys()).cloned());
                self.pending.retain(|_, pending| pending.is_in_flight);
                self.stored = Some(stored);
            }
            ClaimNews::Put(name, claim) => {
                self.reported(&name);
                if let Some(stored) = &mut self.stored {
                    stored.insert(name, claim);
                }
            }
            ClaimNews::Gone(name) => {
                self.reported(&name);
                if let Some(stored) = &mut self.stored {
                    stored.remove(&name);
                }
            }
        }
    }

    /// The newest state of this one has come: it may be written again.
    fn reported(&mut self, name: &str) {
        if self.pending.get(name).is_some_and(|pending| !pending.is_in_flight && pending.failures == 0) {
            self.pending.remove(name);
        }
        self.due.insert(name.to_owned());
    }

    /// Sets what was settled. `now`: the time in RFC 3339, UTC.
    pub(super) fn want(&mut self, claims: Vec<model::Claim>, now: &str) {
        let mut old = std::mem::take(&mut self.wanted);
        if !std::mem::replace(&mut self.is_settled, true) {
            self.due.extend(self.stored.iter().flat_map(BTreeMap::keys).cloned());
        }
        for claim in claims {
            let Some(origin) = ClaimOrigin::of(&claim) else { continue };
            let name = origin.object_name();
            let kept = old.remove(&name).filter(|(before, _)| *before == claim);
            let wanted = kept.unwrap_or_else(|| {
                self.due.insert(name.clone());
                let spec = ClaimSpec::of(origin, &claim, now);
                (claim, spec)
            });
            self.wanted.insert(name, wanted);
        }
        self.due.extend(old.into_keys());
    }

    /// Forgets what was wanted, and what failed: another controller may have led meanwhile.
    pub(super) fn clear(&mut self) {
        self.is_settled = false;
        self.wanted.clear();
        self.due.clear();
        self.pending.retain(|_, pending| pending.is_in_flight);
    }

    /// Returns the next write. Otherwise, when to ask again; `None`: when something changes.
    pub(super) fn next(&mut self, now: Instant) -> Result<(String, ClaimWrite), Option<Instant>> {
        let Some(stored) = self.stored.as_ref().filter(|_| self.is_settled) else { return Err(None) };
        let mut soonest: Option<Instant> = None;
        let mut done = Vec::new();
        let mut found = None;
        for name in &self.due {
            if self.in_flight >= FLIGHTS {
                break;
            }
            let pending = self.pending.get(name);
            if pending.is_some_and(|pending| pending.is_in_flight) {
                continue;
            }
            if let Some(at) = pending.and_then(|pending| pending.not_before).filter(|at| *at > now) {
                soonest = Some(soonest.map_or(at, |other| other.min(at)));
                continue;
            }
            match difference(stored.get(name), self.wanted.get(name).map(|(_, spec)| spec)) {
                Some(write) => {
                    found = Some((name.clone(), write));
                    break;
                }
                None => done.push(name.clone()),
            }
        }
        for name in done {
            self.due.remove(&name);
            self.pending.remove(&name);
        }
        let (name, write) = found.ok_or(soonest)?;
        self.in_flight += 1;
        self.pending.entry(name.clone()).or_default().is_in_flight = true;
        Ok((name, write))
    }

    /// Records how a write that [`Claims::next`] returned has ended.
    pub(super) fn ended(&mut self, name: &str, is_done: bool, now: Instant) {
        self.in_flight -= 1;
        let pending = self.pending.entry(name.to_owned()).or_default();
        pending.is_in_flight = false;
        let wait = match is_done {
            true => {
                pending.failures = 0;
                NEWER_WAIT
            }
            false => {
                let wait = FAILURE_WAIT.saturating_mul(1 << pending.failures.min(10)).min(FAILURE_WAIT_MAX);
                pending.failures += 1;
                wait
            }
        };
        pending.not_before = Some(now + wait);
    }
}

/// Returns the write that makes a Claim say what it should.
fn difference(stored: Option<&Stored>, wanted: Option<&ClaimSpec>) -> Option<ClaimWrite> {
    match (stored, wanted) {
        (None, None) => None,
        (None, Some(wanted)) => Some(ClaimWrite::Create(wanted.clone())),
        (Some(stored), None) => {
            Some(ClaimWrite::Delete { uid: stored.uid.clone(), version: stored.version.clone() })
        }
        (Some(stored), Some(wanted)) => {
            let mut wanted = wanted.clone();
            wanted.keep_since(&stored.spec);
            (wanted != stored.spec).then(|| ClaimWrite::Replace(wanted, stored.version.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::claim::{ClaimBackends, Grant, Granted};
    use crate::model::{Claim, Kind, ObjectName, Origin, Protocol};

    fn claim(name: &str, port: u16) -> Claim {
        let grant = Grant {
            at: format!("192.0.2.1:{port}").parse().unwrap(),
            protocol: Protocol::Tcp,
            what: Granted::Rest,
        };
        Claim {
            origin: Origin::Object { created_secs: 1, kind: Kind::Service, name: ObjectName::new("a", name) },
            part: "443".into(),
            uid: "u".into(),
            tenant: Some("a".into()),
            port,
            protocol: Protocol::Tcp,
            matches: Vec::new(),
            route: None,
            grants: vec![grant],
            refusals: Vec::new(),
            backends: ClaimBackends::None,
        }
    }

    /// Claims beside an API server that takes every write, and reports it if `reports`.
    struct Scene {
        claims: Claims,
        server: BTreeMap<String, Stored>,
        version: u32,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            Self { claims: Claims::default(), server: BTreeMap::new(), version: 0, now: Instant::now() }
        }

        fn list(&mut self) {
            self.claims.take(ClaimNews::Listed(self.server.clone()));
        }

        /// Sends everything that may be sent. Returns what was done to how many.
        fn send(&mut self, reports: bool) -> [usize; 3] {
            let mut counts = [0; 3];
            while let Ok((name, write)) = self.claims.next(self.now) {
                self.version += 1;
                let stored = |spec| Stored { spec, version: self.version.to_string(), uid: "u".to_owned() };
                let news = match write {
                    ClaimWrite::Create(spec) => {
                        counts[0] += 1;
                        assert!(!self.server.contains_key(&name));
                        ClaimNews::Put(name.clone(), stored(spec))
                    }
                    ClaimWrite::Replace(spec, version) => {
                        counts[1] += 1;
                        assert_eq!(self.server[&name].version, version);
                        ClaimNews::Put(name.clone(), stored(spec))
                    }
                    ClaimWrite::Delete { version, .. } => {
                        counts[2] += 1;
                        assert_eq!(self.server[&name].version, version);
                        ClaimNews::Gone(name.clone())
                    }
                };
                match &news {
                    ClaimNews::Put(name, stored) => drop(self.server.insert(name.clone(), stored.clone())),
                    _ => drop(self.server.remove(&name)),
                }
                self.claims.ended(&name, true, self.now);
                if reports {
                    self.claims.take(news);
                }
            }
            counts
        }
    }

    #[test]
    fn nothing_is_written_before_all_are_known_and_then_what_differs() {
        let mut scene = Scene::new();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], "t1");
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.list();
        assert_eq!(scene.send(true), [2, 0, 0]);
        assert_eq!(scene.send(true), [0, 0, 0]);
        // The same again, later, is no change: what was granted keeps its time.
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], "t2");
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.claims.want(vec![claim("x", 8443)], "t3");
        assert_eq!(scene.send(true), [0, 1, 1]);
        let since: Vec<&str> = scene.server.values().map(|one| one.spec.grants[0].since.as_str()).collect();
        assert_eq!(since, ["t3"]);
    }

    /// The list came before this controller led: what a former one wrote, and nobody asks for any more, was kept.
    #[test]
    fn a_new_leader_deletes_nothing_before_it_has_settled_and_then_what_nobody_asks_for() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], "t1");
        scene.send(true);
        scene.claims.clear();
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.list();
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.claims.clear();
        scene.claims.want(vec![claim("x", 443)], "t2");
        assert_eq!(scene.send(true), [0, 0, 1]);
    }

    #[test]
    fn what_others_do_to_them_is_undone() {
        let mut scene = Scene::new();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], "t1");
        scene.list();
        scene.send(true);
        let names: Vec<String> = scene.server.keys().cloned().collect();
        let mut edited = scene.server[&names[0]].clone();
        edited.spec.tenant = "another".to_owned();
        edited.version = "99".to_owned();
        scene.server.insert(names[0].clone(), edited.clone());
        scene.server.remove(&names[1]);
        scene.claims.take(ClaimNews::Put(names[0].clone(), edited));
        scene.claims.take(ClaimNews::Gone(names[1].clone()));
        assert_eq!(scene.send(true), [1, 1, 0]);
    }

    #[test]
    fn a_claim_is_written_again_when_it_was_reported_or_after_a_while() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], "t1");
        assert_eq!(scene.send(false), [1, 0, 0]);
        scene.claims.want(vec![claim("x", 444)], "t2");
        assert_eq!(scene.send(false), [0, 0, 0]);
        scene.list();
        assert_eq!(scene.send(true), [0, 1, 0]);
    }

    #[test]
    fn one_that_fails_waits_longer_each_time_and_keeps_nobody() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], "t1");
        let mut waits = Vec::new();
        for _ in 0..3 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            scene.claims.ended(&name, false, scene.now);
            let at = scene.claims.next(scene.now).unwrap_err().unwrap();
            waits.push((at - scene.now).as_secs());
            scene.now = at;
        }
        assert_eq!(waits, [1, 2, 4]);
        let (name, _) = scene.claims.next(scene.now).unwrap();
        scene.claims.ended(&name, false, scene.now);
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], "t1");
        assert_eq!(scene.send(true), [1, 0, 0]);
    }

    #[test]
    fn some_are_in_flight_beside_each_other_and_none_twice() {
        let mut claims = Claims::default();
        claims.take(ClaimNews::Listed(BTreeMap::new()));
        let all: Vec<Claim> = (0..40).map(|n| claim(&format!("s{n}"), 443)).collect();
        claims.want(all, "t1");
        let now = Instant::now();
        let mut sent: Vec<String> = Vec::new();
        while let Ok((name, _)) = claims.next(now) {
            sent.push(name);
        }
        assert_eq!(sent.len(), FLIGHTS);
        claims.ended(&sent[0], true, now);
        let (next, _) = claims.next(now).unwrap();
        assert!(!sent.contains(&next));
    }
}
