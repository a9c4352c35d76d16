//! MetalLB's own samples of pools, and of Services with them.

use std::fmt::Write as _;
use std::time::Duration;

use expect_test::expect_file;
use serde_json::{Value, json};

use super::metallb_samples;
use crate::ipam::{PoolUse, assign};
use crate::model::cluster::{ClassPolicy, Policy, PoolPolicy};
use crate::sources::kubernetes::script::Script;

/// A Service of type LoadBalancer without class, which takes both families where it can.
fn service(namespace: &str, name: &str, app: &str, annotations: Value) -> Value {
    let labels = json!({"app": app});
    json!({
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "type": "LoadBalancer",
            "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"port": 443, "protocol": "TCP"}],
        },
    })
}

/// Services by which it shows what pools say of namespaces, of labels, and of who asks for them by name. `pool`: the one to ask for.
fn services(pool: &str) -> Vec<Value> {
    let asks = json!({"metallb.io/address-pool": pool});
    vec![
        service("namespace-a", "app", "bar", json!({})),
        service("namespace-a", "other", "foo", json!({})),
        service("labelled", "app", "bar", json!({})),
        service("labelled", "other", "foo", json!({})),
        service("tenant", "app", "bar", json!({})),
        service("tenant", "asks", "foo", asks),
    ]
}

/// Gives objects what the API server would have filled in: a namespace, and a time of creation by their order.
fn created(objects: &mut [Value]) {
    for (second, object) in objects.iter_mut().enumerate() {
        let metadata = &mut object["metadata"];
        if metadata["namespace"].is_null() {
            metadata["namespace"] = json!("default");
        }
        metadata["creationTimestamp"] = json!(format!("2026-01-01T00:00:{second:02}Z"));
        metadata["uid"] = json!(format!("uid-{second}"));
    }
}

/// Returns what Services get of these pools, and what is left.
fn given(pools: &[Value], services: &[Value]) -> String {
    let policy = Policy {
        pools: PoolPolicy { namespaces: vec!["metallb-system".into()] },
        load_balancers: ClassPolicy { is_default: true, ..ClassPolicy::default() },
        ..Policy::default()
    };
    let classes = policy.load_balancers.clone();
    let (script, mut store) = Script::of_controller(policy);
    script.list_pools(pools);
    script.list_origin_services(classes, services);
    script.list_namespaces(&[json!({"metadata": {"name": "labelled", "labels": {"foo": "bar"}}})]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let quiet = Duration::from_millis(50);
    runtime.block_on(async { while tokio::time::timeout(quiet, store.changed()).await.is_ok() {} });
    let cluster = store.cluster();
    let assignment = assign(cluster);
    let mut text = String::new();
    for (name, allocation) in &assignment.services {
        let addresses: Vec<String> = allocation.addresses.iter().map(ToString::to_string).collect();
        let of = allocation.pool.as_deref().unwrap_or("no pool");
        writeln!(text, "{name}: [{}] of {of}", addresses.join(" ")).unwrap();
        allocation.problem.iter().for_each(|problem| writeln!(text, "  {problem}").unwrap());
    }
    for (name, PoolUse { assigned, available }) in &assignment.pools {
        writeln!(text, "pool {name}: {assigned:?} assigned, {available:?} available").unwrap();
    }
    cluster.problems.iter().for_each(|problem| writeln!(text, "{problem}").unwrap());
    text
}

#[test]
fn samples_of_metallb_give_services_what_they_should() {
    let Some(samples) = metallb_samples::all() else { return };
    let mut golden = String::new();
    for (name, objects) in samples {
        let of = |kind: &str| -> Vec<Value> {
            objects.iter().filter(|object| object["kind"] == *kind).cloned().collect()
        };
        let pools = of("IPAddressPool");
        let Some(pool) = pools.first() else { continue };
        // The sample's own Service first.
        let mut asking = of("Service");
        asking.extend(services(pool["metadata"]["name"].as_str().unwrap()));
        created(&mut asking);
        write!(golden, "{name}\n{}\n", given(&pools, &asking)).unwrap();
    }
    assert!(!golden.is_empty());
    expect_file!["pool_samples.txt"].assert_eq(&golden);
}
