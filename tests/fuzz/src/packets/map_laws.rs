//! Invariants of the maps between any two packets.

use std::collections::BTreeMap;

use common::maps::address::Address;
use common::maps::backend::{Backend, DELIVERY_DNAT};
use common::maps::dnat_flow::DnatFlow;
use common::maps::event::RouteCounters;
use common::maps::flow::{
    BUFFER_BYTES, BackendTuple, Buffer, ClientTuple, FLOW_UNDELIVERED, Flow, HalfOpen, PENDING_COLLECTING,
    PENDING_CONNECTING, PENDING_UNDELIVERED, Pending, Reply,
};
use common::maps::name;
use common::maps::settings::Cursors;
use common::maps::source::{Share, ShareKey, Source};
use tests::program::Programs;

use super::hosts::LISTENERS;

/// Number of sources for whose counts the map has room.
const SOURCES_MAX: usize = super::SIZES.hellos as usize;

/// All connections in the maps.
#[derive(Debug)]
pub struct Held {
    pub flows: BTreeMap<ClientTuple, Flow>,
    pub hellos: BTreeMap<ClientTuple, Pending>,
    pub half_opens: BTreeMap<ClientTuple, HalfOpen>,
    pub nats: BTreeMap<BackendTuple, ClientTuple>,
    pub dnat_flows: BTreeMap<ClientTuple, DnatFlow>,
    pub sources: BTreeMap<Address, Source>,
    pub shares: BTreeMap<ShareKey, Share>,
    pub routes: BTreeMap<u32, RouteCounters>,
    /// Buffers that hellos have, as the programs count them.
    pub buffered: u32,
    /// Half-open connections, as the programs count them: all, and by listener.
    pub half_open_counts: (u32, Vec<u32>),
}

impl Held {
    pub fn read(programs: &Programs) -> Self {
        let nats: Vec<(BackendTuple, Reply)> = programs.entries(name::NATS);
        Self {
            flows: programs.entries(name::FLOWS).into_iter().collect(),
            hellos: programs.entries(name::PENDING).into_iter().collect(),
            half_opens: programs.entries(name::HALF_OPENS).into_iter().collect(),
            nats: nats.into_iter().map(|(nat, reply)| (nat, reply.tuple())).collect(),
            dnat_flows: programs.entries(name::DNAT_FLOWS).into_iter().collect(),
            sources: programs.entries(name::SOURCES).into_iter().collect(),
            shares: programs.entries(name::SHARES).into_iter().collect(),
            routes: programs.entries(name::ROUTE_COUNTERS).into_iter().collect(),
            buffered: programs.element::<Cursors>(name::CURSORS, 0).buffered,
            half_open_counts: (
                programs.element::<Cursors>(name::CURSORS, 0).half_opens,
                (0..LISTENERS).map(|listener| programs.element(name::HALF_OPEN_COUNT, listener)).collect(),
            ),
        }
    }

    /// Whether no connection is left. Counts of sources may remain: the daemon removes those of idle sources.
    pub fn is_empty(&self) -> bool {
        let has_none = self.flows.is_empty() && self.hellos.is_empty() && self.half_opens.is_empty();
        has_none && self.nats.is_empty() && self.dnat_flows.is_empty()
    }

    /// A number for the state of a connection.
    pub fn state(&self, client: &ClientTuple) -> usize {
        let flow = self.flows.get(client).map_or(0, |flow| {
            usize::from(flow.connection.state) << 6
                | usize::from(flow.connection.flags)
                | usize::from(flow.client.sent.fin | flow.backend.sent.fin << 1) << 4
        });
        let hello = self
            .hellos
            .get(client)
            .map_or(0, |hello| usize::from(hello.connection.state) + usize::from(hello.offset));
        flow ^ hello << 8 ^ usize::from(self.half_opens.contains_key(client)) << 11
    }

    /// Checks all invariants. `lasting`: no hello has expired by its time alone.
    pub fn check(&self, programs: &Programs, lasting: bool) {
        self.ports();
        self.listed();
        for (client, flow) in &self.flows {
            let backend: Option<Backend> = programs.entry(name::BACKENDS, flow.connection.backend);
            let backend = backend.expect("the backend of a flow");
            assert_eq!((backend.address, backend.port), (flow.nat.backend, flow.nat.backend_port));
            assert_eq!(
                backend.route, flow.connection.route,
                "a flow of {client:?} to another route's backend"
            );
        }
        let of = |listener: u32| {
            self.half_opens.values().filter(|held| held.connection.listener == listener).count()
        };
        let counts = (self.half_opens.len() as u32, (0..LISTENERS).map(|id| of(id) as u32).collect());
        assert_eq!(self.half_open_counts, counts, "half-open connections");
        for held in self.half_opens.values() {
            assert_eq!(held.connection.flags, 0, "the record of a half-open connection stays locked");
        }
        for (client, hello) in &self.hellos {
            assert_eq!(hello.connection.flags, 0, "the record of {client:?} stays locked");
            keep(programs, client, hello);
            if hello.connection.state == PENDING_UNDELIVERED {
                let flow = self.flows.get(client).expect("a hello that nobody waits for");
                assert!(
                    flow.connection.flags & FLOW_UNDELIVERED != 0,
                    "an undelivered hello without a backend"
                );
            }
        }
        self.counts(lasting);
        self.flow_counts();
        self.connecting_counts();
    }

