//! Bytes of a waiting hello: from the window into buffers, and back.

use common::maps::flow::{BUFFER_BYTES, PENDING_BUFFERS};
use common::reason::Reason;

use super::{NO_BUFFER, place};
use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::scratch::{Cursors, Received, Waiting};
use crate::verified::{looped, verified};

/// Limits a number of bytes, counted from a buffer's start, to what one buffer holds.
#[inline(always)]
fn in_buffer(bytes: u32) -> u32 {
    core::hint::black_box(bytes).min(BUFFER_BYTES as u32)
}

verified! {
    /// Stores stream bytes `cursors.from` to `pending.have` of the window in the hello's buffers. The record is new, or
    /// this CPU holds it.
    pub(crate) fn keep as buffer_keep(
        received: Received, waiting: Waiting, cursors: Cursors
    ) -> Result<(), Exit> {
        let mut index = 0;
        while index < PENDING_BUFFERS {
            let begin = (index * BUFFER_BYTES) as u32;
            // Without a byte, too, a record has a slot: so there are never more records than slots, and the oldest is evicted.
            if begin < waiting.pending.have.max(1) && begin + BUFFER_BYTES as u32 > cursors.from {
                if waiting.pending.buffers[index] == NO_BUFFER {
                    waiting.pending.buffers[index] = place::claim(received, waiting, cursors, index as u32);
                }
                // Another CPU took the same slot at the same moment: try again.
                if waiting.pending.buffers[index] == NO_BUFFER {
                    waiting.pending.buffers[index] = place::claim(received, waiting, cursors, index as u32);
                }
                let Some(buffer) = maps::buffer(waiting.pending.buffers[index]) else {
                    return Err(match cursors.busy {
                        true => Exit::drop(Reason::HelloBusy),
                        false => Exit::reset(Reason::HelloBufferFailed),
                    });
                };
                let from = cursors.window.bytes.as_ptr().wrapping_add(index * BUFFER_BYTES);
                kernel::copy(buffer.bytes.as_mut_ptr(), from, in_buffer(waiting.pending.have - begin));
            }
            index += 1;
        }
        Ok(())
    }
}

verified! {
    /// Copies the hello's bytes from stream byte `cursors.from` on back into the window. This CPU holds the record.
    /// Returns `false` when some are gone.
    pub(crate) fn fetch as buffer_fetch(received: Received, waiting: Waiting, cursors: Cursors) -> bool {
        cursors.at = cursors.from;
        fetch_each(received, waiting, cursors);
        cursors.at >= waiting.pending.have
    }
}

looped! {
    /// Copies one buffer, the one of stream byte `cursors.at`; ends after the hello's last one, or at one that is
    /// gone.
    fn fetch_each(received: Received, waiting: Waiting, cursors: Cursors) times PENDING_BUFFERS as u32, |_round| {
        let have = waiting.pending.have;
        if cursors.at >= have {
            return true;
        }
        let index = core::hint::black_box(cursors.at) / BUFFER_BYTES as u32;
        if index >= PENDING_BUFFERS as u32 {
            return true;
        }
        let begin = index * BUFFER_BYTES as u32;
        let Some(buffer) = maps::buffer(place::slot_of(&waiting.pending, index)) else { return true };
        let to = cursors.window.bytes.as_mut_ptr().wrapping_add(begin as usize);
        kernel::copy(to, buffer.bytes.as_ptr(), in_buffer(have - begin));
        // Whatever happens, another client's bytes must not be delivered as this client's.
        if buffer.owner != received.client || buffer.index != index {
            return true;
        }
        cursors.at = begin + BUFFER_BYTES as u32;
        false
    }
}
