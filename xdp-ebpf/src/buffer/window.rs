//! Bytes of a hello from the packet into the window.

use common::maps::flow::HELLO_BYTES_MAX;

use crate::kernel::Skb;
use crate::scratch::{Cursors, Received, Waiting};

/// The most bytes of one copy into the window, which has this much room behind the longest hello.
const PIECE: u32 = HELLO_BYTES_MAX as u32 / 2;

/// Loads the payload of a connection's first segment to the start of the window, as far as it fits. Sets `have`.
#[inline(always)]
pub(crate) fn first(skb: Skb, received: &Received, waiting: &mut Waiting, cursors: &mut Cursors) -> bool {
    let seg = &received.segment;
    let bytes = seg.payload_bytes.min(2 * PIECE);
    let window = cursors.window.bytes.as_mut_ptr();
    let first = bytes.min(PIECE);
    if !load_some(skb, seg.payload_at, window, first)
        || !load_some(skb, seg.payload_at + first, window.wrapping_add(PIECE as usize), bytes - first)
    {
        return false;
    }
    waiting.pending.have = bytes;
    true
}

/// Loads `bytes` of the packet, at most [`PIECE`].
#[inline(always)]
fn load_some(skb: Skb, from: u32, to: *mut u8, bytes: u32) -> bool {
    if bytes == 0 {
        return true;
    }
    // One less, so that the verifier sees that at least one byte is loaded.
    let last = core::hint::black_box(bytes - 1);
    last < PIECE && skb.load(from, to, last + 1)
}

/// Loads the new part of the payload into the window, after the bytes already there, as far as it fits.
/// Raises `have`.
#[inline(always)]
pub(crate) fn more(
    skb: Skb,
    received: &Received,
    waiting: &mut Waiting,
    cursors: &mut Cursors,
    skip: u32,
) -> Option<()> {
    let have = waiting.pending.have;
    let new = received.segment.payload_bytes - skip;
    let room = HELLO_BYTES_MAX as u32 - have;
    let length = new.min(room);
    let from = received.segment.payload_at + skip;
    // In two pieces: each stays inside the window, wherever it begins.
    let first = length.min(PIECE);
    if !load_piece(skb, cursors, from, have, first)
        || !load_piece(skb, cursors, from + first, have + first, length - first)
    {
        return None;
    }
    waiting.pending.have = have + length;
    Some(())
}

#[inline(always)]
fn load_piece(skb: Skb, cursors: &mut Cursors, from: u32, to: u32, length: u32) -> bool {
    let length = core::hint::black_box(length);
    if length == 0 {
        return true;
    }
    let to = core::hint::black_box(to);
    if length > PIECE || to > HELLO_BYTES_MAX as u32 {
        return false;
    }
    let at = cursors.window.bytes.as_mut_ptr().wrapping_add(to as usize);
    skb.load(from, at, length)
}
