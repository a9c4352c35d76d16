use super::super::{gateway, pool, service};
use super::{defaults, interner, lines, raw};
use crate::model::cluster::Labels;
use expect_test::expect;
use std::sync::Arc;

/// What MetalLB's own samples say.
const POOL: &str = r#"
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: p, namespace: metallb-system}
spec:
  addresses: [192.168.20.7/24, 192.168.9.1-192.168.9.5, "fc00:f853:0ccd:e799::/124"]
  avoidBuggyIPs: true
  serviceAllocation:
    priority: 50
    namespaces: [a, b]
    namespaceSelectors: [{matchLabels: {foo: bar}}]
    serviceSelectors: [{matchExpressions: [{key: app, operator: In, values: [bar]}]}]
"#;

fn labels(labels: &[(&str, &str)]) -> Labels {
    labels.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
}

#[test]
fn a_pool_has_ranges_and_says_whom_it_admits() {
    let (pool, problems) = pool(raw(POOL), &interner());
    assert_eq!(lines(&problems), Vec::<String>::new());
    let ranges: Vec<String> =
        pool.ranges.iter().map(|range| format!("{}-{}", range.first, range.last)).collect();
    assert_eq!(
        ranges,
        [
            "192.168.20.0-192.168.20.255",
            "192.168.9.1-192.168.9.5",
            "fc00:f853:ccd:e799::-fc00:f853:ccd:e799::f"
        ]
    );
    assert!(pool.is_automatic && pool.leaves_out_ends && pool.priority == 50 && pool.scope.is_bound());
    let (of_c, is_bar) = (labels(&[("foo", "bar")]), labels(&[("app", "bar")]));
    assert!(pool.scope.admits("a", None, &is_bar) && pool.scope.admits("c", Some(&of_c), &is_bar));
    assert!(!pool.scope.admits("a", None, &Labels::new()) && !pool.scope.admits("c", None, &is_bar));
}

#[test]
fn a_pool_is_for_all_and_last_unless_it_says_otherwise() {
    let text = "metadata: {name: p, namespace: m}\nspec: {addresses: [192.0.2.0/28]}";
    let (all, _) = pool(raw(text), &interner());
    assert!(all.is_automatic && !all.leaves_out_ends && !all.scope.is_bound());
    assert!(all.scope.admits("a", None, &Labels::new()));
    assert_eq!(all.priority, u32::MAX);
    let (last, problems) =
        pool(raw(&text.replace("spec: {", "spec: {serviceAllocation: {priority: 0}, ")), &interner());
    assert_eq!((last.priority, lines(&problems)), (u32::MAX, Vec::new()));
}

#[test]
fn a_pool_lets_namespaces_share_its_addresses_only_where_it_says_true() {
    let read = |value: &str| {
        let annotation = format!("annotations: {{vestibule.dev/share-across-namespaces: \"{value}\"}}");
        let text =
            format!("metadata: {{name: p, namespace: m, {annotation}}}\nspec: {{addresses: [192.0.2.0/28]}}");
        let (pool, problems) = pool(raw(&text), &interner());
        (pool.shares_across_namespaces, lines(&problems))
    };
    assert_eq!([read("true"), read("false")], [(true, Vec::new()), (false, Vec::new())]);
    let (shares, problems) = read("yes");
    assert!(!shares);
    expect![[r#"warning: IPAddressPool m/p: metadata.annotations[vestibule.dev/share-across-namespaces]: is neither true nor false (value "yes"); write "true" or "false""#]].assert_eq(&problems.join("\n"));
}

/// What says whom a pool is for never admits everybody because it cannot be read.
#[test]
fn what_cannot_be_read_of_a_pool_is_left_out_and_reported() {
    let (pool, problems) = pool(
        raw(r#"
metadata: {name: p, namespace: m}
spec:
  addresses: [192.0.2.0/28, 192.0.2.8-192.0.2.20, 127.0.0.1-127.0.0.9, 192.0.2.9, 10.0.0.9-10.0.0.1, x]
  serviceAllocation:
    priority: -1
    namespaceSelectors: [{matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}]
"#),
        &interner(),
    );
    assert_eq!(pool.ranges.len(), 1);
    assert!(pool.scope.is_bound() && !pool.scope.admits("a", Some(&labels(&[("a", "2")])), &Labels::new()));
    expect![[r#"
        warning: IPAddressPool m/p: spec.addresses[1]: has addresses of an entry before it (value "192.0.2.8-192.0.2.20"); list each address in one entry only
        warning: IPAddressPool m/p: spec.addresses[2]: is a loopback address (value "127.0.0.1-127.0.0.9"); write a unicast address that other machines can reach
        warning: IPAddressPool m/p: spec.addresses[3]: is no range (value "192.0.2.9"); write a network and its prefix length, such as "192.0.2.0/24", or both ends with '-' between
        warning: IPAddressPool m/p: spec.addresses[4]: ends before it begins (value "10.0.0.9-10.0.0.1"); write the lower address first
        warning: IPAddressPool m/p: spec.addresses[5]: is no range (value "x"); write a network and its prefix length, such as "192.0.2.0/24", or both ends with '-' between
        warning: IPAddressPool m/p: spec.serviceAllocation.priority: is no priority (value "-1"); write a number from 1, which comes first, or 0, which comes last
        warning: IPAddressPool m/p: spec.serviceAllocation.namespaceSelectors[0].matchExpressions[0].operator: is not known (value "Gt"); write In, NotIn, Exists or DoesNotExist; until then it selects nothing"#]]
    .assert_eq(&lines(&problems).join("\n"));
}

#[test]
fn services_and_gateways_name_a_pool_and_a_key_by_either_prefix() {
    let text = |annotations: &str| {
        format!(
            "metadata: {{name: s, namespace: a, labels: {{app: x}}, annotations: {{{annotations}}}}}\nspec: {{type: LoadBalancer, loadBalancerClass: vestibule.dev/lb}}"
        )
    };
    let old = "metallb.universe.tf/address-pool: old";
    let balancer = |annotations: &str| {
        let (service, _) = service(raw(&text(annotations)), &defaults(), &interner());
        service.load_balancer.unwrap()
    };
    let of_service = |annotations: &str| balancer(annotations).from.clone();
    let key = |annotations: &str| balancer(annotations).sharing_key.clone();
    assert_eq!(key("metallb.universe.tf/allow-shared-ip: old").as_deref(), Some("old"));
    let both = "metallb.universe.tf/allow-shared-ip: old, metallb.io/allow-shared-ip: new";
    assert_eq!((key(both).as_deref(), key("metallb.io/allow-shared-ip: \"\"")), (Some("new"), None));
    assert_eq!(of_service(old).pool.as_deref(), Some("old"));
    let both = of_service(&format!("{old}, metallb.io/address-pool: new"));
    assert_eq!(both.pool.as_deref(), Some("new"));
    assert_eq!(*both.labels, labels(&[("app", "x")]));
    assert_eq!(of_service("metallb.io/address-pool: \"\"").pool, None);
    let (gateway, _) = gateway(raw(&text("metallb.io/address-pool: new")), &interner());
    assert_eq!(gateway.from, both);
}
