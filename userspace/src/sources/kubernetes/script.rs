//! A cluster that a test writes: what watches would report, reported by hand.

use super::source::Source;
use super::store::Store;
use super::watch_event::{Body, Entry, Message, Slice, WatchEvent};
use crate::model::cluster::{
    AddressRange, Endpoint, EndpointState, LoadBalancerSpec, Policy, ServicePort, ServiceSpec,
};
use crate::model::{Meta, ObjectName};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc::{Sender, channel};

/// The sender to the store.
#[derive(Debug)]
pub(crate) struct Script {
    outbox: Sender<Message>,
}

impl Script {
    /// Nothing was reported yet. Addresses are given from 192.0.2.0 to 192.0.2.255.
    pub(crate) fn begin() -> (Self, Store) {
        let (outbox, inbox) = channel(1024);
        let range = AddressRange { first: [192, 0, 2, 0].into(), last: [192, 0, 2, 255].into() };
        let policy = Policy { ranges: vec![range], ..Policy::default() };
        (Self { outbox }, Store::new(inbox, policy))
    }

    fn tell(&self, source: Source, news: WatchEvent) {
        self.outbox.try_send(Message { source, epoch: 0, news }).unwrap();
    }

    /// There is nothing of any kind but Services.
    pub(crate) fn list_others(&self) {
        for source in Source::ALL.into_iter().filter(|source| *source != Source::Services) {
            self.tell(source, WatchEvent::Listed(Vec::new()));
        }
    }

    /// These are all Services: `ns/NAME`, each on port 443 of an address.
    pub(crate) fn list_services(&self, services: &[(&str, [u8; 4])]) {
        let entry = |(name, address): &(&str, [u8; 4])| {
            let name = ObjectName::new("ns", *name);
            let port = ServicePort { name: "p".into(), port: 443, is_tcp: true, protocol: "TCP".into() };
            let balancer = LoadBalancerSpec {
                addresses: vec![IpAddr::from(*address)],
                field: "spec.loadBalancerIP".into(),
                has_source_ranges: false,
            };
            let spec = ServiceSpec {
                meta: Meta { name: name.clone(), ..Meta::default() },
                ports: vec![port],
                is_external_name: false,
                load_balancer: Some(Arc::new(balancer)),
                probe: None,
            };
            Entry { name, body: Body::Service(Arc::new(spec)), problems: Vec::new(), status: None }
        };
        self.tell(Source::Services, WatchEvent::Listed(services.iter().map(entry).collect()));
    }

    /// The endpoints of a Service, 10.0.0.x on port 6443.
    pub(crate) fn put_endpoints(&self, service: &str, hosts: &[u8]) {
        let endpoint = |host: &u8| Endpoint {
            port_name: "p".into(),
            address: [10, 0, 0, *host].into(),
            port: 6443,
            state: EndpointState::Ready,
            zones: Arc::new([]),
        };
        let service = ObjectName::new("ns", service);
        let slice = Slice { service: service.clone(), endpoints: hosts.iter().map(endpoint).collect() };
        let entry = Entry { name: service, body: Body::Slice(slice), problems: Vec::new(), status: None };
        self.tell(Source::EndpointSlices, WatchEvent::Put(Box::new(entry)));
    }

    /// Services cannot be followed any more.
    pub(crate) fn cut_off(&self, why: &str) {
        self.tell(Source::Services, WatchEvent::Stale(why.into()));
    }
}
