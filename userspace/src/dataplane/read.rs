//! Reads the pinned maps. Works without a running daemon.

use std::collections::HashMap;

use common::decide::route_key;
use common::maps::announced::{Announced, AnnouncedKey};
use common::maps::event::RouteCounters;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, Flow, HalfOpen, Pending};
use common::maps::name;
use common::maps::policy::{ADMIT, PolicyRange};
use common::maps::previous::{Peer, PeerKey, Previous};
use common::maps::route::{NameKey, NameRoute};
use common::maps::segment::{Bid, HeardNs, Owned, Segment};
use common::maps::settings::Cursors;
use common::reason::Reason;

use super::load::{self, LoadError};
use super::maps::Maps;
use super::pin::Pins;
use super::table::{PerCpu, Plain, Table, TableError};
use crate::plan::change::{label, name_key, one_label_key, suffix_key};
use crate::plan::{Change, Counts, MapsContent};

/// Opens the pinned maps if they have this version.
pub fn open(pins: &Pins) -> Result<Maps, LoadError> {
    load::need_version(pins)?;
    Ok(Maps::open(pins)?)
}

fn all<K: Plain, V: Plain>(table: &Table<K, V>) -> Result<Vec<(K, V)>, TableError> {
    let mut elements = Vec::new();
    table.walk(|key, value| elements.push((*key, *value)))?;
    Ok(elements)
}

/// Reads the maps that user space writes.
pub fn content(maps: &Maps) -> Result<MapsContent, TableError> {
    Ok(MapsContent {
        settings: maps.settings.look_up(&0)?.unwrap_or_default(),
        ids: maps.ids.look_up(&0)?.unwrap_or_default(),
        addresses: all(&maps.addresses)?,
        listeners: all(&maps.listeners)?,
        names: names(maps)?,
        wildcards: all(&maps.routes_wildcard)?,
        policies: match maps.policies() {
            Ok(policies) => all(policies)?.into_iter().map(|(key, _)| key).collect(),
            Err(_) => Vec::new(),
        },
        routes: all(&maps.routes)?,
        pages: all(&maps.maglev)?,
        members: all(&maps.members)?,
        backends: all(&maps.backends)?,
        labels: all(&maps.labels)?,
        counters: all(&maps.route_counters)?.into_iter().map(|(route, _)| route).collect(),
    })
}

/// Reads which addresses are announced.
pub fn announced(pins: &Pins) -> Result<Vec<(AnnouncedKey, Announced)>, LoadError> {
    load::need_version(pins)?;
    match Table::open(pins.folder(), name::ANNOUNCED) {
        // A release that announces nothing made the maps, and runs still.
        Err(TableError::Missing { .. }) => Ok(Vec::new()),
        table => Ok(all(&table?)?),
    }
}

/// Reads the epochs by which the node announces addresses.
pub fn bids(pins: &Pins) -> Result<HashMap<AnnouncedKey, u64>, LoadError> {
    match Table::open(pins.folder(), name::BIDS) {
        // As above.
        Err(TableError::Missing { .. }) => Ok(HashMap::new()),
        table => Ok(all(&table?)?.into_iter().map(|(key, Bid { epoch })| (key, epoch)).collect()),
    }
}

/// Reads since when the node announces addresses (milliseconds of Unix time), and why it took them (a code of the daemon's).
pub fn owned(pins: &Pins) -> Result<HashMap<AnnouncedKey, Owned>, LoadError> {
    match Table::open(pins.folder(), name::OWNED) {
        // As above.
        Err(TableError::Missing { .. }) => Ok(HashMap::new()),
        table => Ok(all(&table?)?.into_iter().collect()),
    }
}

