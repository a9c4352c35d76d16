//! What the daemon brings about when no packet comes: one run, one connection.

use common::reason::Reason;

use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::Scratch;
use crate::stage::expire;

/// 0 = done, 1 = there was nothing to do.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> i32 {
    s.partial_known = false;
    s.now_ns = kernel::monotonic_ns();
    let Some(request) = expire::read(skb, s) else { return 1 };
    let is = |reason| expire::is(request, reason);
    let done = if is(Reason::ExpireIdle) || is(Reason::ExpireRemoved) {
        expire::flow(skb, s)
    } else if is(Reason::ExpireClosed) {
        expire::closed(s)
    } else if is(Reason::ExpireHello) || is(Reason::HelloTimeout) {
        expire::hello(skb, s)
    } else if is(Reason::HelloEvicted) {
        // Counted when it gave way.
        return i32::from(!expire::evicted(skb, s, request));
    } else if is(Reason::ExpireHalfOpen) {
        expire::half_open(s)
    } else {
        false
    };
    if done {
        maps::count(request.reason & 0x7f);
    }
    i32::from(!done)
}
