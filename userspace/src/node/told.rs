//! Answers to `/readyz`, `/livez`, `/metrics`, `/tenants` and `/vips`: what an agent is doing.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;

use crate::admin::{Answer, Asked};
use crate::metrics::{self, Served};
use crate::outputs::l2::Asker;

/// The loop runs at least every second. If it did not for this long, it never will again.
const DEAD: Duration = Duration::from_secs(60);

/// How long the thread that announces may take for a part of what it knows.
const PICTURE: Duration = Duration::from_secs(2);

/// What the loop reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Every source had its first full list at some time.
    pub is_synced: bool,
    /// It writes the maps, or wrote them until another process took over.
    pub could_write: bool,
    /// Why it could not write when it tried.
    pub trouble: Option<String>,
    /// Sources that cannot be followed, and why.
    pub stale: Vec<String>,
    /// What it should hold and does not, and why.
    pub exceptions: Vec<String>,
    /// What it serves though no Claims are known.
    pub saved: Option<String>,
    /// When the loop last ran.
    pub turned: Instant,
}

/// What is reported, shared with the tasks that answer.
#[derive(Debug)]
pub(super) struct Told {
    view: Mutex<View>,
    registry: Registry,
    served: Served,
    /// What asks for what is known of segments; empty: nothing is.
    vips: OnceLock<Asker>,
}

impl Told {
    pub(super) fn new(registry: Registry, served: Served) -> Self {
        let view = View {
            is_synced: false,
            could_write: false,
            trouble: None,
            stale: Vec::new(),
            exceptions: Vec::new(),
            saved: None,
            turned: Instant::now(),
        };
        Self { view: Mutex::new(view), registry, served, vips: OnceLock::new() }
    }

    /// Changes what is reported.
    pub(super) fn update(&self, change: impl FnOnce(&mut View)) {
        change(&mut self.view());
    }

    /// Sets, once, what asks for what is known of segments.
    pub(super) fn show_vips(&self, asker: Asker) {
        drop(self.vips.set(asker));
    }

    fn view(&self) -> MutexGuard<'_, View> {
        // No code panics while it writes these few fields, and their values are valid in any case.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ready(view: &View) -> Answer {
    let mut against = Vec::new();
    if !view.is_synced {
        against.push("not synced: a source had no full list yet; nothing is removed before".into());
    }
    if !view.could_write {
        against.push("not the writer of this node's maps yet".into());
    }
    against.extend(view.trouble.clone());
    // No reason against it: all nodes would be unready together, and each of them serves.
    let stale = view.stale.iter().map(|stale| format!("stale: {stale}; the last state serves on"));
    let exceptions = view.exceptions.iter().map(|what| format!("not held: {what}"));
    let saved = view.saved.iter().map(|what| format!("serves: {what}"));
    Answer::of(&against, &saved.chain(stale).chain(exceptions).collect::<Vec<_>>())
}

fn live(view: &View, now: Instant) -> Answer {
    let silent = now.saturating_duration_since(view.turned);
    let against =
        if silent > DEAD { vec![format!("the loop has not turned for {silent:?}")] } else { vec![] };
    Answer::of(&against, &[])
}

impl Asked for Told {
    fn ready(&self) -> Answer {
        ready(&self.view())
    }

    fn live(&self) -> Answer {
        live(&self.view(), Instant::now())
    }

    fn metrics(&self) -> String {
        metrics::text(&self.registry)
    }

    fn tenant(&self, route: &str) -> Option<String> {
        self.served.tenant(route).map(|tenant| tenant.to_string())
    }

    fn vips(&self) -> Option<String> {
        serde_json::to_string(&self.vips.get()?.picture(PICTURE)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_when_it_is_synced_and_writes_even_if_something_is_stale() {
        let mut view = Told::new(Registry::default(), Served::default()).view().clone();
        assert_eq!(ready(&view).text.lines().count(), 3);
        view.is_synced = true;
        assert!(!ready(&view).is_ok);
        view.could_write = true;
        assert_eq!(ready(&view), Answer { is_ok: true, text: "ok\n".into() });
        view.stale.push("services: connection refused".into());
        let answer = ready(&view);
        assert!(answer.is_ok && answer.text.contains("stale: services: connection refused"), "{answer:?}");
        view.exceptions.push("route a: deleted".into());
        assert!(ready(&view).is_ok && ready(&view).text.contains("not held: route a: deleted"));
        assert!(live(&view, view.turned).is_ok, "an API server that is away is no reason to be killed");
    }

    #[test]
    fn a_loop_that_stands_still_is_dead() {
        let view = Told::new(Registry::default(), Served::default()).view().clone();
        assert!(live(&view, view.turned + DEAD).is_ok);
        assert!(!live(&view, view.turned + DEAD + Duration::from_millis(1)).is_ok);
    }
}
