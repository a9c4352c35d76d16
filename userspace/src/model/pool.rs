//! Pools of addresses: what they hold, and whom they admit.

use super::labels::{LabelSelector, Labels};
use super::object::Meta;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// First and last address, both included, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    /// First address.
    pub first: IpAddr,
    /// Last address, not before the first.
    pub last: IpAddr,
}

/// Ranges, of which there may be thousands of a single address.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    alone: HashSet<IpAddr>,
    others: Vec<AddressRange>,
}

impl Extend<AddressRange> for Ranges {
    fn extend<I: IntoIterator<Item = AddressRange>>(&mut self, ranges: I) {
        for range in ranges {
            match range.is_single() {
                true => _ = self.alone.insert(range.first),
                false => self.others.push(range),
            }
        }
    }
}

impl FromIterator<AddressRange> for Ranges {
    fn from_iter<I: IntoIterator<Item = AddressRange>>(ranges: I) -> Self {
        let mut this = Self::default();
        this.extend(ranges);
        this
    }
}

impl Ranges {
    /// Whether one of them holds the address.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.alone.contains(&address) || self.others.iter().any(|range| range.holds(address))
    }

    /// Returns those of one address, in no order.
    pub fn alone(&self) -> impl Iterator<Item = IpAddr> {
        self.alone.iter().copied()
    }
}

/// Why two addresses are no range, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRange {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
}

impl AddressRange {
    /// Returns the range from `first` to `last`, if clients can dial every address of it.
    pub fn new(first: IpAddr, last: IpAddr) -> Result<Self, InvalidRange> {
        let invalid = |what: &str, remedy| Err(InvalidRange { what: what.to_owned(), remedy });
        if first.is_ipv4() != last.is_ipv4() {
            return invalid("has two families", "write both ends in one family; make two ranges of it");
        }
        if first > last {
            return invalid("ends before it begins", "write the lower address first");
        }
        let range = Self { first, last };
        let strange = STRANGE.iter().find(|(block, _)| range.overlaps(&Self::of(block)));
        match strange {
            Some((block, what)) => {
                let what = format!("holds {what} addresses ({block})");
                Err(InvalidRange { what, remedy: "write only addresses that clients can dial" })
            }
            None => Ok(range),
        }
    }

    fn of(block: &IpNet) -> Self {
        Self { first: block.network(), last: block.broadcast() }
    }

    /// Whether it is of one address.
    pub fn is_single(&self) -> bool {
        self.first == self.last
    }

    /// Whether it holds the address.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.first <= address && address <= self.last
    }

    /// Whether both hold an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.holds(other.first) || other.holds(self.first)
    }
}

/// Addresses that no client can dial.
const STRANGE: [(IpNet, &str); 9] = [
    (v4([0, 0, 0, 0], 8), "unspecified"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
    (v6([0, 0, 0, 0, 0, 0], 96), "unspecified and loopback"),
    (v6([0, 0, 0, 0, 0, 0xffff], 96), "mapped IPv4"),
    (v6([0xfe80, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xff00, 0, 0, 0, 0, 0], 8), "multicast"),
];

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
}

const fn v6([a, b, c, d, e, f]: [u16; 6], prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, 0, 0), prefix))
}

/// Which pools of MetalLB are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolPolicy {
    /// Those of these namespaces; empty: none.
    pub namespaces: Vec<Arc<str>>,
}

impl PoolPolicy {
    /// Whether any is read.
    pub fn is_on(&self) -> bool {
        !self.namespaces.is_empty()
    }
}

/// Why nothing is taken from MetalLB's pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolsClosed {
    /// What is known of MetalLB.
    pub why: Arc<str>,
    /// The same without what changes all the time, for Services that wait for it: there may be thousands. Empty: not known yet.
    pub brief: Arc<str>,
    /// Whether it is there, or may have been there less than a minute ago; otherwise, it is only not known yet since when it is away.
    pub may_run: bool,
    /// Whether a Pod of it was seen within the last minute.
    pub was_seen: bool,
}

/// An IPAddressPool of MetalLB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpec {
    /// Name and age.
    pub meta: Meta,
    /// Its labels, by which L2Advertisements select pools.
    pub labels: Labels,
    /// `spec.addresses`, as far as readable, in order.
    pub ranges: Vec<AddressRange>,
    /// `spec.autoAssign`: whether objects that do not ask for it get addresses of it.
    pub is_automatic: bool,
    /// `spec.avoidBuggyIPs`: nobody gets an IPv4 address that ends in 0 or 255.
    pub leaves_out_ends: bool,
    /// `spec.serviceAllocation.priority`: the lowest first; what is 0 or not written there is the greatest number.
    pub priority: u32,
    /// `spec.serviceAllocation`: whom it admits.
    pub scope: PoolScope,
    /// Annotation `vestibule.dev/share-across-namespaces`: whether Services of several namespaces may share an address of it by a
    /// key, and not only those of one.
    pub shares_across_namespaces: bool,
}

/// Whom a pool admits: everybody, where all are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolScope {
    /// Objects of these namespaces.
    pub namespaces: Vec<Arc<str>>,
    /// Objects of namespaces with these labels.
    pub namespace_selectors: Vec<LabelSelector>,
    /// Of those, objects with these labels.
    pub object_selectors: Vec<LabelSelector>,
}

impl PoolScope {
    /// Whether it admits some only.
    pub fn is_bound(&self) -> bool {
        self.is_bound_to_namespaces() || !self.object_selectors.is_empty()
    }

    fn is_bound_to_namespaces(&self) -> bool {
        !self.namespaces.is_empty() || !self.namespace_selectors.is_empty()
    }

    /// Whether it admits an object with these labels, of a namespace with those.
    pub fn admits(&self, namespace: &str, of_namespace: Option<&Labels>, labels: &Labels) -> bool {
        let is_named = || self.namespaces.iter().any(|name| **name == *namespace);
        let is_selected = || {
            let matches = |selector: &LabelSelector| of_namespace.is_some_and(|own| selector.matches(own));
            self.namespace_selectors.iter().any(matches)
        };
        (!self.is_bound_to_namespaces() || is_named() || is_selected())
            && (self.object_selectors.is_empty()
                || self.object_selectors.iter().any(|selector| selector.matches(labels)))
    }
}

/// What an object says of where its addresses come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolWish {
    /// Name of the pool that it asks for.
    pub pool: Option<Arc<str>>,
    /// Its labels, which pools may select by.
    pub labels: Arc<Labels>,
}
