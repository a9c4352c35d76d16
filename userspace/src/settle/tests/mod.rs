//! Clusters in a short notation, and the results of settling and compiling them.

/// Which route attaches to which listener.
mod attaching;
/// Conditions of classes, Gateways, ListenerSets.
pub(crate) mod conditions;
/// The result does not depend on the order of objects.
mod order;
/// The owner of each name, address and port.
mod ownership;
/// What was granted before.
mod possession;
/// Services of our class.
mod services;
/// Conditions in a short notation.
mod notation;

pub(crate) use crate::compile::{Compiled, compile};
pub(crate) use crate::model::{cluster::*, verdict::*, *};
pub(crate) use notation::{conditions, programmed};
pub(crate) use std::{net::IpAddr, sync::Arc};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

/// `+.suffix` is one label before the suffix.
pub(crate) fn pattern(text: &str) -> Pattern {
    let name = |text| ServerName::new(text).unwrap();
    let wildcard = text.strip_prefix("*.").map(|suffix| Pattern::Wildcard(name(suffix)));
    let one_label = text.strip_prefix("+.").map(|suffix| Pattern::OneLabel(name(suffix)));
    wildcard.or(one_label).unwrap_or_else(|| Pattern::Exact(name(text)))
}

pub(crate) fn meta(object: &str, created_secs: i64) -> Meta {
    Meta { name: name(object), generation: 7, created_secs, ..Meta::default() }
}

pub(crate) fn group_kind(kind: &str) -> GroupKind {
    GroupKind { group: kind::GATEWAY_GROUP.into(), kind: kind.into() }
}

/// `name PROTOCOL:port[:hostname] [Terminate] [from=All|None|LABEL] [kinds=A,B]`.
fn listener(text: &str) -> GatewayListener {
    let mut words = text.split(' ');
    let own = words.next().unwrap();
    let mut binding = words.next().unwrap().split(':');
    let protocol = binding.next().unwrap();
    let mut listener = GatewayListener {
        name: own.into(),
        protocol: protocol.into(),
        port: binding.next().unwrap().parse().unwrap(),
        hostname: binding.next().map(pattern),
        tls_mode: (protocol == "TLS").then(|| "Passthrough".into()),
        namespaces: NamespaceScope::Same,
        kinds: Vec::new(),
    };
    for word in words {
        if word == "Terminate" {
            listener.tls_mode = Some(word.into());
        } else if let Some(from) = word.strip_prefix("from=") {
            listener.namespaces = scope(from);
        } else {
            let kinds = word.strip_prefix("kinds=").unwrap();
            listener.kinds = kinds.split(',').map(group_kind).collect();
        }
    }
    listener
}

fn scope(text: &str) -> NamespaceScope {
    match text {
        "All" => NamespaceScope::All,
        "Same" => NamespaceScope::Same,
        "None" => NamespaceScope::None,
        label => NamespaceScope::Selector(LabelSelector {
            requirements: vec![Requirement { key: label.into(), operator: Operator::Exists }],
        }),
    }
}

/// `[ListenerSet ][ns/]name[#section][:port]`.
fn parent(text: &str) -> ParentRef {
    let (kind, text) = match text.split_once(' ') {
        Some((kind, text)) => (Some(kind.into()), text),
        None => (None, text),
    };
    let (text, port) = match text.split_once(':') {
        Some((text, port)) => (text, Some(port.parse().unwrap())),
        None => (text, None),
    };
    let (text, section) = match text.split_once('#') {
        Some((text, section)) => (text, Some(section.into())),
        None => (text, None),
    };
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace.into()), name),
        None => (None, text),
    };
    ParentRef { group: None, kind, namespace, name: name.into(), section, port }
}

/// `[ns/]service[:port][*weight]`, or `Kind=name`.
fn backend_ref(text: &str) -> BackendRef {
    let (text, weight) = match text.split_once('*') {
        Some((text, weight)) => (text, weight.parse().unwrap()),
        None => (text, 1),
    };
    let (text, port) = match text.split_once(':') {
        Some((text, port)) => (text, Some(port.parse().unwrap())),
        None => (text, None),
    };
    let (kind, text) = text.split_once('=').unwrap_or(("Service", text));
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace.into()), name),
        None => (None, text),
    };
    BackendRef { group: "".into(), kind: kind.into(), namespace, name: name.into(), port, weight }
}

/// `address[:port][ draining| notready| departed][ @zone...][ on-NODE]`; the default port is 6443.
pub(crate) fn endpoint(text: &str) -> Endpoint {
    let mut words = text.split(' ');
    let at = words.next().unwrap();
    let (address, port) = match at.parse::<std::net::SocketAddr>() {
        Ok(at) => (at.ip(), at.port()),
        Err(_) => (ip(at), 6443),
    };
    let (mut state, mut zones, mut node) = (EndpointState::Ready, Vec::new(), None);
    for word in words {
        match word {
            "draining" => state = EndpointState::Draining,
            "notready" => state = EndpointState::NotReady,
            "departed" => state = EndpointState::Departed,
            on if on.starts_with("on-") => node = on.strip_prefix("on-").map(Arc::from),
            zone => zones.push(Arc::from(zone.strip_prefix('@').unwrap())),
        }
    }
    Endpoint { port_name: "p443".into(), address, port, state, zones: zones.into(), node }
}

