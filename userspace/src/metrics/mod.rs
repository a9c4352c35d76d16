//! `/metrics`: the metrics and their names, following the conventions of Prometheus. Labels are bounded: they
//! never contain a server name sent by a client or a client's address.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::maps::event::RouteCounters;
use common::reason::Reason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::dataplane::load::LoadError;
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::dataplane::sizes::Sizes;
use crate::dataplane::swept::{Found, Swept};
use crate::model::{Desired, Pattern, Segments};

/// What is counted on segments.
mod segments;
mod routes;

use routes::Others;
pub use routes::{OwnSeries, PerRoute};

/// One label and its value.
pub type Label = [(&'static str, String); 1];

/// Gauges with one label.
pub type Gauges = Family<Label, Gauge>;

/// Counters with one label.
pub type Counters = Family<Label, Counter>;

/// Returns a registry with the prefix and the metrics that every process has.
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("vestibule");
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The version that runs", version);
    registry
}

/// Returns the text for `/metrics`.
pub fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a String fails only if a collector fails.
    if let Err(error) = prometheus_client::encoding::text::encode(&mut text, registry) {
        tracing::warn!(%error, "metrics cannot be served");
    }
    text
}

/// Returns a histogram with buckets from 0.2 ms to 3.3 s.
fn seconds() -> Histogram {
    Histogram::new((0..15).map(|power| 0.000_1 * f64::from(1 << power) * 2.0))
}

/// The state that clients find, shared with scrapes: it says whose each route is.
#[derive(Clone, Debug, Default)]
pub struct Served(Arc<Mutex<Arc<Desired>>>);

impl Served {
    /// Sets the state.
    pub fn set(&self, desired: &Arc<Desired>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(desired);
    }

    fn get(&self) -> Arc<Desired> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whose this route is.
    pub fn tenant(&self, route: &str) -> Option<Arc<str>> {
        self.get().routes.find(route).and_then(|route| route.tenant.clone())
    }
}

/// The metrics that an agent itself counts. The programs' counts are read from the maps.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    /// 1: this process writes the maps.
    pub writer: Gauge,
    /// 1: the data of this source may be outdated.
    pub stale: Gauges,
    /// Problems by the kind of object they are about.
    pub problems: Gauges,
    /// Backends that fail their probe, by route.
    pub failing: Gauges,
    /// Failed lists and watches, by source.
    pub watch_errors: Counters,
    /// Map writes, by map.
    pub map_writes: Counters,
    /// Elements of maps, and programs, that other programs took away and that were put back.
    pub repaired: Counter,
    /// Connections to the port of `/metrics` that were closed because their client had enough.
    pub refused_scrapes: Counter,
    /// Time from facts to the desired state.
    pub compile_seconds: Histogram,
    /// Time from the desired state to the maps.
    pub apply_seconds: Histogram,
    /// Whose each route is.
    pub served: Served,
    /// Whether each route has metrics of its own.
    pub own: OwnSeries,
    /// What sweeps through all connections found.
    pub swept: Swept,
    /// What is counted on the node's segments.
    pub segments: Segments,
}

impl AgentMetrics {
    /// Registers all of these, and the metrics read from the maps in `pins`.
    pub fn register(registry: &mut Registry, pins: &Pins, per_route: PerRoute) -> Self {
        let this = Self {
            writer: Gauge::default(),
            stale: Gauges::default(),
            problems: Gauges::default(),
            failing: Gauges::default(),
            watch_errors: Counters::default(),
            map_writes: Counters::default(),
            repaired: Counter::default(),
            refused_scrapes: Counter::default(),
            compile_seconds: seconds(),
            apply_seconds: seconds(),
            served: Served::default(),
            own: OwnSeries::new(per_route),
            swept: Swept::default(),
            segments: Segments::default(),
        };
        registry.register("writer", "Whether this process writes the node's maps", this.writer.clone());
        let help = "Whether what this source says may be old: it is away, refuses or is refused";
        registry.register("config_stale", help, this.stale.clone());
        let help = "What cannot be served as written, by the kind of object it is about";
        registry.register("problems", help, this.problems.clone());
        registry.register("backend_failing", "Backends that fail their probe", this.failing.clone());
        registry.register("watch_errors", "Lists and watches that failed", this.watch_errors.clone());
        registry.register(
            "map_writes",
            "Elements written to maps and deleted from them",
            this.map_writes.clone(),
        );
        let help = "Elements of maps, programs and routes that another program took away or changed, and that were put back";
        registry.register("repairs", help, this.repaired.clone());
        let help = "Connections to this port that were closed because their client had enough";
        registry.register("metrics_refused", help, this.refused_scrapes.clone());
        let help = "From the objects to the desired state of the data plane";
        registry.register("compile_seconds", help, this.compile_seconds.clone());
        let help = "From the desired state to the last map write";
        registry.register("apply_seconds", help, this.apply_seconds.clone());
        let (own, served, swept) = (this.own.clone(), this.served.clone(), this.swept.clone());
        let (pins, others) = (pins.clone(), Mutex::default());
        registry.register_collector(Box::new(FromMaps { pins, own, others, served, swept }));
        registry.register_collector(Box::new(segments::FromSegments(this.segments.clone())));
        this
    }
}

