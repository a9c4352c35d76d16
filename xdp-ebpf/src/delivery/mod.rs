//! How packets reach a backend and its replies come back. A delivery owns addresses and source ports, and nothing else:
//! the second handshake (`stage::connect`) and the translation of numbers (`stage::forward`) stand beside it.
//!
//! | delivery | destination | source | marks its replies |
//! | --- | --- | --- | --- |
//! | `nat` | the backend's | one of our addresses, a port of ours | our address, `ROLE_SOURCE` |
//! | `dnat` | the backend's | the client's own | the backend's address, `ROLE_BACKEND` |
//!
//! Limits of `dnat`: an ICMP error of a router between us and the backend is addressed to the client, and passes unread.

/// Source and destination are rewritten.
mod nat;
/// The destination alone is rewritten.
mod dnat;
/// Whose a backend's packets are.
mod reply;

use common::maps::address::Address;
use common::maps::backend::DELIVERY_DNAT;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, Flow};
use common::maps::listener::{ROLE_BACKEND, ROLE_SOURCE};
use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::Skb;
use crate::maps;
use crate::packet::Segment;
use crate::scratch::{Dial, Draft, Quote, Received};
use crate::segment::{draft, emit};

pub(crate) use reply::{find, is_reply};

/// Roles of a packet that may be a backend's reply.
pub(crate) const ROLES_OF_REPLIES: u32 = ROLE_SOURCE | ROLE_BACKEND;

/// The role that a packet has by its source: asked only where some backend sees its clients' own addresses.
#[inline(always)]
pub(crate) fn role_of_source(source: &Address) -> u32 {
    let asked = maps::settings().is_some_and(|settings| settings.deliveries & 1 << DELIVERY_DNAT != 0);
    if !asked {
        return 0;
    }
    maps::role(source).map_or(0, |role| role.flags & ROLE_BACKEND)
}

/// Claims the backend's side of the connection to the backend that was picked, under a new generation: it is in
/// `dial.nat` and `dial.connection` then, and replies are found. What follows is the handshake with the backend.
#[inline(always)]
pub(crate) fn open(skb: Skb, received: &mut Received, dial: &mut Dial) -> Result<(), Exit> {
    dial.connection.generation = maps::next_generation();
    dial.connection.delivery = dial.choice.record.delivery;
    let claimed = match dial.connection.delivery {
        DELIVERY_DNAT => dnat::claim(received, dial),
        _ => nat::claim(skb, received, dial),
    };
    if claimed { Ok(()) } else { Err(Exit::reset(Reason::ConnectNoPort)) }
}

/// Whether the segment is a reply to the connection with this backend's side. An element of the map of replies is another
/// key's the moment it is removed, so what it led to is believed only when the segment's own addresses and ports say so.
#[inline(always)]
pub(crate) fn is_own(nat: &BackendTuple, segment: &Segment) -> bool {
    *nat == key(segment)
}

/// Whether the connection's source port is its own alone: else another connection of the client's may stand at the backend.
#[inline(always)]
pub(crate) fn owns_source(connection: &Connection) -> bool {
    connection.delivery != DELIVERY_DNAT
}

/// Whether replies still come to the connection: whoever took its side over keeps it.
#[inline(always)]
pub(crate) fn is_held(nat: &BackendTuple, generation: u32) -> bool {
    reply::is_held(nat, generation)
}

/// Gives the backend's side of a client's connection up, unless it is another's by now.
#[inline(always)]
pub(crate) fn release(nat: &BackendTuple, client: &ClientTuple, generation: u32) {
    reply::release(nat, client, generation);
}

/// Addresses the draft to a backend.
#[inline(always)]
pub(crate) fn address(draft: &mut Draft, nat: &BackendTuple) {
    let d = &mut draft.tuple;
    d.client = nat.source;
    d.vip = nat.backend;
    d.client_port = nat.source_port;
    d.vip_port = nat.backend_port;
}

/// Sends the client's packet in hand, its numbers as the backend knows them, to the receiver that [`address`] wrote.
#[inline(always)]
pub(crate) fn to_backend(skb: Skb, received: &mut Received, draft: &mut Draft, reason: Reason) -> Exit {
    emit::pass(skb, received, draft, reason)
}

/// Sends the backend's packet in hand, its numbers as the client knows them, to the client.
#[inline(always)]
pub(crate) fn to_client(skb: Skb, received: &mut Received, draft: &mut Draft, reason: Reason) -> Exit {
    draft::to_client(draft, &received.client);
    emit::pass(skb, received, draft, reason)
}

/// Whether the quoted segment was for a backend; its connection is then noted.
#[inline(always)]
pub(crate) fn find_quoted(received: &mut Received, quote: &Quote) -> bool {
    let q = &quote.tuple;
    let key = BackendTuple::tcp(q.vip, q.client, q.vip_port, q.client_port);
    // Twice: see `is_own`.
    reply::find_by(received, &key) && reply::is_held(&key, received.generation)
}

/// The receiver of an ICMP error is the backend of the flow.
#[inline(always)]
pub(crate) fn address_error_to_backend(draft: &mut Draft, flow: &Flow) {
    address(draft, &flow.nat);
}

/// The receiver of an ICMP error is the client.
#[inline(always)]
pub(crate) fn address_error_to_client(draft: &mut Draft, client: &ClientTuple) {
    draft::to_client(draft, client);
}

/// The segment's four-tuple as a backend's.
#[inline(always)]
fn key(segment: &Segment) -> BackendTuple {
    let t = &segment.tuple;
    BackendTuple::tcp(t.client, t.vip, t.client_port, t.vip_port)
}