/// Facts for a test. Objects are of class `ours` and in namespaces `a`, `b`, `c` (which is labelled `team`).
pub(crate) struct Scene {
    pub(crate) facts: Facts,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let range = |first: &str, last: &str| AddressRange { first: ip(first), last: ip(last) };
        let cluster = Cluster {
            policy: Policy {
                ranges: vec![range("192.0.2.1", "192.0.2.99"), range("2001:db8::1", "2001:db8::99")],
                panic_percent: 50,
                ..Policy::default()
            },
            classes: [("ours".into(), Arc::new(ClassSpec::default()))].into(),
            namespaces: namespaces(&["a", "b", "c"]),
            ..Cluster::default()
        };
        Self { facts: Facts { cluster: Some(cluster), ..Facts::default() } }
    }

    pub(crate) fn cluster(&mut self) -> &mut Cluster {
        self.facts.cluster.as_mut().unwrap()
    }

    /// Adds a Gateway that requested, and has, these addresses (separated by spaces).
    pub(crate) fn gateway(
        &mut self,
        object: &str,
        age: i64,
        addresses: &str,
        listeners: &[&str],
    ) -> &mut GatewaySpec {
        let addresses = || addresses.split_whitespace();
        let spec = GatewaySpec {
            meta: meta(object, age),
            class: "ours".into(),
            listeners: listeners.iter().map(|text| listener(text)).collect(),
            addresses: addresses()
                .map(|text| AddressRequest { kind: "IPAddress".into(), value: Some(text.into()) })
                .collect(),
            given: addresses().map(ip).collect(),
            ..GatewaySpec::default()
        };
        Arc::make_mut(self.cluster().gateways.entry(name(object)).or_insert(Arc::new(spec)))
    }

    pub(crate) fn listener_set(&mut self, object: &str, age: i64, of: &str, listeners: &[&str]) {
        let spec = ListenerSetSpec {
            meta: meta(object, age),
            parent: parent(of),
            listeners: listeners.iter().map(|text| listener(text)).collect(),
        };
        self.cluster().listener_sets.insert(name(object), Arc::new(spec));
    }

    pub(crate) fn route(
        parents: &[&str],
        object: &str,
        age: i64,
        hostnames: &[&str],
        refs: &[&str],
    ) -> Arc<ClusterRoute> {
        Arc::new(ClusterRoute {
            meta: meta(object, age),
            parents: parents.iter().map(|text| parent(text)).collect(),
            hostnames: hostnames.iter().map(|text| pattern(text)).collect(),
            has_hostnames: !hostnames.is_empty(),
            rules: vec![refs.iter().map(|text| backend_ref(text)).collect()],
        })
    }

    pub(crate) fn tls(
        &mut self,
        object: &str,
        age: i64,
        parents: &[&str],
        hostnames: &[&str],
        refs: &[&str],
    ) {
        let route = Self::route(parents, object, age, hostnames, refs);
        self.cluster().tls_routes.insert(name(object), route);
    }

    pub(crate) fn tcp(&mut self, object: &str, age: i64, parents: &[&str], refs: &[&str]) {
        let route = Self::route(parents, object, age, &[], refs);
        self.cluster().tcp_routes.insert(name(object), route);
    }

    /// Adds a Service with TCP port 443 and these endpoints.
    pub(crate) fn service(&mut self, object: &str, endpoints: &[&str]) -> &mut ServiceSpec {
        let endpoints = endpoints.iter().map(|text| endpoint(text)).collect();
        self.cluster().endpoints.insert(name(object), endpoints);
        let port = ServicePort { name: "p443".into(), port: 443, is_tcp: true, protocol: "TCP".into() };
        let spec = ServiceSpec { meta: meta(object, 1), ports: vec![port], ..ServiceSpec::default() };
        Arc::make_mut(self.cluster().services.entry(name(object)).or_insert(Arc::new(spec)))
    }

    /// Adds a listener of the static file. With `TLS`, `default` is its default route.
    pub(crate) fn file_listener(
        &mut self,
        own: &str,
        protocol: Protocol,
        addresses: &[&str],
        port: u16,
        default: Option<&str>,
    ) {
        let place = self.facts.listeners.len();
        self.facts.listeners.push(ListenerSpec {
            place,
            name: own.into(),
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            port,
            protocol,
            default_route: default.map(Into::into),
        });
    }

    pub(crate) fn file_route(&mut self, own: &str, listener: &str, patterns: &[&str], backend: &str) {
        let place = self.facts.routes.len();
        let backend = BackendSpec { address: ip(backend), port: 6443, weight: 1, failing: false };
        self.facts.routes.push(RouteSpec {
            place,
            name: own.into(),
            listeners: vec![listener.into()],
            patterns: patterns.iter().map(|text| pattern(text)).collect(),
            backends: vec![backend],
            source_ranges: None,
            affinity: Affinity::None,
            traffic: TrafficPolicy::Cluster,
        });
    }

    pub(crate) fn compiled(&self) -> Compiled {
        compile(&self.facts)
    }

    /// Shows each binding, and where its names lead, on one line.
    pub(crate) fn bindings(&self) -> String {
        bindings(&self.compiled().desired)
    }

    /// Shows the backends of a route: `address:port weight`.
    pub(crate) fn backends(&self, route: &str) -> String {
        let desired = self.compiled().desired;
        let route = desired.routes.iter().find(|found| &*found.name == route).unwrap();
        let told = route.backends.iter().map(|backend| {
            let at = std::net::SocketAddr::new(backend.address, backend.port);
            let at = if backend.is_refusing() {
                format!("refused/{}", if at.is_ipv4() { 4 } else { 6 })
            } else {
                at.to_string()
            };
            format!("{at} {}{}", backend.weight, if backend.failing { " failing" } else { "" })
        });
        told.collect::<Vec<_>>().join(", ")
    }

    /// Shows the conditions of a TLSRoute, one line per parent.
    pub(crate) fn tls_conditions(&self, object: &str) -> String {
        let verdicts = self.compiled().verdicts;
        route_conditions(verdicts.tls_routes.get(&name(object)))
    }

    pub(crate) fn tcp_conditions(&self, object: &str) -> String {
        let verdicts = self.compiled().verdicts;
        route_conditions(verdicts.tcp_routes.get(&name(object)))
    }

    /// Shows the conditions of a Gateway, and of each listener.
    pub(crate) fn gateway_conditions(&self, object: &str) -> String {
        let verdicts = self.compiled().verdicts;
        let Some(verdict) = verdicts.gateways.get(&name(object)) else { return "none".to_owned() };
        let addresses: Vec<_> = verdict.addresses.iter().map(ToString::to_string).collect();
        let mut lines = vec![format!(
            "{} {} sets={} [{}]",
            conditions(&verdict.conditions),
            programmed(&verdict.programmable),
            verdict.attached_listener_sets,
            addresses.join(" ")
        )];
        lines.extend(verdict.listeners.iter().map(listener_line));
        lines.join("\n")
    }

    pub(crate) fn set_conditions(&self, object: &str) -> String {
        let verdicts = self.compiled().verdicts;
        let Some(verdict) = verdicts.listener_sets.get(&name(object)) else { return "none".to_owned() };
        let own = format!("{} {}", conditions(&verdict.conditions), programmed(&verdict.programmable));
        verdict.listeners.iter().map(listener_line).fold(own, |text, line| text + "\n" + &line)
    }

    /// Shows problems as people read them.
    pub(crate) fn problems(&self) -> String {
        let problems = self.compiled().problems;
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}

