//! The chart's file, for the agents and the controller of a cluster.

use super::checked::Check;
use super::ingress::{INGRESS, RawIngress};
use super::raw::{RawListener, RawRoute, RawSettings, Text};
use super::shape::{LISTENER, ROUTE, SETTINGS, Shape};
use super::value::{self, Wrong, wrong};
use crate::model::cluster::{AddressRange, ClassPolicy, Policy, PoolPolicy, ProbeKind, ProbeSpec};
use crate::model::pool::InvalidRange;
use crate::model::service::OWN_CLASS;
use crate::model::{Facts, Opaques, Problem, Settings};
use ipnet::IpNet;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// The content of the chart's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChartFile {
    /// Settings, and the listeners and routes in the file itself, without the cluster's.
    pub facts: Facts,
    /// What Gateways and Services may use.
    pub policy: Policy,
    /// Devices to serve on; empty: chosen by the routes.
    pub devices: Vec<Arc<str>>,
    /// How old the state on a node's disk may be that a start without API server sends new connections to.
    pub saved_max_age: Duration,
}

impl Default for ChartFile {
    fn default() -> Self {
        Self {
            facts: Facts::default(),
            policy: Policy::default(),
            devices: Vec::new(),
            saved_max_age: SAVED_MAX_AGE,
        }
    }
}

/// The whole file as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawChart<'a> {
    addresses: Option<RawAddresses<'a>>,
    devices: Option<Vec<Text<'a>>>,
    settings: Option<RawSettings<'a>>,
    probe: Option<RawProbe<'a>>,
    saved_state: Option<RawSavedState<'a>>,
    ingress: Option<RawIngress<'a>>,
    metallb: Option<RawMetalLb<'a>>,
    load_balancer_classes: Option<Vec<Text<'a>>>,
    default_load_balancer_class: Option<bool>,
    agent_grace_seconds: Option<i64>,
    serve_health_check_node_ports: Option<bool>,
    listeners: Option<Vec<RawListener<'a>>>,
    routes: Option<Vec<RawRoute<'a>>>,
}

/// `addresses`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct RawAddresses<'a> {
    ranges: Option<Vec<Text<'a>>>,
    shared: Option<Vec<Text<'a>>>,
    tls_ports: Option<Vec<i64>>,
    excluded: Option<Vec<Text<'a>>>,
    l2: Option<bool>,
    rebalance_after: Option<Text<'a>>,
    on_isolation: Option<Text<'a>>,
}

/// `metallb`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct RawMetalLb<'a> {
    namespaces: Option<Vec<Text<'a>>>,
}

/// `savedState`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct RawSavedState<'a> {
    max_age: Option<Text<'a>>,
}

/// `probe`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct RawProbe<'a> {
    enabled: Option<bool>,
    r#type: Option<Text<'a>>,
    interval: Option<Text<'a>>,
    timeout: Option<Text<'a>>,
    failure_threshold: Option<i64>,
    success_threshold: Option<i64>,
    panic_share: Option<i64>,
}

/// The shape of the whole file. It has the same fields as the structures.
pub(super) const CHART: Shape = Shape::Table(&[
    ("addresses", Shape::Table(ADDRESSES)),
    ("devices", Shape::List(&Shape::Text)),
    ("settings", Shape::Table(SETTINGS)),
    ("probe", Shape::Table(PROBE)),
    ("savedState", Shape::Table(&[("maxAge", Shape::Text)])),
    ("ingress", Shape::Table(INGRESS)),
    ("metallb", Shape::Table(&[("namespaces", Shape::List(&Shape::Text))])),
    ("loadBalancerClasses", Shape::List(&Shape::Text)),
    ("defaultLoadBalancerClass", Shape::Bool),
    ("agentGraceSeconds", Shape::Whole),
    ("serveHealthCheckNodePorts", Shape::Bool),
    ("listeners", Shape::List(&Shape::Table(LISTENER))),
    ("routes", Shape::List(&Shape::Table(ROUTE))),
]);

const ADDRESSES: &[(&str, Shape)] = &[
    ("ranges", Shape::List(&Shape::Text)),
    ("shared", Shape::List(&Shape::Text)),
    ("tlsPorts", Shape::List(&Shape::Whole)),
    ("excluded", Shape::List(&Shape::Text)),
    ("l2", Shape::Bool),
    ("rebalanceAfter", Shape::Text),
    ("onIsolation", Shape::Text),
];

