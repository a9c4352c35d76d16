//! Copies of an open connection in the maps of a daemon: more flows than a test can open.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use anyhow::{Context, Result};
use common::maps::address::Port;
use common::maps::flow::{BackendTuple, ClientTuple, Flow, Reply};
use userspace::dataplane::maps::Maps;

use crate::net::Namespace;

/// The clients' addresses are the first of this network, which the balancer reaches through its client.
const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 0);
/// Their prefix length.
const CLIENTS_BITS: u32 = 16;
/// The number of their addresses. Each has as many connections as are needed.
const CLIENTS_COUNT: u32 = 10_000;
/// The first port of a client.
const CLIENT_PORT: u32 = 10_000;
/// The number of source ports of a copy's backend for each source address; the test's own connections have lower ones.
const SOURCE_PORTS: Range<u32> = 30_000..60_000;

/// Makes the copies' addresses the client's own: its stack counts the segments that they get.
pub fn own_clients(client: &Namespace) -> Result<()> {
    client.ip(&format!("route add local {CLIENTS}/{CLIENTS_BITS} dev lo\n"))
}

/// Writes copies of the flow with this key and of its NAT entry, each with another client and source, and counts them to its
/// route. The numbers distinguish the copies of one daemon.
pub fn copy(maps: &Maps, of: &ClientTuple, numbers: Range<u32>) -> Result<()> {
    let flow = maps.flows.look_up(of)?.context("no flow has this key")?;
    let count = numbers.len() as u32;
    let (nats, flows): (Vec<_>, Vec<_>) = numbers
        .map(|number| {
            let client = client(of, number);
            let nat = source(&flow.nat, number);
            ((nat, Reply::to(&client, flow.connection.generation)), (client, Flow { nat, ..flow }))
        })
        .unzip();
    maps.nats.put_all(&nats)?;
    maps.flows.put_all(&flows)?;
    let route = flow.connection.route;
    let mut counters = maps.route_counters.look_up(&route)?.context("the route has no counters")?;
    counters.flows += count;
    Ok(maps.route_counters.put(&route, &counters)?)
}

fn client(of: &ClientTuple, number: u32) -> ClientTuple {
    let address = Ipv4Addr::from(u32::from(CLIENTS) + number % CLIENTS_COUNT);
    let port = CLIENT_PORT + number / CLIENTS_COUNT;
    ClientTuple { client: IpAddr::from(address).into(), client_port: Port::new(port as u16), ..*of }
}

/// The first sources of a backend have the connection's own address, further ones addresses after it.
fn source(of: &BackendTuple, number: u32) -> BackendTuple {
    let ports = SOURCE_PORTS.len() as u32;
    let mut source = of.source;
    source.bytes[15] += 100 * u8::from(number >= ports) + (number / ports) as u8;
    BackendTuple { source, source_port: Port::new((SOURCE_PORTS.start + number % ports) as u16), ..*of }
}
