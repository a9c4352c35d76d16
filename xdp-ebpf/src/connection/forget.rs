//! Removes the entries of a flow.

use common::maps::flow::{ClientTuple, FLOW_UNDELIVERED};

use super::{count, end, pending};
use crate::delivery;
use crate::maps;
use crate::verified::verified;

verified! {
    /// Removes the entries of the flow with this generation, in any state; `false`: they were already removed, or the kernel
    /// refused to remove the flow. Then it is over, and a later attempt removes it.
    pub(crate) fn flow as forget_flow(client: ClientTuple; generation: u32) -> bool {
        let Some(flow) = maps::flow(client) else { return false };
        // Only the CPU that marked it removes it. Until then no other connection has the key.
        let Some(flags) = end::claim(flow, generation) else { return false };
        let (nat, route, by) = (flow.nat, flow.connection.route, flow.connection.delivery);
        // While the flow is there, no hello of a new connection is kept.
        if flags & FLOW_UNDELIVERED != 0 {
            pending::end(client, generation);
        }
        delivery::release(&nat, client, generation);
        delivery::unlist(client, by);
        if !maps::remove_flow(client) {
            end::unclaim(flow, generation);
            return false;
        }
        count::lower(client, route);
        true
    }
}