const PROBE: &[(&str, Shape)] = &[
    ("enabled", Shape::Bool),
    ("type", Shape::Text),
    ("interval", Shape::Text),
    ("timeout", Shape::Text),
    ("failureThreshold", Shape::Whole),
    ("successThreshold", Shape::Whole),
    ("panicShare", Shape::Whole),
];

/// The most addresses that `addresses.shared` may expand to.
const SHARED_MAX: usize = 65_536;
/// The default for the percentage of a route's backends that must be up.
const PANIC_SHARE: u8 = 50;
/// The shortest and the longest probe interval and timeout.
const PROBE_TIME: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// The default of [`ChartFile::saved_max_age`].
pub const SAVED_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// What can be set instead.
const SAVED_MAX_AGES: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(365 * 24 * 3600);

/// Checks the whole file.
pub(super) fn chart(raw: RawChart<'_>, problems: &mut Vec<Problem>) -> ChartFile {
    let mut check = Check { problems };
    let mut said = raw.settings.unwrap_or_default();
    // A Service's address with `ipMode: Proxy` is for us alone to serve, to pods of the node that has it, too.
    let serves_node = said.node_clients.unwrap_or(true);
    let serves_health_checks = raw.serve_health_check_node_ports.unwrap_or(false);
    let l2 = said.l2.take();
    if l2.as_ref().is_some_and(|l2| l2.enabled == Some(true)) {
        let what = "is for `vestibule run`: in a cluster, every node would answer for every address";
        check.problems.push(Problem::error("settings.l2.enabled", what, "remove it").value(true));
    }
    let l2 = l2.map(|rates| check.l2(&rates));
    let settings = Settings { l2, node_clients: serves_node, serves_health_checks, ..check.settings(said) };
    let facts = check.facts(settings, raw.listeners, raw.routes);
    let addresses = raw.addresses.unwrap_or_default();
    let ranges = check.ranges(&addresses.ranges.unwrap_or_default());
    let shared = check.shared(&addresses.shared.unwrap_or_default(), &ranges);
    let tls_ports = check.tls_ports(&addresses.tls_ports.unwrap_or_default());
    let excluded = check
        .list(addresses.excluded.unwrap_or_default(), value::block, |i| format!("addresses.excluded[{i}]"));
    let (probe, probe_defaults, panic_percent) = check.probe(raw.probe.unwrap_or_default());
    let devices = check.list(raw.devices.unwrap_or_default(), value::device, |i| format!("devices[{i}]"));
    let saved_max_age = check.saved_max_age(raw.saved_state.unwrap_or_default()).unwrap_or(SAVED_MAX_AGE);
    let mut origins = Opaques::default();
    if let Some(raw) = raw.ingress {
        origins.set(check.ingress(raw, &facts.listeners));
    }
    let namespaces = raw.metallb.unwrap_or_default().namespaces.unwrap_or_default();
    let namespaces = check.list(namespaces, namespace, |i| format!("metallb.namespaces[{i}]"));
    let pools = PoolPolicy { namespaces };
    let classes = raw.load_balancer_classes.unwrap_or_default();
    let is_default = raw.default_load_balancer_class.unwrap_or(false);
    let load_balancers = ClassPolicy { others: check.classes(classes), is_default };
    let moves = (addresses.rebalance_after, addresses.on_isolation);
    let announcing = check.announcing(addresses.l2, raw.agent_grace_seconds, moves);
    let policy = Policy {
        announcing,
        ranges,
        shared,
        tls_ports,
        excluded,
        probe,
        probe_defaults,
        panic_percent,
        origins,
        pools,
        load_balancers,
    };
    ChartFile { saved_max_age, facts, policy, devices }
}

