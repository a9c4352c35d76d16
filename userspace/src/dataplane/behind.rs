//! Ends flows behind backends that are gone, without a look at all others: a walk over ten million flows takes seconds. A flow's
//! entry in `NATS` has a key that can be computed: the backend, one of our addresses, and a port of the range. A flow whose backend sees
//! the client's own address (`dnat`) has none; it is in a list of its own, `DNAT_FLOWS`, at most a quarter as long as that of all flows.
//!
//! What is found by neither is left to the walk that follows: ports outside of the range that is set now, backends whose record is gone, and
//! what the list had no room for, or was not there for: flows of before an upgrade.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use common::maps::address::{Address, Port};
use common::maps::backend::{BACKEND_REFUSING, Backend, DELIVERY_NAT};
use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, TRANSPORT_TCP};
use common::maps::listener::ROLE_SOURCE;
use common::maps::settings::Settings;
use common::reason::Reason;

use super::maps::Maps;
use super::pin::Pins;
use super::request::{ending, reason};
use super::runner::{self, ExpireError, Runner, THREADS_MAX};
use super::table::TableError;
use crate::plan::Selector;

/// A walk over fewer flows takes a fifth of a second at most.
const FLOWS_MIN: u64 = 500_000;
/// The flows that a walk looks at in the time in which one key is looked up, with what is found by it.
const FLOWS_A_KEY: u64 = 3;
/// The most keys that are looked up in one turn, of which each thread takes one after the other.
const KEYS: u16 = 256;

/// The open maps, and the program that ends flows.
#[derive(Debug)]
pub struct Behind {
    maps: Maps,
    runner: Runner,
}

/// Keys that differ in their source port only.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Turn {
    /// The backend and our address.
    towards: BackendTuple,
    ports: RangeInclusive<u16>,
}

impl Behind {
    /// Opens the program and a separate set of maps, for use in a separate thread.
    pub fn open(pins: &Pins, ifindex: u32) -> Result<Self, ExpireError> {
        Ok(Self { maps: Maps::open(pins)?, runner: Runner::open(pins, ifindex)? })
    }

    /// The maps that this uses.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Sets the device for runs, one of ours.
    pub fn set_device(&mut self, ifindex: u32) {
        self.runner.set_device(ifindex);
    }

    /// Ends the flows that the selector matches, as [`super::expire::Expirer::reset`] does, as far as they are found by their keys, or in
    /// the list. `flows`: how many there are; `None`: as many as there is room for. Returns how many were ended; `None`: a walk over all of
    /// them is as quick, or nothing can be found otherwise.
    pub fn end(
        &self,
        selector: &Selector,
        is_old: impl Fn(u32, u32) -> bool + Sync,
        flows: Option<u64>,
    ) -> Result<Option<u32>, ExpireError> {
        let flows = flows.unwrap_or_else(|| self.maps.flows.capacity().into());
        if !is_quicker(1, flows) {
            return Ok(None);
        }
        let takes_it = |client: &ClientTuple, is: &Connection| reason(selector, &is_old, client, is);
        let threads = runner::processors().min(THREADS_MAX);
        // First: it takes no longer however many backends go.
        let listed = self.end_listed(selector, takes_it, threads);
        let by_keys = self.end_by_keys(selector, takes_it, flows, threads)?;
        let listed = listed?;
        Ok(by_keys.into_iter().chain(listed).reduce(|by_keys, listed| by_keys + listed))
    }

    /// Ends those whose keys can be computed. `None`: nothing has such keys, or they are too many.
    fn end_by_keys(
        &self,
        selector: &Selector,
        takes_it: impl Fn(&ClientTuple, &Connection) -> Option<Reason> + Copy + Sync,
        flows: u64,
        threads: usize,
    ) -> Result<Option<u32>, ExpireError> {
        let settings = self.maps.settings.look_up(&0)?.unwrap_or_default();
        let most = flows / FLOWS_A_KEY / keys(1, &settings).max(1);
        let towards = pairs(&self.backends(selector, most)?, &self.sources()?);
        if towards.is_empty() || !is_quicker(keys(towards.len(), &settings), flows) {
            return Ok(None);
        }
        let turns = turns(&towards, &settings);
        runner::spread(&turns, threads, |turn| self.end_those(&self.find(turn)?, takes_it)).map(Some)
    }

