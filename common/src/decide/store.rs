//! Why an element of a hash map was not stored, or not removed.

/// What the kernel's error means for the packet in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstored {
    /// The map is full, or there is no memory: the same again when the packet comes again.
    Full,
    /// Another CPU stored such an element, or was changing the map. What it stored may be gone by now, so a look-up that
    /// misses does not mean that there is no room.
    Busy,
}

/// "Argument list too long": the map has as many elements as it may have.
const E2BIG: i32 = 7;
const ENOMEM: i32 = 12;
const ENOENT: i32 = 2;

/// Reads an error of the helper `bpf_map_update_elem`, which is negative.
#[inline(always)]
#[must_use]
pub const fn unstored(error: i32) -> Unstored {
    match error.wrapping_neg() {
        E2BIG | ENOMEM => Unstored::Full,
        _ => Unstored::Busy,
    }
}

/// Whether the helper `bpf_map_delete_elem` found no such element. Any other error leaves it in the map: since Linux 6.15 the
/// lock of its bucket is not waited for without end, and a host may stop the processor that has it.
#[inline(always)]
#[must_use]
pub const fn is_missing(error: i32) -> bool {
    error.wrapping_neg() == ENOENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_room_is_a_reason_to_refuse() {
        for error in [E2BIG, ENOMEM] {
            assert_eq!(unstored(-error), Unstored::Full);
        }
        // EEXIST, EBUSY, EDEADLK, ETIMEDOUT, and what kernels to come may say.
        for error in [17, 16, 35, 110, 1, i32::MIN] {
            assert_eq!(unstored(error.wrapping_neg()), Unstored::Busy);
        }
    }

    #[test]
    fn an_element_that_could_not_be_removed_is_still_there() {
        assert!(is_missing(-ENOENT));
        // EBUSY, EDEADLK, ETIMEDOUT.
        assert!(![16, 35, 110, 0, i32::MIN].into_iter().any(|error: i32| is_missing(error.wrapping_neg())));
    }
}
