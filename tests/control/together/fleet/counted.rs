//! What was asked of the API server: its audit log, and its metrics.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::agent::scene::Scene;

/// Returns the requests of our accounts so far: of watches, that they began.
pub(super) fn audited(scene: &Scene) -> Vec<Value> {
    let log = fs::read_to_string(scene.server.audit_log()).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["verb"] != "watch" || event["stage"] == "ResponseStarted").collect()
}

/// `agent`, `controller`, or empty.
pub(super) fn account(event: &Value) -> &str {
    let user = event["user"]["username"].as_str().unwrap_or_default();
    user.rsplit_once(":vestibule-").map_or("", |(_, account)| account)
}

/// Whether it asks for all objects: by a list, or by a watch that begins with them. A list of one object asks for the version that the API
/// server is at.
pub(super) fn is_list(event: &Value) -> bool {
    let uri = event["requestURI"].as_str().unwrap_or_default();
    let is_of_one = uri.split(['?', '&']).any(|part| part == "limit=1");
    (event["verb"] == "list" && !is_of_one) || uri.contains("sendInitialEvents=true")
}

pub(super) fn counted(requests: &[Value]) -> BTreeMap<(String, String, String), usize> {
    let mut counts = BTreeMap::new();
    for event in requests {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let mut what = text(&object["resource"]);
        if let Some(part) = object["subresource"].as_str() {
            what = format!("{what}/{part}");
        }
        *counts.entry((account(event).to_owned(), text(&event["verb"]), what)).or_default() += 1;
    }
    counts
}

/// Returns how many events of Claims all watches were sent, and their bytes.
pub(super) fn watch_events(scene: &Scene) -> (f64, f64) {
    let text = scene.kubectl().run(&["get", "--raw", "/metrics"]).unwrap();
    let sum = |metric: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(metric) && is_of_claims(line));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    (sum("apiserver_watch_events_sizes_count{"), sum("apiserver_watch_events_sizes_sum{"))
}

fn is_of_claims(line: &str) -> bool {
    line.contains("kind=\"Claim\"") || line.contains("resource=\"claims\"")
}
