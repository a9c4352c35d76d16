//! Plans the writes from what is applied to what is desired: as few as possible, in an order that never
//! leaves a gap. Pure.

/// Map writes.
pub mod change;
/// What the maps hold, in compact form.
pub mod applied;
/// A route as the maps hold it.
mod applied_route;
/// What all routes together require.
mod tally;
/// Routes to backends on the node itself.
mod local;
/// The content of the maps.
pub mod content;
/// The next hop to each backend, and our own addresses.
pub mod hops;
/// Next hops to many backends, which share a few.
pub mod next_hops;
/// The order of writes.
mod order;
/// The difference of routes.
mod routes;
/// Maglev tables of routes.
mod tables;
/// Which clients routes admit.
mod policies;
/// The difference of listeners and addresses.
mod listeners;
/// Derives what is applied from the content of the maps.
mod adopt;
/// What is applied, part by part.
mod parts;
/// The maps in memory.
pub mod image;
/// Open connections in a form that another node understands.
pub mod opening;

#[cfg(test)]
mod tests;

pub use applied::{Applied, Census};
pub use change::{Change, Selector};
pub use content::{Counts, MapsContent};
pub use hops::Hops;
pub use image::MapsImage;
pub use local::{Health, Leading};
pub use next_hops::{Hop, NextHops};
pub use parts::Part;

use crate::model::{Desired, Pattern, Problem, Settings};
use applied::Basis;
use common::decide::source_port;
use common::maps::settings::{self, Ids};
use order::Steps;
use policies::NewPolicies;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// How long a closed flow answers late packets.
const CLOSED_TIMEOUT_SECS: u32 = 10;
/// The most waiting hellos of one source (IPv4 /32, IPv6 /64).
const SOURCE_HELLOS_MAX: u32 = 64;

/// What to write to the maps, and what they hold afterwards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be written in this order. At most one is a [`Change::Reset`], the last. It must be repeated about a
    /// second later, for flows that were being opened the first time.
    pub changes: Vec<Change>,
    /// Deletions of entries that nothing leads to any more. To be written after the repeated reset, even if
    /// other plans were carried out in between. Deleting a missing entry is no error. If the daemon dies
    /// before that, [`Applied::from_maps`] finds the remaining entries again.
    pub later: Vec<Change>,
    /// What the maps hold once `changes` and `later` are written.
    pub applied: Applied,
    /// What cannot be done, and backends without a next hop (reported only when this is new).
    pub problems: Vec<Problem>,
}

/// Plans the writes from `applied` to `desired`. What is unchanged results in no write; no id is assigned
/// twice, but for those of listeners, of which there are few: see [`Applied::reuse_listeners`]. If `applied` was planned for the same listeners, source addresses and network, only routes that
/// differ from that plan's are examined. The result is the same.
pub fn plan(applied: &Applied, desired: &Desired, hops: &Hops) -> Plan {
    let basis = applied.basis.as_ref().filter(|basis| basis.is_like(desired, hops));
    let mut planner = Planner {
        before: applied,
        hops,
        own: &hops.own,
        sources: &desired.settings.source_addresses,
        after: Applied {
            ids: begun(applied.ids),
            free_listeners: Arc::clone(&applied.free_listeners),
            next_policy: applied.next_policy,
            leaving_policies: Arc::clone(&applied.leaving_policies),
            ..Applied::default()
        },
        steps: Steps::default(),
        problems: Vec::new(),
        gone: Vec::new(),
        attached: Arc::default(),
        new_policies: NewPolicies::default(),
    };
    let listener_ids = planner.listener_ids(desired);
    planner.routes(desired, &listener_ids, basis);
    planner.policies();
    let asks_alike = planner.after.tally.asks_like(&applied.tally) && applied.leftover.silent.is_empty();
    if basis.is_some() && !planner.new_policies.has_changed && asks_alike {
        planner.after.listeners = Arc::clone(&applied.listeners);
        planner.after.addresses = Arc::clone(&applied.addresses);
    } else {
        planner.listeners(desired, &listener_ids);
        planner.addresses();
    }
    planner.leftover();
    planner.settings(&desired.settings);
    let Planner { mut after, steps, problems, .. } = planner;
    // What waits for an id, or for room, is not planned.
    after.basis = (hops.edition != 0 && !after.lacks_listener_ids && !after.lacks_policies)
        .then(|| Basis { desired: desired.clone(), edition: hops.edition });
    let (changes, later) = steps.into_changes();
    Plan { changes, later, applied: after, problems }
}

