//! What is made of MetalLB's kinds for others to read: which nodes announce each Service, and what of the configuration is not honoured.
//! Pure.
//!
//! Only where their definitions are, in one of the namespaces that the chart names, and while MetalLB is away, which writes them itself.

use super::queue::{Whole, Write};
use crate::ipam::Assignment;
use crate::model::kind::REPORTER;
use crate::model::{Cluster, Kind, Meta, ObjectName, ObjectRef, Problem, digest};
use crate::sources::kubernetes::api::node_state::NodeAnnounced;
use crate::sources::kubernetes::{Source, StoredStatus};
use crate::status::{self, Nodes};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The most bytes of the value of a label.
const LABEL_BYTES_MAX: usize = 63;
/// Name of the ConfigurationState. MetalLB's own are `controller` and `speaker-NODE`.
const CONFIGURATION: &str = "vestibule";

/// A node, and a device of it.
type Device = (Arc<str>, Arc<str>);

/// What live agents say that their nodes announce.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// `metadata.uid` of NodeStates, by node.
    uids: BTreeMap<Arc<str>, String>,
    by_address: BTreeMap<IpAddr, Vec<Device>>,
    /// Nodes that see a foreign host answer for an address, by the address, the host's link address and the name of their device.
    conflicts: BTreeMap<(IpAddr, String, Arc<str>), BTreeSet<Arc<str>>>,
    /// Nodes that may announce addresses and are silent, each with the nodes that receive nothing of them.
    unheard: BTreeMap<String, BTreeSet<Arc<str>>>,
}

/// A foreign host that answers for an address of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Conflict {
    pub(super) object: ObjectRef,
    pub(super) address: IpAddr,
    /// The host's link address.
    pub(super) link: String,
    /// Name of the device on whose segment it is, on these nodes.
    pub(super) device: Arc<str>,
    pub(super) nodes: BTreeSet<Arc<str>>,
}

impl Announced {
    /// Of nodes, each with the uid of its NodeState and what that says.
    pub(super) fn of<'a>(nodes: impl Iterator<Item = (&'a str, &'a str, &'a [NodeAnnounced])>) -> Self {
        let mut this = Self::default();
        for (node, uid, announced) in nodes.filter(|(.., announced)| !announced.is_empty()) {
            let node: Arc<str> = node.into();
            for on in announced {
                let device: Arc<str> = on.device.as_str().into();
                // Any client that may write NodeStates may write anything.
                for address in on.addresses.iter().filter_map(|text| text.parse().ok()) {
                    let there = (Arc::clone(&node), Arc::clone(&device));
                    this.by_address.entry(address).or_default().push(there);
                }
                for conflict in &on.conflicts {
                    let link = &conflict.link_address;
                    if let (Ok(address), true) = (conflict.address.parse(), is_link_address(link)) {
                        let key = (address, link.clone(), Arc::clone(&device));
                        this.conflicts.entry(key).or_default().insert(Arc::clone(&node));
                    }
                }
                for other in on.unheard.iter().filter(|other| **other != *node) {
                    this.unheard.entry(other.clone()).or_default().insert(Arc::clone(&node));
                }
            }
            this.uids.insert(node, uid.to_owned());
        }
        this
    }

    /// Returns nodes that may announce addresses and are silent though their agents are alive, each with the nodes that receive nothing of them.
    pub(super) fn unheard<'a>(
        &'a self,
        nodes: &'a Nodes,
    ) -> impl Iterator<Item = (&'a str, &'a BTreeSet<Arc<str>>)> {
        let is_live = |node: &str| nodes.live.contains_key(node) || nodes.unknown.contains_key(node);
        self.unheard.iter().map(|(node, by)| (node.as_str(), by)).filter(move |(node, _)| is_live(node))
    }

    /// Returns the devices on which these addresses are announced, by node.
    fn nodes(&self, addresses: &[IpAddr]) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut nodes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (node, device) in addresses.iter().filter_map(|address| self.by_address.get(address)).flatten() {
            nodes.entry(node).or_default().insert(device);
        }
        nodes
    }
}

