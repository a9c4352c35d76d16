//! The pair of devices by which clients on the node itself reach VIPs, and the routes that lead them there. The node's stack sends
//! what is for a VIP to one end, and the programs get it at the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use common::maps::next_hop::NODE_LINK;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::{NetError, Netlink};

/// The end to which the node's stack sends what is for a VIP.
pub const NEAR: &str = "vestibule-n0";
/// The end at which the programs get it, and from which they answer.
pub const FAR: &str = "vestibule-n1";
/// Who made a route (`rtm_protocol`, `ip route show proto 118`): by this, an agent knows those of the one before.
pub const PROTOCOL: u8 = 118;
/// The largest of a veth device: no packet of a pod is too large for it, whatever the pod's own device takes.
const MTU: u32 = 65_535;

/// Why the pair or a route is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// rtnetlink failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The kernel refused.
    #[error("the kernel refuses to {what}: {source}")]
    Refused {
        /// What was to be done.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A device has one of the names and is no end of the pair.
    #[error("there is a device {0} that is not an end of the pair")]
    Taken(&'static str),
    /// It was made and is not there.
    #[error("the pair is gone as soon as it was made")]
    Gone,
}

/// The indices of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Of [`NEAR`].
    pub near: u32,
    /// Of [`FAR`].
    pub far: u32,
}

/// Routes to single addresses in the main table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Those into the pair, each with the source address that the node's own sockets choose by it.
    pub ours: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Addresses to which another program's route leads.
    pub others: BTreeSet<IpAddr>,
}

/// What is to be changed of the routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Routes to make, where there is none.
    pub add: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Routes of ours to replace, for the source is another one.
    pub replace: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Routes of ours to remove.
    pub remove: BTreeSet<IpAddr>,
    /// Addresses that are wanted, and to which another program's route leads: that one stays, alone.
    pub blocked: BTreeSet<IpAddr>,
}

impl Routes {
    /// Returns what makes these routes those that are wanted, by address with the source.
    pub fn changes_to(&self, wanted: &BTreeMap<IpAddr, Option<IpAddr>>) -> Changes {
        let is_free = |address: &IpAddr| !self.others.contains(address);
        let mut changes = Changes::default();
        for (address, source) in wanted {
            if !is_free(address) {
                changes.blocked.insert(*address);
                continue;
            }
            match self.ours.get(address) {
                None => drop(changes.add.insert(*address, *source)),
                Some(other) if other != source => drop(changes.replace.insert(*address, *source)),
                Some(_) => {}
            }
        }
        let is_over = |address: &&IpAddr| !wanted.contains_key(address) || !is_free(address);
        changes.remove = self.ours.keys().filter(is_over).copied().collect();
        changes
    }

    /// Notes that changes were carried out, but for those of the addresses that the kernel refused.
    pub fn follow(&mut self, changes: Changes, refused: &Refused) {
        let is_done = |address: &IpAddr| !refused.iter().any(|(other, _)| other == address);
        self.ours.retain(|address, _| !changes.remove.contains(address) || !is_done(address));
        let written = changes.add.into_iter().chain(changes.replace);
        self.ours.extend(written.filter(|(address, _)| is_done(address)));
    }

    /// Returns the addresses whose routes of ours are not as they were, though no other program's leads there and they are still
    /// `wanted`, and those that have a route which we have not made.
    pub fn differing(&self, before: &Self, wanted: &BTreeMap<IpAddr, Option<IpAddr>>) -> BTreeSet<IpAddr> {
        let is_wanted = |(address, source): &(&IpAddr, &Option<IpAddr>)| {
            wanted.get(*address) == Some(*source) && !self.others.contains(*address)
        };
        let was = before.ours.iter().filter(is_wanted);
        let lost = was.filter(|(address, source)| self.ours.get(*address) != Some(*source));
        let added = self.ours.keys().filter(|address| !before.ours.contains_key(*address));
        lost.map(|(address, _)| address).chain(added).copied().collect()
    }
}

/// Returns the pair; `None`: there is none.
pub fn find() -> Result<Option<Pair>, PairError> {
    let ends = ends(&mut Netlink::open()?)?;
    Ok(pair_of(&ends)?.map(|(pair, _)| pair))
}

/// Makes the pair, or what it lacks. Returns it.
pub fn make() -> Result<Pair, PairError> {
    let mut netlink = Netlink::open()?;
    let mut found = pair_of(&ends(&mut netlink)?)?;
    if found.is_none() {
        change(
            &mut netlink,
            RouteNetlinkMessage::NewLink(both_ends()),
            NLM_F_CREATE | NLM_F_EXCL,
            "make a veth pair",
        )?;
        found = pair_of(&ends(&mut netlink)?)?;
    }
    let (pair, is_ready) = found.ok_or(PairError::Gone)?;
    if !is_ready {
        for index in [pair.far, pair.near] {
            // Without an address of its own, the device asks nobody for anything. A kernel without IPv6 refuses.
            drop(change(&mut netlink, silent(index), 0, "keep link-local addresses from the pair"));
            change(&mut netlink, up(index), 0, "set the pair up")?;
        }
    }
    Ok(pair)
}

