//! Which writes may be in flight beside each other. An admission webhook that hangs holds each write that it is asked about
//! until the time limit, so neither one kind nor one namespace may have all lanes. Namespaces whose writes take long share a few
//! lanes of their own, however many they are: each tenant may have a webhook. Pure: time is an argument.

use crate::model::{Kind, ObjectRef};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most writes of statuses in flight, without those of namespaces that take long.
const ALL: usize = 64;
/// A kind may have more lanes than its own while this many are left for others.
const LEFT: usize = 16;
/// Of one kind: a webhook is asked about kinds.
const OF_KIND: Bounds = Bounds { own: 16, of_namespace: 4, slow: 8, alone: Some(16), all: 96, all_slow: 96 };
/// A namespace with a write that takes this long is slow, until one ends sooner.
const SLOW: Duration = Duration::from_secs(1);
/// Where no write has ended sooner than that for this long, all may be slow.
const ALL_SLOW: Duration = Duration::from_secs(5);
/// A slow namespace of which nothing was written for this long is forgotten: it may be gone.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// How many writes of one group may be in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Of namespaces that are not slow.
    pub(super) own: usize,
    /// Of one of these; of a slow one, one may while others are not.
    pub(super) of_namespace: usize,
    /// Of all that are slow, while others are not. More are in flight only when they were sent before that was known.
    pub(super) slow: usize,
    /// The same while no other is in flight; `None`: as many, because they delay others by more than lanes.
    pub(super) alone: Option<usize>,
    /// Altogether, with those.
    pub(super) all: usize,
    /// The same while none has ended soon for some seconds: the API server may be slow as a whole, and more would not help it.
    pub(super) all_slow: usize,
}

/// The writes of statuses in flight.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    kinds: BTreeMap<Kind, Group<ObjectRef>>,
}

impl Lanes {
    /// Notes which namespaces are slow by now.
    pub(super) fn look(&mut self, now: Instant) {
        self.kinds.values_mut().for_each(|kind| kind.look(now));
    }

    /// When another namespace is slow, if nothing ends before.
    pub(super) fn next_slow(&self) -> Option<Instant> {
        self.kinds.values().filter_map(Group::next_slow).min()
    }

    /// Whether a write of the object may be sent. Asked for each of thousands that wait.
    pub(super) fn have_room(&self, object: &ObjectRef) -> bool {
        let all: usize = self.kinds.values().map(|kind| kind.ordinary).sum();
        match self.kinds.get(&object.kind) {
            None => all < ALL,
            Some(kind) => kind.has_room(scope(object), all < ALL, all + LEFT < ALL),
        }
    }

    /// Counts a write that is sent.
    pub(super) fn take(&mut self, object: &ObjectRef, now: Instant) {
        let kind = self.kinds.entry(object.kind).or_insert_with(|| Group::new(OF_KIND));
        kind.take(object.clone(), scope(object), now);
    }

    /// Counts a write that has ended.
    pub(super) fn give_back(&mut self, object: &ObjectRef, now: Instant) {
        if let Some(kind) = self.kinds.get_mut(&object.kind) {
            kind.give_back(object, Some(now));
        }
    }

    /// Counts a write that was not sent.
    pub(super) fn drop_sent(&mut self, object: &ObjectRef) {
        if let Some(kind) = self.kinds.get_mut(&object.kind) {
            kind.give_back(object, None);
        }
    }
}

/// What shares a webhook: a namespace, or a cluster-scoped object alone.
fn scope(object: &ObjectRef) -> &Arc<str> {
    if object.kind.is_namespaced() { &object.name.namespace } else { &object.name.name }
}

/// Writes in flight that share lanes.
#[derive(Debug)]
pub(super) struct Group<K> {
    bounds: Bounds,
    flights: Vec<Flight<K>>,
    /// Those with writes in flight, and the slow ones.
    namespaces: BTreeMap<Arc<str>, Namespace>,
    /// Writes in flight of those that are not slow, and of those that are.
    ordinary: usize,
    slow: usize,
    /// When one ended soon; `None`: none did lately.
    soon: Option<Instant>,
}

