//! Writes planned changes to the maps.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::time::{Duration, Instant};

use common::decide::route_key;
use common::maps::event::RouteCounters;
use common::maps::name;
use common::maps::policy::{ADMIT, PolicyRange};
use common::maps::route::SHORT_NAME_BYTES_MAX;
use tracing::trace;

use super::maps::{Maps, settle};
use super::table::TableError;
use crate::plan::change::{label, name_key, one_label_key, suffix_key};

use crate::plan::{Change, Selector};

/// The result of writing a plan's changes.
#[derive(Debug, Default)]
pub struct Written {
    /// Time until the changes were in effect for new connections. The writes after that only remove entries.
    pub in_force: Option<Duration>,
    /// Connections to be ended now.
    pub reset: Option<Selector>,
    /// Elements written to each map or deleted from it.
    pub writes: BTreeMap<&'static str, u64>,
}

/// Elements per system call. Limits the size of the two columns that keys and values are copied into.
const BATCH: usize = 8192;

/// Writes changes in their order, consecutive ones to the same map in one system call. Stops at the first
/// failure: no entry written so far leads anywhere wrong, and what was there before is still there.
pub fn apply(maps: &Maps, changes: &[Change]) -> Result<Written, TableError> {
    let begun = Instant::now();
    let mut written = Written::default();
    for run in changes.chunk_by(|a, b| discriminant(a) == discriminant(b) && is_long(a) == is_long(b)) {
        match run {
            [Change::Settle, ..] => {
                written.in_force.get_or_insert_with(|| begun.elapsed());
                settle();
            }
            [Change::Reset(selector), ..] => written.reset = Some(Selector::clone(selector)),
            _ => {
                for part in run.chunks(BATCH) {
                    apply_run(maps, part)?;
                }
                if let Some(map) = run.first().and_then(map_of) {
                    *written.writes.entry(map).or_default() += run.len() as u64;
                }
                trace!(elapsed = ?begun.elapsed(), kind = ?run.first().map(discriminant), writes = run.len(), "written");
            }
        }
    }
    written.in_force.get_or_insert_with(|| begun.elapsed());
    Ok(written)
}

/// Returns whether a change is for `ROUTES_LONG`.
fn is_long(change: &Change) -> bool {
    match change {
        Change::PutName(_, name, _) => name.as_str().len() > SHORT_NAME_BYTES_MAX,
        Change::PutOneLabel(_, suffix, _) => "*.".len() + suffix.as_str().len() > SHORT_NAME_BYTES_MAX,
        Change::DeleteName(key) => !route_key::is_short(key.short.length),
        _ => false,
    }
}

/// Returns the map that a change is for; `None` for `Settle` and `Reset`.
fn map_of(change: &Change) -> Option<&'static str> {
    Some(match change {
        Change::PutSettings(_) => name::SETTINGS,
        Change::PutIds(_) => name::IDS,
        Change::PutAddress(..) | Change::DeleteAddress(_) => name::ADDRESSES,
        Change::PutListener(..) | Change::DeleteListener(_) => name::LISTENERS,
        Change::PutName(..) | Change::PutOneLabel(..) | Change::DeleteName(_) if is_long(change) => {
            name::ROUTES_LONG
        }
        Change::PutName(..) | Change::PutOneLabel(..) | Change::DeleteName(_) => name::ROUTES_EXACT,
        Change::PutWildcard(..) | Change::DeleteWildcard(_) => name::ROUTES_WILDCARD,
        Change::PutPolicy(_) | Change::DeletePolicy(_) => name::POLICIES,
        Change::PutRoute(..) | Change::DeleteRoute(_) => name::ROUTES,
        Change::PutLabel(..) | Change::DeleteLabel(_) => name::LABELS,
        Change::PutPage(..) | Change::DeletePage(_) => name::MAGLEV,
        Change::PutMember(..) | Change::DeleteMember(_) => name::MEMBERS,
        Change::PutBackend(..) | Change::DeleteBackend(_) => name::BACKENDS,
        Change::PutRouteCounters(_) | Change::DeleteRouteCounters(_) => name::ROUTE_COUNTERS,
        Change::Settle | Change::Reset(_) => return None,
    })
}

