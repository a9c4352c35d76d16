//! Only the destination is rewritten: the backend sees the client's own address and port. Its replies must
//! return through this node, on a device that we are attached to.

use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::{BackendTuple, ClientTuple, Connection};

use super::reply;
use crate::maps::dnat_flows;
use crate::scratch::{Dial, Received};

/// Claims the picked backend's replies to this client. A client has only one connection at a time from one
/// port to one backend, whichever VIP it dials. A connection that is over and lingers counts too: a second
/// one is refused. A client with the backend's own address that is not on its device is also refused: its packets
/// would return to it from its own address.
#[inline(always)]
pub(super) fn claim(received: &Received, dial: &mut Dial) -> bool {
    let (client, backend) = (&received.client, &dial.choice.record);
    // Also of what is refused: who asks whether it is the client's own must not find what a packet before left.
    dial.nat = BackendTuple::tcp(backend.address, client.client, backend.port, client.client_port);
    if backend.address == client.client {
        return false;
    }
    let generation = dial.connection.generation;
    // Its own already where another record of the backend has the same address.
    reply::claim(&dial.nat, client, generation) || reply::is_held(&dial.nat, generation)
}

/// Lists the connection's flow by its client. Another CPU may have removed the flow since it was stored: the daemon's sweep finds the
/// entry then, or the client's next flow takes it over. The daemon looks for the flow of each entry.
#[inline(always)]
pub(super) fn list(client: &ClientTuple, connection: &Connection) {
    dnat_flows::add(client, &DnatFlow::of(connection));
}

/// Takes the client's flow off the list.
#[inline(always)]
pub(super) fn unlist(client: &ClientTuple) {
    dnat_flows::remove(client);
}