/// What is needed for these objects besides the cluster.
#[derive(Debug, Default)]
pub(super) struct Reporting {
    /// `None`: not known.
    pub(super) announced: Option<Announced>,
    /// Whether the cluster has ServiceL2Statuses.
    pub(super) has_l2_statuses: bool,
    /// Whether it has ConfigurationStates.
    pub(super) has_configurations: bool,
}

impl Reporting {
    #[cfg(test)]
    pub(super) const NONE: Self = Self { announced: None, has_l2_statuses: false, has_configurations: false };
}

/// What they follow from.
pub(super) struct Basis<'a> {
    pub(super) cluster: &'a Cluster,
    /// Their status as last received.
    pub(super) status: &'a dyn Fn(&ObjectRef) -> Option<&'a StoredStatus>,
    pub(super) reporting: &'a Reporting,
    /// Whether MetalLB is known to be away.
    pub(super) is_alone: bool,
    /// What is not listed.
    pub(super) unlisted: BTreeSet<Source>,
    /// RFC 3339, UTC.
    pub(super) now: &'a str,
}

/// An object, and how it is to be written; `None`: it is as it should be.
pub(super) type Written = (ObjectRef, Option<Write>);

impl Basis<'_> {
    /// Which nodes announce each Service that has these addresses: an object for each of them.
    pub(super) fn l2_statuses(&self, assignment: &Assignment) -> Vec<Written> {
        let Reporting { announced: Some(announced), has_l2_statuses: true, .. } = self.reporting else {
            return Vec::new();
        };
        let Some(namespace) = self.namespace(Source::L2Statuses) else { return Vec::new() };
        let mut all = BTreeMap::new();
        for (service, allocation) in &assignment.services {
            for (node, devices) in announced.nodes(&allocation.addresses) {
                let object = l2_status(namespace, service, node);
                let wanted =
                    |current: &Value| status::l2_status::desired_status(current, node, service, &devices);
                let metadata =
                    || of_service(service, node, announced.uids.get(node).map_or("", String::as_str));
                let write = self.write(&object, metadata, wanted);
                all.insert(object, write);
            }
        }
        self.with_others(all, Kind::ServiceL2Status, &self.cluster.announcing.reports.l2_statuses)
    }

    /// Which foreign hosts answer for addresses of these objects.
    pub(super) fn conflicts(&self, assignment: &Assignment) -> Vec<Conflict> {
        let conflicts = self.reporting.announced.iter().flat_map(|announced| &announced.conflicts);
        let conflicts: Vec<_> = conflicts.collect();
        if conflicts.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let all = [(Kind::Gateway, &assignment.gateways), (Kind::Service, &assignment.services)];
        for (kind, (name, allocation)) in
            all.into_iter().flat_map(|(kind, of)| of.iter().map(move |one| (kind, one)))
        {
            let its = conflicts.iter().filter(|((address, ..), _)| allocation.addresses.contains(address));
            found.extend(its.map(|((address, link, device), nodes)| Conflict {
                object: ObjectRef { kind, name: name.clone() },
                address: *address,
                link: link.clone(),
                device: Arc::clone(device),
                nodes: (*nodes).clone(),
            }));
        }
        found
    }

    /// What of MetalLB's configuration is wrong, or not honoured.
    pub(super) fn configuration(&self, problems: &[Problem]) -> Vec<Written> {
        // Without these nothing is known to be wrong.
        let is_unknown = [Source::Pools, Source::Advertisements].iter().any(|of| self.unlisted.contains(of));
        if !self.reporting.has_configurations || is_unknown {
            return Vec::new();
        }
        let Some(namespace) = self.namespace(Source::Configurations) else { return Vec::new() };
        let object = ObjectRef {
            kind: Kind::ConfigurationState,
            name: ObjectName::new(Arc::clone(namespace), CONFIGURATION),
        };
        let of = |kind| {
            let of_kind =
                |problem: &&Problem| problem.object.as_ref().is_some_and(|object| object.kind == kind);
            problems.iter().filter(of_kind).map(line).collect::<BTreeSet<String>>()
        };
        let (pools, advertisements) = (of(Kind::IpAddressPool), of(Kind::L2Advertisement));
        let metadata =
            || json!({"labels": {REPORTER: "controller", "metallb.io/component-type": "controller"}});
        let write = self.write(&object, metadata, |current| {
            status::configuration::desired_status(current, &pools, &advertisements, self.now)
        });
        let all = BTreeMap::from([(object, write)]);
        self.with_others(all, Kind::ConfigurationState, &self.cluster.announcing.reports.configurations)
    }

    /// Returns the namespace that they are made in, the first of the chart's that is there; `None`: they are left as they are.
    fn namespace(&self, source: Source) -> Option<&Arc<str>> {
        let is_ours = self.is_alone && !self.unlisted.contains(&source);
        let mut namespaces = self.cluster.policy.pools.namespaces.iter().filter(|_| is_ours);
        namespaces.find(|name| self.cluster.namespaces.labels.contains_key(*name))
    }

    fn write(
        &self,
        object: &ObjectRef,
        metadata: impl FnOnce() -> Value,
        wanted: impl FnOnce(&Value) -> Option<Value>,
    ) -> Option<Write> {
        let Some(stored) = (self.status)(object) else {
            let (whole, status) = (Some(Whole::Create(metadata())), wanted(&Value::Null)?);
            return Some(Write { whole, status, ..Write::default() });
        };
        let (status, version) = (wanted(&stored.status)?, stored.resource_version.clone());
        Some(Write { status, version, ..Write::default() })
    }

    /// Deletes all others of the kind.
    fn with_others(
        &self,
        all: BTreeMap<ObjectRef, Option<Write>>,
        kind: Kind,
        there: &BTreeMap<ObjectName, Arc<Meta>>,
    ) -> Vec<Written> {
        let others = deletions(self.cluster, kind, there).filter(|(object, _)| !all.contains_key(object));
        let others: Vec<Written> = others.map(|(object, write)| (object, Some(write))).collect();
        all.into_iter().chain(others).collect()
    }
}