    /// Ends those that are listed. However many these are, looking through the list takes less time than the walk over all. `None`: there is
    /// no list, or it is about something else.
    fn end_listed(
        &self,
        selector: &Selector,
        takes_it: impl Fn(&ClientTuple, &Connection) -> Option<Reason> + Copy + Sync,
        threads: usize,
    ) -> Result<Option<u32>, ExpireError> {
        let routes = selector.routes();
        let Some(list) = &self.maps.dnat_flows else { return Ok(None) };
        if selector.backends.is_empty() && routes.is_empty() {
            return Ok(None);
        }
        let clients = list.find(threads, |client, listed| {
            is_behind(&selector.backends, &routes, listed).then_some(*client)
        })?;
        let turns: Vec<&[ClientTuple]> = clients.chunks(KEYS.into()).collect();
        runner::spread(&turns, threads, |clients| self.end_those(clients, takes_it)).map(Some)
    }

    /// Ends the flows of these clients that there is a reason for. A flow is judged by its own record, whatever led to it.
    fn end_those(
        &self,
        clients: &[ClientTuple],
        takes_it: impl Fn(&ClientTuple, &Connection) -> Option<Reason>,
    ) -> Result<u32, ExpireError> {
        let mut orders = Vec::new();
        for client in clients {
            let flow = self.maps.flows.look_up(client)?;
            orders.extend(flow.and_then(|flow| ending(client, &flow, &takes_it)));
        }
        self.runner.end_here(orders)
    }

    /// Returns address and port of each backend that the selector is about; not of all if these are more than `most`. A record is deleted
    /// when its flows were ended, so that those of a route are all that its flows can have.
    fn backends(&self, selector: &Selector, most: u64) -> Result<BTreeSet<(Address, Port)>, TableError> {
        let mut found = BTreeSet::new();
        for id in &selector.backends {
            found.extend(self.maps.backends.look_up(id)?.as_ref().and_then(place));
            if found.len() as u64 > most {
                return Ok(found);
            }
        }
        let routes = selector.routes();
        if !routes.is_empty() {
            self.maps.backends.walk(|_, backend| {
                if routes.contains(&backend.route) {
                    found.extend(place(backend));
                }
            })?;
        }
        Ok(found)
    }

    /// Returns our addresses, also those that no backend is reached from any more: they keep their role.
    fn sources(&self) -> Result<BTreeSet<Address>, TableError> {
        let mut found = BTreeSet::new();
        self.maps.addresses.walk(|address, role| {
            if role.flags & ROLE_SOURCE != 0 {
                found.insert(*address);
            }
        })?;
        Ok(found)
    }

    /// Returns the clients that are found by these keys.
    fn find(&self, turn: &Turn) -> Result<Vec<ClientTuple>, TableError> {
        let mut clients = Vec::new();
        for port in turn.ports.clone() {
            let key = BackendTuple { source_port: Port::new(port), ..turn.towards };
            clients.extend(self.maps.nats.look_up(&key)?.map(|reply| reply.tuple()));
        }
        Ok(clients)
    }
}

/// Whether a flow that is listed depends on one of these backends or routes.
fn is_behind(backends: &BTreeSet<u32>, routes: &BTreeSet<u32>, listed: &DnatFlow) -> bool {
    backends.contains(&listed.backend) || routes.contains(&listed.route)
}

/// Returns where connections are led to; `None`: nowhere, or with the clients' own addresses.
fn place(backend: &Backend) -> Option<(Address, Port)> {
    let is_found = backend.delivery == DELIVERY_NAT && backend.flags & BACKEND_REFUSING == 0;
    is_found.then_some((backend.address, backend.port))
}

/// Returns each pair of a backend and an address of ours of its family.
fn pairs(backends: &BTreeSet<(Address, Port)>, sources: &BTreeSet<Address>) -> Vec<BackendTuple> {
    let towards = |(backend, backend_port): &(Address, Port)| {
        let tuple = BackendTuple {
            backend: *backend,
            backend_port: *backend_port,
            transport: TRANSPORT_TCP,
            ..BackendTuple::zeroed()
        };
        let ours = sources.iter().filter(move |source| source.is_v4() == tuple.backend.is_v4());
        ours.map(move |source| BackendTuple { source: *source, ..tuple })
    };
    backends.iter().flat_map(towards).collect()
}

/// Returns the number of keys of this many pairs.
fn keys(pairs: usize, settings: &Settings) -> u64 {
    let Settings { source_port_first: first, source_port_last: last, .. } = *settings;
    pairs as u64 * (u64::from(last) + 1).saturating_sub(first.into())
}

