//! Builds Maglev tables (Eisenbud et al., "Maglev", NSDI 2016, section 3.4) with weights.
//!
//! A member's preference for slots depends only on its address and port, so every node builds the same table.
//! Removing a member moves few slots besides its own.

use common::decide::maglev::mix;
use common::maps::address::{Address, Port};

/// Sizes of tables: primes, each just below a whole number of pages.
const SLOTS: [u32; 18] = [
    127, 251, 383, 509, 761, 1021, 1531, 2039, 3067, 4093, 6143, 8191, 12_281, 16_381, 24_571, 32_749,
    49_139, 65_521,
];

/// Slots for each part of the smallest weight. Shares are exact to one slot. More slots would only cost time
/// and memory: most routes have two or three backends, whose table is then a single page.
const SLOTS_PER_SHARE: u64 = 60;

/// A backend that takes new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its address.
    pub address: Address,
    /// Its port.
    pub port: Port,
    /// Its share relative to the others'; not 0.
    pub weight: u16,
}

/// Returns the number of slots of the table over members with these weights: 0 for none, 1 for one, else a
/// prime of at least 60 slots for the smallest member, 65,521 at most.
pub fn slots(weights: impl Iterator<Item = u16> + Clone) -> u32 {
    let members = weights.clone().count();
    let sum: u64 = weights.clone().map(u64::from).sum();
    let smallest = u64::from(weights.min().unwrap_or(1)).max(1);
    match members {
        0 => 0,
        1 => 1,
        _ => {
            let wanted = (SLOTS_PER_SHARE * sum).div_ceil(smallest);
            SLOTS.into_iter().find(|slots| u64::from(*slots) >= wanted).unwrap_or(SLOTS[SLOTS.len() - 1])
        }
    }
}

/// Returns the member of each slot. `slots` is the result of [`slots`]; there are at most 255 members.
///
/// Members take turns. In each turn a member takes its next preferred free slot if its weight entitles it to
/// one, so slots are distributed evenly over the whole table. Every member gets at least one.
pub fn table(members: &[Member], slots: u32) -> Vec<u8> {
    const FREE: u8 = u8::MAX;
    let mut table = vec![FREE; slots as usize];
    if members.len() < 2 {
        table.fill(0);
        return table;
    }
    let mut turns: Vec<Turn> = members.iter().map(|member| Turn::new(member, slots)).collect();
    let heaviest = members.iter().map(|member| u64::from(member.weight)).max().unwrap_or(1);
    let mut left = slots;
    let mut round: u64 = 1;
    loop {
        for (index, (turn, member)) in turns.iter_mut().zip(members).enumerate() {
            if round * u64::from(member.weight) < turn.due {
                continue;
            }
            turn.due += heaviest;
            while table[turn.slot as usize] != FREE {
                turn.advance(slots);
            }
            table[turn.slot as usize] = index as u8;
            left -= 1;
            if left == 0 {
                return table;
            }
        }
        round += 1;
    }
}

/// A member's position in its own order of slots.
struct Turn {
    slot: u32,
    skip: u32,
    /// `round * weight` at which it may take its next slot.
    due: u64,
}

impl Turn {
    fn new(member: &Member, slots: u32) -> Self {
        let b = &member.address.bytes;
        let high = u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        let low = u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]);
        let hash = mix(mix(mix(high ^ 0x6a09_e667_f3bc_c908) ^ low) ^ u64::from(member.port.number()));
        let slots_wide = u64::from(slots);
        // The number of slots is prime, so any step from 1 to slots - 1 visits each slot once.
        Self { slot: (hash % slots_wide) as u32, skip: (mix(hash) % (slots_wide - 1)) as u32 + 1, due: 0 }
    }

    fn advance(&mut self, slots: u32) {
        self.slot += self.skip;
        if self.slot >= slots {
            self.slot -= slots;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(last: u8, weight: u16) -> Member {
        Member { address: Address::v4([10, 0, 0, last]), port: Port::new(6443), weight }
    }

    fn built(members: &[Member]) -> Vec<u8> {
        table(members, slots(members.iter().map(|member| member.weight)))
    }

    fn count(table: &[u8], index: usize) -> usize {
        table.iter().filter(|slot| usize::from(**slot) == index).count()
    }

    #[test]
    fn sizes_are_primes_below_a_page_boundary() {
        for size in SLOTS {
            assert!((2..size).take_while(|d| d * d <= size).all(|d| size % d != 0), "{size}");
        }
        assert!(SLOTS.is_sorted());
        assert_eq!(slots([].into_iter()), 0);
        assert_eq!(slots([7].into_iter()), 1);
        assert_eq!(slots([1, 1].into_iter()), 127);
        assert_eq!(slots([3, 3, 3].into_iter()), 251);
        assert_eq!(slots([1, 100].into_iter()), 6143);
        assert_eq!(slots([1, 65_535].into_iter()), 65_521);
    }

    #[test]
    fn shares_follow_weights() {
        for weights in [&[1, 1][..], &[1, 2, 3], &[100, 1], &[5; 255], &[65_535, 1, 300], &[10, 20, 30, 40]] {
            let members: Vec<_> = weights.iter().zip(1..=255).map(|(w, last)| member(last, *w)).collect();
            let table = built(&members);
            let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            for (index, weight) in weights.iter().enumerate() {
                let expected = f64::from(*weight) / sum * table.len() as f64;
                let off = (count(&table, index) as f64 - expected).abs();
                assert!(
                    off <= (expected * 0.03).max(1.5),
                    "{weights:?}: member {index} is off by {off} slots"
                );
            }
        }
    }

    #[test]
    fn a_member_that_goes_moves_few_other_slots() {
        let members: Vec<_> = (1..=10).map(|last| member(last, 1)).collect();
        let before = table(&members, 1021);
        for gone in 0..members.len() {
            let mut rest = members.clone();
            rest.remove(gone);
            let after = table(&rest, 1021);
            let moved = before
                .iter()
                .zip(&after)
                .filter(|(old, new)| {
                    usize::from(**old) != gone && members[usize::from(**old)] != rest[usize::from(**new)]
                })
                .count();
            assert!(moved < 1021 / 20, "{moved} slots of others moved");
        }
    }

    #[test]
    fn every_node_builds_the_same_table() {
        let members = [member(1, 2), member(2, 1), member(9, 5)];
        let hash = built(&members).iter().fold(0, |hash, slot| mix(hash ^ u64::from(*slot)));
        // Changes only if the construction of tables changes: nodes of two versions would choose different
        // backends.
        assert_eq!(hash, 4_644_594_542_638_486_985);
    }

    #[test]
    fn extreme_weights_leave_everyone_a_slot() {
        let mut members: Vec<_> = (1..=254).map(|last| member(last, 65_535)).collect();
        members.push(member(255, 1));
        let table = built(&members);
        assert!((0..255).all(|index| count(&table, index) > 0));
    }
}
