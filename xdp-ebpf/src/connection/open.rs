//! Establishes a connection: the only code that makes a flow.

use common::decide::store::Unstored;
use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, FLOW_ESTABLISHED, Flow};
use common::maps::word::Hops;
use common::reason::Reason;

use super::count;
use crate::delivery;
use crate::exit::Exit;
use crate::maps;

/// Whether the backend still takes connections: `Err` when it was removed while the connection was opened.
#[inline(always)]
pub(crate) fn may_open(connection: &Connection) -> Result<(), Exit> {
    let takes = || maps::backend(&connection.backend).is_some_and(|b| b.flags & BACKEND_RETIRED == 0);
    // Looked up again, for the daemon may have overwritten the entry, and the element that was found be another backend's by now.
    if takes() || takes() { Ok(()) } else { Err(Exit::reset(Reason::ConnectRetired)) }
}

/// Makes the flow of a connection. Its numbers, scales and options are already in `flow`, its flags in `connection`.
///
/// `Err` with a reset verdict: there is no room for it, another connection of the client has the same key, or the route or the
/// client's source has as many flows as it may; both sides must be reset. Any other: another CPU made the flow, as the same packet
/// was received twice, or is at it, or has made and removed a flow of the client's meanwhile; the sender repeats its packet.
#[inline(always)]
pub(crate) fn open(
    client: &mut ClientTuple,
    flow: &mut Flow,
    connection: &Connection,
    nat: &BackendTuple,
    now_ns: u64,
) -> Result<(), Exit> {
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
    // Before the flow is there, so that it is never counted down before it was counted. Many may have been admitted before
    // any of them opened, so the bounds are compared again.
    let refused = match count::raise(client, connection.route) {
        Ok(()) => match maps::insert_flow(client, flow) {
            Ok(()) => {
                delivery::list(client, connection);
                return Ok(());
            }
            Err(Unstored::Full) => Exit::reset(Reason::ConnectTableFull),
            Err(_) => Exit::drop(Reason::ConnectBusy),
        },
        Err(exit) => exit,
    };
    count::lower(client, connection.route);
    Err(match maps::flow(client).map(|other| other.connection.generation == connection.generation) {
        Some(true) => Exit::drop(Reason::ConnectIgnored),
        Some(false) => Exit::reset(Reason::ConnectTableFull),
        None => refused,
    })
}

/// Counts the connection as established. Its earlier record is removed; the backend's side now belongs to the flow.
#[inline(always)]
pub(crate) fn opened(connection: &Connection) {
    count::connected(connection.route);
}
