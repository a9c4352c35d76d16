//! Claims: which objects are to be written, changed and deleted so that they say what was settled. Pure: time is an argument.
//!
//! A Claim changes only when what is asked or granted changes, so that its watchers see nothing else. One that was written is not
//! written again before the watch has reported it, or some seconds have passed.

/// What is to be given before it is taken from others.
mod awaited;
/// Which one is written next.
mod next;
/// Why the mark is missing.
mod waits;

use super::claim_flights::{ClaimFlights, Failures};
use super::claim_mark::ClaimMark;
use super::claim_store::{ClaimNews, ClaimOutcome, ClaimWrite, Failure, Stored};
use crate::model::claim::{AskedProtocol, note_address, possession};
use crate::model::{self, ObjectName, ObjectRef, Possession};
use crate::origins;
use crate::sources::kubernetes::api::claim::{ClaimOrigin, ClaimSpec, SETTLED};
use crate::status::Refused;
use awaited::Awaited;
use foldhash::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
pub(super) use waits::Waits;

/// Whether agents serve what it asks for. Those of the release before cannot read the others, and may never report their versions.
fn is_served(spec: &ClaimSpec) -> bool {
    AskedProtocol::of_text(&spec.protocol).is_some_and(|asked| asked.served().is_some())
}

/// Why Claims do not say all that they should.
const PRUNED: &str = "the API server takes out part of what is written: the definition of Claims is of another release; apply those of this one, \
     which `vestibule crds` prints";

/// All Claims, as they are and as they should be.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// `None`: not listed yet. Nothing is written before.
    stored: Option<BTreeMap<String, Stored>>,
    /// [`SETTLED`].
    mark: ClaimMark,
    /// What was settled, and the object that says so.
    wanted: BTreeMap<String, (model::Claim, ClaimSpec)>,
    /// Names of those that an object wants.
    of_object: HashMap<ObjectRef, Vec<String>>,
    /// Whether anything was settled since this controller leads. Nothing is written before, for nothing is wanted yet.
    is_settled: bool,
    flights: ClaimFlights,
    /// Names of those that may differ.
    due: BTreeSet<String>,
    /// The name of the one that was written last: those after it come first.
    last: String,
    /// Names of those that are not written for now.
    held: BTreeSet<String>,
    /// Names of those that only lose something.
    losses: BTreeSet<String>,
    awaited: Awaited,
    /// Those that another client changed or deleted although they said what they should.
    edited: Vec<Edited>,
    served: Served,
}

/// Why a node may serve what Claims said before, for all that is known; `None`: none does.
#[derive(Debug)]
struct Served {
    /// As nodes report.
    on_nodes: Option<String>,
    /// As statuses say: an agent of the release before that starts while the mark is missing reports nothing, and serves what it had
    /// saved.
    in_statuses: Option<String>,
}

impl Default for Served {
    fn default() -> Self {
        let unknown = || Some("it is not known yet what nodes hold".to_owned());
        Self { on_nodes: unknown(), in_statuses: unknown() }
    }
}

/// A Claim that another client changed or deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edited {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) is_deleted: bool,
}

impl Claims {
    /// Takes what the watch reports. Returns whether an object may be judged otherwise because of it.
    pub(super) fn take(&mut self, news: ClaimNews) -> bool {
        match news {
            ClaimNews::Listed(mut stored, _) => {
                self.mark.list(stored.remove(SETTLED), self.stored.is_none());
                if self.stored.is_none() {
                    // What was settled before they were known took no account of who has what.
                    self.forget_wanted();
                }
                self.due.extend(self.wanted.keys().chain(stored.keys()).cloned());
                self.flights.listed(|name| stored.contains_key(name));
                self.awaited.touch_all();
                self.stored = Some(stored);
                true
            }
            ClaimNews::Put(name, mark) if name == SETTLED => {
                self.reported(&name);
                self.mark.put(&mark)
            }
            ClaimNews::Gone(name) if name == SETTLED => {
                self.reported(&name);
                self.mark.gone()
            }
            ClaimNews::Put(name, claim) => {
                self.note_edit(&name, Some(&claim.spec));
                self.reported(&name);
                if let Some(stored) = &mut self.stored {
                    stored.insert(name.clone(), *claim);
                }
                self.is_of_judged(&name)
            }
            ClaimNews::Gone(name) => {
                self.note_edit(&name, None);
                self.reported(&name);
                if self.wanted.contains_key(&name) {
                    self.mark.disturb();
                }
                if let Some(stored) = &mut self.stored {
                    stored.remove(&name);
                }
                self.flights.changed(&name);
                self.is_of_judged(&name)
            }
        }
    }

    /// Notes whether another client has changed a Claim that said what it should.
    fn note_edit(&mut self, name: &str, now: Option<&ClaimSpec>) {
        let (Some(before), Some((_, wanted))) =
            (self.stored.as_ref().and_then(|stored| stored.get(name)), self.wanted.get(name))
        else {
            return;
        };
        if wanted.is_same(&before.spec) && !now.is_some_and(|now| wanted.is_same(now)) {
            let (name, uid) = (name.to_owned(), before.uid.clone());
            self.edited.push(Edited { name, uid, is_deleted: now.is_none() });
        }
    }

    /// Returns those that other clients have changed or deleted since it was asked last.
    pub(super) fn edited(&mut self) -> Vec<Edited> {
        std::mem::take(&mut self.edited)
    }

    /// Whether a Claim is of an object, which is judged by what nodes hold of it.
    fn is_of_judged(&self, name: &str) -> bool {
        self.wanted.get(name).is_some_and(|(claim, _)| claim.origin.object().is_some())
    }

    /// Returns the object that asks for the Claim of this name.
    pub(super) fn object_of(&self, name: &str) -> Option<ObjectRef> {
        self.wanted.get(name)?.0.origin.object()
    }

    /// Which writes fail.
    pub(super) fn failing(&self, now: Instant) -> Failures {
        self.flights.failing(now)
    }

    /// Whether those of an object cannot be read or written, or wait for others that cannot: for the mark, without which nodes take none,
    /// or for a first try while none is written. `failing`: [`Claims::failing`].
    pub(super) fn fail(&self, object: &ObjectRef, failing: Failures) -> bool {
        let names = self.of_object.get(object).map_or(&[][..], Vec::as_slice);
        let cannot = |name: &String| failing == Failures::All || self.flights.fails(name);
        let is_unwritten = |name: &String| !self.held.contains(name) && self.differs(name) && cannot(name);
        let some_fail = failing != Failures::None;
        self.stored.is_none() || (some_fail && (!self.mark.is_there() || names.iter().any(is_unwritten)))
    }

    /// Returns the name of one of an object's that cannot be written, and why.
    pub(super) fn refusal(&self, object: &ObjectRef) -> Option<Refused> {
        let mut names = self.of_object.get(object)?.iter().filter(|name| !self.held.contains(*name));
        names.find_map(|name| Some(Refused { claim: name.as_str().into(), why: self.flights.why(name)? }))
    }

    /// Whether an object was granted anything.
    pub(super) fn has_grants(&self, object: &ObjectRef) -> bool {
        let names = self.of_object.get(object).map_or(&[][..], Vec::as_slice);
        names.iter().any(|name| self.wanted.get(name).is_some_and(|(claim, _)| !claim.grants.is_empty()))
    }

    /// The newest state of this one has come: it may be written again.
    fn reported(&mut self, name: &str) {
        self.awaited.touch(name);
        self.flights.reported(name);
        // The first settling adds all that there are.
        if self.is_settled {
            self.due.insert(name.to_owned());
        }
    }

    /// Sets what was settled, and the names of Claims that are not written for now. `now`: the time in RFC 3339, UTC.
    pub(super) fn want(&mut self, claims: Vec<model::Claim>, held: BTreeSet<String>, now: &str) {
        self.held = held;
        self.awaited.touch_all();
        let mut old = std::mem::take(&mut self.wanted);
        self.of_object.clear();
        if !std::mem::replace(&mut self.is_settled, true) {
            self.due.extend(self.stored.iter().flat_map(BTreeMap::keys).cloned());
        }
        for claim in claims {
            let Some(origin) = ClaimOrigin::of(&claim) else { continue };
            let name = origin.object_name();
            if let Some(object) = claim.origin.object() {
                self.of_object.entry(object).or_default().push(name.clone());
            }
            let kept = old.remove(&name).filter(|(before, _)| *before == claim);
            if kept.is_none() {
                self.flights.changed(&name);
            }
            let wanted = kept.unwrap_or_else(|| {
                self.due.insert(name.clone());
                let spec = ClaimSpec::of(origin, &claim, now);
                (claim, spec)
            });
            self.wanted.insert(name, wanted);
        }
        for name in old.into_keys() {
            self.flights.changed(&name);
            self.due.insert(name);
        }
    }

