//! When alerts fire: `promtool` evaluates the rules as the cluster has them over the series in `alerts.yaml`.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;
use tests::cluster::promtool;
use tests::temp::TempDir;

use super::rendered::{EVERYTHING, items, object, objects, root};

/// Returns the series, and what fires when, in promtool's own form.
fn cases() -> String {
    fs::read_to_string(root("tests/control/chart/alerts.yaml")).unwrap()
}

/// Returns the groups of rules as the chart renders them.
fn rules() -> Value {
    object(&objects(EVERYTHING), "PrometheusRule", "vestibule")["spec"].clone()
}

/// Runs promtool in a folder with the rules. Returns whether it is content, and what it says.
pub(super) fn promtool_says(arguments: &[&str], rules: &Value, cases: &str) -> (bool, String) {
    let folder = TempDir::new().unwrap();
    // JSON is YAML.
    folder.write("rules.yaml", rules.to_string()).unwrap();
    folder.write("cases.yaml", cases).unwrap();
    let mut command = Command::new(promtool().unwrap());
    let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.success(), said)
}

#[test]
fn alerts_fire_when_they_should_and_not_before() {
    let rules = rules();
    let (is_good, said) = promtool_says(&["check", "rules", "rules.yaml"], &rules, "");
    assert!(is_good, "{said}");
    let (is_good, said) = promtool_says(&["test", "rules", "cases.yaml"], &rules, &cases());
    assert!(is_good, "{said}");
}

#[test]
fn every_alert_has_a_case_where_it_fires_and_one_where_it_does_not() {
    let cases: Value = serde_saphyr::from_str(&cases()).unwrap();
    let mut seen: BTreeMap<&str, [u32; 2]> = BTreeMap::new();
    for case in items(&cases["tests"]).iter().flat_map(|test| items(&test["alert_rule_test"])) {
        let fires = usize::from(!items(&case["exp_alerts"]).is_empty());
        seen.entry(case["alertname"].as_str().unwrap()).or_default()[fires] += 1;
    }
    let rules = rules();
    let alerts = items(&rules["groups"][0]["rules"]);
    for alert in alerts.iter().map(|rule| rule["alert"].as_str().unwrap()) {
        let [silent, fires] = seen.get(alert).copied().unwrap_or_default();
        assert!(
            silent > 0 && fires > 0,
            "{alert} has {fires} cases where it fires, {silent} where it does not"
        );
    }
    assert_eq!(seen.len(), alerts.len(), "{seen:?}");
}

#[test]
fn an_alert_that_cannot_fire_is_found() {
    let mut rules = rules();
    let alerts = rules["groups"][0]["rules"].as_array_mut().unwrap();
    let alert = alerts.iter_mut().find(|rule| rule["alert"] == "VestibuleNoWriter").unwrap();
    alert["expr"] = "max by (node) (vestibule_writer) < 0".into();
    let (is_good, said) = promtool_says(&["test", "rules", "cases.yaml"], &rules, &cases());
    assert!(!is_good);
    assert!(said.contains("VestibuleNoWriter"), "{said}");
}
