//! TCP sequence numbers: arithmetic modulo 2^32 (RFC 9293 section 3.4).

/// Whether `a` is before `b`.
#[inline(always)]
pub const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Whether `a` is before `b` or equal to it.
#[inline(always)]
pub const fn before_or_at(a: u32, b: u32) -> bool {
    !before(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        assert!(before(u32::MAX, 0));
        assert!(before(u32::MAX - 10, 10));
        assert!(!before(10, u32::MAX - 10));
        assert!(before_or_at(7, 7));
    }
}
