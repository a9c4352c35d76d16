//! Whether a segment of a connection that this node does not know goes on to the node that announced the address before: it may be open
//! there.

use super::cookie::LIFE_NS;
use crate::maps::previous::{Peer, Previous, UNATTENDED_NS};
use crate::maps::segment::{PRESENT_NS, is_silent};

/// How long a node passes on what belongs to an address that it announces no more: until clients know the new owner's link address.
pub const CLOSED_NS: u64 = 10_000_000_000;

/// The hops that a packet has at most which a node passes on that has left its address. Where three nodes had the address one after the
/// other within [`CLOSED_NS`], and the first has it again, what none of them knows goes round: so often at most.
pub const CLOSED_HOPS: u8 = 16;

/// Whether this node passes on what belongs to an address, which it announces (`is_here`) or another node. After it left the address, it
/// opens itself what has a full cookie (`has_cookie`): what a node before it opened then would be out of reach some seconds later.
#[inline(always)]
pub const fn is_passing(previous: &Previous, is_here: bool, has_cookie: bool, now_ns: u64) -> bool {
    let is_leaving = (previous.closed_ns != 0) & (now_ns.saturating_sub(previous.closed_ns) < CLOSED_NS);
    is_here | (is_leaving & !has_cookie)
}

/// Whether a packet goes on to the previous owner of its address, which has no connection here. It came `from` this link address, packed as
/// the owner's; what has a full cookie (`has_cookie`) may start a connection, or be the repetition of one that did so there. The agent of this
/// node last stamped at `stamp_ns`.
///
/// Without an agent here, nobody asks whether the previous owner is there. Then one that was there when the agent stamped last counts as
/// there: what is open at it needs no agent. It opens nothing then: only while its agent is known to be alive, and has been since the
/// move, are its routes of today.
///
/// What comes from the previous owner itself never goes back to it. So no packet goes round and round between two nodes each of which
/// announces the address, or of which one does not know the address at all. Without branches, for the kernel's verifier.
#[inline(always)]
pub const fn passes(
    previous: &Previous,
    peer: &Peer,
    from: u64,
    has_cookie: bool,
    stamp_ns: u64,
    now_ns: u64,
) -> bool {
    let is_recent = now_ns.saturating_sub(previous.since_ns) < LIFE_NS;
    let may_open = answers(peer, now_ns) & peer.is_attended() & is_recent;
    is_there(peer, stamp_ns, now_ns) & (from != peer.link) & (!has_cookie | may_open)
}

/// Whether the previous owner counts as there: it answers, or did so when the agent of this node stamped last, at `stamp_ns`, and is asked by
/// none since then.
#[inline(always)]
pub const fn is_there(peer: &Peer, stamp_ns: u64, now_ns: u64) -> bool {
    let was_there = peer.last_ns() != 0;
    let is_unknown = is_silent(stamp_ns, now_ns) & (peer.last_ns() + PRESENT_NS >= stamp_ns);
    was_there & (answers(peer, now_ns) | is_unknown) & peer.is_host()
}

#[inline(always)]
const fn answers(peer: &Peer, now_ns: u64) -> bool {
    // Another CPU may have written all times after this one had read its clock.
    now_ns.saturating_sub(peer.last_ns()) <= PRESENT_NS
}

