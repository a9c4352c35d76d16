//! Policies: which clients a listener or a route admits.

use super::address::Address;

/// Id of a policy that has no range, ever: it admits nobody.
pub const POLICY_NOBODY: u16 = u16::MAX;

/// [`PolicyKey::family`] of ranges of IPv4 addresses. Without it, `::/0` would hold them, too.
pub const FAMILY_V4: u8 = 4;
/// [`PolicyKey::family`] of ranges of IPv6 addresses.
pub const FAMILY_V6: u8 = 6;

/// The most ranges of all policies together: entries of `POLICIES`.
pub const RANGES_MAX: usize = 1_048_576;

/// Bits of a [`PolicyKey`] before its address.
const BITS_BEFORE: u32 = 32;

map_struct! {
    /// Key of `POLICIES` (an LPM trie): a range of addresses that a policy admits. The trie finds the longest range of a
    /// client's address; that there is one is all that matters.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct PolicyKey = 24 {
        /// Number of bits of what follows to compare; host byte order.
        pub prefix_bits: u32,
        /// Policy id, network byte order.
        pub policy: [u8; 2],
        /// [`FAMILY_V4`] or [`FAMILY_V6`].
        pub family: u8,
        /// Zero.
        pub reserved: u8,
        /// The network; its bits behind the prefix are zero.
        pub address: Address,
    }
}

impl PolicyKey {
    /// Returns the key that a client's address is looked up by.
    #[inline(always)]
    pub const fn of_client(policy: u16, client: &Address) -> Self {
        let family = if client.is_v4() { FAMILY_V4 } else { FAMILY_V6 };
        Self::of_range(policy, family, *client, 128)
    }

    /// Returns the key of a range: the addresses of a family that share the first `bits` bits of the stored form. An IPv4 prefix
    /// of `n` bits has 96 + `n` of them.
    #[inline(always)]
    pub const fn of_range(policy: u16, family: u8, network: Address, bits: u32) -> Self {
        Self {
            prefix_bits: BITS_BEFORE + bits,
            policy: policy.to_be_bytes(),
            family,
            reserved: 0,
            address: network,
        }
    }

    /// Returns the policy's id.
    pub const fn id(&self) -> u16 {
        u16::from_be_bytes(self.policy)
    }

    /// Returns how many bits of the address are compared.
    pub const fn address_bits(&self) -> u32 {
        self.prefix_bits.saturating_sub(BITS_BEFORE)
    }

    /// Whether the range of this key holds the address in `other`, of the same policy.
    pub fn holds(&self, other: &Self) -> bool {
        let bits = self.address_bits().min(128);
        let number = |address: &Address| u128::from_be_bytes(address.bytes);
        let differing = number(&self.address) ^ number(&other.address);
        (self.policy, self.family) == (other.policy, other.family)
            && differing.checked_shr(128 - bits).unwrap_or_default() == 0
    }
}

map_struct! {
    /// Value of `POLICIES`.
    pub struct PolicyRange = 4 {
        /// [`ADMIT`].
        pub action: u32,
    }
}

/// [`PolicyRange::action`]: clients of the range are admitted.
pub const ADMIT: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;

    fn key(policy: u16, network: &str, bits: u32) -> PolicyKey {
        let network: IpAddr = network.parse().unwrap();
        let (family, bits) = if network.is_ipv4() { (FAMILY_V4, 96 + bits) } else { (FAMILY_V6, bits) };
        PolicyKey::of_range(policy, family, network.into(), bits)
    }

    #[test]
    fn a_range_holds_addresses_of_its_own_family_and_policy() {
        let holds = |policy, network, bits, client: &str| {
            let client: IpAddr = client.parse().unwrap();
            key(policy, network, bits).holds(&PolicyKey::of_client(7, &client.into()))
        };
        assert!(holds(7, "192.0.2.64", 26, "192.0.2.127") && !holds(7, "192.0.2.64", 26, "192.0.2.128"));
        assert!(holds(7, "0.0.0.0", 0, "203.0.113.1") && holds(7, "::", 0, "2001:db8::1"));
        assert!(!holds(7, "0.0.0.0", 0, "2001:db8::1") && !holds(7, "::", 0, "203.0.113.1"));
        assert!(holds(7, "2001:db8::1", 128, "2001:db8::1") && !holds(7, "2001:db8::1", 128, "2001:db8::2"));
        assert!(!holds(7, "::ffff:0:0", 96, "203.0.113.1"), "a range of another family");
        assert!(!holds(8, "192.0.2.64", 26, "192.0.2.127"), "another policy");
    }
}
