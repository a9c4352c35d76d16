//! The finalizer by which a GatewayClass stays while Gateways use it, as the Gateway API asks of its controllers: without
//! the class, nobody would know any more whose they are.

use super::election::REQUEST;
use super::flights::{Done, Flights};
use super::writes;
use crate::model::cluster::ClassSpec;
use crate::model::{Cluster, Kind, ObjectName, ObjectRef};
use crate::sources::kubernetes::{Source, Store};
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// The finalizer's name in the Gateway API.
const FINALIZER: &str = "gateway-exists-finalizer.gateway.networking.k8s.io";
/// After this time the same is written again, if the watch has not reported it.
const AGAIN: Duration = Duration::from_secs(5);

/// Finalizers to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finalizers {
    /// The class's name.
    pub(super) class: Arc<str>,
    /// The version in which the API server serves the kind.
    pub(super) served: &'static str,
    /// The `metadata.resourceVersion` that they were computed for.
    pub(super) version: String,
    /// All of them.
    pub(super) finalizers: Vec<Arc<str>>,
}

/// What is to be written, and what was.
#[derive(Debug, Default)]
pub(super) struct ClassFinalizers {
    wanted: Vec<Finalizers>,
    /// When each of these may be written again.
    sent: BTreeMap<Arc<str>, (Finalizers, Instant)>,
}

impl ClassFinalizers {
    /// Sets what must be written, from the objects as they are now.
    pub(super) fn want(&mut self, store: &Store) {
        if store.unlisted().contains(&Source::Gateways) {
            // Any class may be in use.
            return self.wanted.clear();
        }
        let Some(served) = store.version(Kind::GatewayClass) else { return self.wanted.clear() };
        let change = |(class, finalizers): (Arc<str>, Vec<Arc<str>>)| {
            let object =
                ObjectRef { kind: Kind::GatewayClass, name: ObjectName::new("", Arc::clone(&class)) };
            let version = store.status(&object)?.resource_version.clone();
            Some(Finalizers { class, served, version, finalizers })
        };
        self.wanted = differences(store.cluster()).into_iter().filter_map(change).collect();
        self.sent.retain(|class, _| self.wanted.iter().any(|change| change.class == *class));
    }

    /// Starts to write one, unless one is being written.
    pub(super) fn send(&mut self, client: &Client, flights: &mut Flights, now: Instant) {
        if flights.class {
            return;
        }
        let Some(change) = self.next(now) else { return };
        flights.class = true;
        let client = client.clone();
        flights.fly(async move {
            let Finalizers { class, served, version, finalizers } = change;
            let write = writes::finalizers(&client, &class, served, &version, &finalizers);
            if let Ok(Err(error)) = tokio::time::timeout(REQUEST, write).await {
                warn!(%class, "the finalizers of a GatewayClass cannot be written: {}", writes::short(&error));
            }
            Done::Class
        });
    }

    fn next(&mut self, now: Instant) -> Option<Finalizers> {
        let waits = |change: &&Finalizers| {
            !self.sent.get(&change.class).is_some_and(|(sent, again)| sent == *change && now < *again)
        };
        // By turns: two that hang, one after the other, keep no third one waiting.
        let turn = |change: &&Finalizers| self.sent.get(&change.class).map(|(_, again)| *again);
        let change = self.wanted.iter().filter(waits).min_by_key(turn)?.clone();
        self.sent.insert(Arc::clone(&change.class), (change.clone(), now + AGAIN));
        Some(change)
    }
}

/// Returns our finalizers that are still on classes, as writes that take them off, whether or not Gateways use the class.
pub(super) fn left(store: &Store) -> Vec<Finalizers> {
    let Some(served) = store.version(Kind::GatewayClass) else { return Vec::new() };
    let without = |(class, spec): (&Arc<str>, &Arc<ClassSpec>)| {
        let mut finalizers = spec.finalizers.clone();
        finalizers.retain(|finalizer| **finalizer != *FINALIZER);
        if finalizers.len() == spec.finalizers.len() {
            return None;
        }
        let object = ObjectRef { kind: Kind::GatewayClass, name: ObjectName::new("", Arc::clone(class)) };
        let version = store.status(&object)?.resource_version.clone();
        Some(Finalizers { class: Arc::clone(class), served, version, finalizers })
    };
    store.cluster().classes.iter().filter_map(without).collect()
}

