//! An established connection, described for another node by addresses, names and numbers, without this node's
//! ids.

use crate::maps::flow::{BackendTuple, ClientTuple, Connection, End, FLOW_ESTABLISHED, Flow};
use crate::maps::map_struct;
use crate::maps::route::Label;
use crate::maps::word::{Acked, Agreed, Hops, Sent, SynSeen};

map_struct! {
    /// What a node needs to continue another node's connection. Numbers are in host byte order, as in the
    /// maps; both nodes have the same byte order.
    pub struct Opening = 256 {
        /// Also the listener's address and port.
        pub client: ClientTuple,
        /// Also the backend's address and port.
        pub nat: BackendTuple,
        /// Name of the route.
        pub route: Label,
        /// See [`Flow`], also for the following fields.
        pub seq_delta: u32,
        pub ts_delta: u32,
        /// [`Acked::number`] of the client.
        pub client_acked: u32,
        /// [`Acked::number`] of the backend.
        pub backend_acked: u32,
        /// [`Sent::next`] of the client.
        pub client_next: u32,
        /// [`Sent::next`] of the backend.
        pub backend_next: u32,
        pub client_isn: u32,
        pub vip_isn: u32,
        pub seen_secs: u32,
        pub client_scale: u8,
        pub backend_scale: u8,
        pub declined: u8,
        /// [`Connection::delivery`].
        pub delivery: u8,
        /// [`Acked::window`] of the client.
        pub client_window: u16,
        /// [`Acked::window`] of the backend.
        pub backend_window: u16,
        /// See [`Flow`].
        pub scaled: u8,
        /// Zero.
        pub reserved: [u8; 3],
    }
}

impl Opening {
    /// Describes a flow, whose route has the name `route`, for another node.
    pub const fn of(client: &ClientTuple, flow: &Flow, route: Label) -> Self {
        let agreed = flow.client.sent.agreed();
        Self {
            client: *client,
            nat: flow.nat,
            route,
            seq_delta: flow.seq_delta,
            ts_delta: flow.ts_delta,
            client_acked: flow.client.acked.number,
            backend_acked: flow.backend.acked.number,
            client_next: flow.client.sent.next,
            backend_next: flow.backend.sent.next,
            client_isn: flow.client_isn,
            vip_isn: flow.vip_isn,
            seen_secs: flow.seen_secs,
            client_scale: agreed.scale,
            backend_scale: flow.backend.sent.agreed().scale,
            declined: agreed.declined,
            delivery: flow.connection.delivery,
            client_window: flow.client.acked.window,
            backend_window: flow.backend.acked.window,
            scaled: agreed.scaled as u8,
            reserved: [0; 3],
        }
    }

    /// Returns the flow for a node where listener, route and backend have these ids. Its generation is 0
    /// until that node assigns one. No FIN has been seen.
    pub const fn flow(&self, listener: u32, route: u32, backend: u32) -> Flow {
        let agreed = Agreed { scale: self.client_scale, scaled: self.scaled != 0, declined: self.declined };
        Flow {
            connection: Connection {
                state: FLOW_ESTABLISHED,
                delivery: self.delivery,
                listener,
                route,
                backend,
                ..Connection::zeroed()
            },
            nat: self.nat,
            seq_delta: self.seq_delta,
            ts_delta: self.ts_delta,
            client: end(self.client_next, self.client_acked, self.client_window, agreed),
            backend: end(
                self.backend_next,
                self.backend_acked,
                self.backend_window,
                Agreed::scale(self.backend_scale),
            ),
            syn: SynSeen::zeroed(),
            seen_secs: self.seen_secs,
            client_isn: self.client_isn,
            vip_isn: self.vip_isn,
            hops: Hops::zeroed(),
        }
    }
}

const fn end(next: u32, number: u32, window: u16, agreed: Agreed) -> End {
    let sent = Sent { next, generation: 0, fin: 0, agreed: agreed.bits() };
    End { sent, acked: Acked { number, generation: 0, window } }
}
