//! Millions of flows, written to the maps of a daemon that runs: copies of its open connections with tuples drawn from a seed.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use common::maps::address::{Address, Port};
use common::maps::backend::DELIVERY_DNAT;
use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::{BackendTuple, ClientTuple, FLOW_ESTABLISHED, Flow, Reply};
use common::maps::listener::{AddressRole, ROLE_SOURCE};
use common::maps::source::{Share, ShareKey};
use userspace::dataplane::keepalive::SILENT_SECS;
use userspace::dataplane::maps::Maps;
use userspace::dataplane::read::now_secs;

/// The clients' addresses, which are those of [`crate::copies::own_clients`], and the ports of each.
const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 0);
const PORT_BITS: u32 = 14;
/// Bits of the number of a flow: 1,024 clients, and 16,384 ports of each.
const BITS: u32 = 24;
const FIRST_PORT: u32 = 1024;

/// Source ports of a backend for each of our addresses, as the daemon sets them by default, and how many are taken of them at most: of
/// more, some would be made to end.
const SOURCE_PORTS: Range<u32> = 1024..30_000;
const TAKEN_MAX: u32 = 20_000;
/// A step that meets each of them once.
const STEP: u64 = 7_919;

/// Flows that are written by one system call.
const AT_ONCE: usize = 32_768;
/// The longest time that a flow has had no packet, in seconds. None of them has ends that would answer: after two and a half hours of silence the
/// daemon would ask, and end them. So there is an hour and a half for what is done with them.
const IDLE_MAX: u32 = 1_800;
const _: () = assert!(IDLE_MAX <= SILENT_SECS / 4, "the daemon would end them");

/// Draws tuples: the same ones from the same seed.
#[derive(Clone, Copy, Debug)]
pub struct Draw(u32);

impl Draw {
    /// Draws from this seed.
    pub fn new(seed: u32) -> Self {
        Self(seed)
    }

    /// Returns another number of as many bits for each number.
    fn mixed(self, number: u32) -> u32 {
        const MASK: u32 = (1 << BITS) - 1;
        let mut mixed = number & MASK;
        // Each step can be undone, so that no two numbers become the same.
        for (round, odd) in [0x00b5_297a_u32 | 1, 0x0068_e31d, 0x001b_56c5].into_iter().enumerate() {
            mixed = mixed.wrapping_mul(odd).wrapping_add(self.0.rotate_left(8 * round as u32)) & MASK;
            mixed ^= mixed >> 11;
        }
        mixed
    }

    /// Returns address and port of the client of a flow.
    fn client(self, number: u32) -> (Ipv4Addr, u16) {
        let mixed = self.mixed(number);
        let port = FIRST_PORT + (mixed & ((1 << PORT_BITS) - 1));
        (Ipv4Addr::from(u32::from(CLIENTS) + (mixed >> PORT_BITS)), port as u16)
    }

    /// Returns a number below `most` for a flow.
    fn below(self, number: u32, most: u32) -> u32 {
        let mixed = Self(self.0 ^ 0x5bd1_e995).mixed(number);
        ((u64::from(mixed) * u64::from(most)) >> BITS) as u32
    }

    /// Returns the source port that is taken at this turn.
    fn source_port(self, turn: u32) -> u16 {
        let all = u64::from(SOURCE_PORTS.end - SOURCE_PORTS.start);
        (u64::from(SOURCE_PORTS.start) + (u64::from(turn) * STEP + u64::from(self.0)) % all) as u16
    }
}

/// One backend, whose flows are copies of its open connection.
#[derive(Debug)]
struct Model {
    client: ClientTuple,
    flow: Flow,
    /// The source ports of its open connections.
    used: HashSet<u16>,
    /// Turns of source ports that are over.
    turn: u32,
    /// Flows written.
    count: u32,
}

impl Model {
    fn new(client: ClientTuple, flow: Flow) -> Self {
        Self { client, flow, used: HashSet::new(), turn: 0, count: 0 }
    }

    /// Returns the addresses that connections have beside that of the open one, as of a node whose own was another one before.
    fn further_sources(&self) -> impl Iterator<Item = Address> + use<> {
        let own = self.flow.nat.source;
        (1..self.turn.div_ceil(TAKEN_MAX)).map(move |nth| further(own, nth))
    }

