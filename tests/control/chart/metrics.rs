//! Alerts, the dashboard and the list of metrics.

use std::collections::BTreeSet;
use std::fs;

use common::reason::Reason;
use serde_json::Value;

use super::rendered::{EVERYTHING, items, object, objects, root};

/// Returns every query of the alerts and the dashboard, as installed in the cluster.
fn queries() -> Vec<String> {
    let objects = objects(EVERYTHING);
    let rule = object(&objects, "PrometheusRule", "vestibule");
    let rules = items(&rule["spec"]["groups"]).iter().flat_map(|group| items(&group["rules"]));
    let board = object(&objects, "ConfigMap", "vestibule-dashboards");
    assert_eq!(board["metadata"]["labels"]["grafana_dashboard"], "1");
    let board: Value = serde_json::from_str(board["data"]["vestibule.json"].as_str().unwrap()).unwrap();
    let targets = items(&board["panels"]).iter().flat_map(|panel| items(&panel["targets"]));
    let queries = rules.chain(targets).map(|query| query["expr"].as_str().unwrap().to_owned());
    let queries: Vec<String> = queries.collect();
    assert!(queries.len() > 30, "{}", queries.len());
    queries
}

/// Returns our metric names in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("vestibule_")).collect()
}

#[test]
fn alerts_and_dashboard_use_metrics_that_are_documented() {
    let document = fs::read_to_string(root("deploy/metrics.md")).unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<&str> = rows.map(|(name, _)| name).collect();
    let mut used = BTreeSet::new();
    for query in queries() {
        for name in names(&query) {
            let plain = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(documented.contains(plain), "{name} in {query}");
            used.insert(plain.to_owned());
        }
    }
    assert!(used.len() > 12, "{used:?}");
}

#[test]
fn reasons_and_stages_in_queries_are_those_of_the_programs() {
    let mut seen = 0;
    for query in queries() {
        for label in ["stage", "reason"] {
            for operator in ["=\"", "=~\"", "!~\""] {
                for value in query.split(&format!("{label}{operator}")).skip(1) {
                    for word in value.split_once('"').unwrap().0.split('|') {
                        let known =
                            Reason::ALL.iter().any(|reason| [reason.stage(), reason.label()].contains(&word));
                        assert!(known, "{label} {word} in {query}");
                        seen += 1;
                    }
                }
            }
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn alerts_say_how_bad_it_is_and_what_to_do() {
    let objects = objects(EVERYTHING);
    let rule = object(&objects, "PrometheusRule", "vestibule");
    for rule in items(&rule["spec"]["groups"][0]["rules"]) {
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["info", "warning", "critical"].contains(&severity), "{rule}");
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].as_str().is_some_and(|text| text.len() > 10), "{rule}");
        }
        let (document, section) = rule["annotations"]["runbook"].as_str().unwrap().split_once('#').unwrap();
        let document = fs::read_to_string(root(document)).unwrap();
        let mut headings = document.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
        let is_it = |heading: &str| heading.to_lowercase().replace(' ', "-") == section;
        assert!(headings.any(is_it), "{section}: {rule}");
    }
}