    /// Each flow must be counted once, for its route and for its source.
    fn flow_counts(&self) {
        let (mut shares, mut routes) = (BTreeMap::new(), BTreeMap::new());
        for (client, flow) in &self.flows {
            let route = flow.connection.route;
            *shares.entry(ShareKey::of(client, route)).or_insert(0) += 1;
            *routes.entry(route).or_insert(0) += 1;
        }
        let counted = self.shares.iter().filter(|(_, share)| share.flows != 0);
        assert!(
            counted.map(|(key, share)| (*key, share.flows)).eq(shares),
            "flows of sources: {:?}",
            self.shares
        );
        let counted = self.routes.iter().filter(|(_, counters)| counters.flows != 0);
        assert!(
            counted.map(|(id, counters)| (*id, counters.flows)).eq(routes),
            "flows of routes: {:?}",
            self.routes
        );
    }

    /// Each flow whose backend sees its client must be listed, and no other: there is room for all.
    fn listed(&self) {
        let seen = self.flows.iter().filter(|(_, flow)| flow.connection.delivery == DELIVERY_DNAT);
        let listed = seen.map(|(client, flow)| (*client, DnatFlow::of(&flow.connection))).collect();
        assert_eq!(self.dnat_flows, listed, "what is listed and the flows to be listed differ");
    }

    /// Each NAT entry must belong to one connection, and each connection must have its own.
    fn ports(&self) {
        let flows = self.flows.iter().map(|(client, flow)| (flow.nat, *client));
        let connecting = self.hellos.iter().filter(|(_, hello)| hello.connection.state == PENDING_CONNECTING);
        let connecting = connecting.map(|(client, hello)| (hello.nat, *client));
        let half_opens = self.half_opens.iter().map(|(client, held)| (held.nat, *client));
        let mut held = BTreeMap::new();
        for (nat, client) in flows.chain(connecting).chain(half_opens) {
            let before = held.insert(nat, client);
            assert_eq!(before, None, "two connections on one source port: {nat:?}");
        }
        assert_eq!(self.nats, held, "NAT entries and those who hold them differ");
        for client in self.hellos.keys() {
            let waits = self.hellos[client].connection.state != PENDING_UNDELIVERED;
            let other = self.flows.contains_key(client) || self.half_opens.contains_key(client);
            assert!(!(waits && other), "{client:?} waits and has a flow");
        }
    }

    /// Each incomplete hello must be counted once for its source, and each buffer that a hello has.
    fn counts(&self, lasting: bool) {
        let buffers = self.hellos.values().map(|hello| hello.have.max(1).div_ceil(BUFFER_BYTES as u32));
        assert_eq!(self.buffered, buffers.sum::<u32>(), "buffers of hellos");
        let waiting = || self.hellos.iter().filter(|(_, hello)| hello.connection.state == PENDING_COLLECTING);
        for (address, source) in &self.sources {
            let own = |client: &ClientTuple| client.client.source_prefix() == *address;
            let counted = |hello: &Pending| hello.source_epoch == source.count.epoch;
            let count = waiting().filter(|(client, hello)| own(client) && counted(hello)).count();
            assert_eq!(source.count.waiting as usize, count, "incomplete hellos of {address:?}");
        }
        // A source whose count has no room in the map is not refused.
        let full = self.sources.len() >= SOURCES_MAX;
        let counted = |client: &ClientTuple| self.sources.contains_key(&client.client.source_prefix());
        let all = waiting().all(|(client, _)| counted(client));
        assert!(all || full || !lasting, "an incomplete hello is not counted");
    }

    /// Each complete hello that waits for its backend must be counted for its source and route, by the slots it had
    /// when it began to.
    fn connecting_counts(&self) {
        let mut shares = BTreeMap::new();
        let counted = [PENDING_CONNECTING, PENDING_UNDELIVERED];
        let connecting = self.hellos.iter().filter(|(_, hello)| counted.contains(&hello.connection.state));
        for (client, hello) in connecting {
            *shares.entry(ShareKey::of(client, hello.connection.route)).or_insert(0) +=
                u32::from(hello.slots);
        }
        let counted = self.shares.iter().filter(|(_, share)| share.connecting != 0);
        assert!(
            counted.map(|(key, share)| (*key, share.connecting)).eq(shares),
            "hellos that wait for a backend: {:?}",
            self.shares
        );
    }
}

/// The bytes of a hello must be where its entry says.
fn keep(programs: &Programs, client: &ClientTuple, hello: &Pending) {
    for (index, _, chunk) in chunks(programs, hello) {
        let owner = chunk.map(|chunk| (chunk.owner, chunk.index as usize, chunk.locked));
        assert_eq!(
            owner,
            Some((*client, index, 0)),
            "a part of the hello has another owner, or stays locked"
        );
    }
}

/// Returns the parts of a hello: index, bytes in use, and the buffer.
fn chunks(programs: &Programs, hello: &Pending) -> Vec<(usize, usize, Option<Buffer>)> {
    let have = hello.have as usize;
    let parts = hello.buffers.iter().enumerate().take(have.max(1).div_ceil(BUFFER_BYTES));
    parts
        .map(|(index, place)| {
            let chunk = (*place != u32::MAX).then(|| programs.element(name::BUFFERS, *place));
            (index, have.saturating_sub(index * BUFFER_BYTES).min(BUFFER_BYTES), chunk)
        })
        .collect()
}

/// Returns the buffered bytes of a connection's hello.
pub fn content(programs: &Programs, client: ClientTuple) -> Vec<u8> {
    let Some(hello) = programs.entry::<_, Pending>(name::PENDING, client) else { return Vec::new() };
    let parts = chunks(programs, &hello);
    parts
        .iter()
        .flat_map(|(_, used, chunk)| chunk.map_or(Vec::new(), |chunk| chunk.bytes[..*used].to_vec()))
        .collect()
}
