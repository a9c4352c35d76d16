//! TLSRoute and TCPRoute.

use super::super::api::gateway::{Backend, Route};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value::{self, Findings, wrong};
use super::{findings, meta, parent};
use crate::model::cluster::{BackendRef, ClusterRoute};
use crate::model::{Kind, Problem};

/// Largest weight of a backendRef that the API allows.
const WEIGHT_MAX: u32 = 1_000_000;

/// Folds a route of the kind. Names of the static file that are reserved are not refused here: who owns a name is
/// decided for all sources together.
pub(in super::super) fn fold(
    kind: Kind,
    raw: Raw<InSpec<Route>>,
    interner: &Interner,
) -> (ClusterRoute, Vec<Problem>) {
    let meta = meta(&raw.meta, interner);
    let mut found = findings(kind, &meta);
    let spec = found.body(raw.body).spec.unwrap_or_default();
    let parents = spec.parent_refs.into_iter().flatten().enumerate();
    let parents = parents
        .filter_map(|(place, raw)| parent(raw, &format!("spec.parentRefs[{place}]"), &mut found, interner))
        .collect();
    let written = spec.hostnames.unwrap_or_default();
    let mut hostnames = Vec::with_capacity(written.len());
    for (place, text) in written.iter().enumerate() {
        let field = format_args!("spec.hostnames[{place}]");
        let pattern = found.check(field, text, value::pattern(text));
        hostnames.extend(pattern.filter(|pattern| !hostnames.contains(pattern)));
    }
    let mut rules = Vec::new();
    for (rule, raw) in spec.rules.into_iter().flatten().enumerate() {
        let backends = raw.backend_refs.into_iter().flatten().enumerate();
        let field = |place| format!("spec.rules[{rule}].backendRefs[{place}]");
        rules.push(backends.map(|(place, raw)| backend(raw, &field(place), &mut found, interner)).collect());
    }
    let route = ClusterRoute { meta, parents, has_hostnames: !written.is_empty(), hostnames, rules };
    (route, found.into_problems())
}

/// A backend whose port or weight cannot be read stays one that leads nowhere: its share of connections is refused and
/// not given to the others.
fn backend(raw: Backend, field: &str, found: &mut Findings, interner: &Interner) -> BackendRef {
    let port = raw.port.and_then(|port| found.check(format_args!("{field}.port"), port, value::port(port)));
    let weight = raw.weight.map(|weight| {
        let checked = u32::try_from(weight).ok().filter(|weight| *weight <= WEIGHT_MAX);
        let checked =
            checked.ok_or_else(|| wrong("is out of range", "write 0 to 1000000; until then it is 1"));
        found.check(format_args!("{field}.weight"), weight, checked)
    });
    BackendRef {
        group: interner.of(raw.group.as_deref().unwrap_or_default()),
        kind: interner.of(raw.kind.as_deref().unwrap_or("Service")),
        namespace: interner.of_option(raw.namespace),
        name: interner.of(raw.name.as_deref().unwrap_or_default()),
        port,
        weight: weight.flatten().unwrap_or(1),
    }
}
