//! The entries of a connection are removed: an established, a pending or a half-open one's.

use common::maps::flow::{ClientTuple, FLOW_UNDELIVERED, PENDING_COLLECTING, PENDING_CONNECTING};

use crate::buffer::source;
use crate::delivery;
use crate::maps;
use crate::verified::verified;

verified! {
    /// Removes a flow's entries, whatever its state; `false` when somebody else did.
    pub(crate) fn flow as forget_flow(client: ClientTuple) -> bool {
        let Some(flow) = maps::flow(client) else { return false };
        let (nat, generation) = (flow.nat, flow.connection.generation);
        let undelivered = flow.connection.backend_flags & FLOW_UNDELIVERED != 0;
        if !maps::remove_flow(client) {
            return false;
        }
        delivery::release(&nat, client, generation);
        if undelivered {
            maps::remove_pending(client);
        }
        true
    }
}

verified! {
    /// Removes a pending connection with all that belongs to it; `false` when somebody else did.
    pub(crate) fn pending as forget_pending(client: ClientTuple) -> bool {
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
            delivery::release(&nat, client, generation);
        }
        if state == PENDING_COLLECTING || state == PENDING_CONNECTING {
            source::lower(client, epoch);
        }
        true
    }
}

verified! {
    /// Removes a half-open connection with its backend's side; `false` when somebody else did.
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
