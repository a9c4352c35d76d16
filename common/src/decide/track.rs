//! Which segments of a flow are believed, and which end it (RFC 9293 section 3.10.7.4, RFC 5961).
//!
//! Every segment of a flow passes: its ends judge for themselves. But the flow learns numbers, ends and life only from
//! segments that its ends would take, because anybody who knows addresses and ports can send the others.

use crate::maps::flow::{End, Flow, WINDOW_SCALE_NONE};
use crate::maps::word::WINDOW_UNIT;
use crate::wire::seq;

impl Flow {
    /// Returns the sequence number of the backend's first byte, in its own numbers.
    #[inline(always)]
    pub const fn first_byte(&self) -> u32 {
        self.vip_isn.wrapping_add(1).wrapping_add(self.seq_delta)
    }
}

/// Returns a window of a segment without SYN in bytes, by the scale of the end that announces it.
#[inline(always)]
pub const fn window(announced: u16, scale: u8) -> u32 {
    let shift = if scale == WINDOW_SCALE_NONE {
        0
    } else if scale > 14 {
        14
    } else {
        scale
    };
    (announced as u32) << shift
}

/// Whether a segment lies in its receiver's window: at most the largest possible window behind what the receiver
/// acknowledged, and at most the largest window that it ever announced ahead of that. One unit more is allowed, for
/// probes of a closed window and for windows that we rounded up.
#[inline(always)]
pub const fn is_inside(start: u32, end: u32, receiver: &End, receiver_scale: u8) -> bool {
    let behind = window(u16::MAX, receiver_scale);
    let ahead = receiver.acked.window as u32 * WINDOW_UNIT + WINDOW_UNIT;
    let left = receiver.acked.number.wrapping_sub(behind);
    start.wrapping_sub(left) <= behind + ahead && end.wrapping_sub(left) <= behind + ahead
}

/// Whether an acknowledgement is at most one window behind the sender's highest one, and not beyond what was sent to it:
/// the largest window that the sender ever announced, as its receiver judges it (RFC 5961 section 5.2). We round it up.
#[inline(always)]
pub const fn is_acknowledgement(ack: u32, sender: &End, receiver: &End) -> bool {
    let newest = receiver.sent.next;
    let mut open = newest.wrapping_sub(sender.acked.number);
    if (open as i32) < 0 {
        open = 0;
    }
    newest.wrapping_sub(ack) <= open + sender.acked.window as u32 * WINDOW_UNIT
}

/// Whether all of a segment is behind what its receiver acknowledged. Its receiver answers it, but takes nothing from it,
/// not even the acknowledgement (RFC 9293 section 3.10.7.4).
#[inline(always)]
pub const fn is_old(end: u32, receiver: &End) -> bool {
    seq::before(end, receiver.acked.number)
}

/// What a RST means for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// It is where the other end acknowledged last: the other end accepts it.
    Exact,
    /// It is behind bytes that the other end has not acknowledged yet. The other end accepts it only if it has them.
    Ahead,
    /// The other end does not accept it.
    Elsewhere,
}

/// Judges a RST by its sequence number.
#[inline(always)]
pub const fn reset(at: u32, sender: &End, receiver: &End) -> Reset {
    let acked = receiver.acked.number;
    if at == acked {
        Reset::Exact
    } else if seq::before(acked, at) && seq::before_or_at(at, sender.sent.next) {
        Reset::Ahead
    } else {
        Reset::Elsewhere
    }
}

/// Whether both ends sent a FIN and acknowledged the other's.
#[inline(always)]
pub const fn is_closed(client: &End, backend: &End) -> bool {
    is_done(client, backend) && is_done(backend, client)
}

