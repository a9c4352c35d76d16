//! Agents that only renew their Leases, and report in them which Claims they hold.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::Rest;
use super::release::RELEASE;

/// From one renewal to the next. An agent reports a change after 0.5 s, and every 2 s while there are more.
const PERIOD: Duration = Duration::from_secs(1);

/// The version up to which an agent reports that it has applied all Claims.
#[derive(Clone, Copy, Debug)]
enum Report {
    /// This one, or the newest of all Claims where that is older.
    UpTo(u64),
    /// This one, whatever the API server has.
    Exactly(u64),
}

/// What agents report, by node; of a node without entry, nothing. Copies are of one table.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    by_node: Arc<Mutex<BTreeMap<String, Report>>>,
}

impl Reports {
    /// From now on a node's agent reports that it has applied all Claims up to this version, or up to the newest where
    /// that is older.
    pub fn up_to(&self, node: &str, version: u64) {
        self.set(node, Report::UpTo(version));
    }

    /// The same, whatever the API server has.
    pub fn exactly(&self, node: &str, version: u64) {
        self.set(node, Report::Exactly(version));
    }

    fn set(&self, node: &str, report: Report) {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned(), report);
    }

    fn of(&self, node: &str) -> Option<Report> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner).get(node).copied()
    }
}

/// Renews the Lease of a node's agent until it is dropped. Its clock is years off.
#[derive(Debug)]
pub struct ReportingAgent {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ReportingAgent {
    /// Starts the agent of a node, which reports what `reports` has of it.
    pub fn start(rest: &Rest, reports: &Reports, node: &str) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (rest, node, ended) = (rest.clone(), node.to_owned(), Arc::clone(&ends));
        let reports = reports.clone();
        let thread = std::thread::spawn(move || {
            let mut second = 0;
            while !ended.load(Ordering::Relaxed) {
                renew(&rest, &node, reports.of(&node), second);
                second += 1;
                std::thread::sleep(PERIOD);
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

/// Writes the Lease once. In some tests the API server is away, so failed writes are repeated the next time.
fn renew(rest: &Rest, node: &str, report: Option<Report>, second: u32) {
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases");
    let name = format!("vestibule-agent-{node}");
    let renewed = format!("2001-01-01T00:{:02}:{:02}.000000Z", second / 60, second % 60);
    let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 10, "renewTime": renewed});
    let labels = json!({"app.kubernetes.io/component": "agent"});
    let version = report.and_then(|report| match report {
        Report::UpTo(version) => newest_claim(rest).map(|newest| version.min(newest)),
        Report::Exactly(version) => Some(version),
    });
    let annotations = version.map_or_else(
        || json!({}),
        |version| json!({"vestibule.dev/report-version": "2", "vestibule.dev/claims-version": version.to_string()}),
    );
    let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
    let lease = json!({"metadata": metadata, "spec": spec});
    if let Ok(mut api) = rest.connect()
        && api.merge(&format!("{leases}/{name}"), &lease).is_err()
    {
        let _ = api.create(&leases, &lease);
    }
}

/// Returns the newest version of a Claim; 0 without one, `None` while the API server is away.
pub fn newest_claim(rest: &Rest) -> Option<u64> {
    let claims = rest.connect().ok()?.read("/apis/vestibule.dev/v1alpha1/claims").ok()?;
    let versions = claims["items"].as_array()?.iter();
    let versions = versions.map(|claim| claim["metadata"]["resourceVersion"].as_str()?.parse().ok());
    versions.max().unwrap_or(Some(0))
}

impl Drop for ReportingAgent {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("an agent panicked");
        }
    }
}
