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

/// Claims the replies of a four-tuple; `false` when another connection has them.
#[inline(always)]
pub(super) fn claim(
    nat: &BackendTuple,
    client: &ClientTuple,
    generation: u32,
    victim: &mut ClientTuple,
) -> bool {
    let reply = Reply::to(client, generation);
    // Looked up first: with most ports in use, a look-up costs less than an attempt to store.
    match maps::reply(nat) {
        None => maps::claim_reply(nat, &reply),
        Some(holder) => take_over(nat, holder, &reply, victim),
    }
}

/// Takes over the replies of `holder` if its connection is gone (its record was reclaimed, but the replies were not
/// released).
#[inline(always)]
fn take_over(nat: &BackendTuple, holder: &Reply, reply: &Reply, victim: &mut ClientTuple) -> bool {
    let generation = holder.generation;
    *victim = holder.tuple();
    if has_connection(victim) || !maps::take_reply(nat, reply) {
        return false;
    }
    // The previous holder may have stored its entry just now: give the replies back.
    if has_connection(victim) {
        maps::take_reply(nat, &Reply::to(victim, generation));
        return false;
    }
    true
}

#[inline(always)]
fn has_connection(client: &ClientTuple) -> bool {
    maps::flow(client).is_some() || maps::pending(client).is_some() || maps::half_open(client).is_some()
}

/// Whether this connection has the replies.
#[inline(always)]
pub(super) fn is_held(nat: &BackendTuple, generation: u32) -> bool {
    maps::reply(nat).is_some_and(|holder| holder.generation == generation)
}

/// Releases the replies of a client's connection, unless another connection has them now. The client is
/// compared as well as the generation, because `nat` and `generation` may have been read from an element that
/// already belonged to another client.
#[inline(always)]
pub(super) fn release(nat: &BackendTuple, client: &ClientTuple, generation: u32) {
    if maps::reply(nat).is_some_and(|holder| *holder == Reply::to(client, generation)) {
        maps::remove_reply(nat);
    }
}
