use super::*;
use crate::controller::metallb_samples;
use crate::model::advertisement::AnnouncingPolicy;
use crate::model::cluster::{Policy, PoolPolicy};
use crate::sources::kubernetes::Store;
use crate::sources::kubernetes::script::Script;
use expect_test::{expect, expect_file};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Labels of nodes and pools.
fn node(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

fn pool(name: &str, addresses: &[&str], labels: Value) -> Value {
    let metadata = json!({"name": name, "namespace": "metallb-system", "labels": labels});
    json!({"metadata": metadata, "spec": {"addresses": addresses}})
}

fn advertisement(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "metallb-system"}, "spec": spec})
}

/// What is known, with three nodes of agents and two pools.
struct Scene {
    script: Script,
    store: Store,
    leases: BTreeSet<String>,
    metallb: Option<PoolsClosed>,
    unlisted: BTreeSet<Source>,
    in_use: BTreeSet<IpAddr>,
    pooled: BTreeSet<IpAddr>,
    holders: Holders,
    said: Option<AnnouncementSpec>,
}

fn range(first: &str, last: &str) -> AddressRange {
    AddressRange { first: first.parse().unwrap(), last: last.parse().unwrap() }
}

fn policy() -> Policy {
    Policy {
        ranges: vec![range("192.0.2.0", "192.0.2.15")],
        pools: PoolPolicy { namespaces: vec!["metallb-system".into()] },
        announcing: AnnouncingPolicy { own_ranges: true, ..AnnouncingPolicy::default() },
        ..Policy::default()
    }
}

impl Scene {
    fn of(policy: Policy) -> Self {
        let (script, store) = Script::of_controller(policy);
        script.list_nodes(&[
            node("a", json!({"rack": "1"})),
            node("b", json!({"rack": "2"})),
            node("c", json!({})),
        ]);
        script.list_pools(&[
            pool("p", &["198.51.100.0/28", "2001:db8::/120"], json!({"for": "web"})),
            pool("q", &["198.51.100.20-198.51.100.25"], json!({"for": "mail"})),
        ]);
        script.list_advertisements(&[]);
        Self {
            script,
            store,
            leases: ["a", "b", "c"].map(str::to_owned).into(),
            metallb: None,
            unlisted: BTreeSet::new(),
            in_use: BTreeSet::new(),
            pooled: BTreeSet::new(),
            holders: Holders::new(),
            said: None,
        }
    }

    fn new() -> Self {
        Self::of(policy())
    }

    fn resolve(&mut self) -> (Option<AnnouncementSpec>, Vec<String>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let changed = std::time::Duration::from_millis(50);
        runtime
            .block_on(async { while tokio::time::timeout(changed, self.store.changed()).await.is_ok() {} });
        let cluster = self.store.cluster();
        let (spec, problems) = resolve(&Basis {
            cluster,
            leases: &self.leases,
            metallb: self.metallb.as_ref(),
            unlisted: &self.unlisted,
            in_use: &self.in_use,
            pooled: &self.pooled,
            holders: &self.holders,
            said: self.said.as_ref(),
        });
        let all = cluster.problems.iter().chain(&problems);
        (spec, all.map(ToString::to_string).collect())
    }

    /// What is announced, a rule a line, and what is wrong.
    fn text(&mut self) -> String {
        let (spec, problems) = self.resolve();
        let mut text = spec.as_ref().map_or_else(|| "nothing is known\n".to_owned(), said);
        problems.iter().for_each(|problem| writeln!(text, "{problem}").unwrap());
        text
    }

    /// The same of this L2Advertisement alone.
    fn of_one(spec: Value) -> String {
        let mut policy = policy();
        policy.announcing.own_ranges = false;
        let mut this = Self::of(policy);
        this.script.list_advertisements(&[advertisement("x", spec)]);
        this.hold("198.51.100.1", &["x"]);
        this.hold("198.51.100.2", &["z", "x"]);
        this.hold("198.51.100.3", &["z"]);
        this.hold("198.51.100.20", &["y"]);
        this.hold("2001:db8::1", &["x"]);
        this.hold("192.0.2.1", &["x"]);
        this.text()
    }