/// Reads, of each device on which other nodes may announce addresses, whether this node is silent about them there, as one whose agent is
/// dead is.
pub fn closed_gates(pins: &Pins) -> Result<HashMap<u32, bool>, LoadError> {
    let segments = match Table::open(pins.folder(), name::SEGMENTS) {
        // As above.
        Err(TableError::Missing { .. }) => return Ok(HashMap::new()),
        table => all::<u32, Segment>(&table?)?,
    };
    let heard = Table::<u32, HeardNs>::open(pins.folder(), name::HEARD)?;
    let (mut gates, now_ns) = (HashMap::new(), now_ns());
    for (device, segment) in segments {
        let present_ns = heard.look_up(&device)?.unwrap_or(0);
        gates.insert(device, segment.gate().is_closed(present_ns, now_ns));
    }
    Ok(gates)
}

/// Who announced an address before this node did.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// What the programs know of that.
    pub entry: Previous,
    /// What they know of the node, if anything.
    pub peer: Option<Peer>,
    /// When the agent here last stamped on the device; one that never does counts as alive.
    pub stamp_ns: u64,
}

/// Reads who announced addresses before this node did.
pub fn previous(pins: &Pins) -> Result<HashMap<AnnouncedKey, Before>, LoadError> {
    let owners = match Table::open(pins.folder(), name::PREVIOUS) {
        // As above.
        Err(TableError::Missing { .. }) => return Ok(HashMap::new()),
        table => all::<AnnouncedKey, Previous>(&table?)?,
    };
    let peers = Table::<PeerKey, Peer>::open(pins.folder(), name::PEERS)?;
    let segments = Table::<u32, Segment>::open(pins.folder(), name::SEGMENTS)?;
    let mut before = HashMap::new();
    for (key, entry) in owners {
        let peer = peers.look_up(&PeerKey::new(entry.node, key.device))?;
        let stamp_ns = segments.look_up(&key.device)?.map_or(u64::MAX, |segment| segment.stamp_ns);
        before.insert(key, Before { entry, peer, stamp_ns });
    }
    Ok(before)
}

/// Reads the exact names, short and long.
fn names(maps: &Maps) -> Result<Vec<(NameKey, NameRoute)>, TableError> {
    let mut names = all(&maps.routes_long)?;
    maps.routes_exact.walk(|key, route| names.push(((*key).into(), *route)))?;
    Ok(names)
}

/// Whether the maps hold what this write would put there. Of counters only that they exist. True for what puts nothing.
pub fn holds(maps: &Maps, change: &Change) -> Result<bool, TableError> {
    fn same<K: Plain, V: Plain + PartialEq>(
        table: &Table<K, V>,
        key: Option<&K>,
        value: &V,
    ) -> Result<bool, TableError> {
        let Some(key) = key else { return Ok(true) };
        Ok(table.look_up(key)?.is_some_and(|found| found == *value))
    }
    let named = |key: Option<NameKey>, value: &NameRoute| match &key {
        Some(key) if route_key::is_short(key.short.length) => {
            same(&maps.routes_exact, Some(&key.short), value)
        }
        key => same(&maps.routes_long, key.as_ref(), value),
    };
    match change {
        Change::PutSettings(value) => same(&maps.settings, Some(&0), value),
        Change::PutIds(value) => same(&maps.ids, Some(&0), value),
        Change::PutAddress(key, value) => same(&maps.addresses, Some(key), value),
        Change::PutListener(key, value) => same(&maps.listeners, Some(key), value),
        Change::PutName(listener, name, value) => named(name_key(*listener, name), value),
        Change::PutOneLabel(listener, suffix, value) => named(one_label_key(*listener, suffix), value),
        Change::PutWildcard(listener, suffix, value) => {
            same(&maps.routes_wildcard, suffix_key(*listener, suffix).as_ref(), value)
        }
        Change::PutPolicy(key) => same(maps.policies()?, Some(key), &PolicyRange { action: ADMIT }),
        Change::PutRoute(key, value) => same(&maps.routes, Some(key), value),
        Change::PutLabel(key, name) => same(&maps.labels, Some(key), &label(name)),
        Change::PutPage(key, value) => same(&maps.maglev, Some(key), value),
        Change::PutMember(key, value) => same(&maps.members, Some(key), value),
        Change::PutBackend(key, value) => same(&maps.backends, Some(key), value),
        Change::PutRouteCounters(key) => Ok(maps.route_counters.look_up(key)?.is_some()),
        Change::DeleteAddress(_)
        | Change::DeleteListener(_)
        | Change::DeleteName(_)
        | Change::DeleteWildcard(_)
        | Change::DeletePolicy(_)
        | Change::DeleteRoute(_)
        | Change::DeleteLabel(_)
        | Change::DeletePage(_)
        | Change::DeleteMember(_)
        | Change::DeleteBackend(_)
        | Change::DeleteRouteCounters(_)
        | Change::Settle
        | Change::Reset(_) => Ok(true),
    }
}

