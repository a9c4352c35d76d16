//! What is written as Events: problems of objects, complaints of nodes, backends that nodes see down. Pure.

use super::allocated::Happening;
use super::claims::Edited;
use super::health::Failing;
use super::keys::{KEYS, SECRET};
use super::kube_event::{Note, Regarding, Teller};
use super::reports::{Conflict, Reporting};
use super::writes::api_version;
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, Problem};
use crate::origins;
use crate::sources::kubernetes::Stale;
use crate::sources::kubernetes::api::claim::SETTLED;
use crate::status::{Nodes, node_names};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// Returns the note that another client has changed or deleted a Claim.
fn edited(edited: &Edited) -> Note {
    let what = if edited.is_deleted { "deleted" } else { "changed" };
    let text = format!(
        "another client has {what} it, and it is written again: only the controller writes Claims; change the object that it is of, and \
         set the chart's claimsByControllerOnly, so that nobody else may"
    );
    let regarding = of_claim(&edited.name, &edited.uid);
    Note { regarding, is_warning: true, reason: "PutBack", text, goes_last: true, ..Note::default() }
}

/// The most notes of single Claims that wait to be written.
const EDITED_MAX: usize = 20;

/// Adds notes of Claims that other clients have changed or deleted: of each, or one of all where they are many at once.
pub(super) fn tell_edits(teller: &mut Teller, all: Vec<Edited>) {
    for one in all {
        if !teller.happened_among(edited(&one), EDITED_MAX) {
            teller.happened(many_edited());
        }
    }
}

/// Returns the same of many Claims.
fn many_edited() -> Note {
    let text = "other clients have changed or deleted many Claims, and they are written again: only the controller writes Claims; set the \
         chart's claimsByControllerOnly, so that nobody else may";
    let regarding = of_claim(SETTLED, "");
    Note {
        regarding,
        is_warning: true,
        reason: "PutBack",
        text: text.to_owned(),
        goes_last: true,
        ..Note::default()
    }
}

/// Returns the same of the object that says what is announced.
pub(super) fn announcement_edited(edited: &Edited) -> Note {
    let what = if edited.is_deleted { "deleted" } else { "changed" };
    let text = format!(
        "another client has {what} it, and it is written again: only the controller writes it; change the chart's addresses.l2 or the \
         L2Advertisements, and set the chart's claimsByControllerOnly, so that nobody else may"
    );
    let regarding = Regarding { kind: "Announcement", ..of_claim(&edited.name, &edited.uid) };
    Note { regarding, is_warning: true, reason: "PutBack", text, ..Note::default() }
}

