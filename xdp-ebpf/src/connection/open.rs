//! A connection is established: the one place that makes a flow.

use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, FLOW_ESTABLISHED, Flow};
use common::reason::Reason;

use super::count;
use crate::exit::Exit;
use crate::maps;

/// Whether the backend still takes connections: `Err` where it was removed while the connection was opened.
#[inline(always)]
pub(crate) fn may_open(connection: &Connection) -> Result<(), Exit> {
    match maps::backend(&connection.backend) {
        Some(backend) if backend.flags & BACKEND_RETIRED == 0 => Ok(()),
        _ => Err(Exit::reset(Reason::ConnectRetired)),
    }
}

/// What became of opening.
pub(crate) enum Opened {
    /// The flow is there.
    Flow,
    /// Another CPU opened it, by the same packet come twice.
    Twice,
    /// There is no room for it, or another connection of the client's stands there.
    Full,
}

/// Makes the flow of a connection whose numbers, scales and options stand in `flow`.
#[inline(always)]
pub(crate) fn open(
    client: &ClientTuple,
    flow: &mut Flow,
    connection: &Connection,
    nat: &BackendTuple,
    now_ns: u64,
) -> Opened {
    flow.connection = *connection;
    flow.connection.state = FLOW_ESTABLISHED;
    flow.connection.flags = 0;
    flow.nat = *nat;
    flow.client_fin = 0;
    flow.backend_fin = 0;
    flow.reserved = 0;
    flow.seen_secs = (now_ns / 1_000_000_000) as u32;
    if maps::insert_flow(client, flow) {
        return Opened::Flow;
    }
    let generation = connection.generation;
    let twice = maps::flow(client).is_some_and(|other| other.connection.generation == generation);
    if twice { Opened::Twice } else { Opened::Full }
}

/// The connection's record before it was established is gone: from now on it is the flow's.
#[inline(always)]
pub(crate) fn opened(connection: &Connection) {
    count::connected(connection.route);
}
