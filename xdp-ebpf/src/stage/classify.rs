//! Tells whether a packet is ours, and whose.

use common::maps::listener::{ListenerKey, ROLE_OWN, ROLE_SOURCE, ROLE_VIP};
use common::reason::Reason;

use crate::exit::Exit;
use crate::maps;
use crate::packet::Scratch;

/// Whose packet it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Backend,
}

/// Looks up the destination; most packets of a node leave here.
#[inline(always)]
pub(crate) fn role(s: &mut Scratch) -> Result<(), Exit> {
    let Some(role) = maps::role(&s.segment.tuple.vip) else { return Err(Exit::next(Reason::NotOurs)) };
    s.segment.role = role.flags as u8;
    if role.flags & (ROLE_VIP | ROLE_SOURCE) == 0 {
        return Err(Exit::next(Reason::NotOurs));
    }
    Ok(())
}

/// Whether the destination has the role.
#[inline(always)]
pub(crate) fn is(s: &Scratch, role: u32) -> bool {
    u32::from(s.segment.role) & role != 0
}

/// From whom a TCP segment comes: a NAT entry says a backend; else a VIP's packet is a client's.
/// The client's four-tuple of a backend's segment is left in `s.client`.
#[inline(always)]
pub(crate) fn side(s: &mut Scratch) -> Result<Side, Exit> {
    if is(s, ROLE_SOURCE) {
        if let Some(client) = maps::nat(&s.segment.backend_tuple()) {
            s.client = *client;
            return Ok(Side::Backend);
        }
        if !is(s, ROLE_VIP) {
            return Err(Exit::next(Reason::ClassifyOwnTraffic));
        }
    }
    Ok(Side::Client)
}

/// Whether the segment is a backend's, or for a listener.
#[inline(always)]
pub(crate) fn connection(s: &mut Scratch) -> bool {
    is(s, ROLE_SOURCE) && maps::nat(&s.segment.backend_tuple()).is_some() || is(s, ROLE_VIP) && listener(s)
}

/// Finds the listener of a client's segment; `s.listener` and its fellows have it.
#[inline(always)]
pub(crate) fn listener(s: &mut Scratch) -> bool {
    let key = ListenerKey { address: s.segment.tuple.vip, port: s.segment.tuple.vip_port, reserved: [0; 2] };
    let Some(listener) = maps::listener(&key) else { return false };
    s.listener = listener.id;
    s.listener_route = listener.route;
    s.listener_mss = listener.mss;
    s.listener_protocol = listener.protocol;
    // Elements are reused at once: what was read must be what is there now.
    maps::listener(&key).is_some_and(|again| {
        again.id == s.listener && again.route == s.listener_route && again.protocol == s.listener_protocol
    })
}

/// A packet for the VIP that no listener takes: the node's own stack takes it where the address is its own.
#[inline(always)]
pub(crate) fn own(s: &Scratch) -> Result<(), Exit> {
    if is(s, ROLE_OWN) { Err(Exit::next(Reason::ClassifyOwnPort)) } else { Ok(()) }
}