fn of_claim(name: &str, uid: &str) -> Regarding {
    Regarding {
        api_version: "vestibule.dev/v1alpha1".to_owned(),
        kind: "Claim",
        namespace: String::new(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

/// What notes are made from.
pub(super) struct Evidence<'a> {
    pub(super) cluster: &'a Cluster,
    /// Returns the served version of a kind.
    pub(super) version: &'a dyn Fn(Kind) -> Option<&'static str>,
    pub(super) nodes: &'a Nodes,
    /// Backends that are down, each with the live nodes that see it down.
    pub(super) failing: &'a Failing,
    /// `metadata.uid` of NodeStates, by node.
    pub(super) node_uids: &'a BTreeMap<String, String>,
}

impl Evidence<'_> {
    /// Returns the notes about everything that lasts, and the number of live candidates that are silent to others.
    pub(super) fn of_everything(
        &self,
        problems: &[Problem],
        conflicts: &[Conflict],
        reporting: &Reporting,
    ) -> (BTreeSet<Note>, usize) {
        let (found, unheard) = self.segments(conflicts, reporting);
        (self.notes(problems).into_iter().chain(found).collect(), unheard)
    }

    /// Returns the notes about what lasts of objects and nodes.
    fn notes(&self, problems: &[Problem]) -> BTreeSet<Note> {
        let mut notes: BTreeSet<Note> = problems.iter().filter_map(|problem| self.problem(problem)).collect();
        self.complaints(&mut notes);
        self.failing(&mut notes);
        notes
    }

    fn problem(&self, problem: &Problem) -> Option<Note> {
        let object = problem.object.as_ref()?;
        let mut text =
            problem.reason.map(|reason| reason.opening(&object.name.to_string())).unwrap_or_default();
        if !problem.field.is_empty() {
            text.push_str(&format!("{}: ", problem.field));
        }
        text.push_str(&problem.what);
        if !problem.value.is_empty() {
            text.push_str(&format!(" (value {:?})", problem.value));
        }
        text.push_str(&format!("; {}", problem.remedy));
        let reason = match problem.reason {
            Some(reason) => reason.text(),
            None if problem.is_error() => "Refused",
            None => "Doubtful",
        };
        let regarding = self.regarding(object);
        Some(Note { regarding, is_warning: true, reason, text, ..Note::default() })
    }

    /// Returns the note about a change of a Service's addresses.
    pub(super) fn allocated(&self, happening: &Happening) -> Note {
        let Happening { service, reason, text } = happening;
        let object = ObjectRef { kind: Kind::Service, name: service.clone() };
        Note {
            regarding: self.regarding(&object),
            is_warning: reason.is_warning(),
            reason: reason.text(),
            text: text.clone(),
            goes_last: true,
            ..Note::default()
        }
    }

    /// Returns the note that a route has regained what it had lost.
    pub(super) fn won(&self, object: &ObjectRef, before: &str) -> Note {
        Note {
            regarding: self.regarding(object),
            is_warning: false,
            reason: "Owned",
            text: format!("it owns again all that it asks for; before: {before}"),
            ..Note::default()
        }
    }

    /// Returns the notes about what the controller cannot follow, on the classes that it serves; without any, on the Claim that says
    /// that all are written.
    pub(super) fn stale(&self, stale: &[Stale]) -> Vec<Note> {
        let note = |regarding: &Regarding, stale: &Stale| {
            let Stale { source, why, .. } = stale;
            let text = match *source {
                "config" | "file" => {
                    format!("the controller's file is refused: {why}; what it said before stays in force")
                }
                KEYS => format!(
                    "the controller cannot keep the cookie keys in Secret {SECRET}: {why}; nodes use those that they have; see \
                     whether it may create, get and update that Secret"
                ),
                _ => format!(
                    "the controller cannot follow {source}: {why}; what they said last stays in force; see whether it may list \
                     and watch them, and the API server's log"
                ),
            };
            Note { regarding: regarding.clone(), is_warning: true, reason: "Stale", text, ..Note::default() }
        };
        let about = self.of_all();
        about.iter().flat_map(|regarding| stale.iter().map(move |stale| note(regarding, stale))).collect()
    }

    /// What Events about no object are about: the classes that we serve; without any, the Claim that says that all are written.
    fn of_all(&self) -> Vec<Regarding> {
        let class = |class: &Arc<str>| {
            self.regarding(&ObjectRef {
                kind: Kind::GatewayClass,
                name: ObjectName::new("", Arc::clone(class)),
            })
        };
        let classes: Vec<Regarding> = self.cluster.classes.keys().map(class).collect();
        if classes.is_empty() { vec![of_claim(SETTLED, "")] } else { classes }
    }

    /// Returns the notes about nodes of which it is not known what they hold, and why: one for all with the same reason, for during an
    /// upgrade there are hundreds.
    pub(super) fn unread<'n>(&self, nodes: impl Iterator<Item = (&'n str, &'n str)>) -> Vec<Note> {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        nodes.for_each(|(node, why)| by_reason.entry(why).or_default().push(node));
        let about = self.of_all();
        let note = |regarding: &Regarding, (why, nodes): (&&str, &Vec<&str>)| Note {
            regarding: regarding.clone(),
            is_warning: true,
            reason: "NodeProblem",
            text: (*why).to_owned(),
            nodes: node_names(nodes),
            ..Note::default()
        };
        about.iter().flat_map(|about| by_reason.iter().map(move |one| note(about, one))).collect()
    }

    /// Returns the notes that the mark of Claims waits, and for what. That may name a node and a version, and is no other Event.
    pub(super) fn unmarked(&self, why: &str) -> Vec<Note> {
        let note = |regarding: Regarding| {
            Note {
            regarding,
            is_warning: true,
            reason: "ClaimsIncomplete",
            text: "agents that start serve what they saved, and new and changed routes wait, until all Claims are written".to_owned(),
            cause: why.to_owned(),
            ..Note::default()
        }
        };
        self.of_all().into_iter().map(note).collect()
    }

    /// Returns the note about a source that an agent cannot follow: `services: 403 Forbidden`.
    pub(super) fn stale_node(&self, node: &str, line: &str) -> Note {
        let text = format!(
            "its agent cannot follow {line}; what it said last serves on; see the agent's log, and whether it may list and \
             watch them"
        );
        self.of_node(node, &text)
    }

    /// Returns the note about a foreign host that answers for an address of an object. It names the nodes that see it.
    fn conflict(&self, conflict: &Conflict) -> Note {
        let Conflict { object, address, link, device, nodes } = conflict;
        let nodes: Vec<&str> = nodes.iter().map(|node| &**node).collect();
        Note {
            regarding: self.regarding(object),
            is_warning: true,
            reason: "AddressConflict",
            text: format!(
                "the host with link address {link}, which is no node of the cluster, answers for {address} on the segment of device {device}: \
                 clients do not reach the node that should, or only by chance; take the address from that host, or out of the pool"
            ),
            nodes: node_names(&nodes),
            ..Note::default()
        }
    }

    /// Returns the notes about foreign hosts that answer for addresses, and about nodes that may announce addresses and of which others
    /// receive nothing, though their agents are alive; and the number of these nodes.
    fn segments(&self, conflicts: &[Conflict], reporting: &Reporting) -> (Vec<Note>, usize) {
        let mut notes: Vec<Note> = conflicts.iter().map(|conflict| self.conflict(conflict)).collect();
        let unheard = reporting.announced.iter().flat_map(|announced| announced.unheard(self.nodes));
        notes.extend(unheard.map(|(node, by)| self.silent(node, by)));
        let count = notes.len() - conflicts.len();
        (notes, count)
    }

    fn silent(&self, node: &str, by: &BTreeSet<Arc<str>>) -> Note {
        let by: Vec<&str> = by.iter().map(|node| &**node).collect();
        let text = "its agent renews its Lease, but no heartbeat of it has been received for a minute on the segment where it may announce \
                    addresses: addresses do not move to it, and both sides may answer for one; see whether the switch between the nodes \
                    passes EtherType 88b5 and multicast, whether its device is on that segment, and `vestibule vips` on both";
        Note { nodes: node_names(&by), ..self.of_node(node, text) }
    }

    /// Returns the notes about nodes that are not waited for; `why`: what nodes say of themselves.
    pub(super) fn excluded(&self, nodes: &[String], why: &BTreeMap<String, String>) -> Vec<Note> {
        let note = |node: &String| {
            let what = "it does not hold Claims that were written a minute ago, and conditions do not wait for it any more";
            let why = why.get(node).map_or("see the log of its agent", String::as_str);
            self.of_node(node, &format!("{what}; {why}"))
        };
        nodes.iter().map(note).collect()
    }

    fn complaints(&self, notes: &mut BTreeSet<Note>) {
        let mut nodes_of: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for (node, held) in &self.nodes.live {
            for complaint in &held.complaints {
                let Some(object) = complaint.object.as_deref() else {
                    notes.insert(self.of_node(node, &complaint.text));
                    continue;
                };
                nodes_of.entry((object, &complaint.text)).or_default().push(node);
            }
        }
        for ((object, text), nodes) in nodes_of {
            let regarding = match (object.strip_prefix("Claim/"), parse(object)) {
                (Some(name), _) => of_claim(name, ""),
                (None, Some(object)) => self.regarding(&object),
                (None, None) => continue,
            };
            let text = text.to_owned();
            let nodes = node_names(&nodes);
            notes.insert(Note {
                regarding,
                is_warning: true,
                reason: "NodeProblem",
                text,
                nodes,
                ..Note::default()
            });
        }
    }

    fn of_node(&self, node: &str, text: &str) -> Note {
        let regarding = Regarding {
            api_version: "vestibule.dev/v1alpha1".to_owned(),
            kind: "NodeState",
            namespace: String::new(),
            name: node.to_owned(),
            uid: self.node_uids.get(node).cloned().unwrap_or_default(),
        };
        let text = text.to_owned();
        Note { regarding, is_warning: true, reason: "NodeProblem", text, ..Note::default() }
    }

    fn failing(&self, notes: &mut BTreeSet<Note>) {
        if self.failing.is_empty() {
            return;
        }
        for (service, endpoints) in &self.cluster.endpoints {
            let object = ObjectRef { kind: Kind::Service, name: service.clone() };
            for endpoint in endpoints.iter() {
                let backend = SocketAddr::new(endpoint.address, endpoint.port);
                let Some(nodes) = self.failing.get(&backend) else { continue };
                let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
                let text = format!(
                    "backend {backend} fails its probe; see whether it listens there and whether the nodes reach it, or \
                     change annotation vestibule.dev/probe"
                );
                let (regarding, nodes) = (self.regarding(&object), node_names(&nodes));
                notes.insert(Note {
                    regarding,
                    is_warning: true,
                    reason: "BackendFailing",
                    text,
                    nodes,
                    ..Note::default()
                });
            }
        }
    }

    fn regarding(&self, object: &ObjectRef) -> Regarding {
        let version = (self.version)(object.kind).unwrap_or("v1");
        Regarding {
            api_version: api_version(object.kind, version),
            kind: object.kind.text(),
            namespace: object.name.namespace.to_string(),
            name: object.name.name.to_string(),
            uid: self.cluster.meta(object).map(|meta| meta.uid.to_string()).unwrap_or_default(),
        }
    }
}

