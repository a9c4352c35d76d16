//! A flow is over: its entry lingers, to answer what still comes.

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, FLOW_RESET, Flow};

use super::closed;
use crate::maps;

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

/// Whether the client's flow, of which `copy` is a copy, still has undelivered bytes, which were looked for in vain.
#[inline(always)]
pub(crate) fn has_undelivered(client: &ClientTuple, copy: &Flow) -> bool {
    maps::flow(client).is_some_and(|flow| {
        flow.connection.generation == copy.connection.generation && maps::is_undelivered(flow)
    })
}