impl Check<'_> {
    /// Returns the classes of Services besides our own, each once.
    fn classes(&mut self, raw: Vec<Text<'_>>) -> Vec<Arc<str>> {
        let classes = self.list(raw, class, |i| format!("loadBalancerClasses[{i}]"));
        let others: BTreeSet<Arc<str>> = classes.into_iter().filter(|class| **class != *OWN_CLASS).collect();
        others.into_iter().collect()
    }

    fn ranges(&mut self, raw: &[Text<'_>]) -> Vec<AddressRange> {
        let mut ranges: Vec<(usize, AddressRange)> = Vec::with_capacity(raw.len());
        for (i, text) in raw.iter().enumerate() {
            let field = || format!("addresses.ranges[{i}]");
            let Some(new) = self.take(range(text), text, field) else { continue };
            if let Some((other, _)) = ranges.iter().find(|(_, other)| other.overlaps(&new)) {
                let what = format!("has addresses of addresses.ranges[{other}] too");
                self.problems
                    .push(Problem::error(field(), what, "list each address in one range only").value(text));
                continue;
            }
            ranges.push((i, new));
        }
        ranges.into_iter().map(|(_, range)| range).collect()
    }

    fn shared(&mut self, raw: &[Text<'_>], ranges: &[AddressRange]) -> BTreeSet<IpAddr> {
        let mut shared = BTreeSet::new();
        for (i, text) in raw.iter().enumerate() {
            let field = || format!("addresses.shared[{i}]");
            let Some(block) = self.take(value::block(text), text, field) else { continue };
            let ends = (block.network(), block.broadcast());
            if !ranges.iter().any(|range| range.holds(ends.0) && range.holds(ends.1)) {
                let remedy = "write addresses of one entry of addresses.ranges, or add them there";
                self.problems.push(Problem::error(field(), "is not within a range", remedy).value(text));
                continue;
            }
            let bits = block.max_prefix_len() - block.prefix_len();
            let count = 1_usize.checked_shl(u32::from(bits)).unwrap_or(usize::MAX);
            if bits >= 32 || shared.len().saturating_add(count) > SHARED_MAX {
                let what = format!("more than {SHARED_MAX} shared addresses");
                self.problems.push(Problem::error(field(), what, "share fewer addresses").value(text));
                continue;
            }
            shared.extend(addresses(block));
        }
        shared
    }

    fn tls_ports(&mut self, raw: &[i64]) -> BTreeSet<u16> {
        let mut ports = BTreeSet::new();
        for (i, value) in raw.iter().enumerate() {
            let wrong = match u16::try_from(*value) {
                Ok(port) if port > 0 && ports.insert(port) => continue,
                Ok(port) if port > 0 => ("is there twice", "list each port once"),
                _ => ("is not a port", "write 1 to 65535"),
            };
            let (what, remedy) = wrong;
            let field = format!("addresses.tlsPorts[{i}]");
            self.problems.push(Problem::error(field, what, remedy).value(value));
        }
        ports
    }

    /// Returns the probe of Services without annotation, the annotations' defaults, and the panic percentage.
    fn probe(&mut self, raw: RawProbe<'_>) -> (Option<ProbeSpec>, ProbeSpec, u8) {
        let default = ProbeSpec::default();
        let kind =
            raw.r#type.and_then(|text| self.take(probe_kind(&text), &text, || "probe.type".to_owned()));
        let interval_ms = self.probe_ms("interval", raw.interval.as_ref()).unwrap_or(default.interval_ms);
        let timeout_ms = self.probe_ms("timeout", raw.timeout.as_ref()).unwrap_or(default.timeout_ms);
        let defaults = ProbeSpec {
            kind: kind.unwrap_or(default.kind),
            interval_ms,
            timeout_ms,
            failures: self.percent("failureThreshold", raw.failure_threshold, 1).unwrap_or(default.failures),
            successes: self
                .percent("successThreshold", raw.success_threshold, 1)
                .unwrap_or(default.successes),
        };
        if timeout_ms > interval_ms {
            let remedy = "make it at most probe.interval: one probe ends before the next begins";
            let problem = Problem::error("probe.timeout", "is longer than the interval", remedy);
            self.problems.push(problem.value(format!("{timeout_ms}ms")));
        }
        let up = self.percent("panicShare", raw.panic_share, 0).unwrap_or(PANIC_SHARE);
        (raw.enabled.unwrap_or(false).then_some(defaults), defaults, 100 - up)
    }

    fn saved_max_age(&mut self, raw: RawSavedState<'_>) -> Option<Duration> {
        let text = raw.max_age?;
        let field = || "savedState.maxAge".to_owned();
        let age = self.take(value::duration(&text), &text, field)?;
        if !SAVED_MAX_AGES.contains(&age) {
            self.problems.push(Problem::error(field(), "is out of range", "write 1m to 365d").value(text));
            return None;
        }
        Some(age)
    }

    fn probe_ms(&mut self, name: &str, text: Option<&Text<'_>>) -> Option<u32> {
        let text = text?;
        let field = || format!("probe.{name}");
        let time = self.take(value::duration(text), text, field)?;
        let ms = PROBE_TIME.contains(&time).then(|| u32::try_from(time.as_millis()).ok()).flatten();
        if ms.is_none() {
            let problem = Problem::error(field(), "is out of range", "write 100ms to 1h");
            self.problems.push(problem.value(text));
        }
        ms
    }

    /// Checks a number from `least` to 100.
    fn percent(&mut self, name: &str, number: Option<i64>, least: u8) -> Option<u8> {
        let number = number?;
        let checked = u8::try_from(number).ok().filter(|checked| (least..=100).contains(checked));
        if checked.is_none() {
            let remedy = format!("write a number from {least} to 100");
            self.problems
                .push(Problem::error(format!("probe.{name}"), "is out of range", remedy).value(number));
        }
        checked
    }
}

fn probe_kind(text: &str) -> Result<ProbeKind, Wrong> {
    match text {
        "tcp" => Ok(ProbeKind::Tcp),
        "tls" => Ok(ProbeKind::Tls),
        _ => wrong("is not a probe", "write tcp (a connection is opened) or tls (a ClientHello is answered)"),
    }
}

/// Checks the name of a namespace: a label of RFC 1123.
fn namespace(text: &str) -> Result<Arc<str>, Wrong> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
    let bytes = text.as_bytes();
    let is_name = bytes.len() <= 63 && bytes.iter().copied().all(is_inner);
    if !is_name || !is_end(bytes.first()) || !is_end(bytes.last()) {
        return wrong("is no namespace", "write the name of a namespace, such as \"metallb-system\"");
    }
    Ok(text.into())
}

