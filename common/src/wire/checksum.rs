//! Internet checksum arithmetic (RFC 1071, RFC 1624).

/// Folds a sum of 16-bit words to 16 bits.
#[inline(always)]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// Returns the checksum of a 20-byte IPv4 header whose checksum field is zero, in host byte order
/// (`to_be_bytes` gives the bytes of the header).
#[inline(always)]
pub const fn ipv4_header(header: &[u8; 20]) -> u16 {
    let mut sum = 0u32;
    let mut i = 0;
    while i < 20 {
        sum += u16::from_be_bytes([header[i], header[i + 1]]) as u32;
        i += 2;
    }
    !fold(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_style_headers() {
        // 45 00 00 73 00 00 40 00 40 11 -- -- c0 a8 00 01 c0 a8 00 c7 -> b8 61
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(ipv4_header(&header), 0xb861);
    }
}
