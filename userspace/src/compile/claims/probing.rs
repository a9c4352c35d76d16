//! Which backends are probed, and how.

use super::backends::Resolved;
use crate::model::cluster::ProbeKind;
use crate::model::{DesiredRoute, Probe, ProbeChange, Probes, ServerName, SharedList};
use foldhash::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// Adds the probes for a route that something leads to.
pub(super) fn add(probes: &mut Probes, resolved: &Resolved, name: Option<&ServerName>) {
    for (at, probe) in &resolved.probes {
        let name = name.filter(|_| probe.kind == ProbeKind::Tls).cloned();
        let new = (*probe, name);
        // Of two different probes of one backend, the lesser one is used. With equal settings, one with a
        // server name wins.
        let better = |old: &Probe| (new.0, new.1.is_none(), &new.1) < (old.0, old.1.is_none(), &old.1);
        if probes.get(at).is_none_or(better) {
            probes.insert(*at, new);
        }
    }
}

/// Returns the changes if the routes at these indices are probed as in `now` and the others as before.
/// `None`: another route shares one of their backends, so all routes must be considered.
pub(super) fn changes(
    before: &Probes,
    routes: &SharedList<Arc<DesiredRoute>>,
    places: &HashSet<usize>,
    now: &Probes,
) -> Option<Vec<ProbeChange>> {
    if before.is_empty() && now.is_empty() {
        return Some(Vec::new());
    }
    let backends = |route: &Arc<DesiredRoute>| -> Vec<SocketAddr> {
        route.backends.iter().map(|backend| SocketAddr::new(backend.address, backend.port)).collect()
    };
    let old = places.iter().filter_map(|place| routes.get(*place)).flat_map(backends);
    let concerned: HashSet<SocketAddr> = old.chain(now.keys().copied()).collect();
    let others = routes.iter().enumerate().filter(|(place, _)| !places.contains(place));
    let mut of_others = others.flat_map(|(_, route)| &route.backends);
    if of_others.any(|backend| concerned.contains(&SocketAddr::new(backend.address, backend.port))) {
        return None;
    }
    let change = |at: SocketAddr| {
        let wanted = now.get(&at);
        (before.get(&at) != wanted).then(|| (at, wanted.cloned()))
    };
    Some(concerned.into_iter().filter_map(change).collect())
}