/// Checks a class of Services as the API server does: a name of at most 63 bytes, after the name of a domain and a slash, or alone.
fn class(text: &str) -> Result<Arc<str>, Wrong> {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    let has_ends = |text: &str| {
        let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        is_end(text.as_bytes().first()) && is_end(text.as_bytes().last())
    };
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = name.len() <= 63 && has_ends(name) && name.bytes().all(is_inner);
    let is_domain = |domain: &str| {
        let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        domain.len() <= 253 && domain.split('.').all(|label| has_ends(label) && label.bytes().all(is_lower))
    };
    if !is_name || !domain.is_none_or(is_domain) {
        return wrong(
            "is no class",
            "write what Services say in spec.loadBalancerClass, such as \"example.com/metallb\"",
        );
    }
    Ok(text.into())
}

/// Parses a CIDR, `first-last` or a single address. Only addresses that clients can dial are valid.
fn range(text: &str) -> Result<AddressRange, Wrong> {
    let (first, last) = if let Some((first, last)) = text.split_once('-') {
        (value::address(first.trim())?, value::address(last.trim())?)
    } else {
        let block = value::block(text)?;
        (block.network(), block.broadcast())
    };
    AddressRange::new(first, last).or_else(|InvalidRange { what, remedy }| wrong(what, remedy))
}

/// Returns all addresses of a block, including the first and the last.
fn addresses(block: IpNet) -> Box<dyn Iterator<Item = IpAddr>> {
    match (block.network(), block.broadcast()) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Box::new((u32::from(first)..=u32::from(last)).map(|bits| Ipv4Addr::from(bits).into()))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Box::new((u128::from(first)..=u128::from(last)).map(|bits| Ipv6Addr::from(bits).into()))
        }
        // Both ends of a block have the same family.
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{locate, parse_chart};
    use super::*;
    use crate::model::L2;
    use crate::model::advertisement::AnnouncingPolicy;

    /// What the chart renders from its default values, plus two ranges.
    const FILE: &str = r#"
addresses:
  ranges: ["192.0.2.0/26", "2001:db8:0:1::10-2001:db8:0:1::ff"]
  shared: ["192.0.2.8/30", "2001:db8:0:1::10"]
  excluded: ["10.0.0.0/8", "192.0.2.1"]
