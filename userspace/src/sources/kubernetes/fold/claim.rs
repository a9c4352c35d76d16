//! Claim: what the controller wrote, back to what it meant.

use super::super::api::claim::{self, ClaimProbe, ClaimSpec, REMEDY, protocol};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value::{self, Findings, Wrong, wrong};
use super::super::watch_event::ReadClaim;
use crate::model::claim::{
    AddressRef, ClaimBackend, ClaimBackends, ClaimTarget, Grant, Granted, ServicePortRef,
};
use crate::model::cluster::{ProbeKind, ProbeSpec};
use crate::model::{
    Affinity, Claim, Kind, ObjectName, Origin, Pattern, Problem, ServerName, SourceRanges, StoredClaim,
    TrafficPolicy, digest, unknown_kind,
};
use crate::origins;
use common::maps::route::LABEL_BYTES_MAX;
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

/// The most bytes of a name in Kubernetes.
const NAME_BYTES_MAX: usize = 253;

/// A grant that cannot be read is left out. Whatever is found, the node does not hold the Claim as it was written.
pub(in super::super) fn fold(raw: Raw<InSpec<ClaimSpec>>, interner: &Interner) -> (ReadClaim, Vec<Problem>) {
    let mut found = Findings::of(None);
    let name = raw.meta.name.unwrap_or_default();
    let field = |field: &str| format!("Claim {name}: {field}");
    let version = raw.meta.resource_version.unwrap_or_default();
    let version = version.parse().map_err(|_| wrong("is no number, and so says nothing of order", REMEDY));
    let version = found.check(field("metadata.resourceVersion"), "", version);
    let spec =
        raw.body.map_err(|error| wrong(format!("does not have the shape of its kind: {error}"), REMEDY));
    let spec = found.check(field("spec"), "", spec).and_then(|body| body.spec);
    let origin = key(&raw.origin);
    let claim = version.zip(spec).and_then(|(version, spec)| {
        let claim = Arc::new(read(spec, field, &mut found, interner)?);
        Some(StoredClaim { version, claim })
    });
    let problems = found.into_problems();
    (ReadClaim { version, claim, origin: origin.filter(|_| !problems.is_empty()) }, problems)
}

/// Returns what NodeStates call an origin. Its kind may be one that this release does not know.
fn key(origin: &Value) -> Option<Arc<str>> {
    let text = |field: &str| {
        let text = origin.get(field)?.as_str()?;
        (!text.is_empty() && text.len() <= NAME_BYTES_MAX).then_some(text)
    };
    Some(format!("{}/{}/{}", text("kind")?, text("namespace")?, text("name")?).into())
}

/// Returns the kind of an origin. Of one that a later release brings, what was granted is known all the same.
fn kind(name: &str) -> Result<Kind, Wrong> {
    origins::kind(name).or_else(|| unknown_kind(name)).ok_or_else(|| wrong("is no kind that claims", REMEDY))
}

fn read(
    spec: ClaimSpec,
    field: impl Fn(&str) -> String,
    found: &mut Findings,
    interner: &Interner,
) -> Option<Claim> {
    let unserved = spec.unserved();
    let kind = found.check(field("spec.origin.kind"), &spec.origin.kind, kind(&spec.origin.kind))?;
    let protocol = found.check(field("spec.protocol"), &spec.protocol, protocol(&spec.protocol))?;
    let port = port(&spec, &field, found)?;
    let health_port = health_port(&spec, &field, found);
    let origin = spec.origin;
    let server_name = spec
        .probe_server_name
        .and_then(|text| found.check(field("spec.probeServerName"), &text, value::server_name(&text)));
    let grants = spec
        .grants
        .iter()
        .filter_map(|grant| found.check(field("spec.grants"), &grant.address, grant.read(protocol)));
    let mut grants: Vec<Grant> = grants.collect();
    // There are as many Claims as routes, most with one grant; a list that grows has room for four.
    grants.shrink_to_fit();
    let server_name = server_name.map(|name| shared(name, &grants));
    let references = spec.backends.into_iter().map(|backend| reference(backend, &field, found, interner));
    let mut references: Arc<[ClaimBackend]> = references.collect();
    let (mut ranges, mut traffic) = (None, TrafficPolicy::Cluster);
    let mut is_refused = !unserved.is_empty();
    for (name, value) in &spec.policy {
        let read = match &**name {
            claim::SOURCE_RANGES => source_ranges(value).map(|read| ranges = Some(read)),
            claim::TRAFFIC if *value == claim::LOCAL => {
                traffic = TrafficPolicy::Local;
                Ok(())
            }
            _ => Err(not_enforced()),
        };
        is_refused |= found.check(field(&format!("spec.policy.{name}")), value, read).is_none();
    }
    for (name, value) in unserved {
        found.tell(
            field(name),
            value,
            wrong("is not known to this release: no connection is admitted", REMEDY),
        );
    }
    let asked = spec.session_affinity.as_deref();
    let affinity = found.check(field("spec.sessionAffinity"), asked.unwrap_or_default(), affinity(asked));
    is_refused |= affinity.is_none();
    if is_refused {
        references = Arc::default();
    }
    let backends = match kind {
        Kind::Gateway | Kind::ListenerSet => ClaimBackends::None,
        _ => ClaimBackends::Services { references, server_name },
    };
    let created = origin.created.parse::<Timestamp>().map_or(0, Timestamp::as_second);
    let name = ObjectName { namespace: interner.of(&origin.namespace), name: interner.of(&origin.name) };
    Some(Claim {
        origin: Origin::Object { created_secs: created, kind, name },
        part: interner.of(&origin.part),
        tenant: (!spec.tenant.is_empty()).then(|| interner.of(&spec.tenant)),
        port,
        protocol,
        // What was asked and not granted is not served, and no node asks which object of this name it is.
        asked: None,
        // Few claims share a route, so the interner would take more than it saves.
        route: (!spec.route.is_empty()).then(|| match is_refused {
            false => Arc::from(&*spec.route),
            // Another claim of the route may lead to its backends.
            true => refused(&spec.route).into(),
        }),
        grants,
        backends,
        source_ranges: ranges,
        affinity: affinity.unwrap_or_default(),
        traffic,
        health_port,
    })
}