/// Returns writes that delete all that was made, for one that leaves the cluster.
pub(super) fn leave(cluster: &Cluster) -> Vec<(ObjectRef, Write)> {
    let reports = &cluster.announcing.reports;
    let l2_statuses = deletions(cluster, Kind::ServiceL2Status, &reports.l2_statuses);
    l2_statuses.chain(deletions(cluster, Kind::ConfigurationState, &reports.configurations)).collect()
}

/// Elsewhere than in the chart's namespaces nothing is ours to delete.
fn deletions(
    cluster: &Cluster,
    kind: Kind,
    there: &BTreeMap<ObjectName, Arc<Meta>>,
) -> impl Iterator<Item = (ObjectRef, Write)> {
    let ours = there.iter().filter(|(name, _)| cluster.policy.pools.namespaces.contains(&name.namespace));
    ours.map(move |(name, meta)| {
        // A version that none has that is made: it may be wanted again before its deletion is reported.
        let (version, whole) = (meta.uid.to_string(), Some(Whole::Delete(meta.uid.to_string())));
        (ObjectRef { kind, name: name.clone() }, Write { whole, version, ..Write::default() })
    })
}

/// MetalLB has the API server make names up. Of two leaders, the second one finds what the first one made.
fn l2_status(namespace: &Arc<str>, service: &ObjectName, node: &str) -> ObjectRef {
    let digest = digest::of(&["ServiceL2Status", &service.namespace, &service.name, node]);
    let name = ObjectName::new(Arc::clone(namespace), format!("l2-{digest:016x}"));
    ObjectRef { kind: Kind::ServiceL2Status, name }
}

/// With MetalLB's labels. MetalLB's own objects go with the speaker's Pod, ours with the node's NodeState.
fn of_service(service: &ObjectName, node: &str, uid: &str) -> Value {
    let labels = [
        (REPORTER, "controller"),
        ("metallb.io/node", node),
        ("metallb.io/service-name", &service.name),
        ("metallb.io/service-namespace", &service.namespace),
    ];
    // A node's name may be longer. The status says it, too.
    let labels: BTreeMap<&str, &str> =
        labels.into_iter().filter(|(_, value)| value.len() <= LABEL_BYTES_MAX).collect();
    let mut metadata = json!({ "labels": labels });
    if !uid.is_empty() {
        let owner =
            json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "NodeState", "name": node, "uid": uid});
        metadata["ownerReferences"] = json!([owner]);
    }
    metadata
}

