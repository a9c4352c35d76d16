//! Claim: what the controller wrote, back to what it meant.

use super::super::api::claim::{self, ClaimGrant, ClaimProbe, ClaimSpec};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value::{self, Findings, Wrong, wrong};
use crate::model::claim::{ClaimBackend, ClaimBackends, Grant, Granted, ServicePortRef};
use crate::model::cluster::{ProbeKind, ProbeSpec};
use crate::model::{Claim, Kind, ObjectName, Origin, Problem, Protocol, StoredClaim};
use k8s_openapi::jiff::Timestamp;
use std::net::SocketAddr;
use std::sync::Arc;

/// What to do about a Claim that cannot be read: nobody but the controller writes it.
const REMEDY: &str =
    "run agents and controller of one release; the controller writes the Claim again when it is deleted";

/// `None`: it cannot be read. A grant that cannot be read is left out.
pub(in super::super) fn fold(
    raw: Raw<InSpec<ClaimSpec>>,
    interner: &Interner,
) -> (Option<StoredClaim>, Vec<Problem>) {
    let mut found = Findings::of(None);
    let name = raw.meta.name.unwrap_or_default();
    let field = |field: &str| format!("Claim {name}: {field}");
    let version = raw.meta.resource_version.unwrap_or_default();
    let version = version.parse().map_err(|_| wrong("is no number, and so says nothing of order", REMEDY));
    let version = found.check(field("metadata.resourceVersion"), "", version);
    let spec =
        raw.body.map_err(|error| wrong(format!("does not have the shape of its kind: {error}"), REMEDY));
    let spec = found.check(field("spec"), "", spec).and_then(|body| body.spec);
    let claim = version.zip(spec).and_then(|(version, spec)| {
        let claim = Arc::new(read(spec, field, &mut found, interner)?);
        Some(StoredClaim { version, claim })
    });
    (claim, found.into_problems())
}

fn read(
    spec: ClaimSpec,
    field: impl Fn(&str) -> String,
    found: &mut Findings,
    interner: &Interner,
) -> Option<Claim> {
    let origin = spec.origin;
    let kind = origin.kind.parse::<Kind>().map_err(|()| wrong("is no kind that claims", REMEDY));
    let kind = found.check(field("spec.origin.kind"), &origin.kind, kind)?;
    let protocol = found.check(field("spec.protocol"), &spec.protocol, protocol(&spec.protocol))?;
    let port = found.check(field("spec.port"), spec.port, value::port(spec.port.into()))?;
    let server_name = spec
        .probe_server_name
        .and_then(|text| found.check(field("spec.probeServerName"), &text, value::server_name(&text)));
    let grants = spec
        .grants
        .iter()
        .filter_map(|grant| found.check(field("spec.grants"), &grant.address, self::grant(grant, protocol)));
    let grants = grants.collect();
    let backends = match kind {
        Kind::Gateway | Kind::ListenerSet => ClaimBackends::None,
        _ => ClaimBackends::Services {
            references: spec.backends.into_iter().map(|backend| reference(backend, interner)).collect(),
            server_name,
        },
    };
    let created = origin.created.parse::<Timestamp>().map_or(0, Timestamp::as_second);
    let name = ObjectName { namespace: interner.of(&origin.namespace), name: interner.of(&origin.name) };
    Some(Claim {
        origin: Origin::Object { created_secs: created, kind, name },
        part: origin.part.into(),
        uid: origin.uid.into(),
        tenant: (!spec.tenant.is_empty()).then(|| interner.of(&spec.tenant)),
        port,
        protocol,
        // What was asked and not granted is not served.
        matches: Vec::new(),
        refusals: Vec::new(),
        route: (!spec.route.is_empty()).then(|| interner.of(&spec.route)),
        grants,
        backends,
    })
}

fn protocol(text: &str) -> Result<Protocol, Wrong> {
    match text {
        "TLS" => Ok(Protocol::Tls),
        "TCP" => Ok(Protocol::Tcp),
        _ => Err(wrong("is no protocol that is served", REMEDY)),
    }
}

fn grant(grant: &ClaimGrant, protocol: Protocol) -> Result<Grant, Wrong> {
    let (address, port) = (value::address(&grant.address)?, value::port(grant.port.into())?);
    let what = match grant.names.as_deref() {
        None => Granted::Binding,
        Some("*") => Granted::Rest,
        Some(names) => Granted::Names(value::pattern(names)?),
    };
    Ok(Grant { at: SocketAddr::new(address, port), protocol, what })
}

fn reference(backend: claim::ClaimBackend, interner: &Interner) -> ClaimBackend {
    let service = backend.service.map(|service| ServicePortRef {
        name: ObjectName { namespace: interner.of(&service.namespace), name: interner.of(&service.name) },
        port: interner.of(&service.port_name),
        probe: service.probe.as_ref().map(probe),
    });
    ClaimBackend { weight: u32::try_from(backend.weight).unwrap_or_default(), service }
}

fn probe(probe: &ClaimProbe) -> ProbeSpec {
    ProbeSpec {
        kind: if probe.kind == "TLS" { ProbeKind::Tls } else { ProbeKind::Tcp },
        interval_ms: probe.interval_ms,
        timeout_ms: probe.timeout_ms,
        failures: probe.failures,
        successes: probe.successes,
    }
}
