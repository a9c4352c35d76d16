//! Segments on which several nodes may announce addresses: what a node is there, and whether another one lives.

use super::settings::CookieKey;

map_struct! {
    /// Value of `SEGMENTS`: what the programs need to answer heartbeats on a device, and whether they may still answer for addresses there.
    /// Numbers are in host byte order, times of CLOCK_MONOTONIC in nanoseconds.
    pub struct Segment = 80 {
        /// The keys of heartbeats. The all-zero key verifies nothing.
        pub keys: [CookieKey; 2],
        /// Id of the node.
        pub node: u64,
        /// A random number, drawn when the entry is made. It outlives the agent.
        pub boot: u64,
        /// Digest of the node's table of bids.
        pub digest: u64,
        /// When the agent last said that it lives.
        pub stamp_ns: u64,
        /// How old the stamp may be before the node leaves its addresses to others; 0 = any age.
        pub grace_ns: u64,
        /// Link address of the device.
        pub link: [u8; 6],
        /// The key that signs: 0 or 1.
        pub key: u8,
        /// Zero.
        pub reserved: u8,
    }
}

map_struct! {
    /// Value of `BIDS`: an address that the node announces on a segment, or did before its agent ended.
    pub struct Bid = 8 {
        /// Counts the owners of the address: a higher epoch wins.
        pub epoch: u64,
    }
}

map_struct! {
    /// Value of `OWNED`: since when the node has announced an address on a segment, and why it took it. For people: nothing is decided by it.
    pub struct Owned = 16 {
        /// Milliseconds of Unix time.
        pub since_ms: u64,
        /// A code of the daemon's; 0: not known.
        pub why: u8,
        /// Zero.
        pub reserved: [u8; 7],
    }
}

/// Value of `HEARD`: a time as in [`Segment`].
pub type HeardNs = u64;

/// How long another node counts as present after its last heartbeat.
pub const PRESENT_NS: u64 = 1_000_000_000;

/// A node that is there this long after a gate closed may have taken what is behind it: less than the second that it waits.
pub const TAKEN_NS: u64 = 400_000_000;

/// [`Segment::is_silent`] of an agent that last stamped at `stamp_ns`.
#[inline(always)]
pub const fn is_silent(stamp_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(stamp_ns) > PRESENT_NS / 2
}

/// What decides whether a node still answers for its addresses on a segment; part of [`Segment`].
#[repr(C)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable,
)]
pub struct Gate {
    /// [`Segment::stamp_ns`].
    pub stamp_ns: u64,
    /// [`Segment::grace_ns`].
    pub grace_ns: u64,
}

impl Gate {
    /// The gate of a device without a [`Segment`]: always open.
    pub const NONE: Self = Self { stamp_ns: 0, grace_ns: 0 };

    /// Whether the agent may be so long dead that another node announces the addresses.
    #[inline(always)]
    pub const fn is_overdue(&self, now_ns: u64) -> bool {
        self.grace_ns != 0 && now_ns.saturating_sub(self.stamp_ns) > self.grace_ns
    }

    /// Whether the node must be silent about its addresses: its agent is overdue, and another node was there at the time `present_ns` (0 =
    /// never), which is not long ago, or was so late that the other one may have taken the addresses: then it has them, whether
    /// its own agent lives or not. A node that is alone goes on answering.
    #[inline(always)]
    pub const fn is_closed(&self, present_ns: HeardNs, now_ns: u64) -> bool {
        let is_there = present_ns != 0 && now_ns.saturating_sub(present_ns) <= PRESENT_NS;
        let was_there = present_ns > self.stamp_ns.saturating_add(self.grace_ns).saturating_add(TAKEN_NS);
        self.is_overdue(now_ns) && (is_there || was_there)
    }
}

impl Segment {
    /// Whether the agent says nothing any more: so nobody asks for this node, and no answer shows that another one receives what is sent to
    /// it. It is known well before the last answer is too old.
    #[inline(always)]
    pub const fn is_silent(&self, now_ns: u64) -> bool {
        is_silent(self.stamp_ns, now_ns)
    }

    /// Returns the part that [`Gate`] is.
    #[inline(always)]
    pub const fn gate(&self) -> Gate {
        Gate { stamp_ns: self.stamp_ns, grace_ns: self.grace_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_gate_closes_when_the_stamp_is_old_and_another_node_is_there() {
        let gate = Gate { stamp_ns: 10 * SECOND, grace_ns: 15 * SECOND };
        let late = 25 * SECOND + 1;
        assert!(gate.is_closed(late, late) && gate.is_closed(late - SECOND, late));
        assert!(!gate.is_closed(late - SECOND - 1, late), "the other node was there too long ago");
        assert!(!gate.is_closed(0, late), "no other node was ever there");
        assert!(
            !Gate { stamp_ns: 0, grace_ns: 1 }.is_closed(0, SECOND),
            "nor soon after the machine's start"
        );
        assert!(!gate.is_closed(late, 25 * SECOND), "the stamp is not older than it may be");
        assert!(!Gate { grace_ns: 0, ..gate }.is_closed(late, late), "without grace there is no gate");
        assert!(!Gate::NONE.is_closed(late, late));
        // It was there when it could take the addresses, and is silent now: it answers for them.
        let taken = 25 * SECOND + TAKEN_NS;
        assert!(gate.is_closed(taken + 1, 3_600 * SECOND) && !gate.is_closed(taken, 3_600 * SECOND));
        assert!(
            !Gate { stamp_ns: 3_599 * SECOND, ..gate }.is_closed(taken + 1, 3_600 * SECOND),
            "the agent is back"
        );
        // Another CPU wrote both after this one had read its clock.
        assert!(!Gate { stamp_ns: late + 5, ..gate }.is_closed(late + 5, late));
        assert!(gate.is_closed(late + 5, late));
    }

    #[test]
    fn an_agent_is_silent_before_the_last_answer_to_it_is_too_old() {
        let segment = |stamp_ns| Segment { stamp_ns, ..zerocopy::FromZeros::new_zeroed() };
        let now = 10 * SECOND;
        let ages = [0, SECOND / 2, SECOND / 2 + 1, SECOND].map(|age| segment(now - age).is_silent(now));
        assert_eq!(ages, [false, false, true, true]);
        assert!(!segment(now + 5).is_silent(now), "another CPU wrote it after this one had read its clock");
    }
}