/// Connections, each with its client's four-tuple.
#[derive(Debug, Default)]
pub struct Connections {
    /// Established, closed and reset.
    pub flows: Vec<(ClientTuple, Flow)>,
    /// From the first data until the backend is connected.
    pub hellos: Vec<(ClientTuple, Pending)>,
    /// Half-open, on TCP listeners.
    pub half_opens: Vec<(ClientTuple, HalfOpen)>,
}

/// Reads the connections that `takes` returns true for, given their part that all have and their backend; of a hello without one, zeros.
pub fn connections(
    maps: &Maps,
    takes: impl Fn(&ClientTuple, &Connection, &BackendTuple) -> bool,
) -> Result<Connections, TableError> {
    let mut found = Connections::default();
    maps.flows.walk(|client, flow| {
        if takes(client, &flow.connection, &flow.nat) {
            found.flows.push((*client, *flow));
        }
    })?;
    maps.hellos.walk(|client, hello| {
        if takes(client, &hello.connection, &hello.nat) {
            found.hellos.push((*client, *hello));
        }
    })?;
    maps.half_opens.walk(|client, half_open| {
        if takes(client, &half_open.connection, &half_open.nat) {
            found.half_opens.push((*client, *half_open));
        }
    })?;
    Ok(found)
}

/// Reads the counters of each route id.
pub fn route_counters(maps: &Maps) -> Result<Vec<(u32, RouteCounters)>, TableError> {
    all(&maps.route_counters)
}

/// Reads what routes and sources have already.
pub fn counts(maps: &Maps) -> Result<Counts, TableError> {
    Ok(Counts {
        routes: route_counters(maps)?.into_iter().collect(),
        shares: all(&maps.shares)?.into_iter().collect(),
    })
}

/// Returns the count of packets and events for each reason, summed over all CPUs.
pub fn reasons(pins: &Pins) -> Result<Vec<(Reason, u64)>, TableError> {
    let counters = PerCpu::open(pins.folder(), name::COUNTERS)?;
    Reason::ALL.iter().map(|reason| Ok((*reason, counters.sum(*reason as u32)?))).collect()
}

/// The count of one reason.
#[derive(Debug)]
pub struct Counter {
    counters: PerCpu,
    reason: Reason,
}

impl Counter {
    /// Opens the counters.
    pub fn open(pins: &Pins, reason: Reason) -> Result<Self, TableError> {
        Ok(Self { counters: PerCpu::open(pins.folder(), name::COUNTERS)?, reason })
    }

    /// Returns the count, summed over all CPUs.
    pub fn read(&self) -> Result<u64, TableError> {
        self.counters.sum(self.reason as u32)
    }
}

/// Reads the positions of the programs in the rings.
pub fn cursors(maps: &Maps) -> Result<Cursors, TableError> {
    Ok(maps.cursors.look_up(&0)?.unwrap_or_default())
}

/// Reads the generation of the next connection.
pub fn next_generation(maps: &Maps) -> Result<u32, TableError> {
    Ok((cursors(maps)?.generation as u32).wrapping_add(1))
}

/// The monotonic clock in seconds, as the programs use it.
pub fn now_secs() -> u32 {
    (now_ns() / 1_000_000_000) as u32
}

/// The monotonic clock in nanoseconds, as `bpf_ktime_get_ns` returns it.
pub fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// The time for which this thread has had a CPU, in nanoseconds.
pub fn thread_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives through the call.
    let result = unsafe { libc::clock_gettime(which, &mut time) };
    assert_eq!(result, 0, "every Linux has these clocks");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
