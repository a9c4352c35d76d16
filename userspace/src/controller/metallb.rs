//! Whether MetalLB runs beside us: two that give addresses of the same pools give some of them twice.

use super::writes::short;
use crate::model::cluster::{Policy, PoolsClosed};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ListParams};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often its Pods are looked for.
pub(super) const LOOK: Duration = Duration::from_secs(10);
/// For how long after it was last seen, or after a controller began to lead, nothing is taken from its pools: what it gave at last
/// may not be in the status of its Service yet.
const REST: Duration = Duration::from_secs(60);
/// Labels of its controller and speakers, in its own manifests and in its chart.
pub(super) const LABELS: [&str; 2] = [
    "app=metallb,component in (controller,speaker)",
    "app.kubernetes.io/name=metallb,app.kubernetes.io/component in (controller,speaker)",
];
/// Those that a node runs or is about to run: one that was only made, or has ended, gives no addresses.
pub(super) const FIELDS: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// What is known of it.
#[derive(Debug)]
pub(super) struct MetalLb {
    /// When it was last there, or might have been.
    last: Instant,
    /// When a Pod of it was seen last.
    seen: Option<Instant>,
    /// Why it might have been there; empty: this controller did not look before.
    what: String,
    /// Namespace of the Pod that was seen within [`REST`] of the last look; empty: none was.
    namespace: String,
    looked: bool,
    is_away: bool,
    /// Whether it may serve what was granted here: since it was last known to be away, a Pod of it was seen.
    may_run: bool,
}

impl MetalLb {
    /// Nothing is known yet.
    pub(super) fn new(now: Instant) -> Self {
        let (what, namespace) = (String::new(), String::new());
        Self { last: now, seen: None, what, namespace, looked: false, is_away: false, may_run: true }
    }

    /// Takes the result of [`look`]: a Pod of it, if there is one.
    pub(super) fn looked(&mut self, found: Result<Option<String>, String>, now: Instant) {
        let is_over = self.seen.is_none_or(|seen| now.saturating_duration_since(seen) >= REST);
        if is_over && (self.is_away || found == Ok(None)) {
            self.may_run = false;
        }
        (self.looked, self.is_away) = (true, found == Ok(None));
        match found {
            Ok(None) => return,
            Ok(Some(pod)) => {
                self.what = format!("runs (Pod {pod})");
                self.namespace = pod.split('/').next().unwrap_or_default().to_owned();
                (self.seen, self.may_run) = (Some(now), true);
            }
            Err(error) => {
                self.what = format!("may run (its Pods cannot be listed: {error})");
                // One look that fails makes no other Event of each Service that waits.
                if is_over {
                    self.namespace.clear();
                }
            }
        }
        self.last = now;
    }

    /// Returns why nothing is taken from its pools; `None`: it is away, and has been for long enough.
    pub(super) fn closed(&self, now: Instant) -> Option<PoolsClosed> {
        let is_over = now.saturating_duration_since(self.last) >= REST;
        let why = match (self.is_away, self.what.as_str()) {
            (true, _) if is_over => return None,
            (true, "") | (false, "") => "it is not known for a minute yet that MetalLB is away".to_owned(),
            (true, what) => format!("less than a minute ago: MetalLB {what}"),
            (false, what) => format!("MetalLB {what}"),
        };
        let brief = match (self.what.as_str(), self.namespace.as_str()) {
            _ if !self.looked => String::new(),
            ("", _) => why.clone(),
            (_, "") => "it is not known for a minute yet whether MetalLB runs: its Pods could not be listed"
                .to_owned(),
            (_, namespace) => {
                format!("MetalLB runs in namespace {namespace}, or did so less than a minute ago")
            }
        };
        let was_seen = self.seen.is_some_and(|seen| now.saturating_duration_since(seen) < REST);
        Some(PoolsClosed { why: why.into(), brief: brief.into(), may_run: self.may_run, was_seen })
    }
}

/// Where it is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Realm {
    /// In the namespaces whose pools are read: who may make Pods elsewhere stops nothing.
    Namespaces(Vec<Arc<str>>),
    /// Everywhere: Services that are not of our own class may be served by a MetalLB that is not known.
    All,
}

impl Realm {
    /// `None`: nothing of MetalLB's is ours.
    pub(super) fn of(policy: &Policy) -> Option<Self> {
        if policy.pools.is_on() {
            return Some(Self::Namespaces(policy.pools.namespaces.clone()));
        }
        policy.load_balancers.adopts_any().then_some(Self::All)
    }

    fn pods(&self, client: &Client) -> Vec<Api<Pod>> {
        match self {
            Self::All => vec![Api::all(client.clone())],
            Self::Namespaces(names) => {
                names.iter().map(|name| Api::namespaced(client.clone(), name)).collect()
            }
        }
    }
}

