//! What the daemon passes to the program `expire`: the connection, and what is to be done with it.

use std::net::IpAddr;

use common::maps::event::{Expiry, ORDERS_MAX};
use common::maps::flow::{ClientTuple, Connection, FLOW_ESTABLISHED, Flow};
use common::reason::Reason;
use zerocopy::IntoBytes;

use super::held;
use crate::plan::Selector;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// The least amount of packet data for a run: the program reads whole headers.
const DATA: usize = ETHERNET + 128;

/// Names a client.
pub(super) fn expiry(client: &ClientTuple, reason: Reason) -> Expiry {
    Expiry { client: *client, seq: 0, reason: reason as u32, generation: 0, seen_secs: 0 }
}

/// Names the waiting or half-open connection: the program ends no other one of the same client.
pub(super) fn of_record(client: &ClientTuple, connection: &Connection, reason: Reason) -> Expiry {
    Expiry { generation: connection.generation, ..expiry(client, reason) }
}

/// Names the flow as it was seen here: the program ends no other one, and none with a later packet.
pub(super) fn of_flow(client: &ClientTuple, flow: &Flow, reason: Reason) -> Expiry {
    let (generation, seen_secs) = (flow.connection.generation, flow.seen_secs);
    Expiry { generation, seen_secs, ..expiry(client, reason) }
}

/// Orders the end of a flow that is open, if there is a reason.
pub(super) fn ending(
    client: &ClientTuple,
    flow: &Flow,
    takes_it: impl Fn(&ClientTuple, &Connection) -> Option<Reason>,
) -> Option<Expiry> {
    let is_open = flow.connection.state == FLOW_ESTABLISHED;
    let reason = is_open.then(|| takes_it(client, &flow.connection)).flatten()?;
    Some(of_flow(client, flow, reason))
}

/// Returns why the selector ends a connection; of those that are no longer admitted, and of routes and addresses that may have come back, only
/// the old ones. `is_old` says whether a generation was given out before another one.
pub(super) fn reason(
    selector: &Selector,
    is_old: impl Fn(u32, u32) -> bool,
    client: &ClientTuple,
    is: &Connection,
) -> Option<Reason> {
    let reason = selector.takes(client, is.listener, is.route, is.backend)?;
    let is_gone = selector.backends.contains(&is.backend) || selector.listeners.contains(&is.listener);
    let since = match reason {
        Reason::ExpireRefused => selector.ranges.get(&is.route).and_then(|admission| admission.since),
        _ if is_gone => None,
        _ => selector.since,
    };
    let is_spared = since.is_some_and(|since| !is_old(is.generation, since));
    (!is_spared).then_some(reason)
}

/// Names the flow by what its ends acknowledged: the program ends none with progress since.
pub(super) fn of_held(client: &ClientTuple, flow: &Flow, reason: Reason) -> Expiry {
    Expiry { seq: held::progress(flow), ..of_flow(client, flow, reason) }
}

/// Bytes of a packet with several orders.
pub(super) const SEVERAL: usize = ETHERNET + size_of::<[Expiry; ORDERS_MAX]>();

/// Returns an Ethernet header with the ethertype of the client's family, followed by the `Expiry`.
pub(super) fn packet(expiry: &Expiry) -> [u8; DATA] {
    packet_of(std::slice::from_ref(expiry))
}

/// Returns the same for several orders, at most [`ORDERS_MAX`] of one family.
pub(super) fn packet_of_several(orders: &[Expiry]) -> [u8; SEVERAL] {
    packet_of(orders)
}

fn packet_of<const BYTES: usize>(orders: &[Expiry]) -> [u8; BYTES] {
    let mut data = [0u8; BYTES];
    let is_v4 = orders.first().is_none_or(|order| order.client.client.is_v4());
    let ethertype: u16 = if is_v4 { 0x0800 } else { 0x86dd };
    data[ETHERNET - 2..ETHERNET].copy_from_slice(&ethertype.to_be_bytes());
    data[ETHERNET..][..size_of_val(orders)].copy_from_slice(orders.as_bytes());
    data
}

