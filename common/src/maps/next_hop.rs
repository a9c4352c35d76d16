//! Next hops, shared by flows: a flow keeps the number of its hop for each direction ([`super::word::Hops`]).
//!
//! A packet that looks up its next hop in the FIB looks for an element with the same content, confirms that it is in
//! use, and gives its flow the number. An element that nobody confirmed for a minute may be taken for other content.
//! No lock is needed: each word of the content has the version of the content, so a reader sees whether all words are
//! of one content, and the head says when it was confirmed last. A flow believes a number only in the unit of time in
//! which both its own look-up and the last confirmation happened, so what it finds is what it looked up.

use super::word::word;

map_struct! {
    /// The first word of a [`Hop`], exchanged in one piece.
    pub struct HopHead = 8 {
        /// When a look-up found the hop last, in [`age`]'s units of time.
        pub confirmed: u32,
        /// Version of the content; 0: there is none yet.
        pub version: u16,
        /// Zero.
        pub reserved: u16,
    }
}

word!(HopHead, |word, generation| word.version == generation as u16);

map_struct! {
    /// Element of `HOPS`.
    pub struct Hop = 40 {
        pub head: HopHead,
        /// [`Way::parts`]. Several CPUs may read and write them at the same time, each in one piece.
        pub parts: [u64; 4],
    }
}

/// The link address of both ends of the pair by which clients on the node itself come and are answered: each takes what is sent
/// from it for its own. Locally administered (IEEE 802), and of the pair alone.
pub const NODE_LINK: [u8; 6] = [0x02, b'V', b'S', b'T', b'N', b'0'];

/// [`NODE_LINK`] in the form of [`link`].
pub const NODE_LINK_WORD: u64 = {
    let [a, b, c, d, e, f] = NODE_LINK;
    link(u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]))
};

/// Elements of `HOPS`. Their index is the number of the hop; number 0 means none.
pub const HOPS: u32 = 4096;
/// Elements in which the same content may be.
pub const SLOTS: u32 = 4;
/// Units of time (about a minute) after which an element that nobody confirmed may be taken.
pub const UNUSED: u32 = 512;

/// Length of a unit of time: 2^27 ns. What was found in one unit is looked up again in the next.
const AGE_SHIFT: u64 = 27;

/// Returns the monotonic clock in units of 134 ms.
#[inline(always)]
pub const fn age(now_ns: u64) -> u32 {
    (now_ns >> AGE_SHIFT) as u32
}

impl HopHead {
    /// Whether the element may be taken for other content.
    #[inline(always)]
    pub const fn is_free(self, age: u32) -> bool {
        self.version == 0 || age.wrapping_sub(self.confirmed) as i32 > UNUSED as i32
    }

    /// Returns the head of the content that comes after this one.
    #[inline(always)]
    pub const fn next(self, age: u32) -> Self {
        let version = if self.version == u16::MAX { 1 } else { self.version + 1 };
        Self { confirmed: age, version, reserved: 0 }
    }
}

/// The result of a look-up in the FIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Link address of the receiver, in the lower 48 bits, the first byte lowest in memory.
    pub to: u64,
    /// The same of the sender.
    pub from: u64,
    /// The device that the packet leaves on.
    pub egress: u32,
    /// The device that the packet came in on.
    pub ingress: u32,
    /// The largest IP packet that fits, in bytes.
    pub mtu: u16,
    /// [`mark`] of the next hop's address: two next hops may have one link address, and one of them another one soon.
    pub mark: u16,
}

/// Returns 16 bits of the address of a next hop: its family as the kernel numbers it, and four words in memory order, of which IPv4
/// uses the first. Two next hops with one link address and one mark are one hop: then a packet to either of them has the kernel ask
/// for the neighbour.
#[inline(always)]
pub const fn mark(family: u8, words: [u32; 4]) -> u16 {
    // As in [`Way::slot`], word by word.
    const MIX: u32 = 0x9e37_79b1;
    let [a, b, c, d] = words;
    let mixed = a.wrapping_mul(MIX) ^ b;
    let mixed = mixed.wrapping_mul(MIX) ^ c;
    let mixed = mixed.wrapping_mul(MIX) ^ d;
    let mixed = mixed.wrapping_mul(MIX) ^ family as u32;
    (mixed.wrapping_mul(MIX) >> 16) as u16
}

/// Bits of a part below its version.
const PART: u64 = (1 << 48) - 1;

/// Packs six bytes in memory order: four and two.
#[inline(always)]
pub const fn link(head: u32, tail: u16) -> u64 {
    head as u64 | (tail as u64) << 32
}

impl Way {
    /// Returns the content as it is stored, without versions.
    #[inline(always)]
    pub const fn parts(&self) -> [u64; 4] {
        let out = self.egress as u64 | (self.mtu as u64) << 32;
        [self.to, self.from, out, self.ingress as u64 | (self.mark as u64) << 32]
    }

