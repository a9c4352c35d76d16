//! What the controller reports about itself: readiness, liveness, metrics.

use crate::admin::{Answer, Asked};
use crate::metrics::{self, Counters, Gauges};
use crate::model::Problem;
use crate::model::cluster::AddressRange;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A loop that has not run for this long counts as hanging.
const HANGS: Duration = Duration::from_secs(60);
/// Largest integer up to which a Prometheus sample is exact.
const EXACT_MAX: u128 = 1 << 53;

/// Counters by kind and outcome.
type Writes = Family<[(&'static str, &'static str); 2], Counter>;

/// State of the controller's loop.
#[derive(Debug)]
pub(super) struct State {
    /// When the loop last ran.
    pub(super) beat: Instant,
    /// What is not known yet.
    pub(super) missing: Vec<String>,
    /// Everything needed was known at some time.
    pub(super) was_ready: bool,
    /// Sources whose content may be outdated, and why.
    pub(super) stale: BTreeMap<String, String>,
    pub(super) leads: bool,
    /// Number of waiting writes.
    pub(super) waiting: usize,
    /// Why not all Claims are written, and since when, as text.
    pub(super) unmarked: Option<String>,
}

/// Shared with the server of metrics and probes.
pub(super) struct Telemetry {
    registry: Registry,
    state: Mutex<State>,
    leader: Gauge,
    writes: Writes,
    problems: Gauges,
    stale: Gauges,
    watch_errors: Counters,
    in_use: Gauges,
    capacity: Gauges,
    nodes: Gauges,
    unheard: Gauge,
    unmarked: Gauge,
    /// Connections to the port of `/metrics` that were closed because their client had enough.
    pub(super) refused: Counter,
    compile_seconds: Histogram,
    ranges: Mutex<Vec<AddressRange>>,
    told: Mutex<Labels>,
}

/// Labels that have a value now.
#[derive(Debug, Default)]
struct Labels {
    problems: Vec<String>,
    stale: Vec<String>,
}

impl Telemetry {
    pub(super) fn new(ranges: &[AddressRange]) -> Self {
        let state = State {
            beat: Instant::now(),
            missing: vec!["nothing is known yet".to_owned()],
            was_ready: false,
            stale: BTreeMap::new(),
            leads: false,
            waiting: 0,
            unmarked: None,
        };
        let mut this = Self {
            state: Mutex::new(state),
            leader: Gauge::default(),
            writes: Writes::default(),
            problems: Gauges::default(),
            stale: Gauges::default(),
            watch_errors: Counters::default(),
            in_use: Gauges::default(),
            capacity: Gauges::default(),
            nodes: Gauges::default(),
            unheard: Gauge::default(),
            unmarked: Gauge::default(),
            refused: Counter::default(),
            compile_seconds: Histogram::new((0..15).map(|power| 0.000_2 * f64::from(1 << power))),
            ranges: Mutex::default(),
            told: Mutex::default(),
            registry: metrics::registry(),
        };
        let registry = &mut this.registry;
        registry.register("leader", "Whether this one leads", this.leader.clone());
        registry.register("status_writes", "Writes of an object's status", this.writes.clone());
        let help = "What cannot be served as written, by the kind of object it is about";
        registry.register("problems", help, this.problems.clone());
        let help = "Whether what this source says may be old: it is away, refuses or is refused";
        registry.register("config_stale", help, this.stale.clone());
        registry.register(
            "watch_errors",
            "Lists, watches and configuration files that failed",
            this.watch_errors.clone(),
        );
        registry.register(
            "addresses_in_use",
            "Addresses of the range that an object has",
            this.in_use.clone(),
        );
        registry.register("addresses_capacity", "Addresses in the range", this.capacity.clone());
        let help = "Nodes with a live agent: whose report counts, is not known, or is a minute behind";
        registry.register("nodes", help, this.nodes.clone());
        let help = "Nodes that may announce addresses and are silent to others, though their agents are alive; of the leader";
        registry.register("nodes_unheard", help, this.unheard.clone());
        let help = "For how many seconds not all Claims have been written, so that agents that start serve what they saved; of the leader";
        registry.register("claims_incomplete_seconds", help, this.unmarked.clone());
        let help = "Connections to this port that were closed because their client had enough";
        registry.register("metrics_refused", help, this.refused.clone());
        let help = "From the objects to the status to be written";
        registry.register("compile_seconds", help, this.compile_seconds.clone());
        this.configure(ranges);
        this
    }