    /// What is there.
    pub(super) fn stored(&self) -> impl Iterator<Item = (&String, &ClaimSpec)> {
        self.stored.iter().flatten().map(|(name, stored)| (name, &stored.spec))
    }

    /// Returns what was granted: by what this controller settled last, or else by what a former one has written. What is held has
    /// what was written.
    pub(super) fn possession(&self) -> Possession {
        let is_as_written = |name: &String| !self.is_settled || self.held.contains(name);
        let settled = self.wanted.iter().filter(|(name, _)| !is_as_written(name));
        let mut possession = possession(settled.map(|(_, (claim, _))| claim));
        for (_, stored) in self.stored.iter().flatten().filter(|(name, _)| is_as_written(name)) {
            let origin = &stored.spec.origin;
            let name = ObjectName::new(origin.namespace.as_str(), origin.name.as_str());
            let Some(kind) = origins::kind(&origin.kind) else { continue };
            stored.spec.granted().iter().for_each(|grant| grant.note(kind, &name, &mut possession));
            stored
                .spec
                .kept_addresses()
                .for_each(|address| note_address(kind, &name, address, &mut possession));
            if let Some(pool) = stored.spec.noted_pool() {
                possession.note_pool(ObjectRef { kind, name }, pool);
            }
        }
        possession
    }

    /// The newest version of all.
    pub(super) fn newest(&self) -> u64 {
        let served = self.stored.iter().flatten().filter(|(_, stored)| is_served(&stored.spec));
        let versions = served.filter_map(|(_, stored)| stored.version.parse().ok());
        versions.max().unwrap_or_default()
    }

    /// Whether they were listed.
    pub(super) fn is_listed(&self) -> bool {
        self.stored.is_some()
    }

    /// Returns the version up to which a node must hold all Claims, so that it holds those of an object as they were settled. `None`:
    /// not all of them are written yet.
    pub(super) fn version_of(&self, object: &ObjectRef) -> Option<u64> {
        let stored = self.stored.as_ref().filter(|_| self.mark.is_there())?;
        let names = self.of_object.get(object).map_or(&[][..], Vec::as_slice);
        let version = |name: &String| {
            let (stored, (_, wanted)) = (stored.get(name)?, self.wanted.get(name)?);
            let is_written = stored.spec.is_same(wanted) || self.is_as_it_can_be(name);
            let least = || Some(self.mark.least());
            is_written.then(|| if is_served(wanted) { stored.version.parse().ok() } else { least() })?
        };
        names.iter().try_fold(self.mark.least(), |newest: u64, name| Some(newest.max(version(name)?)))
    }

    /// This controller begins to lead, or ceases to: forgets what was wanted, and what failed. Another one may have written what our watch
    /// has not reported yet, so before it leads they are to be listed again: nothing is settled by what was there before.
    pub(super) fn clear(&mut self, leads: bool) {
        if leads {
            self.stored = None;
        }
        self.forget_wanted();
        self.due.clear();
        self.losses.clear();
        self.flights.forget();
        self.served = Served::default();
        self.mark.rest();
    }

    /// Whether the mark is missing.
    pub(super) fn is_unmarked(&self) -> bool {
        !self.mark.is_there()
    }

    /// Notes why a node may hold Claims, as nodes report; `None`: none does.
    pub(super) fn note_on_nodes(&mut self, why: Option<String>) {
        self.served.on_nodes = why;
    }

    /// Notes which object is programmed, as its status says; `None`: none is.
    pub(super) fn note_in_statuses(&mut self, object: Option<&ObjectRef>) {
        let why =
            |object| format!("a node may hold it, for the status of {object} says that nodes hold that");
        self.served.in_statuses = object.map(why);
    }

    /// Whether the mark does not wait for this one: it is refused for what it says, or fails again and again as if it hung, others are
    /// written, and no node loses what it serves. Where one may, as after all Claims were deleted, the mark would take from it what is
    /// refused. It waits for what is stored and cannot be changed or deleted: another Claim may have been granted the same.
    fn is_left_out(&self, name: &str) -> bool {
        let Served { on_nodes, in_statuses } = &self.served;
        on_nodes.is_none()
            && in_statuses.is_none()
            && self.flights.is_given_up(name)
            && !self.is_stored(name)
            && self.is_any_written()
    }

    /// Which status says that nodes hold something.
    #[cfg(test)]
    pub(super) fn in_statuses(&self) -> Option<&str> {
        self.served.in_statuses.as_deref()
    }

