//! Bytes of a waiting hello: from the window into places, and back.

use common::maps::flow::{BUFFER_BYTES, PENDING_BUFFERS};

use super::{NO_BUFFER, place};
use crate::kernel;
use crate::maps;
use crate::scratch::{Cursors, Received, Waiting};
use crate::verified::verified;

/// Bytes of one buffer, of so many from its beginning on.
#[inline(always)]
fn in_buffer(bytes: u32) -> u32 {
    core::hint::black_box(bytes).min(BUFFER_BYTES as u32)
}

verified! {
    /// Stores stream bytes `cursors.from` to `pending.have` of the window in the hello's places. `false`: not all; in any
    /// case [`place::settle`] has to follow.
    pub(crate) fn keep as buffer_keep(received: Received, waiting: Waiting, cursors: Cursors) -> bool {
        let mut index = 0;
        while index < PENDING_BUFFERS {
            let begin = (index * BUFFER_BYTES) as u32;
            if begin < waiting.pending.have && begin + BUFFER_BYTES as u32 > cursors.from {
                let begun = waiting.pending.buffers[index] != NO_BUFFER;
                if !begun {
                    waiting.pending.buffers[index] = place::claim(received, waiting, cursors, index as u32);
                }
                // Another CPU has taken the same place at the same moment: once more.
                if waiting.pending.buffers[index] == NO_BUFFER {
                    waiting.pending.buffers[index] = place::claim(received, waiting, cursors, index as u32);
                }
                let Some(buffer) = maps::buffer(waiting.pending.buffers[index]) else { return false };
                // Given away meanwhile, or at this moment: these bytes must not pass for somebody else's.
                if buffer.owner != received.client
                    || buffer.index != index as u32
                    || begun && !place::lock_of(buffer, &received.client, received.now_ns)
                {
                    return false;
                }
                let from = cursors.window.bytes.as_ptr().wrapping_add(index * BUFFER_BYTES);
                kernel::copy(buffer.bytes.as_mut_ptr(), from, in_buffer(waiting.pending.have - begin));
            }
            index += 1;
        }
        true
    }
}

verified! {
    /// Copies the hello's bytes from stream byte `cursors.from` on back into the window. `false`: not all are there any more.
    pub(crate) fn fetch as buffer_fetch(received: Received, waiting: Waiting, cursors: Cursors) -> bool {
        let mut index = 0;
        while index < PENDING_BUFFERS {
            let begin = (index * BUFFER_BYTES) as u32;
            if begin < waiting.pending.have && begin + BUFFER_BYTES as u32 > cursors.from {
                let Some(buffer) = maps::buffer(waiting.pending.buffers[index]) else { return false };
                // Given away meanwhile: somebody else's bytes must not pass for this client's.
                if buffer.owner != received.client || buffer.index != index as u32 {
                    return false;
                }
                let to = cursors.window.bytes.as_mut_ptr().wrapping_add(index * BUFFER_BYTES);
                kernel::copy(to, buffer.bytes.as_ptr(), in_buffer(waiting.pending.have - begin));
                // Nor while they were copied.
                if buffer.owner != received.client || buffer.index != index as u32 {
                    return false;
                }
            }
            index += 1;
        }
        true
    }
}