devices: ["eth0"]
settings:
  maxFlows: 1000000
  maxNames: 1000000
  maxHellos: 65536
  flowsPerSource: 65536
  idleTimeout: 25h
  helloTimeout: 10s
  sourcePorts: "1024-29999"
  sourceAddresses: []
probe:
  enabled: false
  type: tls
  interval: 2s
  timeout: 500ms
  failureThreshold: 3
  successThreshold: 2
  panicShare: 30
savedState:
  maxAge: 36h
"#;

    fn problems(text: &str) -> Vec<String> {
        let (_, mut problems) = parse_chart(text);
        locate(text, &mut problems);
        problems.iter().map(|problem| problem.in_file("f").to_string()).collect()
    }

    #[test]
    fn the_charts_file_is_read() {
        let (file, problems) = parse_chart(FILE);
        assert_eq!(problems, []);
        let policy = &file.policy;
        assert_eq!(policy.ranges.len(), 2);
        assert_eq!(policy.ranges[0].last, IpAddr::from([192, 0, 2, 63]));
        assert_eq!(policy.shared.len(), 5);
        assert!(policy.shared.contains(&IpAddr::from([192, 0, 2, 11])), "{:?}", policy.shared);
        assert_eq!(policy.excluded[1].to_string(), "192.0.2.1/32");
        assert_eq!((policy.probe, policy.panic_percent), (None, 70));
        assert_eq!(policy.probe_defaults.kind, ProbeKind::Tls);
        assert_eq!(policy.probe_defaults.timeout_ms, 500);
        assert_eq!(file.devices, [Arc::from("eth0")]);
        assert_eq!(file.facts.settings, Settings { node_clients: true, ..Settings::default() });
        let (enabled, _) = parse_chart(&FILE.replace("enabled: false", "enabled: true"));
        assert_eq!(enabled.policy.probe, Some(enabled.policy.probe_defaults));
    }

    #[test]
    fn nodes_answer_health_checks_only_if_the_file_says_so() {
        let serves = |text: &str| parse_chart(text).0.facts.settings.serves_health_checks;
        assert!(serves("serveHealthCheckNodePorts: true\n"));
        assert!(!serves(FILE) && !serves("serveHealthCheckNodePorts: false\n"));
        let told = problems("serveHealthCheckNodePorts: yes please\n");
        assert!(told[0].contains("serveHealthCheckNodePorts"), "{told:?}");
        // Not a setting of `vestibule run`.
        assert!(!problems("settings: {serveHealthCheckNodePorts: true}\n").is_empty());
    }

    #[test]
    fn what_is_announced_and_for_how_long_without_an_agent_is_checked() {
        let read = |text: &str| parse_chart(text).0.policy.announcing;
        let preset = AnnouncingPolicy {
            own_ranges: false,
            grace: Duration::from_secs(15),
            rebalance: Some(Duration::from_mins(10)),
            withdraws: false,
        };
        assert_eq!(read(FILE), preset);
        let set = read(
            "addresses: {ranges: [192.0.2.0/28], l2: true, rebalanceAfter: never}\nagentGraceSeconds: 2\n",
        );
        let grace = Duration::from_secs(2);
        assert_eq!(set, AnnouncingPolicy { own_ranges: true, grace, rebalance: None, withdraws: false });
        assert_eq!(read("addresses: {rebalanceAfter: 90s}\n").rebalance, Some(Duration::from_secs(90)));
        assert!(!read("addresses: {onIsolation: Hold}\n").withdraws);
        assert!(read("addresses: {onIsolation: Withdraw}\n").withdraws);
        let wrong = problems("addresses: {onIsolation: hold}\n");
        assert!(wrong[0].contains("addresses.onIsolation: is no such action"), "{wrong:?}");
        for wrong in ["0s", "1500ms", "366d", "10", "Never", "soon"] {
            let problems = problems(&format!("addresses: {{rebalanceAfter: {wrong:?}}}\n"));
            assert!(problems[0].contains("addresses.rebalanceAfter: is no such time"), "{problems:?}");
        }
        for seconds in ["0", "-1", "3601"] {
            let told = problems(&format!("agentGraceSeconds: {seconds}\n"));
            assert!(told[0].contains("agentGraceSeconds: is out of range"), "{told:?}");
        }
        for text in ["agentGraceSeconds: 15s\n", "addresses: {l2: maybe}\n"] {
            assert_eq!(problems(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn devices_for_xdp_are_none_unless_they_are_named() {
        let with = |names: &str| format!("settings: {{ xdpDevices: {names} }}\n");
        let read = |text: &str| parse_chart(text).0.facts.settings.xdp_devices;
        assert!(read(FILE).is_empty());
        assert_eq!(read(&with("[eth0, bond0.7]")), [Arc::from("eth0"), Arc::from("bond0.7")]);
        for (names, field) in [("[eth0, eth0]", "[1]"), ("[\"eth 0\"]", "[0]"), ("[an-overlong-name]", "[0]")]
        {
            let told = problems(&with(names));
            assert!(told[0].contains(&format!("settings.xdpDevices{field}: ")), "{told:?}");
        }
        assert_eq!(problems(&with("on")).len(), 1);
    }

    #[test]
    fn settings_of_a_daemon_alone_are_refused_in_a_cluster() {
        let text = FILE.replace("  sourceAddresses: []", "  sourceAddresses: []\n  l2: { enabled: true }");
        let problems = problems(&text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("settings.l2.enabled: is for `vestibule run`"), "{problems:?}");
    }

    #[test]
    fn the_rates_of_announcements_are_settable_in_a_cluster() {
        let with =
            |l2: &str| FILE.replace("  sourceAddresses: []", &format!("  sourceAddresses: []\n  l2: {l2}"));
        let read = |text: &str| parse_chart(text).0.facts.settings.l2.unwrap_or_default();
        assert_eq!(read(FILE), L2 { announce_rate: 1_000, refresh_rate: 10 });
        assert_eq!(read(&with("{ announceRate: 50 }")), L2 { announce_rate: 50, refresh_rate: 10 });
        assert_eq!(
            read(&with("{ announceRate: 50, refreshRate: 2 }")),
            L2 { announce_rate: 50, refresh_rate: 2 }
        );
        let told = problems(&with("{ refreshRate: 0 }"));
        assert!(told.len() == 1 && told[0].contains("settings.l2.refreshRate: is out of range"), "{told:?}");
    }

    #[test]
    fn an_empty_file_serves_nothing() {
        let (file, problems) = parse_chart("{}");
        assert_eq!(problems, []);
        assert_eq!(file.policy.panic_percent, 50);
        assert!(file.policy.ranges.is_empty() && file.policy.probe.is_none());
    }

    #[test]
    fn listeners_and_routes_of_the_file_are_read_too() {
        let text = "listeners:\n  - {name: a, addresses: [192.0.2.1], port: 443, protocol: TLS}\nroutes:\n  - {name: r, listeners: [a], hostnames: [a.example], backends: []}\n";
        let (file, problems) = parse_chart(text);
        assert_eq!(problems, []);
        assert_eq!((file.facts.listeners.len(), file.facts.routes.len()), (1, 1));
    }

    #[test]
    fn ranges_that_nobody_could_dial_are_refused() {
        let refused = |range: &str, why: &str| {
            let told = problems(&format!("addresses:\n  ranges: [\"{range}\"]\n"));
            assert_eq!(told.len(), 1, "{range}: {told:?}");
            assert!(told[0].starts_with("f:2: error: addresses.ranges[0]: "), "{told:?}");
            assert!(told[0].contains(why), "{told:?}");
        };
        refused("192.0.2.1/26", "write \"192.0.2.0/26\"");
        refused("192.0.2.9-192.0.2.1", "ends before it begins");
        refused("192.0.2.9-2001:db8::1", "two families");
        refused("0.0.0.0/0", "unspecified");
        refused("126.0.0.0/7", "loopback");
        refused("::/0", "unspecified and loopback");
        refused("223.0.0.0-224.0.0.9", "multicast");
        refused("api.example.com", "names are not resolved");
        refused("192.0.2.0/33", "not a CIDR");
        refused("fe80::1-fe80::9", "link-local");
        let twice = problems("addresses:\n  ranges:\n    - 192.0.2.0/26\n    - 192.0.2.63-192.0.2.70\n");
        assert!(
            twice[0].starts_with("f:4: error: addresses.ranges[1]: has addresses of addresses.ranges[0]")
        );
    }

    #[test]
    fn shared_addresses_are_of_the_ranges_and_few() {
        let shared = |text: &str| {
            problems(&format!(
                "addresses:\n  ranges: [10.0.0.0/8, \"2001:db8::/32\"]\n  shared: [\"{text}\"]\n"
            ))
        };
        assert_eq!(shared("10.1.0.0/16"), [""; 0]);
        assert!(shared("192.0.2.1")[0].contains("is not within a range"));
        for many in ["10.0.0.0/15", "2001:db8::/64", "2001:db8::/96"] {
            assert!(shared(many)[0].contains("more than 65536"), "{many}");
        }
    }

    #[test]
    fn ports_for_tls_alone_are_ports_and_each_is_listed_once() {
        let read = |text: &str| {
            let (file, problems) = parse_chart(&format!("addresses: {{tlsPorts: {text}}}\n"));
            (file.policy.tls_ports, problems.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(read("[443, 6443]"), ([443, 6443].into(), vec![]));
        assert_eq!(read("[]"), Default::default());
        for (text, what) in [
            ("[443, 0]", "addresses.tlsPorts[1]: is not a port (value \"0\"); write 1 to 65535"),
            ("[65536]", "addresses.tlsPorts[0]: is not a port (value \"65536\"); write 1 to 65535"),
            (
                "[443, 6443, 443]",
                "addresses.tlsPorts[2]: is there twice (value \"443\"); list each port once",
            ),
        ] {
            let (_, problems) = read(text);
            assert_eq!(problems, [format!("error: {what}")], "{text}");
        }
        for text in ["443", "[https]", "[443.5]"] {
            assert!(read(text).1[0].contains("addresses.tlsPorts"), "{text}: {:?}", read(text));
        }
    }

    #[test]
    fn probes_are_checked() {
        let told = problems(
            "probe:\n  enabled: yes\n  type: http\n  interval: 10ms\n  timeout: 2h\n  failureThreshold: 0\n  panicShare: 101\n",
        );
        for field in ["probe.type", "probe.interval", "probe.timeout", "failureThreshold", "panicShare"] {
            assert!(told.iter().any(|line| line.contains(field)), "{field}: {told:?}");
        }
        let told = problems("probe: {interval: 1s, timeout: 2s}\n");
        assert!(told[0].contains("probe.timeout: is longer than the interval"), "{told:?}");
    }

    #[test]
    fn classes_of_services_are_read_and_checked() {
        let read = |text: &str| parse_chart(text).0.policy.load_balancers;
        assert_eq!(read("{}"), ClassPolicy::default());
        let both = read(
            "loadBalancerClasses: [vestibule.dev/lb, a.example/lb, b, b]\ndefaultLoadBalancerClass: true\n",
        );
        assert_eq!(both, ClassPolicy { others: vec!["a.example/lb".into(), "b".into()], is_default: true });
        for class in ["", "a/", "/a", "a/b/c", "A.example/x", "a..b/x", "-x", "x y"] {
            let wrong = problems(&format!("loadBalancerClasses:\n  - {class:?}\n"));
            assert!(
                wrong[0].contains("f:2: error: loadBalancerClasses[0]: is no class"),
                "{class}: {wrong:?}"
            );
        }
    }

    #[test]
    fn the_age_of_a_saved_state_is_checked() {
        assert_eq!(parse_chart(FILE).0.saved_max_age, Duration::from_secs(36 * 3600));
        assert_eq!(parse_chart("devices: []\n").0.saved_max_age, SAVED_MAX_AGE);
        for age in ["59s", "366d", "soon"] {
            let told = problems(&format!("savedState: {{maxAge: {age}}}\n"));
            assert!(told[0].contains("savedState.maxAge"), "{told:?}");
        }
    }

    #[test]
    fn unknown_fields_and_devices_are_told() {
        let told = problems("adresses: {ranges: []}\ndevices: [\"a/b\", \"a-name-too-long-for-it\"]\n");
        assert!(told[0].contains("did you mean \"addresses\"?"), "{told:?}");
        assert_eq!(told.iter().filter(|line| line.contains("not a device's name")).count(), 2, "{told:?}");
        assert!(problems("probe: {enabled: \"maybe\"}\n")[0].contains("neither true nor false"));
    }
}