    /// Returns a four-tuple towards the backend that nobody has: the client's own address and port where the backend sees them. Further
    /// sources than the connection's own are addresses after it.
    fn nat(&mut self, draw: Draw, client: &ClientTuple) -> BackendTuple {
        if self.flow.connection.delivery == DELIVERY_DNAT {
            let (source, source_port) = (client.client, client.client_port);
            return BackendTuple { source, source_port, ..self.flow.nat };
        }
        loop {
            let (source, turn) = (self.turn / TAKEN_MAX, self.turn % TAKEN_MAX);
            self.turn += 1;
            let port = draw.source_port(turn);
            if source > 0 || !self.used.contains(&port) {
                let mut nat = self.flow.nat;
                nat.source = further(nat.source, source);
                nat.source_port = Port::new(port);
                return nat;
            }
        }
    }
}

/// Returns the nth address after a connection's own.
fn further(mut own: Address, nth: u32) -> Address {
    own.bytes[15] += if nth == 0 { 0 } else { 100 + nth as u8 };
    own
}

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// Flows by the address of their client.
    pub by_client: HashMap<Ipv4Addr, u32>,
}

/// Writes many flows by one system call.
struct Writer<'m> {
    maps: &'m Maps,
    draw: Draw,
    now: u32,
    nats: Vec<(BackendTuple, Reply)>,
    flows: Vec<(ClientTuple, Flow)>,
    listed: Vec<(ClientTuple, DnatFlow)>,
    shares: HashMap<ShareKey, u32>,
    written: Written,
}

impl<'m> Writer<'m> {
    fn new(maps: &'m Maps, draw: Draw) -> Self {
        let (nats, flows) = (Vec::with_capacity(AT_ONCE), Vec::with_capacity(AT_ONCE));
        let (shares, written) = (HashMap::new(), Written::default());
        Self { maps, draw, now: now_secs(), nats, flows, listed: Vec::new(), shares, written }
    }

    /// Adds the flow of this number, a copy of the model.
    fn add(&mut self, model: &mut Model, number: u32) -> Result<()> {
        let (address, port) = self.draw.client(number);
        let client = ClientTuple {
            client: IpAddr::from(address).into(),
            client_port: Port::new(port),
            ..model.client
        };
        let nat = model.nat(self.draw, &client);
        let seen_secs = self.now - self.draw.below(number ^ 0x00ff_00ff, IDLE_MAX.min(self.now));
        self.nats.push((nat, Reply::to(&client, model.flow.connection.generation)));
        self.flows.push((client, Flow { nat, seen_secs, ..model.flow }));
        if model.flow.connection.delivery == DELIVERY_DNAT {
            self.listed.push((client, DnatFlow::of(&model.flow.connection)));
        }
        model.count += 1;
        *self.written.by_client.entry(address).or_default() += 1;
        *self.shares.entry(ShareKey::of(&client, model.flow.connection.route)).or_default() += 1;
        if self.flows.len() == AT_ONCE { self.put() } else { Ok(()) }
    }

    fn put(&mut self) -> Result<()> {
        if self.flows.is_empty() {
            return Ok(());
        }
        self.maps.nats.put_all(&self.nats)?;
        self.maps.flows.put_all(&self.flows)?;
        if !self.listed.is_empty() {
            let list = self.maps.dnat_flows.as_ref().context("these maps have no list")?;
            list.put_all(&self.listed)?;
        }
        self.listed.clear();
        self.nats.clear();
        self.flows.clear();
        Ok(())
    }

    /// Writes the rest, the roles of the sources, and the counts of routes and sources.
    fn end(mut self, models: &[Model]) -> Result<Written> {
        self.put()?;
        let maps = self.maps;
        let shares: Vec<_> =
            self.shares.into_iter().map(|(key, flows)| (key, Share { flows, connecting: 0 })).collect();
        for some in shares.chunks(AT_ONCE) {
            maps.shares.put_all(some)?;
        }
        for source in models.iter().flat_map(Model::further_sources) {
            let flags = maps.addresses.look_up(&source)?.unwrap_or_default().flags | ROLE_SOURCE;
            maps.addresses.put(&source, &AddressRole { flags })?;
        }
        for model in models {
            let route = model.flow.connection.route;
            let mut counters = maps.route_counters.look_up(&route)?.context("the route has no counters")?;
            counters.flows += model.count;
            maps.route_counters.put(&route, &counters)?;
        }
        Ok(self.written)
    }
}

/// Writes `count` flows with their NAT entries, listed where their backend sees its clients, and the roles of their sources, and counts them to routes and sources. There must be an
/// open connection to each backend port from `first` on, of `backends`. Of the flows, `behind` belong to each of the first two backends,
/// the rest to any of the others.
pub fn write(maps: &Maps, draw: Draw, first: u16, backends: u32, behind: u32, count: u32) -> Result<Written> {
    ensure!(count < 1 << BITS && backends > 2 && 2 * behind < count, "{count} flows of {backends} backends");
    let mut models = models(maps, first, backends)?;
    let mut writer = Writer::new(maps, draw);
    for number in 0..count {
        let backend = match number {
            number if number < 2 * behind => number / behind,
            number => 2 + draw.below(number, backends - 2),
        };
        writer.add(&mut models[backend as usize], number)?;
    }
    writer.end(&models)
}

