//! Which of two generations of connections was given out first.

/// Connections that may begin while all are looked at.
const MEANWHILE: u32 = 1 << 20;

/// Whether a generation, which wraps, was given out before `since`, where `now` is the one that is given out next. `None`: not known,
/// and so it is.
pub(super) fn is_older(generation: u32, since: u32, now: Option<u32>) -> bool {
    let newest = now.map(|now| now.wrapping_sub(since).saturating_add(MEANWHILE));
    newest.is_none_or(|newest| generation.wrapping_sub(since) >= newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An audit ended connections to backends that a reload right after the start had added.
    #[test]
    fn what_came_after_the_census_is_not_judged_by_it() {
        let is_old = |generation: u32, since: u32| is_older(generation, since, Some(since.wrapping_add(10)));
        assert!(is_old(1, 2) && is_old(u32::MAX, 1) && is_old(0x8000_0001, 1));
        assert!(!is_old(2, 2) && !is_old(3, 2) && !is_old(1, u32::MAX));
        // While the walk goes on, more begin.
        assert!(!is_old(1_000_000, 2));
        assert!(is_older(3, 2, None), "without knowing what came later, all are judged");
    }

    /// At 5,000 connections a second, half of all generations are given out in five days.
    #[test]
    fn a_connection_is_old_after_half_of_all_generations_too() {
        assert!(
            is_older(7, 0xc000_0000, Some(0xc000_0010))
                && is_older(0xbfff_ffff, 0xc000_0000, Some(0xc000_0010))
        );
    }
}
