//! A cluster that a test writes: what watches would report, reported by hand.

use super::api::announcement::{AnnouncementSpec, NAME};
use super::api::claim::{ClaimOrigin, ClaimSpec, SETTLED};
use super::api::object::{InSpec, Object, Raw};
use super::fold;
use super::interner::Interner;
use super::source::Source;
use super::store::Store;
use super::watch_event::{Body, Entry, Mark, Message, ReadClaim, Slice, WatchEvent};
use super::watches::{self, Reads};
use crate::model::claim::{ClaimBackend, ClaimBackends, Grant, Granted, ServicePortRef};
use crate::model::cluster::{ClassPolicy, Endpoint, EndpointState, Policy};
use crate::model::{Claim, Kind, ObjectName, Origin, Problem, Protocol, StoredClaim};
use crate::origins::WatchRow;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::mpsc::{Sender, channel};

/// The sender to the store.
#[derive(Debug)]
pub(crate) struct Script {
    outbox: Sender<Message>,
}

impl Script {
    /// Nothing was reported yet.
    pub(crate) fn begin() -> (Self, Store) {
        let (outbox, inbox) = channel(1024);
        (Self { outbox }, Store::new(inbox, Policy::default(), Reads::Claims))
    }

    /// The same to the store of a controller.
    pub(crate) fn of_controller(policy: Policy) -> (Self, Store) {
        let (outbox, inbox) = channel(1024);
        (Self { outbox }, Store::new(inbox, policy, Reads::Origins))
    }

    /// These are all objects of a kind that is read for an origin, as the API server has them.
    pub(crate) fn list_origin(&self, row: &'static WatchRow, objects: &[Value]) {
        let (source, interner) = (Source::Origin(row), Interner::default());
        let entry = |object: &Value| {
            let Object(raw) = serde_json::from_value::<Object<Value, true>>(object.clone()).unwrap();
            let (meta, status) = (raw.meta.clone(), raw.status.clone());
            let folded = watches::origin(row, raw, &interner);
            watches::entry(source, fold::name(&meta, &interner), meta, status, folded)
        };
        self.tell(source, WatchEvent::Listed(objects.iter().map(entry).collect()));
    }

    /// These are all IPAddressPools, as the API server has them.
    pub(crate) fn list_pools(&self, objects: &[Value]) {
        self.list(Source::Pools, objects, |raw: Raw<_>, interner| {
            let (pool, problems) = fold::pool(raw, interner);
            (Body::Pool(Arc::new(pool)), problems)
        });
    }

    /// These are all L2Advertisements.
    pub(crate) fn list_advertisements(&self, objects: &[Value]) {
        self.list(Source::Advertisements, objects, |raw: Raw<_>, interner| {
            let (spec, problems) = fold::advertisement(raw, interner);
            (Body::Advertisement(Arc::new(spec)), problems)
        });
    }

    /// These are all Services, as the API server has them. `classes`: which of them are ours.
    pub(crate) fn list_origin_services(&self, classes: ClassPolicy, objects: &[Value]) {
        let reading = fold::Reading { classes, ..fold::Reading::default() };
        self.list(Source::Services, objects, |raw: Raw<_>, interner| {
            let (service, problems) = fold::service(raw, &reading, interner);
            (Body::Service(Arc::new(service)), problems)
        });
    }

    /// These are all namespaces.
    pub(crate) fn list_namespaces(&self, objects: &[Value]) {
        self.list(Source::Namespaces, objects, |raw: Raw<_>, interner| {
            let (labels, problems) = fold::namespace(raw, interner);
            (Body::Namespace(Arc::new(labels)), problems)
        });
    }

    /// These are all nodes.
    pub(crate) fn list_nodes(&self, objects: &[Value]) {
        self.list(Source::Nodes, objects, |raw: Raw<_>, interner| {
            let (node, problems) = fold::node(raw, interner);
            (Body::Node(Arc::new(node)), problems)
        });
    }

