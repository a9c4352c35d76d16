//! From what is applied to what is desired: the fewest map writes, in an order that never leaves a gap. Pure.

/// One map write each.
pub mod change;
/// What the maps hold, compactly.
pub mod applied;
/// The content of the maps.
pub mod content;
/// The way to each backend.
pub mod hops;
/// What must precede what.
mod order;
/// The difference of routes.
mod routes;
/// Their tables.
mod tables;
/// The difference of listeners and addresses.
mod listeners;
/// From the content of the maps to what is applied.
mod adopt;
/// The maps in memory.
pub mod image;
/// Open connections in words that another node understands.
pub mod opening;

#[cfg(test)]
mod tests;

pub use applied::{Applied, Census};
pub use change::{Change, Selector};
pub use content::MapsContent;
pub use hops::{Hop, Hops};
pub use image::MapsImage;

use crate::model::{Desired, Pattern, Problem, Settings};
use applied::Basis;
use common::maps::settings::{self, Ids};
use order::Steps;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// A closed flow answers stragglers this long.
const CLOSED_TIMEOUT_SECS: u32 = 10;
/// Most waiting hellos of one source (IPv4 /32, IPv6 /64).
const SOURCE_HELLOS_MAX: u32 = 64;

/// What to do to the maps, and what they hold afterwards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be written in this order. At most one [`Change::Reset`], the last; it is to be repeated about a second
    /// later, for flows that were being opened the first time.
    pub changes: Vec<Change>,
    /// Deletions of what nothing leads to any more; to be written after the repeated reset, also when other plans
    /// were carried out meanwhile. Deleting what is not there is no error. A daemon that dies before finds the rest
    /// again in [`Applied::from_maps`].
    pub later: Vec<Change>,
    /// What the maps hold once `changes` and `later` are written.
    pub applied: Applied,
    /// What cannot be done, and backends without a way (told when that is news).
    pub problems: Vec<Problem>,
}

/// Plans the way from `applied` to `desired`. What stays as it is gives no change; ids are never given out twice. Where
/// `applied` was planned for listeners, source addresses and a network like these, only routes that differ from those it
/// was planned for are looked at: it comes to the same.
pub fn plan(applied: &Applied, desired: &Desired, hops: &Hops) -> Plan {
    let basis = applied.basis.as_ref().filter(|basis| basis.is_like(desired, hops));
    let mut planner = Planner {
        before: applied,
        hops,
        own: &hops.own,
        sources: &desired.settings.source_addresses,
        after: Applied { ids: begun(applied.ids), ..Applied::default() },
        steps: Steps::default(),
        problems: Vec::new(),
        gone: Vec::new(),
    };
    let listener_ids = planner.listener_ids(desired);
    planner.routes(desired, &listener_ids, basis);
    if basis.is_some() && planner.after.tally.asks_like(&applied.tally) {
        planner.after.listeners = Arc::clone(&applied.listeners);
        planner.after.addresses = Arc::clone(&applied.addresses);
    } else {
        planner.listeners(desired, &listener_ids);
        planner.addresses();
    }
    planner.leftover();
    planner.settings(&desired.settings);
    let Planner { mut after, steps, problems, .. } = planner;
    after.basis = (hops.edition != 0).then(|| Basis { desired: desired.clone(), edition: hops.edition });
    let (changes, later) = steps.into_changes();
    Plan { changes, later, applied: after, problems }
}

/// What a node cannot do of `desired`, whatever its maps hold: all errors of a plan from empty maps.
pub fn impossible(desired: &Desired, hops: &Hops) -> Vec<Problem> {
    routes::impossible(desired, hops)
}

struct Planner<'a> {
    before: &'a Applied,
    hops: &'a Hops,
    /// As in `hops`.
    own: &'a HashSet<IpAddr>,
    /// Our addresses towards backends, as configured.
    sources: &'a [IpAddr],
    after: Applied,
    steps: Steps,
    problems: Vec<Problem>,
    /// (listener id, pattern) that a route no longer has.
    gone: Vec<(u32, Pattern)>,
}

/// Half-open connections at most. Each holds a source port towards its backend: with half of them to spare, a flood of
/// SYNs makes the oldest give way and never uses the ports up.
fn half_opens(desired: &Settings) -> u32 {
    let (first, last) = desired.source_ports;
    let ports = u32::from(last.saturating_sub(first)) + 1;
    desired.max_hellos.min((ports / 2).max(1))
}

impl Planner<'_> {
    fn next_id(&mut self, kind: impl FnOnce(&mut Ids) -> &mut u32) -> u32 {
        let next = kind(&mut self.after.ids);
        let id = *next;
        *next = next.saturating_add(1);
        id
    }

    fn settings(&mut self, desired: &Settings) {
        let before = &self.before.settings;
        let settings = settings::Settings {
            hello_timeout_ns: u64::try_from(desired.hello_timeout.as_nanos()).unwrap_or(u64::MAX),
            idle_timeout_secs: u32::try_from(desired.idle_timeout.as_secs()).unwrap_or(u32::MAX),
            closed_timeout_secs: CLOSED_TIMEOUT_SECS,
            source_port_first: desired.source_ports.0,
            source_port_last: desired.source_ports.1,
            buffers: desired.max_hellos,
            half_opens: half_opens(desired),
            closed: closed_ring(desired.max_flows),
            source_hellos_max: SOURCE_HELLOS_MAX,
            // Chosen by whoever renews the keys.
            cookie_key: before.cookie_key,
            // Every backend is reached by `nat`.
            deliveries: 0,
            ..settings::Settings::zeroed()
        };
        if settings != *before {
            self.steps.settings.push(Change::PutSettings(settings));
        }
        if self.after.ids != self.before.ids {
            self.steps.settings.push(Change::PutIds(self.after.ids));
        }
        self.after.settings = settings;
    }

    /// Clears up after a daemon that died half way. Listeners and names were seen to with the others.
    fn leftover(&mut self) {
        let leftover = &self.before.leftover;
        for (id, value) in &leftover.backends {
            self.retire(*id, value);
        }
        self.steps.forget.extend(leftover.broken.iter().cloned());
        self.steps.later.extend(leftover.later.iter().cloned());
    }
}

/// Entries of `CLOSED_RING`.
pub fn closed_ring(max_flows: u32) -> u32 {
    (max_flows / 8).max(1024)
}

/// Ids begin with 1: 0 means none everywhere.
fn begun(ids: Ids) -> Ids {
    Ids {
        route: ids.route.max(1),
        backend: ids.backend.max(1),
        table: ids.table.max(1),
        listener: ids.listener.max(1),
    }
}