/// Collects the elements of changes of one kind.
macro_rules! of {
    ($run:ident, $variant:ident($($field:ident),*) => $element:expr) => {
        &$run
            .iter()
            .filter_map(|change| if let Change::$variant($($field),*) = change { Some($element) } else { None })
            .collect::<Vec<_>>()
    };
}

/// Writes changes of one kind.
fn apply_run(maps: &Maps, run: &[Change]) -> Result<(), TableError> {
    let Some(first) = run.first() else { return Ok(()) };
    match first {
        Change::PutSettings(_) => maps.settings.put_all(of!(run, PutSettings(settings) => (0, *settings))),
        Change::PutIds(_) => maps.ids.put_all(of!(run, PutIds(ids) => (0, *ids))),
        Change::PutAddress(..) => maps.addresses.put_all(of!(run, PutAddress(k, v) => (*k, *v))),
        Change::DeleteAddress(_) => maps.addresses.remove_all(of!(run, DeleteAddress(k) => *k)),
        Change::PutListener(..) => maps.listeners.put_all(of!(run, PutListener(k, v) => (*k, *v))),
        Change::DeleteListener(_) => maps.listeners.remove_all(of!(run, DeleteListener(k) => *k)),
        Change::PutName(..) if is_long(first) => {
            maps.routes_long.put_all(of!(run, PutName(id, name, v) => (name_key(*id, name)?, *v)))
        }
        Change::PutName(..) => {
            maps.routes_exact.put_all(of!(run, PutName(id, name, v) => (name_key(*id, name)?.short, *v)))
        }
        Change::PutOneLabel(..) if is_long(first) => maps
            .routes_long
            .put_all(of!(run, PutOneLabel(id, suffix, v) => (one_label_key(*id, suffix)?, *v))),
        Change::PutOneLabel(..) => maps
            .routes_exact
            .put_all(of!(run, PutOneLabel(id, suffix, v) => (one_label_key(*id, suffix)?.short, *v))),
        Change::DeleteName(_) if is_long(first) => {
            maps.routes_long.remove_all(of!(run, DeleteName(k) => **k))
        }
        Change::DeleteName(_) => maps.routes_exact.remove_all(of!(run, DeleteName(k) => k.short)),
        Change::PutWildcard(..) => maps
            .routes_wildcard
            .put_all(of!(run, PutWildcard(id, suffix, v) => (suffix_key(*id, suffix)?, *v))),
        Change::DeleteWildcard(_) => maps.routes_wildcard.remove_all(of!(run, DeleteWildcard(k) => **k)),
        Change::PutPolicy(_) => {
            maps.policies()?.put_all(of!(run, PutPolicy(k) => (*k, PolicyRange { action: ADMIT })))
        }
        Change::DeletePolicy(_) => maps.policies()?.remove_all(of!(run, DeletePolicy(k) => *k)),
        Change::PutRoute(..) => maps.routes.put_all(of!(run, PutRoute(k, v) => (*k, *v))),
        Change::DeleteRoute(_) => maps.routes.remove_all(of!(run, DeleteRoute(k) => *k)),
        Change::PutLabel(..) => maps.labels.put_all(of!(run, PutLabel(k, name) => (*k, label(name)))),
        Change::DeleteLabel(_) => maps.labels.remove_all(of!(run, DeleteLabel(k) => *k)),
        Change::PutPage(..) => maps.maglev.put_all(of!(run, PutPage(k, v) => (*k, **v))),
        Change::DeletePage(_) => maps.maglev.remove_all(of!(run, DeletePage(k) => *k)),
        Change::PutMember(..) => maps.members.put_all(of!(run, PutMember(k, v) => (*k, *v))),
        Change::DeleteMember(_) => maps.members.remove_all(of!(run, DeleteMember(k) => *k)),
        Change::PutBackend(..) => maps.backends.put_all(of!(run, PutBackend(k, v) => (*k, *v))),
        Change::DeleteBackend(_) => maps.backends.remove_all(of!(run, DeleteBackend(k) => *k)),
        Change::PutRouteCounters(_) => {
            maps.route_counters.put_all(of!(run, PutRouteCounters(k) => (*k, RouteCounters::zeroed())))
        }
        Change::DeleteRouteCounters(_) => {
            maps.route_counters.remove_all(of!(run, DeleteRouteCounters(k) => *k))
        }
        Change::Settle | Change::Reset(_) => Ok(()),
    }
}
