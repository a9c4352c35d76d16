//! Services that share an address by a key of MetalLB, each with ports of its own: of one namespace, or of several where the address
//! is of a pool that says so.

use foldhash::HashMap;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What an object that may share its addresses says of it.
#[derive(Clone, Default)]
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
    /// Addresses by namespace and key; by key alone, where several namespaces may share them.
    keyed: HashMap<(Option<&'a str>, &'a str), BTreeSet<IpAddr>>,
}

/// All objects with an address. The first of them says with whom it is shared.
struct Tenancy<'a> {
    /// That of the first.
    namespace: &'a str,
    /// Whether others may share it.
    crosses: bool,
    /// Whether others do.
    is_crossed: bool,
    key: Option<&'a str>,
    ports: BTreeSet<(&'a str, u16)>,
}

impl Share<'_> {
    /// Whether both may have an address: they say the same key, and have other ports.
    pub(super) fn fits(&self, other: &Share<'_>) -> bool {
        self.key.is_some() && self.key == other.key && self.ports.is_disjoint(&other.ports)
    }
}

impl<'a> Shares<'a> {
    /// An object has an address. `crosses`: whether objects of other namespaces may share it.
    pub(super) fn note(&mut self, namespace: &'a str, share: &Share<'a>, address: IpAddr, crosses: bool) {
        let key = share.key;
        let tenancy = self.at.entry(address).or_insert_with(|| {
            if let Some(key) = key {
                self.keyed.entry(((!crosses).then_some(namespace), key)).or_default().insert(address);
            }
            Tenancy { namespace, crosses, is_crossed: false, key, ports: BTreeSet::new() }
        });
        if tenancy.crosses && tenancy.key != share.key {
            // One that has it by value, in the namespace of another, has not agreed to share it with further namespaces.
            tenancy.key = None;
        }
        tenancy.is_crossed |= tenancy.namespace != namespace;
        tenancy.ports.extend(&share.ports);
    }

    /// Whether objects of several namespaces have an address.
    pub(super) fn is_crossed(&self, address: IpAddr) -> bool {
        self.at.get(&address).is_some_and(|tenancy| tenancy.is_crossed)
    }

    /// Whether anybody has an address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.at.contains_key(&address)
    }

    /// Whether an object may have an address that others have: they say the same key, and have other ports.
    pub(super) fn admit(&self, namespace: &str, share: &Share<'_>, address: IpAddr) -> bool {
        self.at.get(&address).is_some_and(|tenancy| {
            tenancy.key.is_some()
                && tenancy.key == share.key
                && (tenancy.crosses || *tenancy.namespace == *namespace)
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
        let key = share.key?;
        let keyed = [Some(namespace), None].into_iter().filter_map(|of| self.keyed.get(&(of, key)));
        let fits = |address: &IpAddr| {
            address.is_ipv4() == is_v4 && self.admit(namespace, share, *address) && is_of_its_pools(*address)
        };
        keyed.flatten().copied().filter(fits).min()
    }
}