    fn list<B: serde::de::DeserializeOwned>(
        &self,
        source: Source,
        objects: &[Value],
        read: impl Fn(Raw<B>, &Interner) -> (Body, Vec<Problem>),
    ) {
        let interner = Interner::default();
        let entry = |object: &Value| {
            let Object(raw) = serde_json::from_value::<Object<B, true>>(object.clone()).unwrap();
            let (meta, status) = (raw.meta.clone(), raw.status.clone());
            let folded = read(raw, &interner);
            watches::entry(source, fold::name(&meta, &interner), meta, status, folded)
        };
        self.tell(source, WatchEvent::Listed(objects.iter().map(entry).collect()));
    }

    fn tell(&self, source: Source, news: WatchEvent) {
        self.outbox.try_send(Message { source, epoch: 0, news }).unwrap();
    }

    /// This is announced, and it is listed.
    pub(crate) fn list_announcement(&self, said: &AnnouncementSpec) {
        let body = Body::Announcement(said.read().ok().map(Arc::new));
        let entry = Entry { name: ObjectName::new("", NAME), body, problems: Vec::new(), status: None };
        self.tell(Source::Announcements, WatchEvent::Listed(vec![entry]));
    }

    /// The object that says what is announced is not there.
    pub(crate) fn list_no_announcement(&self) {
        self.tell(Source::Announcements, WatchEvent::Listed(Vec::new()));
    }

    /// What is announced cannot be read.
    pub(crate) fn refuse_announcement(&self) {
        self.tell(Source::Announcements, WatchEvent::Stale("404 NotFound".to_owned()));
    }

    /// There is no endpoint yet, and nothing is announced.
    pub(crate) fn list_slices(&self) {
        self.list_no_announcement();
        self.list_endpoints();
    }

    /// There is no endpoint yet.
    pub(crate) fn list_endpoints(&self) {
        self.tell(Source::EndpointSlices, WatchEvent::Listed(Vec::new()));
    }

    /// These are all Claims: of Services `ns/NAME`, each on port 443 of an address; and the controller's mark.
    pub(crate) fn list_services(&self, services: &[(&str, [u8; 4])]) {
        let claims: Vec<Claim> = services.iter().map(|(name, address)| claim(name, *address)).collect();
        let mark = Entry {
            name: ObjectName::new("", SETTLED),
            body: Body::Mark(Mark::default()),
            problems: Vec::new(),
            status: None,
        };
        let listed = [mark].into_iter().chain(entries(&claims));
        self.tell(Source::Claims, WatchEvent::Listed(listed.collect()));
    }

    /// These are Claims, and the controller has not said that they are all.
    pub(crate) fn list_some(&self, services: &[(&str, [u8; 4])]) {
        let claims: Vec<Claim> = services.iter().map(|(name, address)| claim(name, *address)).collect();
        self.tell(Source::Claims, WatchEvent::Listed(entries(&claims).collect()));
    }

    /// A Claim is written as `change` makes it: that of Service `ns/NAME` at this address.
    pub(crate) fn put_service(
        &self,
        (name, address): (&str, [u8; 4]),
        version: u64,
        change: impl FnOnce(&mut Value),
    ) {
        let (name, mut object) = object(&claim(name, address), version).unwrap();
        change(&mut object);
        let Object(raw) = serde_json::from_value::<Object<InSpec<ClaimSpec>, false>>(object).unwrap();
        let (read, problems) = fold::claim(raw, &Interner::default());
        let entry =
            Entry { name: ObjectName::new("", name), body: Body::Claim(read), problems, status: None };
        self.tell(Source::Claims, WatchEvent::Put(Box::new(entry)));
    }

    /// The Claim of Service `ns/NAME` is deleted.
    pub(crate) fn drop_service(&self, name: &str) {
        let (name, _) = object(&claim(name, [0; 4]), 1).unwrap();
        self.tell(Source::Claims, WatchEvent::Gone(ObjectName::new("", name)));
    }