/// Returns a Pod of MetalLB, if there is one.
pub(super) async fn look(client: &Client, realm: &Realm) -> Result<Option<String>, String> {
    for pods in realm.pods(client) {
        for labels in LABELS {
            // The cache of the API server answers: otherwise it would read all Pods of the cluster for each look.
            let one = ListParams::default().match_any().labels(labels).fields(FIELDS).limit(1);
            let found = pods.list_metadata(&one).await.map_err(|error| short(&error))?;
            if let Some(ObjectMeta { namespace, name, .. }) = found.items.first().map(|pod| &pod.metadata) {
                let text = |part: &Option<String>| part.clone().unwrap_or_default();
                return Ok(Some(format!("{}/{}", text(namespace), text(name))));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_everywhere_only_where_its_namespaces_are_not_known() {
        let mut policy = Policy::default();
        assert_eq!(Realm::of(&policy), None);
        policy.load_balancers.others = vec!["example.com/lb".into()];
        assert_eq!(Realm::of(&policy), Some(Realm::All));
        policy.pools.namespaces = vec!["a".into()];
        assert_eq!(Realm::of(&policy), Some(Realm::Namespaces(vec!["a".into()])));
        policy.load_balancers.others.clear();
        assert_eq!(Realm::of(&policy), Some(Realm::Namespaces(vec!["a".into()])));
    }

    #[test]
    fn nothing_is_taken_while_metallb_may_run_and_for_a_minute_after() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let mut this = MetalLb::new(begun);
        let why = |this: &MetalLb, secs| this.closed(at(secs)).map(|closed| closed.why.to_string());
        let may_run = |this: &MetalLb, secs| this.closed(at(secs)).map(|closed| closed.may_run);
        let unknown = Some("it is not known for a minute yet that MetalLB is away".to_owned());
        assert_eq!(
            (why(&this, 0), why(&this, 600)),
            (unknown.clone(), unknown.clone()),
            "it was never looked for"
        );
        assert_eq!(may_run(&this, 600), Some(true));
        assert_eq!(*this.closed(at(600)).unwrap().brief, *"", "the answer comes in a moment");
        this.looked(Ok(None), at(1));
        assert_eq!(may_run(&this, 59), Some(false), "this controller has not seen it");
        assert_eq!((why(&this, 59), why(&this, 60)), (unknown, None));
        this.looked(Ok(Some("metallb-system/speaker-x".into())), at(70));
        assert_eq!(why(&this, 700).unwrap(), "MetalLB runs (Pod metallb-system/speaker-x)");
        let seen = this.closed(at(700)).unwrap().brief;
        assert_eq!(*seen, *"MetalLB runs in namespace metallb-system, or did so less than a minute ago");
        this.looked(Ok(None), at(80));
        assert_eq!(
            why(&this, 129).unwrap(),
            "less than a minute ago: MetalLB runs (Pod metallb-system/speaker-x)"
        );
        assert_eq!((why(&this, 130), may_run(&this, 129)), (None, Some(true)));
        assert_eq!(this.closed(at(129)).unwrap().brief, seen, "each Service has one Event of both");
        this.looked(Err("403 Forbidden".into()), at(140));
        assert_eq!(why(&this, 700).unwrap(), "MetalLB may run (its Pods cannot be listed: 403 Forbidden)");
        this.looked(Ok(None), at(700));
        assert_eq!(why(&this, 700), None);
    }

    /// What its L2Advertisements say goes on while it is only not known whether it runs, as when another controller leads.
    #[test]
    fn it_was_seen_for_a_minute_after_its_last_pod() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let was_seen = |this: &MetalLb, secs| this.closed(at(secs)).map(|closed| closed.was_seen);
        let mut this = MetalLb::new(begun);
        assert_eq!(was_seen(&this, 0), Some(false));
        this.looked(Err("timeout".into()), at(1));
        assert_eq!(was_seen(&this, 1), Some(false));
        this.looked(Ok(Some("m/speaker".into())), at(10));
        assert_eq!(was_seen(&this, 60), Some(true));
        this.looked(Ok(None), at(61));
        assert_eq!(was_seen(&this, 69), Some(true));
        assert_eq!(was_seen(&this, 70), None);
    }

    #[test]
    fn a_look_that_fails_says_nothing_of_who_was_away_or_there() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let fails = || Err("timeout".to_owned());
        let mut this = MetalLb::new(begun);
        let closed =
            |this: &MetalLb, secs| this.closed(at(secs)).map(|closed| (closed.brief, closed.may_run));
        this.looked(fails(), at(1));
        assert!(closed(&this, 1).unwrap().1, "it was never known to be away");
        this.looked(Ok(None), at(10));
        this.looked(fails(), at(20));
        let unknown = "it is not known for a minute yet whether MetalLB runs: its Pods could not be listed";
        assert_eq!(closed(&this, 20), Some((unknown.into(), false)), "what was granted goes on");
        this.looked(Ok(Some("m/speaker".into())), at(30));
        let seen = closed(&this, 30);
        assert!(seen.as_ref().unwrap().1);
        for secs in [40, 60, 80] {
            this.looked(fails(), at(secs));
            assert_eq!(closed(&this, secs), seen, "after {secs} s");
            this.looked(Ok(Some("m/speaker".into())), at(secs + 10));
            assert_eq!(closed(&this, secs + 10), seen);
        }
        this.looked(Ok(None), at(100));
        this.looked(fails(), at(110));
        assert_eq!(closed(&this, 110), seen, "a Pod was seen less than a minute ago");
        this.looked(fails(), at(160));
        assert_eq!(closed(&this, 160), Some((unknown.into(), true)));
        this.looked(Ok(None), at(170));
        assert!(!closed(&this, 170).unwrap().1);
        assert_eq!(closed(&this, 220), None);
        this.looked(fails(), at(230));
        assert_eq!(closed(&this, 230), Some((unknown.into(), false)), "nobody saw it come back");
    }
}