/// Writes the flows of these numbers as [`write`] does, copies of the open connection with this key, which is the only one to its
/// backend. Returns their delivery.
pub fn write_behind(maps: &Maps, draw: Draw, of: &ClientTuple, numbers: Range<u32>) -> Result<u8> {
    ensure!(numbers.end < 1 << BITS, "{} flows are too many", numbers.end);
    let flow = maps.flows.look_up(of)?.context("no flow has this key")?;
    ensure!(flow.connection.state == FLOW_ESTABLISHED, "the connection is not open");
    let mut model = Model::new(*of, flow);
    model.used.insert(flow.nat.source_port.number());
    let mut writer = Writer::new(maps, draw);
    for number in numbers {
        writer.add(&mut model, number)?;
    }
    writer.end(&[model])?;
    Ok(flow.connection.delivery)
}

/// Finds an open connection to each backend.
fn models(maps: &Maps, first: u16, backends: u32) -> Result<Vec<Model>> {
    let mut found: Vec<Option<Model>> = (0..backends).map(|_| None).collect();
    maps.flows.walk(|client, flow| {
        let place = usize::from(flow.nat.backend_port.number().wrapping_sub(first));
        if flow.connection.state == FLOW_ESTABLISHED
            && let Some(model) = found.get_mut(place)
        {
            model
                .get_or_insert_with(|| Model::new(*client, *flow))
                .used
                .insert(flow.nat.source_port.number());
        }
    })?;
    let missing = found.iter().filter(|model| model.is_none()).count();
    ensure!(missing == 0, "{missing} of {backends} backends have no open connection");
    Ok(found.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use common::maps::flow::Connection;

    use super::*;

    #[test]
    fn no_two_flows_have_one_client() {
        let (draw, mut seen) = (Draw::new(0xdead_beef), vec![false; 1 << BITS]);
        for number in 0..1 << BITS {
            let mixed = draw.mixed(number) as usize;
            assert!(!std::mem::replace(&mut seen[mixed], true), "{number}");
        }
    }

    #[test]
    fn tuples_are_drawn_from_the_seed() {
        let clients = |seed| (0..1_000).map(|number| Draw::new(seed).client(number)).collect::<Vec<_>>();
        assert_eq!(clients(7), clients(7));
        assert_ne!(clients(7), clients(8));
        let addresses: HashSet<_> = (0..100_000).map(|number| Draw::new(7).client(number).0).collect();
        assert_eq!(addresses.len(), 1 << (BITS - PORT_BITS));
        let parts: Vec<u32> = (0..100_000).map(|number| Draw::new(7).below(number, 10)).collect();
        for part in 0..10 {
            let count = parts.iter().filter(|drawn| **drawn == part).count();
            assert!((8_000..12_000).contains(&count), "{count} of {part}");
        }
    }

    #[test]
    fn a_backend_takes_each_source_port_once() {
        let nat =
            BackendTuple { source_port: Port::new(Draw::new(7).source_port(3)), ..BackendTuple::zeroed() };
        let flow = Flow { nat, ..Flow::zeroed() };
        let mut model = Model::new(ClientTuple::zeroed(), flow);
        model.used.insert(nat.source_port.number());
        let taken: HashSet<_> =
            (0..100_000).map(|_| model.nat(Draw::new(7), &ClientTuple::zeroed())).collect();
        assert!(taken.len() == 100_000 && !taken.contains(&nat), "none twice, and none that is open");
        let own = taken.iter().filter(|taken| taken.source == nat.source);
        assert_eq!(own.count() as u32, TAKEN_MAX - 1);
        let sources: HashSet<_> = taken.iter().map(|taken| taken.source).collect();
        let known = model.further_sources().chain([nat.source]).collect();
        assert_eq!(sources, known, "replies to each are known");
        assert!(taken.iter().all(|taken| SOURCE_PORTS.contains(&taken.source_port.number().into())));
    }

    #[test]
    fn a_backend_that_sees_its_clients_has_their_own_addresses() {
        let connection = Connection { delivery: DELIVERY_DNAT, ..Connection::zeroed() };
        let mut model = Model::new(ClientTuple::zeroed(), Flow { connection, ..Flow::zeroed() });
        let client = ClientTuple { client_port: Port::new(7), ..ClientTuple::zeroed() };
        for _ in 0..2 {
            assert_eq!(model.nat(Draw::new(7), &client).source_port.number(), 7);
        }
        assert_eq!(model.further_sources().count(), 0);
    }
}
