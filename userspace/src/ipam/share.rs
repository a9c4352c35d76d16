//! Services that share an address by a key of MetalLB, each with ports of its own: of one namespace, or of several where the address
//! is of a pool that says so.

use super::pool::RangeIndex;
use foldhash::HashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What an object that may share its addresses says of it.
#[derive(Clone, Default)]
pub(super) struct Share<'a> {
    /// Shared with those that say the same; `None`: with nobody who does not ask for the address by value.
    pub(super) key: Option<Key<'a>>,
    pub(super) ports: BTreeSet<Port<'a>>,
}

/// The key as written, and of Services whose nodes take connections for their own pods only, the selector of these: MetalLB lets only
/// those share an address that have the same pods, for it is announced by the nodes of these.
pub(super) type Key<'a> = (&'a str, &'a str);

/// The most ports by which addresses are found: the rest of them is compared at each.
const DEPTH: usize = 4;
/// The most sets of addresses by several ports, of one realm: each may hold all of its addresses.
const SETS: usize = 64;

/// Protocol and number of a port.
type Port<'a> = (&'a str, u16);

/// Who answers at each address that is assigned.
#[derive(Default)]
pub(super) struct Shares<'a> {
    at: HashMap<IpAddr, Tenancy<'a>>,
    keyed: HashMap<Realm<'a>, Keyed<'a>>,
    /// Addresses that were looked at.
    #[cfg(test)]
    looks: usize,
}

/// Whose addresses those of one key may share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Realm<'a> {
    /// `None`: several namespaces may.
    namespace: Option<&'a str>,
    key: Key<'a>,
    range: RangeIndex,
    is_v4: bool,
}

/// The addresses of a realm.
#[derive(Default)]
struct Keyed<'a> {
    all: BTreeSet<IpAddr>,
    /// The same as they were assigned.
    in_turn: Vec<IpAddr>,
    /// At how many of them a port is taken.
    taken: HashMap<Port<'a>, usize>,
    /// By ports, in order.
    open: HashMap<Vec<Port<'a>>, Open>,
}

/// The addresses where all of some ports may be free: a port that is taken stays so.
#[derive(Default)]
struct Open {
    /// How many addresses were looked at, of those where all but the last of the ports may be free.
    seen: usize,
    all: BTreeSet<IpAddr>,
    /// The same, and those that are not any more, as they were looked at.
    in_turn: Vec<IpAddr>,
}

/// All objects with an address. The first of them says with whom it is shared.
struct Tenancy<'a> {
    /// That of the first.
    namespace: &'a str,
    /// Whether others may share it.
    crosses: bool,
    /// Whether others do.
    is_crossed: bool,
    key: Option<Key<'a>>,
    ports: BTreeSet<Port<'a>>,
    /// Where it is found by the key of the first.
    realms: Vec<Realm<'a>>,
}

impl Tenancy<'_> {
    fn admits(&self, namespace: &str, share: &Share<'_>) -> bool {
        self.key.is_some()
            && self.key == share.key
            && (self.crosses || *self.namespace == *namespace)
            && self.ports.is_disjoint(&share.ports)
    }
}

