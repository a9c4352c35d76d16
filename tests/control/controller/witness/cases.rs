//! Random pools and Services.

use std::ops::Range;

use serde_json::{Value, json};
use tests::dice::Dice;

/// The namespaces of Services, and the label that pools may select them by.
pub(super) const NAMESPACES: [(&str, &str); 2] = [("red", "warm"), ("blue", "cold")];
/// A pool with this annotation is one whose addresses Services of several namespaces may share, as MetalLB's always are.
const ACROSS: &str = "vestibule.dev/share-across-namespaces";

/// What one seed makes.
pub(super) struct Case {
    pub(super) pools: Vec<Value>,
    /// Namespace and manifest, in the order in which they are created.
    pub(super) services: Vec<(&'static str, Value)>,
}

impl Case {
    /// `base`: the number of its first pool, by which pools differ in name and addresses.
    pub(super) fn of(seed: u64, base: usize) -> Self {
        let mut dice = Dice::new(seed, 0);
        let shares_across = dice.one_in(2);
        let count = dice.count(1, 4);
        // MetalLB tries pools of equal rank in random order.
        let unpinned = base + dice.index(count + 1);
        let numbers = base..base + count;
        let pools: Vec<Value> = numbers
            .clone()
            .map(|number| pool(&mut dice, number, number == unpinned, shares_across))
            .collect();
        let services = (0..dice.count(3, 8))
            .map(|number| service(&mut dice, &format!("s{seed:04}-{number}"), &numbers, shares_across));
        let services = services.collect();
        Self { pools, services }
    }
}

/// One range of a pool's own network.
fn range(dice: &mut Dice, number: usize, part: u64) -> Vec<String> {
    let v4 = match (part, dice.below(3)) {
        (0, 0) => format!("10.7.{number}.0/30"),
        (0, 1) => format!("10.7.{number}.4-10.7.{number}.6"),
        (0, _) => format!("10.7.{number}.8/31"),
        (_, 0) => format!("10.7.{number}.252-10.7.{number}.255"),
        (_, 1) => format!("10.7.{number}.77/32"),
        (..) => format!("10.7.{number}.128/30"),
    };
    let v6 = match part {
        0 => format!("2001:db8:7:{number}::/127"),
        _ => format!("2001:db8:7:{number}::10-2001:db8:7:{number}::12"),
    };
    match dice.weighted(&[(5, 0), (2, 1), (3, 2)]) {
        0 => vec![v4],
        1 => vec![v6],
        _ => vec![v4, v6],
    }
}

fn pool(dice: &mut Dice, number: usize, is_unpinned: bool, shares_across: bool) -> Value {
    let mut ranges = range(dice, number, 0);
    if dice.chance(30) {
        ranges.extend(range(dice, number, 1));
    }
    if dice.one_in(3) {
        ranges.reverse();
    }
    let mut spec = json!({"addresses": ranges, "avoidBuggyIPs": dice.chance(25)});
    let is_pinned = !is_unpinned && dice.chance(70);
    if is_pinned {
        let mut allocation = json!({"priority": number + 1});
        let kind = dice.below(4);
        if kind == 0 || kind == 3 {
            allocation["namespaces"] = json!([dice.pick(&NAMESPACES).0]);
        }
        if kind == 1 {
            allocation["namespaceSelectors"] = json!([{"matchLabels": {"heat": dice.pick(&NAMESPACES).1}}]);
        }
        if kind >= 2 {
            allocation["serviceSelectors"] = json!([{"matchLabels": {"app": dice.pick(&["web", "db"])}}]);
        }
        spec["serviceAllocation"] = allocation;
    }
    spec["autoAssign"] = json!(is_unpinned || is_pinned && dice.chance(80));
    let annotations = json!({ ACROSS: shares_across.to_string() });
    json!({"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "spec": spec,
           "metadata": {"name": format!("p{number}"), "namespace": "metallb-system", "annotations": annotations}})
}

fn service(dice: &mut Dice, name: &str, pools: &Range<usize>, shares_across: bool) -> (&'static str, Value) {
    let namespace = dice.pick(&NAMESPACES).0;
    let app = dice.pick(&["web", "db"]);
    let prefix = dice.weighted(&[(6, "metallb.io"), (1, "metallb.universe.tf")]);
    let mut annotations = json!({});
    if dice.chance(40) {
        let key = dice.pick(&["k1", "k2"]);
        let key = if shares_across { key.to_owned() } else { format!("{namespace}-{key}") };
        annotations[format!("{prefix}/allow-shared-ip")] = json!(key);
    }
    if dice.chance(20) {
        let other = pools.start + dice.index(pools.len());
        let pool = dice.weighted(&[(9, other), (1, 9_999)]);
        annotations[format!("{prefix}/address-pool")] = json!(format!("p{pool}"));
    }
    let families = dice.weighted(&[
        (5, ("SingleStack", &["IPv4"][..])),
        (2, ("SingleStack", &["IPv6"][..])),
        (2, ("RequireDualStack", &["IPv4", "IPv6"][..])),
        (2, ("PreferDualStack", &["IPv4", "IPv6"][..])),
        (1, ("PreferDualStack", &["IPv6", "IPv4"][..])),
    ]);
    let ports = dice.pick(&[&[443][..], &[80][..], &[443, 80][..], &[6443][..]]);
    let ports: Vec<Value> = ports
        .iter()
        .map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"}))
        .collect();
    let mut spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": ports,
        "selector": {"app": app}, "ipFamilyPolicy": families.0, "ipFamilies": families.1,
        "externalTrafficPolicy": dice.weighted(&[(4, "Cluster"), (1, "Local")])});
    if dice.chance(25) {
        let number = pools.start + dice.index(pools.len());
        let last = dice.pick(&[0, 1, 2, 5, 8, 77, 200, 255]);
        let v4 = format!("10.7.{number}.{last}");
        let v6 = format!("2001:db8:7:{number}::{}", dice.pick(&[0, 1, 11]));
        let request = match families.1 {
            _ if dice.one_in(8) => "10.7.0.x".to_owned(),
            ["IPv4"] => v4,
            ["IPv6"] => v6,
            _ if dice.one_in(4) => v4,
            _ => format!("{v4},{v6}"),
        };
        annotations[format!("{prefix}/loadBalancerIPs")] = json!(request);
        if dice.one_in(6) {
            spec["loadBalancerIP"] = json!(format!("10.7.{number}.1"));
        }
    } else if dice.one_in(10) && families.1 == ["IPv4"] {
        spec["loadBalancerIP"] =
            json!(format!("10.7.{}.{}", pools.start + dice.index(pools.len()), dice.pick(&[1, 2, 9])));
    }
    let metadata =
        json!({"name": name, "namespace": namespace, "labels": {"app": app}, "annotations": annotations});
    (namespace, json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}))
}