/// Returns the classes whose finalizers are not as they must be, with those that they must have.
fn differences(cluster: &Cluster) -> Vec<(Arc<str>, Vec<Arc<str>>)> {
    let used: BTreeSet<&str> = cluster.gateways.values().map(|gateway| &*gateway.class).collect();
    let differs = |(name, class): (&Arc<str>, &Arc<ClassSpec>)| {
        let is_held = class.finalizers.iter().any(|finalizer| **finalizer == *FINALIZER);
        let is_used = used.contains(&**name);
        // What is being deleted takes no new finalizer.
        if is_used == is_held || (is_used && class.is_terminating) {
            return None;
        }
        let mut finalizers = class.finalizers.clone();
        finalizers.retain(|finalizer| **finalizer != *FINALIZER);
        if is_used {
            finalizers.push(FINALIZER.into());
        }
        Some((Arc::clone(name), finalizers))
    };
    cluster.classes.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::GatewaySpec;

    const OTHER: &str = "example.com/other";

    fn cluster(gateways: &[&str], classes: &[(&str, &[&str], bool)]) -> Cluster {
        let mut cluster = Cluster::default();
        for (n, class) in gateways.iter().enumerate() {
            let gateway = GatewaySpec { class: (*class).into(), ..GatewaySpec::default() };
            cluster.gateways.insert(ObjectName::new("ns", n.to_string()), Arc::new(gateway));
        }
        for (name, finalizers, is_terminating) in classes {
            let finalizers = finalizers.iter().map(|finalizer| Arc::from(*finalizer)).collect();
            let class = ClassSpec { finalizers, is_terminating: *is_terminating, ..ClassSpec::default() };
            cluster.classes.insert((*name).into(), Arc::new(class));
        }
        cluster
    }

    fn wanted(gateways: &[&str], class: (&[&str], bool)) -> Option<Vec<String>> {
        let found = differences(&cluster(gateways, &[("c", class.0, class.1)]));
        found.into_iter().next().map(|(_, finalizers)| finalizers.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_class_is_held_while_gateways_use_it_and_others_finalizers_stay() {
        let names = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(wanted(&["c"], (&[], false)), names(&[FINALIZER]));
        assert_eq!(wanted(&["c", "c"], (&[OTHER], false)), names(&[OTHER, FINALIZER]));
        assert_eq!(wanted(&["c"], (&[FINALIZER, OTHER], false)), None);
        assert_eq!(wanted(&["d"], (&[FINALIZER, OTHER], true)), names(&[OTHER]));
        assert_eq!(wanted(&[], (&[FINALIZER], false)), names(&[]));
        assert_eq!(wanted(&[], (&[OTHER], false)), None);
        assert_eq!(wanted(&["c"], (&[FINALIZER], true)), None, "it waits for the Gateway");
        assert_eq!(wanted(&["c"], (&[OTHER], true)), None, "the API server takes no new one");
    }

    #[test]
    fn the_same_is_written_again_only_after_a_while() {
        let change = |class: &str, version: &str| Finalizers {
            class: class.into(),
            served: "v1",
            version: version.to_owned(),
            finalizers: vec![FINALIZER.into()],
        };
        let (mut book, now) = (ClassFinalizers::default(), Instant::now());
        book.wanted = vec![change("a", "1"), change("b", "1")];
        assert_eq!(book.next(now), Some(change("a", "1")));
        assert_eq!(book.next(now), Some(change("b", "1")));
        assert_eq!(book.next(now), None);
        book.wanted = vec![change("a", "2"), change("b", "1")];
        assert_eq!(book.next(now), Some(change("a", "2")), "the class is another: at once");
        assert_eq!(book.next(now), None);
        assert_eq!(book.next(now + AGAIN), Some(change("a", "2")));
    }

    /// Each takes as long as a request may take, in which the others become due.
    #[test]
    fn classes_that_hang_keep_no_other_waiting() {
        let mut book = ClassFinalizers::default();
        let change = |class: &str| Finalizers {
            class: class.into(),
            served: "v1",
            version: "1".to_owned(),
            finalizers: Vec::new(),
        };
        book.wanted = ["a", "b", "c"].map(change).into();
        let begun = Instant::now();
        let turns: Vec<_> = (0..6).map(|turn| book.next(begun + turn * REQUEST).unwrap().class).collect();
        assert_eq!(turns.iter().map(|class| &**class).collect::<Vec<_>>(), ["a", "b", "c", "a", "b", "c"]);
    }
}