pub(crate) fn namespace(own: &str) -> (Arc<str>, Arc<Labels>) {
    let labels = if own == "c" { [("team".into(), own.into())].into() } else { Labels::new() };
    (own.into(), Arc::new(labels))
}

fn namespaces(all: &[&str]) -> Namespaces {
    Namespaces { labels: all.iter().map(|own| namespace(own)).collect(), ..Namespaces::default() }
}

pub(crate) fn bindings(desired: &Desired) -> String {
    let mut lines = Vec::new();
    for (at, listener) in desired.listeners.iter().enumerate() {
        let mut leads: Vec<String> = Vec::new();
        for route in &desired.routes {
            let names = route.names.iter().filter(|(listener, _)| *listener == at);
            leads.extend(names.map(|(_, pattern)| format!("{pattern} -> {}", route.name)));
        }
        leads.sort();
        leads.extend(listener.route.map(|route| format!("-> {}", desired.routes[route].name)));
        let line = format!("{} {:?} {}", listener.name, listener.protocol, leads.join(", "));
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

fn listener_line(verdict: &ListenerVerdict) -> String {
    let kinds: Vec<_> = verdict.supported_kinds.iter().map(|kind| &*kind.kind).collect();
    let mut line = format!(
        "  {}: {} routes={} kinds={}",
        verdict.name,
        conditions(&verdict.conditions),
        verdict.attached_routes,
        kinds.join(",")
    );
    if let Some(condition) = &verdict.unprogrammable {
        line.push(' ');
        line.push_str(&conditions(std::slice::from_ref(condition)));
    }
    line
}

fn route_conditions(verdict: Option<&RouteVerdict>) -> String {
    let Some(verdict) = verdict else { return "none".to_owned() };
    assert_eq!(verdict.generation, 7);
    let lines = verdict.parents.iter().map(|parent| conditions(&parent.conditions));
    lines.collect::<Vec<_>>().join("\n")
}
