//! Whose a backend's packets are: the key of its replies, claimed and released.

use common::maps::flow::{BackendTuple, ClientTuple, Reply};

use super::key;
use crate::maps;
use crate::packet::Segment;
use crate::scratch::Received;

/// Finds the connection that a backend's segment belongs to: `received.client` and `received.generation` then have it.
#[inline(always)]
pub(crate) fn find(received: &mut Received) -> bool {
    let key = key(&received.segment);
    find_by(received, &key)
}

/// [`find`] by the connection's addresses and ports as the backend sees them.
#[inline(always)]
pub(super) fn find_by(received: &mut Received, key: &BackendTuple) -> bool {
    let Some(reply) = maps::reply(key) else { return false };
    received.client = reply.tuple();
    received.generation = reply.generation;
    true
}

/// Whether the segment is a backend's, of some connection.
#[inline(always)]
pub(crate) fn is_reply(segment: &Segment) -> bool {
    maps::reply(&key(segment)).is_some()
}

/// Claims the replies of a four-tuple; `false` when they are another's.
#[inline(always)]
pub(super) fn claim(
    nat: &BackendTuple,
    client: &ClientTuple,
    generation: u32,
    victim: &mut ClientTuple,
) -> bool {
    let reply = Reply::to(client, generation);
    maps::claim_reply(nat, &reply) || take_over(nat, &reply, victim)
}

/// Takes over the replies of a connection that is gone (its owner was reclaimed without it).
#[inline(always)]
fn take_over(nat: &BackendTuple, reply: &Reply, victim: &mut ClientTuple) -> bool {
    let Some(holder) = maps::reply(nat) else { return false };
    let generation = holder.generation;
    *victim = holder.tuple();
    if has_connection(victim) || !maps::take_reply(nat, reply) {
        return false;
    }
    // The owner may have been about to store its entry: then it is given back.
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

/// Whether the replies are those of this connection.
#[inline(always)]
pub(super) fn is_held(nat: &BackendTuple, generation: u32) -> bool {
    maps::reply(nat).is_some_and(|holder| holder.generation == generation)
}

/// Releases the replies of a client's connection, unless they are another's by now. The client is asked for besides the
/// generation: both `nat` and `generation` may have been read from an element that was another client's by then.
#[inline(always)]
pub(super) fn release(nat: &BackendTuple, client: &ClientTuple, generation: u32) {
    if maps::reply(nat).is_some_and(|holder| *holder == Reply::to(client, generation)) {
        maps::remove_reply(nat);
    }
}