    /// Objects with these values of label `app` have an address.
    fn hold(&mut self, address: &str, apps: &[&str]) {
        let address = address.parse().unwrap();
        self.in_use.insert(address);
        let labels = |app: &&str| Arc::new([("app".into(), Arc::from(*app))].into());
        self.holders.insert(address, apps.iter().map(labels).collect());
    }
}

fn said(spec: &AnnouncementSpec) -> String {
    let mut text =
        format!("{} s, {:?} s, {:?}\n", spec.agent_grace_seconds, spec.rebalance_after_seconds, spec.members);
    for AnnouncementRule { addresses, nodes, interfaces, preferred, origin } in &spec.rules {
        write!(text, "{origin}: {} on {nodes:?} {interfaces:?}", addresses.join(" ")).unwrap();
        let prefers = preferred.iter().map(|Preferred { weight, nodes }| format!("{weight} {nodes:?}"));
        let prefers = prefers.collect::<Vec<_>>().join(", ");
        let says = if prefers.is_empty() { prefers } else { format!(" prefers {prefers}") };
        writeln!(text, "{says}").unwrap();
    }
    text
}

fn closed(was_seen: bool) -> Option<PoolsClosed> {
    Some(PoolsClosed { why: "MetalLB".into(), brief: "MetalLB".into(), may_run: was_seen, was_seen })
}