    /// Returns the slot at which a search for this content begins.
    #[inline(always)]
    pub const fn slot(&self) -> u32 {
        let [a, b, c, d] = self.parts();
        let mixed = a ^ b.rotate_left(17) ^ c.rotate_left(31) ^ d.rotate_left(43);
        // Multiplying by the golden ratio (Knuth, TAOCP 6.4) spreads addresses that differ in their last bytes; once more,
        // with the upper half mixed in, those that differ in regular steps.
        let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as u32
    }
}

/// Returns a part as it is stored.
#[inline(always)]
pub const fn stored(part: u64, version: u16) -> u64 {
    part | (version as u64) << 48
}

/// Returns the content of a part as it was read; `None`: it is not of this version.
#[inline(always)]
pub const fn content(stored: u64, version: u16) -> Option<u64> {
    if stored >> 48 == version as u64 { Some(stored & PART) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::word::{Hops, Towards};

    const TOWARDS: [Towards; 2] = [Towards::Client, Towards::Backend];

    #[test]
    fn a_flow_believes_a_number_only_in_the_unit_in_which_it_was_looked_up() {
        for age in [0u32, 1, 0xffff, 0x1_0000, 0xff_ffff, 0x100_0000, u32::MAX] {
            for (towards, other) in [(TOWARDS[0], TOWARDS[1]), (TOWARDS[1], TOWARDS[0])] {
                let noted = Hops { generation: 9, ..Hops::zeroed() }.noted(age, towards, 4095);
                assert_eq!((noted.number(age, towards), noted.number(age, other)), (4095, 0));
                assert_eq!(noted.generation, 9);
                for later in [1, 2, 0x1_0000, 0xff_0000] {
                    assert_eq!(noted.number(age.wrapping_add(later), towards), 0, "{age} + {later}");
                }
                let both = noted.noted(age, other, 1);
                assert_eq!((both.number(age, towards), both.number(age, other)), (4095, 1));
                // A look-up of a later unit leaves nothing of the one before.
                let next = age.wrapping_add(1);
                let later = both.noted(next, other, 2);
                assert_eq!((later.number(next, towards), later.number(next, other)), (0, 2));
                assert_eq!(both.noted(age, towards, 0).number(age, towards), 0);
            }
        }
    }

    #[test]
    fn an_element_is_free_a_minute_after_its_last_use() {
        let head = HopHead { confirmed: 1_000, version: 1, reserved: 0 };
        assert!(HopHead::zeroed().is_free(0));
        assert!(!head.is_free(1_000 + UNUSED) && head.is_free(1_001 + UNUSED));
        // The clock of a CPU that was stopped.
        assert!(!head.is_free(1) && !HopHead { confirmed: 5, ..head }.is_free(u32::MAX));
        assert_eq!(HopHead { version: u16::MAX, ..head }.next(7).version, 1, "0 means none");
    }

    #[test]
    fn content_is_read_whole_or_not_at_all() {
        let way = Way {
            to: link(0x0403_0201, 0x0605),
            from: PART,
            egress: u32::MAX,
            ingress: 7,
            mtu: 9_000,
            mark: 5,
        };
        for part in way.parts() {
            assert_eq!(content(stored(part, 3), 3), Some(part));
            assert_eq!(content(stored(part, 3), 4), None);
        }
        assert!(way.slot() < HOPS);
    }

    #[test]
    fn next_hops_of_one_link_address_have_their_own_marks() {
        let v4 = |host: u32| mark(2, [0x0000_000a | host << 24, 0, 0, 0]);
        // fe80::/64, whose last words differ.
        let v6 = |host: u32| mark(10, [0x0000_80fe, 0, 0xff02_0000, host.to_be()]);
        for of in [&v4 as &dyn Fn(u32) -> u16, &v6] {
            let mut marks: Vec<u16> = (0..256).map(of).collect();
            marks.sort_unstable();
            marks.dedup();
            assert!(marks.len() > 250, "{}", marks.len());
        }
        assert_ne!(mark(2, [7, 0, 0, 0]), mark(10, [7, 0, 0, 0]), "a family is part of it");
        let way = |mark| Way { to: 1, from: 2, egress: 3, ingress: 4, mtu: 1_500, mark };
        assert_ne!(way(1).parts(), way(2).parts());
        assert_eq!(way(u16::MAX).parts()[3] as u32, 4, "the device is read alone");
    }

    #[test]
    fn neighbours_spread_over_the_table() {
        let mut slots: Vec<u32> = (0..1_000u32)
            .map(|host| {
                let to = link(0x0000_0002 | host << 24, (host >> 8) as u16);
                Way { to, from: link(0x0100_0002, 0x0203), egress: 3, ingress: 2, mtu: 1_500, mark: 0 }.slot()
            })
            .collect();
        slots.sort_unstable();
        slots.dedup();
        assert!(slots.len() > 800, "{}", slots.len());
    }
}
