//! Addresses in their only stored form, and TCP ports.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv6 address, or an IPv4 address as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2). Network byte order.
#[repr(C, align(4))]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    zerocopy::IntoBytes,
    zerocopy::FromBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
pub struct Address {
    /// Network byte order.
    pub bytes: [u8; 16],
}
crate::maps::map_type!(Address = 16);

impl Address {
    /// Returns the mapped form of an IPv4 address.
    #[inline(always)]
    pub const fn v4(o: [u8; 4]) -> Self {
        Self { bytes: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, o[0], o[1], o[2], o[3]] }
    }

    /// Returns an IPv6 address.
    #[inline(always)]
    pub const fn v6(bytes: [u8; 16]) -> Self {
        Self { bytes }
    }

    /// Whether this is the mapped form of an IPv4 address.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        let b = &self.bytes;
        (b[0] | b[1] | b[2] | b[3] | b[4] | b[5] | b[6] | b[7] | b[8] | b[9]) == 0 && (b[10] & b[11]) == 0xff
    }

    /// Returns the last four bytes as a word, in memory order.
    #[inline(always)]
    pub const fn low_word(&self) -> u32 {
        let b = &self.bytes;
        u32::from_ne_bytes([b[12], b[13], b[14], b[15]])
    }

    /// Returns both halves as numbers, for hashes.
    #[inline(always)]
    pub const fn halves(&self) -> (u64, u64) {
        let b = &self.bytes;
        (
            u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            u64::from_le_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
        )
    }

    /// Returns what limits count as one source: the address itself for IPv4, its /64 for IPv6.
    #[inline(always)]
    pub const fn source_prefix(&self) -> Self {
        let mut prefix = *self;
        if !self.is_v4() {
            let mut i = 8;
            while i < 16 {
                prefix.bytes[i] = 0;
                i += 1;
            }
        }
        prefix
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self::v4(v4.octets()),
            IpAddr::V6(v6) => Self::v6(v6.octets()),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        let b = address.bytes;
        if address.is_v4() {
            IpAddr::V4(Ipv4Addr::new(b[12], b[13], b[14], b[15]))
        } else {
            IpAddr::V6(Ipv6Addr::from(b))
        }
    }
}

/// A TCP port in network byte order.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    zerocopy::IntoBytes,
    zerocopy::FromBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
pub struct Port {
    /// Network byte order.
    pub bytes: [u8; 2],
}
crate::maps::map_type!(Port = 2);

impl Port {
    /// Converts from a number in host byte order.
    #[inline(always)]
    pub const fn new(port: u16) -> Self {
        Self { bytes: port.to_be_bytes() }
    }

    /// Returns the port as a number in host byte order.
    #[inline(always)]
    pub const fn number(self) -> u16 {
        u16::from_be_bytes(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["192.0.2.7", "0.0.0.0", "2001:db8::1", "::", "fe80::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(IpAddr::from(Address::from(ip)), ip);
            assert_eq!(Address::from(ip).is_v4(), ip.is_ipv4());
        }
    }

    #[test]
    fn a_source_is_a_host_or_a_64() {
        let v4 = Address::from("192.0.2.7".parse::<IpAddr>().unwrap());
        assert_eq!(v4.source_prefix(), v4);
        let v6 = Address::from("2001:db8:1:2:3:4:5:6".parse::<IpAddr>().unwrap());
        assert_eq!(IpAddr::from(v6.source_prefix()), "2001:db8:1:2::".parse::<IpAddr>().unwrap());
    }
}
