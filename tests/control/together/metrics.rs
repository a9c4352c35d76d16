use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use tests::skip_without_root;

use super::probes::CONFIG;
use crate::agent::scene::{Scene, until};
use crate::process::{OUTSIDE, RELEASE};

/// Returns names and types of the metrics in a `/metrics` text, as written in the list of metrics.
fn served(text: &str) -> BTreeSet<(String, String)> {
    let declared = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    declared
        .map(|(name, kind)| match kind {
            "counter" => (format!("{name}_total"), kind.to_owned()),
            "info" => (format!("{name}_info"), "gauge".to_owned()),
            _ => (name.to_owned(), kind.to_owned()),
        })
        .collect()
}

/// Returns names and types of this component's metrics in `deploy/metrics.md`.
fn listed(by: &str) -> BTreeSet<(String, String)> {
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/metrics.md");
    let list = fs::read_to_string(list).unwrap();
    let rows = list.lines().filter(|line| line.starts_with("| `vestibule_"));
    let cells = rows.map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).collect::<Vec<_>>());
    cells
        .filter(|cells| [by, "both"].contains(&cells[4]))
        .map(|cells| (cells[1].to_owned(), cells[2].to_owned()))
        .collect()
}

#[test]
fn what_is_served_is_what_is_listed() {
    skip_without_root!();
    let mut scene = Scene::bare(CONFIG, &[]);
    // This backend has no listener, so its probe fails.
    scene.tenant("a", "10.99.1.1");
    scene.kubectl().apply(OUTSIDE).unwrap();
    let controller = scene.controller("leader", &[]);
    // Its static file is refused: a problem of its own.
    let file = scene.folder.write("static.json", "{}").unwrap();
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    let flag = format!("--file={}", file.display());
    let agent = scene.agent_with("first", account.kubeconfig(), &[&flag]);
    let of_agent = || agent.probe("--metrics").1;
    let of_controller = || {
        scene
            .namespace
            .run(|| controller.ask("/metrics"))
            .unwrap_or_default()
            .split("\r\n\r\n")
            .skip(1)
            .collect::<String>()
    };
    until("the backend fails", &[&agent], || of_agent().contains("vestibule_backend_failing{"));
    until("statuses were written", &[&agent], || of_controller().contains("vestibule_status_writes_total{"));
    // The agent opens the address some time after the controller has assigned it.
    let address = "192.0.2.5:443".parse().unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(5));
    until("the address is open", &[&agent], || scene.outside.run(connect).is_ok());
    let of_tenant =
        r#"vestibule_route_connections_total{route="tlsroute/tenant/a",tenant="tenant",outcome="connected"}"#;
    until("connections are counted for their tenant", &[&agent], || of_agent().contains(of_tenant));
    // Some metrics exist only while the API server is away.
    scene.server.crash().unwrap();
    until("both are stale", &[&agent], || {
        [of_agent(), of_controller()].iter().all(|text| text.contains("vestibule_watch_errors_total{"))
    });
    let mut early = listed("agent");
    // It is there after five minutes.
    assert!(early.remove(&("vestibule_routes_refusing".to_owned(), "gauge".to_owned())));
    // These are of segments, and nothing is announced here.
    let of_segments =
        ["vestibule_vips", "vestibule_address_conflicts", "vestibule_candidates", "vestibule_gates_closed"];
    early.retain(|(name, _)| !of_segments.contains(&name.as_str()));
    assert_eq!(served(&of_agent()), early);
    assert_eq!(served(&of_controller()), listed("controller"));
}
