//! A connection is over: established, waiting or half-open.

use common::maps::flow::{
    ClientTuple, FLOW_ESTABLISHED, FLOW_RESET, FLOW_UNDELIVERED, Flow, PENDING_COLLECTING, PENDING_CONNECTING,
};

use super::closed;
use crate::buffer::source;
use crate::delivery;
use crate::maps;
use crate::verified::verified;

/// Ends a flow: `state` is `FLOW_CLOSED` or `FLOW_RESET`. The entry lingers, to answer what still comes.
#[inline(always)]
pub(crate) fn flow(client: &mut ClientTuple, flow: &mut Flow, state: u8, now_ns: u64) {
    // One that is over stands in the ring already.
    let listed = flow.connection.state != FLOW_ESTABLISHED;
    flow.connection.state = state;
    if !listed {
        closed::put(client, flow.connection.generation, now_ns);
    }
}

/// Ends the client's flow by a reset.
#[inline(always)]
pub(crate) fn reset(client: &mut ClientTuple, now_ns: u64) {
    if let Some(flow) = maps::flow(client) {
        self::flow(client, flow, FLOW_RESET, now_ns);
    }
}

/// Whether the client's flow, of which `copy` is a copy, still has_undelivered bytes that were looked for in vain.
#[inline(always)]
pub(crate) fn has_undelivered(client: &ClientTuple, copy: &Flow) -> bool {
    maps::flow(client).is_some_and(|flow| {
        flow.connection.generation == copy.connection.generation && maps::is_undelivered(flow)
    })
}

verified! {
    /// Removes a flow's entries, whatever its state; `false` when somebody else did.
    pub(crate) fn forget_flow as end_forget_flow(client: ClientTuple) -> bool {
        let Some(flow) = maps::flow(client) else { return false };
        let (nat, generation) = (flow.nat, flow.connection.generation);
        let undelivered = flow.connection.backend_flags & FLOW_UNDELIVERED != 0;
        if !maps::remove_flow(client) {
            return false;
        }
        delivery::release(&nat, generation);
        if undelivered {
            maps::remove_pending(client);
        }
        true
    }
}

verified! {
    /// Removes a pending connection with all that belongs to it; `false` when somebody else did.
    pub(crate) fn forget_pending as end_forget_pending(client: ClientTuple) -> bool {
        let Some(pending) = maps::pending(client) else { return false };
        let (nat, epoch) = (pending.nat, pending.source_epoch);
        let (state, generation) = (pending.connection.state, pending.connection.generation);
        if !maps::remove_pending(client) {
            return false;
        }
        // The flow that it became keeps the backend's side.
        if state == PENDING_CONNECTING
            && !maps::flow(client).is_some_and(|flow| flow.connection.generation == generation)
        {
            delivery::release(&nat, generation);
        }
        if state == PENDING_COLLECTING || state == PENDING_CONNECTING {
            source::lower(client, epoch);
        }
        true
    }
}

verified! {
    /// Removes a half-open connection with its backend's side; `false` when somebody else did.
    pub(crate) fn forget_half_open as end_forget_half_open(client: ClientTuple) -> bool {
        let Some(held) = maps::half_open(client) else { return false };
        let (nat, generation) = (held.nat, held.connection.generation);
        if !maps::remove_half_open(client) {
            return false;
        }
        delivery::release(&nat, generation);
        true
    }
}
