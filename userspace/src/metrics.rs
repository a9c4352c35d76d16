//! `/metrics`: the metrics and their names, following the conventions of Prometheus. Labels are bounded: they
//! never contain a server name sent by a client or a client's address.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::maps::event::RouteCounters;
use common::maps::route::LABEL_ROUTE;
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
use crate::dataplane::maps::Maps;
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::model::Desired;

/// The most routes that have metrics of their own. The others are summed up as [`OTHERS`].
const ROUTES_MAX: usize = 10_000;

/// The label of routes beyond [`ROUTES_MAX`], and of all routes if metrics per route are switched off.
const OTHERS: &str = "(others)";

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
    /// Time from facts to the desired state.
    pub compile_seconds: Histogram,
    /// Time from the desired state to the maps.
    pub apply_seconds: Histogram,
    /// Whose each route is.
    pub served: Served,
}

impl AgentMetrics {
    /// Registers all of these, and the metrics read from the maps in `pins`.
    pub fn register(registry: &mut Registry, pins: &Pins, per_route: bool) -> Self {
        let this = Self {
            writer: Gauge::default(),
            stale: Gauges::default(),
            problems: Gauges::default(),
            failing: Gauges::default(),
            watch_errors: Counters::default(),
            map_writes: Counters::default(),
            repaired: Counter::default(),
            compile_seconds: seconds(),
            apply_seconds: seconds(),
            served: Served::default(),
        };
        registry.register("writer", "Whether this process writes the node's maps", this.writer.clone());
        let help = "Whether what this source says may be old: the API server is away or refuses";
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
        let help = "Elements of maps, and programs, that another program took away or changed, and that were put back";
        registry.register("repairs", help, this.repaired.clone());
        let help = "From the objects to the desired state of the data plane";
        registry.register("compile_seconds", help, this.compile_seconds.clone());
        let help = "From the desired state to the last map write";
        registry.register("apply_seconds", help, this.apply_seconds.clone());
        let served = this.served.clone();
        registry.register_collector(Box::new(FromMaps { pins: pins.clone(), per_route, served }));
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

/// The programs' counts, read from the pinned maps at each scrape.
#[derive(Debug)]
struct FromMaps {
    pins: Pins,
    per_route: bool,
    served: Served,
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
        let routes = if self.per_route { ROUTES_MAX } else { 0 };
        let names = maps.routes_exact.count()? + maps.routes_long.count()?;
        let gauges = vec![
            ("flows", "Connections in the flow table", maps.flows.count()?),
            ("flows_capacity", "Connections that the flow table takes", u64::from(maps.flows.capacity())),
            ("hellos", "Connections whose ClientHello is held", maps.hellos.count()?),
            ("hellos_capacity", "ClientHellos that can be held", u64::from(maps.hellos.capacity())),
            ("names", "Server names in the maps, without wildcards of any depth", names),
            ("names_capacity", "Server names that the maps take", u64::from(maps.routes_exact.capacity())),
        ];
        Ok(Reading { reasons: read::reasons(&self.pins)?, routes: counted(&maps, routes)?, gauges })
    }
}

/// Sums counters by route name. In the order of ids, so that the same routes always have their own metrics.
fn counted(maps: &Maps, most: usize) -> Result<BTreeMap<String, RouteCounters>, LoadError> {
    let mut names: HashMap<u32, String> = HashMap::new();
    maps.labels.walk(|key, label| {
        if key.kind == LABEL_ROUTE {
            let text = label.text.get(..usize::from(label.length)).unwrap_or(&label.text);
            names.insert(key.id, String::from_utf8_lossy(text).into_owned());
        }
    })?;
    let mut counters = read::route_counters(maps)?;
    counters.sort_by_key(|(id, _)| *id);
    Ok(by_name(&counters, &names, most))
}

fn by_name(
    counters: &[(u32, RouteCounters)],
    names: &HashMap<u32, String>,
    most: usize,
) -> BTreeMap<String, RouteCounters> {
    let mut sums: BTreeMap<String, RouteCounters> = BTreeMap::new();
    for (id, counted) in counters {
        let own = names.get(id).filter(|_| sums.len() < most).cloned();
        let sum = sums.entry(own.unwrap_or_else(|| OTHERS.into())).or_insert_with(RouteCounters::zeroed);
        sum.connected += counted.connected;
        sum.refused += counted.refused;
        sum.retried += counted.retried;
    }
    sums
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
    use std::path::Path;

    #[test]
    fn names_follow_the_conventions_and_no_map_is_no_failure() {
        let mut registry = registry();
        let pins = Pins::new(Path::new("/sys/fs/bpf/vestibule_no_such_folder"));
        let metrics = AgentMetrics::register(&mut registry, &pins, true);
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

    #[test]
    fn routes_beyond_the_bound_are_summed_up() {
        let counted = |connected| RouteCounters { connected, ..RouteCounters::zeroed() };
        let counters: Vec<_> = (1..=4).map(|id| (id, counted(u64::from(id)))).collect();
        let names = (1..=4).map(|id| (id, format!("r{id}"))).collect();
        let sums = by_name(&counters, &names, 2);
        let told: Vec<_> = sums.iter().map(|(name, sum)| (name.as_str(), sum.connected)).collect();
        assert_eq!(told, [(OTHERS, 7), ("r1", 1), ("r2", 2)]);
        assert_eq!(by_name(&counters, &names, 0)[OTHERS].connected, 10);
        assert_eq!(by_name(&counters, &HashMap::new(), 9)[OTHERS].connected, 10);
    }
}