    /// Replaces the ranges of addresses.
    pub(super) fn configure(&self, ranges: &[AddressRange]) {
        self.in_use.clear();
        self.capacity.clear();
        for range in ranges {
            let size = i64::try_from(size(range).min(EXACT_MAX)).unwrap_or(i64::MAX);
            self.capacity.get_or_create(&[("range", text(range))]).set(size);
        }
        *self.ranges.lock().unwrap_or_else(PoisonError::into_inner) = ranges.to_vec();
    }

    /// Records that the loop ran, and its state.
    pub(super) fn beats(&self, missing: Vec<String>, stale: BTreeMap<String, String>, waiting: usize) {
        let gauges = stale.keys().map(|source| (source.clone(), 1)).collect();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        metrics::set_all(&self.stale, "source", &gauges, &mut told.stale);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for source in stale.keys().filter(|source| !state.stale.contains_key(*source)) {
            self.watch_errors.get_or_create(&[("source", source.clone())]).inc();
        }
        let (leads, was_ready) = (state.leads, state.was_ready || missing.is_empty());
        let unmarked = state.unmarked.take();
        *state = State { beat: Instant::now(), missing, was_ready, stale, leads, waiting, unmarked };
    }

    /// Records whether it leads. One that does not judges nothing: what it judged before would be reported for ever.
    pub(super) fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        if !leads {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            metrics::set_all(&self.problems, "kind", &BTreeMap::new(), &mut told.problems);
            self.in_use.clear();
            self.nodes.clear();
        }
        self.unmarked.set(0);
        self.unheard.set(0);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.leads, state.unmarked) = (leads, None);
    }

    /// Records for how long not all Claims have been written, and what for and since when, as text; `None`: they are.
    pub(super) fn lacks_mark(&self, waits: Option<(Duration, String)>) {
        let seconds = waits.as_ref().map_or(0, |(lasts, _)| lasts.as_secs());
        self.unmarked.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.unmarked = waits.map(|(_, text)| text);
    }

    /// Records of how many nodes conditions depend.
    pub(super) fn counts_nodes(&self, counted: usize, unknown: usize, excluded: usize) {
        for (state, count) in [("counted", counted), ("unknown", unknown), ("excluded", excluded)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.nodes.get_or_create(&[("state", state.to_owned())]).set(count);
        }
    }

    /// Records how many nodes may announce addresses and are silent to others, though their agents are alive.
    pub(super) fn counts_unheard(&self, unheard: usize) {
        self.unheard.set(i64::try_from(unheard).unwrap_or(i64::MAX));
    }

    pub(super) fn wrote(&self, kind: &'static str, outcome: &'static str) {
        self.writes.get_or_create(&[("kind", kind), ("outcome", outcome)]).inc();
    }

    /// Records the result of a judgement.
    pub(super) fn judged(&self, problems: &[Problem], in_use: &BTreeSet<IpAddr>, took: Duration) {
        metrics::observe(&self.compile_seconds, took);
        let mut kinds: BTreeMap<String, i64> = BTreeMap::new();
        for problem in problems {
            let kind = problem.object.as_ref().map_or("", |object| object.kind.text());
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        metrics::set_all(&self.problems, "kind", &kinds, &mut told.problems);
        for range in &*self.ranges.lock().unwrap_or_else(PoisonError::into_inner) {
            let used = in_use.iter().filter(|address| range.holds(**address)).count();
            let used = i64::try_from(used).unwrap_or(i64::MAX);
            self.in_use.get_or_create(&[("range", text(range))]).set(used);
        }
    }
}

fn text(range: &AddressRange) -> String {
    if range.first == range.last {
        range.first.to_string()
    } else {
        format!("{}-{}", range.first, range.last)
    }
}

fn size(range: &AddressRange) -> u128 {
    let number = |address| match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    };
    number(range.last).saturating_sub(number(range.first)).saturating_add(1)
}

impl Asked for Telemetry {
    fn ready(&self) -> Answer {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Once it was ready it stays so: what it cannot read later is stale, which another replica would not change.
        let role = if state.leads { "leads" } else { "does not lead" };
        let mut remarks = vec![format!("{role}; writes that wait: {}", state.waiting)];
        remarks.extend(state.unmarked.as_ref().map(|why| format!("not all Claims are written {why}")));
        remarks.extend(state.stale.iter().map(|(source, why)| format!("stale: {source}: {why}")));
        if state.was_ready {
            remarks.extend(state.missing.iter().cloned());
            return Answer::of(&[], &remarks);
        }
        Answer::of(&state.missing, &remarks)
    }

