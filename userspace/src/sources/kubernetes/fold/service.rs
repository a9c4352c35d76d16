//! Service.

use super::super::api::core::{Service, ServicePort as RawPort};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::probe;
use super::super::value::{self, Findings, wrong};
use super::{findings, meta, pool_wish};
use crate::model::cluster::{
    ClassPolicy, FamilyWish, LoadBalancerSpec, PoolNote, PoolWish, ProbeSpec, ServicePort, ServiceSpec,
};
use crate::model::service::OWN_CLASS;
use crate::model::source_ranges::RANGES_OF_ONE_MAX;
use crate::model::{Affinity, EventReason, Kind, Problem, SourceRanges, TrafficPolicy};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

/// Annotations that ask for addresses, the stronger first: a list with commas.
const ADDRESSES: [&str; 3] =
    ["vestibule.dev/addresses", "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"];
/// Annotations with a key that is shared, the stronger first.
const SHARING_KEY: [&str; 2] = ["metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"];
/// The older form of `spec.loadBalancerSourceRanges`.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// What MetalLB's annotations began with in its first releases.
const OLD_PREFIX: &str = "metallb.universe.tf/";
const PROBE: &str = "vestibule.dev/probe";
/// What the API server writes into `spec.sessionAffinityConfig` where nobody says anything.
const AFFINITY_SECS: i64 = 10_800;
/// How much of what is no address is kept: Claims show it.
const UNREADABLE_MAX: usize = 8;
const UNREADABLE_CHARS_MAX: usize = 64;

/// What is read of Services besides themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Reading {
    /// What its probe annotation does not say.
    pub(in super::super) probe: ProbeSpec,
    /// Which of them are ours besides those of our own class.
    pub(in super::super) classes: ClassPolicy,
}

/// Folds a Service.
pub(in super::super) fn fold(
    raw: Raw<InSpec<Service>>,
    reading: &Reading,
    interner: &Interner,
) -> (ServiceSpec, Vec<Problem>) {
    let meta = meta(&raw.meta, interner);
    let mut found = findings(Kind::Service, &meta);
    let annotations = &raw.meta.annotations;
    let spec = found.body(raw.body).spec.unwrap_or_default();
    let kind = spec.r#type.as_deref().unwrap_or("ClusterIP");
    let class = spec.load_balancer_class.as_deref();
    let has_own_class = class == Some(OWN_CLASS);
    let is_ours = kind == "LoadBalancer" && (has_own_class || reading.classes.adopts(class));
    let service = ServiceSpec {
        noted: PoolNote {
            pool: annotations.get(PoolNote::KEY).map(|pool| interner.of(pool)),
            has_old: annotations.contains_key(PoolNote::OLD_KEY),
        },
        is_external_name: kind == "ExternalName",
        load_balancer: is_ours.then(|| {
            let from = pool_wish(&raw.meta, interner);
            Arc::new(LoadBalancerSpec {
                given: given(&raw.status, |_| true),
                given_by_others: given(&raw.status, |entry| !is_own(entry)),
                from,
                is_adopted: !has_own_class,
                foreign: host_name(&raw.status, interner),
                deprecated: deprecated(annotations, interner),
                ..load_balancer(&spec, annotations, &mut found, interner)
            })
        }),
        ports: ports(spec.ports, &mut found, interner),
        probe: annotations
            .get(PROBE)
            .and_then(|text| found.check(annotation(PROBE), text, probe::read(text, reading.probe))),
        meta,
    };
    let mut problems = found.into_problems();
    // What is wrong with the addresses that it asks for.
    let field = service.load_balancer.as_ref().map_or("", |balancer| &balancer.field);
    for problem in problems.iter_mut().filter(|problem| problem.field == field) {
        problem.reason = Some(EventReason::LoadBalancerFailed);
    }
    (service, problems)
}

/// Returns the annotations of MetalLB's old prefix, but for the one that MetalLB itself wrote.
fn deprecated(annotations: &BTreeMap<String, String>, interner: &Interner) -> Vec<Arc<str>> {
    let names = annotations.keys().filter(|name| name.starts_with(OLD_PREFIX));
    names.filter(|name| **name != PoolNote::OLD_KEY).map(|name| interner.of(name)).collect()
}

