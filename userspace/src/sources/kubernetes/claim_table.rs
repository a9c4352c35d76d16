//! Claims, as far as they are known to be whole.

use super::api::claim::SETTLED;
use super::pack;
use super::watch_event::{Mark, ReadClaim};
use crate::model::{ObjectRef, Problem, StoredClaim};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::{replace, take};
use std::sync::Arc;
use std::time::Instant;

/// Claims by name.
type Claims = BTreeMap<Arc<str>, StoredClaim>;

/// A Claim that is not served as it was written: something of it cannot be read.
#[derive(Debug)]
struct Unread {
    /// Whose it is, as in NodeStates; `None`: that was never known.
    origin: Option<Arc<str>>,
    /// The first that cannot be read.
    problem: Problem,
}

/// All Claims. What is reported while [`SETTLED`] is not there may be any part of them, and is not served: what was known before is.
#[derive(Debug)]
pub(super) struct ClaimTable {
    /// What was reported.
    reported: Claims,
    /// Those of which something cannot be read.
    unread: BTreeMap<Arc<str>, Unread>,
    /// The newest version that was reported.
    version: u64,
    /// Versions alone are others since [`ClaimTable::take_renumbered`].
    is_renumbered: bool,
    /// What was known when the mark went, and its version.
    kept: Option<(Claims, u64)>,
    /// `None`: the mark is there. Otherwise since when it is not.
    unmarked_since: Option<Instant>,
    /// Whether Vestibule was withdrawn from the cluster when the mark was seen last.
    is_withdrawn: bool,
}

impl Default for ClaimTable {
    fn default() -> Self {
        let unmarked_since = Some(Instant::now());
        let (reported, unread) = (Claims::new(), BTreeMap::new());
        Self {
            reported,
            unread,
            version: 0,
            is_renumbered: false,
            kept: None,
            unmarked_since,
            is_withdrawn: false,
        }
    }
}

impl ClaimTable {
    /// New or changed; and what of it cannot be read, if anything. Whether it says anything new. If only its version is new, that shows in
    /// [`ClaimTable::take_renumbered`].
    pub(super) fn put(&mut self, name: &Arc<str>, read: ReadClaim, wrong: Option<Problem>) -> bool {
        self.note_unread(name, read.origin, wrong);
        let is_newer = read.version > Some(self.version);
        self.version = self.version.max(read.version.unwrap_or_default());
        // One that cannot be read stays what it was. That it is not held is an exception; newer ones may be held.
        let Some(new) = read.claim else {
            self.is_renumbered |= is_newer && self.is_marked();
            return false;
        };
        if let Some(known) = self.reported.get_mut(name).filter(|known| known.claim == new.claim) {
            let is_other = replace(&mut known.version, new.version) != new.version;
            self.is_renumbered |= is_other && self.is_marked();
            return false;
        }
        self.reported.insert(Arc::clone(name), new);
        self.is_marked()
    }

    /// Whether versions alone are others since [`ClaimTable::take_renumbered`].
    pub(super) fn is_renumbered(&self) -> bool {
        self.is_renumbered
    }

    /// Whether versions alone are others since this was last asked: of Claims that say the same as before, or of the mark.
    pub(super) fn take_renumbered(&mut self) -> bool {
        take(&mut self.is_renumbered)
    }

    /// Notes what of a Claim cannot be read.
    fn note_unread(&mut self, name: &Arc<str>, origin: Option<Arc<str>>, wrong: Option<Problem>) {
        let Some(problem) = wrong else {
            self.unread.remove(name);
            return;
        };
        let former = || self.unread.get(name).and_then(|unread| unread.origin.clone());
        let of_stored = || {
            let object = self.reported.get(name).and_then(|stored| stored.claim.origin.object());
            object.as_ref().map(ObjectRef::key).map(Arc::from)
        };
        let origin = origin.or_else(of_stored).or_else(former);
        self.unread.insert(Arc::clone(name), Unread { origin, problem });
    }

    /// Returns whose Claims are not served as they were written, as in NodeStates, and why. One whose origin was never known is named
    /// itself: `Claim/name`.
    pub(super) fn unread(&self) -> impl Iterator<Item = (Cow<'_, str>, &Problem)> {
        self.unread.iter().map(|(name, unread)| {
            let own = || Cow::from(format!("Claim/{name}"));
            (unread.origin.as_deref().map_or_else(own, Cow::from), &unread.problem)
        })
    }

