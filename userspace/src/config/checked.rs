//! Converts the file as written to checked facts. Each object is checked separately.

use super::raw::{RawBackend, RawConfig, RawL2, RawListener, RawRoute, RawSettings, Text};
use super::value::{self, Wrong};
use crate::model::source_ranges::RANGES_OF_ONE_MAX;
use crate::model::{
    BackendSpec, Facts, L2, ListenerSpec, Pattern, Problem, Protocol, RouteSpec, Settings, SourceRanges,
};
use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

const API_VERSION: &str = "vestibule.dev/v1alpha1";
const KIND: &str = "StaticConfig";

/// Checks the whole file.
pub(super) fn facts(raw: RawConfig<'_>, problems: &mut Vec<Problem>) -> Facts {
    let mut check = Check { problems };
    check.heading(raw.api_version.as_deref(), raw.kind.as_deref());
    let settings = check.settings(raw.settings.unwrap_or_default());
    check.facts(settings, raw.listeners, raw.routes)
}

/// Collects problems. Field paths are built only for problems, since most files have none.
pub(super) struct Check<'a> {
    pub(super) problems: &'a mut Vec<Problem>,
}

impl Check<'_> {
    pub(super) fn facts(
        &mut self,
        settings: Settings,
        listeners: Option<Vec<RawListener<'_>>>,
        routes: Option<Vec<RawRoute<'_>>>,
    ) -> Facts {
        let routes = routes.unwrap_or_default().into_iter().enumerate();
        Facts {
            settings,
            listeners: self.listeners(listeners),
            routes: routes.filter_map(|(place, raw)| self.route(place, raw)).collect(),
            ..Facts::default()
        }
    }

    pub(super) fn heading(&mut self, api_version: Option<&str>, kind: Option<&str>) {
        self.constant("apiVersion", api_version, API_VERSION);
        self.constant("kind", kind, KIND);
    }

    pub(super) fn listeners(&mut self, listeners: Option<Vec<RawListener<'_>>>) -> Vec<ListenerSpec> {
        let listeners = listeners.unwrap_or_default().into_iter().enumerate();
        listeners.filter_map(|(place, raw)| self.listener(place, raw)).collect()
    }

    fn missing(&mut self, field: String, remedy: &str) {
        self.problems.push(Problem::error(field, "is missing", remedy));
    }

    /// Returns the checked value; on an error, adds a problem and returns `None`.
    pub(super) fn take<T>(
        &mut self,
        checked: Result<T, Wrong>,
        value: impl Display,
        field: impl FnOnce() -> String,
    ) -> Option<T> {
        checked
            .map_err(|wrong| {
                self.problems.push(Problem::error(field(), wrong.what, wrong.remedy).value(value));
            })
            .ok()
    }

    fn constant(&mut self, field: &str, value: Option<&str>, expected: &str) {
        match value {
            None => self.missing(field.to_owned(), &format!("write {field}: {expected}")),
            Some(value) if value != expected => self.problems.push(
                Problem::error(field, "is not known to this version", format!("write {expected:?}"))
                    .value(value),
            ),
            Some(_) => {}
        }
    }

    pub(super) fn settings(&mut self, raw: RawSettings<'_>) -> Settings {
        let default = Settings::default();
        Settings {
            source_addresses: self.source_addresses(raw.source_addresses.unwrap_or_default()),
            source_ports: raw
                .source_ports
                .and_then(|text| {
                    self.take(value::port_range(&text), &text, || "settings.sourcePorts".to_owned())
                })
                .unwrap_or(default.source_ports),
            idle_timeout: self
                .duration("idleTimeout", raw.idle_timeout, &IDLE_TIMEOUT, 1000)
                .unwrap_or(default.idle_timeout),
            hello_timeout: self
                .duration("helloTimeout", raw.hello_timeout, &HELLO_TIMEOUT, 1)
                .unwrap_or(default.hello_timeout),
            max_flows: self.limit("maxFlows", raw.max_flows, &MAX_FLOWS).unwrap_or(default.max_flows),
            max_names: self.limit("maxNames", raw.max_names, &MAX_NAMES).unwrap_or(default.max_names),
            max_hellos: self.limit("maxHellos", raw.max_hellos, &MAX_HELLOS).unwrap_or(default.max_hellos),
            flows_per_route: self.limit("flowsPerRoute", raw.flows_per_route, &MAX_FLOWS),
            flows_per_source: self
                .limit("flowsPerSource", raw.flows_per_source, &MAX_FLOWS)
                .unwrap_or(default.flows_per_source),
            connecting_per_source: self.limit("connectingPerSource", raw.connecting_per_source, &MAX_HELLOS),
            l2: raw
                .l2
                .map(|raw| (self.l2(&raw), raw.enabled.unwrap_or(false)))
                .and_then(|(l2, is_enabled)| is_enabled.then_some(l2)),
            xdp_devices: self.list(raw.xdp_devices.unwrap_or_default(), value::device, |i| {
                format!("settings.xdpDevices[{i}]")
            }),
            node_clients: raw.node_clients.unwrap_or(default.node_clients),
            serves_health_checks: default.serves_health_checks,
        }
    }

    /// The rates alone, whether or not anything is announced.
    pub(super) fn l2(&mut self, raw: &RawL2) -> L2 {
        let default = L2::default();
        L2 {
            announce_rate: self
                .limit("l2.announceRate", raw.announce_rate, &FRAMES)
                .unwrap_or(default.announce_rate),
            refresh_rate: self
                .limit("l2.refreshRate", raw.refresh_rate, &FRAMES)
                .unwrap_or(default.refresh_rate),
        }
    }

    fn source_addresses(&mut self, raw: Vec<Text<'_>>) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        for (i, text) in raw.iter().enumerate() {
            let field = || format!("settings.sourceAddresses[{i}]");
            let Some(address) = self.take(value::address(text), text, field) else { continue };
            if addresses.iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
                let problem = Problem::error(field(), "a second address of this family", "keep one a family");
                self.problems.push(problem.value(text));
                continue;
            }
            addresses.push(address);
        }
        addresses
    }

    fn duration(
        &mut self,
        name: &str,
        text: Option<Text<'_>>,
        range: &RangeInclusive<Duration>,
        unit_ms: u128,
    ) -> Option<Duration> {
        let text = text?;
        let field = || format!("settings.{name}");
        let duration = self.take(value::duration(&text), &text, field)?;
        if !range.contains(&duration) || duration.as_millis() % unit_ms != 0 {
            let remedy =
                if unit_ms == 1000 { "write whole seconds, 1s to 365d" } else { "write 100ms to 10m" };
            self.problems.push(Problem::error(field(), "is out of range", remedy).value(text));
            return None;
        }
        Some(duration)
    }

    fn limit(&mut self, name: &str, number: Option<i64>, range: &RangeInclusive<i64>) -> Option<u32> {
        let number = number?;
        let checked = if range.contains(&number) { u32::try_from(number).ok() } else { None };
        if checked.is_none() {
            let remedy = format!("write a number from {} to {}", range.start(), range.end());
            self.problems
                .push(Problem::error(format!("settings.{name}"), "is out of range", remedy).value(number));
        }
        checked
    }

    fn listener(&mut self, place: usize, raw: RawListener<'_>) -> Option<ListenerSpec> {
        let at = || format!("listeners[{place}]");
        let name = self.object_name(raw.name, at);
        let written = raw.addresses.unwrap_or_default();
        if written.is_empty() {
            self.missing(format!("{}.addresses", at()), "write at least one address that clients dial");
        }
        let addresses = self.list(written, value::address, |i| format!("{}.addresses[{i}]", at()));
        let port = self.port(raw.port, at);
        let protocol = match raw.protocol.as_deref() {
            Some("TLS") => Some(Protocol::Tls),
            Some("TCP") => Some(Protocol::Tcp),
            None => {
                self.missing(format!("{}.protocol", at()), PROTOCOLS);
                None
            }
            Some(other) => {
                let problem = Problem::error(format!("{}.protocol", at()), "is not a protocol", PROTOCOLS);
                self.problems.push(problem.value(other));
                None
            }
        };
        Some(ListenerSpec {
            place,
            name: name?,
            addresses,
            port: port.unwrap_or_default(),
            protocol: protocol.unwrap_or(Protocol::Tls),
            default_route: raw.default_route.map(|name| Arc::from(&*name)),
        })
    }

    pub(super) fn route(&mut self, place: usize, raw: RawRoute<'_>) -> Option<RouteSpec> {
        let at = || format!("routes[{place}]");
        let name = self.object_name(raw.name, at);
        let listeners = self.list(
            raw.listeners.unwrap_or_default(),
            |text| Ok::<Arc<str>, _>(text.into()),
            |i| format!("{}.listeners[{i}]", at()),
        );
        let patterns: Vec<Pattern> = self
            .list(raw.hostnames.unwrap_or_default(), value::pattern, |i| format!("{}.hostnames[{i}]", at()));
        let backends = self.backends(raw.backends.unwrap_or_default(), at);
        let source_ranges = raw.source_ranges.map(|written| self.source_ranges(written, at));
        let written = raw.session_affinity;
        let affinity = written.and_then(|text| {
            self.take(value::affinity(&text), &text, || format!("{}.sessionAffinity", at()))
        });
        let affinity = affinity.unwrap_or_default();
        let traffic = raw.external_traffic_policy.and_then(|text| {
            self.take(value::traffic(&text), &text, || format!("{}.externalTrafficPolicy", at()))
        });
        let traffic = traffic.unwrap_or_default();
        Some(RouteSpec {
            place,
            name: name?,
            listeners,
            patterns,
            backends,
            source_ranges,
            affinity,
            traffic,
        })
    }

    fn source_ranges(&mut self, written: Vec<Text<'_>>, at: impl Fn() -> String) -> SourceRanges {
        if written.is_empty() {
            let remedy = "write at least one CIDR of clients, or remove the field if everybody may connect";
            self.problems.push(Problem::error(format!("{}.sourceRanges", at()), "is empty", remedy));
        }
        let written = self.list(written, value::source_range, |i| format!("{}.sourceRanges[{i}]", at()));
        let ranges = SourceRanges::new(&written);
        let count = ranges.ranges().len();
        if count > RANGES_OF_ONE_MAX {
            let what = format!("are more than {RANGES_OF_ONE_MAX} ranges");
            let remedy = "merge ranges, or filter such lists before the load balancer";
            self.problems.push(Problem::error(format!("{}.sourceRanges", at()), what, remedy).value(count));
        }
        ranges
    }

    fn backends(&mut self, raw: Vec<RawBackend<'_>>, at: impl Fn() -> String + Copy) -> Vec<BackendSpec> {
        let mut backends: Vec<BackendSpec> = Vec::with_capacity(raw.len());
        // At most 255 per family can be used, so a linear search is the fastest for usual sizes.
        for (i, raw) in raw.into_iter().enumerate() {
            let at = || format!("{}.backends[{i}]", at());
            let address = match raw.address {
                Some(text) => self.take(value::address(&text), &text, || format!("{}.address", at())),
                None => {
                    self.missing(format!("{}.address", at()), "write the backend's IP address");
                    None
                }
            };
            let port = self.port(raw.port, at);
            let number = raw.weight.unwrap_or(1);
            let checked = u16::try_from(number).map_err(|_| Wrong {
                what: "is not a weight".to_owned(),
                remedy: "write a number from 0 to 65535; 0 takes no new flow".to_owned(),
            });
            let weight = self.take(checked, number, || format!("{}.weight", at()));
            let (Some(address), Some(port), Some(weight)) = (address, port, weight) else { continue };
            if backends.iter().any(|other| (other.address, other.port) == (address, port)) {
                let remedy = "keep one of them, and use weight for its share";
                let problem = Problem::error(at(), "the backend is there twice", remedy);
                self.problems.push(problem.value(std::net::SocketAddr::new(address, port)));
                continue;
            }
            backends.push(BackendSpec { address, port, weight, failing: false });
        }
        backends
    }

    /// Returns the name, even an invalid one, since other objects may refer to it.
    fn object_name(&mut self, name: Option<Text<'_>>, at: impl Fn() -> String) -> Option<Arc<str>> {
        let Some(name) = name else {
            self.missing(format!("{}.name", at()), "give it a unique name");
            return None;
        };
        self.take(value::object_name(&name), &name, || format!("{}.name", at()));
        Some(Arc::from(&*name))
    }

    fn port(&mut self, number: Option<i64>, at: impl Fn() -> String) -> Option<u16> {
        let field = || format!("{}.port", at());
        let Some(number) = number else {
            self.missing(field(), "write a TCP port, 1 to 65535");
            return None;
        };
        self.take(value::port(number), number, field)
    }

    /// Checks the elements of a list. Repeated ones are a problem.
    pub(super) fn list<T: Clone + Eq + Hash>(
        &mut self,
        texts: Vec<Text<'_>>,
        checked: impl Fn(&str) -> Result<T, Wrong>,
        field: impl Fn(usize) -> String,
    ) -> Vec<T> {
        let mut values: Vec<T> = Vec::with_capacity(texts.len());
        // Lists are usually short. A set is worthwhile only for long ones.
        let mut seen = HashSet::new();
        for (i, text) in texts.iter().enumerate() {
            let Some(value) = self.take(checked(text), text, || field(i)) else { continue };
            let repeated =
                if texts.len() > 16 { !seen.insert(value.clone()) } else { values.contains(&value) };
            if repeated {
                self.problems
                    .push(Problem::error(field(i), "is there twice", "remove one of them").value(text));
                continue;
            }
            values.push(value);
        }
        values
    }
}

const PROTOCOLS: &str = "write TLS (route by server name) or TCP (route by address and port)";
const IDLE_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(365 * 86_400);
const HELLO_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
const MAX_FLOWS: RangeInclusive<i64> = 1..=16_777_216;
const MAX_NAMES: RangeInclusive<i64> = 1..=4_194_304;
const FRAMES: RangeInclusive<i64> = 1..=100_000;
const MAX_HELLOS: RangeInclusive<i64> = 1..=1_048_576;