/// Parses `Gateway/namespace/name`, the form in which NodeStates name objects.
fn parse(text: &str) -> Option<ObjectRef> {
    let (kind, name) = text.split_once('/')?;
    let kind = origins::kind(kind)?;
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    (!name.is_empty() && !name.contains('/'))
        .then(|| ObjectRef { kind, name: ObjectName::new(namespace, name) })
}

/// Returns the message about what a route had lost by its old status and owns by the new one; `None`: nothing
/// was regained.
pub(super) fn won(old: &Value, new: &Value) -> Option<String> {
    let lost = |status: &Value| -> Vec<(Value, String)> {
        let parents = status.get("parents").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let lost = parents.iter().filter_map(|parent| match crate::status::owned(parent) {
            Some(Err(message)) => {
                Some((parent.get("parentRef").cloned().unwrap_or_default(), message.to_owned()))
            }
            _ => None,
        });
        lost.collect()
    };
    let still = lost(new);
    // A parent that is gone was not regained.
    let is_there = |parent: &Value| {
        let parents = new.get("parents").and_then(Value::as_array);
        parents.is_some_and(|parents| parents.iter().any(|one| one.get("parentRef") == Some(parent)))
    };
    let won =
        |(parent, _): &(Value, String)| is_there(parent) && still.iter().all(|(other, _)| other != parent);
    lost(old).into_iter().find(won).map(|(_, message)| message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::kube_event::Next;
    use crate::controller::reports::Announced;
    use crate::model::cluster::{Endpoint, EndpointState, GatewaySpec};
    use crate::model::{EventReason, Meta};
    use crate::settle::OWNED;
    use crate::sources::kubernetes::api::node_state::NodeAnnounced;
    use crate::status::{Complaint, Held};
    use serde_json::json;
    use std::time::Instant;

    fn gateway() -> ObjectRef {
        ObjectRef { kind: Kind::Gateway, name: ObjectName::new("ns", "gw") }
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        let name = gateway().name;
        let meta = Meta { name: name.clone(), uid: "u-1".into(), ..Meta::default() };
        cluster.gateways.insert(name, Arc::new(GatewaySpec { meta, ..GatewaySpec::default() }));
        let endpoint = Endpoint {
            port_name: "".into(),
            address: "10.0.0.1".parse().unwrap(),
            port: 6443,
            state: EndpointState::Ready,
            zones: Arc::new([]),
            node: None,
        };
        cluster.endpoints.insert(ObjectName::new("t", "api"), Arc::new([endpoint]));
        cluster
    }

    fn notes(problems: &[Problem], nodes: &Nodes, failing: &[(&str, &[&str])]) -> Vec<Note> {
        let owned = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect();
        let failing = failing.iter().map(|(at, nodes)| (at.parse().unwrap(), owned(nodes))).collect();
        let ground = Evidence {
            cluster: &cluster(),
            version: &|_| Some("v1"),
            nodes,
            failing: &failing,
            node_uids: &BTreeMap::from([("n1".to_owned(), "u-n1".to_owned())]),
        };
        ground.notes(problems).into_iter().collect()
    }

    #[test]
    fn foreign_hosts_are_named_on_objects_and_silent_candidates_on_their_node_states() {
        let announced = NodeAnnounced { unheard: vec!["n1".into()], ..NodeAnnounced::default() };
        let announced = Some(Announced::of([("n2", "u-n2", &[announced][..])].into_iter()));
        let reporting = Reporting { announced, ..Reporting::NONE };
        let mut nodes = Nodes::default();
        nodes.live.insert("n1".to_owned(), Held::default());
        let ground = Evidence {
            cluster: &cluster(),
            version: &|_| Some("v1"),
            nodes: &nodes,
            failing: &Failing::new(),
            node_uids: &BTreeMap::from([("n1".to_owned(), "u-n1".to_owned())]),
        };
        let conflict = Conflict {
            object: gateway(),
            address: "192.0.2.9".parse().unwrap(),
            link: "02:00:00:00:00:0a".to_owned(),
            device: "eth0".into(),
            nodes: ["n1".into(), "n2".into()].into(),
        };
        let (notes, unheard) = ground.segments(&[conflict], &reporting);
        let [conflict, silent] = notes.try_into().unwrap();
        assert_eq!(
            (conflict.reason, conflict.regarding.kind, &*conflict.regarding.uid),
            ("AddressConflict", "Gateway", "u-1")
        );
        let text = conflict.text();
        for named in ["on nodes n1, n2: ", "02:00:00:00:00:0a", "192.0.2.9", "device eth0", "out of the pool"]
        {
            assert!(text.contains(named), "{named} is missing: {text}");
        }
        assert_eq!(
            (silent.reason, silent.regarding.kind, &*silent.regarding.uid),
            ("NodeProblem", "NodeState", "u-n1")
        );
        assert!(silent.text().starts_with("on node n2: its agent renews its Lease"), "{}", silent.text());
        assert_eq!(unheard, 1);
    }

    /// All notes about what these nodes see and say, where it is the same on each.
    fn notes_seen_on(names: &[&str]) -> Vec<Note> {
        let mut nodes = Nodes::default();
        for name in names {
            let of = |object: Option<&str>| Complaint {
                object: object.map(str::to_owned),
                text: "full".to_owned(),
                ..Complaint::default()
            };
            let objects = ["TLSRoute/t/a", "Claim/c"].map(Some);
            let complaints = objects.into_iter().map(of).collect();
            nodes.live.insert((*name).to_owned(), Held { complaints, ..Held::default() });
        }
        nodes.live.insert("n9".to_owned(), Held::default());
        let seen: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let announced = NodeAnnounced { unheard: vec!["n9".into()], ..NodeAnnounced::default() };
        let by = names.iter().map(|name| (*name, "u", std::slice::from_ref(&announced)));
        let reporting = Reporting { announced: Some(Announced::of(by)), ..Reporting::NONE };
        let ground = Evidence {
            cluster: &cluster(),
            version: &|_| Some("v1"),
            nodes: &nodes,
            failing: &Failing::from([("10.0.0.1:6443".parse().unwrap(), seen)]),
            node_uids: &BTreeMap::new(),
        };
        let conflict = Conflict {
            object: gateway(),
            address: "192.0.2.9".parse().unwrap(),
            link: "02:00:00:00:00:0a".to_owned(),
            device: "eth0".into(),
            nodes: names.iter().map(|name| (*name).into()).collect(),
        };
        let (lasting, _) = ground.of_everything(&[], &[conflict], &reporting);
        let mut notes: Vec<Note> = lasting.into_iter().collect();
        notes.extend(ground.unread(names.iter().map(|name| (*name, "its report is of version 1"))));
        let holds = format!("node {} holds Claims up to version {}, and maybe it", names[0], names.len());
        notes.extend(ground.unmarked(&holds));
        notes
    }

    /// Otherwise each node more or less would be another Event of each object.
    #[test]
    fn events_name_no_sets_of_nodes_in_what_is_hashed() {
        let [one, more] = [&["n1"][..], &["n2", "n1"]].map(notes_seen_on);
        let kinds: BTreeSet<(&str, &str)> =
            one.iter().map(|note| (note.reason, note.regarding.kind)).collect();
        let all = [
            ("AddressConflict", "Gateway"),
            ("BackendFailing", "Service"),
            ("ClaimsIncomplete", "Claim"),
            ("NodeProblem", "Claim"),
            ("NodeProblem", "NodeState"),
            ("NodeProblem", "TLSRoute"),
        ];
        assert_eq!(kinds, all.into());
        let names = |notes: &[Note]| notes.iter().map(Note::name).collect::<Vec<_>>();
        assert_eq!(names(&one), names(&more));
        for (one, more) in one.iter().zip(&more) {
            assert!(one == more && one.text() != more.text(), "{} {}", one.text(), more.text());
        }
    }

    #[test]
    fn a_problem_is_told_on_its_object_with_its_remedy() {
        let problem = Problem::error("spec.listeners[0].protocol", "is not served", "write TLS or TCP")
            .value("HTTP")
            .object(gateway());
        let of_the_file = Problem::error("routes[0]", "x", "y");
        let told = notes(&[problem.clone(), problem, of_the_file], &Nodes::default(), &[]);
        assert_eq!(told.len(), 1);
        assert_eq!(
            told[0].text,
            "spec.listeners[0].protocol: is not served (value \"HTTP\"); write TLS or TCP"
        );
        let about = &told[0].regarding;
        assert_eq!((about.kind, about.uid.as_str()), ("Gateway", "u-1"));
        assert_eq!(about.api_version, "gateway.networking.k8s.io/v1");
        let gone = ObjectRef { kind: Kind::Service, name: ObjectName::new("x", "gone") };
        let told = notes(&[Problem::warning("", "x", "y").object(gone)], &Nodes::default(), &[]);
        assert_eq!((told[0].regarding.api_version.as_str(), told[0].regarding.uid.as_str()), ("v1", ""));
    }

    #[test]
    fn problems_of_addresses_have_the_reasons_of_metallb() {
        let service = ObjectRef { kind: Kind::Service, name: ObjectName::new("t", "api") };
        let problem =
            Problem::warning("spec.loadBalancerIP", "is used", "ask for another").object(service.clone());
        let failed = problem.clone().reason(EventReason::AllocationFailed);
        let invalid = problem.reason(EventReason::LoadBalancerFailed);
        let notes = notes(&[failed, invalid], &Nodes::default(), &[]);
        let said: Vec<_> =
            notes.iter().map(|note| (note.is_warning, note.reason, note.text.as_str())).collect();
        let text = "spec.loadBalancerIP: is used; ask for another";
        let expected = [
            (true, "AllocationFailed", format!("Failed to allocate IP for \"t/api\": {text}")),
            (true, "LoadBalancerFailed", format!("invalid requested loadbalancer IPs: {text}")),
        ];
        assert_eq!(
            said,
            expected.each_ref().map(|(warning, reason, text)| (*warning, *reason, text.as_str()))
        );
        let cluster = cluster();
        let ground = Evidence {
            cluster: &cluster,
            version: &|_| Some("v1"),
            nodes: &Nodes::default(),
            failing: &Failing::new(),
            node_uids: &BTreeMap::new(),
        };
        let (reason, text) = (EventReason::IpAllocated, "Assigned IP".to_owned());
        let note = ground.allocated(&Happening { service: service.name, reason, text });
        assert_eq!((note.is_warning, note.reason, note.regarding.kind), (false, "IPAllocated", "Service"));
        assert!(note.goes_last);
    }

    #[test]
    fn a_source_that_cannot_be_followed_is_said_on_each_class() {
        let mut cluster = cluster();
        cluster.classes.insert("c".into(), Arc::default());
        let ground = Evidence {
            cluster: &cluster,
            version: &|_| Some("v1"),
            nodes: &Nodes::default(),
            failing: &Failing::new(),
            node_uids: &BTreeMap::new(),
        };
        let stale = Stale { source: "tcproutes", since: Instant::now(), why: "403 Forbidden: x".into() };
        let [note] = ground.stale(&[stale]).try_into().unwrap();
        assert_eq!(
            (note.regarding.kind, note.regarding.name.as_str(), note.reason),
            ("GatewayClass", "c", "Stale")
        );
        assert!(
            note.text.starts_with("the controller cannot follow tcproutes: 403 Forbidden: x; "),
            "{}",
            note.text
        );
        assert_eq!(ground.stale(&[]), []);
        let of = |source| Stale { source, since: Instant::now(), why: "x:1: y; z".into() };
        let [note] = ground.stale(&[of("config")]).try_into().unwrap();
        assert_eq!(
            note.text,
            "the controller's file is refused: x:1: y; z; what it said before stays in force"
        );
        let [note] = ground.stale(&[of("keys")]).try_into().unwrap();
        assert!(
            note.text.contains("cannot keep the cookie keys in Secret vestibule-keys: x:1"),
            "{}",
            note.text
        );
        // A cluster without the Gateway API has no class.
        let ground = Evidence { cluster: &Cluster::default(), ..ground };
        let [note] = ground.stale(&[of("leases")]).try_into().unwrap();
        assert_eq!((note.regarding.kind, note.regarding.name.as_str()), ("Claim", SETTLED));
    }

    #[test]
    fn what_nodes_complain_about_is_told_once_and_names_them() {
        let complaint = |object: Option<&str>, text: &str| Complaint {
            object: object.map(str::to_owned),
            text: text.to_owned(),
            ..Complaint::default()
        };
        let mut nodes = Nodes::default();
        for node in 1..=10 {
            let mut complaints =
                vec![complaint(Some("Gateway/ns/gw"), "full"), complaint(Some("garbage"), "x")];
            if node == 1 {
                complaints.push(complaint(None, "no device"));
            }
            nodes.live.insert(format!("n{node}"), Held { complaints, ..Held::default() });
        }
        let told = notes(&[], &nodes, &[]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].text().starts_with("on nodes n1, n10, n2")
                && told[0].text().ends_with("and 2 more: full")
        );
        assert_eq!((told[1].regarding.kind, told[1].regarding.uid.as_str()), ("NodeState", "u-n1"));
    }

    /// Its condition stays, and so does not name it.
    #[test]
    fn a_node_that_does_not_hold_an_object_is_named_there() {
        let (object, text) = (Some("Gateway/ns/gw".to_owned()), "full".to_owned());
        let complaint = Complaint { object, missing: true, text, ..Complaint::default() };
        let mut nodes = Nodes::default();
        for node in ["n1", "n2", "n3"] {
            nodes.live.insert(node.to_owned(), Held::default());
        }
        nodes.live.get_mut("n2").unwrap().complaints.push(complaint);
        let told = notes(&[], &nodes, &[]);
        let [note] = &told[..] else { panic!("{told:?}") };
        assert_eq!((note.regarding.kind, note.text().as_str()), ("Gateway", "on node n2: full"));
    }

    #[test]
    fn a_backend_that_is_down_is_told_on_its_service_with_the_nodes_that_see_it_so() {
        let told =
            notes(&[], &Nodes::default(), &[("10.0.0.1:6443", &["n1", "n2"]), ("10.0.0.9:1", &["n1"])]);
        assert_eq!(told.len(), 1);
        let text = told[0].text();
        assert!(text.starts_with("on nodes n1, n2: backend 10.0.0.1:6443 fails its probe"), "{text}");
        assert!(!told[0].text.contains("n1"), "which nodes see it changes: {told:?}");
        assert_eq!(told[0].regarding.namespace, "t");
    }

    #[test]
    fn only_what_was_lost_can_be_won() {
        let status = |owned: Option<&str>| {
            let conditions: Vec<Value> = owned
                .map(|status| json!({"type": OWNED, "status": status, "message": "lost to x"}))
                .into_iter()
                .collect();
            json!({"parents": [{"parentRef": {"name": "gw"}, "conditions": conditions}]})
        };
        assert_eq!(won(&status(Some("False")), &status(None)).as_deref(), Some("lost to x"));
        assert_eq!(won(&status(Some("False")), &status(Some("True"))).as_deref(), Some("lost to x"));
        assert_eq!(won(&status(Some("False")), &status(Some("False"))), None);
        assert_eq!(won(&status(None), &status(Some("False"))), None);
        assert_eq!(won(&status(Some("False")), &json!({"parents": []})), None);
    }

    #[test]
    fn names_of_objects_are_read_back() {
        for object in [
            gateway(),
            ObjectRef { kind: Kind::GatewayClass, name: ObjectName::new("", "c") },
            ObjectRef { kind: Kind::TlsRoute, name: ObjectName::new("a", "b") },
        ] {
            assert_eq!(parse(&crate::status::key(&object)), Some(object));
        }
        for garbage in ["", "Gateway", "Pod/a/b", "Gateway/a/b/c", "Gateway/a/"] {
            assert_eq!(parse(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn a_hundred_claims_that_were_deleted_make_one_event_more_than_twenty() {
        let (mut teller, mut now) = (Teller::new(), Instant::now());
        let mut told = BTreeMap::<String, usize>::new();
        for number in 0..100 {
            let edited = Edited { name: format!("c{number}"), uid: "u".to_owned(), is_deleted: true };
            tell_edits(&mut teller, vec![edited]);
        }
        loop {
            match teller.next(now) {
                Next::Tell(note, _) => {
                    teller.told(&note, now);
                    *told.entry(note.text()).or_default() += 1;
                }
                Next::At(next) => now = next,
                Next::Idle => break,
            }
        }
        let of = |what: &str| -> usize {
            told.iter().filter(|(text, _)| text.contains(what)).map(|(_, count)| count).sum()
        };
        assert_eq!((of("has deleted it"), of("many Claims")), (EDITED_MAX, 1), "{told:?}");
    }
}
