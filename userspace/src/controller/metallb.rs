//! Whether MetalLB runs beside us: two that give addresses of the same pools give some of them twice.

use super::writes::short;
use k8s_openapi::api::core::v1::Pod;
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
const LABELS: [&str; 2] = [
    "app=metallb,component in (controller,speaker)",
    "app.kubernetes.io/name=metallb,app.kubernetes.io/component in (controller,speaker)",
];

/// What is known of it.
#[derive(Debug)]
pub(super) struct MetalLb {
    /// When it was last there, or might have been.
    last: Instant,
    /// Why it might have been; empty: this controller did not look before.
    what: String,
    is_away: bool,
}

impl MetalLb {
    /// Nothing is known yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now, what: String::new(), is_away: false }
    }

    /// Takes the result of [`look`]: a Pod of it, if there is one.
    pub(super) fn looked(&mut self, found: Result<Option<String>, String>, now: Instant) {
        self.is_away = found == Ok(None);
        match found {
            Ok(None) => return,
            Ok(Some(pod)) => self.what = format!("runs (Pod {pod})"),
            Err(error) => self.what = format!("may run (its Pods cannot be listed: {error})"),
        }
        self.last = now;
    }

    /// Returns why nothing is taken from its pools; `None`: it is away, and has been for long enough.
    pub(super) fn why(&self, now: Instant) -> Option<Arc<str>> {
        let is_over = now.saturating_duration_since(self.last) >= REST;
        match (self.is_away, self.what.as_str()) {
            (true, _) if is_over => None,
            (true, "") | (false, "") => Some("it is not known for a minute yet that MetalLB is away".into()),
            (true, what) => Some(format!("less than a minute ago: MetalLB {what}").into()),
            (false, what) => Some(format!("MetalLB {what}").into()),
        }
    }
}

/// Returns a Pod of MetalLB in these namespaces, if there is one.
pub(super) async fn look(client: &Client, namespaces: &[Arc<str>]) -> Result<Option<String>, String> {
    for namespace in namespaces {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        for labels in LABELS {
            let one = ListParams::default().labels(labels).limit(1);
            let found = pods.list_metadata(&one).await.map_err(|error| short(&error))?;
            if let Some(pod) = found.items.first() {
                return Ok(Some(format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default())));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_while_metallb_may_run_and_for_a_minute_after() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let mut this = MetalLb::new(begun);
        let why = |this: &MetalLb, secs| this.why(at(secs)).map(|why| why.to_string());
        let unknown = Some("it is not known for a minute yet that MetalLB is away".to_owned());
        assert_eq!(
            (why(&this, 0), why(&this, 600)),
            (unknown.clone(), unknown.clone()),
            "it was never looked for"
        );
        this.looked(Ok(None), at(1));
        assert_eq!((why(&this, 59), why(&this, 60)), (unknown, None));
        this.looked(Ok(Some("metallb-system/speaker-x".into())), at(70));
        assert_eq!(why(&this, 700).unwrap(), "MetalLB runs (Pod metallb-system/speaker-x)");
        this.looked(Ok(None), at(80));
        assert_eq!(
            why(&this, 129).unwrap(),
            "less than a minute ago: MetalLB runs (Pod metallb-system/speaker-x)"
        );
        assert_eq!(why(&this, 130), None);
        this.looked(Err("403 Forbidden".into()), at(140));
        assert_eq!(why(&this, 700).unwrap(), "MetalLB may run (its Pods cannot be listed: 403 Forbidden)");
        this.looked(Ok(None), at(700));
        assert_eq!(why(&this, 700), None);
    }
}