#[derive(Debug)]
struct Flight<K> {
    key: K,
    namespace: Arc<str>,
    sent: Instant,
}

#[derive(Debug, Default)]
struct Namespace {
    in_flight: usize,
    /// When it was found to be slow last; `None`: it is not.
    slow_since: Option<Instant>,
}

impl<K: PartialEq> Group<K> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, flights: Vec::new(), namespaces: BTreeMap::new(), ordinary: 0, slow: 0, soon: None }
    }

    /// Notes which namespaces are slow by now.
    pub(super) fn look(&mut self, now: Instant) {
        self.soon = self.soon.filter(|at| now < *at + ALL_SLOW);
        let is_late = |flight: &&Flight<K>| flight.sent + SLOW <= now && !self.is_slow(&flight.namespace);
        let late = self.flights.iter().filter(is_late).map(|flight| Arc::clone(&flight.namespace));
        late.collect::<Vec<_>>().iter().for_each(|namespace| self.slows(namespace, now));
    }

    /// When another namespace is slow, if nothing ends before.
    pub(super) fn next_slow(&self) -> Option<Instant> {
        let fast = self.flights.iter().filter(|flight| !self.is_slow(&flight.namespace));
        fast.map(|flight| flight.sent + SLOW).min()
    }

    /// Whether a write of the namespace may be sent. `may`: one of a namespace that is not slow; `may_more`: beyond the lanes of
    /// its own, too.
    pub(super) fn has_room(&self, namespace: &str, may: bool, may_more: bool) -> bool {
        let count = match self.namespaces.get(namespace) {
            Some(Namespace { in_flight, slow_since: Some(_) }) => {
                let (of_namespace, slow) = match self.bounds.alone {
                    // Where all are slow, the API server is.
                    Some(alone) if self.ordinary == 0 => (self.bounds.of_namespace, alone),
                    _ => (1, self.bounds.slow),
                };
                return *in_flight < of_namespace && self.slow < slow;
            }
            Some(namespace) => namespace.in_flight,
            None => 0,
        };
        let all = if self.soon.is_some() { self.bounds.all } else { self.bounds.all_slow };
        may && count < self.bounds.of_namespace
            && (may_more || self.ordinary < self.bounds.own)
            && self.ordinary + self.slow < all
    }

    /// Counts a write that is sent.
    pub(super) fn take(&mut self, key: K, namespace: &Arc<str>, now: Instant) {
        self.flights.push(Flight { key, namespace: Arc::clone(namespace), sent: now });
        let namespace = self.namespaces.entry(Arc::clone(namespace)).or_default();
        namespace.in_flight += 1;
        match namespace.slow_since {
            Some(_) => self.slow += 1,
            None => self.ordinary += 1,
        }
    }

    /// Counts a write that has ended. `None`: it was not sent.
    pub(super) fn give_back(&mut self, key: &K, now: Option<Instant>) {
        let Some(at) = self.flights.iter().position(|flight| flight.key == *key) else { return };
        let Flight { namespace, sent, .. } = self.flights.swap_remove(at);
        let Some(found) = self.namespaces.get_mut(&namespace) else { return };
        found.in_flight -= 1;
        match found.slow_since {
            Some(_) => self.slow -= 1,
            None => self.ordinary -= 1,
        }
        if let Some(now) = now.filter(|now| now.saturating_duration_since(sent) < SLOW) {
            self.soon = Some(now);
        }
        match now {
            Some(now) if now.saturating_duration_since(sent) >= SLOW => self.slows(&namespace, now),
            Some(_) if found.slow_since.take().is_some() => {
                self.slow -= found.in_flight;
                self.ordinary += found.in_flight;
            }
            _ => {}
        }
        if self.namespaces.get(&namespace).is_some_and(|one| one.in_flight == 0 && one.slow_since.is_none()) {
            self.namespaces.remove(&namespace);
        }
    }

    fn is_slow(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|namespace| namespace.slow_since.is_some())
    }

    /// The namespace is slow.
    fn slows(&mut self, namespace: &str, now: Instant) {
        let Some(found) = self.namespaces.get_mut(namespace) else { return };
        if found.slow_since.replace(now).is_none() {
            self.ordinary -= found.in_flight;
            self.slow += found.in_flight;
        }
        let is_known = |since: Instant| now.saturating_duration_since(since) < FORGOTTEN;
        self.namespaces.retain(|_, one| one.in_flight > 0 || one.slow_since.is_some_and(is_known));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectName;

    fn object(kind: Kind, namespace: &str) -> ObjectRef {
        ObjectRef { kind, name: ObjectName::new(namespace, "x") }
    }

    fn class(name: &str) -> ObjectRef {
        ObjectRef { kind: Kind::GatewayClass, name: ObjectName::new("", name) }
    }

    /// More writes at once would not help an API server that is slow as a whole.
    #[test]
    fn fewer_are_in_flight_while_all_take_long() {
        let bounds = Bounds { own: 16, of_namespace: 1, slow: 8, alone: Some(16), all: 96, all_slow: 32 };
        let mut group = Group::new(bounds);
        let (mut now, mut number) = (Instant::now(), 0);
        let mut fill = |group: &mut Group<usize>, now| {
            let mut begun = 0;
            group.look(now);
            while group.has_room(&format!("n{number}"), true, false) {
                group.take(number, &format!("n{number}").into(), now);
                (number, begun) = (number + 1, begun + 1);
            }
            begun
        };
        let mut seconds = |group: &mut Group<usize>, now: &mut Instant, count: usize| {
            let each = (0..count).map(|_| {
                let begun = fill(group, *now);
                *now += SLOW;
                begun
            });
            each.collect::<Vec<usize>>()
        };
        assert_eq!(seconds(&mut group, &mut now, 3), [16, 16, 0]);
        group.look(now);
        // One that is slow has ended, and the next one ends at once.
        group.give_back(&0, Some(now));
        assert!(group.has_room("x", true, false));
        group.take(1_000, &"x".into(), now);
        group.give_back(&1_000, Some(now));
        assert_eq!(seconds(&mut group, &mut now, 6), [16, 16, 16, 16, 1, 0]);
        // For some seconds none has.
        (1..65).for_each(|number| group.give_back(&number, Some(now)));
        assert_eq!(seconds(&mut group, &mut now, 1), [0]);
        group.give_back(&65, Some(now));
        assert_eq!(seconds(&mut group, &mut now, 1), [1]);
    }

    /// Takes lanes until there is no room.
    fn fill(lanes: &mut Lanes, object: &ObjectRef, now: Instant) -> usize {
        let mut count = 0;
        while lanes.have_room(object) {
            lanes.take(object, now);
            count += 1;
        }
        count
    }

    /// The same for Services of many namespaces.
    fn fill_all(lanes: &mut Lanes, namespaces: std::ops::Range<usize>, now: Instant) -> usize {
        namespaces.map(|number| fill(lanes, &service(number), now)).sum()
    }

    fn service(number: usize) -> ObjectRef {
        object(Kind::Service, &format!("t{number}"))
    }

    /// All that is in flight of these namespaces has ended.
    fn end_all(lanes: &mut Lanes, namespaces: std::ops::Range<usize>, now: Instant) {
        for service in namespaces.map(service) {
            let count = lanes.kinds[&Kind::Service].flights.iter().filter(|one| one.key == service).count();
            (0..count).for_each(|_| lanes.give_back(&service, now));
        }
    }

    #[test]
    fn neither_a_namespace_nor_a_kind_has_all_lanes() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        assert_eq!(fill(&mut lanes, &object(Kind::Service, "a"), now), OF_KIND.of_namespace);
        assert_eq!(fill(&mut lanes, &object(Kind::Gateway, "a"), now), OF_KIND.of_namespace);
        let more = ALL - LEFT - 2 * OF_KIND.of_namespace;
        assert_eq!(fill_all(&mut lanes, 0..100, now), more, "what nobody else uses");
        assert_eq!(fill(&mut lanes, &object(Kind::Service, "e"), now), 0, "the rest is left for other kinds");
        let others =
            ["e", "f", "g"].map(|namespace| fill(&mut lanes, &object(Kind::TlsRoute, namespace), now));
        assert_eq!(others, [OF_KIND.of_namespace; 3]);
        // What others use is left to them, and each kind has lanes of its own.
        end_all(&mut lanes, 0..100, now);
        assert_eq!(fill(&mut lanes, &object(Kind::TlsRoute, "h"), now), OF_KIND.of_namespace);
        assert_eq!(fill_all(&mut lanes, 0..100, now), ALL - LEFT - 6 * OF_KIND.of_namespace);
        assert_eq!(fill(&mut lanes, &object(Kind::TlsRoute, "i"), now), 0);
    }

    /// 200 writes a second, each of which takes a fifth of a second.
    #[test]
    fn a_kind_alone_has_lanes_for_writes_that_take_a_while() {
        let mut lanes = Lanes::default();
        assert!(fill_all(&mut lanes, 0..100, Instant::now()) >= 200 / 5);
    }

    #[test]
    fn what_has_ended_makes_room_and_leaves_nothing() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let (one, other) = (object(Kind::Service, "a"), object(Kind::Service, "b"));
        let taken = fill(&mut lanes, &one, now);
        lanes.give_back(&one, now);
        assert!(lanes.have_room(&one) && lanes.have_room(&other));
        (2..taken).for_each(|_| lanes.give_back(&one, now));
        // It was not sent, so it says nothing of its namespace.
        lanes.look(now + SLOW);
        lanes.drop_sent(&one);
        let left = &lanes.kinds[&Kind::Service];
        assert!(left.ordinary == 0 && left.slow == 0 && left.flights.is_empty());
        lanes.take(&other, now);
        lanes.give_back(&other, now);
        assert!(!lanes.kinds[&Kind::Service].namespaces.contains_key("b"));
    }

    /// Each of four tenants whose webhook hung had four of the sixteen lanes of a kind, all the time.
    #[test]
    fn however_many_namespaces_hang_they_share_a_few_lanes() {
        let (mut lanes, begun) = (Lanes::default(), Instant::now());
        let hang = 0..12;
        let taken = fill_all(&mut lanes, hang.clone(), begun);
        assert_eq!((taken, fill_all(&mut lanes, 20..30, begun)), (ALL - LEFT, 0));
        assert_eq!(lanes.next_slow(), Some(begun + SLOW));
        let now = begun + SLOW;
        lanes.look(now);
        assert_eq!(lanes.next_slow(), None);
        assert_eq!(fill_all(&mut lanes, hang.clone(), now), 0, "they have more than their share");
        assert!(fill_all(&mut lanes, 20..30, now) >= 2 * OF_KIND.own);
        end_all(&mut lanes, 20..30, now);
        // The time limit; and again and again.
        let mut now = begun + 4 * SLOW;
        for _ in 0..3 {
            end_all(&mut lanes, hang.clone(), now);
            lanes.take(&service(20), now);
            assert_eq!(fill_all(&mut lanes, hang.clone(), now), OF_KIND.slow, "one of each");
            lanes.drop_sent(&service(20));
            assert_eq!(fill_all(&mut lanes, 20..40, now), ALL - LEFT, "others have all that is theirs");
            end_all(&mut lanes, 20..40, now);
            now += 4 * SLOW;
        }
        // It hangs no more.
        end_all(&mut lanes, hang.clone(), now);
        lanes.take(&service(20), now);
        assert_eq!(fill(&mut lanes, &service(0), now), 1);
        lanes.give_back(&service(0), now + SLOW / 2);
        assert_eq!(fill(&mut lanes, &service(0), now), OF_KIND.of_namespace);
        assert_eq!(fill(&mut lanes, &service(1), now), 1);
    }

    /// The API server itself takes long: each namespace had one lane, and all together half of what they had before.
    #[test]
    fn where_all_are_slow_each_has_its_share() {
        let (mut lanes, begun) = (Lanes::default(), Instant::now());
        let all = 0..12;
        fill_all(&mut lanes, all.clone(), begun);
        lanes.look(begun + SLOW);
        end_all(&mut lanes, all.clone(), begun + SLOW);
        assert_eq!(fill(&mut lanes, &service(0), begun), OF_KIND.of_namespace);
        assert_eq!(fill_all(&mut lanes, all, begun), OF_KIND.alone.unwrap() - OF_KIND.of_namespace);
    }

    /// A write that ends at once beside one that hangs: a webhook may be asked about some objects only.
    #[test]
    fn a_namespace_is_slow_while_any_write_of_it_takes_long() {
        let (mut lanes, begun) = (Lanes::default(), Instant::now());
        let [hangs, other] =
            ["x", "y"].map(|name| ObjectRef { kind: Kind::Service, name: ObjectName::new("a", name) });
        lanes.take(&hangs, begun);
        lanes.take(&other, begun + SLOW / 2);
        lanes.look(begun + SLOW);
        lanes.give_back(&other, begun + SLOW);
        lanes.look(begun + SLOW);
        lanes.take(&service(0), begun + SLOW);
        assert!(!lanes.have_room(&other));
        lanes.give_back(&hangs, begun + 4 * SLOW);
        lanes.take(&other, begun + 4 * SLOW);
        assert!(!lanes.have_room(&hangs), "one at a time");
        let kind = &lanes.kinds[&Kind::Service];
        assert_eq!((kind.ordinary, kind.slow), (1, 1));
    }

    #[test]
    fn a_cluster_scoped_object_that_hangs_delays_no_other() {
        let (mut lanes, begun) = (Lanes::default(), Instant::now());
        assert_eq!(fill(&mut lanes, &class("a"), begun), OF_KIND.of_namespace);
        lanes.look(begun + SLOW);
        assert!(lanes.have_room(&class("b")));
        lanes.take(&class("b"), begun + SLOW);
        assert!(!lanes.have_room(&class("a")) && lanes.have_room(&class("b")));
    }

    #[test]
    fn slow_namespaces_are_forgotten() {
        let (mut lanes, begun) = (Lanes::default(), Instant::now());
        for number in 0..20 {
            lanes.take(&service(number), begun);
            lanes.give_back(&service(number), begun + SLOW);
        }
        let known = |lanes: &Lanes| lanes.kinds[&Kind::Service].namespaces.len();
        assert_eq!(known(&lanes), 20);
        lanes.take(&service(20), begun + FORGOTTEN);
        lanes.give_back(&service(20), begun + FORGOTTEN + SLOW);
        assert_eq!(known(&lanes), 1);
    }

    #[test]
    fn there_is_a_bound_for_all() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let kinds = [Kind::Gateway, Kind::ListenerSet, Kind::TlsRoute, Kind::Service, Kind::TcpRoute];
        let all = kinds.into_iter().flat_map(|kind| (0..9).map(move |n| object(kind, &n.to_string())));
        assert_eq!(all.map(|object| fill(&mut lanes, &object, now)).sum::<usize>(), ALL);
        // Those that hang do not count, up to a bound.
        let mut now = now;
        for _ in 0..9 {
            now += SLOW;
            lanes.look(now);
            for number in 0..99 {
                fill(&mut lanes, &object(Kind::Service, &format!("{now:?}{number}")), now);
            }
        }
        let kind = &lanes.kinds[&Kind::Service];
        assert_eq!(kind.ordinary + kind.slow, OF_KIND.all);
        assert!(lanes.have_room(&object(Kind::Gateway, "other")));
    }
}