    /// The mark is there. Whether it says anything new. If only its version is new, that shows in [`ClaimTable::take_renumbered`].
    pub(super) fn mark(&mut self, mark: Mark) -> bool {
        self.kept = None;
        let Mark { version, is_withdrawn } = mark;
        let was_withdrawn = replace(&mut self.is_withdrawn, is_withdrawn);
        self.is_renumbered |= version > self.version;
        self.version = self.version.max(version);
        self.unmarked_since.take().is_some() || is_withdrawn != was_withdrawn
    }

    /// Whether Vestibule is withdrawn from the cluster.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    /// Gone. Whether that changes what is known.
    pub(super) fn take_away(&mut self, name: &str) -> bool {
        if name == SETTLED {
            if self.is_marked() {
                self.kept = Some((self.reported.clone(), self.version));
                self.unmarked_since = Some(Instant::now());
            }
            return true;
        }
        self.unread.remove(name);
        self.reported.remove(name).is_some() && self.is_marked()
    }

    /// A new list begins: versions may be lower than before, as those of a restored backup are.
    pub(super) fn begin_list(&mut self) {
        self.version = 0;
    }

    /// Takes the room out of the table; to be called after many were added.
    pub(super) fn pack(&mut self) {
        pack::map(&mut self.reported);
    }

    /// Names of all that were reported, the mark among them if it is there: it comes before all others.
    pub(super) fn names(&self) -> impl Iterator<Item = Arc<str>> {
        let mark = self.is_marked().then(|| Arc::from(SETTLED));
        mark.into_iter().chain(self.reported.keys().cloned())
    }

    /// How many were reported.
    pub(super) fn len(&self) -> usize {
        self.reported.len()
    }

    /// What is known.
    pub(super) fn known(&self) -> &Claims {
        self.kept.as_ref().map_or(&self.reported, |(kept, _)| kept)
    }

    /// What is known is all up to this version of the API server.
    pub(super) fn version(&self) -> u64 {
        self.kept.as_ref().map_or(self.version, |(_, version)| *version)
    }

    /// Whether all were known at any time.
    pub(super) fn is_known(&self) -> bool {
        self.is_marked() || self.kept.is_some()
    }

    /// Since when the mark is missing; `None`: it is there.
    pub(super) fn unmarked_since(&self) -> Option<Instant> {
        self.unmarked_since
    }

