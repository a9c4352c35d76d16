//! Routes with more than one backend, and readers of the resulting map entries.

use std::net::{IpAddr, SocketAddr};

use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::dnat_flow::DnatFlow;
use common::maps::event::RouteCounters;
use common::maps::flow::{BackendTuple, ClientTuple, Flow, HalfOpen, Pending, Reply};
use common::maps::name;
use common::maps::source::{Share, ShareKey, Source};
use tests::addresses::{BACKEND_PORT, BACKENDS, FAMILIES, Family, TENANT_NETS, host, server_name};
use tests::program::Programs;
use tests::world::Device;

/// Returns the address of backend `index` of tenant a.
pub(crate) fn backend_address(family: Family, index: u8) -> IpAddr {
    host(family, TENANT_NETS[0], BACKENDS[0] + index)
}

/// Returns the address and port of backend `index` of tenant a.
pub(crate) fn backend_socket(family: Family, index: u8) -> SocketAddr {
    SocketAddr::new(backend_address(family, index), BACKEND_PORT)
}

/// Returns the backend's id in [`with_backends`].
pub(crate) fn backend_id(family: Family, index: u8) -> u32 {
    let first = if family.is_v4() { 100 } else { 200 };
    first + u32::from(index)
}

/// Gives route 1 this many backends of each family, up to a hundred.
pub(crate) fn with_backends(programs: &mut Programs, count: u8) {
    let mut all = Vec::new();
    let mut neighbours = String::new();
    let [a, b, c, d, e, f] = Device::Backend.far_mac();
    for family in FAMILIES {
        for index in 0..count {
            let address = backend_address(family, index);
            all.push((backend_id(family, index), programs.backend(1, address)));
            neighbours.push_str(&format!(
                "neigh replace {address} lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} dev {} nud permanent\n",
                Device::Backend.name()
            ));
        }
    }
    programs.world.node.ip(&neighbours).expect("`ip` takes the commands");
    programs.route(1, &all);
}

/// Adds route 2, of another name of listener 1, with the backends of route 1.
pub(crate) fn with_second_route(programs: &mut Programs) {
    let both = FAMILIES.map(|family| {
        let id = if family.is_v4() { 31 } else { 32 };
        (id, programs.backend(2, backend_address(family, 0)))
    });
    programs.route(2, &both);
    programs.name(1, &server_name(1), 2);
}

/// Sets the flags of a backend.
pub(crate) fn flag_backend(programs: &mut Programs, id: u32, flags: u8) {
    let backend: Backend = programs.entry(name::BACKENDS, id).expect("the backend is there");
    programs.insert(name::BACKENDS, id, Backend { flags, ..backend });
}

/// Returns the counters of route 1: connected, refused, retried.
pub(crate) fn route_counts(programs: &Programs) -> (u64, u64, u64) {
    let counters: RouteCounters = programs.entry(name::ROUTE_COUNTERS, 1u32).expect("the daemon made them");
    (counters.connected, counters.refused, counters.retried)
}

/// Returns the flows counted for a route.
pub(crate) fn route_flows(programs: &Programs, route: u32) -> u32 {
    let counters: RouteCounters = programs.entry(name::ROUTE_COUNTERS, route).expect("the daemon made them");
    counters.flows
}

/// Returns the flows counted for a source and a route.
pub(crate) fn share_flows(programs: &Programs, source: IpAddr, route: u32) -> Option<u32> {
    let key = ShareKey { source: Address::from(source).source_prefix(), route };
    programs.entry(name::SHARES, key).map(|share: Share| share.flows)
}

/// Returns every NAT entry with its owner.
pub(crate) fn nats(programs: &Programs) -> Vec<(BackendTuple, ClientTuple)> {
    let nats = programs.entries(name::NATS).into_iter();
    nats.map(|(tuple, reply): (_, Reply)| (tuple, reply.tuple())).collect()
}

/// Returns the clients of all waiting hellos.
pub(crate) fn hellos(programs: &Programs) -> Vec<ClientTuple> {
    programs.entries::<ClientTuple, Pending>(name::PENDING).into_iter().map(|(client, _)| client).collect()
}

/// Returns the count of waiting hellos of a source.
pub(crate) fn waiting_of(programs: &Programs, source: IpAddr) -> u32 {
    let prefix = Address::from(source).source_prefix();
    let source: Option<Source> = programs.entry(name::SOURCES, prefix);
    let shares = programs.entries::<ShareKey, Share>(name::SHARES).into_iter();
    let connecting: u32 =
        shares.filter(|(key, _)| key.source == prefix).map(|(_, share)| share.connecting).sum();
    source.map_or(0, |source| source.count.waiting) + connecting
}

/// Removes a hello from the map, as if it had been evicted.
pub(crate) fn remove_hello(programs: &mut Programs, client: ClientTuple) {
    programs.remove::<_, Pending>(name::PENDING, client);
}

/// Removes a flow from the map.
pub(crate) fn remove_flow(programs: &mut Programs, client: ClientTuple) {
    programs.remove::<_, Flow>(name::FLOWS, client);
}

/// Removes all connections, and what is counted of them.
pub(crate) fn forget_all(programs: &mut Programs) {
    for (client, _) in programs.entries::<ClientTuple, Flow>(name::FLOWS) {
        programs.remove::<_, Flow>(name::FLOWS, client);
    }
    for (tuple, _) in nats(programs) {
        programs.remove::<_, Reply>(name::NATS, tuple);
    }
    programs.clear::<ClientTuple, DnatFlow>(name::DNAT_FLOWS);
    for client in hellos(programs) {
        remove_hello(programs, client);
    }
    for (client, _) in programs.entries::<ClientTuple, HalfOpen>(name::HALF_OPENS) {
        programs.remove::<_, HalfOpen>(name::HALF_OPENS, client);
    }
    crate::by_cookie::clear_counts(programs);
    for (prefix, _) in programs.entries::<Address, Source>(name::SOURCES) {
        programs.remove::<_, Source>(name::SOURCES, prefix);
    }
    for (key, _) in programs.entries::<ShareKey, Share>(name::SHARES) {
        programs.remove::<_, Share>(name::SHARES, key);
    }
    for (route, counters) in programs.entries::<u32, RouteCounters>(name::ROUTE_COUNTERS) {
        programs.insert(name::ROUTE_COUNTERS, route, RouteCounters { flows: 0, ..counters });
    }
}
