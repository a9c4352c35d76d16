//! Ends a flow. Its entry lingers, to answer packets that still arrive.

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, FLOW_REMOVED, FLOW_RESET, FLOW_UNDELIVERED, Flow};

use super::closed;
use super::exchange::{self, Marks};
use crate::maps;

/// Ends the flow with this generation: `state` is `FLOW_CLOSED` or `FLOW_RESET`. The entry lingers, to answer packets
/// that still arrive. `false`: another CPU removes the record, or it belongs to another connection now.
#[inline(always)]
pub(crate) fn flow(
    client: &mut ClientTuple,
    flow: &mut Flow,
    generation: u32,
    state: u8,
    now_ns: u64,
) -> bool {
    let was = exchange::mark(&mut flow.connection, generation, Marks::state(state), Marks::NONE);
    ended(client, generation, was, now_ns)
}

/// Ends the flow with this generation, with state `FLOW_RESET`, if it still has all flags `needs`. `false` as above.
#[inline(always)]
pub(crate) fn flow_with(
    client: &mut ClientTuple,
    flow: &mut Flow,
    generation: u32,
    needs: u8,
    now_ns: u64,
) -> bool {
    let was = exchange::end(&mut flow.connection, generation, needs);
    ended(client, generation, was, now_ns)
}

#[inline(always)]
fn ended(client: &mut ClientTuple, generation: u32, was: Option<Marks>, now_ns: u64) -> bool {
    // Exactly one CPU finds it established. A flow that was over before is already in the ring.
    if was.is_some_and(|was| was.its_state() == FLOW_ESTABLISHED) {
        closed::put(client, generation, now_ns);
    }
    was.is_some_and(|was| was.its_state() != FLOW_REMOVED)
}

/// Ends the client's flow with this generation, with state `FLOW_RESET`, if its backend still misses bytes that the client was
/// acknowledged. `false`: another CPU received the backend's acknowledgement since, or the flow is gone.
#[inline(always)]
pub(crate) fn reset_undelivered(client: &mut ClientTuple, generation: u32, now_ns: u64) -> bool {
    let Some(flow) = maps::flow(client) else { return false };
    flow_with(client, flow, generation, FLOW_UNDELIVERED, now_ns)
}

/// Marks the flow as removed, so that no other CPU removes it, too; returns its flags. `None`: it is gone already.
#[inline(always)]
pub(super) fn claim(flow: &mut Flow, generation: u32) -> Option<u8> {
    let was = exchange::mark(&mut flow.connection, generation, Marks::state(FLOW_REMOVED), Marks::NONE);
    was.filter(|was| was.its_state() != FLOW_REMOVED).map(Marks::its_flags)
}

/// Takes back that the flow was marked as removed: it is still there, and over.
#[inline(always)]
pub(super) fn unclaim(flow: &mut Flow, generation: u32) {
    exchange::mark(&mut flow.connection, generation, Marks::state(FLOW_RESET), Marks::state(!FLOW_RESET));
}

/// Clears a flag of the flow. `false`: the record belongs to another connection now, and was not changed.
#[inline(always)]
pub(crate) fn clear(flow: &mut Flow, generation: u32, flag: u8) -> bool {
    exchange::mark(&mut flow.connection, generation, Marks::NONE, Marks::flags(flag)).is_some()
}

/// Whether the client's flow still has undelivered bytes, after a lookup of those bytes failed. `copy` is an
/// earlier copy of the flow.
#[inline(always)]
pub(crate) fn has_undelivered(client: &ClientTuple, copy: &Flow) -> bool {
    maps::flow(client).is_some_and(|flow| maps::is_undelivered(flow, copy.connection.generation))
}
