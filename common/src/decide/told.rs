//! Which clients share a bound on the IPv6 errors "too big" that reach backends.

use super::maglev::mix;
use crate::maps::address::Address;
use crate::maps::settings::CookieKey;
use crate::maps::told::TOLD_GROUPS;

/// Returns the group of a client, by its source (IPv6 /64). Only who has the key knows who else is in it.
#[inline(always)]
pub const fn group(client: &Address, key: &CookieKey) -> u32 {
    let (high, low) = client.source_prefix().halves();
    (mix(mix(key.k0 ^ high) ^ key.k1 ^ low) >> 32) as u32 % TOLD_GROUPS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(net: u32, host: u16) -> Address {
        let [a, b, c, d] = net.to_be_bytes();
        let segments = [0x2001, 0xdb8, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), 0, 0, 0, host];
        Address::from(std::net::IpAddr::from(segments))
    }

    #[test]
    fn a_source_is_in_one_group_and_sources_are_spread_over_all() {
        let key = CookieKey { k0: 1, k1: 2 };
        assert_eq!(group(&client(5, 1), &key), group(&client(5, 2), &key));
        let mut sizes = [0; TOLD_GROUPS as usize];
        for net in 0..12_800 {
            sizes[group(&client(net, 1), &key) as usize] += 1;
        }
        assert!(sizes.iter().all(|size| (50..150).contains(size)), "{sizes:?}");
    }

    /// By a public hash, anybody could choose an address in a victim's group.
    #[test]
    fn who_shares_a_group_depends_on_the_key() {
        let [one, other] = [CookieKey { k0: 1, k1: 2 }, CookieKey { k0: 1 << 60, k1: 2 }];
        let victim = client(0, 1);
        let with_victim = |key, net: &u32| group(&client(*net, 1), key) == group(&victim, key);
        let found: Vec<u32> = (1..12_800).filter(|net| with_victim(&one, net)).collect();
        let again = found.iter().filter(|net| with_victim(&other, net)).count();
        assert!(found.len() > 50 && again < 10, "{again} of {}", found.len());
    }
}
