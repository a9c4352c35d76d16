//! What the dashboard shows where no route has series of its own, as on nodes with thousands: `promtool` evaluates each panel over the
//! series of such an agent and of the controller.

use std::fs;

use serde_json::{Value, json};

use super::alerts::promtool_says;
use super::rendered::{items, root};

/// What two nodes and a controller expose there, without the labels of a node.
const BY_NODE: [(&str, &str); 17] = [
    (r#"vestibule_route_connections_total{route="(others)",tenant="",outcome="connected""#, "0+600x40"),
    (r#"vestibule_route_connections_total{route="(others)",tenant="",outcome="refused""#, "0+6x40"),
    (r#"vestibule_route_connections_total{route="(others)",tenant="",outcome="retried""#, "0+3x40"),
    ("vestibule_routes_refusing{", "2x40"),
    ("vestibule_flows{", "1000x40"),
    ("vestibule_flows_capacity{", "1000000x40"),
    ("vestibule_hellos{", "10x40"),
    ("vestibule_hellos_capacity{", "65536x40"),
    ("vestibule_writer{", "1x40"),
    ("vestibule_config_stale{", "0x40"),
    (r#"vestibule_packets_total{stage="forward",reason="forwarded""#, "0+9000x40"),
    (r#"vestibule_packets_total{stage="admit",reason="route_full""#, "0+90x40"),
    (r#"vestibule_compile_seconds_bucket{le="0.1""#, "0+5x40"),
    (r#"vestibule_compile_seconds_bucket{le="+Inf""#, "0+5x40"),
    (r#"vestibule_apply_seconds_bucket{le="0.1""#, "0+5x40"),
    (r#"vestibule_apply_seconds_bucket{le="+Inf""#, "0+5x40"),
    (r#"vestibule_map_writes_total{map="FLOWS""#, "0+5x40"),
];
const BY_CONTROLLER: [(&str, &str); 6] = [
    (r#"vestibule_problems{kind="TLSRoute"}"#, "0x40"),
    (r#"vestibule_addresses_in_use{range="public"}"#, "9x40"),
    (r#"vestibule_addresses_capacity{range="public"}"#, "256x40"),
    (r#"vestibule_watch_errors_total{source="tlsroutes"}"#, "0+1x40"),
    (r#"vestibule_status_writes_total{kind="TLSRoute",outcome="written"}"#, "0+9x40"),
    (r#"vestibule_build_info{version="0.1.0"}"#, "1x40"),
];

/// Returns the panels' titles, and their queries as a dashboard with all nodes and routes chosen asks them.
fn panels() -> Vec<(String, Vec<String>)> {
    let board = fs::read_to_string(root("deploy/charts/vestibule/dashboards/vestibule.json")).unwrap();
    let board: Value = serde_json::from_str(&board).unwrap();
    let asked = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        query.replace("$node", ".*").replace("$route", ".*").replace("$__rate_interval", "5m")
    };
    let panel = |panel: &Value| {
        (panel["title"].as_str().unwrap().to_owned(), items(&panel["targets"]).iter().map(asked).collect())
    };
    items(&board["panels"])
        .iter()
        .map(panel)
        .filter(|(_, queries): &(_, Vec<_>)| !queries.is_empty())
        .collect()
}

/// Returns a case that holds if each of these panels shows something, over all series but those of `without`.
fn case(panels: &[(String, Vec<String>)], without: &str) -> String {
    let by_node = BY_NODE.iter().flat_map(|(series, values)| {
        let separator = if series.ends_with('{') { "" } else { "," };
        ["a", "b"].map(|node| (format!("{series}{separator}node=\"{node}\"}}"), *values))
    });
    let by_controller = BY_CONTROLLER.iter().map(|(series, values)| ((*series).to_owned(), *values));
    let series =
        by_node.chain(by_controller).filter(|(series, _)| without.is_empty() || !series.starts_with(without));
    let series: Vec<_> = series.map(|(series, values)| json!({"series": series, "values": values})).collect();
    let shows = |(_, queries): &(String, Vec<String>)| {
        let all: Vec<_> = queries.iter().map(|query| format!("count({query})")).collect();
        let something = format!("sum({}) > bool 0", all.join(" or "));
        json!({"expr": something, "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": 1}]})
    };
    let expressions: Vec<_> = panels.iter().map(shows).collect();
    let test = json!({"interval": "30s", "input_series": series, "promql_expr_test": expressions});
    json!({"evaluation_interval": "30s", "tests": [test]}).to_string()
}

#[test]
fn every_panel_shows_something_where_no_route_has_series_of_its_own() {
    let panels = panels();
    assert!(panels.len() > 12, "{}", panels.len());
    let (is_good, said) = promtool_says(&["test", "rules", "cases.yaml"], &Value::Null, &case(&panels, ""));
    assert!(is_good, "{said}");
}

/// Or the test above would hold for a panel that asks for what nobody exposes.
#[test]
fn a_panel_that_shows_nothing_is_found() {
    let panels = panels();
    for (title, queries) in &panels {
        let own = [(title.clone(), queries.clone())];
        let names =
            |text: &str| BY_NODE.iter().chain(&BY_CONTROLLER).any(|(series, _)| text.contains(name(series)));
        assert!(queries.iter().any(|query| names(query)), "{title}");
        for (series, _) in BY_NODE.iter().chain(&BY_CONTROLLER) {
            if queries.iter().all(|query| query.contains(name(series))) {
                let cases = case(&own, name(series));
                let (is_good, said) = promtool_says(&["test", "rules", "cases.yaml"], &Value::Null, &cases);
                assert!(!is_good, "{title} without {series}: {said}");
            }
        }
    }
}

/// Returns the name of a series.
fn name(series: &str) -> &str {
    series.split_once('{').map_or(series, |(name, _)| name)
}