/// Removes the pair. The kernel removes the routes into it first.
pub fn remove(pair: Pair) -> Result<(), PairError> {
    let mut message = LinkMessage::default();
    message.header.index = pair.near;
    change(&mut Netlink::open()?, RouteNetlinkMessage::DelLink(message), 0, "remove the pair")
}

/// Returns the routes to single addresses.
pub fn routes(pair: Pair) -> Result<Routes, NetError> {
    let mut netlink = Netlink::open()?;
    let mut routes = Routes::default();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        for object in netlink.dump(RouteNetlinkMessage::GetRoute(question))? {
            if let RouteNetlinkMessage::NewRoute(route) = object {
                routes.note(&route, pair);
            }
        }
    }
    Ok(routes)
}

/// The number of the socket by which this process changed routes last; 0: by none.
static WRITER: AtomicU32 = AtomicU32::new(0);

/// Returns the number of the socket by which this process changes routes; 0: it has changed none.
pub(super) fn writer() -> u32 {
    WRITER.load(Ordering::Relaxed)
}

/// The socket by which routes are changed: what this process wrote itself is no news to it.
#[derive(Debug)]
pub struct RouteWriter(Netlink);

impl RouteWriter {
    /// Opens it, in the network namespace of the calling thread.
    pub fn open() -> Result<Self, NetError> {
        let netlink = Netlink::open()?;
        WRITER.store(netlink.port(), Ordering::Relaxed);
        Ok(Self(netlink))
    }

    /// Carries changes out. Returns the addresses for which the kernel refused, and its errors.
    pub fn carry_out(&mut self, changes: &Changes, pair: Pair) -> Result<Refused, NetError> {
        carry_out(&mut self.0, changes, pair)
    }
}

/// Addresses for which the kernel refused a change of the route, and its errors.
pub type Refused = Vec<(IpAddr, io::Error)>;

fn carry_out(netlink: &mut Netlink, changes: &Changes, pair: Pair) -> Result<Refused, NetError> {
    let removed = changes
        .remove
        .iter()
        .map(|address| (*address, RouteNetlinkMessage::DelRoute(route(*address, None, pair)), 0));
    // Another program may have made a route to the address since they were read: it stays.
    let new = changes.add.iter().map(|to| (to, NLM_F_CREATE | NLM_F_EXCL));
    let replaced = changes.replace.iter().map(|to| (to, NLM_F_CREATE | NLM_F_REPLACE));
    let added = new.chain(replaced).map(|((address, source), flags)| {
        (*address, RouteNetlinkMessage::NewRoute(route(*address, *source, pair)), flags)
    });
    let (addresses, messages): (Vec<IpAddr>, Vec<_>) =
        removed.chain(added).map(|(address, message, flags)| (address, (message, flags))).unzip();
    let answers = netlink.change_all(messages)?;
    // What was to be removed and is gone is no failure.
    let refused =
        addresses.into_iter().zip(answers).filter_map(|(address, answer)| Some((address, answer.err()?)));
    Ok(refused.filter(|(_, error)| error.raw_os_error() != Some(libc::ESRCH)).collect())
}

/// One end as the kernel says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    index: u32,
    /// The index of its other end; `None`: it has none here.
    peer: Option<u32>,
    /// Up, without ARP, with MTU and link address of the pair.
    is_ready: bool,
}

/// Returns the devices that have the names of the ends.
fn ends(netlink: &mut Netlink) -> Result<[Option<End>; 2], NetError> {
    let question = |name: &str| {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        RouteNetlinkMessage::GetLink(message)
    };
    let answers = netlink.ask_all([question(NEAR), question(FAR)])?;
    let mut ends = answers.into_iter().map(|answer| match answer {
        Some(RouteNetlinkMessage::NewLink(message)) => Some(end(&message)),
        _ => None,
    });
    Ok([ends.next().flatten(), ends.next().flatten()])
}

fn end(message: &LinkMessage) -> End {
    let (mut peer, mut is_elsewhere, mut is_veth) = (None, false, false);
    let mut is_ready = message.header.flags.contains(LinkFlags::Up | LinkFlags::Noarp);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Link(index) => peer = Some(*index),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::LinkInfo(parts) => is_veth = parts.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::Mtu(mtu) => is_ready &= *mtu == MTU,
            LinkAttribute::Address(address) => is_ready &= *address == NODE_LINK,
            _ => {}
        }
    }
    End { index: message.header.index, peer: peer.filter(|_| is_veth && !is_elsewhere), is_ready }
}

