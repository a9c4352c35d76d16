//! The connection that a backend's packets belong to: the key of its replies, claimed and released.

use common::maps::flow::{BackendTuple, ClientTuple, Reply};

use super::key;
use crate::maps;
use crate::packet::Segment;
use crate::scratch::Received;

/// Finds the connection that a backend's segment belongs to, and puts it in `received.client` and
/// `received.generation`.
#[inline(always)]
pub(crate) fn find(received: &mut Received) -> bool {
    let key = key(&received.segment);
    find_by(received, &key)
}

/// Like [`find`], by the connection's addresses and ports as the backend sees them.
#[inline(always)]
pub(super) fn find_by(received: &mut Received, key: &BackendTuple) -> bool {
    let Some(reply) = maps::reply(key) else { return false };
    received.client = reply.tuple();
    received.generation = reply.generation;
    true
}

/// Whether the segment is a backend's reply to any connection.
#[inline(always)]
pub(crate) fn is_reply(segment: &Segment) -> bool {
    maps::reply(&key(segment)).is_some()
}

/// Claims the replies of a four-tuple; `false` when another connection has them. An entry is removed only with the record
/// of its connection, or by the daemon when it belongs to none.
#[inline(always)]
pub(super) fn claim(nat: &BackendTuple, client: &ClientTuple, generation: u32) -> bool {
    // Looked up first: with most ports in use, a look-up costs less than an attempt to store.
    maps::reply(nat).is_none() && maps::claim_reply(nat, &Reply::to(client, generation))
}

/// Returns the generation of the connection that has the replies, and puts its client in `client`.
#[inline(always)]
pub(super) fn holder(nat: &BackendTuple, client: &mut ClientTuple) -> Option<u32> {
    let holder = maps::reply(nat)?;
    *client = holder.tuple();
    Some(holder.generation)
}

/// Whether this connection has the replies.
#[inline(always)]
pub(super) fn is_held(nat: &BackendTuple, generation: u32) -> bool {
    maps::reply(nat).is_some_and(|holder| holder.generation == generation)
}

/// Whether a connection of this client has the replies.
#[inline(always)]
pub(super) fn is_of(nat: &BackendTuple, client: &ClientTuple) -> bool {
    maps::reply(nat).is_some_and(|holder| holder.tuple() == *client)
}

/// Releases the replies of a client's connection. No other connection ever has an entry with its generation, so what is
/// compared here is still so when the entry is removed.
#[inline(always)]
pub(super) fn release(nat: &BackendTuple, client: &ClientTuple, generation: u32) {
    if maps::reply(nat).is_some_and(|holder| *holder == Reply::to(client, generation)) {
        maps::remove_reply(nat);
    }
}