/// Whether it takes less time to look up this many keys than to walk over this many flows, and that is worth it.
fn is_quicker(keys: u64, flows: u64) -> bool {
    flows >= FLOWS_MIN && keys.saturating_mul(FLOWS_A_KEY) <= flows
}

/// Returns all keys of these pairs, each once.
fn turns(towards: &[BackendTuple], settings: &Settings) -> Vec<Turn> {
    let last = settings.source_port_last;
    let of = |towards: &BackendTuple| {
        let towards = *towards;
        let begins = (settings.source_port_first..=last).step_by(KEYS.into());
        begins.map(move |first| Turn { towards, ports: first..=first.saturating_add(KEYS - 1).min(last) })
    };
    towards.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(first: u16, last: u16) -> Settings {
        Settings { source_port_first: first, source_port_last: last, ..Settings::zeroed() }
    }

    fn v4(last: u8) -> Address {
        Address::v4([192, 0, 2, last])
    }

    fn v6(last: u8) -> Address {
        let mut bytes = [0; 16];
        (bytes[0], bytes[15]) = (0x20, last);
        Address::v6(bytes)
    }

    #[test]
    fn keys_are_all_ports_of_each_backend_with_each_of_our_addresses_of_its_family_once() {
        let backends =
            BTreeSet::from([(v4(1), Port::new(443)), (v4(1), Port::new(80)), (v6(1), Port::new(443))]);
        let sources = BTreeSet::from([v4(10), v4(11), v6(10)]);
        let towards = pairs(&backends, &sources);
        let is = |towards: &BackendTuple| (towards.backend, towards.backend_port.number(), towards.source);
        assert_eq!(
            towards.iter().map(is).collect::<BTreeSet<_>>(),
            BTreeSet::from([
                (v4(1), 443, v4(10)),
                (v4(1), 443, v4(11)),
                (v4(1), 80, v4(10)),
                (v4(1), 80, v4(11)),
                (v6(1), 443, v6(10)),
            ])
        );
        assert_eq!(towards.len(), 5);
        for (first, last) in [(1024, 29_999), (1024, 1024), (65_000, 65_535), (1, 256), (1, 257), (0, 65_535)]
        {
            let settings = settings(first, last);
            let turns = turns(&towards, &settings);
            let mut found: Vec<BackendTuple> = Vec::new();
            for Turn { towards, ports } in &turns {
                assert!(!ports.is_empty() && ports.len() <= usize::from(KEYS));
                found.extend(
                    ports.clone().map(|port| BackendTuple { source_port: Port::new(port), ..*towards }),
                );
            }
            assert_eq!(found.len() as u64, keys(towards.len(), &settings));
            let all: BTreeSet<_> = found.iter().copied().collect();
            assert_eq!(all.len(), 5 * (usize::from(last - first) + 1), "none twice: {first}-{last}");
            let ports = all.iter().map(|key| key.source_port.number());
            assert!(all.iter().all(|key| key.transport == TRANSPORT_TCP));
            assert_eq!((ports.clone().min(), ports.max()), (Some(first), Some(last)));
        }
        assert_eq!((turns(&towards, &settings(2, 1)), keys(5, &settings(2, 1))), (Vec::new(), 0));
    }

    #[test]
    fn of_the_list_flows_are_chosen_by_their_backend_or_their_route() {
        let listed = |backend, route| DnatFlow { generation: 3, backend, route };
        let is = |backend, route| {
            is_behind(&BTreeSet::from([1, 2]), &BTreeSet::from([7]), &listed(backend, route))
        };
        assert!(is(1, 5) && is(2, 5) && is(9, 7) && is(1, 7));
        // Neither by the number of the other, nor by that of the connection.
        assert!(!is(7, 1) && !is(3, 3) && !is(0, 0));
    }

    #[test]
    fn what_takes_less_time_is_chosen() {
        let usual = settings(1024, 29_999);
        let of = |backends: usize, flows| is_quicker(keys(backends, &usual), flows);
        assert!(of(1, 10_000_000) && of(5, 10_000_000) && of(100, 10_000_000));
        assert!(!of(1_000, 10_000_000), "29 million keys");
        assert!(of(5, 500_000) && !of(6, 500_000));
        assert!(!of(1, 499_999) && !of(0, 0), "a walk is quick enough");
        assert!(!is_quicker(u64::MAX / 2, 10_000_000));
    }
}
