//! A client that starts a new connection on the addresses and ports of an open flow, or a stranger who pretends to.

use common::maps::flow::{FLOW_SYN_SEEN, Flow};
use common::maps::word::SynSeen;

use super::exchange::{self, Marks};
use crate::atomic;
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

/// Counts a segment that fits neither the flow nor a cookie.
#[inline(always)]
pub(crate) fn count_wrong(flow: &mut Flow, generation: u32) {
    let wrong = atomic::word(atomic::head(&mut flow.connection)).wrong_cookies;
    exchange::mark(&mut flow.connection, generation, Marks::wrong_cookies(wrong << 1 | 1), Marks::NONE);
}
