//! Flows whose path to the client is narrower than the segments of a backend that knows all clients by one address.

use common::maps::flow::{ClientTuple, FLOW_FRAGMENTED};

use super::exchange::{self, Marks};
use crate::maps;
use crate::verified::verified;

/// Lets routers fragment what the backend sends to the client from now on; `true`: they might not before.
#[inline(always)]
pub(crate) fn let_fragment(client: &ClientTuple, generation: u32) -> bool {
    let Some(flow) = maps::flow(client) else { return false };
    let fragmented = Marks::flags(FLOW_FRAGMENTED);
    exchange::mark(&mut flow.connection, generation, fragmented, Marks::NONE)
        .is_some_and(|was| was.its_flags() & FLOW_FRAGMENTED == 0)
}

verified! {
    /// Whether an IPv6 backend is notified that its segments to this client are too big. The first error about a flow always
    /// passes: it is news, and nobody may take that from others by errors about connections of their own.
    pub(crate) fn may_notify as narrow_may_notify(client: ClientTuple; generation: u32, second: u32) -> bool {
        let_fragment(client, generation) || maps::has_room_for_error(&client.client, second)
    }
}