/// Sets the gauges to exactly these values, and removes those no longer listed.
pub fn set_all(
    family: &Gauges,
    label: &'static str,
    values: &BTreeMap<String, i64>,
    before: &mut Vec<String>,
) {
    for gone in before.iter().filter(|value| !values.contains_key(*value)) {
        family.remove(&[(label, gone.clone())]);
    }
    for (value, number) in values {
        family.get_or_create(&[(label, value.clone())]).set(*number);
    }
    *before = values.keys().cloned().collect();
}

/// Observes a time.
pub fn observe(histogram: &Histogram, time: Duration) {
    histogram.observe(time.as_secs_f64());
}

/// The programs' counts, read from the pinned maps at each scrape, but for what grows with connections: that is what sweeps found.
#[derive(Debug)]
struct FromMaps {
    pins: Pins,
    own: OwnSeries,
    others: Mutex<Others>,
    served: Served,
    swept: Swept,
}

/// The values read by one scrape.
#[derive(Debug, Default)]
struct Reading {
    reasons: Vec<(Reason, u64)>,
    routes: BTreeMap<String, RouteCounters>,
    /// Name, help, value.
    gauges: Vec<(&'static str, &'static str, u64)>,
}

impl FromMaps {
    fn read(&self) -> Result<Reading, LoadError> {
        let maps = read::open(&self.pins)?;
        let sizes = Sizes {
            flows: maps.flows.capacity(),
            names: maps.routes_exact.capacity(),
            hellos: maps.hellos.capacity(),
        };
        Ok(Reading {
            reasons: read::reasons(&self.pins)?,
            routes: self.others.lock().unwrap_or_else(PoisonError::into_inner).counted(&maps, &self.own)?,
            gauges: gauges(sizes, self.swept.get(), &self.served.get()),
        })
    }
}

/// Returns gauges: name, help, value. Gets no map, so that a scrape counts nothing in them.
fn gauges(sizes: Sizes, swept: Option<Found>, served: &Desired) -> Vec<(&'static str, &'static str, u64)> {
    let mut gauges = vec![
        ("flows_capacity", "Connections that the flow table takes", u64::from(sizes.flows)),
        ("hellos_capacity", "ClientHellos that can be held", u64::from(sizes.hellos)),
        ("names_capacity", "Server names that the maps take", u64::from(sizes.names)),
    ];
    // Only the process that writes the maps sweeps, and knows what they hold.
    let Some(Found { flows, hellos, refusing }) = swept else { return gauges };
    let is_exact = |(_, pattern): &&(usize, Pattern)| !matches!(pattern, Pattern::Wildcard(_));
    let names = served.routes.iter().map(|route| route.names.iter().filter(is_exact).count()).sum::<usize>();
    gauges.extend([
        (
            "flows",
            "Connections in the flow table, as of the last sweep through it: 10 s ago, up to four minutes where there are millions",
            flows,
        ),
        ("hellos", "Connections whose ClientHello is held, as of the last sweep, a second ago", hellos),
        ("names", "Server names in the maps, without wildcards of any depth", names as u64),
    ]);
    let help = "Routes of which more than one connection in 20 was refused, in each of the last two intervals of 150 s";
    gauges.extend(refusing.map(|refusing| ("routes_refusing", help, refusing)));
    gauges
}

