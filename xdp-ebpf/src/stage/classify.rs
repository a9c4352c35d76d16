//! Decides whether a packet is ours, which side and connection it belongs to, and what state that connection is in.

use common::decide::route;
use common::maps::flow::{ClientTuple, PENDING_CONNECTING};
use common::maps::listener::{
    Listener, ListenerKey, PROTOCOL_TCP, ROLE_BACKEND, ROLE_OWN, ROLE_SOURCE, ROLE_VIP,
};
use common::maps::trace;
use common::reason::Reason;

use crate::connection::cookie::{self, PROOF_FIRST, PROOF_NONE};
use crate::connection::record::Found;
use crate::connection::{half_open, pending};
use crate::delivery::{self, ROLES_OF_REPLIES};
use crate::exit::Exit;
use crate::maps;
use crate::packet::Segment;
use crate::scratch::{Dial, Held, Received, Waiting};
use crate::verified::verified;

/// The side that a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Backend,
}

/// The state of a packet's connection.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// Established, or over and lingering.
    Flow = trace::CLASS_FLOW,
    /// Waits for bytes of its hello, or for its backend; its record is in `waiting`.
    Pending = trace::CLASS_PENDING,
    /// Of a TCP listener; waits for its backend or for the client's ACK. Its record is in `half_open`.
    HalfOpen = trace::CLASS_HALF_OPEN,
    /// Starts with this packet, or is about to; see `dial.proof`.
    New = trace::CLASS_NEW,
    /// Mid-stream, and neither an entry nor a cookie fits it.
    Stray = trace::CLASS_STRAY,
}

/// Looks up the roles of the packet's addresses; most packets of a node leave here.
#[inline(always)]
pub(crate) fn role(received: &mut Received) -> Result<(), Exit> {
    let tuple = &received.segment.tuple;
    let mut role = maps::role(&tuple.vip).map_or(0, |role| role.flags & !ROLE_BACKEND);
    // Also when the destination is a VIP: the VIP's address may be a client of ours.
    if role & ROLE_SOURCE == 0 {
        role |= delivery::role_of_source(&tuple.client);
    }
    received.segment.role = role as u8;
    if role & (ROLE_VIP | ROLES_OF_REPLIES) == 0 {
        return Err(Exit::next(Reason::NotOurs));
    }
    Ok(())
}

/// Whether the packet has one of the roles.
#[inline(always)]
pub(crate) fn is(segment: &Segment, roles: u32) -> bool {
    u32::from(segment.role) & roles != 0
}

/// Finds the side that a TCP segment comes from. If it is a reply that we know, it is a backend's; any other
/// packet for a VIP is a client's. `received.client` is then the connection's key.
#[inline(always)]
pub(crate) fn side(received: &mut Received) -> Result<Side, Exit> {
    if is(&received.segment, ROLES_OF_REPLIES) {
        if delivery::find(received) {
            return Ok(Side::Backend);
        }
        if !is(&received.segment, ROLE_VIP) {
            return Err(Exit::next(Reason::ClassifyOwnTraffic));
        }
    }
    received.client = received.segment.tuple;
    Ok(Side::Client)
}

/// Whether the segment is a backend's reply, or for a listener.
#[inline(always)]
pub(crate) fn has_connection(received: &mut Received, dial: &mut Dial) -> bool {
    is(&received.segment, ROLES_OF_REPLIES) && delivery::is_reply(&received.segment)
        || is(&received.segment, ROLE_VIP) && listener(received, &mut dial.listener) != Ok(false)
}

verified! {
    /// Finds the listener of a client's segment and copies it to `listener`.
    pub(crate) fn listener as classify_listener(received: Received, listener: Listener) -> Result<bool, Exit> {
        let tuple = &received.segment.tuple;
        let key = ListenerKey { address: tuple.vip, port: tuple.vip_port, reserved: [0; 2] };
        route::listener(&maps::Maps, &key, listener).map_err(Exit::refused)
    }
}

/// Leaves if the address is the node's own: a packet for the VIP that no listener takes is then for the node's stack.
#[inline(always)]
pub(crate) fn own(segment: &Segment) -> Result<(), Exit> {
    if is(segment, ROLE_OWN) { Err(Exit::next(Reason::ClassifyOwnPort)) } else { Ok(()) }
}