/// Returns the pair that two devices are, and whether it is as it should be; `None`: neither is there.
fn pair_of(ends: &[Option<End>; 2]) -> Result<Option<(Pair, bool)>, PairError> {
    match ends {
        [None, None] => Ok(None),
        [Some(near), Some(far)] if near.peer == Some(far.index) && far.peer == Some(near.index) => {
            Ok(Some((Pair { near: near.index, far: far.index }, near.is_ready && far.is_ready)))
        }
        [Some(_), _] => Err(PairError::Taken(NEAR)),
        [None, Some(_)] => Err(PairError::Taken(FAR)),
    }
}

/// The message that makes both ends, which are down.
fn both_ends() -> LinkMessage {
    let named = |name: &str| {
        let mut message = LinkMessage::default();
        (message.header.flags, message.header.change_mask) = (LinkFlags::Noarp, LinkFlags::Noarp);
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::Mtu(MTU));
        message.attributes.push(LinkAttribute::Address(NODE_LINK.into()));
        message
    };
    let (mut near, far) = (named(NEAR), named(FAR));
    near.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
    ]));
    near
}

fn silent(index: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]));
    RouteNetlinkMessage::SetLink(message)
}

fn up(index: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    let flags = LinkFlags::Up | LinkFlags::Noarp;
    (message.header.flags, message.header.change_mask) = (flags, flags);
    message.attributes.push(LinkAttribute::Mtu(MTU));
    message.attributes.push(LinkAttribute::Address(NODE_LINK.into()));
    RouteNetlinkMessage::SetLink(message)
}

fn change(
    netlink: &mut Netlink,
    message: RouteNetlinkMessage,
    flags: u16,
    what: &'static str,
) -> Result<(), PairError> {
    let answer = netlink.change_all([(message, flags)])?.into_iter().next();
    answer.unwrap_or(Ok(())).map_err(|source| PairError::Refused { what, source })
}

/// The route to an address into the pair.
fn route(address: IpAddr, source: Option<IpAddr>, pair: Pair) -> RouteMessage {
    let mut route = RouteMessage::default();
    let header = &mut route.header;
    (header.address_family, header.destination_prefix_length) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    header.table = RouteHeader::RT_TABLE_MAIN;
    header.protocol = RouteProtocol::Other(PROTOCOL);
    header.scope = if address.is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
    header.kind = RouteType::Unicast;
    route.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
    route.attributes.push(RouteAttribute::Oif(pair.near));
    route.attributes.extend(source.map(|source| RouteAttribute::PrefSource(RouteAddress::from(source))));
    route
}