/// A port of a pool need not be one yet.
fn port(spec: &ClaimSpec, field: impl Fn(&str) -> String, found: &mut Findings) -> Option<u16> {
    let port = value::port(spec.port.into());
    match spec.port_pool {
        Some(_) => Some(port.unwrap_or_default()),
        None => found.check(field("spec.port"), spec.port, port),
    }
}

/// Returns where the node says whether it leads to endpoints of the Service that claims.
fn health_port(spec: &ClaimSpec, field: impl Fn(&str) -> String, found: &mut Findings) -> Option<NonZeroU16> {
    let number = spec.health_check_node_port?;
    let port = found.check(field("spec.healthCheckNodePort"), number, value::port(number.into()));
    port.and_then(NonZeroU16::new)
}

/// The copy of a name that a grant has: most probes ask for a name that is granted.
fn shared(name: ServerName, grants: &[Grant]) -> ServerName {
    let granted = grants.iter().find_map(|grant| match &grant.what {
        Granted::Names(Pattern::Exact(granted)) if *granted == name => Some(granted.clone()),
        _ => None,
    });
    granted.unwrap_or(name)
}

/// What a later release may ask for: to admit no client is better than to admit all, or to another backend.
fn not_enforced() -> Wrong {
    wrong("is not enforced by this release: no connection is admitted", REMEDY)
}

/// Returns what the route of a Claim is called that is not served as it was written. A name in maps has a bound, and cut off it would
/// be another route's.
fn refused(route: &str) -> String {
    const MARK: &str = " (refused)";
    if route.len() + MARK.len() <= LABEL_BYTES_MAX {
        return format!("{route}{MARK}");
    }
    let hash = format!("~{:016x}{MARK}", digest::of(&["refused", route]));
    format!("{}{hash}", &route[..route.floor_char_boundary(LABEL_BYTES_MAX - hash.len())])
}

fn affinity(text: Option<&str>) -> Result<Affinity, Wrong> {
    match text {
        None => Ok(Affinity::None),
        Some(claim::CLIENT_IP) => Ok(Affinity::ClientIp),
        Some(_) => Err(not_enforced()),
    }
}

fn source_ranges(value: &Value) -> Result<SourceRanges, Wrong> {
    let Some(texts) = value.as_array() else {
        return Err(wrong("is no list: no connection is admitted", REMEDY));
    };
    let range = |text: &Value| match text.as_str() {
        Some(text) => value::network(text),
        None => Err(wrong("has something that is no CIDR: no connection is admitted", REMEDY)),
    };
    let ranges: Vec<IpNet> = texts.iter().map(range).collect::<Result<_, _>>()?;
    Ok(SourceRanges::new(&ranges))
}

fn reference(
    backend: claim::ClaimBackend,
    field: impl Fn(&str) -> String,
    found: &mut Findings,
    interner: &Interner,
) -> ClaimBackend {
    let mut probe = |own: Option<ClaimProbe>| {
        own.and_then(|own| found.check(field("spec.backends"), &own.kind, probe(&own)))
    };
    let to = match (backend.service, backend.address) {
        (None, None) => None,
        (Some(service), None) => Some(ClaimTarget::Service(ServicePortRef {
            name: ObjectName { namespace: interner.of(&service.namespace), name: interner.of(&service.name) },
            port: interner.of(&service.port_name),
            probe: probe(service.probe),
        })),
        (service, Some(own)) => {
            let probe = probe(own.probe);
            let at = match service {
                // Which one is meant, nobody knows.
                Some(_) => Err(wrong("is beside a Service: its share is refused", REMEDY)),
                None => value::address(&own.address)
                    .and_then(|address| Ok(SocketAddr::new(address, value::port(own.port.into())?))),
            };
            let text = format_args!("{}, port {}", own.address, own.port);
            let at = found.check(field("spec.backends.address"), text, at);
            at.map(|at| ClaimTarget::Address(Box::new(AddressRef::new(at, probe))))
        }
    };
    let weight =
        u32::try_from(backend.weight).map_err(|_| wrong("is no share: it gets no connection", REMEDY));
    let weight = found.check(field("spec.backends.weight"), backend.weight, weight);
    ClaimBackend { weight: weight.unwrap_or_default(), to }
}

fn probe(probe: &ClaimProbe) -> Result<ProbeSpec, Wrong> {
    let kind = match &*probe.kind {
        "TCP" => ProbeKind::Tcp,
        "TLS" => ProbeKind::Tls,
        _ => return Err(wrong("is no kind of probe", REMEDY)),
    };
    let out_of_range = |_| wrong("has a number that is out of range", REMEDY);
    if [probe.interval_ms, probe.timeout_ms, probe.failures, probe.successes].contains(&0) {
        return Err(wrong("has a number that is out of range", REMEDY));
    }
    Ok(ProbeSpec {
        kind,
        interval_ms: probe.interval_ms.try_into().map_err(out_of_range)?,
        timeout_ms: probe.timeout_ms.try_into().map_err(out_of_range)?,
        failures: probe.failures.try_into().map_err(out_of_range)?,
        successes: probe.successes.try_into().map_err(out_of_range)?,
    })
}
