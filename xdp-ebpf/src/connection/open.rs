//! Establishes a connection: the only code that makes a flow.

use common::decide::store::Unstored;
use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, FLOW_ESTABLISHED, Flow};
use common::maps::word::Hops;
use common::reason::Reason;

use super::count;
use crate::exit::Exit;
use crate::maps;

/// Whether the backend still takes connections: `Err` when it was removed while the connection was opened.
#[inline(always)]
pub(crate) fn may_open(connection: &Connection) -> Result<(), Exit> {
    match maps::backend(&connection.backend) {
        Some(backend) if backend.flags & BACKEND_RETIRED == 0 => Ok(()),
        _ => Err(Exit::reset(Reason::ConnectRetired)),
    }
}

/// The outcome of [`open`].
pub(crate) enum Opened {
    /// The flow was made.
    Flow,
    /// Another CPU made the flow: the same packet was received twice.
    Twice,
    /// Another CPU is at it, or has made and removed a flow of the client's meanwhile: the sender repeats its packet.
    Busy,
    /// There is no room for the flow, or another connection of the client has the same key.
    Full,
}

/// Makes the flow of a connection. Its numbers, scales and options are already in `flow`, its flags in `connection`.
#[inline(always)]
pub(crate) fn open(
    client: &mut ClientTuple,
    flow: &mut Flow,
    connection: &Connection,
    nat: &BackendTuple,
    now_ns: u64,
) -> Opened {
    flow.connection = *connection;
    flow.connection.state = FLOW_ESTABLISHED;
    flow.connection.wrong_cookies = 0;
    flow.client.sent.fin = 0;
    flow.backend.sent.fin = 0;
    flow.syn.isn = 0;
    flow.syn.time = 0;
    flow.hops = Hops::zeroed();
    flow.set_generation(connection.generation);
    flow.nat = *nat;
    flow.seen_secs = (now_ns / 1_000_000_000) as u32;
    // Before the flow is there, so that it is never counted down before it was counted.
    count::raise(client, connection.route);
    let Err(unstored) = maps::insert_flow(client, flow) else { return Opened::Flow };
    count::lower(client, connection.route);
    match maps::flow(client).map(|other| other.connection.generation == connection.generation) {
        Some(true) => Opened::Twice,
        Some(false) => Opened::Full,
        None if unstored == Unstored::Full => Opened::Full,
        None => Opened::Busy,
    }
}

/// Counts the connection as established. Its earlier record is removed; the backend's side now belongs to the flow.
#[inline(always)]
pub(crate) fn opened(connection: &Connection) {
    count::connected(connection.route);
}
