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

/// Whether it asks for all objects: by a list, or by a watch that begins with them.
pub(super) fn is_list(event: &Value) -> bool {
    let uri = event["requestURI"].as_str().unwrap_or_default();
    (event["verb"] == "list" && !asks_version(event)) || uri.contains("sendInitialEvents=true")
}

/// Whether it asks for the version that the API server is at: by a list of one object that does not go on.
fn asks_version(event: &Value) -> bool {
    let uri = event["requestURI"].as_str().unwrap_or_default();
    let mut parts = uri.split(['?', '&']);
    let goes_on = parts.clone().any(|part| part.starts_with("continue="));
    event["verb"] == "list" && !goes_on && parts.any(|part| part == "limit=1")
}

/// How often agents asked for the version of this kind, and how often their requests for it were refused: each refusal is worth another
/// question.
pub(super) fn questions(requests: &[Value], resource: &str) -> (usize, usize) {
    let of_agents = |event: &&Value| account(event) == "agent" && event["objectRef"]["resource"] == resource;
    let of_agents = || requests.iter().filter(of_agents);
    let is_refused = |event: &&Value| event["responseStatus"]["code"].as_u64() >= Some(400);
    (of_agents().filter(|event| asks_version(event)).count(), of_agents().filter(is_refused).count())
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

/// Pages of a list would not be counted, or each question would be one.
#[test]
fn a_question_for_the_version_is_no_list_and_a_page_is_one() {
    let request = |verb: &str, query: &str, code: u32| {
        serde_json::json!({"verb": verb, "requestURI": format!("/apis/vestibule.dev/v1alpha1/claims?{query}"),
            "user": {"username": "system:serviceaccount:vestibule-system:vestibule-agent"},
            "objectRef": {"resource": "claims"}, "responseStatus": {"code": code}})
    };
    for (verb, query, is_a_list, asks) in [
        ("list", "limit=500", true, false),
        ("list", "limit=1", false, true),
        ("list", "labelSelector=a&limit=1", false, true),
        ("list", "limit=1&continue=next", true, false),
        ("watch", "sendInitialEvents=true", true, false),
        ("watch", "resourceVersion=7", false, false),
    ] {
        let event = request(verb, query, 200);
        assert_eq!((is_list(&event), asks_version(&event)), (is_a_list, asks), "{verb} {query}");
    }
    let requests = [("list", "limit=1", 503), ("list", "limit=1", 200), ("watch", "resourceVersion=7", 410)];
    let requests = requests.map(|(verb, query, code)| request(verb, query, code));
    assert_eq!(questions(&requests, "claims"), (2, 2));
    assert_eq!(questions(&requests, "secrets"), (0, 0));
}
