//! How packets reach a backend and how its replies return. A delivery owns addresses and source ports, and
//! nothing else: the second handshake is in `stage::connect`, the translation of numbers in `stage::forward`.
//!
//! | delivery | destination | source | marks its replies |
//! | --- | --- | --- | --- |
//! | `nat` | the backend's | one of our addresses, a port of ours | our address, `ROLE_SOURCE` |
//! | `dnat` | the backend's | the client's own | the backend's address, `ROLE_BACKEND` |
//!
//! A client on the backend's own device has `nat`, whatever the backend's record says. So has one on this node, which comes by the
//! node's own pair and is answered by it (`DELIVERY_NODE`): the backend may be the client itself.
//!
//! Limit of `dnat`: a router between us and the backend addresses its ICMP errors to the client, so they pass unread.

/// Source and destination are rewritten.
mod nat;
/// Only the destination is rewritten.
mod dnat;
/// The connection that a backend's packets belong to.
mod reply;

use common::maps::address::Address;
use common::maps::backend::{DELIVERY_DNAT, DELIVERY_NAT, DELIVERY_NODE};
use common::maps::flow::{BackendTuple, ClientTuple, Connection, Flow};
use common::maps::listener::{ROLE_BACKEND, ROLE_SOURCE};
use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::Skb;
use crate::maps;
use crate::packet::Segment;
use crate::scratch::{Dial, Draft, Quote, Received};
use crate::segment::{draft, emit};
use crate::verified::verified;

pub(crate) use reply::{find, is_reply};

/// The roles of packets that may be a backend's reply.
pub(crate) const ROLES_OF_REPLIES: u32 = ROLE_SOURCE | ROLE_BACKEND;

/// Returns the role that a packet has by its source address. The map is read only when some backend sees its
/// clients' own addresses.
#[inline(always)]
pub(crate) fn role_of_source(source: &Address) -> u32 {
    let asked = maps::settings().is_some_and(|settings| settings.deliveries & 1 << DELIVERY_DNAT != 0);
    if !asked {
        return 0;
    }
    maps::role(source).map_or(0, |role| role.flags & ROLE_BACKEND)
}

/// Claims the backend's side of the connection to the picked backend, for the generation in `dial.connection`. It is
/// then in `dial.nat`, and replies are found. The handshake with the backend comes next. The packet in hand is the client's.
#[inline(always)]
pub(crate) fn open(skb: Skb, received: &mut Received, dial: &mut Dial) -> Result<(), Exit> {
    choose(received, dial, skb.ifindex());
    claim(skb, received, dial)
}

verified! {
    /// Chooses the delivery of a connection to the picked backend, whose client's packet came in on this device.
    fn choose as delivery_choose(received: Received, dial: Dial; ingress: u32) -> () {
        let backend = &dial.choice.record;
        // On one segment, the backend answers the client's own address without us.
        let is_beside_client = ingress == backend.ifindex;
        dial.connection.delivery = match is_beside_client {
            _ if received.from_node => DELIVERY_NODE,
            true => DELIVERY_NAT,
            false => backend.delivery,
        };
    }
}

/// Like [`open`], for another try of a connection. The packet in hand may be anybody's: what was known of the client at the
/// first try still holds.
#[inline(always)]
pub(crate) fn open_again(skb: Skb, received: &mut Received, dial: &mut Dial) -> Result<(), Exit> {
    if dial.connection.delivery == DELIVERY_DNAT {
        dial.connection.delivery = dial.choice.record.delivery;
    }
    claim(skb, received, dial)
}

#[inline(always)]
fn claim(skb: Skb, received: &mut Received, dial: &mut Dial) -> Result<(), Exit> {
    let claimed = match dial.connection.delivery {
        DELIVERY_DNAT => dnat::claim(received, dial),
        _ => nat::claim(skb, received, dial),
    };
    match claimed {
        true => Ok(()),
        // The same packet may have arrived twice, at the same moment on two CPUs.
        false if reply::is_of(&dial.nat, &received.client) => Err(Exit::drop(Reason::ConnectBusy)),
        false => Err(Exit::reset(Reason::ConnectNoPort)),
    }
}

/// Returns the generation of the connection that has this backend's side, and puts its client in `client`.
#[inline(always)]
pub(crate) fn holder(nat: &BackendTuple, client: &mut ClientTuple) -> Option<u32> {
    reply::holder(nat, client)
}

/// Claims the backend's side in `dial.nat`, which another connection had until now; `false`: the next one has it already.
#[inline(always)]
pub(crate) fn take_over(received: &Received, dial: &Dial) -> bool {
    reply::claim(&dial.nat, &received.client, dial.connection.generation)
}

