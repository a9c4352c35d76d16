//! Source and destination are rewritten: works for every backend that the node can reach. The backend sees
//! one of our addresses and a port that only this connection uses.

use common::maps::flow::{BackendTuple, TRANSPORT_TCP};

use super::reply;
use crate::atomic;
use crate::kernel::Skb;
use crate::maps;
use crate::scratch::{Dial, Received};
use crate::verified::{looped, verified};

/// Source ports tried before the connection is refused.
const PORTS_TRIED: u32 = 32;

verified! {
    /// Claims a source port towards the picked backend.
    pub(super) fn claim as nat_claim[Skb, skb](received: Received, dial: Dial) -> bool {
        let (nat, backend) = (&mut dial.nat, &dial.choice.record);
        nat.backend = backend.address;
        nat.source = backend.source;
        nat.backend_port = backend.port;
        nat.transport = TRANSPORT_TCP;
        dial.claimed = 0;
        try_ports(skb, received, dial);
        dial.claimed == 1
    }
}

looped! {
    /// Tries the next port of the range.
    fn try_ports[Skb, skb](received: Received, dial: Dial) times PORTS_TRIED, |_round| {
        let (Some(settings), Some(shared)) = (maps::settings(), maps::cursors()) else { return true };
        let ports = u32::from(settings.source_port_last) + 1;
        let first = u32::from(settings.source_port_first);
        if ports <= first {
            return true;
        }
        // Ports are used in turn, so that the time until a port is used again (TIME_WAIT at the backend) is
        // the longest.
        let port = first + atomic::advance(&mut shared.source_port) as u32 % (ports - first);
        dial.nat.source_port.bytes = (port as u16).to_be_bytes();
        let generation = dial.connection.generation;
        if !reply::claim(&dial.nat, &received.client, generation, &mut dial.victim) {
            return false;
        }
        if has_socket(skb, &dial.nat, received.segment.v4, &mut dial.socket) {
            reply::release(&dial.nat, &received.client, generation);
            return false;
        }
        dial.claimed = 1;
        true
    }
}

/// Whether a socket of the node already uses the four-tuple.
#[inline(always)]
fn has_socket(skb: Skb, nat: &BackendTuple, v4: bool, tuple: &mut [u8; 36]) -> bool {
    if v4 {
        tuple[0..4].copy_from_slice(&nat.backend.bytes[12..16]);
        tuple[4..8].copy_from_slice(&nat.source.bytes[12..16]);
        tuple[8..10].copy_from_slice(&nat.backend_port.bytes);
        tuple[10..12].copy_from_slice(&nat.source_port.bytes);
        skb.socket_exists(tuple, 12)
    } else {
        tuple[0..16].copy_from_slice(&nat.backend.bytes);
        tuple[16..32].copy_from_slice(&nat.source.bytes);
        tuple[32..34].copy_from_slice(&nat.backend_port.bytes);
        tuple[34..36].copy_from_slice(&nat.source_port.bytes);
        skb.socket_exists(tuple, 36)
    }
}
