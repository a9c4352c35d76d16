//! EndpointSlice.

use super::super::api::core::{Conditions, EndpointPort, Slice as RawSlice};
use super::super::api::object::Raw;
use super::super::endpoints::normalise;
use super::super::interner::Interner;
use super::super::value::{self, Findings, Wrong, wrong};
use super::super::watch_event::Slice;
use crate::model::cluster::{Endpoint, EndpointState};
use crate::model::{Kind, ObjectName, ObjectRef, Problem};
use std::net::IpAddr;
use std::sync::Arc;

/// Which Service a slice belongs to.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Problems of a slice are reported for its Service.
pub(in super::super) fn fold(raw: Raw<RawSlice>, interner: &Interner) -> (Slice, Vec<Problem>) {
    let labels = raw.meta.labels.unwrap_or_default();
    let service = ObjectName {
        namespace: interner.of(raw.meta.namespace.as_deref().unwrap_or_default()),
        name: interner.of(labels.get(SERVICE_NAME).map_or("", String::as_str)),
    };
    let name = Arc::clone(&service.name);
    let mut found = Findings::of(Some(ObjectRef { kind: Kind::Service, name: service }));
    let slice_name = raw.meta.name.unwrap_or_default();
    let field = |field: &str| format!("EndpointSlice {slice_name}: {field}");
    let slice: RawSlice = raw.body.unwrap_or_else(|error| {
        let what = format!("does not have the shape of its kind: {error}");
        found.tell(field(""), "", wrong(what, "see what writes the slice; until then it is taken as empty"));
        RawSlice::default()
    });
    let Some(is_v4) = family(slice.address_type.as_deref(), &field("addressType"), &mut found) else {
        return (Slice { service: name, endpoints: Arc::new([]) }, found.into_problems());
    };
    let ports = ports(slice.ports, field, &mut found, interner);
    let mut endpoints = Vec::new();
    for (place, raw) in slice.endpoints.into_iter().flatten().enumerate() {
        // All addresses of an endpoint lead to the same; the API lets us take the first.
        let Some(text) = raw.addresses.iter().flatten().next() else { continue };
        let field = format!("EndpointSlice {slice_name}: endpoints[{place}].addresses[0]");
        let Some(address) = found.check(field, text, of_family(text, is_v4)) else { continue };
        let zones = raw.hints.and_then(|hints| hints.for_zones).unwrap_or_default();
        let zones = interner.list(zones.iter().filter_map(|zone| zone.name.as_deref()));
        let node = raw.node_name.filter(|name| !name.is_empty()).map(|name| interner.of(&name));
        let state = state(raw.conditions.unwrap_or_default());
        endpoints.extend(ports.iter().map(|(name, port)| Endpoint {
            port_name: Arc::clone(name),
            address,
            port: *port,
            state,
            zones: Arc::clone(&zones),
            node: node.clone(),
        }));
    }
    (Slice { service: name, endpoints: normalise(endpoints) }, found.into_problems())
}

/// Whether addresses are IPv4; `None`: no addresses that packets can be sent to.
fn family(text: Option<&str>, field: &str, found: &mut Findings) -> Option<bool> {
    match text {
        Some("IPv4") => Some(true),
        Some("IPv6") => Some(false),
        None => None,
        Some(other) => {
            let remedy = "use a Service with IPv4 or IPv6 endpoints: names are not resolved";
            found.tell(field, other, wrong("is not a family of addresses", remedy));
            None
        }
    }
}

/// TCP ports by name. One without number stands for all ports, which none of ours can serve.
fn ports(
    raw: Option<Vec<EndpointPort>>,
    field: impl Fn(&str) -> String,
    found: &mut Findings,
    interner: &Interner,
) -> Vec<(Arc<str>, u16)> {
    let mut ports = Vec::new();
    for (place, raw) in raw.into_iter().flatten().enumerate() {
        let is_tcp = raw.protocol.as_deref().unwrap_or("TCP") == "TCP";
        let Some(number) = raw.port.filter(|_| is_tcp) else { continue };
        let port = found.check(field(&format!("ports[{place}].port")), number, value::port(number));
        ports.extend(port.map(|port| (interner.of(raw.name.as_deref().unwrap_or_default()), port)));
    }
    ports
}

fn of_family(text: &str, is_v4: bool) -> Result<IpAddr, Wrong> {
    let address = value::address(text)?;
    if address.is_ipv4() != is_v4 {
        return Err(wrong("is not of the slice's addressType", "see what writes the slice"));
    }
    Ok(address)
}

/// By the defaults of the API: unknown readiness is ready, unknown serving is as ready, unknown terminating is not.
fn state(conditions: Conditions) -> EndpointState {
    let ready = conditions.ready.unwrap_or(true);
    let serving = conditions.serving.unwrap_or(ready);
    match (ready, serving, conditions.terminating.unwrap_or(false)) {
        // Ready and terminating is what `publishNotReadyAddresses` asks for.
        (true, _, _) => EndpointState::Ready,
        (false, true, true) => EndpointState::Draining,
        (false, _, _) => EndpointState::NotReady,
    }
}
