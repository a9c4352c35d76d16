//! The chart is uninstalled under traffic, and installed again.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tests::cluster::Cluster;

use crate::scene::{PATIENCE, RELEASE, Tenant, condition, install, install_again};
use crate::traffic::{HELD, NEW, Traffic};

/// The time in which a connection whose packets are lost would be noticed.
const NOTICED: Duration = Duration::from_secs(3);

#[test]
fn an_uninstalled_release_leaves_no_address_and_the_next_one_takes_all_of_it_back() {
    let cluster = Cluster::alone().unwrap();
    install(&cluster);
    let tenant = Tenant::new(&cluster, "leave").unwrap();
    let kubectl = cluster.kubectl();
    let traffic = Traffic::start(&cluster, &tenant.target).unwrap();
    cluster.helm(&["uninstall", "vestibule", "--namespace", RELEASE, "--wait", "--timeout", "5m"]).unwrap();
    sleep(NOTICED);
    let outcome = traffic.end();
    let gateway = tenant.namespace.get(&["gateway", "tenant"]).unwrap();
    let class = kubectl.get(&["gatewayclass", "vestibule"]).unwrap();
    let pods = kubectl.get(&["-n", RELEASE, "pods", "-l", "app.kubernetes.io/part-of=vestibule"]).unwrap();

    // First of all, so that other tests find what they need.
    install_again(&cluster).unwrap();
    let has_address = |gateway: &Value| {
        condition(&gateway["status"], "Programmed") == Some("True".into())
            && gateway["status"]["addresses"][0]["value"] == tenant.target.address.ip().to_string()
    };
    tenant.namespace.wait_for("the same address", &["gateway", "tenant"], PATIENCE, has_address).unwrap();

    assert!(outcome.ended.is_empty(), "{:?}", outcome.ended);
    assert_eq!(outcome.held.len(), HELD, "established connections go on");
    assert!(outcome.failed.iter().all(|failed| failed.contains("refused")), "{:?}", outcome.failed);
    assert!(!outcome.failed.is_empty(), "new connections were taken until the end");
    assert!(gateway["status"]["addresses"].as_array().is_none_or(Vec::is_empty), "{gateway:#}");
    assert!(class["metadata"]["finalizers"].is_null(), "{class:#}");
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(0), "{pods:#}");
    let traffic = Traffic::start(&cluster, &tenant.target).unwrap();
    sleep(NOTICED);
    let outcome = traffic.end();
    assert_eq!(outcome.failed, [] as [String; 0]);
    assert!(outcome.opened > u64::from(NEW), "{outcome:?}");
}
