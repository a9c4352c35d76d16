//! Whether a TCP listener passes a SYN on, or answers it by a cookie and dials the backend at the client's ACK.
//!
//! A SYN that is passed on has a record, a source port and a record at the backend until its client answers, so a flood of
//! forged SYNs could take them from honest clients. A cookie costs nothing until the client has proved its address.

use super::admit;

/// Of all slots for half-open connections, this share is left to SYNs that are passed on.
const SHARE_OF_ALL: u32 = 2;
/// The same for one listener.
const SHARE_OF_LISTENER: u32 = 16;

/// The half-open connections that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Of all listeners, as stored.
    pub all: u32,
    /// Of the listener in question, as stored.
    pub listener: u32,
}

/// Whether SYNs of the listener are answered by cookies: half of all `slots` are taken, or a sixteenth by the listener.
#[inline(always)]
pub const fn answers_by_cookie(taken: Taken, slots: u32) -> bool {
    let (all, listener) = (admit::count(taken.all), admit::count(taken.listener));
    reaches(all, slots, SHARE_OF_ALL) || reaches(listener, slots, SHARE_OF_LISTENER)
}

/// Whether `taken` is at least `slots` / `share`, rounded up.
#[inline(always)]
const fn reaches(taken: u32, slots: u32, share: u32) -> bool {
    taken as u64 * share as u64 >= slots as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_all_places_or_a_sixteenth_by_one_listener() {
        let by_cookie = |all, listener| answers_by_cookie(Taken { all, listener }, 14_488);
        assert!(!by_cookie(0, 0));
        assert!(!by_cookie(7_243, 905));
        assert!(by_cookie(7_244, 0));
        assert!(by_cookie(906, 906));
        // The sixteenth of 14,488 is 905.5.
        assert!(!by_cookie(905, 905));
    }

    #[test]
    fn the_numbers_neither_wrap_nor_go_below_zero() {
        assert!(answers_by_cookie(Taken { all: i32::MAX as u32, listener: 0 }, u32::MAX - 1));
        // Counted down before it was counted up, for a moment.
        assert!(!answers_by_cookie(Taken { all: u32::MAX, listener: u32::MAX }, 16));
        assert!(answers_by_cookie(Taken { all: 0, listener: 0 }, 0), "no slots: always");
    }
}