    fn live(&self) -> Answer {
        let silent = self.state.lock().unwrap_or_else(PoisonError::into_inner).beat.elapsed();
        let hangs = (silent > HANGS).then(|| format!("the loop has not come round for {silent:?}"));
        Answer::of(hangs.as_slice(), &[])
    }

    fn metrics(&self) -> String {
        metrics::text(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, ObjectName, ObjectRef};

    #[test]
    fn it_says_what_is_missing_what_is_stale_and_how_much_is_used() {
        let range = |first: &str, last: &str| AddressRange {
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
        };
        let ranges = [range("192.0.2.0", "192.0.2.63"), range("2001:db8::", "2001:db8:ffff::")];
        let telemetry = Telemetry::new(&ranges);
        assert!(!telemetry.ready().is_ok && telemetry.live().is_ok);
        telemetry.beats(vec![], [("gateways".to_owned(), "403".to_owned())].into(), 7);
        // The failure lasts: it is not counted again.
        telemetry.beats(vec![], [("gateways".to_owned(), "403".to_owned())].into(), 7);
        telemetry.leads(true);
        let missing = vec!["not listed yet: gateways".to_owned()];
        telemetry.beats(missing.clone(), [("gateways".to_owned(), "403".to_owned())].into(), 7);
        let ready = telemetry.ready();
        assert!(ready.text.contains(&missing[0]), "{}", ready.text);
        assert!(ready.is_ok && ready.text.contains("stale: gateways: 403"), "{}", ready.text);
        let object = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("a", "b") };
        let in_use = ["192.0.2.1", "192.0.2.2", "10.0.0.1"].map(|text| text.parse().unwrap());
        telemetry.judged(
            &[Problem::error("", "x", "y").object(object)],
            &in_use.into(),
            Duration::from_millis(2),
        );
        telemetry.wrote("Gateway", "written");
        telemetry.counts_nodes(3, 0, 1);
        telemetry.counts_unheard(4);
        let waits = "since 2026-11-21T10:00:00Z: Claim x cannot be written: 403".to_owned();
        telemetry.lacks_mark(Some((Duration::from_secs(70), waits.clone())));
        telemetry.beats(vec![], [("gateways".to_owned(), "403".to_owned())].into(), 7);
        let ready = telemetry.ready().text;
        assert!(ready.contains(&format!("not all Claims are written {waits}")), "{ready}");
        let text = telemetry.metrics();
        for line in [
            "vestibule_claims_incomplete_seconds 70",
            "vestibule_leader 1",
            "vestibule_status_writes_total{kind=\"Gateway\",outcome=\"written\"} 1",
            "vestibule_problems{kind=\"Gateway\"} 1",
            "vestibule_nodes{state=\"excluded\"} 1",
            "vestibule_nodes_unheard 4",
            "vestibule_config_stale{source=\"gateways\"} 1",
            "vestibule_watch_errors_total{source=\"gateways\"} 1",
            "vestibule_addresses_in_use{range=\"192.0.2.0-192.0.2.63\"} 2",
            "vestibule_addresses_capacity{range=\"192.0.2.0-192.0.2.63\"} 64",
            "vestibule_addresses_capacity{range=\"2001:db8::-2001:db8:ffff::\"} 9007199254740992",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is missing in\n{text}");
        }
        // The ranges change.
        telemetry.configure(&ranges[1..]);
        let text = telemetry.metrics();
        assert!(!text.contains("192.0.2.0-") && text.contains("vestibule_addresses_capacity{"), "{text}");
        // Another one leads now. What it sees may be better, and alerts look at the worst value.
        telemetry.leads(false);
        let text = telemetry.metrics();
        for line in ["vestibule_leader 0", "vestibule_claims_incomplete_seconds 0"] {
            assert!(text.lines().any(|other| other == line), "{line} is missing in\n{text}");
        }
        assert!(!telemetry.ready().text.contains("not all Claims"));
        for metric in ["vestibule_problems{", "vestibule_addresses_in_use{", "vestibule_nodes{"] {
            assert!(!text.contains(metric), "{metric} in\n{text}");
        }
    }
}
