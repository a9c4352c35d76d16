//! The tables that a [`Cluster`] is made of, kept up to date by the watches.

use super::claim_table::ClaimTable;
use super::endpoints::Slices;
use super::source::Source;
use super::watch_event::{Body, Entry, StoredStatus};
use crate::model::{ClaimSet, Cluster, Kind, ObjectName, ObjectRef, Problem};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio::time::Instant;

/// Everything that was folded.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) cluster: Cluster,
    pub(super) claims: ClaimTable,
    slices: Slices,
    problems: BTreeMap<(Source, ObjectName), Vec<Problem>>,
    problems_changed: bool,
    statuses: HashMap<ObjectRef, StoredStatus, foldhash::fast::RandomState>,
}

impl Tables {
    /// A new or changed object. Whether it says anything new; what slices say shows in [`Tables::settle`].
    pub(super) fn put(&mut self, source: Source, entry: Entry) -> bool {
        let Entry { name, body, problems, status } = entry;
        let mut changed = self.put_problems(source, &name, problems);
        changed |= self.put_status(source, &name, status);
        let cluster = &mut self.cluster;
        changed |= match body {
            Body::Class(Some(spec)) => put(&mut cluster.classes, name.name, spec),
            Body::Class(None) => cluster.classes.remove(&name.name).is_some(),
            Body::Gateway(spec) => put(&mut cluster.gateways, name, spec),
            Body::ListenerSet(spec) => put(&mut cluster.listener_sets, name, spec),
            Body::TlsRoute(spec) => put(&mut cluster.tls_routes, name, spec),
            Body::TcpRoute(spec) => put(&mut cluster.tcp_routes, name, spec),
            Body::Grant(spec) => put(&mut cluster.namespaces.grants, name, spec),
            Body::Namespace(labels) => put(&mut cluster.namespaces.labels, name.name, labels),
            Body::Service(spec) => put(&mut cluster.services, name, spec),
            Body::Slice(slice) => {
                self.slices.put(name, slice);
                false
            }
            Body::IngressClass(true) => cluster.ingress.classes.insert(name.name),
            Body::IngressClass(false) => cluster.ingress.classes.remove(&name.name),
            Body::Ingress(spec) => put(&mut cluster.ingress.all, name, spec),
            Body::Claim(claim) => self.claims.put(&name.name, claim),
            Body::Mark(mark) => self.claims.mark(mark),
        };
        changed
    }

    /// An object is gone. Whether it was there.
    pub(super) fn remove(&mut self, source: Source, name: &ObjectName) -> bool {
        let mut changed = self.put_problems(source, name, Vec::new());
        changed |= self.put_status(source, name, None);
        let cluster = &mut self.cluster;
        changed |= match source {
            Source::Definitions => false,
            Source::GatewayClasses => cluster.classes.remove(&name.name).is_some(),
            Source::Gateways => cluster.gateways.remove(name).is_some(),
            Source::ListenerSets => cluster.listener_sets.remove(name).is_some(),
            Source::TlsRoutes => cluster.tls_routes.remove(name).is_some(),
            Source::TcpRoutes => cluster.tcp_routes.remove(name).is_some(),
            Source::ReferenceGrants => cluster.namespaces.grants.remove(name).is_some(),
            Source::Namespaces => cluster.namespaces.labels.remove(&name.name).is_some(),
            Source::Services => cluster.services.remove(name).is_some(),
            Source::EndpointSlices => {
                self.slices.remove(name);
                false
            }
            Source::IngressClasses => cluster.ingress.classes.remove(&name.name),
            Source::Ingresses => cluster.ingress.all.remove(name).is_some(),
            Source::Claims => self.claims.remove(&name.name),
        };
        changed
    }

    /// These are all there are. Whether anything differs from what was known.
    pub(super) fn replace(&mut self, source: Source, entries: Vec<Entry>) -> bool {
        let gone: Vec<ObjectName> = {
            let listed: HashSet<&ObjectName, foldhash::fast::RandomState> =
                entries.iter().map(|entry| &entry.name).collect();
            self.names(source).into_iter().filter(|name| !listed.contains(name)).collect()
        };
        let mut changed = false;
        for name in gone {
            changed |= self.remove(source, &name);
        }
        if source == Source::Claims {
            self.claims.begin_list();
        }
        for entry in entries {
            changed |= self.put(source, entry);
        }
        changed
    }

