//! The destination alone is rewritten: the backend sees the client's own address and port. Its replies must come back
//! through this node, by a device that we are attached to.

use common::maps::flow::BackendTuple;

use super::reply;
use crate::scratch::{Dial, Received};

/// Claims the replies of the backend that was picked to this client. The client has one connection at a time from a port
/// to a backend, whichever VIP it dials, one that is over and lingers included: a second one is refused. So is a client that
/// is the backend itself: its packets would come back to it from its own address.
#[inline(always)]
pub(super) fn claim(received: &Received, dial: &mut Dial) -> bool {
    let (client, backend) = (&received.client, &dial.choice.record);
    if backend.address == client.client {
        return false;
    }
    dial.nat = BackendTuple::tcp(backend.address, client.client, backend.port, client.client_port);
    reply::claim(&dial.nat, client, dial.connection.generation, &mut dial.victim)
}
