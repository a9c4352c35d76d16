//! A node's table of bids, cut into frames and put together again. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use common::wire::heartbeat::ENTRIES_MAX;

use super::ownership::NodeId;

/// The most frames of a table: 65,536 addresses, on devices whose frames have room for one.
const PARTS: u32 = 65_536;
/// The most senders whose unfinished tables are kept.
const SENDERS: usize = 64;

/// A bid for an address, with its epoch.
pub(super) type Bid = (IpAddr, u64);

/// Returns the parts of a table with at most this many bids, each with its number and the number of all; an empty table has one.
pub(super) fn cut(bids: &[Bid], entries: usize) -> impl Iterator<Item = (u32, u32, &[Bid])> {
    let parts = bids.len().div_ceil(entries).max(1);
    (0..parts).map(move |part| {
        let bids = &bids[part * entries..bids.len().min((part + 1) * entries)];
        (part as u32, parts as u32, bids)
    })
}

/// A part of a table, as it was received.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Who sent it, and by which boot.
    pub sender: NodeId,
    pub boot: u64,
    /// The table's version.
    pub version: u64,
    /// The part's number, and how many there are.
    pub number: u32,
    pub of: u32,
    /// Its bids.
    pub bids: Vec<Bid>,
}

/// The parts of tables that are not whole yet, by sender.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    tables: BTreeMap<NodeId, Unfinished>,
}

#[derive(Debug)]
struct Unfinished {
    boot: u64,
    version: u64,
    of: u32,
    parts: BTreeMap<u32, Vec<Bid>>,
}

impl Assembly {
    /// Takes a part. Returns the table once all its parts are there. Only the newest table of a sender is put together.
    pub(super) fn take(&mut self, part: Part) -> Option<Vec<Bid>> {
        let Part { sender, boot, version, number, of, bids } = part;
        if of > PARTS || number >= of || bids.len() > ENTRIES_MAX {
            return None;
        }
        // A node that is gone leaves its last one unfinished. The others send theirs again.
        if !self.tables.contains_key(&sender) && self.tables.len() >= SENDERS {
            self.tables.clear();
        }
        let fresh = || Unfinished { boot, version, of, parts: BTreeMap::new() };
        let table = self.tables.entry(sender).or_insert_with(fresh);
        if (table.boot, table.version, table.of) != (boot, version, of) {
            if table.boot == boot && table.version > version {
                return None;
            }
            *table = fresh();
        }
        table.parts.insert(number, bids);
        if table.parts.len() < of as usize {
            return None;
        }
        let table = self.tables.remove(&sender)?;
        Some(table.parts.into_values().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bids(count: u16) -> Vec<Bid> {
        (0..count)
            .map(|number| (IpAddr::from([10, 0, (number >> 8) as u8, number as u8]), number.into()))
            .collect()
    }

    fn parts(sender: NodeId, version: u64, bids: &[Bid]) -> Vec<Part> {
        let part = |(number, of, bids): (u32, u32, &[Bid])| Part {
            sender,
            boot: 9,
            version,
            number,
            of,
            bids: bids.to_vec(),
        };
        cut(bids, ENTRIES_MAX).map(part).collect()
    }

    #[test]
    fn a_table_is_whole_once_all_its_parts_came_in_any_order() {
        for count in [0, 1, 40, 41, 1_000] {
            let mut this = Assembly::default();
            let mut all = parts(1, 5, &bids(count));
            assert_eq!(all.len(), usize::from(count).div_ceil(40).max(1));
            all.reverse();
            let (last, others) = all.split_last().unwrap();
            for part in others {
                assert_eq!(this.take(part.clone()), None);
                assert_eq!(this.take(part.clone()), None, "twice");
            }
            assert_eq!(this.take(last.clone()), Some(bids(count)));
            assert!(this.tables.is_empty());
        }
    }

    #[test]
    fn parts_of_two_tables_are_never_put_together() {
        let mut this = Assembly::default();
        let (old, new) = (parts(1, 5, &bids(41)), parts(1, 6, &bids(80)));
        assert_eq!(this.take(old[0].clone()), None);
        assert_eq!(this.take(new[1].clone()), None);
        assert_eq!(this.take(old[1].clone()), None, "an older table");
        assert_eq!(this.take(parts(2, 6, &bids(80))[0].clone()), None, "another sender's");
        let other_boot = Part { boot: 8, version: 1, ..new[0].clone() };
        assert_eq!(this.take(other_boot), None, "a boot begins its own numbers");
        assert_eq!(this.take(new[1].clone()), None);
        assert_eq!(this.take(new[0].clone()), Some(bids(80)));
    }

    #[test]
    fn what_no_sender_of_ours_sends_is_not_kept() {
        let mut this = Assembly::default();
        let part = Part { sender: 1, boot: 9, version: 1, number: 0, of: 2, bids: bids(1) };
        for wrong in [
            Part { of: PARTS + 1, ..part.clone() },
            Part { number: 2, ..part.clone() },
            Part { of: 0, ..part.clone() },
            Part { bids: bids(41), ..part.clone() },
        ] {
            assert_eq!(this.take(wrong), None);
        }
        assert!(this.tables.is_empty());
        (0..100).for_each(|sender| assert_eq!(this.take(Part { sender, ..part.clone() }), None));
        assert!((1..=SENDERS).contains(&this.tables.len()));
        let last = Part { sender: 99, number: 1, ..part };
        assert_eq!(this.take(last), Some([bids(1), bids(1)].concat()));
    }
}