/// Whether the segment is a reply to the connection with this backend's side. An element of the map of
/// replies may be reused for another key as soon as it is removed. So a record found through it is used only
/// when the segment's own addresses and ports match.
#[inline(always)]
pub(crate) fn is_own(nat: &BackendTuple, segment: &Segment) -> bool {
    *nat == key(segment)
}

/// Whether the connection's client is on this node, and is answered by the node's own pair.
#[inline(always)]
pub(crate) fn is_to_node(connection: &Connection) -> bool {
    connection.delivery == DELIVERY_NODE
}

/// Returns the delivery of a connection whose backend is not picked yet: [`DELIVERY_NAT`], if its client is elsewhere.
#[inline(always)]
pub(crate) fn of_client(received: &Received) -> u8 {
    u8::from(received.from_node) * DELIVERY_NODE
}

/// Whether the connection is the only user of its source port. Otherwise the backend may still have another
/// connection of the client on it.
#[inline(always)]
pub(crate) fn owns_source(connection: &Connection) -> bool {
    connection.delivery != DELIVERY_DNAT
}

/// Whether the backend sees other clients, too, at the source address of this connection: what it learns of the path to
/// one client, it believes of all.
#[inline(always)]
pub(crate) fn shares_source(connection: &Connection) -> bool {
    connection.delivery != DELIVERY_DNAT
}

/// Releases the backend's side of a client's connection, if it still has it.
#[inline(always)]
pub(crate) fn release(nat: &BackendTuple, client: &ClientTuple, generation: u32) {
    reply::release(nat, client, generation);
}

/// Lists a flow, which this CPU has just stored, for the daemon to find when its backend or its route is removed. Flows of other
/// deliveries are found by the keys of their replies.
#[inline(always)]
pub(crate) fn list(client: &ClientTuple, connection: &Connection) {
    if connection.delivery == DELIVERY_DNAT {
        dnat::list(client, connection);
    }
}

/// Takes a flow with this delivery off the list. Only the CPU that removes its record does so, and before: until then, no other
/// flow has the key.
#[inline(always)]
pub(crate) fn unlist(client: &ClientTuple, delivery: u8) {
    if delivery == DELIVERY_DNAT {
        dnat::unlist(client);
    }
}

/// Restores the picked backend from the backend's side of a connection, so that [`open_again`] claims another one.
#[inline(always)]
pub(crate) fn resume(dial: &mut Dial, nat: &BackendTuple) {
    let backend = &mut dial.choice.record;
    backend.address = nat.backend;
    backend.source = nat.source;
    backend.port = nat.backend_port;
    backend.delivery = dial.connection.delivery;
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

/// Sends the client's packet in hand to the receiver that [`address`] wrote. Its numbers are already the backend's.
#[inline(always)]
pub(crate) fn to_backend(skb: Skb, received: &mut Received, draft: &mut Draft, reason: Reason) -> Exit {
    emit::pass(skb, received, draft, reason)
}

/// Sends the backend's packet in hand to the client. Its numbers are already the client's.
#[inline(always)]
pub(crate) fn to_client(skb: Skb, received: &mut Received, draft: &mut Draft, reason: Reason) -> Exit {
    draft::to_client(draft, &received.client);
    emit::pass(skb, received, draft, reason)
}

/// Whether the quoted segment was sent to a backend; `received` then has its connection.
#[inline(always)]
pub(crate) fn find_quoted(received: &mut Received, quote: &Quote) -> bool {
    let key = quoted_key(quote);
    // Looked up twice: see `is_own`.
    reply::find_by(received, &key) && reply::is_held(&key, received.generation)
}

/// Whether the segment quoted was sent on these addresses and ports: see [`is_own`].
#[inline(always)]
pub(crate) fn is_quoted(nat: &BackendTuple, quote: &Quote) -> bool {
    *nat == quoted_key(quote)
}

#[inline(always)]
fn quoted_key(quote: &Quote) -> BackendTuple {
    let q = &quote.tuple;
    BackendTuple::tcp(q.vip, q.client, q.vip_port, q.client_port)
}

/// Addresses an ICMP error to the backend of the flow.
#[inline(always)]
pub(crate) fn address_error_to_backend(draft: &mut Draft, flow: &Flow) {
    address(draft, &flow.nat);
}

/// Addresses an ICMP error to the client.
#[inline(always)]
pub(crate) fn address_error_to_client(draft: &mut Draft, client: &ClientTuple) {
    draft::to_client(draft, client);
}

/// Returns the segment's four-tuple as a backend's.
#[inline(always)]
fn key(segment: &Segment) -> BackendTuple {
    let t = &segment.tuple;
    BackendTuple::tcp(t.client, t.vip, t.client_port, t.vip_port)
}