    /// Brings endpoints and problems up to date. Whether they changed.
    pub(super) fn settle(&mut self, now: Instant) -> bool {
        let changed = self.slices.settle(&mut self.cluster.endpoints, now);
        if std::mem::take(&mut self.problems_changed) {
            self.cluster.problems = self.problems.values().flatten().cloned().collect();
        }
        changed
    }

    /// Services whose endpoints changed since this was last asked.
    pub(super) fn take_changed_endpoints(&mut self) -> BTreeSet<ObjectName> {
        self.slices.take_changed()
    }

    /// When time alone changes something.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.slices.next_expiry()
    }

    /// What a node serves.
    pub(super) fn claim_set(&self) -> ClaimSet<'_> {
        let Cluster { endpoints, policy, problems, .. } = &self.cluster;
        let (claims, panic_percent) = (self.claims.known(), policy.panic_percent);
        ClaimSet { claims, endpoints, panic_percent, problems }
    }

    pub(super) fn status(&self, object: &ObjectRef) -> Option<&StoredStatus> {
        self.statuses.get(object)
    }

    /// Names of everything that a source has reported.
    fn names(&self, source: Source) -> BTreeSet<ObjectName> {
        let cluster = &self.cluster;
        let bare = |name: &Arc<str>| ObjectName::new("", Arc::clone(name));
        let told = self.problems.keys().filter(|(of, _)| *of == source).map(|(_, name)| name.clone());
        let kept: Vec<ObjectName> = match source {
            Source::Definitions => Vec::new(),
            Source::GatewayClasses => cluster.classes.keys().map(bare).collect(),
            Source::Gateways => cluster.gateways.keys().cloned().collect(),
            Source::ListenerSets => cluster.listener_sets.keys().cloned().collect(),
            Source::TlsRoutes => cluster.tls_routes.keys().cloned().collect(),
            Source::TcpRoutes => cluster.tcp_routes.keys().cloned().collect(),
            Source::ReferenceGrants => cluster.namespaces.grants.keys().cloned().collect(),
            Source::Namespaces => cluster.namespaces.labels.keys().map(bare).collect(),
            Source::Services => cluster.services.keys().cloned().collect(),
            Source::EndpointSlices => self.slices.names().cloned().collect(),
            Source::IngressClasses => cluster.ingress.classes.iter().map(bare).collect(),
            Source::Ingresses => cluster.ingress.all.keys().cloned().collect(),
            Source::Claims => self.claims.names().map(|name| ObjectName::new("", name)).collect(),
        };
        told.chain(kept).collect()
    }

    fn put_problems(&mut self, source: Source, name: &ObjectName, problems: Vec<Problem>) -> bool {
        // Most objects have none: no key is made to find that out.
        if problems.is_empty() && self.problems.is_empty() {
            return false;
        }
        let key = (source, name.clone());
        let changed = if problems.is_empty() {
            self.problems.remove(&key).is_some()
        } else if self.problems.get(&key) == Some(&problems) {
            false
        } else {
            self.problems.insert(key, problems);
            true
        };
        self.problems_changed |= changed;
        changed
    }

    fn put_status(&mut self, source: Source, name: &ObjectName, status: Option<StoredStatus>) -> bool {
        let Some(kind) = kind(source) else { return false };
        let object = ObjectRef { kind, name: name.clone() };
        match status {
            Some(status) if self.statuses.get(&object) == Some(&status) => false,
            Some(status) => {
                self.statuses.insert(object, status);
                true
            }
            None => self.statuses.remove(&object).is_some(),
        }
    }
}

/// The kind of a source whose objects have a status of ours.
pub(super) fn kind(source: Source) -> Option<Kind> {
    Some(match source {
        Source::GatewayClasses => Kind::GatewayClass,
        Source::Gateways => Kind::Gateway,
        Source::ListenerSets => Kind::ListenerSet,
        Source::TlsRoutes => Kind::TlsRoute,
        Source::TcpRoutes => Kind::TcpRoute,
        Source::Services => Kind::Service,
        Source::Ingresses => Kind::Ingress,
        Source::Definitions
        | Source::Namespaces
        | Source::EndpointSlices
        | Source::ReferenceGrants
        | Source::IngressClasses
        | Source::Claims => {
            return None;
        }
    })
}

fn put<K: Ord, V: PartialEq>(table: &mut BTreeMap<K, Arc<V>>, key: K, value: Arc<V>) -> bool {
    if table.get(&key) == Some(&value) {
        return false;
    }
    table.insert(key, value);
    true
}
