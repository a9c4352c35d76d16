//! Packets of no connection: they are mid-stream, and neither an entry nor a cookie fits them. Such packets
//! from either side leave only here.

use common::maps::listener::ROLE_SOURCE;
use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::Skb;
use crate::packet::RST;
use crate::scratch::{Received, Scratch};
use crate::stage::{checksum, classify};

/// Handles a client's segment.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Exit {
    if let Err(exit) = checksum::tcp(skb, &mut s.received, &mut s.cursors) {
        return exit;
    }
    match s.received.segment.has(RST) {
        true => Exit::drop(Reason::SynStray),
        false => Exit::reset(Reason::SynCookieMismatch),
    }
}

/// Handles a backend's segment, whose checksum was already checked. The port may have been claimed a moment ago, for a connection
/// whose record is not stored yet, and the segment be of another connection, which the node masquerades to our source address, or
/// which the client has with the backend itself: no reason for RST. If it is nobody's, the node's stack or the client answers it.
#[inline(always)]
pub(super) fn backend(received: &Received) -> Exit {
    match classify::is(&received.segment, ROLE_SOURCE) {
        true => Exit::next(Reason::ConnectStray),
        false => Exit::next(Reason::ForwardStray),
    }
}