    /// The controller's mark is written again.
    pub(crate) fn mark(&self, version: u64, is_withdrawn: bool) {
        let body = Body::Mark(Mark { version, is_withdrawn });
        let entry = Entry { name: ObjectName::new("", SETTLED), body, problems: Vec::new(), status: None };
        self.tell(Source::Claims, WatchEvent::Put(Box::new(entry)));
    }

    /// The endpoints of Service `ns/NAME`, 10.0.0.x on port 6443.
    pub(crate) fn put_endpoints(&self, service: &str, hosts: &[u8]) {
        self.put_endpoints_of(ObjectName::new("ns", service), hosts);
    }

    /// The same of any Service.
    pub(crate) fn put_endpoints_of(&self, service: ObjectName, hosts: &[u8]) {
        let endpoint = |host: &u8| Endpoint {
            port_name: "p".into(),
            address: [10, 0, 0, *host].into(),
            port: 6443,
            state: EndpointState::Ready,
            zones: Arc::new([]),
            node: None,
        };
        let slice =
            Slice { service: Arc::clone(&service.name), endpoints: hosts.iter().map(endpoint).collect() };
        let entry = Entry { name: service, body: Body::Slice(slice), problems: Vec::new(), status: None };
        self.tell(Source::EndpointSlices, WatchEvent::Put(Box::new(entry)));
    }

    /// Claims cannot be followed any more.
    pub(crate) fn cut_off(&self, why: &str) {
        self.tell(Source::Claims, WatchEvent::Stale(why.into()));
    }
}

fn claim(name: &str, address: [u8; 4]) -> Claim {
    let name = ObjectName::new("ns", name);
    let at = SocketAddr::new(address.into(), 443);
    let grant = |what| Grant::new(at, Protocol::Tcp, what);
    let service = ServicePortRef { name: name.clone(), port: "p".into(), probe: None };
    let references = [ClaimBackend::of_service(1, Some(service))].into();
    Claim {
        origin: Origin::Object { created_secs: 1, kind: Kind::Service, name: name.clone() },
        part: "443".into(),
        tenant: Some("ns".into()),
        port: 443,
        protocol: Protocol::Tcp.into(),
        route: Some(format!("service/{name}:443").into()),
        grants: vec![grant(Granted::Binding), grant(Granted::Rest)],
        asked: None,
        backends: ClaimBackends::Services { references, server_name: None },
        source_ranges: None,
        affinity: crate::model::Affinity::None,
        traffic: crate::model::TrafficPolicy::Cluster,
        health_port: None,
    }
}

fn entries(claims: &[Claim]) -> impl Iterator<Item = Entry> {
    stored(claims, 1).into_iter().map(|(name, claim)| Entry {
        name: ObjectName::new("", name),
        body: Body::Claim(ReadClaim { version: Some(claim.version), claim: Some(claim), origin: None }),
        problems: Vec::new(),
        status: None,
    })
}

/// The claims of objects as an agent reads them, after the controller has written them.
pub(crate) fn stored(claims: &[Claim], version: u64) -> BTreeMap<Arc<str>, StoredClaim> {
    let interner = Interner::default();
    let one = |claim: &Claim| {
        let (name, object) = object(claim, version)?;
        let Object(raw) = serde_json::from_value::<Object<InSpec<ClaimSpec>, false>>(object).unwrap();
        let (read, problems) = fold::claim(raw, &interner);
        assert_eq!(problems, [], "{claim:?}");
        Some((name.into(), read.claim?))
    };
    claims.iter().filter_map(one).collect()
}

/// The name of a Claim, and the Claim as the controller writes it.
fn object(claim: &Claim, version: u64) -> Option<(String, Value)> {
    let origin = ClaimOrigin::of(claim)?;
    let name = origin.object_name();
    let spec = ClaimSpec::of(origin, claim, "2026-11-26T00:00:00Z");
    let metadata = json!({"name": name, "resourceVersion": version.to_string()});
    Some((name, json!({"metadata": metadata, "spec": spec})))
}
