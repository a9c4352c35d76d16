//! Source and destination are rewritten: works for every backend that the node can reach. The backend sees
//! one of our addresses and a port that only this connection uses.

use common::decide::source_port::{self, Sequence, TRIES_MAX};
use common::maps::flow::{BackendTuple, TRANSPORT_TCP};

use super::reply;
use crate::atomic;
use crate::kernel::Skb;
use crate::maps;
use crate::scratch::{Dial, Received};
use crate::verified::{looped, verified};

verified! {
    /// Claims a source port towards the picked backend.
    pub(super) fn claim as nat_claim[Skb, skb](received: Received, dial: Dial) -> bool {
        let (nat, backend) = (&mut dial.nat, &dial.choice.record);
        nat.backend = backend.address;
        nat.source = backend.source;
        nat.backend_port = backend.port;
        nat.transport = TRANSPORT_TCP;
        dial.claimed = 0;
        if let Some(sequence) = sequence(&dial.nat) {
            try_ports(skb, received, dial, sequence);
        }
        dial.claimed == 1
    }
}

/// Returns the ports that the next connection to the backend tries.
#[inline(always)]
fn sequence(nat: &BackendTuple) -> Option<Sequence> {
    let position = source_port::position(nat);
    let cursor = maps::port_cursor(position.cursor)?;
    Sequence::new(maps::settings()?, position.offset, atomic::advance(cursor))
}

looped! {
    /// Tries the next port of the sequence.
    fn try_ports[Skb, skb](received: Received, dial: Dial; sequence: Sequence) times TRIES_MAX, |round| {
        let Some(port) = sequence.port(round) else { return true };
        dial.nat.source_port.bytes = port.to_be_bytes();
        let generation = dial.connection.generation;
        if !reply::claim(&dial.nat, &received.client, generation) {
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
