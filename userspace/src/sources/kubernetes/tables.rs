//! The tables that a [`Cluster`] is made of, kept up to date by the watches.

use super::claim_table::ClaimTable;
use super::endpoints::Slices;
use super::pack;
use super::source::Source;
use super::watch_event::{Body, Entry, StoredStatus};
use crate::model::{Announcement, ClaimSet, Cluster, ObjectName, ObjectRef, Problem};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio::time::Instant;

/// Everything that was folded.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) cluster: Cluster,
    pub(super) claims: ClaimTable,
    /// What the cluster announces. An object that is gone, or cannot be read, takes nothing back: only another one does.
    pub(super) announcement: Option<Arc<Announcement>>,
    slices: Slices,
    problems: BTreeMap<(Source, ObjectName), Vec<Problem>>,
    problems_changed: bool,
    statuses: HashMap<ObjectRef, StoredStatus, foldhash::fast::RandomState>,
    /// How many objects of a source came one by one since its table was packed.
    unpacked: BTreeMap<Source, usize>,
}

/// A table is worth packing when this part of it came one by one: one in this many.
const UNPACKED_SHARE: usize = 8;

impl Tables {
    /// A new or changed object. Whether it says anything new; what slices say shows in [`Tables::settle`].
    pub(super) fn put(&mut self, source: Source, entry: Entry) -> bool {
        *self.unpacked.entry(source).or_default() += 1;
        let Entry { name, body, problems, status } = entry;
        let first = problems.first().cloned();
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
            Body::Origin(Some(object)) => match source {
                Source::Origin(watched) => cluster.origins.put(watched.resource, object),
                _ => false,
            },
            Body::Origin(None) => self.table(source).is_some_and(|table| table.remove(&name)),
            Body::Pool(spec) => put(&mut cluster.pools, name, spec),
            Body::Advertisement(spec) => put(&mut cluster.announcing.advertisements, name, spec),
            Body::Report(meta) => match source {
                Source::L2Statuses => put(&mut cluster.announcing.reports.l2_statuses, name, meta),
                _ => put(&mut cluster.announcing.reports.configurations, name, meta),
            },
            Body::Node(node) => put(&mut cluster.announcing.nodes, name.name, node),
            Body::Claim(read) => self.claims.put(&name.name, read, first),
            Body::Mark(mark) => self.claims.mark(mark),
            Body::Announcement(Some(said)) if self.announcement.as_ref() != Some(&said) => {
                self.announcement = Some(said);
                true
            }
            Body::Announcement(_) => false,
        };
        changed
    }

    /// An object is gone. Whether it was there.
    pub(super) fn remove(&mut self, source: Source, name: &ObjectName) -> bool {
        let mut changed = self.put_problems(source, name, Vec::new());
        changed |= self.put_status(source, name, None);
        changed | self.table(source).is_some_and(|table| table.remove(name))
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
        self.unpacked.remove(&source);
        if let Some(table) = self.table(source) {
            table.pack();
        }
        changed
    }

    /// Takes the room out of tables to which many objects came one by one. To be called when idle.
    pub(super) fn pack(&mut self) {
        let mut unpacked = std::mem::take(&mut self.unpacked);
        unpacked.retain(|source, count| {
            let Some(table) = self.table(*source) else { return false };
            let is_due = *count * UNPACKED_SHARE > table.len();
            if is_due {
                table.pack();
            }
            if is_due && *source == Source::EndpointSlices {
                pack::map(&mut self.cluster.endpoints);
            }
            !is_due
        });
        self.unpacked = unpacked;
    }

    /// Brings endpoints and problems up to date. Whether they changed.
    pub(super) fn settle(&mut self, now: Instant) -> bool {
        let changed = self.slices.settle(&mut self.cluster.endpoints, now);
        if std::mem::take(&mut self.problems_changed) {
            self.cluster.problems = self.problems.values().flatten().cloned().collect();
        }
        changed
    }

    /// Whether problems changed that [`Tables::settle`] has not brought up to date yet.
    pub(super) fn problems_changed(&self) -> bool {
        self.problems_changed
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
    fn names(&mut self, source: Source) -> BTreeSet<ObjectName> {
        let told = self.problems.keys().filter(|(of, _)| *of == source).map(|(_, name)| name.clone());
        let mut names: BTreeSet<ObjectName> = told.collect();
        names.extend(self.table(source).into_iter().flat_map(|table| table.names()));
        names
    }

    /// Where objects of a source are kept; `None`: nowhere.
    fn table(&mut self, source: Source) -> Option<&mut dyn Table> {
        let cluster = &mut self.cluster;
        Some(match source {
            Source::Definitions | Source::Announcements => return None,
            Source::GatewayClasses => &mut cluster.classes,
            Source::Gateways => &mut cluster.gateways,
            Source::ListenerSets => &mut cluster.listener_sets,
            Source::TlsRoutes => &mut cluster.tls_routes,
            Source::TcpRoutes => &mut cluster.tcp_routes,
            Source::ReferenceGrants => &mut cluster.namespaces.grants,
            Source::Namespaces => &mut cluster.namespaces.labels,
            Source::Services => &mut cluster.services,
            Source::EndpointSlices => &mut self.slices,
            Source::Origin(watched) => cluster.origins.table(watched.resource)?,
            Source::Pools => &mut cluster.pools,
            Source::Advertisements => &mut cluster.announcing.advertisements,
            Source::L2Statuses => &mut cluster.announcing.reports.l2_statuses,
            Source::Configurations => &mut cluster.announcing.reports.configurations,
            Source::Nodes => &mut cluster.announcing.nodes,
            Source::Claims => &mut self.claims,
        })
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
        let Some(kind) = source.kind() else { return false };
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

/// Objects of one source.
trait Table {
    /// Whether that changes what is known.
    fn remove(&mut self, name: &ObjectName) -> bool;

    fn names(&self) -> Vec<ObjectName>;

    /// How many there are.
    fn len(&self) -> usize;

    /// To be called after many were added.
    fn pack(&mut self);
}

impl<V> Table for BTreeMap<ObjectName, V> {
    fn remove(&mut self, name: &ObjectName) -> bool {
        BTreeMap::remove(self, name).is_some()
    }

    fn names(&self) -> Vec<ObjectName> {
        self.keys().cloned().collect()
    }

    fn len(&self) -> usize {
        BTreeMap::len(self)
    }

    fn pack(&mut self) {
        pack::map(self);
    }
}

/// Of a kind without namespaces.
impl<V> Table for BTreeMap<Arc<str>, V> {
    fn remove(&mut self, name: &ObjectName) -> bool {
        BTreeMap::remove(self, &name.name).is_some()
    }

    fn names(&self) -> Vec<ObjectName> {
        self.keys().map(without_namespace).collect()
    }

    fn len(&self) -> usize {
        BTreeMap::len(self)
    }

    fn pack(&mut self) {
        pack::map(self);
    }
}

impl Table for Slices {
    fn remove(&mut self, name: &ObjectName) -> bool {
        self.take_away(name);
        // It shows in [`Tables::settle`].
        false
    }

    fn names(&self) -> Vec<ObjectName> {
        Slices::names(self).cloned().collect()
    }

    fn len(&self) -> usize {
        Slices::len(self)
    }

    fn pack(&mut self) {
        Slices::pack(self);
    }
}

impl Table for ClaimTable {
    fn remove(&mut self, name: &ObjectName) -> bool {
        self.take_away(&name.name)
    }

    fn names(&self) -> Vec<ObjectName> {
        ClaimTable::names(self).map(|name| without_namespace(&name)).collect()
    }

    fn len(&self) -> usize {
        ClaimTable::len(self)
    }

    fn pack(&mut self) {
        ClaimTable::pack(self);
    }
}

fn without_namespace(name: &Arc<str>) -> ObjectName {
    ObjectName::new("", Arc::clone(name))
}

fn put<K: Ord, V: PartialEq>(table: &mut BTreeMap<K, Arc<V>>, key: K, value: Arc<V>) -> bool {
    if table.get(&key) == Some(&value) {
        return false;
    }
    table.insert(key, value);
    true
}

#[cfg(test)]
mod tests {
    use super::super::watch_event::Slice;
    use super::*;
    use crate::model::cluster::{Endpoint, EndpointState};

    fn slice(number: u8) -> Entry {
        let name = ObjectName::new("ns", format!("s{number:02}"));
        let endpoint = Endpoint {
            port_name: "p".into(),
            address: [10, 0, 0, number].into(),
            port: 1,
            state: EndpointState::Ready,
            zones: Arc::new([]),
            node: None,
        };
        let slice = Slice { service: Arc::clone(&name.name), endpoints: [endpoint].into() };
        Entry { name, body: Body::Slice(slice), problems: Vec::new(), status: None }
    }

    #[test]
    fn a_table_is_packed_when_an_eighth_of_it_came_one_by_one() {
        let mut tables = Tables::default();
        tables.replace(Source::EndpointSlices, (0..16).map(slice).collect());
        assert!(tables.unpacked.is_empty(), "a list is packed");
        for number in 16..18 {
            tables.put(Source::EndpointSlices, slice(number));
        }
        tables.pack();
        assert_eq!(tables.unpacked, [(Source::EndpointSlices, 2)].into(), "it is not worth it yet");
        tables.put(Source::EndpointSlices, slice(18));
        tables.settle(Instant::now());
        let before = tables.cluster.endpoints.clone();
        tables.pack();
        assert!(tables.unpacked.is_empty());
        assert_eq!((tables.slices.len(), tables.cluster.endpoints.len()), (19, 19));
        assert_eq!(tables.cluster.endpoints, before);
    }
}
