//! Whether a segment of a connection that this node does not know goes on to the node that announced the address before: it may be open
//! there.

use super::cookie::LIFE_NS;
use crate::maps::previous::{Peer, Previous};
use crate::maps::segment::PRESENT_NS;

/// How long a node passes on what belongs to an address that it announces no more: until clients know the new owner's link address.
pub const CLOSED_NS: u64 = 10_000_000_000;

/// Whether this node passes on what belongs to an address, which it announces (`is_here`) or another node. After it left the address, it
/// opens itself what has a full cookie (`has_cookie`): what a node before it opened then would be out of reach some seconds later.
#[inline(always)]
pub const fn is_passing(previous: &Previous, is_here: bool, has_cookie: bool, now_ns: u64) -> bool {
    let is_leaving = (previous.closed_ns != 0) & (now_ns.saturating_sub(previous.closed_ns) < CLOSED_NS);
    is_here | (is_leaving & !has_cookie)
}

/// Whether a packet goes on to the previous owner of its address, which has no connection here. It came `from` this link address, packed as
/// the owner's; what has a full cookie (`has_cookie`) may start a connection, or be the repetition of one that did so there.
///
/// What comes from the previous owner itself never goes back to it. So no packet goes round and round between two nodes each of which
/// announces the address, or of which one does not know the address at all. Without branches, for the kernel's verifier.
#[inline(always)]
pub const fn passes(previous: &Previous, peer: &Peer, from: u64, has_cookie: bool, now_ns: u64) -> bool {
    // Another CPU may have written both times after this one had read its clock.
    let answers = (peer.heard_ns != 0) & (now_ns.saturating_sub(peer.heard_ns) <= PRESENT_NS);
    let is_recent = now_ns.saturating_sub(previous.since_ns) < LIFE_NS;
    answers & peer.is_host() & (from != peer.link) & (!has_cookie | is_recent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const SINCE: u64 = 50 * SECOND;
    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PREVIOUS: Previous = Previous { epoch: 7, since_ns: SINCE, node: 3, closed_ns: 0 };

    fn from(link: [u8; 6]) -> u64 {
        Peer::new(0, link).link
    }

    #[test]
    fn what_belongs_to_no_connection_goes_on_while_the_previous_owner_answers() {
        for age in [0, 1, SECOND / 10, PRESENT_NS, PRESENT_NS + 1, 3_600 * SECOND] {
            for since in [0, 1, SECOND, LIFE_NS - 1, LIFE_NS, LIFE_NS + 1, 7 * LIFE_NS] {
                for has_cookie in [false, true] {
                    let now = SINCE + since + 3_600 * SECOND;
                    let previous = Previous { since_ns: now - since, ..PREVIOUS };
                    let wanted = age <= PRESENT_NS && (!has_cookie || since < LIFE_NS);
                    let passes =
                        passes(&previous, &Peer::new(now - age, LINK), from(CLIENT), has_cookie, now);
                    assert_eq!(passes, wanted, "silent for {age} ns, moved {since} ns ago, {has_cookie}");
                }
            }
        }
    }

    #[test]
    fn nothing_goes_on_to_a_node_that_was_never_there_also_soon_after_the_machines_start() {
        assert!(!passes(&PREVIOUS, &Peer::new(0, LINK), from(CLIENT), false, PRESENT_NS / 2));
        assert!(passes(&PREVIOUS, &Peer::new(1, LINK), from(CLIENT), false, PRESENT_NS / 2));
    }

    #[test]
    fn times_that_another_cpu_wrote_a_moment_later_count_as_now() {
        let previous = Previous { since_ns: SINCE + 5, ..PREVIOUS };
        assert!(passes(&previous, &Peer::new(SINCE + 5, LINK), from(CLIENT), true, SINCE));
    }

    #[test]
    fn for_a_while_also_what_belongs_to_an_address_goes_on_that_is_announced_no_more() {
        let at = |closed_ns, now| is_passing(&Previous { closed_ns, ..PREVIOUS }, false, false, now);
        let closed = 60 * SECOND;
        assert!(at(closed, closed) && at(closed, closed + CLOSED_NS - 1));
        assert!(at(closed + 5, closed), "another CPU wrote it after this one had read its clock");
        assert!(!at(closed, closed + CLOSED_NS) && !at(closed, closed + 3_600 * SECOND));
        assert!(!at(0, 1) && !at(0, closed), "another node announces it, and did before");
        for closed_ns in [0, closed] {
            let previous = Previous { closed_ns, ..PREVIOUS };
            assert!(is_passing(&previous, true, false, closed + 3_600 * SECOND));
            assert!(is_passing(&previous, true, true, closed) && !is_passing(&previous, false, true, closed));
        }
    }

    #[test]
    fn nothing_goes_back_to_where_it_came_from() {
        let now = SINCE + SECOND;
        assert!(!passes(&PREVIOUS, &Peer::new(now, LINK), from(LINK), false, now));
        for at in 0..6 {
            let mut other = LINK;
            other[at] ^= 2;
            assert!(passes(&PREVIOUS, &Peer::new(now, LINK), from(other), false, now), "{other:x?}");
        }
    }

    #[test]
    fn nothing_is_sent_to_a_group_or_to_no_address() {
        let now = SINCE + SECOND;
        for link in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
            assert!(!passes(&PREVIOUS, &Peer::new(now, link), from(CLIENT), false, now), "{link:x?}");
        }
        assert!(passes(&PREVIOUS, &Peer::new(now, [0, 0, 0, 0, 0, 1]), from(CLIENT), false, now));
    }
}
