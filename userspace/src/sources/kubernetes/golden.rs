//! Every sample of the Gateway API, from its YAML to the desired state and the status of its objects.

use super::api::object::{Object, Raw};
use super::fold;
use super::interner::Interner;
use crate::compile::{Compiled, compile};
use crate::model::cluster::*;
use crate::model::verdict::{ListenerVerdict, Programmable, RouteVerdict};
use crate::model::{Cluster, Facts, Kind, Meta, ObjectName};
use crate::settle::tests::conditions;
use expect_test::expect_file;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Services, namespaces and grants that the upstream suite's tests find in place.
const BASE: &str = "conformance/base-manifests.yaml";

/// The folder of the samples, or `None` and a line on stderr.
fn folder() -> Option<PathBuf> {
    let fixtures = match std::env::var_os("VESTIBULE_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    let folder = fixtures.join("crds/gateway-api");
    if !folder.is_dir() {
        eprintln!(
            "SKIPPED: no samples of the Gateway API; set VESTIBULE_FIXTURES to the folder that holds crds/"
        );
        return None;
    }
    Some(folder)
}

/// Paths of the samples below the folder, in order.
fn samples(folder: &Path, below: &str, found: &mut Vec<String>) {
    let entries = std::fs::read_dir(folder.join(below)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in names {
        let path = format!("{below}/{name}");
        if folder.join(&path).is_dir() {
            samples(folder, &path, found);
        } else if name.ends_with(".yaml") {
            found.push(path);
        }
    }
}

fn objects(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let all: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    all.into_iter().filter(|object| !object.is_null()).collect()
}

fn raw<B: DeserializeOwned>(object: &Value) -> Raw<B> {
    serde_json::from_value::<Object<B, false>>(object.clone()).unwrap().0
}

/// A cluster as the store builds it.
struct Stored {
    cluster: Cluster,
    interner: Interner,
    endpoints: u8,
}

impl Stored {
    fn new() -> Self {
        let range = |first: &str, last: &str| AddressRange {
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
        };
        let ranges = vec![range("192.0.2.1", "192.0.2.99"), range("2001:db8::1", "2001:db8::99")];
        let policy = Policy { ranges, panic_percent: 50, ..Policy::default() };
        Self {
            cluster: Cluster { policy, ..Cluster::default() },
            interner: Interner::default(),
            endpoints: 0,
        }
    }

    /// Takes an object in; `is_base`: only what tests find in place.
    fn put(&mut self, mut object: Value, is_base: bool) {
        let (cluster, interner) = (&mut self.cluster, &self.interner);
        let kind = object["kind"].as_str().unwrap().to_owned();
        if object["metadata"]["namespace"].is_null() && kind != "Namespace" && kind != "GatewayClass" {
            object["metadata"]["namespace"] = "default".into();
        }
        let name = |meta: &Meta| meta.name.clone();
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        match &*kind {
            "Gateway" if !is_base => {
                let (spec, _) = fold::gateway(raw(&object), interner);
                cluster.classes.insert(Arc::clone(&spec.class), Arc::new(ClassSpec::default()));
                cluster.gateways.insert(name(&spec.meta), Arc::new(spec));
            }
            "ListenerSet" => {
                let (spec, _) = fold::listener_set(raw(&object), interner);
                cluster.listener_sets.insert(name(&spec.meta), Arc::new(spec));
            }
            "TLSRoute" => {
                let (spec, _) = fold::route(Kind::TlsRoute, raw(&object), interner);
                cluster.tls_routes.insert(name(&spec.meta), Arc::new(spec));
            }
            "TCPRoute" => {
                let (spec, _) = fold::route(Kind::TcpRoute, raw(&object), interner);
                cluster.tcp_routes.insert(name(&spec.meta), Arc::new(spec));
            }
            "ReferenceGrant" => {
                let (spec, _) = fold::grant(raw(&object), interner);
                cluster
                    .namespaces
                    .grants
                    .insert(ObjectName::new(text("namespace"), text("name")), Arc::new(spec));
            }
            "Namespace" => {
                let (labels, _) = fold::namespace(raw(&object), interner);
                cluster.namespaces.labels.insert(text("name").into(), Arc::new(labels));
            }
            "Service" => {
                let (spec, _) = fold::service(raw(&object), &fold::Reading::default(), interner);
                // No samples of EndpointSlices: one endpoint for each port.
                self.endpoints += 1;
                let endpoint = |port: &ServicePort| Endpoint {
                    port_name: Arc::clone(&port.name),
                    address: [10, 244, 0, self.endpoints].into(),
                    port: port.port,
                    state: EndpointState::Ready,
                    zones: Arc::new([]),
                    node: None,
                };
                cluster.endpoints.insert(name(&spec.meta), spec.ports.iter().map(endpoint).collect());
                cluster.services.insert(name(&spec.meta), Arc::new(spec));
            }
            _ => {}
        }
    }

    /// The cluster once the controller has written the addresses to status.
    fn settled(mut self) -> Compiled {
        let facts = |cluster: &Cluster| Facts { cluster: Some(cluster.clone()), ..Facts::default() };
        let first = compile(&facts(&self.cluster));
        assert!(first.desired.listeners.is_empty(), "an address is served before it is in status");
        for (name, verdict) in first.verdicts.gateways {
            let gateway = Arc::make_mut(self.cluster.gateways.get_mut(&name).unwrap());
            gateway.given = verdict.addresses;
        }
        compile(&facts(&self.cluster))
    }
}

fn programmed(programmable: &Programmable) -> String {
    match programmable {
        Programmable::Yes => "Programmed".to_owned(),
        Programmable::No(condition) => conditions(std::slice::from_ref(condition)),
    }
}

fn tell_listeners(text: &mut String, listeners: &[ListenerVerdict]) {
    for listener in listeners {
        let kinds: Vec<&str> = listener.supported_kinds.iter().map(|kind| &*kind.kind).collect();
        let (name, own, routes) =
            (&listener.name, conditions(&listener.conditions), listener.attached_routes);
        writeln!(text, "    {name}: {own} attachedRoutes={routes} supportedKinds={kinds:?}").unwrap();
    }
}

fn tell_routes<'a>(
    text: &mut String,
    kind: Kind,
    routes: impl IntoIterator<Item = (&'a ObjectName, &'a RouteVerdict)>,
) {
    for (name, verdict) in routes {
        for parent in &verdict.parents {
            let section = parent.parent.section.as_deref().unwrap_or("*");
            writeln!(
                text,
                "  {kind} {name} on {}#{section}: {}",
                parent.parent.name,
                conditions(&parent.conditions)
            )
            .unwrap();
        }
    }
}

fn told(compiled: &Compiled) -> String {
    let mut text = String::new();
    let desired = &compiled.desired;
    for (at, listener) in desired.listeners.iter().enumerate() {
        writeln!(text, "  {} {:?}", listener.name, listener.protocol).unwrap();
        for route in &desired.routes {
            for (_, pattern) in route.names.iter().filter(|(of, _)| *of == at) {
                writeln!(text, "    {pattern} -> {}", route.name).unwrap();
            }
        }
        if let Some(route) = listener.route {
            writeln!(text, "    -> {}", desired.routes[route].name).unwrap();
        }
    }
    for route in &desired.routes {
        let backends = route.backends.iter().map(|b| format!("{}:{} *{}", b.address, b.port, b.weight));
        writeln!(text, "  {}: {}", route.name, backends.collect::<Vec<_>>().join(", ")).unwrap();
    }
    let verdicts = &compiled.verdicts;
    for (name, verdict) in &verdicts.gateways {
        let (own, programmed) = (conditions(&verdict.conditions), programmed(&verdict.programmable));
        writeln!(text, "  Gateway {name}: {own} {programmed}").unwrap();
        tell_listeners(&mut text, &verdict.listeners);
    }
    for (name, verdict) in &verdicts.listener_sets {
        let (own, programmed) = (conditions(&verdict.conditions), programmed(&verdict.programmable));
        writeln!(text, "  ListenerSet {name}: {own} {programmed}").unwrap();
        tell_listeners(&mut text, &verdict.listeners);
    }
    tell_routes(&mut text, Kind::TlsRoute, &verdicts.tls_routes);
    tell_routes(&mut text, Kind::TcpRoute, &verdicts.tcp_routes);
    for problem in &compiled.problems {
        writeln!(text, "  {problem}").unwrap();
    }
    text
}

#[test]
fn samples_come_to_what_they_should() {
    let Some(folder) = folder() else { return };
    let mut paths = Vec::new();
    samples(&folder, "conformance", &mut paths);
    samples(&folder, "samples", &mut paths);
    assert!(paths.len() >= 20, "{paths:?}");
    let mut golden = String::new();
    for path in paths {
        let mut stored = Stored::new();
        if path.starts_with("conformance/") && path != BASE {
            objects(&folder.join(BASE)).into_iter().for_each(|object| stored.put(object, true));
        }
        objects(&folder.join(&path)).into_iter().for_each(|object| stored.put(object, false));
        writeln!(golden, "{path}\n{}", told(&stored.settled())).unwrap();
    }
    expect_file!["golden.txt"].assert_eq(&golden);
}
