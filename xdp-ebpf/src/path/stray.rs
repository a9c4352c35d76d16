//! Of no connection: mid-stream, and neither an entry nor a cookie knows it. The one place where such packets of either side
//! leave.

use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::Skb;
use crate::packet::RST;
use crate::scratch::Scratch;
use crate::stage::checksum;

/// A client's segment.
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

/// A backend's segment, whose checksum was judged.
#[inline(always)]
pub(super) fn backend() -> Exit {
    leave(Reason::ForwardStray)
}

/// Its sender gets a RST; a RST gets none.
#[inline(always)]
fn leave(reason: Reason) -> Exit {
    Exit::reset(reason)
}
