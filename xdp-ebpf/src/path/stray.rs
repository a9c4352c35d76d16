//! Packets of no connection: they are mid-stream, and neither an entry nor a cookie fits them. Such packets
//! from either side leave only here.

use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::Skb;
use crate::packet::RST;
use crate::scratch::Scratch;
use crate::stage::checksum;

/// Handles a client's segment.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Exit {
    if let Err(exit) = checksum::tcp(skb, &mut s.received, &mut s.cursors) {
        return exit;
    }
    match s.received.segment.has(RST) {
        true => Exit::drop(Reason::SynStray),
        false => leave(Reason::SynCookieMismatch),
    }
}

/// Handles a backend's segment, whose checksum was already checked.
#[inline(always)]
pub(super) fn backend() -> Exit {
    leave(Reason::ForwardStray)
}

/// Answers the sender with RST; a RST is not answered.
#[inline(always)]
fn leave(reason: Reason) -> Exit {
    Exit::reset(reason)
}
