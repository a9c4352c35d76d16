//! What was removed, until nothing has it any more: ids of listeners and of policies, addresses of backends.

use std::collections::{BTreeMap, BTreeSet};

/// What is not to be given out, or forgotten, yet.
#[derive(Debug)]
pub(super) struct Resting<T = u32> {
    /// The number of removals that are not completed, by id. After the maps were read again, an id may be removed once more.
    removals: BTreeMap<T, u32>,
}

impl<T> Default for Resting<T> {
    fn default() -> Self {
        Self { removals: BTreeMap::new() }
    }
}

impl<T: Copy + Ord> Resting<T> {
    /// Whether no removal is awaited.
    pub(super) fn is_empty(&self) -> bool {
        self.removals.is_empty()
    }

    /// These are being removed.
    pub(super) fn begin(&mut self, ids: &BTreeSet<T>) {
        for id in ids {
            *self.removals.entry(*id).or_default() += 1;
        }
    }

    /// A removal of these listeners is completed. Returns those that may be given out again.
    pub(super) fn end(&mut self, ids: BTreeSet<T>) -> Vec<T> {
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
        let mut resting = Resting::<u32>::default();
        resting.begin(&BTreeSet::from([1, 2]));
        resting.begin(&BTreeSet::from([2, 3]));
        assert_eq!(resting.end(BTreeSet::from([1, 2])), [1]);
        assert_eq!(resting.end(BTreeSet::from([2, 3])), [2, 3]);
        assert_eq!(resting.end(BTreeSet::from([2, 3])), [0; 0], "they are free already");
    }
}