/// Whether an end sent a FIN that the other acknowledged.
#[inline(always)]
const fn is_done(end: &End, other: &End) -> bool {
    end.sent.fin != 0 && seq::before_or_at(end.sent.next, other.acked.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::word::{Acked, Sent};

    fn end(next: u32, number: u32, window: u16) -> End {
        let sent = Sent { next, ..Sent::zeroed() };
        End { sent, acked: Acked { number, generation: 0, window } }
    }

    #[test]
    fn windows_are_scaled_as_far_as_scales_go() {
        assert_eq!(window(65_535, WINDOW_SCALE_NONE), 65_535);
        assert_eq!(window(65_535, 0), 65_535);
        assert_eq!(window(1, 7), 128);
        assert_eq!(window(65_535, 14), 65_535 << 14);
        assert_eq!(window(1, 200), 1 << 14, "a scale over 14 counts as 14 (RFC 7323 section 2.3)");
    }

    /// At both edges, everywhere on the 32-bit circle, for the smallest and the largest window.
    #[test]
    fn the_window_has_two_edges() {
        for acked in [0, 1, 77, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX] {
            for (scale, units) in [(WINDOW_SCALE_NONE, 0), (0, 4), (7, 512), (14, u16::MAX)] {
                let receiver = end(0, acked, units);
                let left = acked.wrapping_sub(window(65_535, scale));
                let right = acked.wrapping_add((u32::from(units) + 1) * WINDOW_UNIT);
                let inside = |start, end| is_inside(start, end, &receiver, scale);
                assert!(inside(left, left) && inside(acked, acked) && inside(right, right));
                assert!(inside(left, right));
                assert!(!inside(left.wrapping_sub(1), left) && !inside(right, right.wrapping_add(1)));
                assert!(!inside(right.wrapping_add(1), right.wrapping_add(1)));
                assert!(!inside(acked.wrapping_add(1 << 31), acked.wrapping_add(1 << 31)));
            }
        }
    }

    #[test]
    fn an_acknowledgement_is_of_what_was_sent() {
        for newest in [0u32, 5, 0x8000_0000, u32::MAX] {
            for open in [0, 1, 100_000] {
                let (sender, receiver) = (end(0, newest.wrapping_sub(open), 3), end(newest, 0, 0));
                let is = |ack| is_acknowledgement(ack, &sender, &receiver);
                let oldest = newest.wrapping_sub(open).wrapping_sub(3 * WINDOW_UNIT);
                assert!(is(newest) && is(newest.wrapping_sub(open)) && is(oldest));
                assert!(!is(newest.wrapping_add(1)) && !is(oldest.wrapping_sub(1)));
                assert!(!is(newest.wrapping_sub(1 << 24)));
            }
        }
    }

    #[test]
    fn a_segment_is_old_until_its_last_byte_is_new() {
        for acked in [0u32, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let is_old = |end| is_old(end, &self::end(0, acked, 0));
            assert!(is_old(acked.wrapping_sub(1)) && is_old(acked.wrapping_sub(1 << 30)));
            assert!(!is_old(acked) && !is_old(acked.wrapping_add(1)));
        }
    }

    #[test]
    fn a_rst_is_judged_by_what_the_other_end_acknowledged() {
        for acked in [0u32, 0x7fff_ffff, u32::MAX - 3] {
            let at = |offset: u32| acked.wrapping_add(offset);
            let judged = |rst| reset(rst, &end(at(10), 0, 0), &end(0, acked, 4));
            assert_eq!(judged(at(0)), Reset::Exact);
            assert_eq!([judged(at(1)), judged(at(10))], [Reset::Ahead; 2]);
            for elsewhere in [at(11), at(u32::MAX), at(1 << 31)] {
                assert_eq!(judged(elsewhere), Reset::Elsewhere);
            }
            // Everything is acknowledged: only one number counts.
            assert_eq!(reset(at(1), &end(acked, 0, 0), &end(0, acked, 4)), Reset::Elsewhere);
        }
    }

    #[test]
    fn the_window_is_the_largest_announced() {
        let acked = Acked { number: u32::MAX - 9, generation: 3, window: 0 };
        let large = acked.raised(u32::MAX - 9, 100_000);
        assert_eq!(large, Acked { window: 7, ..acked });
        assert_eq!(large.raised(20, 10), Acked { number: 20, ..large });
        // An older acknowledgement moves nothing back, but its window counts.
        assert_eq!(large.raised(20, 10).raised(4, 1 << 20), Acked { number: 20, window: 64, ..acked });
        assert_eq!(acked.raised(0, u32::MAX).window, u16::MAX);
        assert_eq!(acked.raised(0, 1).window, 1);
    }

    #[test]
    fn a_fin_counts_until_bytes_follow_it() {
        let sent = Sent { next: u32::MAX, generation: 1, fin: 0, agreed: 7 };
        assert_eq!(sent.extended(4, true), Sent { next: 4, fin: 1, ..sent });
        assert_eq!(sent.extended(4, true).extended(4, false).fin, 1, "a repetition without its FIN");
        assert_eq!(sent.extended(4, true).extended(5, false), Sent { next: 5, ..sent });
        assert_eq!(sent.extended(u32::MAX - 5, true), sent, "a FIN before bytes that came already");
    }

    /// What a CPU does with a packet of one direction, in atomic steps: it exchanges its own words, then reads all.
    #[derive(Clone, Copy)]
    struct Cpu {
        /// The word to raise: the acknowledgement number of this end.
        ack: u32,
        step: u8,
        closed: bool,
    }

    /// Every order in which two CPUs can take their steps with the last acknowledgements of both directions, also when
    /// the packets of one direction arrive twice: one of them closes the flow.
    #[test]
    fn in_every_order_somebody_sees_that_both_ends_are_done() {
        fn explore(ends: [End; 2], cpus: [Cpu; 2], orders: &mut u32) {
            let mut moved = false;
            for which in 0..2 {
                let (mut ends, mut cpus) = (ends, cpus);
                let cpu = &mut cpus[which];
                match cpu.step {
                    0 => ends[which].acked = ends[which].acked.raised(cpu.ack, 0),
                    1 => cpu.closed = is_closed(&ends[0], &ends[1]),
                    _ => continue,
                }
                cpu.step += 1;
                moved = true;
                explore(ends, cpus, orders);
            }
            if !moved {
                *orders += 1;
                assert!(cpus.iter().any(|cpu| cpu.closed));
            }
        }
        let done = |next, number| End {
            sent: Sent { next, fin: 1, ..Sent::zeroed() },
            acked: Acked { number, generation: 0, window: 0 },
        };
        let cpu = |ack| Cpu { ack, step: 0, closed: false };
        let mut orders = 0;
        explore([done(10, 19), done(20, 9)], [cpu(20), cpu(10)], &mut orders);
        assert_eq!(orders, 6);
    }
}
