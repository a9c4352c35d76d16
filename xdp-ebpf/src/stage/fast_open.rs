//! TCP Fast Open (RFC 7413, and the experimental form before it) ends at the VIP of a TCP listener: a backend
//! would issue its cookie for our address, so one client's cookie would be valid for all clients.

use crate::packet::{Headers, TCP_AT};
use crate::scratch::{Cursors, Received};
use crate::verified::{looped, verified};

verified! {
    /// Removes the TCP Fast Open cookie from the SYN in hand.
    pub(crate) fn take_out as fast_open_take_out(received: Received, cursors: Cursors) -> () {
        cursors.at = 20;
        each_option(received, cursors);
    }
}

looped! {
    /// Examines one option.
    fn each_option(received: Received, cursors: Cursors) times 40, |_round| {
        let at = cursors.at;
        let end = received.segment.tcp_bytes;
        if at >= end {
            return true;
        }
        let kind = received.headers.tcp_byte(at);
        let length = if kind == 1 { 1 } else { u32::from(received.headers.tcp_byte(at + 1)) };
        if kind == 0 || length == 0 || kind != 1 && length < 2 || at + length > end {
            return true;
        }
        // Kind 254 is shared: 0xf989 identifies Fast Open.
        let experimental = kind == 254 && length >= 4 && received.headers.tcp_be32(at) & 0xffff == 0xf989;
        if kind == 34 || experimental {
            blank(&mut received.headers, at, length);
        }
        cursors.at = at + length;
        false
    }
}

/// Overwrites an option with NOPs.
#[inline(always)]
fn blank(h: &mut Headers, at: u32, bytes: u32) {
    let mut i = 0;
    while i < 40 {
        if i < bytes {
            h.bytes[TCP_AT + ((at + i) & 63) as usize] = 1;
        }
        i += 1;
    }
}