/// Returns what a node cannot do of `desired`, whatever its maps hold: all errors of a plan from empty maps.
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
    /// (listener id, pattern) pairs that a route no longer has.
    gone: Vec<(u32, Pattern)>,
    /// As the route planned last has them, or the neighbour of the next one.
    attached: Arc<[u32]>,
    new_policies: NewPolicies,
}

/// Returns the most half-open connections. Each uses a source port towards its backend. With half of the ports to spare, a
/// flood of SYNs is answered by cookie before it has used up the ports.
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
        let (first, last) = desired.source_ports;
        let settings = settings::Settings {
            hello_timeout_ns: u64::try_from(desired.hello_timeout.as_nanos()).unwrap_or(u64::MAX),
            idle_timeout_secs: u32::try_from(desired.idle_timeout.as_secs()).unwrap_or(u32::MAX),
            closed_timeout_secs: CLOSED_TIMEOUT_SECS,
            source_port_first: first,
            source_port_last: last,
            source_port_strides: source_port::strides(first, last),
            buffers: desired.max_hellos,
            half_opens: half_opens(desired),
            closed: closed_ring(desired.max_flows),
            source_hellos_max: SOURCE_HELLOS_MAX,
            // Set when the keys are renewed.
            cookie_key: before.cookie_key,
            deliveries: self.deliveries(),
            route_flows_max: desired.route_flows(self.after.routes.len()),
            share_flows_max: desired.flows_per_source,
            share_connecting_max: desired.source_connecting(),
            reserved: 0,
        };
        // Routes lead to their old backends a little longer.
        let first = settings::Settings { deliveries: settings.deliveries | before.deliveries, ..settings };
        if first != *before {
            self.steps.settings.push(Change::PutSettings(first));
        }
        if first != settings {
            self.steps.leave.push(Change::PutSettings(settings));
        }
        if self.after.ids != self.before.ids {
            self.steps.settings.push(Change::PutIds(self.after.ids));
        }
        self.after.settings = settings;
    }

    /// Cleans up after a daemon that died halfway. Left-over listeners and names are handled with the others.
    fn leftover(&mut self) {
        let leftover = &self.before.leftover;
        for (id, value) in &leftover.backends {
            self.retire(*id, value);
        }
        self.steps.forget.extend(leftover.broken.iter().cloned());
        self.steps.later.extend(leftover.later.iter().chain(&leftover.ranges).cloned());
    }
}

/// Returns the number of entries of `CLOSED_RING`.
pub fn closed_ring(max_flows: u32) -> u32 {
    (max_flows / 8).max(1024)
}

/// Returns the number of entries of `SHARES`: sources with connections to a route. A source that comes near its bound has
/// many of them, so there are far fewer such sources than flows.
pub fn shares(max_flows: u32) -> u32 {
    (max_flows / 4).max(1024)
}

/// Returns the number of entries of `DNAT_FLOWS`: flows that are found without a look at all others when their backend is removed, which
/// sees its clients. All flows may be such ones, but room for each would cost nodes without any twelve bytes a flow more.
pub fn dnat_flows(max_flows: u32) -> u32 {
    (max_flows / 4).max(1024)
}

/// Ids start with 1: 0 means none everywhere.
fn begun(ids: Ids) -> Ids {
    Ids {
        route: ids.route.max(1),
        backend: ids.backend.max(1),
        table: ids.table.max(1),
        listener: ids.listener.max(1),
    }
}