    fn is_stored(&self, name: &str) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.contains_key(name))
    }

    /// Whether any Claim says what it should.
    fn is_any_written(&self) -> bool {
        let is_written = |(name, stored): (&String, &Stored)| {
            self.wanted.get(name).is_some_and(|(_, wanted)| stored.spec.is_same(wanted))
        };
        self.stored.iter().flatten().any(is_written)
    }

    /// Whether the API server keeps only a part of this one, and agents need no more of it.
    fn is_as_it_can_be(&self, name: &str) -> bool {
        let stored = self.stored.as_ref().and_then(|stored| stored.get(name));
        let is_enough =
            |(stored, (_, wanted)): (&Stored, &(model::Claim, ClaimSpec))| stored.spec.is_served_like(wanted);
        self.flights.is_pruned(name) && stored.zip(self.wanted.get(name)).is_some_and(is_enough)
    }

    fn forget_wanted(&mut self) {
        self.is_settled = false;
        self.wanted.clear();
        self.of_object.clear();
        self.held.clear();
        self.awaited.touch_all();
    }

    /// Why Claims do not say all that they should; `None`: they do, as far as they are written.
    pub(super) fn pruned(&self) -> Option<&'static str> {
        self.flights.prunes().then_some(PRUNED)
    }

    /// Records how a write that [`Claims::next`] returned has ended.
    pub(super) fn ended(&mut self, name: &str, outcome: ClaimOutcome, now: Instant) {
        let is_wanted = self.wanted.contains_key(name);
        self.awaited.touch(name);
        let again = self.flights.ended(name, outcome, is_wanted, now);
        again.iter().for_each(|name| self.awaited.touch(name));
        self.due.extend(again);
    }

    /// Records that a write has failed, and why. Returns whether that is to be said otherwise than before.
    pub(super) fn failed(&mut self, name: &str, failure: &Failure, now: Instant) -> bool {
        self.ended(name, ClaimOutcome::Failed, now);
        self.flights.note_why(name, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::awaited::tests::LOOKED;
    use super::*;
    use crate::controller::claim_flights::{FAILURE_WAIT, FAILURE_WAIT_MAX, LANES};
    use crate::controller::claim_mark::QUIET;
    use crate::controller::standing::STAYS;
    use crate::model::claim::{
        AddressWish, AskedProtocol, ClaimBackends, Grant, Granted, OwnAddresses, Refusal, Why, Wishes,
    };
    use crate::model::{Claim, Kind, ObjectName, Origin, Pattern, Protocol, ServerName};
    use crate::sources::kubernetes::api::claim::ClaimAddress;
    use std::net::SocketAddr;
    use std::num::NonZeroU16;
    use std::time::Duration;

    fn claim(name: &str, port: u16) -> Claim {
        let at = SocketAddr::new([192, 0, 2, 1].into(), port);
        let grant = Grant::new(at, Protocol::Tcp, Granted::Rest);
        Claim {
            origin: Origin::Object { created_secs: 1, kind: Kind::Service, name: ObjectName::new("a", name) },
            part: "443".into(),
            tenant: Some("a".into()),
            port,
            protocol: Protocol::Tcp.into(),
            route: None,
            grants: vec![grant],
            asked: None,
            backends: ClaimBackends::None,
            source_ranges: None,
            affinity: model::Affinity::None,
            traffic: model::TrafficPolicy::Cluster,
            health_port: None,
        }
    }

    /// What asks for these addresses.
    fn addresses(own: OwnAddresses) -> Option<Box<Wishes>> {
        Some(Box::new(Wishes { address: AddressWish::Own(own), ..Wishes::default() }))
    }

    /// What asks for these and has them not.
    fn lacks(refusals: Vec<Refusal>) -> Option<Box<Wishes>> {
        Some(Box::new(Wishes { refusals, ..Wishes::default() }))
    }

    /// Claims beside an API server that takes every write, and reports it if `reports`.
    struct Scene {
        claims: Claims,
        server: BTreeMap<String, Stored>,
        version: u32,
        now: Instant,
        /// Takes out what its definition of Claims does not know.
        prunes: Option<fn(&mut ClaimSpec)>,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                claims: Claims::default(),
                server: BTreeMap::new(),
                version: 0,
                now: Instant::now(),
                prunes: None,
            }
        }

        fn list(&mut self) {
            self.claims.take(ClaimNews::Listed(self.server.clone(), 0));
        }

        /// Sends everything that may be sent. Returns what was done to how many.
        fn send(&mut self, reports: bool) -> [usize; 3] {
            let mut counts = [0; 3];
            while let Ok((name, write)) = self.claims.next(self.now) {
                self.version += 1;
                let kept = |mut spec: ClaimSpec| {
                    self.prunes.iter().for_each(|prune| prune(&mut spec));
                    spec
                };
                let stored = |spec| Stored {
                    spec: kept(spec),
                    version: self.version.to_string(),
                    uid: "u".to_owned(),
                    is_withdrawn: false,
                };
                let news = match write {
                    ClaimWrite::Create(spec) => {
                        counts[0] += usize::from(name != SETTLED);
                        assert!(!self.server.contains_key(&name));
                        ClaimNews::Put(name.clone(), Box::new(stored(spec)))
                    }
                    ClaimWrite::Replace(spec, version) => {
                        counts[1] += usize::from(name != SETTLED);
                        assert_eq!(self.server[&name].version, version);
                        ClaimNews::Put(name.clone(), Box::new(stored(spec)))
                    }
                    ClaimWrite::Delete { version, .. } => {
                        counts[2] += 1;
                        assert_eq!(self.server[&name].version, version);
                        ClaimNews::Gone(name.clone())
                    }
                };
                // What changes nothing is no new version, and is not reported.
                let is_new = match &news {
                    ClaimNews::Put(name, new) => self.server.get(name).is_none_or(|old| old.spec != new.spec),
                    _ => true,
                };
                match &news {
                    ClaimNews::Put(..) if !is_new => {}
                    ClaimNews::Put(name, stored) => {
                        drop(self.server.insert(name.clone(), stored.as_ref().clone()))
                    }
                    _ => drop(self.server.remove(&name)),
                }
                let outcome = match &news {
                    ClaimNews::Put(..) if self.prunes.is_some() && name != SETTLED => ClaimOutcome::Pruned,
                    _ => ClaimOutcome::Written,
                };
                self.claims.ended(&name, outcome, self.now);
                if reports && is_new {
                    self.claims.take(news);
                }
            }
            counts
        }
    }

    #[test]
    fn nothing_is_written_before_all_are_known_and_then_what_differs() {
        let mut scene = Scene::new();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.list();
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [2, 0, 0]);
        assert_eq!(scene.send(true), [0, 0, 0]);
        // The same again, later, is no change: what was granted keeps its time.
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.claims.want(vec![claim("x", 8443)], BTreeSet::new(), "t3");
        scene.claims.held = scene.server.keys().cloned().collect();
        assert_eq!(scene.send(true), [0, 0, 0], "they wait");
        scene.claims.held.clear();
        assert_eq!(scene.send(true), [0, 1, 1]);
        let since: Vec<&str> = scene
            .server
            .values()
            .flat_map(|one| &one.spec.grants)
            .map(|grant| grant.since.as_str())
            .collect();
        assert_eq!(since, ["t3"]);
    }

    /// The definition of Claims is of another release: to write again what is pruned again would be without end.
    #[test]
    fn what_the_api_server_prunes_is_tried_again_by_one_claim_until_that_is_kept() {
        let asks = |name: &str, port| Claim {
            asked: addresses(OwnAddresses {
                values: vec!["192.0.2.1".parse().unwrap()],
                ..OwnAddresses::default()
            }),
            ..claim(name, port)
        };
        let all = || vec![asks("x", 443), asks("y", 443), asks("z", 443)];
        let addresses: fn(&mut ClaimSpec) = |spec| spec.address = ClaimAddress::default();
        let mut scene = Scene { prunes: Some(addresses), ..Scene::new() };
        scene.list();
        scene.claims.want(all(), BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [3, 0, 0]);
        assert!(scene.claims.pruned().is_some());
        scene.now += QUIET;
        assert_eq!(scene.send(true), [0, 0, 0]);
        // Agents serve what they say, and so it is programmed.
        let object = ObjectRef { kind: Kind::Service, name: ObjectName::new("a", "x") };
        assert!(scene.claims.mark.is_there() && scene.claims.version_of(&object).is_some());
        for _ in 0..3 {
            scene.now += FAILURE_WAIT_MAX;
            assert_eq!(scene.send(true), [0, 1, 0], "one of them, and no other");
            assert_eq!(scene.send(true), [0, 0, 0]);
        }
        // What changes is written once. What is gone is deleted.
        scene.claims.want(vec![asks("x", 443), asks("y", 8443)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(true), [0, 1, 1]);
        assert_eq!(scene.send(true), [0, 0, 0]);
        // So is one that was deleted, whether the watch saw that or not.
        let last = scene.server.keys().next_back().unwrap().clone();
        scene.server.remove(&last);
        scene.list();
        assert_eq!(
            scene.send(true),
            [1, 1, 0],
            "and the first is tried again: the definition may be another one"
        );
        scene.server.remove(&last);
        scene.claims.take(ClaimNews::Gone(last));
        assert_eq!(scene.send(true), [1, 0, 0]);
        scene.prunes = None;
        scene.now += FAILURE_WAIT_MAX;
        assert_eq!(scene.send(true), [0, 2, 0], "the first is kept, so the other one is written, too");
        assert_eq!((scene.claims.pruned(), scene.send(true)), (None, [0, 0, 0]));
    }

    /// Another one is wanted while a write is in flight of which only a part is kept: it is written once the watch reports the first.
    #[test]
    fn what_changes_while_a_write_is_in_flight_does_not_wait_because_that_one_was_pruned() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        let Ok((name, ClaimWrite::Create(spec))) = scene.claims.next(scene.now) else { panic!("no write") };
        scene.claims.want(vec![claim("x", 444)], BTreeSet::new(), "t2");
        scene.version += 1;
        let version = scene.version.to_string();
        let stored = Stored { spec, version, uid: "u".to_owned(), is_withdrawn: false };
        scene.server.insert(name.clone(), stored.clone());
        scene.claims.ended(&name, ClaimOutcome::Pruned, scene.now);
        assert_eq!((scene.claims.pruned(), scene.send(true)), (None, [0, 0, 0]));
        scene.claims.take(ClaimNews::Put(name, Box::new(stored)));
        assert_eq!(scene.send(true), [0, 1, 0]);
    }

    /// The definition of Claims is of a release without such ports.
    #[test]
    fn claims_without_a_port_for_health_checks_hold_nothing_back() {
        let health_port: fn(&mut ClaimSpec) = |spec| spec.health_check_node_port = None;
        let mut scene = Scene { prunes: Some(health_port), ..Scene::new() };
        scene.list();
        let claim = Claim { health_port: NonZeroU16::new(30_001), ..claim("x", 443) };
        scene.claims.want(vec![claim], BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [1, 0, 0]);
        scene.now += QUIET;
        assert_eq!(scene.send(true), [0, 0, 0]);
        assert!(scene.claims.mark.is_there() && scene.claims.pruned().is_some());
    }

    /// Agents would serve something else than what was settled.
    #[test]
    fn claims_that_lack_what_agents_need_are_not_marked_as_written() {
        let routes: fn(&mut ClaimSpec) = |spec| spec.route = String::new();
        let mut scene = Scene { prunes: Some(routes), ..Scene::new() };
        scene.list();
        let claim = Claim { route: Some("r".into()), ..claim("x", 443) };
        scene.claims.want(vec![claim], BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [1, 0, 0]);
        scene.now += QUIET;
        assert_eq!(scene.send(true), [0, 0, 0]);
        let object = ObjectRef { kind: Kind::Service, name: ObjectName::new("a", "x") };
        assert!(!scene.claims.mark.is_there() && scene.claims.version_of(&object).is_none());
    }

    /// A kind that cannot be listed takes nothing from those who have it: others would get their names.
    #[test]
    fn what_is_held_possesses_what_was_written() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        let before = scene.claims.possession();
        assert_ne!(before, Possession::default());
        let held: BTreeSet<String> = scene.server.keys().cloned().collect();
        scene.claims.want(vec![], held, "t2");
        assert_eq!(scene.claims.possession(), before);
        scene.claims.want(vec![], BTreeSet::new(), "t3");
        assert_eq!(scene.claims.possession(), Possession::default());
    }

    /// A Service with UDP ports alone: its status has no address, and its Claims no grant.
    #[test]
    fn what_asks_for_a_protocol_that_is_not_served_has_its_address_after_a_restart() {
        let mut scene = Scene::new();
        scene.list();
        let refusal = |at: &str, why| Refusal::whole(at.parse().unwrap(), why);
        let kept = refusal("192.0.2.1:53", Why::Refused("only TCP is served".into()));
        let refusals = vec![Refusal { address: None, ..kept.clone() }, kept];
        let (protocol, part) = (AskedProtocol::Udp, "53/UDP".into());
        let udp = Claim { protocol, part, grants: Vec::new(), asked: lacks(refusals), ..claim("x", 53) };
        // What is refused to who asks for TCP is another's.
        let refusals = vec![refusal("192.0.2.9:443", Why::Reserved)];
        let tcp = Claim { grants: Vec::new(), asked: lacks(refusals), ..claim("y", 443) };
        scene.claims.want(vec![udp, tcp], BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [2, 0, 0]);
        let had = scene.claims.possession();
        let has = |address: &str| had.has_address("a", address.parse().unwrap());
        assert!(has("192.0.2.1") && !has("192.0.2.9"), "{had:?}");
        scene.claims = Claims::default();
        scene.list();
        assert_eq!(scene.claims.possession(), had);
    }

    /// An address that is named need not be of the pool, so it does not stay for the pool's sake.
    #[test]
    fn a_pool_is_noted_only_where_no_address_is_named() {
        for (values, pool) in [(vec![], Some("p")), (vec!["192.0.2.1".parse().unwrap()], None)] {
            let mut scene = Scene::new();
            scene.list();
            let own = OwnAddresses { values, pool: Some("p".into()), ..OwnAddresses::default() };
            let asks = Claim { asked: addresses(own), ..claim("x", 443) };
            scene.claims.want(vec![asks], BTreeSet::new(), "t1");
            scene.send(true);
            let object = ObjectRef { kind: Kind::Service, name: ObjectName::new("a", "x") };
            assert_eq!(scene.claims.possession().pool_of(&object), pool);
            scene.claims = Claims::default();
            scene.list();
            assert_eq!(scene.claims.possession().pool_of(&object), pool, "after a restart");
        }
    }

    /// A list that comes late: what was settled without it took no account of who has what.
    #[test]
    fn nothing_is_written_that_was_settled_before_claims_were_known() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        let had = scene.claims.possession();
        scene.claims = Claims::default();
        scene.claims.want(vec![claim("y", 443)], BTreeSet::new(), "t2");
        scene.list();
        assert_eq!(scene.claims.possession(), had);
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t3");
        assert_eq!(scene.send(true), [0, 0, 0]);
    }

    /// One route that waits for a kind that cannot be listed keeps no agent from starting.
    #[test]
    fn the_mark_does_not_wait_for_what_is_held() {
        let mut scene = Scene::new();
        scene.list();
        let held = ClaimOrigin::of(&claim("x", 443)).unwrap().object_name();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::from([held.clone()]), "t1");
        assert_eq!(scene.send(true), [1, 0, 0]);
        assert!(scene.claims.mark.is_there() && !scene.server.contains_key(&held));
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [1, 0, 0]);
    }

    /// One webhook that refuses one tenant's Claim kept all others from being served. Where a node may serve what the mark would take from
    /// it, the mark waits.
    #[test]
    fn the_mark_does_not_wait_for_what_is_refused_before_any_node_holds_a_claim() {
        let marked = |on_nodes: bool, in_statuses: bool, is_refusal, others: &[&str], tries: usize| {
            let mut scene = Scene::new();
            scene.list();
            let names = ["refused"].into_iter().chain(others.iter().copied());
            scene.claims.want(names.map(|name| claim(name, 443)).collect(), BTreeSet::new(), "t1");
            let gateway = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("a", "gw") };
            scene.claims.note_on_nodes(on_nodes.then(|| "n1 holds it".to_owned()));
            scene.claims.note_in_statuses(in_statuses.then_some(&gateway));
            let name = ClaimOrigin::of(&claim("refused", 443)).unwrap().object_name();
            let failure = Failure { why: "403".to_owned(), is_refusal };
            for _ in 0..tries {
                // It is the first in order.
                assert_eq!(scene.claims.next(scene.now).unwrap().0, name);
                scene.claims.failed(&name, &failure, scene.now);
                scene.send(true);
                scene.now += FAILURE_WAIT_MAX;
            }
            let is_marked = scene.claims.mark.is_there();
            assert_eq!(scene.send(true), [1, 0, 0], "it is tried again");
            assert!(scene.claims.mark.is_there());
            is_marked
        };
        assert!(marked(false, false, true, &["x", "y"], 2));
        assert!(!marked(false, false, true, &["x", "y"], 1), "it may be written a second later");
        assert!(!marked(true, false, true, &["x", "y"], 4), "a node may serve it");
        assert!(!marked(false, true, true, &["x", "y"], 4), "a node that started since may serve it");
        assert!(!marked(false, false, false, &["x", "y"], 4), "it hangs, as all may soon");
        assert!(marked(false, false, false, &["x", "y"], 5), "it hung for long enough, and others do not");
        assert!(!marked(true, false, false, &["x", "y"], 9), "a node may serve it");
        assert!(!marked(false, false, true, &[], 4), "all are refused");
        assert!(!marked(false, false, false, &[], 9), "all hang");
    }

    /// What waited for minutes or for ever looked like what takes a moment.
    #[test]
    fn why_the_mark_waits_is_said_with_the_first_claims_and_since_when() {
        let mut scene = Scene::new();
        assert_eq!(scene.claims.waits(scene.now), None, "nothing is known");
        scene.list();
        let all = ["a", "b", "c", "d", "e", "x"].map(|name| claim(name, 443)).to_vec();
        scene.claims.want(all.clone(), BTreeSet::new(), "t1");
        let begun = scene.now;
        let why = |scene: &mut Scene| {
            let Waits { since, why, .. } = scene.claims.waits(scene.now).unwrap();
            (since.duration_since(begun).as_secs(), why)
        };
        assert_eq!(why(&mut scene), (0, "6 Claims are not written yet".to_owned()));
        scene.claims.note_on_nodes(Some("node n1 serves a saved state, and maybe it".to_owned()));
        scene.claims.note_in_statuses(None);
        let failure = Failure { why: "no quota".to_owned(), is_refusal: true };
        for _ in 0..5 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            scene.claims.failed(&name, &failure, scene.now);
        }
        scene.send(true);
        scene.now += FAILURE_WAIT;
        let (since, said) = why(&mut scene);
        let first = ClaimOrigin::of(&all[0]).unwrap().object_name();
        assert_eq!(since, 0, "it waits since then");
        assert!(
            said.starts_with(&format!("Claim {first} of Service a/a cannot be written: no quota; ")),
            "{said}"
        );
        assert!(said.ends_with("; and 2 more Claims"), "{said}");
        assert_eq!(said.matches("cannot be written").count(), 3, "{said}");
        // Refused twice, it would be left out, if no node served it.
        for _ in 0..5 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            scene.claims.failed(&name, &failure, scene.now);
        }
        let (_, said) = why(&mut scene);
        assert!(
            said.contains("no quota, and it is waited for: node n1 serves a saved state, and maybe it;"),
            "{said}"
        );
        scene.claims.note_on_nodes(None);
        let mark = scene.claims.next(scene.now).unwrap();
        assert_eq!(mark.0, SETTLED);
        scene.claims.failed(SETTLED, &failure, scene.now);
        let (_, said) = why(&mut scene);
        assert!(
            said.starts_with(&format!("Claim {SETTLED}, the last one, cannot be written: no quota")),
            "{said}"
        );
        scene.now += FAILURE_WAIT_MAX;
        scene.send(true);
        assert_eq!(scene.claims.waits(scene.now), None, "it is there");
        // Others delete Claims.
        scene.claims.take(ClaimNews::Gone(SETTLED.to_owned()));
        scene.send(true);
        assert_eq!(why(&mut scene).1, "another client has just deleted Claims, and may go on");
    }

    /// Each other text would be another Event.
    #[test]
    fn an_event_says_after_a_minute_what_the_mark_waits_for_and_says_it_once() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        let begun = scene.now;
        let event = |scene: &mut Scene, seconds| {
            scene.now = begun + Duration::from_secs(seconds);
            scene.claims.waits(scene.now).unwrap().event
        };
        assert_eq!((event(&mut scene, 0), event(&mut scene, 59)), (None, None));
        let said = Some("1 Claim is not written yet".to_owned());
        assert_eq!(event(&mut scene, 60), said);
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t2");
        assert_eq!(event(&mut scene, 70), said);
        // Another controller may have written it meanwhile.
        scene.claims.clear(true);
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t3");
        assert_eq!((event(&mut scene, 80), event(&mut scene, 140)), (None, said));
    }

    /// One that cannot be changed holds it for as long.
    #[test]
    fn a_claim_that_is_stored_and_cannot_be_changed_is_named_while_the_mark_waits_for_it() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        scene.claims.take(ClaimNews::Gone(SETTLED.to_owned()));
        scene.claims.want(vec![claim("y", 443)], BTreeSet::new(), "t2");
        scene.claims.note_on_nodes(None);
        scene.claims.note_in_statuses(None);
        let failure = Failure { why: "no answer".to_owned(), is_refusal: false };
        for _ in 0..6 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            scene.claims.failed(&name, &failure, scene.now);
            scene.now += FAILURE_WAIT_MAX;
        }
        let Waits { why, .. } = scene.claims.waits(scene.now).unwrap();
        let name = ClaimOrigin::of(&claim("x", 443)).unwrap().object_name();
        let what = "which nobody asks for any more, cannot be deleted: no answer, and it is waited for: nodes would serve what it says";
        assert!(why.starts_with(&format!("Claim {name}, {what}")), "{why}");
    }

    /// Nodes would serve it beside who was granted the same meanwhile.
    #[test]
    fn the_mark_waits_for_a_refused_claim_that_is_stored_and_for_one_that_has_changed() {
        let refuse = |scene: &mut Scene, name: &str| {
            let failure = Failure { why: "403".to_owned(), is_refusal: true };
            for _ in 0..3 {
                assert_eq!(scene.claims.next(scene.now).unwrap().0, name);
                scene.claims.failed(name, &failure, scene.now);
                scene.now += FAILURE_WAIT_MAX;
            }
        };
        let name = |origin: &str| ClaimOrigin::of(&claim(origin, 443)).unwrap().object_name();
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("gone", 443), claim("kept", 444)], BTreeSet::new(), "t1");
        scene.send(true);
        scene.server.remove(SETTLED);
        scene.claims.clear(true);
        scene.list();
        scene.claims.want(vec![claim("kept", 444)], BTreeSet::new(), "t2");
        scene.claims.note_on_nodes(None);
        scene.claims.note_in_statuses(None);
        scene.now += QUIET;
        refuse(&mut scene, &name("gone"));
        assert!(!scene.claims.is_left_out(&name("gone")), "it cannot be deleted");
        // Deleted by others, and asked for again.
        scene.server.remove(&name("gone"));
        scene.list();
        scene.claims.want(vec![claim("gone", 443), claim("kept", 444)], BTreeSet::new(), "t3");
        refuse(&mut scene, &name("gone"));
        assert!(scene.claims.is_left_out(&name("gone")));
        scene.claims.want(vec![claim("gone", 445), claim("kept", 444)], BTreeSet::new(), "t4");
        assert!(!scene.claims.is_left_out(&name("gone")), "nobody has refused this");
        // Nothing is written as it is wanted.
        refuse(&mut scene, &name("gone"));
        scene.claims.want(vec![claim("gone", 445)], BTreeSet::new(), "t5");
        assert!(!scene.claims.is_left_out(&name("gone")), "what else is stored goes");
    }

    /// The list came before this controller led: what a former one wrote since was written over, and what it wrote, and nobody asks for any
    /// more, was kept.
    #[test]
    fn a_new_leader_writes_nothing_before_it_has_listed_and_settled_and_then_what_differs() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        let before = scene.claims.possession();
        scene.claims.clear(true);
        assert_eq!(scene.claims.possession(), Possession::default(), "others may have it by now");
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(true), [0, 0, 0]);
        scene.list();
        assert_eq!((scene.send(true), scene.claims.possession()), ([0, 0, 0], before));
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(true), [0, 0, 1]);
    }

    /// They go on while the other one takes over: the mark would be written again at once.
    #[test]
    fn a_new_leader_whose_list_lacks_the_mark_that_it_has_seen_waits_with_it() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        scene.server.remove(SETTLED);
        scene.claims.clear(true);
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t2");
        scene.send(true);
        assert!(!scene.server.contains_key(SETTLED));
        scene.now += QUIET;
        scene.send(true);
        assert!(scene.server.contains_key(SETTLED));
    }

    /// Agents take a list for whole that has the mark.
    #[test]
    fn the_mark_is_written_when_all_others_are_and_again_when_it_goes() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        let (first, _) = scene.claims.next(scene.now).unwrap();
        scene.claims.ended(&first, ClaimOutcome::Failed, scene.now);
        scene.send(true);
        assert_eq!(scene.server.len(), 1, "one failed: {:?}", scene.server.keys());
        assert!(!scene.claims.mark.is_there());
        scene.now += FAILURE_WAIT;
        scene.send(true);
        assert!(scene.claims.mark.is_there() && scene.server.contains_key(SETTLED));
        scene.server.remove(SETTLED);
        scene.claims.take(ClaimNews::Gone(SETTLED.to_owned()));
        assert!(!scene.claims.mark.is_there());
        scene.send(true);
        scene.now += QUIET;
        scene.send(true);
        assert!(scene.claims.mark.is_there() && scene.server.contains_key(SETTLED));
        // A change later does not take it away.
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(true), [0, 0, 1]);
        assert!(scene.claims.mark.is_there() && scene.server.contains_key(SETTLED));
    }

    /// Where the mark came back between two deletions, agents believed the second one.
    #[test]
    fn the_mark_waits_until_nobody_deletes_claims_any_more() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        let names: Vec<String> = scene.server.keys().cloned().collect();
        assert_eq!(names[0], SETTLED);
        for name in &names {
            scene.server.remove(name);
            scene.claims.take(ClaimNews::Gone(name.clone()));
            scene.send(true);
            assert!(!scene.claims.mark.is_there(), "{name}");
            scene.now += QUIET / 2;
        }
        assert_eq!(scene.server.len(), 2, "the others are written again at once");
        assert_eq!(scene.claims.next(scene.now), Err(Some(scene.now + QUIET / 2)));
        scene.now += QUIET / 2;
        scene.send(true);
        assert!(scene.claims.mark.is_there());
        // What nobody asks for any more goes by our own hand, and delays nothing.
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(true), [0, 0, 1]);
        assert!(scene.claims.mark.quiet_until(scene.now).is_none());
        // A list without it, later, is as if it had been deleted; the first one is not.
        scene.server.remove(SETTLED);
        scene.list();
        scene.send(true);
        assert!(!scene.claims.mark.is_there());
    }

    /// Otherwise agents would go on to refuse new connections after the release was installed again.
    #[test]
    fn that_vestibule_is_withdrawn_is_taken_back_once_all_are_written() {
        let mut scene = Scene::new();
        let is_withdrawn = true;
        let mark = Stored { version: "7".to_owned(), is_withdrawn, ..Stored::default() };
        scene.version = 7;
        scene.server.insert(SETTLED.to_owned(), mark.clone());
        scene.list();
        assert!(!scene.claims.mark.is_there());
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        let object = ObjectRef { kind: Kind::Service, name: ObjectName::new("a", "x") };
        let (name, _) = scene.claims.next(scene.now).unwrap();
        assert_ne!(name, SETTLED, "the others come first");
        scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
        scene.now += FAILURE_WAIT;
        assert_eq!(scene.send(true), [1, 0, 0]);
        assert!(!scene.server[SETTLED].is_withdrawn);
        let taken_back = scene.server[SETTLED].version.parse().unwrap();
        assert_eq!(scene.claims.version_of(&object), Some(taken_back), "nodes must have seen that");
        // It is withdrawn again, by a client that took the Lease.
        scene.claims.take(ClaimNews::Put(SETTLED.to_owned(), Box::new(mark)));
        assert_eq!(scene.claims.version_of(&object), None);
    }

    #[test]
    fn an_objects_version_is_known_when_all_its_claims_are_written() {
        let mut scene = Scene::new();
        scene.list();
        let object = |name: &str| ObjectRef { kind: Kind::Service, name: ObjectName::new("a", name) };
        let claims = vec![claim("x", 443), Claim { part: "80".into(), ..claim("x", 80) }, claim("y", 443)];
        scene.claims.want(claims.clone(), BTreeSet::new(), "t1");
        assert_eq!(scene.claims.version_of(&object("x")), None);
        scene.send(true);
        let newest = scene.claims.version_of(&object("x")).unwrap();
        assert!(newest > 1 && scene.claims.version_of(&object("y")).is_some());
        assert_eq!(scene.claims.version_of(&object("nobody")), Some(0));
        scene.claims.want(
            claims.into_iter().map(|one| Claim { port: one.port + 1, ..one }).collect(),
            BTreeSet::new(),
            "t2",
        );
        assert_eq!(scene.claims.version_of(&object("x")), None);
        scene.send(true);
        assert!(scene.claims.version_of(&object("x")) > Some(newest));
    }

    /// Agents of the release before cannot read such a Claim, and report no version of it.
    #[test]
    fn no_node_has_to_hold_a_claim_to_a_protocol_that_is_not_served() {
        let mut scene = Scene::new();
        scene.list();
        let object = ObjectRef { kind: Kind::Service, name: ObjectName::new("a", "x") };
        let unserved = Claim {
            part: "53/UDP".into(),
            protocol: AskedProtocol::Udp,
            grants: Vec::new(),
            ..claim("x", 53)
        };
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        let before = (scene.claims.version_of(&object), scene.claims.newest());
        scene.claims.want(vec![claim("x", 443), unserved], BTreeSet::new(), "t1");
        assert_eq!(scene.claims.version_of(&object), None, "it is to be written all the same");
        assert_eq!(scene.send(true), [1, 0, 0]);
        assert_eq!((scene.claims.version_of(&object), scene.claims.newest()), before);
    }

    /// What changes hands is given before it is taken: at no time it is nobody's.
    #[test]
    fn grants_are_written_before_losses() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("a", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        scene.claims.want(vec![claim("z", 443)], BTreeSet::new(), "t2");
        let (name, write) = scene.claims.next(scene.now).unwrap();
        let ClaimWrite::Create(spec) = write else { panic!("{write:?}") };
        // Requests beside each other end in any order.
        assert_eq!(scene.claims.next(scene.now), Err(None), "it is in flight");
        scene.claims.ended(&name, ClaimOutcome::Written, scene.now);
        assert!(scene.claims.next(scene.now).is_err(), "it was not reported");
        let stored = Stored { spec, version: "9".to_owned(), uid: "u".to_owned(), is_withdrawn: false };
        scene.claims.take(ClaimNews::Put(name, Box::new(stored)));
        let (_, write) = scene.claims.next(scene.now).unwrap();
        assert!(matches!(write, ClaimWrite::Delete { .. }), "{write:?}");
    }

    /// What is refused again and again keeps nothing from others.
    #[test]
    fn a_grant_that_fails_twice_delays_no_loss() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("a", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        scene.claims.want(vec![claim("z", 443)], BTreeSet::new(), "t2");
        for wait in [FAILURE_WAIT, 2 * FAILURE_WAIT] {
            let (name, write) = scene.claims.next(scene.now).unwrap();
            assert!(matches!(write, ClaimWrite::Create(_)), "{write:?}");
            scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
            let next = scene.claims.next(scene.now);
            if wait == FAILURE_WAIT {
                assert_eq!(next, Err(Some(scene.now + wait)));
                scene.now += wait;
            } else {
                assert!(matches!(next, Ok((_, ClaimWrite::Delete { .. }))), "{next:?}");
            }
        }
    }

    /// One hanging write of a grant kept what everybody else loses, whatever that was.
    #[test]
    fn what_is_lost_waits_only_for_the_grants_of_the_same() {
        let mut scene = Scene::new();
        scene.list();
        let names = |name: &str, pattern: &str| {
            let what = Granted::Names(Pattern::Exact(ServerName::new(pattern).unwrap()));
            let at = "192.0.2.1:443".parse().unwrap();
            Claim { grants: vec![Grant::new(at, Protocol::Tls, what)], ..claim(name, 443) }
        };
        let object = |claim: &Claim| ClaimOrigin::of(claim).unwrap().object_name();
        let (a, b, c) = (names("a", "x.org"), names("b", "y.org"), names("c", "z.org"));
        scene.claims.want(vec![a.clone(), b.clone(), c.clone()], BTreeSet::new(), "t1");
        scene.send(true);
        // One gets what the first has, and hangs. Of the third only a grant is taken.
        let (won, less) = (names("new", "x.org"), Claim { grants: Vec::new(), ..c });
        scene.claims.want(vec![won.clone(), less.clone()], BTreeSet::new(), "t2");
        let mut sent = BTreeMap::new();
        while let Ok((name, write)) = scene.claims.next(scene.now) {
            sent.insert(name, write);
        }
        let expected = BTreeSet::from([object(&won), object(&b), object(&less)]);
        assert_eq!(sent.keys().cloned().collect::<BTreeSet<_>>(), expected, "and not what loses x.org");
        // The write of what is lost to nobody fails: it is tried again while the grant hangs.
        scene.claims.ended(&object(&b), ClaimOutcome::Failed, scene.now);
        scene.now += FAILURE_WAIT;
        let Ok((again, ClaimWrite::Delete { .. })) = scene.claims.next(scene.now) else { panic!("no write") };
        assert_eq!(again, object(&b));
        // The grant fails: it is tried again before the first loses.
        scene.claims.ended(&object(&won), ClaimOutcome::Failed, scene.now);
        scene.now += FAILURE_WAIT;
        let next = scene.claims.next(scene.now);
        let Ok((name, ClaimWrite::Create(spec))) = next else { panic!("{next:?}") };
        assert_eq!(name, object(&won));
        assert!(scene.claims.next(scene.now).is_err(), "the first waits for it");
        scene.claims.ended(&name, ClaimOutcome::Written, scene.now);
        let stored = Stored { spec, version: "9".to_owned(), uid: "u".to_owned(), is_withdrawn: false };
        scene.claims.take(ClaimNews::Put(name, Box::new(stored)));
        let Ok((last, ClaimWrite::Delete { .. })) = scene.claims.next(scene.now) else { panic!("no write") };
        assert_eq!(last, object(&a));
        // Before that has succeeded, a third one is to get the name: both wait, whether or not they failed.
        scene.claims.ended(&last, ClaimOutcome::Failed, scene.now);
        scene.now += FAILURE_WAIT;
        let newer = names("newer", "x.org");
        scene.claims.want(vec![newer.clone(), less], BTreeSet::new(), "t3");
        let (name, _) = scene.claims.next(scene.now).unwrap();
        assert_eq!(name, object(&newer));
        assert_eq!(scene.claims.next(scene.now), Err(None));
    }

    /// Those that a webhook refuses come back all the time, and each was tried again before anything was lost.
    #[test]
    fn what_is_lost_comes_before_what_failed() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("a", 80)], BTreeSet::new(), "t1");
        scene.send(true);
        scene.claims.want([vec![claim("a", 80)], services("z", 0..4)].concat(), BTreeSet::new(), "t2");
        for _ in 0..2 {
            while let Ok((name, _)) = scene.claims.next(scene.now) {
                scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
            }
            scene.now += FAILURE_WAIT_MAX;
        }
        scene.claims.want(services("z", 0..4), BTreeSet::new(), "t3");
        let next = scene.claims.next(scene.now);
        assert!(matches!(next, Ok((_, ClaimWrite::Delete { .. }))), "{next:?}");
    }

    #[test]
    fn what_others_do_to_them_is_undone() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        let names: Vec<String> = scene.server.keys().filter(|name| *name != SETTLED).cloned().collect();
        let mut edited = scene.server[&names[0]].clone();
        edited.spec.tenant = "another".to_owned();
        edited.version = "99".to_owned();
        scene.server.insert(names[0].clone(), edited.clone());
        scene.server.remove(&names[1]);
        scene.claims.take(ClaimNews::Put(names[0].clone(), Box::new(edited)));
        scene.claims.take(ClaimNews::Gone(names[1].clone()));
        let edited =
            |at: usize, is_deleted| Edited { name: names[at].clone(), uid: "u".to_owned(), is_deleted };
        assert_eq!(scene.claims.edited(), [edited(0, false), edited(1, true)]);
        assert_eq!(scene.send(true), [1, 1, 0]);
        // What is written because something else is asked is nobody's edit.
        scene.claims.want(vec![claim("x", 444)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(true), [0, 1, 1]);
        assert_eq!(scene.claims.edited(), []);
    }

    #[test]
    fn a_claim_is_written_again_when_it_was_reported_or_after_a_while() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        assert_eq!(scene.send(false), [1, 0, 0]);
        scene.claims.want(vec![claim("x", 444)], BTreeSet::new(), "t2");
        assert_eq!(scene.send(false), [0, 0, 0]);
        scene.list();
        assert_eq!(scene.send(true), [0, 1, 0]);
    }

    /// Otherwise a route that is created and gets its address in the same moment would wait for seconds.
    #[test]
    fn a_claim_that_was_reported_before_its_write_was_answered_is_written_again_at_once() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        let (name, write) = scene.claims.next(scene.now).unwrap();
        let ClaimWrite::Create(spec) = write else { panic!("{write:?}") };
        let stored = Stored { spec, version: "5".to_owned(), ..Stored::default() };
        scene.claims.take(ClaimNews::Put(name.clone(), Box::new(stored)));
        scene.claims.want(vec![claim("x", 444)], BTreeSet::new(), "t2");
        assert_eq!(scene.claims.next(scene.now), Err(None), "it is in flight");
        scene.claims.ended(&name, ClaimOutcome::Written, scene.now);
        let (again, write) = scene.claims.next(scene.now).unwrap();
        assert_eq!(again, name);
        assert!(matches!(write, ClaimWrite::Replace(_, ref version) if version == "5"), "{write:?}");
    }

    #[test]
    fn one_that_fails_waits_longer_each_time_and_keeps_nobody() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        let mut waits = Vec::new();
        for _ in 0..3 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
            let at = scene.claims.next(scene.now).unwrap_err().unwrap();
            waits.push((at - scene.now).as_secs());
            scene.now = at;
        }
        assert_eq!(waits, [1, 2, 4]);
        let (name, _) = scene.claims.next(scene.now).unwrap();
        scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
        scene.claims.want(vec![claim("x", 443), claim("y", 443)], BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [1, 0, 0]);
    }

    #[test]
    fn some_are_in_flight_beside_each_other_and_none_twice() {
        let mut claims = Claims::default();
        claims.take(ClaimNews::Listed(BTreeMap::new(), 0));
        let all: Vec<Claim> = (0..40).map(|n| claim(&format!("s{n}"), 443)).collect();
        claims.want(all, BTreeSet::new(), "t1");
        let now = Instant::now();
        let mut sent: Vec<String> = Vec::new();
        while let Ok((name, _)) = claims.next(now) {
            sent.push(name);
        }
        assert_eq!(sent.len(), LANES.own);
        claims.ended(&sent[0], ClaimOutcome::Written, now);
        let (next, _) = claims.next(now).unwrap();
        assert!(!sent.contains(&next));
    }

    /// Services of these names, which follow each other in the order of names of Claims.
    fn services(prefix: &str, numbers: std::ops::Range<usize>) -> Vec<Claim> {
        numbers.map(|number| claim(&format!("{prefix}{number:03}"), 443)).collect()
    }

    /// All that was to be given was compared with each loss, and gathered for each.
    #[test]
    fn what_is_lost_beside_many_grants_that_fail_is_looked_for_once_each() {
        const OF_EACH: usize = 400;
        let mut scene = Scene::new();
        scene.list();
        let named = |prefix: &str| -> Vec<Claim> {
            let named = |mut claim: Claim| {
                let name = format!("{}.example", claim.origin.object().unwrap().name.name);
                claim.protocol = Protocol::Tls.into();
                claim.grants[0].protocol = Protocol::Tls;
                claim.grants[0].what = Granted::Names(Pattern::Exact(ServerName::new(&name).unwrap()));
                claim
            };
            services(prefix, 0..OF_EACH).into_iter().map(named).collect()
        };
        scene.claims.want(named("lost"), BTreeSet::new(), "t1");
        assert_eq!(scene.send(true), [OF_EACH, 0, 0]);
        scene.claims.want(named("won"), BTreeSet::new(), "t2");
        for _ in 0..OF_EACH {
            let (name, write) = scene.claims.next(scene.now).unwrap();
            assert!(matches!(write, ClaimWrite::Create(_)), "grants come first: {name}");
            scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
        }
        LOOKED.set(0);
        assert_eq!(scene.send(true), [0, 0, OF_EACH]);
        assert!(LOOKED.get() <= 6 * OF_EACH, "{}", LOOKED.get());
    }

    /// A webhook that holds writes of some names until the time limit: those that came first had all lanes, all the time.
    #[test]
    fn names_whose_writes_hang_delay_no_other() {
        const LASTS: Duration = Duration::from_millis(5);
        const HANGS: Duration = Duration::from_secs(4);
        let mut scene = Scene::new();
        scene.list();
        let begun = scene.now;
        let mut all = [services("a", 0..200), services("b", 0..200)].concat();
        scene.claims.want(all.clone(), BTreeSet::new(), "t1");
        let mut ends: BTreeMap<(Instant, String), ClaimWrite> = BTreeMap::new();
        let (mut written, mut tries, mut late) = (BTreeMap::new(), BTreeMap::new(), None);
        while scene.now < begun + Duration::from_secs(90) {
            while let Ok((name, write)) = scene.claims.next(scene.now) {
                let hangs = name.starts_with("service-a-a");
                *tries.entry(name.clone()).or_insert(0) += 1;
                ends.insert((scene.now + if hangs { HANGS } else { LASTS }, name), write);
            }
            assert!(ends.len() <= LANES.all, "{}", ends.len());
            scene.now += LASTS;
            while let Some(first) = ends.first_entry().filter(|first| first.key().0 <= scene.now) {
                let ((_, name), write) = first.remove_entry();
                if name.starts_with("service-a-a") {
                    scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
                    continue;
                }
                let ClaimWrite::Create(spec) = write else { panic!("{write:?}") };
                let stored = Stored { spec, version: "1".to_owned(), ..Stored::default() };
                scene.claims.ended(&name, ClaimOutcome::Written, scene.now);
                scene.claims.take(ClaimNews::Put(name.clone(), Box::new(stored)));
                written.insert(name, scene.now - begun);
            }
            if late.is_none() && scene.now >= begun + Duration::from_secs(30) {
                // After all that hang, in the order of names too.
                all.extend(services("z", 0..1));
                scene.claims.want(all.clone(), BTreeSet::new(), "t1");
                late = Some(scene.now - begun);
            }
        }
        let of = |prefix| written.iter().filter(move |(name, _)| name.starts_with(prefix));
        let last = of("service-a-b").map(|(_, at)| *at).max().unwrap();
        assert_eq!(of("service-a-b").count(), 200);
        // As long as none ends soon, the API server may be slow as a whole: no more than 32 are tried at once.
        assert!(last <= Duration::from_secs(26), "{last:?}");
        let (_, new) = of("service-a-z").next().expect("it is written");
        assert!(*new <= late.unwrap() + 2 * LASTS, "{new:?}");
        let again = tries.iter().filter(|(name, count)| name.starts_with("service-a-a") && **count > 1);
        assert!(again.clone().count() > 150, "each is tried again: {}", again.count());
    }

    /// What is granted is written before what is lost, but one that hangs each time it is tried kept everything from everybody.
    #[test]
    fn a_grant_that_hangs_again_and_again_delays_no_loss() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("a", 443), claim("b", 443)], BTreeSet::new(), "t1");
        scene.send(true);
        scene.claims.want(vec![claim("a", 443), claim("b", 443), claim("z", 443)], BTreeSet::new(), "t2");
        for _ in 0..3 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
            scene.now += FAILURE_WAIT_MAX;
        }
        let (name, write) = scene.claims.next(scene.now).unwrap();
        assert!(matches!(write, ClaimWrite::Create(_)), "{write:?}");
        scene.claims.want(vec![claim("a", 443), claim("z", 443)], BTreeSet::new(), "t3");
        let next = scene.claims.next(scene.now);
        assert!(matches!(&next, Ok((other, ClaimWrite::Delete { .. })) if *other != name), "{next:?}");
    }

    /// A status that names it would be written again for each try where the reason has a time or a number in it.
    #[test]
    fn why_a_claim_cannot_be_written_is_said_the_less_often_the_longer_that_lasts() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![claim("x", 443)], BTreeSet::new(), "t1");
        let object = ObjectRef { kind: Kind::Service, name: ObjectName::new("a", "x") };
        assert_eq!(scene.claims.refusal(&object), None);
        let mut said = Vec::new();
        for number in 1..=9 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            let is_news = scene.claims.failed(&name, &format!("no {number}\nbecause").into(), scene.now);
            let refused = scene.claims.refusal(&object).unwrap();
            assert_eq!(*refused.claim, *name);
            said.push((refused.why.to_string(), is_news));
            scene.now += FAILURE_WAIT_MAX;
        }
        let expected = [
            (1, true),
            (2, true),
            (2, false),
            (4, true),
            (4, false),
            (4, false),
            (4, false),
            (8, true),
            (8, false),
        ];
        assert_eq!(said, expected.map(|(number, is_news)| (format!("no {number} because"), is_news)));
        // The same is no news.
        for _ in 10..=16 {
            let (name, _) = scene.claims.next(scene.now).unwrap();
            assert!(!scene.claims.failed(&name, &"no 8 because".to_owned().into(), scene.now));
            scene.now += FAILURE_WAIT_MAX;
        }
        let (name, _) = scene.claims.next(scene.now).unwrap();
        scene.claims.failed(&name, &"x".repeat(9999).into(), scene.now);
        scene.now += FAILURE_WAIT_MAX;
        scene.send(false);
        assert_eq!(scene.claims.refusal(&object), None, "it is written");
    }

    /// It said that its Claims were being written, as long as none of them had been tried.
    #[test]
    fn what_was_never_tried_cannot_be_written_either_while_others_fail() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![], BTreeSet::new(), "t1");
        scene.send(true);
        assert!(scene.claims.mark.is_there());
        let all = services("s", 0..40);
        let object = |claim: &Claim| claim.origin.object().unwrap();
        let last = ClaimOrigin::of(&all[39]).unwrap().object_name();
        let fail = |scene: &Scene| {
            let (claims, failing) = (&scene.claims, scene.claims.failing(scene.now));
            all.iter().filter(|claim| claims.fail(&object(claim), failing)).count()
        };
        scene.claims.want(all.clone(), BTreeSet::from([last]), "t2");
        let sent: Vec<_> = std::iter::from_fn(|| scene.claims.next(scene.now).ok()).collect();
        assert_eq!((sent.len(), fail(&scene)), (LANES.own, 0), "they are being written");
        scene.claims.ended(&sent[0].0, ClaimOutcome::Failed, scene.now);
        assert_eq!(fail(&scene), 39, "all but the one that waits for a kind");
        scene.now += FAILURE_WAIT;
        sent[1..].iter().for_each(|(name, _)| scene.claims.ended(name, ClaimOutcome::Failed, scene.now));
        scene.now += FAILURE_WAIT;
        scene.send(true);
        assert_eq!(fail(&scene), 0);
    }

    /// A webhook that refuses those of one tenant made each new Claim of all others one that cannot be written.
    #[test]
    fn what_was_never_tried_can_be_written_while_others_are() {
        let mut scene = Scene::new();
        scene.list();
        scene.claims.want(vec![], BTreeSet::new(), "t1");
        scene.send(true);
        let object = |claim: &Claim| claim.origin.object().unwrap();
        let (refused, new) = (services("x", 0..1), services("y", 0..200));
        let fail = |scene: &Scene, of: &[Claim]| {
            let (claims, failing) = (&scene.claims, scene.claims.failing(scene.now));
            of.iter().filter(|claim| claims.fail(&object(claim), failing)).count()
        };
        scene.claims.want([refused.clone(), new.clone()].concat(), BTreeSet::new(), "t2");
        let mut written = 0;
        while written < 100 {
            let (name, write) = scene.claims.next(scene.now).unwrap();
            let ClaimWrite::Create(spec) = write else { panic!("{write:?}") };
            scene.now += Duration::from_millis(5);
            if name.starts_with("service-a-x") {
                scene.claims.ended(&name, ClaimOutcome::Failed, scene.now);
                continue;
            }
            scene.claims.ended(&name, ClaimOutcome::Written, scene.now);
            let stored = Stored { spec, version: "1".to_owned(), ..Stored::default() };
            scene.claims.take(ClaimNews::Put(name, Box::new(stored)));
            written += 1;
        }
        assert_eq!((fail(&scene, &refused), fail(&scene, &new)), (1, 0));
        assert_eq!(scene.claims.failing(scene.now), Failures::Some { until: scene.now + STAYS });
        scene.now += STAYS;
        assert_eq!((fail(&scene, &refused), fail(&scene, &new)), (1, 100), "none was written lately");
    }

    /// Those of the first names had all lanes.
    #[test]
    fn names_that_change_all_the_time_leave_others_their_turn() {
        let mut scene = Scene::new();
        scene.list();
        let mut sent = BTreeSet::new();
        for port in 1..=4 {
            let all = services("s", 0..40).into_iter().map(|one| Claim { port, ..one }).collect();
            scene.claims.want(all, BTreeSet::new(), "t1");
            let some: Vec<_> = std::iter::from_fn(|| scene.claims.next(scene.now).ok()).collect();
            assert_eq!(some.len(), LANES.own);
            for (name, write) in some {
                let (ClaimWrite::Create(spec) | ClaimWrite::Replace(spec, _)) = write else {
                    panic!("{write:?}")
                };
                let stored = Stored { spec, version: port.to_string(), ..Stored::default() };
                scene.claims.ended(&name, ClaimOutcome::Written, scene.now);
                scene.claims.take(ClaimNews::Put(name.clone(), Box::new(stored)));
                sent.insert(name);
            }
        }
        assert_eq!(sent.len(), 40);
    }

    /// Those that a webhook refuses, at once, come back while others wait for their first try.
    #[test]
    fn what_was_never_tried_comes_before_what_failed() {
        let mut scene = Scene::new();
        scene.list();
        let mut all = services("s", 0..40);
        scene.claims.want(all.clone(), BTreeSet::new(), "t1");
        for _ in 0..2 {
            let some: Vec<_> = std::iter::from_fn(|| scene.claims.next(scene.now).ok()).collect();
            assert_eq!(some.len(), LANES.own);
            some.iter().for_each(|(name, _)| scene.claims.ended(name, ClaimOutcome::Failed, scene.now));
        }
        // In the order of names, half of those that failed come before it.
        all.push(claim("s015x", 443));
        scene.claims.want(all, BTreeSet::new(), "t1");
        scene.now += FAILURE_WAIT;
        let some: Vec<_> = std::iter::from_fn(|| scene.claims.next(scene.now).ok()).collect();
        let is_first = |name: &str| {
            let name = name.trim_start_matches("service-a-");
            name.starts_with("s015x") || name.starts_with("s03") && name >= "s032"
        };
        assert!(some[..9].iter().all(|(name, _)| is_first(name)), "{some:#?}");
        assert_eq!(some.len(), LANES.own, "then those that failed");
    }
}