fn ports(raw: Option<Vec<RawPort>>, found: &mut Findings, interner: &Interner) -> Vec<ServicePort> {
    let mut ports = Vec::new();
    for (place, raw) in raw.into_iter().flatten().enumerate() {
        let number = raw.port.unwrap_or_default();
        let field = format_args!("spec.ports[{place}].port");
        let Some(port) = found.check(field, number, value::port(number)) else { continue };
        let protocol = interner.of(raw.protocol.as_deref().unwrap_or("TCP"));
        let name = interner.of(raw.name.as_deref().unwrap_or_default());
        ports.push(ServicePort { name, port, is_tcp: &*protocol == "TCP", protocol });
    }
    ports
}

fn load_balancer(
    spec: &Service,
    annotations: &BTreeMap<String, String>,
    found: &mut Findings,
    interner: &Interner,
) -> LoadBalancerSpec {
    // An empty one of MetalLB's, as charts render it, asks for nothing.
    let is_meant = |name: &str, text: &str| name == ADDRESSES[0] || !text.trim().is_empty();
    let annotated = ADDRESSES.iter().find_map(|name| {
        let text = annotations.get(*name).filter(|text| is_meant(name, text))?;
        Some((annotation(name), text))
    });
    let alone = spec.load_balancer_ip.as_ref().filter(|text| !text.is_empty());
    // Our own annotation comes before all of MetalLB's fields.
    let of_metallb = annotated.as_ref().filter(|(field, _)| *field != annotation(ADDRESSES[0]));
    let also_asked = of_metallb.and(alone).map(|alone| start_of(alone));
    let written = annotated.or_else(|| Some(("spec.loadBalancerIP".to_owned(), alone?)));
    let mut addresses = Vec::new();
    let mut field = String::new();
    let mut unreadable: Vec<Arc<str>> = Vec::new();
    if let Some((place, text)) = written {
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let address = found.check(&place, part, value::address(part));
            if address.is_none() && unreadable.len() < UNREADABLE_MAX {
                unreadable.push(start_of(part));
            }
            addresses.extend(address.filter(|address| !addresses.contains(address)));
        }
        if text.trim_matches([',', ' ']).is_empty() {
            let remedy = "write one address, or several with commas between them, or remove it";
            found.tell(&place, text, wrong("names no address", remedy));
            unreadable.push(start_of(text));
        }
        field = place;
    }
    report_not_kept(spec, found);
    LoadBalancerSpec {
        addresses,
        field: interner.of(&field),
        unreadable,
        given: Vec::new(),
        given_by_others: Vec::new(),
        from: PoolWish::default(),
        is_adopted: false,
        foreign: None,
        deprecated: Vec::new(),
        sharing_key: SHARING_KEY
            .iter()
            .find_map(|name| annotations.get(*name))
            .filter(|key| !key.is_empty())
            .map(|key| interner.of(key)),
        local_pods: interner.of(&local_pods(spec)),
        also_asked,
        families: families(spec),
        source_ranges: source_ranges(spec, annotations, found),
        affinity: match spec.session_affinity.as_deref() {
            Some("ClientIP") => Affinity::ClientIp,
            _ => Affinity::None,
        },
        traffic: match spec.external_traffic_policy.as_deref() {
            Some("Local") => TrafficPolicy::Local,
            _ => TrafficPolicy::Cluster,
        },
        health_port: health_port(spec, found),
    }
}

/// Returns where nodes say whether they lead to any of its pods, if only those of the node that they reach take its connections.
fn health_port(spec: &Service, found: &mut Findings) -> Option<NonZeroU16> {
    let local = spec.external_traffic_policy.as_deref() == Some("Local");
    // 0 is as good as absent.
    let port = spec.health_check_node_port.filter(|port| local && *port != 0)?;
    NonZeroU16::new(found.check("spec.healthCheckNodePort", port, value::port(port))?)
}