#[test]
fn the_charts_ranges_are_announced_where_it_says_so_and_nothing_where_nobody_does() {
    let own = AnnouncingPolicy {
        own_ranges: true,
        grace: std::time::Duration::from_secs(2),
        rebalance: None,
        withdraws: false,
    };
    let without = Policy { pools: PoolPolicy::default(), ..policy() };
    let told = |announcing| Scene::of(Policy { announcing, ..without.clone() }).text();
    expect![[r#"
        2 s, None s, ["a", "b", "c"]
        addresses.l2: 192.0.2.0/28 on [] []
    "#]]
    .assert_eq(&told(own));
    expect![[r#"
        15 s, Some(600) s, []
    "#]]
    .assert_eq(&told(AnnouncingPolicy::default()));
    // No range is no rule: one without addresses covers every address.
    let mut none = Scene::of(Policy { ranges: Vec::new(), ..without.clone() });
    assert_eq!(none.resolve().0.unwrap().rules, []);
}

#[test]
fn who_has_a_lease_and_a_node_is_a_member_and_who_is_left_out_announces_nothing() {
    let mut this = Scene::new();
    this.leases = ["b", "c", "gone"].map(str::to_owned).into();
    let excluded = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
    let condition = json!([{"type": "NetworkUnavailable", "status": "True"}]);
    let mut unavailable = node("c", json!({}));
    unavailable["status"] = json!({ "conditions": condition });
    expect![[r#"
        15 s, Some(600) s, ["b", "c"]
        addresses.l2: 192.0.2.0/28 on [] []
    "#]]
    .assert_eq(&this.text());
    this.script.list_nodes(&[node("a", json!({})), node("b", json!({})), unavailable.clone()]);
    expect![[r#"
        15 s, Some(600) s, ["b", "c"]
        addresses.l2: 192.0.2.0/28 on ["b"] []
    "#]]
    .assert_eq(&this.text());
    // A rule that names nobody would name all.
    this.script.list_nodes(&[node("a", json!({})), node("b", excluded), unavailable]);
    expect![[r#"
        15 s, Some(600) s, ["b", "c"]
    "#]]
    .assert_eq(&this.text());
}

#[test]
fn each_field_of_an_advertisement_counts() {
    let mut text = String::new();
    for spec in [
        json!(null),
        json!({"ipAddressPools": ["q"]}),
        json!({"ipAddressPools": ["q", "gone"]}),
        json!({"ipAddressPools": ["gone"]}),
        json!({"ipAddressPoolSelectors": [{"matchLabels": {"for": "web"}}]}),
        json!({"ipAddressPools": ["q", "q"], "ipAddressPoolSelectors": [
            {"matchExpressions": [{"key": "for", "operator": "In", "values": ["web"]}]},
            {"matchExpressions": [{"key": "for", "operator": "Exists"}]}]}),
        json!({"ipAddressPoolSelectors": [{"matchLabels": {"for": "nobody"}}]}),
        json!({"ipAddressPoolSelectors": [{"matchExpressions": [{"key": "for", "operator": "Has"}]}]}),
        json!({"nodeSelectors": [{"matchLabels": {"rack": "1"}}, {"matchLabels": {"rack": "2"}}]}),
        json!({"nodeSelectors": [{}]}),
        json!({"nodeSelectors": [{"matchLabels": {"rack": "9"}}]}),
        json!({"nodeSelectors": [{"matchExpressions": [{"key": "rack", "operator": "Has"}]}]}),
        json!({"interfaces": ["eth0", "is-not-there-anywhere"], "ipAddressPools": ["q"]}),
        json!({"serviceSelectors": [{"matchLabels": {"app": "x"}}]}),
        json!({"serviceSelectors": [{"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}], "ipAddressPools": ["q"],
            "interfaces": ["eth0"]}),
        json!({"serviceSelectors": [{"matchLabels": {"app": "nobody"}}]}),
        json!({"serviceSelectors": [{"matchLabels": {"app": "x"}}, {}]}),
        json!({"serviceSelectors": []}),
        json!({"serviceSelectors": [{"matchExpressions": [{"key": "app", "operator": "Has"}]}]}),
        json!({"preferredNodeSelectors": [{"weight": 1, "preference": {}}], "ipAddressPools": ["q"]}),
        json!({"ipAddressPools": ["q"], "preferredNodeSelectors": [
            {"weight": 60, "preference": {"matchLabels": {"rack": "1"}}},
            {"weight": 50, "preference": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}}]}),
        json!({"ipAddressPools": ["q"], "nodeSelectors": [{"matchLabels": {"rack": "2"}}], "preferredNodeSelectors": [
            {"weight": 60, "preference": {"matchLabels": {"rack": "1"}}}, {"weight": 50}]}),
        json!({"ipAddressPools": ["q"], "preferredNodeSelectors": [
            {"weight": 101, "preference": {}}, {"preference": {}}, {"weight": -1, "preference": {}},
            {"weight": 9, "preference": {"matchExpressions": [{"key": "rack", "operator": "Has"}]}},
            {"weight": 100, "preference": {"matchLabels": {"rack": "2"}}}]}),
        json!({"ipAddressPools": "q"}),
    ] {
        write!(text, "{spec}\n{}\n", Scene::of_one(spec.clone())).unwrap();
    }
    expect_file!["fields.txt"].assert_eq(&text);
}

#[test]
fn advertisements_and_pools_count_in_their_own_namespace_if_it_is_read() {
    let mut this = Scene::new();
    let of = |namespace: &str, mut object: Value| {
        object["metadata"]["namespace"] = namespace.into();
        object
    };
    let other = of("other", pool("r", &["203.0.113.0/28"], json!({})));
    this.script.list_pools(&[pool("p", &["198.51.100.0/28"], json!({})), other]);
    let all = || advertisement("x", json!({}));
    this.script.list_advertisements(&[all(), of("other", all())]);
    expect![[r#"
        15 s, Some(600) s, ["a", "b", "c"]
        addresses.l2: 192.0.2.0/28 on [] []
        L2Advertisement metallb-system/x: 198.51.100.0/28 on [] []
    "#]]
    .assert_eq(&this.text());
}

/// "Editing, shrinking or deleting a pool takes no held address": nor does it end its announcement.
#[test]
fn an_address_that_no_range_has_any_more_is_announced_by_what_covers_all() {
    let mut this = Scene::new();
    this.in_use = ["192.0.2.1", "198.51.100.1", "203.0.113.7"].map(|text| text.parse().unwrap()).into();
    this.script.list_advertisements(&[
        advertisement("all", json!({})),
        advertisement("some", json!({"ipAddressPools": ["q"]})),
    ]);
    expect![[r#"
        15 s, Some(600) s, ["a", "b", "c"]
        addresses.l2: 192.0.2.0/28 203.0.113.7/32 on [] []
        L2Advertisement metallb-system/all: 198.51.100.0/28 2001:db8::/120 198.51.100.20-198.51.100.25 203.0.113.7/32 on [] []
        L2Advertisement metallb-system/some: 198.51.100.20-198.51.100.25 on [] []
    "#]]
    .assert_eq(&this.text());
}

#[test]
fn while_metallb_runs_its_advertisements_count_as_absent() {
    let mut this = Scene::new();
    this.script.list_advertisements(&[advertisement("x", json!({}))]);
    this.said = this.resolve().0;
    assert_eq!(this.said.as_ref().unwrap().rules.len(), 2);
    this.metallb = closed(true);
    expect![[r#"
        15 s, Some(600) s, ["a", "b", "c"]
        addresses.l2: 192.0.2.0/28 on [] []
    "#]]
    .assert_eq(&this.text());
}

/// A controller that begins to lead does not know for a minute whether MetalLB runs: what is announced went away at each change of the
/// leader.
#[test]
fn while_it_is_not_known_what_advertisements_say_they_say_what_they_said() {
    let mut this = Scene::new();
    let rack = json!({"nodeSelectors": [{"matchLabels": {"rack": "1"}}, {"matchLabels": {"rack": "2"}}]});
    let both = [advertisement("all", json!({"ipAddressPools": ["q"]})), advertisement("rack", rack)];
    this.script.list_advertisements(&both);
    this.said = this.resolve().0;
    let before = this.text();
    this.script.list_advertisements(&[]);
    assert!(this.text() != before);
    this.metallb = closed(false);
    assert_eq!(this.text(), before, "whether MetalLB runs");
    this.metallb = None;
    for source in [Source::Pools, Source::Advertisements] {
        this.unlisted = [source].into();
        assert_eq!(this.text(), before, "{source:?}");
    }
    // All else goes on.
    this.leases.remove("c");
    this.script.list_nodes(&[node("a", json!({})), node("b", json!({})), node("c", json!({}))]);
    expect![[r#"
        15 s, Some(600) s, ["a", "b"]
        addresses.l2: 192.0.2.0/28 on [] []
        L2Advertisement metallb-system/all: 198.51.100.20-198.51.100.25 on [] []
        L2Advertisement metallb-system/rack: 198.51.100.0/28 2001:db8::/120 198.51.100.20-198.51.100.25 on [] []
    "#]]
    .assert_eq(&this.text());
    this.leases.remove("a");
    let excluded = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
    this.script.list_nodes(&[node("b", excluded), node("c", json!({}))]);
    expect![[r#"
        15 s, Some(600) s, ["b"]
    "#]]
    .assert_eq(&this.text());
    // Of nodes alone nothing is known.
    this.unlisted = [Source::Nodes].into();
    assert_eq!(this.resolve(), (None, Vec::new()));
}

/// MetalLB's own samples.
#[test]
fn samples_of_metallb_come_to_what_they_should() {
    let Some(samples) = metallb_samples::all() else { return };
    let of = |kind: &str, objects: &[Value]| -> Vec<Value> {
        objects.iter().filter(|object| object["kind"] == *kind).cloned().collect()
    };
    let mut golden = String::new();
    for (name, objects) in samples {
        let advertisements = of("L2Advertisement", &objects);
        if advertisements.is_empty() {
            continue;
        }
        let mut policy = policy();
        policy.announcing.own_ranges = false;
        let mut this = Scene::of(policy);
        let pools = of("IPAddressPool", &objects);
        if !pools.is_empty() {
            this.script.list_pools(&pools);
        }
        this.script.list_nodes(&[
            node("a", json!({"kubernetes.io/hostname": "kind-control-plane"})),
            node("b", json!({"kubernetes.io/hostname": "kind-worker"})),
        ]);
        this.script.list_advertisements(&advertisements);
        write!(golden, "{name}\n{}\n", this.text()).unwrap();
    }
    expect_file!["samples.txt"].assert_eq(&golden);
}

/// For some objects only.
mod chosen;
mod preferences;
/// What goes on being announced, and what does not.
mod kept;
