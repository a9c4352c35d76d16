use super::*;

fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Without the pools, all addresses of pools are in no range: they became the chart's own, on all nodes and devices.
#[test]
fn while_pools_are_not_listed_their_addresses_are_not_the_charts() {
    let mut this = Scene::new();
    this.in_use = addresses(&["192.0.2.1", "198.51.100.1", "203.0.113.7"]);
    this.script.list_advertisements(&[advertisement(
        "some",
        json!({"nodeSelectors": [{"matchLabels": {"rack": "1"}}]}),
    )]);
    this.said = this.resolve().0;
    let before = this.text();
    assert!(before.contains("addresses.l2: 192.0.2.0/28 203.0.113.7/32 on [] []"), "{before}");
    this.script.list_pools(&[]);
    this.unlisted = [Source::Pools].into();
    assert_eq!(this.text(), before);
    // Nor does one that was announced by nothing become the chart's.
    this.in_use.extend(addresses(&["203.0.113.8"]));
    assert_eq!(this.text(), before);
}

#[test]
fn an_address_of_a_pool_that_is_gone_is_not_the_charts() {
    let mut this = Scene::new();
    this.in_use = addresses(&["203.0.113.7", "203.0.113.8", "203.0.113.9"]);
    this.pooled = addresses(&["203.0.113.8", "203.0.113.9"]);
    let own = |covered: &str| AnnouncementRule {
        addresses: vec![covered.to_owned()],
        origin: OWN_RANGES.to_owned(),
        ..AnnouncementRule::default()
    };
    this.said = Some(AnnouncementSpec { rules: vec![own("203.0.113.9/32")], ..AnnouncementSpec::default() });
    expect![[r#"
        15 s, Some(600) s, ["a", "b", "c"]
        addresses.l2: 192.0.2.0/28 203.0.113.7/32 203.0.113.9/32 on [] []
    "#]]
    .assert_eq(&this.text());
}

/// One that names its pools, too.
#[test]
fn an_address_that_its_pool_lost_is_announced_by_what_announced_it() {
    let mut this = Scene::new();
    this.in_use = addresses(&["198.51.100.1", "198.51.100.20", "198.51.100.25"]);
    this.pooled = this.in_use.clone();
    let spec = json!({"ipAddressPools": ["q"], "interfaces": ["eth0"]});
    let both = [advertisement("q", spec), advertisement("p", json!({"ipAddressPools": ["p"]}))];
    this.script.list_advertisements(&both);
    this.said = this.resolve().0;
    let p = || pool("p", &["198.51.100.0/28"], json!({}));
    this.script.list_pools(&[p(), pool("q", &["198.51.100.20-198.51.100.22"], json!({}))]);
    expect![[r#"
        15 s, Some(600) s, ["a", "b", "c"]
        addresses.l2: 192.0.2.0/28 on [] []
        L2Advertisement metallb-system/p: 198.51.100.0/28 on [] []
        L2Advertisement metallb-system/q: 198.51.100.20-198.51.100.22 198.51.100.25/32 on [] ["eth0"]
    "#]]
    .assert_eq(&this.text());
    this.said = this.resolve().0;
    this.script.list_pools(&[p(), pool("renamed", &["203.0.113.0/28"], json!({}))]);
    let text = this.text();
    let rule = "metallb-system/q: 198.51.100.20/32 198.51.100.25/32 on [] [\"eth0\"]\n";
    assert!(text.contains(rule), "{text}");
    // No longer than an object has it.
    this.said = this.resolve().0;
    this.in_use = addresses(&["198.51.100.1", "198.51.100.25"]);
    assert!(this.text().contains("metallb-system/q: 198.51.100.25/32 on"), "{}", this.text());
}

/// Long, if each address is compared with each.
#[test]
fn many_addresses_take_no_long_time() {
    let mut this = Scene::new();
    this.in_use = (0..60_000).map(|at| IpAddr::from((0x0a00_0000_u32 + at).to_be_bytes())).collect();
    let began = std::time::Instant::now();
    this.said = this.resolve().0;
    let again = this.resolve().0;
    assert_eq!((this.said.as_ref().unwrap().rules[0].addresses.len(), &again), (60_001, &this.said));
    // A look at all addresses for each one takes 26 s.
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(15), "{took:?}");
}

/// Others may write the object while no controller leads.
#[test]
fn what_no_controller_writes_is_not_kept() {
    let mut this = Scene::new();
    this.metallb = closed(false);
    let rule = |addresses: &[&str], origin: &str| AnnouncementRule {
        addresses: addresses.iter().map(ToString::to_string).collect(),
        origin: origin.to_owned(),
        ..AnnouncementRule::default()
    };
    let rules = vec![
        rule(&[], "everything"),
        rule(&["198.51.100.0/28", "198.51.100.300"], "unreadable"),
        rule(&["198.51.100.0/28"], "L2Advertisement metallb-system/p"),
    ];
    this.said = Some(AnnouncementSpec { rules, ..AnnouncementSpec::default() });
    expect![[r#"
        15 s, Some(600) s, ["a", "b", "c"]
        addresses.l2: 192.0.2.0/28 on [] []
        L2Advertisement metallb-system/p: 198.51.100.0/28 on [] []
    "#]]
    .assert_eq(&this.text());
}

/// What was preferred is so, as long as it may announce.
#[test]
fn preferences_are_kept_of_nodes_that_may_announce() {
    let mut this = Scene::new();
    let spec = json!({"ipAddressPools": ["q"], "preferredNodeSelectors": [
        {"weight": 60, "preference": {"matchLabels": {"rack": "1"}}},
        {"weight": 50, "preference": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}}]});
    this.script.list_advertisements(&[advertisement("q", spec)]);
    this.said = this.resolve().0;
    this.metallb = closed(false);
    this.script.list_advertisements(&[]);
    let rule = "198.51.100.20-198.51.100.25 on [] [] prefers 110 [\"a\"], 50 [\"b\"]\n";
    assert!(this.text().contains(rule), "{}", this.text());
    this.leases.remove("a");
    let rule = "198.51.100.20-198.51.100.25 on [] [] prefers 50 [\"b\"]\n";
    assert!(this.text().contains(rule), "{}", this.text());
}
