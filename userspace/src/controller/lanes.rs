//! Which writes may be in flight beside each other. An admission webhook that hangs holds each write that it is asked about
//! until the time limit, so neither one kind nor one namespace may have all lanes. Pure.

use crate::model::{Kind, ObjectRef};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most writes in flight.
const ALL: usize = 64;
/// The most of one kind: a webhook is asked about kinds.
const OF_KIND: usize = 16;
/// The most of one kind in one namespace: a webhook may be a tenant's, for its own namespace.
const OF_NAMESPACE: usize = 4;

/// The writes in flight.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    all: usize,
    kinds: BTreeMap<Kind, usize>,
    namespaces: BTreeMap<(Kind, Arc<str>), usize>,
}

impl Lanes {
    /// Whether a write of the object may be sent.
    pub(super) fn have_room(&self, object: &ObjectRef) -> bool {
        let namespace = (object.kind, Arc::clone(&object.name.namespace));
        self.all < ALL
            && self.kinds.get(&object.kind).is_none_or(|count| *count < OF_KIND)
            && self.namespaces.get(&namespace).is_none_or(|count| *count < OF_NAMESPACE)
    }

    /// Counts a write that is sent.
    pub(super) fn take(&mut self, object: &ObjectRef) {
        self.all += 1;
        *self.kinds.entry(object.kind).or_default() += 1;
        *self.namespaces.entry((object.kind, Arc::clone(&object.name.namespace))).or_default() += 1;
    }

    /// Counts a write that has ended.
    pub(super) fn give_back(&mut self, object: &ObjectRef) {
        self.all = self.all.saturating_sub(1);
        lower(&mut self.kinds, object.kind);
        lower(&mut self.namespaces, (object.kind, Arc::clone(&object.name.namespace)));
    }
}

fn lower<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectName;

    fn object(kind: Kind, namespace: &str) -> ObjectRef {
        ObjectRef { kind, name: ObjectName::new(namespace, "x") }
    }

    /// Takes lanes until there is no room.
    fn fill(lanes: &mut Lanes, object: &ObjectRef) -> usize {
        let mut count = 0;
        while lanes.have_room(object) {
            lanes.take(object);
            count += 1;
        }
        count
    }

    #[test]
    fn neither_a_namespace_nor_a_kind_has_all_lanes() {
        let mut lanes = Lanes::default();
        assert_eq!(fill(&mut lanes, &object(Kind::Service, "a")), OF_NAMESPACE);
        assert_eq!(fill(&mut lanes, &object(Kind::Gateway, "a")), OF_NAMESPACE);
        for namespace in ["b", "c", "d"] {
            assert_eq!(fill(&mut lanes, &object(Kind::Service, namespace)), OF_NAMESPACE);
        }
        assert_eq!(fill(&mut lanes, &object(Kind::Service, "e")), 0, "the kind has its share");
        assert_eq!(fill(&mut lanes, &object(Kind::TlsRoute, "e")), OF_NAMESPACE);
    }

    #[test]
    fn what_has_ended_makes_room_and_leaves_nothing() {
        let mut lanes = Lanes::default();
        let (one, other) = (object(Kind::Service, "a"), object(Kind::Service, "b"));
        let taken = fill(&mut lanes, &one);
        lanes.give_back(&one);
        assert!(lanes.have_room(&one) && lanes.have_room(&other));
        (1..taken).for_each(|_| lanes.give_back(&one));
        assert!(lanes.all == 0 && lanes.kinds.is_empty() && lanes.namespaces.is_empty());
    }

    #[test]
    fn there_is_a_bound_for_all() {
        let mut lanes = Lanes::default();
        let kinds = [Kind::Gateway, Kind::GatewayClass, Kind::ListenerSet, Kind::Service, Kind::TcpRoute];
        let all = kinds.into_iter().flat_map(|kind| (0..9).map(move |n| object(kind, &n.to_string())));
        assert_eq!(all.map(|object| fill(&mut lanes, &object)).sum::<usize>(), ALL);
    }
}
