//! What the daemon passes to the program `expire`: the connection, and what is to be done with it.

use std::net::IpAddr;

use common::maps::event::Expiry;
use common::maps::flow::{ClientTuple, Connection, Flow};
use common::reason::Reason;
use zerocopy::IntoBytes;

use super::held;

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

/// Names the flow by what its ends acknowledged: the program ends none with progress since.
pub(super) fn of_held(client: &ClientTuple, flow: &Flow, reason: Reason) -> Expiry {
    Expiry { seq: held::progress(flow), ..of_flow(client, flow, reason) }
}

/// Returns an Ethernet header with the ethertype of the client's family, followed by the `Expiry`.
pub(super) fn packet(expiry: &Expiry) -> [u8; DATA] {
    let mut data = [0u8; DATA];
    let ethertype: u16 = if expiry.client.client.is_v4() { 0x0800 } else { 0x86dd };
    data[ETHERNET - 2..ETHERNET].copy_from_slice(&ethertype.to_be_bytes());
    data[ETHERNET..][..size_of::<Expiry>()].copy_from_slice(expiry.as_bytes());
    data
}

/// Returns the addresses of both ends of a flow.
pub(super) fn ends(client: &ClientTuple, flow: &Flow) -> [IpAddr; 2] {
    [client.client.into(), flow.nat.backend.into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};

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
}