/// Whether a node opens nothing new at an address that another one announces (`is_elsewhere`), or may have taken, for its own gate is closed
/// (`is_gated`): its agent, which last stamped at `stamp_ns`, is dead, so its routes may be of yesterday. The client repeats what it sent, and
/// it arrives where the address is.
#[inline(always)]
pub const fn opens_nothing(is_elsewhere: bool, is_gated: bool, stamp_ns: u64, now_ns: u64) -> bool {
    is_gated | (is_elsewhere & (now_ns.saturating_sub(stamp_ns) > UNATTENDED_NS))
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
        Peer::new(0, false, link).link
    }

    /// The previous owner, with its agent.
    fn peer(heard_ns: u64, link: [u8; 6]) -> Peer {
        Peer::new(heard_ns, true, link)
    }

    /// While the agent of this node lives.
    fn passes(previous: &Previous, peer: &Peer, from: u64, has_cookie: bool, now_ns: u64) -> bool {
        super::passes(previous, peer, from, has_cookie, now_ns, now_ns)
    }

    #[test]
    fn what_belongs_to_no_connection_goes_on_while_the_previous_owner_answers() {
        for age in [0, 2, SECOND / 10, PRESENT_NS, PRESENT_NS + 2, 3_600 * SECOND] {
            for since in [0, 1, SECOND, LIFE_NS - 1, LIFE_NS, LIFE_NS + 1, 7 * LIFE_NS] {
                for has_cookie in [false, true] {
                    let now = SINCE + 7 * LIFE_NS + 3_600 * SECOND;
                    let previous = Previous { since_ns: now - since, ..PREVIOUS };
                    let wanted = age <= PRESENT_NS && (!has_cookie || since < LIFE_NS);
                    let passes = |peer| passes(&previous, &peer, from(CLIENT), has_cookie, now);
                    let what = format!("silent for {age} ns, moved {since} ns ago, {has_cookie}");
                    assert_eq!(passes(peer(now - age, LINK)), wanted, "{what}");
                    let unattended = Peer::new(now - age, false, LINK);
                    assert_eq!(passes(unattended), wanted && !has_cookie, "its agent is dead, {what}");
                }
            }
        }
    }

    #[test]
    fn nothing_goes_on_to_a_node_that_was_never_there_also_soon_after_the_machines_start() {
        assert!(!passes(&PREVIOUS, &peer(0, LINK), from(CLIENT), false, PRESENT_NS / 2));
        assert!(passes(&PREVIOUS, &peer(2, LINK), from(CLIENT), false, PRESENT_NS / 2));
    }

    #[test]
    fn times_that_another_cpu_wrote_a_moment_later_count_as_now() {
        let previous = Previous { since_ns: SINCE + 5, ..PREVIOUS };
        assert!(passes(&previous, &peer(SINCE + 5, LINK), from(CLIENT), true, SINCE));
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

    /// What is open at it needs the agent of neither node.
    #[test]
    fn who_was_there_when_the_agent_here_died_counts_as_there_until_one_asks_again() {
        let previous = Previous { since_ns: 100 * SECOND, ..PREVIOUS };
        let passes = |heard, has_cookie, stamp, now| {
            super::passes(&previous, &peer(heard, LINK), from(CLIENT), has_cookie, stamp, now)
        };
        let (stamp, later) = (100 * SECOND, 3_700 * SECOND);
        assert!(passes(stamp, false, stamp, later) && passes(stamp + SECOND, false, stamp, later));
        assert!(passes(stamp - PRESENT_NS, false, stamp, later));
        assert!(!passes(stamp - PRESENT_NS - 2, false, stamp, later), "it was silent before");
        assert!(!passes(0, false, stamp, later) && !passes(0, false, 0, SECOND / 2), "it was never there");
        assert!(!passes(stamp, false, later - SECOND / 4, later), "an agent asks, and nobody answers");
        let soon = stamp + PRESENT_NS;
        assert!(passes(stamp, true, stamp, soon) && !passes(stamp, true, stamp, soon + 2), "it may be dead");
    }

    #[test]
    fn a_node_without_an_agent_opens_nothing_at_anothers_address() {
        let now = 100 * SECOND;
        for (age, is_dead) in [(0, false), (UNATTENDED_NS, false), (UNATTENDED_NS + 1, true), (now, true)] {
            assert_eq!(opens_nothing(true, false, now - age, now), is_dead, "{age}");
            assert!(!opens_nothing(false, false, now - age, now), "it is its own");
            assert!(opens_nothing(false, true, now - age, now), "another one may have taken it");
        }
        assert!(!opens_nothing(true, false, now + 5, now), "stamped after this CPU had read its clock");
    }

    #[test]
    fn nothing_goes_back_to_where_it_came_from() {
        let now = SINCE + SECOND;
        assert!(!passes(&PREVIOUS, &peer(now, LINK), from(LINK), false, now));
        for at in 0..6 {
            let mut other = LINK;
            other[at] ^= 2;
            assert!(passes(&PREVIOUS, &peer(now, LINK), from(other), false, now), "{other:x?}");
        }
    }

    #[test]
    fn nothing_is_sent_to_a_group_or_to_no_address() {
        let now = SINCE + SECOND;
        for link in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
            assert!(!passes(&PREVIOUS, &peer(now, link), from(CLIENT), false, now), "{link:x?}");
        }
        assert!(passes(&PREVIOUS, &peer(now, [0, 0, 0, 0, 0, 1]), from(CLIENT), false, now));
    }
}