impl Routes {
    /// Notes a route to a single address in the main table, whatever its kind: a blackhole, too, is there for a reason, such as BGP.
    fn note(&mut self, route: &RouteMessage, pair: Pair) {
        let header = &route.header;
        let whole = if header.address_family == AddressFamily::Inet { 32 } else { 128 };
        if header.destination_prefix_length != whole
            || header.table != RouteHeader::RT_TABLE_MAIN
            || header.flags.contains(RouteFlags::Cloned)
        {
            return;
        }
        let (mut to, mut source, mut device) = (None, None, None);
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Destination(address) => to = plain(address),
                RouteAttribute::PrefSource(address) => source = plain(address),
                RouteAttribute::Oif(index) => device = Some(*index),
                _ => {}
            }
        }
        let Some(to) = to else { return };
        if header.protocol == RouteProtocol::Other(PROTOCOL) && device == Some(pair.near) {
            self.ours.insert(to, source);
        } else {
            self.others.insert(to);
        }
    }
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAIR: Pair = Pair { near: 7, far: 8 };

    fn at(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn noted(route: &RouteMessage) -> Routes {
        let mut routes = Routes::default();
        routes.note(route, PAIR);
        routes
    }

    #[test]
    fn a_route_is_ours_by_protocol_and_device() {
        for (address, source) in [(at(1), Some(at(9))), ("2001:db8::1".parse().unwrap(), None)] {
            let made = route(address, source, PAIR);
            assert_eq!(noted(&made), Routes { ours: [(address, source)].into(), ..Routes::default() });
            let others = Routes { others: [address].into(), ..Routes::default() };
            let mut other = made.clone();
            other.header.protocol = RouteProtocol::Static;
            assert_eq!(noted(&other), others);
            let elsewhere = route(address, source, Pair { near: 3, far: 8 });
            assert_eq!(noted(&elsewhere), others);
            // As BGP speakers have it for an address that they announce.
            let mut anchor = other.clone();
            anchor.header.kind = RouteType::BlackHole;
            anchor.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::Oif(_)));
            assert_eq!(noted(&anchor), others);
            for change in [
                |made: &mut RouteMessage| made.header.destination_prefix_length = 24,
                |made: &mut RouteMessage| made.header.table = 255,
                |made: &mut RouteMessage| made.header.flags = RouteFlags::Cloned,
            ] {
                let mut not_noted = made.clone();
                change(&mut not_noted);
                assert_eq!(noted(&not_noted), Routes::default());
            }
        }
    }

    #[test]
    fn only_two_ends_of_one_pair_are_the_pair() {
        let end = |index, peer| Some(End { index, peer, is_ready: true });
        assert!(matches!(pair_of(&[None, None]), Ok(None)));
        assert_eq!(pair_of(&[end(7, Some(8)), end(8, Some(7))]).unwrap(), Some((PAIR, true)));
        let unready = Some(End { index: 8, peer: Some(7), is_ready: false });
        assert_eq!(pair_of(&[end(7, Some(8)), unready]).unwrap(), Some((PAIR, false)));
        for taken in
            [[end(7, None), None], [end(7, Some(9)), end(8, Some(7))], [end(7, Some(8)), end(8, None)]]
        {
            assert!(matches!(pair_of(&taken), Err(PairError::Taken(NEAR))), "{taken:?}");
        }
        assert!(matches!(pair_of(&[None, end(8, None)]), Err(PairError::Taken(FAR))));
    }

    #[test]
    fn ours_follow_what_is_wanted_and_give_way_to_others() {
        let source = Some(at(200));
        let found = Routes {
            ours: [(at(1), source), (at(2), None), (at(3), source), (at(4), source)].into(),
            others: [at(4), at(5), at(6)].into(),
        };
        let wanted =
            [(at(1), source), (at(2), source), (at(4), source), (at(5), source), (at(7), source)].into();
        let changes = Changes {
            add: [(at(7), source)].into(),
            replace: [(at(2), source)].into(),
            remove: [at(3), at(4)].into(),
            blocked: [at(4), at(5)].into(),
        };
        assert_eq!(found.changes_to(&wanted), changes);
    }

    #[test]
    fn what_the_kernel_refused_is_not_noted_as_done() {
        let mut routes = Routes { ours: [(at(1), None), (at(2), None)].into(), others: [].into() };
        let changes = Changes {
            add: [(at(3), None), (at(4), None)].into(),
            replace: [(at(1), Some(at(200)))].into(),
            remove: [at(2)].into(),
            ..Changes::default()
        };
        let refused = [1, 2, 3].map(|last| (at(last), io::Error::other("no"))).into();
        routes.follow(changes, &refused);
        assert_eq!(routes.ours, [(at(1), None), (at(2), None), (at(4), None)].into());
    }

    #[test]
    fn routes_that_another_program_changed_are_found() {
        let (source, other) = (Some(at(200)), Some(at(201)));
        let of = |last: u8, source| (at(last), source);
        let before = Routes {
            ours: [of(1, source), of(2, source), of(3, source), of(4, source), of(5, source)].into(),
            ..Routes::default()
        };
        // 2 is gone, 3 changed, 4 has another program's, 5 is to have another source, 6 is not ours.
        let found =
            Routes { ours: [of(1, source), of(3, other), of(6, None)].into(), others: [at(4)].into() };
        let mut wanted = before.ours.clone();
        wanted.insert(at(5), other);
        assert_eq!(found.differing(&before, &wanted), [at(2), at(3), at(6)].into());
    }

    proptest! {
        #[test]
        fn after_the_changes_nothing_is_left_to_change(
            ours in prop::collection::btree_map(0..8u8, prop::option::of(200..202u8), 0..8),
            others in prop::collection::btree_set(0..8u8, 0..8),
            wanted in prop::collection::btree_map(0..8u8, prop::option::of(200..202u8), 0..8),
        ) {
            let by = |map: BTreeMap<u8, Option<u8>>| -> BTreeMap<IpAddr, Option<IpAddr>> {
                map.into_iter().map(|(to, source)| (at(to), source.map(at))).collect()
            };
            let (wanted, others) = (by(wanted), others.into_iter().map(at).collect());
            let mut routes = Routes { ours: by(ours), others };
            let changes = routes.changes_to(&wanted);
            prop_assert!(changes.add.keys().all(|address| !routes.ours.contains_key(address)));
            let blocked = changes.blocked.clone();
            routes.follow(changes, &Refused::new());
            let after = routes.changes_to(&wanted);
            prop_assert_eq!(after, Changes { blocked, ..Changes::default() });
            prop_assert!(routes.ours.keys().all(|address| !routes.others.contains(address)));
        }
    }
}