/// Whether this is six bytes in hexadecimal, with colons between them.
fn is_link_address(text: &str) -> bool {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(is_byte)
}

fn line(problem: &Problem) -> String {
    let object = problem.object.as_ref().map_or(String::new(), |object| format!("{object}: "));
    let field = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
    format!("{object}{field}{}; {}", problem.what, problem.remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::Allocation;
    use crate::model::cluster::PoolPolicy;
    use crate::sources::kubernetes::api::node_state::NodeConflict;

    const NOW: &str = "2026-11-29T10:00:00Z";

    /// A cluster with MetalLB's namespace, Services and nodes.
    struct Scene {
        cluster: Cluster,
        assignment: Assignment,
        nodes: Vec<(&'static str, Vec<NodeAnnounced>)>,
        statuses: BTreeMap<ObjectRef, StoredStatus>,
        is_alone: bool,
        is_known: bool,
        unlisted: BTreeSet<Source>,
        has: bool,
    }

    impl Scene {
        fn new(namespaces: &[&str]) -> Self {
            let mut cluster = Cluster::default();
            cluster.policy.pools =
                PoolPolicy { namespaces: namespaces.iter().map(|name| (*name).into()).collect() };
            cluster.namespaces.labels.insert("metallb-system".into(), Arc::default());
            Self {
                cluster,
                assignment: Assignment::default(),
                nodes: Vec::new(),
                statuses: BTreeMap::new(),
                is_alone: true,
                is_known: true,
                unlisted: BTreeSet::new(),
                has: true,
            }
        }

        fn service(&mut self, name: &str, addresses: &[&str]) {
            let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let allocation = Allocation { addresses, ..Allocation::default() };
            self.assignment.services.insert(ObjectName::new("t", name), allocation);
        }

        fn node(&mut self, name: &'static str, devices: &[(&str, &[&str])]) {
            let on = |(device, addresses): &(&str, &[&str])| NodeAnnounced {
                device: (*device).to_owned(),
                addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
                ..NodeAnnounced::default()
            };
            self.nodes.retain(|(node, _)| *node != name);
            self.nodes.push((name, devices.iter().map(on).collect()));
        }

        fn with<T>(&self, ask: impl FnOnce(&Basis<'_>) -> T) -> T {
            let nodes = self.nodes.iter().map(|(node, announced)| (*node, "uid", &**announced));
            let reporting = Reporting {
                announced: self.is_known.then(|| Announced::of(nodes)),
                has_l2_statuses: self.has,
                has_configurations: self.has,
            };
            ask(&Basis {
                cluster: &self.cluster,
                status: &|object| self.statuses.get(object),
                reporting: &reporting,
                is_alone: self.is_alone,
                unlisted: self.unlisted.clone(),
                now: NOW,
            })
        }

        fn l2_statuses(&self) -> Vec<Written> {
            self.with(|basis| basis.l2_statuses(&self.assignment))
        }

        /// Carries writes out as the API server does, and as the watch reports it. Returns how many there were.
        fn carry_out(&mut self, written: Vec<Written>) -> usize {
            let writes: Vec<_> =
                written.into_iter().filter_map(|(object, write)| Some((object, write?))).collect();
            for (object, Write { whole, status, .. }) in &writes {
                let reports = &mut self.cluster.announcing.reports;
                let there = match object.kind {
                    Kind::ServiceL2Status => &mut reports.l2_statuses,
                    _ => &mut reports.configurations,
                };
                match whole {
                    Some(Whole::Delete(uid)) => {
                        assert_eq!(*there.remove(&object.name).unwrap().uid, **uid);
                        self.statuses.remove(object);
                        continue;
                    }
                    Some(Whole::Create(_)) => {
                        let meta = Meta { uid: "made".into(), name: object.name.clone(), ..Meta::default() };
                        assert!(there.insert(object.name.clone(), Arc::new(meta)).is_none());
                    }
                    None => {}
                }
                let (uid, resource_version) = ("made".to_owned(), "2".to_owned());
                let stored = StoredStatus { resource_version, uid, status: json!({}) };
                let stored = self.statuses.entry(object.clone()).or_insert(stored);
                for (field, value) in status.as_object().unwrap() {
                    stored.status[field] = value.clone();
                }
            }
            writes.len()
        }

        fn settle(&mut self) -> usize {
            self.carry_out(self.l2_statuses())
        }

        /// `service node devices` of each.
        fn said(&self) -> Vec<String> {
            let said = self.statuses.values().map(|stored| {
                let devices = stored.status["interfaces"].as_array().unwrap().iter();
                let devices: Vec<_> = devices.map(|one| one["name"].as_str().unwrap()).collect();
                let text = |field: &str| stored.status[field].as_str().unwrap().to_owned();
                format!("{} {} {}", text("serviceName"), text("node"), devices.join(","))
            });
            let mut said: Vec<String> = said.collect();
            said.sort_unstable();
            said
        }
    }

    /// As MetalLB's speaker writes it, but for name and owner.
    #[test]
    fn an_object_is_made_with_metallbs_labels_and_status() {
        let mut scene = Scene::new(&["gone", "metallb-system"]);
        scene.service("web", &["192.0.2.1"]);
        scene.node("n1", &[("eth0", &["192.0.2.1"])]);
        let written = scene.l2_statuses();
        let [(object, Some(write))] = written.as_slice() else { panic!("{written:?}") };
        assert_eq!((object.kind, &*object.name.namespace), (Kind::ServiceL2Status, "metallb-system"));
        let name = &*object.name.name;
        assert!(name.starts_with("l2-") && name.len() == 19, "{name}");
        let made = json!({
            "labels": {
                "vestibule.dev/reporter": "controller", "metallb.io/node": "n1",
                "metallb.io/service-name": "web", "metallb.io/service-namespace": "t",
            },
            "ownerReferences": [
                {"apiVersion": "vestibule.dev/v1alpha1", "kind": "NodeState", "name": "n1", "uid": "uid"},
            ],
        });
        assert_eq!(write.whole, Some(Whole::Create(made)));
        let status = json!({
            "node": "n1", "serviceName": "web", "serviceNamespace": "t", "interfaces": [{"name": "eth0"}],
        });
        assert_eq!(write.status, status);
    }

    #[test]
    fn a_label_that_no_object_may_have_is_left_out() {
        let long = "n".repeat(64);
        let metadata = of_service(&ObjectName::new("t", "web"), &long, "");
        assert_eq!(metadata["labels"].as_object().unwrap().len(), 3);
        assert!(metadata.get("ownerReferences").is_none(), "the API server refuses one without uid");
    }

    #[test]
    fn foreign_hosts_are_named_of_the_objects_whose_addresses_they_answer_for() {
        let mut scene = Scene::new(&[]);
        scene.service("a", &["192.0.2.1", "192.0.2.2"]);
        scene.service("b", &["192.0.2.3"]);
        let allocation =
            Allocation { addresses: vec!["192.0.2.2".parse().unwrap()], ..Allocation::default() };
        scene.assignment.gateways.insert(ObjectName::new("t", "g"), allocation);
        let conflicts = |scene: &Scene| scene.with(|basis| basis.conflicts(&scene.assignment));
        for node in ["n1", "n2", "n3"] {
            scene.node(node, &[("eth0", &["192.0.2.1"])]);
        }
        assert_eq!(conflicts(&scene), []);
        let conflict = |address: &str, link: &str| NodeConflict {
            address: address.to_owned(),
            link_address: link.to_owned(),
        };
        const LINK: &str = "02:00:00:00:00:0a";
        for at in [0, 1] {
            scene.nodes[at].1[0].conflicts = vec![conflict("192.0.2.2", LINK), conflict("192.0.2.77", LINK)];
        }
        // Any client that may write NodeStates may write anything.
        scene.nodes[2].1[0].conflicts = vec![conflict("192.0.2.3", "call 555"), conflict("x", LINK)];
        let found = conflicts(&scene);
        let objects: Vec<_> = found.iter().map(|found| found.object.to_string()).collect();
        assert_eq!(objects, ["Gateway t/g", "Service t/a"]);
        for found in found {
            assert_eq!((found.address.to_string().as_str(), found.link.as_str()), ("192.0.2.2", LINK));
            assert_eq!((&*found.device, found.nodes), ("eth0", ["n1".into(), "n2".into()].into()));
        }
        scene.is_known = false;
        assert_eq!(conflicts(&scene), [], "not all NodeStates are listed");
    }

    #[test]
    fn silent_candidates_are_named_while_their_agents_are_alive() {
        let unheard = |by: &str| {
            let on = NodeAnnounced {
                unheard: vec!["off".into(), "n2".into(), by.into()],
                ..NodeAnnounced::default()
            };
            vec![on]
        };
        let all = [("n1", unheard("n1")), ("n3", unheard("n3"))];
        let announced = Announced::of(all.iter().map(|(node, on)| (*node, "uid", &**on)));
        let mut nodes = Nodes::default();
        for node in ["n1", "n2", "n3"] {
            nodes.live.insert(node.to_owned(), Default::default());
        }
        let found: Vec<_> = announced.unheard(&nodes).collect();
        let by = ["n1".into(), "n3".into()].into();
        assert_eq!(found, [("n2", &by)], "not a node itself, nor one whose Lease has ended");
    }

    #[test]
    fn there_is_one_for_each_service_and_node_that_announces_it_and_at_rest_nothing_is_written() {
        let mut scene = Scene::new(&["metallb-system"]);
        scene.service("both", &["192.0.2.1", "2001:db8::1"]);
        scene.service("other", &["192.0.2.2"]);
        scene.service("nobody", &["192.0.2.3"]);
        scene.node("n1", &[("eth0", &["192.0.2.1"]), ("eth1", &["192.0.2.1", "192.0.2.2"])]);
        scene.node("n2", &[("eth0", &["2001:db8::1", "192.0.2.99", "no address"])]);
        let made = scene.l2_statuses();
        assert_eq!((scene.settle(), scene.settle()), (3, 0));
        assert_eq!(scene.said(), ["both n1 eth0,eth1", "both n2 eth0", "other n1 eth1"]);
        let versions = |all: Vec<(ObjectRef, Write)>| {
            all.into_iter().map(|(_, write)| write.version).collect::<BTreeSet<String>>()
        };
        let made = made.into_iter().filter_map(|(object, write)| Some((object, write?))).collect();
        assert!(
            versions(made).is_disjoint(&versions(leave(&scene.cluster))),
            "the queue would take one for the other"
        );
        // A node announces it on one device less; another one leaves an address to it.
        scene.node("n1", &[("eth0", &["192.0.2.1", "2001:db8::1", "192.0.2.2"])]);
        scene.node("n2", &[]);
        assert_eq!((scene.settle(), scene.settle()), (3, 0));
        assert_eq!(scene.said(), ["both n1 eth0", "other n1 eth0"]);
        scene.assignment.services.remove(&ObjectName::new("t", "both"));
        assert_eq!((scene.settle(), scene.settle()), (1, 0));
        assert_eq!(scene.said(), ["other n1 eth0"]);
    }

    /// Each write is one request, or two where an object is made.
    #[test]
    fn of_1_000_services_each_is_written_once_and_a_move_costs_what_moves() {
        let mut scene = Scene::new(&["metallb-system"]);
        let addresses: Vec<String> = (0..1_000).map(|at| format!("10.0.{}.{}", at / 250, at % 250)).collect();
        for (at, address) in addresses.iter().enumerate() {
            scene.service(&format!("s{at}"), &[address]);
        }
        let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let announce = |scene: &mut Scene, at: usize| {
            scene.node("n1", &[("eth0", &all[..at])]);
            scene.node("n2", &[("eth0", &all[at..])]);
        };
        announce(&mut scene, 500);
        assert_eq!((scene.settle(), scene.settle()), (1_000, 0));
        announce(&mut scene, 501);
        assert_eq!((scene.settle(), scene.settle()), (2, 0));
    }

    #[test]
    fn nothing_is_written_while_that_is_anothers_or_something_is_not_known() {
        let mut scene = Scene::new(&["metallb-system"]);
        scene.service("web", &["192.0.2.1"]);
        scene.node("n1", &[("eth0", &["192.0.2.1"])]);
        assert_eq!(scene.settle(), 1);
        scene.node("n1", &[]);
        scene.node("n2", &[("eth0", &["192.0.2.1"])]);
        let pool = ObjectRef { kind: Kind::IpAddressPool, name: ObjectName::new("m", "p") };
        let problem = [Problem::warning("", "wrong", "do").object(pool)];
        let count = |scene: &Scene| {
            let of = |written: Vec<Written>| written.iter().filter(|(_, write)| write.is_some()).count();
            (of(scene.l2_statuses()), of(scene.with(|basis| basis.configuration(&problem))))
        };
        assert_eq!(count(&scene), (2, 1));
        scene.is_alone = false;
        assert_eq!(count(&scene), (0, 0), "MetalLB writes them");
        (scene.is_alone, scene.has) = (true, false);
        assert_eq!(count(&scene), (0, 0), "there are no such kinds");
        scene.has = true;
        scene.unlisted = [Source::L2Statuses, Source::Configurations].into();
        assert_eq!(count(&scene), (0, 0), "it is not known what was made");
        for unlisted in [Source::Pools, Source::Advertisements] {
            scene.unlisted = [unlisted].into();
            assert_eq!(count(&scene), (2, 0), "it is not known what is wrong");
        }
        scene.unlisted.clear();
        scene.is_known = false;
        assert_eq!(count(&scene), (0, 1), "it is not known who announces");
        scene.is_known = true;
        scene.cluster.namespaces.labels.clear();
        assert_eq!(count(&scene), (0, 0), "the namespace is gone");
    }

    /// As when the chart's list of namespaces is another one.
    #[test]
    fn what_was_made_is_deleted_in_the_charts_namespaces_alone() {
        let mut scene = Scene::new(&["metallb-system", "b"]);
        let reports = &mut scene.cluster.announcing.reports;
        for namespace in ["metallb-system", "b", "c"] {
            let name = ObjectName::new(namespace, "l2-x");
            let meta = Arc::new(Meta { uid: "u".into(), name: name.clone(), ..Meta::default() });
            reports.l2_statuses.insert(name.clone(), Arc::clone(&meta));
            reports.configurations.insert(name, meta);
        }
        let deleted = |written: &[(ObjectRef, Write)]| {
            let deletes = written.iter().filter(|(_, write)| write.whole == Some(Whole::Delete("u".into())));
            deletes.map(|(object, _)| object.to_string()).collect::<Vec<_>>()
        };
        let some = |written: Vec<Written>| {
            written.into_iter().filter_map(|(object, write)| Some((object, write?))).collect::<Vec<_>>()
        };
        assert_eq!(deleted(&some(scene.l2_statuses())).len(), 2);
        assert_eq!(deleted(&some(scene.with(|basis| basis.configuration(&[])))).len(), 2);
        let left = leave(&scene.cluster);
        assert_eq!((left.len(), deleted(&left).len()), (4, 4));
        assert!(left.iter().all(|(object, _)| &*object.name.namespace != "c"));
    }

    #[test]
    fn a_configuration_says_what_is_wrong() {
        let mut scene = Scene::new(&["metallb-system"]);
        let of = |kind, name: &str, field: &str| {
            let problem = Problem::warning(field, "selects no node of an agent", "select others");
            problem.object(ObjectRef { kind, name: ObjectName::new("metallb-system", name) })
        };
        let problems = [
            of(Kind::L2Advertisement, "l2", "spec.nodeSelectors"),
            of(Kind::Service, "web", "spec"),
            Problem::warning("", "of the node", ""),
        ];
        let written = scene.with(|basis| basis.configuration(&problems));
        assert_eq!((scene.carry_out(written), scene.statuses.len()), (1, 1));
        let (object, stored) = scene.statuses.iter().next().unwrap();
        assert_eq!(object.to_string(), "ConfigurationState metallb-system/vestibule");
        let said = "L2Advertisement metallb-system/l2: spec.nodeSelectors: selects no node of an agent; select others";
        assert_eq!(stored.status["errorSummary"], said);
        assert_eq!(scene.with(|basis| basis.configuration(&problems))[0].1, None);
        let written = scene.with(|basis| basis.configuration(&[]));
        assert_eq!(scene.carry_out(written), 1);
        assert_eq!(scene.statuses.values().next().unwrap().status["result"], "Valid");
    }
}
