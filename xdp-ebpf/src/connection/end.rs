//! Ends a flow. Its entry lingers, to answer packets that still arrive.

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, FLOW_RESET, Flow};

use super::closed;
use crate::maps;

/// Ends a flow: `state` is `FLOW_CLOSED` or `FLOW_RESET`. The entry lingers, to answer packets that still arrive.
#[inline(always)]
pub(crate) fn flow(client: &mut ClientTuple, flow: &mut Flow, state: u8, now_ns: u64) {
    // A flow that was over before is already in the ring.
    let listed = flow.connection.state != FLOW_ESTABLISHED;
    flow.connection.state = state;
    if !listed {
        closed::put(client, flow.connection.generation, now_ns);
    }
}

/// Ends the client's flow with state `FLOW_RESET`.
#[inline(always)]
pub(crate) fn reset(client: &mut ClientTuple, now_ns: u64) {
    if let Some(flow) = maps::flow(client) {
        self::flow(client, flow, FLOW_RESET, now_ns);
    }
}

/// Whether the client's flow still has undelivered bytes, after a lookup of those bytes failed. `copy` is an
/// earlier copy of the flow.
#[inline(always)]
pub(crate) fn has_undelivered(client: &ClientTuple, copy: &Flow) -> bool {
    maps::flow(client).is_some_and(|flow| {
        flow.connection.generation == copy.connection.generation && maps::is_undelivered(flow)
    })
}