impl Collector for FromMaps {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Without maps there is nothing to report. A writer that has maps reports errors itself.
        let Ok(reading) = self.read() else { return Ok(()) };
        let help = "Packets and events by the reason why they left the path";
        let mut packets = encoder.encode_descriptor("packets", help, None, MetricType::Counter)?;
        for (reason, count) in &reading.reasons {
            let labels = [("stage", reason.stage()), ("reason", reason.label())];
            count_of(&mut packets, &labels, *count)?;
        }
        let help = "Connections that reached a backend, that were refused, and tries of another backend";
        let mut routes = encoder.encode_descriptor("route_connections", help, None, MetricType::Counter)?;
        let served = self.served.get();
        for (route, counters) in &reading.routes {
            let tenant =
                served.routes.find(route).and_then(|route| route.tenant.as_deref()).unwrap_or_default();
            let outcomes = [
                ("connected", counters.connected),
                ("refused", counters.refused),
                ("retried", counters.retried),
            ];
            for (outcome, count) in outcomes {
                let labels = [("route", route.as_str()), ("tenant", tenant), ("outcome", outcome)];
                count_of(&mut routes, &labels, count)?;
            }
        }
        for (name, help, value) in reading.gauges {
            let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        Ok(())
    }
}

fn count_of(
    metric: &mut prometheus_client::encoding::MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    count: u64,
) -> Result<(), fmt::Error> {
    metric.encode_family(labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DesiredRoute, ServerName};
    use std::path::Path;

    #[test]
    fn names_follow_the_conventions_and_no_map_is_no_failure() {
        let mut registry = registry();
        let pins = Pins::new(Path::new("/sys/fs/bpf/vestibule_no_such_folder"));
        let metrics = AgentMetrics::register(&mut registry, &pins, PerRoute::Auto);
        metrics.writer.set(1);
        metrics.map_writes.get_or_create(&[("map", "ROUTES".into())]).inc_by(3);
        observe(&metrics.compile_seconds, Duration::from_millis(3));
        let mut before = Vec::new();
        set_all(
            &metrics.stale,
            "source",
            &[("Gateway".into(), 1), ("Service".into(), 0)].into(),
            &mut before,
        );
        set_all(&metrics.stale, "source", &[("Service".into(), 0)].into(), &mut before);
        let text = text(&registry);
        for line in [
            concat!("vestibule_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "vestibule_writer 1",
            "vestibule_map_writes_total{map=\"ROUTES\"} 3",
            "vestibule_compile_seconds_count 1",
            "vestibule_config_stale{source=\"Service\"} 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("Gateway"), "removed objects are not reported:\n{text}");
    }

    /// A scrape that walked through the flows took as long as there are flows, on each node.
    #[test]
    fn a_scrape_says_what_the_last_sweep_found() {
        let sizes = Sizes { flows: 100, names: 10, hellos: 7 };
        let name = |name: &str| ServerName::new(name).unwrap();
        let names = vec![
            (0, Pattern::Exact(name("a.example"))),
            (0, Pattern::OneLabel(name("a.example"))),
            (0, Pattern::Wildcard(name("a.example"))),
        ];
        let route = DesiredRoute { name: "r".into(), names: names.into(), ..DesiredRoute::default() };
        let routes = vec![Arc::new(route)].into_iter().collect();
        let served = Desired { routes, ..Desired::default() };
        let said = |swept| -> BTreeMap<&str, u64> {
            gauges(sizes, swept, &served).into_iter().map(|(name, _, value)| (name, value)).collect()
        };
        let capacities = [("flows_capacity", 100), ("hellos_capacity", 7), ("names_capacity", 10)];
        assert_eq!(said(None), capacities.into(), "what is not known is not 0");
        let found = Found { flows: 42, hellos: 3, refusing: None };
        let all: BTreeMap<_, _> =
            [("flows", 42), ("hellos", 3), ("names", 2)].into_iter().chain(capacities).collect();
        assert_eq!(said(Some(found)), all, "which routes refuse is not known yet");
        let refusing = [("routes_refusing", 1)];
        assert_eq!(
            said(Some(Found { refusing: Some(1), ..found })),
            all.into_iter().chain(refusing).collect()
        );
    }
}