    fn is_marked(&self) -> bool {
        self.unmarked_since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::claim::ClaimBackends;
    use crate::model::{Claim, Kind, ObjectName, Origin, Protocol};

    fn claim(version: u64) -> ReadClaim {
        let claim = Claim {
            origin: Origin::Object { created_secs: 1, kind: Kind::Service, name: ObjectName::new("ns", "x") },
            part: "".into(),
            tenant: None,
            port: 443,
            protocol: Protocol::Tls.into(),
            route: None,
            grants: Vec::new(),
            asked: None,
            backends: ClaimBackends::None,
            source_ranges: None,
            affinity: crate::model::Affinity::None,
            traffic: crate::model::TrafficPolicy::Cluster,
            health_port: None,
        };
        let claim = Some(StoredClaim { version, claim: Arc::new(claim) });
        ReadClaim { version: Some(version), claim, origin: None }
    }

    fn known(table: &ClaimTable) -> Vec<&str> {
        table.known().keys().map(|name| &**name).collect()
    }

    #[test]
    fn claims_are_known_when_the_mark_is_there() {
        let mut table = ClaimTable::default();
        assert!(!table.put(&"a".into(), claim(7), None) && !table.is_known());
        assert!(table.mark(Mark::default()) && table.is_known());
        assert_eq!((known(&table), table.version()), (vec!["a"], 7));
        assert!(!table.put(&"a".into(), claim(7), None), "nothing new");
        assert!(table.put(&"b".into(), claim(9), None));
        assert_eq!(table.version(), 9);
        assert!(
            !table.put(&"b".into(), ReadClaim::default(), None),
            "one that cannot be read stays what it was"
        );
        assert_eq!(known(&table), ["a", "b"]);
        assert!(table.take_away("a"));
        assert_eq!((known(&table), table.version()), (vec!["b"], 9));
    }

    #[test]
    fn what_cannot_be_read_is_known_with_its_origin_until_it_is_read() {
        let mut table = ClaimTable::default();
        table.mark(Mark::default());
        let wrong = || Some(Problem::warning("spec", "is no such thing", "look"));
        let origins = |table: &ClaimTable| -> Vec<String> {
            table.unread().map(|(origin, _)| origin.into_owned()).collect()
        };
        table.put(&"a".into(), ReadClaim::default(), wrong());
        assert_eq!(origins(&table), ["Claim/a"], "of an unknown origin");
        let of = |origin: &str| ReadClaim { origin: Some(origin.into()), ..ReadClaim::default() };
        table.put(&"a".into(), of("Later/ns/y"), wrong());
        assert_eq!(origins(&table), ["Later/ns/y"]);
        table.put(&"a".into(), ReadClaim::default(), wrong());
        assert_eq!(origins(&table), ["Later/ns/y"], "what was known of it before");
        table.put(&"b".into(), claim(1), None);
        table.put(&"b".into(), ReadClaim::default(), wrong());
        assert_eq!(origins(&table), ["Later/ns/y", "Service/ns/x"], "what the stored Claim says");
        table.put(&"b".into(), claim(2), None);
        assert_eq!(origins(&table), ["Later/ns/y"]);
        table.take_away("a");
        assert_eq!(origins(&table), [""; 0]);
    }

    /// While the newest Claim was one that cannot be read, the node seemed to be behind with all that was written before.
    #[test]
    fn what_cannot_be_read_counts_as_seen() {
        let mut table = ClaimTable::default();
        table.mark(Mark::default());
        table.put(&"a".into(), claim(7), None);
        let unread = ReadClaim { version: Some(9), ..ReadClaim::default() };
        let wrong = || Some(Problem::warning("spec", "is no such thing", "look"));
        assert!(!table.put(&"b".into(), unread.clone(), wrong()) && table.take_renumbered());
        assert_eq!((known(&table), table.version()), (vec!["a"], 9));
        assert!(!table.put(&"b".into(), unread, wrong()) && !table.take_renumbered(), "nothing new");
    }

    /// Of ten thousand Claims, a node would compile all for one that says nothing new to it.
    #[test]
    fn a_new_version_alone_is_no_change_and_counts_as_seen() {
        let mut table = ClaimTable::default();
        table.put(&"a".into(), claim(7), None);
        table.mark(Mark::default());
        assert!(!table.take_renumbered(), "it is new altogether");
        let kept = Arc::clone(&table.known()["a"].claim);
        assert!(!table.put(&"a".into(), claim(9), None) && table.take_renumbered());
        let known = &table.known()["a"];
        assert!(Arc::ptr_eq(&kept, &known.claim), "nothing of it is kept twice");
        assert_eq!((known.version, table.version(), table.take_renumbered()), (9, 9, false));
        // Of a backup that was restored.
        table.begin_list();
        assert!(!table.put(&"a".into(), claim(3), None) && table.take_renumbered());
        assert_eq!((table.known()["a"].version, table.version()), (3, 3));
        table.take_away(SETTLED);
        assert!(!table.put(&"a".into(), claim(11), None) && !table.take_renumbered(), "it is not known");
        assert_eq!(table.version(), 3);
    }

    /// All Claims, or their definition, are deleted. The mark goes first: it is the first in order.
    #[test]
    fn what_goes_after_the_mark_is_served_on_until_the_mark_is_back() {
        let mut table = ClaimTable::default();
        for name in ["a", "b"] {
            table.put(&name.into(), claim(5), None);
        }
        table.mark(Mark::default());
        let names: Vec<Arc<str>> = table.names().collect();
        assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), [SETTLED, "a", "b"]);
        for name in names {
            table.take_away(&name);
        }
        assert!(table.is_known() && table.unmarked_since().is_some());
        assert_eq!((known(&table), table.version()), (vec!["a", "b"], 5));
        assert!(!table.put(&"b".into(), claim(8), None));
        assert_eq!((known(&table), table.version()), (vec!["a", "b"], 5));
        assert!(table.mark(Mark::default()));
        assert_eq!((known(&table), table.version()), (vec!["b"], 8));
    }

    /// Otherwise nobody would know which nodes have seen it.
    #[test]
    fn what_the_mark_says_is_news_and_is_kept_while_it_is_missing() {
        let mut table = ClaimTable::default();
        table.put(&"a".into(), claim(5), None);
        let mark = |version, is_withdrawn| Mark { version, is_withdrawn };
        assert!(table.mark(mark(6, false)) && !table.is_withdrawn());
        assert_eq!((table.version(), table.take_renumbered()), (6, true));
        assert!(!table.mark(mark(6, false)) && !table.take_renumbered(), "nothing new");
        assert!(!table.mark(mark(8, false)) && table.take_renumbered(), "only a newer version");
        assert!(table.mark(mark(9, true)) && table.is_withdrawn());
        assert_eq!(table.version(), 9);
        assert!(table.take_away(SETTLED));
        assert!(table.is_withdrawn(), "a mark that is deleted takes nothing back");
        assert!(table.mark(mark(12, false)) && !table.is_withdrawn());
        assert_eq!(table.version(), 12);
    }
}
