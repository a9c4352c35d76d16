//! Removes the entries of a connection: established, pending or half-open.

use common::maps::flow::{ClientTuple, FLOW_UNDELIVERED, PENDING_COLLECTING, PENDING_CONNECTING};

use super::end;
use crate::buffer::source;
use crate::delivery;
use crate::maps;
use crate::verified::verified;

verified! {
    /// Removes the entries of the flow with this generation, in any state; `false` when they were already removed.
    pub(crate) fn flow as forget_flow(client: ClientTuple; generation: u32) -> bool {
        let Some(flow) = maps::flow(client) else { return false };
        // Only the CPU that marked it removes it. Until then no other connection has the key.
        let Some(flags) = end::claim(flow, generation) else { return false };
        let nat = flow.nat;
        // While the flow is there, no hello of a new connection is kept.
        if flags & FLOW_UNDELIVERED != 0 {
            maps::remove_pending(client);
        }
        delivery::release(&nat, client, generation);
        maps::remove_flow(client)
    }
}

/// Removes a flow that was just made, and nothing else of its connection.
#[inline(always)]
pub(crate) fn flow_alone(client: &ClientTuple, generation: u32) {
    if let Some(flow) = maps::flow(client)
        && end::claim(flow, generation).is_some()
    {
        maps::remove_flow(client);
    }
}

verified! {
    /// Removes a pending connection and everything that belongs to it; `false` when it was already removed.
    pub(crate) fn pending as forget_pending(client: ClientTuple) -> bool {
        let Some(pending) = maps::pending(client) else { return false };
        let (nat, epoch) = (pending.nat, pending.source_epoch);
        let (state, generation) = (pending.connection.state, pending.connection.generation);
        if !maps::remove_pending(client) {
            return false;
        }
        // If it became a flow, the flow keeps the backend's side.
        if state == PENDING_CONNECTING
            && !maps::flow(client).is_some_and(|flow| flow.connection.generation == generation)
        {
            delivery::release(&nat, client, generation);
        }
        if state == PENDING_COLLECTING || state == PENDING_CONNECTING {
            source::lower(client, epoch);
        }
        true
    }
}

verified! {
    /// Removes a half-open connection and its backend's side; `false` when it was already removed.
    pub(crate) fn half_open as forget_half_open(client: ClientTuple) -> bool {
        let Some(held) = maps::half_open(client) else { return false };
        let (nat, generation) = (held.nat, held.connection.generation);
        if !maps::remove_half_open(client) {
            return false;
        }
        delivery::release(&nat, client, generation);
        true
    }
}
