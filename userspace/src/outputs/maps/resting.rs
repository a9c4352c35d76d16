//! Ids of what was removed, until nothing has them any more: of listeners and of policies.

use std::collections::{BTreeMap, BTreeSet};

/// Ids that are not to be given out yet.
#[derive(Debug, Default)]
pub(super) struct Resting {
    /// The number of removals that are not completed, by id. After the maps were read again, an id may be removed once more.
    removals: BTreeMap<u32, u32>,
}

impl Resting {
    /// Whether no removal is awaited.
    pub(super) fn is_empty(&self) -> bool {
        self.removals.is_empty()
    }

    /// These are being removed.
    pub(super) fn begin(&mut self, ids: &BTreeSet<u32>) {
        for id in ids {
            *self.removals.entry(*id).or_default() += 1;
        }
    }

    /// A removal of these listeners is completed. Returns those that may be given out again.
    pub(super) fn end(&mut self, ids: BTreeSet<u32>) -> Vec<u32> {
        let mut free = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(removals) = self.removals.get_mut(&id) else { continue };
            *removals -= 1;
            if *removals == 0 {
                self.removals.remove(&id);
                free.push(id);
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A removal that is repeated ends connections of whatever has the id by then.
    #[test]
    fn an_id_that_is_removed_twice_rests_until_both_removals_are_completed() {
        let mut resting = Resting::default();
        resting.begin(&BTreeSet::from([1, 2]));
        resting.begin(&BTreeSet::from([2, 3]));
        assert_eq!(resting.end(BTreeSet::from([1, 2])), [1]);
        assert_eq!(resting.end(BTreeSet::from([2, 3])), [2, 3]);
        assert_eq!(resting.end(BTreeSet::from([2, 3])), [0; 0], "they are free already");
    }
}
