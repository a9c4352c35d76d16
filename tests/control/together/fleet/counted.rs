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

/// What an agent asked for of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// Lists of all objects.
    pub(super) lists: usize,
    /// Questions for the version that the API server is at.
    pub(super) questions: usize,
    /// Watches, those that begin with all objects too.
    pub(super) watches: usize,
    /// Requests that were refused: each is worth another one.
    pub(super) refused: usize,
}

/// Returns what each agent asked for of a kind, by node. All have one account: their User-Agents name the nodes.
pub(super) fn by_agent(requests: &[Value], resource: &str) -> BTreeMap<String, Asked> {
    let mut all: BTreeMap<String, Asked> = BTreeMap::new();
    let of_agents = |event: &&Value| account(event) == "agent" && event["objectRef"]["resource"] == resource;
    for event in requests.iter().filter(of_agents) {
        let name = event["userAgent"].as_str().unwrap_or_default();
        let node = name.split_once(" agent (").and_then(|(_, rest)| rest.strip_suffix(')'));
        let node = node.unwrap_or_else(|| panic!("an agent that names no node: {name:?}"));
        let asked = all.entry(node.to_owned()).or_default();
        asked.lists += usize::from(is_list(event));
        asked.questions += usize::from(asks_version(event));
        asked.watches += usize::from(event["verb"] == "watch");
        asked.refused += usize::from(event["responseStatus"]["code"].as_u64() >= Some(400));
    }
    all
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

/// Returns a request of an agent for Claims.
fn request(node: &str, verb: &str, query: &str, code: u32) -> Value {
    serde_json::json!({"verb": verb, "requestURI": format!("/apis/vestibule.dev/v1alpha1/claims?{query}"),
        "user": {"username": "system:serviceaccount:vestibule-system:vestibule-agent"},
        "userAgent": format!("vestibule/0.1.0 agent ({node})"),
        "objectRef": {"resource": "claims"}, "responseStatus": {"code": code}})
}

/// Pages of a list would not be counted, or each question would be one.
#[test]
fn a_question_for_the_version_is_no_list_and_a_page_is_one() {
    for (verb, query, is_a_list, asks) in [
        ("list", "limit=500", true, false),
        ("list", "limit=1", false, true),
        ("list", "labelSelector=a&limit=1", false, true),
        ("list", "limit=1&continue=next", true, false),
        ("watch", "sendInitialEvents=true", true, false),
        ("watch", "resourceVersion=7", false, false),
    ] {
        let event = request("n1", verb, query, 200);
        assert_eq!((is_list(&event), asks_version(&event)), (is_a_list, asks), "{verb} {query}");
    }
}

/// One that lists twice is not made up for by one that does not list.
#[test]
fn each_agent_is_counted_alone() {
    let requests = [
        request("n1", "watch", "sendInitialEvents=true", 200),
        request("n1", "list", "limit=500", 200),
        request("n2", "list", "limit=1", 503),
        request("n2", "list", "limit=1", 200),
        request("n2", "watch", "resourceVersion=7", 410),
    ];
    let wanted = [
        ("n1".to_owned(), Asked { lists: 2, questions: 0, watches: 1, refused: 0 }),
        ("n2".to_owned(), Asked { lists: 0, questions: 2, watches: 1, refused: 2 }),
    ];
    assert_eq!(by_agent(&requests, "claims"), wanted.into());
    assert!(by_agent(&requests, "secrets").is_empty());
}
