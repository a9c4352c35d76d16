//! Tells whether a packet is ours, whose it is, and where its connection stands.

use common::decide::route;
use common::maps::flow::{ClientTuple, HalfOpen, PENDING_CONNECTING};
use common::maps::listener::{ListenerKey, PROTOCOL_TCP, ROLE_BACKEND, ROLE_OWN, ROLE_SOURCE, ROLE_VIP};
use common::reason::Reason;

use crate::connection::cookie::{self, PROOF_FIRST, PROOF_NONE};
use crate::delivery::{self, ROLES_OF_REPLIES};
use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::packet::Segment;
use crate::scratch::{Dial, Received, Waiting};
use crate::verified::verified;

/// Whose packet it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Backend,
}

/// Where the connection of a packet stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Established, or over and lingering.
    Flow,
    /// Waits for bytes of its hello, or for its backend; its record is in `waiting`.
    Pending,
    /// Of a TCP listener, waits for its backend or the client's ACK; its record is in `half_open`.
    HalfOpen,
    /// Begins with this packet, or is about to: `dial.proof`.
    New,
    /// Mid-stream, and neither an entry nor a cookie knows it.
    Stray,
}

/// Looks up the destination; most packets of a node leave here.
#[inline(always)]
pub(crate) fn role(received: &mut Received) -> Result<(), Exit> {
    let tuple = &received.segment.tuple;
    let mut role = maps::role(&tuple.vip).map_or(0, |role| role.flags & !ROLE_BACKEND);
    // Of a VIP, too: it may be a client of ours.
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

/// From whom a TCP segment comes: a backend's replies are known; else a VIP's packet is a client's. `received.client` is
/// the connection's key.
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

/// Whether the segment is a backend's, or for a listener.
#[inline(always)]
pub(crate) fn has_connection(received: &mut Received, dial: &mut Dial) -> bool {
    is(&received.segment, ROLES_OF_REPLIES) && delivery::is_reply(&received.segment)
        || is(&received.segment, ROLE_VIP) && listener(received, dial) != Ok(false)
}

verified! {
    /// Finds the listener of a client's segment: `dial.listener`.
    pub(crate) fn listener as classify_listener(received: Received, dial: Dial) -> Result<bool, Exit> {
        let tuple = &received.segment.tuple;
        let key = ListenerKey { address: tuple.vip, port: tuple.vip_port, reserved: [0; 2] };
        route::listener(&maps::Maps, &key, &mut dial.listener).map_err(Exit::refused)
    }
}

/// A packet for the VIP that no listener takes: the node's own stack takes it where the address is its own.
#[inline(always)]
pub(crate) fn own(segment: &Segment) -> Result<(), Exit> {
    if is(segment, ROLE_OWN) { Err(Exit::next(Reason::ClassifyOwnPort)) } else { Ok(()) }
}

/// Where a client's segment stands that no flow takes, at the listener in `dial`. Changes nothing but copies.
#[inline(always)]
pub(crate) fn client(
    received: &mut Received,
    dial: &mut Dial,
    waiting: &mut Waiting,
    half_open: &mut HalfOpen,
) -> Result<Class, Exit> {
    waiting.found = false;
    if dial.listener.protocol == PROTOCOL_TCP {
        if let Some(held) = maps::half_open(&received.client) {
            kernel::assign(half_open, held);
            return Ok(Class::HalfOpen);
        }
        return Ok(if received.segment.is_syn() { Class::New } else { Class::Stray });
    }
    if received.segment.is_syn() {
        return Ok(Class::New);
    }
    // The third packet of a handshake: nothing but its cookie is looked at.
    if received.segment.is_bare() && cookie::proof(received, waiting) == PROOF_FIRST {
        dial.proof = PROOF_FIRST;
        return Ok(Class::New);
    }
    if let Some(pending) = maps::pending(&received.client) {
        kernel::assign(&mut waiting.pending, pending);
        waiting.found = true;
        return Ok(Class::Pending);
    }
    unknown(received, dial, waiting)
}

/// Where a TLS listener's segment stands that no entry takes, by its cookie.
#[inline(always)]
pub(crate) fn unknown(
    received: &mut Received,
    dial: &mut Dial,
    waiting: &mut Waiting,
) -> Result<Class, Exit> {
    // Since flows were looked up another CPU may have made this one, before the hello went: no second one is begun.
    if received.segment.payload_bytes > 0 && maps::flow(&received.client).is_some() {
        return Err(Exit::drop(Reason::HelloBeyond));
    }
    dial.proof = cookie::proof(received, waiting);
    Ok(if dial.proof == PROOF_NONE { Class::Stray } else { Class::New })
}

/// Where a backend's segment stands, by the connection whose replies it is among. Changes nothing but copies; a flow is
/// looked up again by whoever needs it.
#[inline(always)]
pub(crate) fn backend(received: &Received, waiting: &mut Waiting, half_open: &mut HalfOpen) -> Class {
    let generation = received.generation;
    if let Some(pending) = maps::pending(&received.client)
        && pending.connection.state == PENDING_CONNECTING
        && pending.connection.generation == generation
        && delivery::is_own(&pending.nat, &received.segment)
    {
        kernel::assign(&mut waiting.pending, pending);
        return Class::Pending;
    }
    if let Some(held) = maps::half_open(&received.client)
        && held.connection.generation == generation
        && delivery::is_own(&held.nat, &received.segment)
    {
        kernel::assign(half_open, held);
        return Class::HalfOpen;
    }
    // Since the first look another CPU may have made the flow, before the hello went.
    if is_flow(&received.client, generation) { Class::Flow } else { Class::Stray }
}

/// Whether the connection is a flow.
#[inline(always)]
pub(crate) fn is_flow(client: &ClientTuple, generation: u32) -> bool {
    maps::flow(client).is_some_and(|flow| flow.connection.generation == generation)
}