/// Returns the class of a client's segment that belongs to no flow, at the listener in `dial`. A record that it belongs
/// to is locked and copied.
#[inline(always)]
pub(crate) fn client(
    received: &mut Received,
    dial: &mut Dial,
    waiting: &mut Waiting,
    held: &mut Held,
) -> Result<Class, Exit> {
    if dial.listener.protocol == PROTOCOL_TCP {
        match half_open::lock(received, held, 0) {
            Found::Held => return Ok(Class::HalfOpen),
            Found::Busy => return Err(Exit::drop(Reason::SynBusy)),
            // Another CPU may have made the flow after flows were looked up, and before the record was removed.
            Found::None if is_flow_of(&received.client, &received.segment) => {
                return Err(Exit::drop(Reason::SynBusy));
            }
            Found::None => {}
        }
    }
    if received.segment.is_syn() {
        return Ok(Class::New);
    }
    // The third packet of a handshake: only its cookie is checked. On a TCP listener it dials the backend, but only once.
    let bare = dial.listener.protocol != PROTOCOL_TCP && received.segment.is_bare();
    if bare {
        dial.proof = cookie::proof(received, waiting);
        if dial.proof == PROOF_FIRST {
            return Ok(Class::New);
        }
    }
    match pending::lock(received, waiting, 0) {
        Found::Held => Ok(Class::Pending),
        Found::Busy => Err(Exit::drop(Reason::HelloBusy)),
        Found::None if bare => has_no_flow(&received.client).map(|()| by_proof(dial)),
        Found::None => unknown(received, dial, waiting),
    }
}

/// Whether the segment belongs to a flow: any but the SYN of another connection.
#[inline(always)]
fn is_flow_of(client: &ClientTuple, segment: &Segment) -> bool {
    maps::flow(client).is_some_and(|flow| !segment.is_syn() || flow.client_isn == segment.seq)
}

/// Returns the class of a segment that belongs to no entry, by its cookie.
#[inline(always)]
pub(crate) fn unknown(
    received: &mut Received,
    dial: &mut Dial,
    waiting: &mut Waiting,
) -> Result<Class, Exit> {
    has_no_flow(&received.client)?;
    dial.proof = cookie::proof(received, waiting);
    Ok(by_proof(dial))
}

/// Leaves if the client has a flow. Another CPU may have made it after flows were looked up, and before its earlier record was
/// removed: a second connection must not be started, nor this one refused.
#[inline(always)]
fn has_no_flow(client: &ClientTuple) -> Result<(), Exit> {
    if maps::flow(client).is_some() {
        return Err(Exit::drop(Reason::HelloBeyond));
    }
    Ok(())
}

#[inline(always)]
fn by_proof(dial: &Dial) -> Class {
    if dial.proof == PROOF_NONE { Class::Stray } else { Class::New }
}

/// Returns the class of a backend's segment, by the connection whose reply it is. Its record is locked and copied; a
/// flow is not copied: code that needs it looks it up again.
#[inline(always)]
pub(crate) fn backend(
    received: &mut Received,
    waiting: &mut Waiting,
    held: &mut Held,
) -> Result<Class, Exit> {
    let generation = received.generation;
    match pending::lock(received, waiting, generation) {
        Found::Busy => return Err(Exit::drop(Reason::ConnectBusy)),
        Found::Held if waiting.pending.connection.state == PENDING_CONNECTING => {
            return match delivery::is_own(&waiting.pending.nat, &received.segment) {
                true => Ok(Class::Pending),
                // Another CPU gave the port up after the reply was found: it may be for another connection of the node.
                false => Err(Exit::next(Reason::ClassifyOwnTraffic)),
            };
        }
        _ => {}
    }
    match half_open::lock(received, held, generation) {
        Found::Busy => return Err(Exit::drop(Reason::ConnectBusy)),
        Found::Held if !delivery::is_own(&held.record.nat, &received.segment) => {
            return Err(Exit::next(Reason::ClassifyOwnTraffic));
        }
        Found::Held => return Ok(Class::HalfOpen),
        Found::None => {}
    }
    // Another CPU may have made the flow after the first lookup, and before the hello was removed.
    Ok(if is_flow(&received.client, generation) { Class::Flow } else { Class::Stray })
}

/// Whether the connection is a flow.
#[inline(always)]
pub(crate) fn is_flow(client: &ClientTuple, generation: u32) -> bool {
    maps::flow(client).is_some_and(|flow| flow.connection.generation == generation)
}
