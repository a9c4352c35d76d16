//! How many ICMPv6 errors about segments to clients were passed to backends, within a second.

use super::word::word;

map_struct! {
    /// How many IPv6 errors "too big" about segments to clients were passed to backends in a second, for four groups of
    /// clients. The first one about each flow is in no count.
    pub struct Told = 8 {
        /// Monotonic clock, seconds.
        pub second: u32,
        /// Eight bits for each group.
        pub errors: u32,
    }
}

/// The most of them in a second, for each group.
pub const TOLD_MAX: u32 = 25;

/// Counts of four groups each.
pub const TOLD_WORDS: usize = 32;
const GROUPS_PER_WORD: u32 = 4;

/// Groups of clients: [`crate::decide::told::group`].
pub const TOLD_GROUPS: u32 = TOLD_WORDS as u32 * GROUPS_PER_WORD;

// There is one, which belongs to no connection.
word!(Told, |_, _| true);

impl Told {
    /// Returns the word that counts for this group.
    #[inline(always)]
    pub const fn word(group: u32) -> usize {
        (group / GROUPS_PER_WORD) as usize & (TOLD_WORDS - 1)
    }

    #[inline(always)]
    const fn shift(group: u32) -> u32 {
        group % GROUPS_PER_WORD * 8
    }

    /// Returns the number of errors of this group in this second.
    #[inline(always)]
    const fn count(self, second: u32, group: u32) -> u32 {
        if self.second == second { self.errors >> Self::shift(group) & 255 } else { 0 }
    }

    /// Whether one more of this group may be passed in this second.
    #[inline(always)]
    pub const fn has_room(self, second: u32, group: u32) -> bool {
        self.count(second, group) < TOLD_MAX
    }

    /// Returns the word after one more of this group, if there is room for it.
    #[inline(always)]
    pub const fn raised(self, second: u32, group: u32) -> Self {
        if !self.has_room(second, group) {
            return self;
        }
        let errors = if self.second == second { self.errors } else { 0 };
        Self { second, errors: errors + (1 << Self::shift(group)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_of_clients_has_its_own_errors_in_each_second() {
        let mut told = Told { second: 6, errors: u32::MAX };
        for _ in 0..TOLD_MAX {
            assert!(told.has_room(7, 3));
            told = told.raised(7, 3);
        }
        assert!(!told.has_room(7, 3));
        assert_eq!(told.raised(7, 3), told);
        assert_eq!(told, Told { second: 7, errors: TOLD_MAX << 24 });
        for group in 0..3 {
            assert!(told.has_room(7, group) && told.raised(7, group).errors != told.errors);
        }
        assert!(told.has_room(8, 3));
        assert_eq!([0, 3, 4, TOLD_GROUPS - 1].map(Told::word), [0, 0, 1, TOLD_WORDS - 1]);
    }
}
