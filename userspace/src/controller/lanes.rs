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
    kinds: BTreeMap<Kind, OfKind>,
}

/// Those of one kind.
#[derive(Debug, Default)]
struct OfKind {
    all: usize,
    namespaces: BTreeMap<Arc<str>, usize>,
}

impl Lanes {
    /// Whether a write of the object may be sent. Asked for each of thousands that wait.
    pub(super) fn have_room(&self, object: &ObjectRef) -> bool {
        let in_kind = |kind: &OfKind| {
            let namespace = kind.namespaces.get(&object.name.namespace);
            kind.all < OF_KIND && namespace.is_none_or(|count| *count < OF_NAMESPACE)
        };
        self.all < ALL && self.kinds.get(&object.kind).is_none_or(in_kind)
    }

    /// Counts a write that is sent.
    pub(super) fn take(&mut self, object: &ObjectRef) {
        let kind = self.kinds.entry(object.kind).or_default();
        self.all += 1;
        kind.all += 1;
        *kind.namespaces.entry(Arc::clone(&object.name.namespace)).or_default() += 1;
    }

    /// Counts a write that has ended.
    pub(super) fn give_back(&mut self, object: &ObjectRef) {
        let Some(kind) = self.kinds.get_mut(&object.kind) else { return };
        self.all -= 1;
        kind.all -= 1;
        if let Some(count) = kind.namespaces.get_mut(&object.name.namespace) {
            *count -= 1;
            if *count == 0 {
                kind.namespaces.remove(&object.name.namespace);
            }
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
        let left = &lanes.kinds[&Kind::Service];
        assert!(lanes.all == 0 && left.all == 0 && left.namespaces.is_empty());
    }

    #[test]
    fn there_is_a_bound_for_all() {
        let mut lanes = Lanes::default();
        let kinds = [Kind::Gateway, Kind::GatewayClass, Kind::ListenerSet, Kind::Service, Kind::TcpRoute];
        let all = kinds.into_iter().flat_map(|kind| (0..9).map(move |n| object(kind, &n.to_string())));
        assert_eq!(all.map(|object| fill(&mut lanes, &object)).sum::<usize>(), ALL);
    }
}
