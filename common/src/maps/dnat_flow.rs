//! The list of flows whose backend sees its client's own address.

use super::flow::Connection;

map_struct! {
    /// Value of `DNAT_FLOWS`: what a flow depends on whose backend sees its client's own address.
    pub struct DnatFlow = 12 {
        /// [`Connection::generation`] of the flow that the entry was created for.
        pub generation: u32,
        /// [`Connection::backend`] of that flow.
        pub backend: u32,
        /// [`Connection::route`] of that flow.
        pub route: u32,
    }
}

impl DnatFlow {
    /// Returns the entry of this connection's flow.
    #[inline(always)]
    pub const fn of(connection: &Connection) -> Self {
        let Connection { generation, backend, route, .. } = *connection;
        Self { generation, backend, route }
    }
}
