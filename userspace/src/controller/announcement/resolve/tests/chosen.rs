use super::super::chosen::{MOST, holders};
use super::*;
use crate::ipam;
use crate::model::ObjectName;
use crate::model::advertisement::AdvertisementSpec;
use crate::model::cluster::{Labels, LoadBalancerSpec, Requirement};
use crate::settle::tests::Scene as Settled;

fn of_app(app: &str) -> Value {
    json!([{"matchLabels": {"app": app}}])
}

/// The rule of this L2Advertisement; `None`: there is none.
fn rule(this: &mut Scene, name: &str) -> Option<AnnouncementRule> {
    let origin = format!("L2Advertisement metallb-system/{name}");
    this.resolve().0?.rules.into_iter().find(|rule| rule.origin == origin)
}

fn addresses_of(this: &mut Scene, name: &str) -> Vec<String> {
    rule(this, name).map(|rule| rule.addresses).unwrap_or_default()
}

/// Which objects those are changes by their labels, and by the addresses that they have.
#[test]
fn what_an_object_has_is_covered_as_long_as_it_is_selected() {
    let mut this = Scene::new();
    let spec = json!({"serviceSelectors": of_app("x"), "nodeSelectors": [{"matchLabels": {"rack": "1"}}]});
    this.script.list_advertisements(&[advertisement("x", spec)]);
    this.hold("198.51.100.1", &["x"]);
    assert_eq!(addresses_of(&mut this, "x"), ["198.51.100.1/32"]);
    assert_eq!(rule(&mut this, "x").unwrap().nodes, ["a"]);
    this.hold("198.51.100.2", &["x"]);
    assert_eq!(addresses_of(&mut this, "x"), ["198.51.100.1/32", "198.51.100.2/32"]);
    this.said = this.resolve().0;
    this.hold("198.51.100.1", &["y"]);
    assert_eq!(addresses_of(&mut this, "x"), ["198.51.100.2/32"]);
    // A rule without addresses would cover every address.
    this.hold("198.51.100.2", &["y"]);
    assert_eq!(rule(&mut this, "x"), None);
}

/// Nothing is selected of what is not in its pools, but for what was, and still belongs to who is selected.
#[test]
fn an_address_that_its_pool_lost_stays_while_its_object_is_selected() {
    let mut this = Scene::new();
    let spec = json!({"ipAddressPools": ["q"], "serviceSelectors": of_app("x")});
    this.script.list_advertisements(&[advertisement("x", spec)]);
    this.hold("198.51.100.20", &["x"]);
    this.hold("198.51.100.1", &["x"]);
    this.pooled = this.in_use.clone();
    assert_eq!(addresses_of(&mut this, "x"), ["198.51.100.20/32"]);
    this.said = this.resolve().0;
    this.script.list_pools(&[pool("q", &["203.0.113.0/28"], json!({}))]);
    assert_eq!(addresses_of(&mut this, "x"), ["198.51.100.20/32"]);
    this.hold("198.51.100.20", &["y"]);
    assert_eq!(rule(&mut this, "x"), None);
}

/// Addresses of Gateways are not known then.
#[test]
fn while_gateways_are_not_listed_what_was_announced_stays() {
    let mut this = Scene::new();
    this.script.list_advertisements(&[advertisement("x", json!({"serviceSelectors": of_app("x")}))]);
    this.hold("198.51.100.1", &["x"]);
    this.said = this.resolve().0;
    (this.in_use, this.holders) = Default::default();
    for source in [Source::Gateways, Source::GatewayClasses] {
        this.unlisted = [source].into();
        assert_eq!(addresses_of(&mut this, "x"), ["198.51.100.1/32"], "{source:?}");
    }
    // But not what was announced when it was for all.
    this.script.list_advertisements(&[advertisement("x", json!({}))]);
    this.said = this.resolve().0;
    this.script.list_advertisements(&[advertisement("x", json!({"serviceSelectors": of_app("x")}))]);
    assert_eq!(rule(&mut this, "x"), None);
    this.unlisted.clear();
    assert_eq!(rule(&mut this, "x"), None);
}

#[test]
fn there_is_room_for_so_many_and_what_is_announced_keeps_it() {
    let mut this = Scene::new();
    let many = pool("many", &["10.0.0.0/16"], json!({}));
    this.script.list_pools(&[many, pool("q", &["198.51.100.20-198.51.100.25"], json!({}))]);
    let both = |app: &str| {
        let of = |name: &str, app: &str| advertisement(name, json!({"serviceSelectors": of_app(app)}));
        [of("first", "x"), of("second", app)]
    };
    this.script.list_advertisements(&both("y"));
    this.hold("198.51.100.20", &["y"]);
    this.hold("198.51.100.21", &["x"]);
    this.said = this.resolve().0;
    let address = |at: usize| IpAddr::from((0x0a00_0000_u32 + at as u32).to_be_bytes()).to_string();
    (0..MOST).for_each(|at| this.hold(&address(at), &["x"]));
    let (spec, problems) = this.resolve();
    let text = serde_json::to_string(spec.as_ref().unwrap()).unwrap();
    assert!(text.len() < 120_000, "{}", text.len());
    let first = addresses_of(&mut this, "first");
    assert_eq!((first.len(), first.last().map(String::as_str)), (MOST - 1, Some("198.51.100.21/32")));
    assert_eq!(addresses_of(&mut this, "second"), ["198.51.100.20/32"], "it was announced");
    expect![[r#"
        warning: L2Advertisement metallb-system/first: spec.serviceSelectors: selects addresses that find no room: all L2Advertisements with serviceSelectors may have 4096; give the Services a pool of their own, and write it in spec.ipAddressPools instead; until then what came last is not announced"#]]
    .assert_eq(&problems.join("\n"));
    // One that goes leaves its room.
    this.said = spec;
    this.hold(&address(7), &["z"]);
    assert!(addresses_of(&mut this, "first").contains(&format!("{}/32", address(MOST - 2))));
}

#[test]
fn gateways_and_services_have_what_was_assigned_to_them() {
    let mut scene = Settled::new();
    let labels = |app: &str| Arc::new(Labels::from([("app".into(), Arc::from(app))]));
    scene.gateway("a/g", 1, "192.0.2.1", &[]).from.labels = labels("gateway");
    let mut balancer = LoadBalancerSpec { given: vec!["192.0.2.2".parse().unwrap()], ..Default::default() };
    balancer.from.labels = labels("service");
    scene.service("a/s", &[]).load_balancer = Some(Arc::new(balancer));
    scene.service("a/none", &[]);
    let cluster = scene.cluster();
    let assignment = ipam::assign(cluster);
    assert!(holders(cluster, &assignment).is_empty(), "nobody asks");
    let selector = |requirements| AdvertisementSpec {
        service_selectors: vec![LabelSelector { requirements }],
        ..AdvertisementSpec::default()
    };
    let name = || ObjectName::new("metallb-system", "x");
    cluster.announcing.advertisements.insert(name(), Arc::new(selector(Vec::new())));
    assert!(holders(cluster, &assignment).is_empty(), "it is for all");
    let requirement = Requirement { key: "app".into(), operator: crate::model::cluster::Operator::Exists };
    cluster.announcing.advertisements.insert(name(), Arc::new(selector(vec![requirement])));
    let expected = [("192.0.2.1", "gateway"), ("192.0.2.2", "service")];
    let expected = expected.map(|(address, app)| (address.parse().unwrap(), vec![labels(app)]));
    assert_eq!(holders(cluster, &assignment), expected.into());
}