/// Returns which pods take its connections, if only those of the node that they reach do.
fn local_pods(spec: &Service) -> String {
    if spec.external_traffic_policy.as_deref() != Some("Local") {
        return String::new();
    }
    let pairs = spec.selector.iter().flatten().map(|(label, value)| format!("{label}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

fn start_of(text: &str) -> Arc<str> {
    text.chars().take(UNREADABLE_CHARS_MAX).collect::<String>().into()
}

/// Reports what it asks of the delivery and is not kept. It is served all the same.
fn report_not_kept(spec: &Service, found: &mut Findings) {
    let config = spec.session_affinity_config.as_ref();
    let timeout = config.and_then(|config| config.pointer("/clientIP/timeoutSeconds")?.as_i64());
    if let Some(timeout) = timeout.filter(|timeout| *timeout != AFFINITY_SECS) {
        let what = "is not kept: affinity lasts as long as the set of backends";
        let remedy = "remove it, or serve the Service by other means";
        found.tell("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout, wrong(what, remedy));
    }
}

/// Returns whose connections it admits. What cannot be read admits nobody.
fn source_ranges(
    spec: &Service,
    annotations: &BTreeMap<String, String>,
    found: &mut Findings,
) -> Option<SourceRanges> {
    let listed = spec.load_balancer_source_ranges.as_deref().filter(|listed| !listed.is_empty());
    let annotated = annotations.get(SOURCE_RANGES).filter(|text| !text.trim().is_empty());
    let written: Vec<(String, String)> = match (listed, annotated) {
        (Some(listed), _) => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let field = |place: usize| format!("spec.loadBalancerSourceRanges[{place}]");
            listed.iter().enumerate().map(|(place, value)| (field(place), text(value))).collect()
        }
        (None, Some(text)) => {
            text.split(',').map(|part| (annotation(SOURCE_RANGES), part.to_owned())).collect()
        }
        (None, None) => return None,
    };
    let read = |(field, text): (String, String)| found.check(field, &text, value::network(text.trim()));
    let first = written.first().map_or_else(String::new, |(field, _)| field.clone());
    let ranges = SourceRanges::new(&written.into_iter().filter_map(read).collect::<Vec<_>>());
    let count = ranges.ranges().len();
    if count <= RANGES_OF_ONE_MAX {
        return Some(ranges);
    }
    let what = format!("are {count} ranges, and {RANGES_OF_ONE_MAX} the most: nobody is admitted");
    found.tell(first, count, wrong(what, "merge ranges, or filter such lists before the load balancer"));
    Some(SourceRanges::default())
}

/// Returns the addresses that its status has. The controller wrote them; what it cannot have written is left out.
fn given(status: &Value, is_meant: impl Fn(&Value) -> bool) -> Vec<IpAddr> {
    let ingress = status.pointer("/loadBalancer/ingress").and_then(Value::as_array);
    let address = |entry: &Value| value::address(entry.get("ip")?.as_str()?).ok();
    ingress.into_iter().flatten().filter(|entry| is_meant(entry)).filter_map(address).collect()
}

/// Whether an entry is as we write them. MetalLB and most others write no ports, and `VIP`.
fn is_own(entry: &Value) -> bool {
    let has_ports = entry.get("ports").and_then(Value::as_array).is_some_and(|ports| !ports.is_empty());
    has_ports && entry.get("ipMode").and_then(Value::as_str) == Some("Proxy")
}

/// Returns the first host name in its status.
fn host_name(status: &Value, interner: &Interner) -> Option<Arc<str>> {
    let ingress = status.pointer("/loadBalancer/ingress").and_then(Value::as_array);
    let mut names = ingress.into_iter().flatten().filter_map(|entry| entry.get("hostname")?.as_str());
    names.find(|name| !name.is_empty()).map(|name| interner.of(name))
}

/// The API server writes the families of each Service, both where the policy asks for two, and checks them.
fn families(spec: &Service) -> Vec<FamilyWish> {
    let policy = spec.ip_family_policy.as_deref().unwrap_or("SingleStack");
    let families = spec.ip_families.iter().flatten().enumerate();
    let wish = |(place, family): (usize, &String)| FamilyWish {
        is_v4: family == "IPv4",
        is_required: place == 0 || policy == "RequireDualStack",
    };
    families.map(wish).collect()
}

fn annotation(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}