/// Sorts orders to end flows into those of one run each.
pub(super) fn runs(orders: &mut [Expiry]) -> Vec<&[Expiry]> {
    orders.sort_by_key(|order| order.client.client.is_v4());
    let families = orders.chunk_by(|one, next| one.client.client.is_v4() == next.client.client.is_v4());
    families.flat_map(|family| family.chunks(ORDERS_MAX)).collect()
}

/// Returns the addresses of both ends of a flow.
pub(super) fn ends(client: &ClientTuple, flow: &Flow) -> [IpAddr; 2] {
    [client.client.into(), flow.nat.backend.into()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use common::maps::address::{Address, Port};

    /// A route that left a listener, and came back.
    #[test]
    fn a_connection_made_since_stays_unless_its_backend_is_gone() {
        let is = |generation, backend| Connection {
            generation,
            backend,
            listener: 2,
            route: 5,
            ..Connection::zeroed()
        };
        let selector = Selector {
            detached: BTreeSet::from([(2, 5)]),
            backends: BTreeSet::from([9]),
            since: Some(100),
            ..Selector::default()
        };
        let of = |selector: &Selector, is: &Connection| {
            reason(selector, |generation, since| generation < since, &ClientTuple::zeroed(), is)
        };
        assert_eq!(of(&selector, &is(99, 1)), Some(Reason::ExpireRemoved));
        assert_eq!(of(&selector, &is(100, 1)), None);
        assert_eq!(of(&selector, &is(100, 9)), Some(Reason::ExpireRemoved));
        let unknown = Selector { since: None, ..selector.clone() };
        assert_eq!(of(&unknown, &is(100, 1)), Some(Reason::ExpireRemoved));
        // Of two removals, the later one is of what was there in the meantime.
        let mut both = selector.clone();
        both.join(Selector::default());
        assert_eq!(both.since, Some(100));
        both.join(Selector { listeners: BTreeSet::from([3]), since: Some(200), ..Selector::default() });
        assert_eq!(both.since, None);
        let mut first = Selector::default();
        first.join(selector);
        assert_eq!(first.since, Some(100));
    }

    #[test]
    fn the_order_stands_behind_an_ethernet_header_of_the_clients_family() {
        let tuple = |client| ClientTuple::tcp(client, Address::default(), Port::new(0), Port::new(443));
        let client = tuple(Address::v4([192, 0, 2, 1]));
        let order = Expiry { seq: 7, ..expiry(&client, Reason::HelloEvicted) };
        let data = packet(&order);
        assert_eq!(data[12..14], [0x08, 0x00]);
        assert_eq!(&data[14..][..size_of::<Expiry>()], order.as_bytes());
        let client = tuple(Address::v6([0x20; 16]));
        assert_eq!(packet(&Expiry { client, ..order })[12..14], [0x86, 0xdd]);
    }
    /// As a removal with 100,000 connections gives them.
    #[test]
    fn orders_are_given_in_runs_of_one_family_each_once() {
        let of = |number: u32| {
            let client = if number.is_multiple_of(3) {
                Address::v6([0x20; 16])
            } else {
                Address::v4(number.to_be_bytes())
            };
            let tuple = ClientTuple::tcp(client, Address::default(), Port::new(0), Port::new(443));
            Expiry { generation: number, ..expiry(&tuple, Reason::ExpireRemoved) }
        };
        let mut orders: Vec<Expiry> = (0..100_000).map(of).collect();
        let runs = runs(&mut orders);
        assert_eq!(runs.len(), 33_334_usize.div_ceil(ORDERS_MAX) + 66_666_usize.div_ceil(ORDERS_MAX));
        let mut given: Vec<u32> = Vec::new();
        for run in runs {
            let is_v4 = run[0].client.client.is_v4();
            assert!(run.iter().all(|order| order.client.client.is_v4() == is_v4));
            let data = packet_of_several(run);
            assert_eq!(data[12..14], if is_v4 { [0x08, 0x00] } else { [0x86, 0xdd] });
            assert_eq!(&data[14..][..size_of_val(run)], run.as_bytes());
            assert!(data[14 + size_of_val(run)..].iter().all(|byte| *byte == 0), "nothing after the last");
            given.extend(run.iter().map(|order| order.generation));
        }
        given.sort_unstable();
        assert!(given.into_iter().eq(0..100_000));
    }
}
