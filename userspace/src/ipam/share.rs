//! Services of one namespace that share an address by a key of MetalLB, each with ports of its own.

use foldhash::HashMap;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What an object that may share its addresses says of it.
#[derive(Default)]
pub(super) struct Share<'a> {
    /// Shared with those that say the same; `None`: with nobody who does not ask for the address by value.
    pub(super) key: Option<&'a str>,
    /// Protocol and number of each port.
    pub(super) ports: BTreeSet<(&'a str, u16)>,
}

/// Who answers at each address that is assigned.
#[derive(Default)]
pub(super) struct Shares<'a> {
    at: HashMap<IpAddr, Tenancy<'a>>,
    /// Addresses by namespace and key.
    keyed: HashMap<(&'a str, &'a str), BTreeSet<IpAddr>>,
}

/// All objects with an address. The first of them says with whom it is shared.
struct Tenancy<'a> {
    namespace: &'a str,
    key: Option<&'a str>,
    ports: BTreeSet<(&'a str, u16)>,
}

impl<'a> Shares<'a> {
    /// An object has an address.
    pub(super) fn note(&mut self, namespace: &'a str, share: &Share<'a>, address: IpAddr) {
        let key = share.key;
        let tenancy = self.at.entry(address).or_insert_with(|| {
            if let Some(key) = key {
                self.keyed.entry((namespace, key)).or_default().insert(address);
            }
            Tenancy { namespace, key, ports: BTreeSet::new() }
        });
        tenancy.ports.extend(&share.ports);
    }

    /// Whether an object may have an address that others have: they say the same key, and have other ports.
    pub(super) fn admit(&self, namespace: &str, share: &Share<'_>, address: IpAddr) -> bool {
        self.at.get(&address).is_some_and(|tenancy| {
            tenancy.key.is_some()
                && tenancy.key == share.key
                && *tenancy.namespace == *namespace
                && tenancy.ports.is_disjoint(&share.ports)
        })
    }

    /// Returns the first address of a family that others have and that it may have, too.
    pub(super) fn find(
        &self,
        namespace: &str,
        share: &Share<'_>,
        is_v4: bool,
        is_of_its_pools: impl Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        let addresses = self.keyed.get(&(namespace, share.key?))?;
        let fits = |address: &IpAddr| {
            address.is_ipv4() == is_v4 && self.admit(namespace, share, *address) && is_of_its_pools(*address)
        };
        addresses.iter().copied().find(fits)
    }
}
