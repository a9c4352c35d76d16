//! A client that starts a new connection on the addresses and ports of an open flow, or a stranger who pretends to.

use common::maps::flow::{FLOW_SYN_SEEN, Flow};
use common::maps::word::SynSeen;
use common::wire::seq;

use super::exchange::{self, Marks};
use crate::atomic;
use crate::packet::{ACK, Segment};
use crate::scratch::Received;

/// Whether the SYN in hand came before, about a second ago or more: the client still wants the new connection. The
/// flow is then marked. Otherwise the SYN is noted.
#[inline(always)]
pub(crate) fn is_repeated(received: &Received, flow: &mut Flow) -> bool {
    let (isn, time) = (received.segment.seq, SynSeen::time(received.now_ns));
    let generation = received.generation;
    // The SYN that opened this flow starts no other.
    isn != flow.client_isn
        && exchange::note_syn(&mut flow.syn, generation, isn, time.into())
        && exchange::mark(&mut flow.connection, generation, Marks::flags(FLOW_SYN_SEEN), Marks::NONE)
            .is_some()
}

/// Whether a client's segment is certainly for this flow. Otherwise it starts a new connection if it proves a handshake: after
/// a repeated SYN, and while the client has acknowledged nothing behind the SYN-ACK that it got, for it may have given up
/// before the flow opened.
#[inline(always)]
pub(crate) fn is_known(flow: &Flow, flags: u8, segment: &Segment) -> bool {
    let first = flow.first_byte();
    let certain = flags & FLOW_SYN_SEEN == 0 && flow.client.acked.number != first;
    certain || fits(flow, segment)
}

/// Whether a client's segment acknowledges something that this flow's backend sent. The cookie of a new
/// connection is not in that range.
#[inline(always)]
fn fits(flow: &Flow, segment: &Segment) -> bool {
    let acked = segment.ack.wrapping_add(flow.seq_delta);
    segment.has(ACK)
        && seq::before_or_at(flow.client.acked.number, acked)
        && seq::before_or_at(acked, flow.backend.sent.next)
}

/// Counts a segment that fits neither the flow nor a cookie.
#[inline(always)]
pub(crate) fn count_wrong(flow: &mut Flow, generation: u32) {
    let wrong = atomic::word(atomic::head(&mut flow.connection)).wrong_cookies;
    exchange::mark(&mut flow.connection, generation, Marks::wrong_cookies(wrong << 1 | 1), Marks::NONE);
}