impl<'a> Keyed<'a> {
    /// Returns those of the ports that are taken at most of the addresses, if at many. Those taken about as often are in their own order,
    /// so that few sets of addresses serve all objects.
    fn often(&self, share: &Share<'a>) -> Vec<Port<'a>> {
        let times = |port: &Port<'_>| self.taken.get(port).copied().unwrap_or_default();
        let often = share.ports.iter().filter(|port| times(port).pow(2) > self.all.len());
        let mut often: Vec<Port<'a>> = often.copied().collect();
        often.sort_by_key(|port| (Reverse(times(port)), *port));
        often.truncate(DEPTH);
        often.sort_by_key(|port| (Reverse(times(port).checked_ilog2()), *port));
        often
    }

    /// Returns the addresses where the first of these ports may be free, and how many ports these are, at least one: all of them, or as
    /// many as show that there is no such address, or that there are sets for. `is_free`: whether they are. Each address is looked at
    /// once for the first of the ports, then those that are left once for the first two, and so on.
    fn open(
        &mut self,
        ports: &[Port<'a>],
        mut is_free: impl FnMut(&IpAddr, &[Port<'a>]) -> bool,
    ) -> (&mut BTreeSet<IpAddr>, usize) {
        let mut counted = 0;
        for count in 1..=ports.len() {
            let (some, before) = (&ports[..count], &ports[..count - 1]);
            let open = self.open.remove(some);
            if open.is_none() && count > 1 && self.open.len() >= SETS {
                break;
            }
            let mut open = open.unwrap_or_default();
            let candidates = self.open.get(before).map_or(&self.in_turn, |open| &open.in_turn);
            let new = candidates.get(open.seen..).unwrap_or_default();
            let free: Vec<IpAddr> = new.iter().copied().filter(|address| is_free(address, some)).collect();
            open.seen = candidates.len();
            open.all.extend(&free);
            open.in_turn.extend(free);
            let is_empty = open.all.is_empty();
            self.open.insert(some.to_vec(), open);
            counted = count;
            if is_empty {
                break;
            }
        }
        (&mut self.open.entry(ports[..counted].to_vec()).or_default().all, counted)
    }
}

impl Share<'_> {
    /// Whether both may have an address: they say the same key, and have other ports.
    pub(super) fn fits(&self, other: &Share<'_>) -> bool {
        self.key.is_some() && self.key == other.key && self.ports.is_disjoint(&other.ports)
    }
}

impl<'a> Shares<'a> {
    /// An object has an address, which is in these ranges. `crosses`: whether objects of other namespaces may share it.
    pub(super) fn note(
        &mut self,
        namespace: &'a str,
        share: &Share<'a>,
        (address, ranges): (IpAddr, impl Iterator<Item = RangeIndex>),
        crosses: bool,
    ) {
        let key = share.key;
        let tenancy = self.at.entry(address).or_insert_with(|| {
            let (namespace_only, is_v4) = ((!crosses).then_some(namespace), address.is_ipv4());
            let realm = |(range, key)| Realm { namespace: namespace_only, key, range, is_v4 };
            let realms: Vec<Realm<'a>> = ranges.filter_map(|range| Some(realm((range, key?)))).collect();
            for realm in &realms {
                let keyed = self.keyed.entry(*realm).or_default();
                keyed.all.insert(address);
                keyed.in_turn.push(address);
            }
            Tenancy { namespace, crosses, is_crossed: false, key, ports: BTreeSet::new(), realms }
        });
        if tenancy.crosses && tenancy.key != share.key {
            // One that has it by value, in the namespace of another, has not agreed to share it with further namespaces.
            tenancy.key = None;
        }
        tenancy.is_crossed |= tenancy.namespace != namespace;
        for port in &share.ports {
            if tenancy.ports.insert(*port) {
                for realm in &tenancy.realms {
                    *self.keyed.entry(*realm).or_default().taken.entry(*port).or_default() += 1;
                }
            }
        }
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
        self.at.get(&address).is_some_and(|tenancy| tenancy.admits(namespace, share))
    }

    /// Returns the first address of a family, in the first of these ranges that has one, that others have and that it may have, too.
    pub(super) fn find(
        &mut self,
        namespace: &'a str,
        share: &Share<'a>,
        is_v4: bool,
        mut ranges: impl Iterator<Item = RangeIndex>,
    ) -> Option<IpAddr> {
        let key = share.key?;
        ranges.find_map(|range| {
            let of = |namespace| Realm { namespace, key, range, is_v4 };
            let [own, others] =
                [Some(namespace), None].map(|whose| self.find_in(&of(whose), namespace, share));
            own.into_iter().chain(others).min()
        })
    }

    /// Of many addresses, those where ports that it shares with many are taken are passed over once for all objects with these: with one
    /// key and one port, each object would look at the addresses of all others.
    fn find_in(&mut self, realm: &Realm<'a>, namespace: &str, share: &Share<'a>) -> Option<IpAddr> {
        let (at, keyed) = (&self.at, self.keyed.get_mut(realm)?);
        let mut looks = 0;
        let mut is_free = |address: &IpAddr, ports: &[Port<'_>]| {
            looks += 1;
            let is_free = |tenancy: &Tenancy<'_>| !ports.iter().any(|port| tenancy.ports.contains(port));
            at.get(address).is_some_and(|tenancy| tenancy.key == share.key && is_free(tenancy))
        };
        let fits = |address: &IpAddr| at.get(address).is_some_and(|tenancy| tenancy.admits(namespace, share));
        let often = keyed.often(share);
        let found = match often.is_empty() {
            true => keyed.all.iter().copied().inspect(|_| looks += 1).find(fits),
            false => {
                let (open, count) = keyed.open(&often, &mut is_free);
                let mut taken = Vec::new();
                let found = open.iter().copied().find(|address| {
                    let is_free = is_free(address, &often[..count]);
                    if !is_free {
                        taken.push(*address);
                    }
                    is_free && fits(address)
                });
                for address in taken {
                    open.remove(&address);
                }
                found
            }
        };
        #[cfg(test)]
        {
            self.looks += looks;
        }
        #[cfg(not(test))]
        let _: usize = looks;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// The Services of a test: more than any cluster has of one key.
    const MANY: u32 = 10_000;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    fn ports(numbers: &[u32]) -> Share<'static> {
        Share { key: Some(("k", "")), ports: numbers.iter().map(|number| ("TCP", *number as u16)).collect() }
    }

    /// Gives each Service, of a pool and with these ports, an address that it shares or a new one. Returns the looks that took.
    fn looks(services: impl Iterator<Item = (usize, Share<'static>)>) -> (usize, usize) {
        let (mut shares, mut assigned) = (Shares::default(), 0);
        for (pool, share) in services {
            let address = shares.find("a", &share, true, [(pool, 0)].into_iter()).unwrap_or_else(|| {
                assigned += 1;
                address(assigned)
            });
            shares.note("a", &share, (address, [(pool, 0)].into_iter()), false);
        }
        assert!(shares.keyed.values().all(|keyed| sets(keyed) <= SETS));
        (shares.looks, assigned as usize)
    }

    /// How many sets of addresses there are by several ports.
    fn sets(keyed: &Keyed<'_>) -> usize {
        keyed.open.keys().filter(|ports| ports.len() > 1).count()
    }

    #[test]
    fn one_key_of_ten_thousand_services_costs_no_look_at_each_address_for_each() {
        let n = MANY as usize;
        // A look for each address, at most, and the root of their number for each Service.
        let most = 4 * n + 2 * n * n.isqrt();
        let all = |share: fn(u32) -> (usize, Share<'static>)| looks((0..MANY).map(share));
        let (same_port, addresses) = all(|_| (0, ports(&[443])));
        assert_eq!(addresses, n, "none can share");
        assert!(same_port <= 4 * n, "{same_port}");
        let (other_ports, addresses) = all(|nth| (0, ports(&[1_000 + nth])));
        assert_eq!(addresses, 1);
        assert!(other_ports <= 4 * n, "{other_ports}");
        let (one_of_two, addresses) = all(|nth| (0, ports(&[443, 1_000 + nth])));
        assert_eq!(addresses, n);
        assert!(one_of_two <= 4 * n, "{one_of_two}");
        let (pairs, addresses) = all(|nth| (0, ports(&[80 + nth % 2])));
        assert_eq!(addresses, n / 2, "two on each");
        assert!(pairs <= most, "{pairs}");
        // First many addresses, then many ports, of which each comes twice.
        let (twice, addresses) =
            all(|nth| (0, ports(&[if nth < MANY / 2 { 443 } else { 1_000 + nth % (MANY / 4) }])));
        assert_eq!(addresses, n / 2);
        assert!(twice <= most, "{twice}");
        // Any two of them have a port in common, and no port is at all of their addresses.
        let three = |nth: u32| [[80, 81], [81, 82], [80, 82]][(nth % 3) as usize];
        let (three_pairs, addresses) = looks((0..MANY).map(|nth| (0, ports(&three(nth)))));
        assert_eq!(addresses, n);
        assert!(three_pairs <= 6 * n, "{three_pairs}");
        let one_more = |nth| (0, ports(&[three(nth), [1_000 + nth; 2]].concat()));
        let (with_own_port, addresses) = looks((0..MANY).map(one_more));
        assert_eq!(addresses, n);
        assert!(with_own_port <= 6 * n, "{with_own_port}");
        // The port that all have in common is the last of more than are looked at.
        let four = |nth: u32| [1, 3, 7, 11].map(|step| 7_000 + (nth * step + nth / 200 + step) % 200);
        let five = |nth| (0, ports(&[&four(nth)[..], &[60_000]].concat()));
        let (last_in_common, addresses) = looks((0..MANY).map(five));
        assert_eq!(addresses, n);
        assert!(last_in_common <= 4 * n, "{last_in_common}");
        let (two_pools, addresses) =
            all(|nth| ((nth / (MANY / 2)) as usize, ports(&[80 + nth / (MANY / 2)])));
        assert_eq!(addresses, n);
        assert!(two_pools <= most, "{two_pools}");
    }

    /// Each set may hold all addresses.
    #[test]
    fn ports_in_many_combinations_make_few_sets_of_addresses() {
        let some =
            |nth: u32| (0..12).filter(move |bit| (nth * 2_654_435) >> (3 + bit) & 1 == 1).map(|bit| 80 + bit);
        let all = (0..1_500).map(|nth| ports(&some(nth).collect::<Vec<_>>()));
        let mut shares = Shares::default();
        let mut most = 0;
        for (share, new) in all.zip(1..) {
            let found = shares.find("a", &share, true, [(0, 0)].into_iter());
            let admits = |one: &IpAddr| shares.admit("a", &share, *one);
            assert_eq!(found, shares.at.keys().copied().filter(admits).min());
            shares.note("a", &share, (found.unwrap_or(address(new)), [(0, 0)].into_iter()), false);
            most = most.max(shares.keyed.values().map(sets).max().unwrap_or_default());
        }
        assert!((SETS / 2..=SETS).contains(&most), "{most}");
    }

    #[test]
    fn the_first_address_is_found_as_by_looking_at_all() {
        let mut state = 1_u64;
        let mut dice = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % sides) as u32
        };
        for _ in 0..60 {
            let (mut shares, mut assigned, mut found_any) = (Shares::default(), 0, 0);
            let crosses = |address: IpAddr| address.to_string().ends_with(['1', '3', '5']);
            let range = |address: IpAddr| (0, usize::from(address.to_string().ends_with(['1', '2', '6'])));
            for _ in 0..150 {
                let namespace = ["a", "b"][dice(2) as usize];
                let mut share = ports(&[dice(12), dice(12), dice(6)][dice(2) as usize..]);
                share.key =
                    [Some(("k", "")), Some(("k", "app=web")), Some(("l", "")), None][dice(4) as usize];
                let ranges: &[RangeIndex] =
                    [&[(0, 0)][..], &[(0, 1)], &[(0, 0), (0, 1)], &[(0, 1), (0, 0)]][dice(4) as usize];
                let admits = |address: &IpAddr| shares.admit(namespace, &share, *address);
                let first = |of: &RangeIndex| {
                    shares.at.keys().copied().filter(|one| admits(one) && range(*one) == *of).min()
                };
                let of_all = ranges.iter().find_map(first);
                let found = shares.find(namespace, &share, true, ranges.iter().copied());
                assert_eq!(found, of_all);
                found_any += u32::from(found.is_some());
                // By value now and then, whatever the key.
                let address = found.filter(|_| dice(8) > 0).unwrap_or_else(|| {
                    assigned += 1;
                    address(if dice(4) == 0 { 1 + dice(assigned.into()) } else { assigned })
                });
                shares.note(namespace, &share, (address, [range(address)].into_iter()), crosses(address));
            }
            assert!(found_any > 0 && assigned > 10);
        }
    }
}
