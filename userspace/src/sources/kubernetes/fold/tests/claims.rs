use super::super::claim;
use super::{interner, lines, raw_of};
use crate::model::claim::{AskedProtocol, ClaimBackends, ClaimTarget, Granted};
use crate::model::{Affinity, BackendSpec, Origin, Pattern, TrafficPolicy};
use crate::sources::kubernetes::api::claim::{ClaimOrigin, ClaimSpec};
use common::maps::route::LABEL_BYTES_MAX;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A Claim as the controller writes it.
fn object() -> Value {
    json!({"metadata": {"name": "tlsroute-a-b-1", "resourceVersion": "77"}, "spec": {
        "origin": {"kind": "TLSRoute", "namespace": "a", "name": "b", "uid": "u", "part": "0/Gateway/a/g/tls",
                   "created": "2026-11-26T00:00:00Z"},
        "tenant": "a", "protocol": "TLS", "port": 443, "route": "tlsroute/a/b", "probeServerName": "x.example.com",
        "backends": [{"weight": 3, "service": {"namespace": "a", "name": "s", "portName": "p",
            "probe": {"kind": "TLS", "intervalMs": 5000, "timeoutMs": 1000, "failures": 3, "successes": 2}}}, {"weight": 1}],
        "granted": 2, "refused": 0, "grants": [
            {"address": "192.0.2.1", "port": 443, "names": "x.example.com", "since": "t"},
            {"address": "2001:db8::1", "port": 443, "names": "*.example.com", "since": "t"}]}})
}

#[test]
fn a_claim_is_read_back() {
    let (read, problems) = claim(raw_of(object()), &interner());
    assert_eq!(read.origin, None, "of one that is read there is nothing to report");
    let stored = read.claim.unwrap();
    assert_eq!((stored.version, problems.len()), (77, 0));
    let Origin::Object { created_secs, name, .. } = &stored.claim.origin else { panic!("{stored:?}") };
    assert_eq!((*created_secs, name.to_string()), (1_795_651_200, "a/b".to_owned()));
    let grants: Vec<String> = stored.claim.grants.iter().map(|grant| grant.at().to_string()).collect();
    assert_eq!(grants, ["192.0.2.1:443", "[2001:db8::1]:443"]);
    assert!(matches!(&stored.claim.grants[1].what, Granted::Names(Pattern::Wildcard(_))));
    let ClaimBackends::Services { references, server_name } = &stored.claim.backends else {
        panic!("{stored:?}")
    };
    assert_eq!(server_name.as_ref().unwrap().as_str(), "x.example.com");
    assert_eq!(references.iter().map(|one| one.weight).collect::<Vec<_>>(), [3, 1]);
    assert!(references[0].service().unwrap().probe.is_some() && references[1].to.is_none());
}

/// A node keeps each Claim.
#[test]
fn what_a_node_keeps_of_a_claim_is_small_and_has_a_name_once() {
    assert!(size_of::<crate::model::Claim>() <= 200, "{}", size_of::<crate::model::Claim>());
    let claim = claim(raw_of(object()), &interner()).0.claim.unwrap().claim;
    assert!(claim.asked.is_none());
    let (Granted::Names(Pattern::Exact(granted)), ClaimBackends::Services { server_name: Some(asked), .. }) =
        (&claim.grants[0].what, &claim.backends)
    else {
        panic!("{claim:?}")
    };
    assert!(std::ptr::eq(granted.as_str(), asked.as_str()), "one copy");
}

/// What cannot be read is named with the Claim and the field, and what it is about is not served; the rest is.
#[test]
fn what_cannot_be_read_is_named() {
    let told = |change: &dyn Fn(&mut Value)| {
        let mut object = object();
        change(&mut object);
        // Whatever else is wrong.
        let says_whose = object["spec"]["origin"].is_object();
        let (read, problems) = claim(raw_of(object), &interner());
        assert_eq!(
            read.origin.as_deref().is_some_and(|origin| origin.ends_with("/a/b")),
            says_whose,
            "{problems:?}"
        );
        (read.claim.map(|stored| stored.claim.grants.len()), lines(&problems).join("\n"))
    };
    let (grants, text) = told(&|object| object["spec"]["grants"][0]["address"] = json!("127.0.0.1"));
    assert!(grants == Some(1) && text.contains("Claim tlsroute-a-b-1: spec.grants"), "{grants:?} {text}");
    let (grants, text) = told(&|object| object["spec"]["grants"][1]["names"] = json!("a.*.b"));
    assert!(grants == Some(1) && text.contains("wildcard"), "{grants:?} {text}");
    for (field, value) in [("protocol", "QUIC"), ("port", "x"), ("origin", "x")] {
        let (grants, text) = told(&|object| object["spec"][field] = json!(value));
        assert!(
            grants.is_none() && text.contains("Claim tlsroute-a-b-1: spec"),
            "{field}: {grants:?} {text}"
        );
    }
    let (grants, text) = told(&|object| object["spec"]["origin"]["kind"] = json!("a kind"));
    assert!(grants.is_none() && text.contains("no kind that claims"), "{text}");
    let (grants, text) = told(&|object| object["metadata"]["resourceVersion"] = json!("x"));
    assert!(grants.is_none() && text.contains("resourceVersion"), "{text}");
    // A probe without pause would never rest.
    let probe = |object: &mut Value| {
        object["spec"]["backends"][0]["service"]["probe"]["intervalMs"] = json!(0);
    };
    let (grants, text) = told(&probe);
    assert!(grants == Some(2) && text.contains("out of range"), "{text}");
    let (grants, text) = told(&|object| object["spec"]["backends"][1]["weight"] = json!(-1));
    assert!(grants == Some(2) && text.contains("spec.backends.weight: is no share"), "{text}");
    let (grants, text) = told(&|object| object["spec"]["probeServerName"] = json!("a..b"));
    assert!(grants == Some(2) && text.contains("spec.probeServerName"), "{text}");
}

/// A later release brings it.
#[test]
fn a_kind_that_is_not_known_is_read_as_it_is_written() {
    let mut object = object();
    object["spec"]["origin"]["kind"] = json!("Tomorrow");
    let (read, problems) = claim(raw_of(object), &interner());
    assert_eq!(lines(&problems), [""; 0]);
    let read = read.claim.unwrap().claim;
    assert_eq!((read.grants.len(), read.origin.to_string()), (2, "Tomorrow a/b".to_owned()));
    assert_eq!(read.origin.object().unwrap().key(), "Tomorrow/a/b");
    assert!(matches!(&read.backends, ClaimBackends::Services { references, .. } if references.len() == 2));
}

#[test]
fn the_affinity_is_read_back() {
    let mut object = object();
    object["spec"]["sessionAffinity"] = json!("ClientIP");
    let (read, problems) = claim(raw_of(object), &interner());
    assert_eq!((read.claim.unwrap().claim.affinity, problems.len()), (Affinity::ClientIp, 0));
}

#[test]
fn the_port_for_health_checks_is_written_and_read_back() {
    let mut object = object();
    object["spec"]["policy"] = json!({"externalTrafficPolicy": "Local"});
    object["spec"]["healthCheckNodePort"] = json!(32_100);
    let (read, problems) = claim(raw_of(object.clone()), &interner());
    let read = read.claim.unwrap().claim;
    assert_eq!((read.health_port.unwrap().get(), problems.len()), (32_100, 0));
    let spec = ClaimSpec::of(ClaimOrigin::of(&read).unwrap(), &read, "now");
    assert_eq!(serde_json::to_value(spec).unwrap()["healthCheckNodePort"], 32_100);
    // The rest of such a Claim is served.
    object["spec"]["healthCheckNodePort"] = json!(70_000);
    let (read, problems) = claim(raw_of(object), &interner());
    let read = read.claim.unwrap().claim;
    assert!(read.health_port.is_none() && read.grants.len() == 2);
    assert!(lines(&problems)[0].contains("spec.healthCheckNodePort"), "{problems:?}");
}

#[test]
fn the_traffic_policy_is_read_back_and_an_unknown_one_admits_nobody() {
    let read = |policy: Value| {
        let mut object = object();
        object["spec"]["policy"] = json!({"externalTrafficPolicy": policy});
        let (read, problems) = claim(raw_of(object), &interner());
        (read.claim.unwrap().claim, problems)
    };
    let (local, problems) = read(json!("Local"));
    assert_eq!((local.traffic, problems.len()), (TrafficPolicy::Local, 0));
    assert!(matches!(&local.backends, ClaimBackends::Services { references, .. } if !references.is_empty()));
    for other in [json!("Nearby"), json!(["Local"])] {
        let (other, problems) = read(other);
        assert!(
            matches!(&other.backends, ClaimBackends::Services { references, .. } if references.is_empty())
        );
        assert!(
            lines(&problems)[0]
                .contains("spec.policy.externalTrafficPolicy: is not enforced by this release")
        );
    }
}

#[test]
fn source_ranges_are_read_back() {
    let mut object = object();
    object["spec"]["policy"] = json!({"sourceRanges": ["192.0.2.0/24", "2001:db8::/32"]});
    let (read, problems) = claim(raw_of(object), &interner());
    let ranges = read.claim.unwrap().claim.source_ranges.clone().unwrap();
    let texts: Vec<String> = ranges.ranges().iter().map(ToString::to_string).collect();
    assert_eq!(
        (texts, lines(&problems)),
        (vec!["192.0.2.0/24".into(), "2001:db8::/32".into()], Vec::<String>::new())
    );
}

/// A controller of a later release may ask for what this one does not enforce: to admit no client is better than to admit all.
#[test]
fn a_claim_with_a_policy_that_is_not_enforced_leads_nowhere_and_the_policy_is_named() {
    let policy = |policy: Value| ("policy", policy);
    for ((field, value), said) in [
        (policy(json!({"limits": {"flows": 7}})), "policy.limits: is not enforced"),
        (policy(json!({"sourceRanges": "192.0.2.0/24"})), "policy.sourceRanges: is no list"),
        (policy(json!({"sourceRanges": [7]})), "policy.sourceRanges: has something that is no CIDR"),
        (policy(json!({"sourceRanges": ["192.0.2.0/24", "x"]})), "policy.sourceRanges: is not a CIDR"),
        (("sessionAffinity", json!("Cookie")), "sessionAffinity: is not enforced"),
    ] {
        let mut object = object();
        object["spec"][field] = value;
        let (read, problems) = claim(raw_of(object), &interner());
        assert_eq!(read.origin.as_deref(), Some("TLSRoute/a/b"));
        let claim = read.claim.unwrap().claim;
        assert_eq!(claim.grants.len(), 2, "nobody else gets it");
        let ClaimBackends::Services { references, .. } = &claim.backends else { panic!("{claim:?}") };
        assert!(references.is_empty(), "{references:?}");
        let route = claim.route.as_deref();
        assert_eq!(route, Some("tlsroute/a/b (refused)"), "nor do its names lead where others do");
        let lines = lines(&problems).join("\n");
        assert!(lines.contains(&format!("Claim tlsroute-a-b-1: spec.{said}")), "{lines}");
    }
}

/// Returns what is said of a Claim that leads nowhere since this release does not know all that it asks for: to ignore it would serve
/// other clients, or another port, than was granted.
fn leads_nowhere(change: impl Fn(&mut Value)) -> String {
    let mut object = object();
    change(&mut object);
    let (stored, problems) = claim(raw_of(object), &interner());
    let claim = stored.claim.unwrap().claim;
    let ClaimBackends::Services { references, .. } = &claim.backends else { panic!("{claim:?}") };
    assert!(references.is_empty(), "{references:?}");
    assert_eq!(claim.grants.len(), 2, "nobody else gets it");
    assert_eq!(
        claim.route.as_deref(),
        Some("tlsroute/a/b (refused)"),
        "nor do its names lead where others do"
    );
    lines(&problems).join("\n")
}

/// Cut off in the maps, its name was that of the route that is served.
#[test]
fn a_refused_route_has_a_name_of_its_own_however_long_the_routes_is() {
    let named = |route: &str| {
        let mut object = object();
        (object["spec"]["portPool"], object["spec"]["route"]) = (json!("p"), json!(route));
        claim(raw_of(object), &interner()).0.claim.unwrap().claim.route.clone().unwrap()
    };
    let [one, other] = ["x", "y"].map(|last| named(&("r".repeat(LABEL_BYTES_MAX - 1) + last)));
    assert!(one.len() == LABEL_BYTES_MAX && one != other && one.ends_with(" (refused)"), "{one} {other}");
}

#[test]
fn a_claim_to_a_port_of_a_pool_leads_nowhere_and_that_is_named() {
    for port in [0, 443] {
        let said = leads_nowhere(|object| {
            object["spec"]["portPool"] = json!("p");
            object["spec"]["port"] = json!(port);
        });
        assert!(said.contains("Claim tlsroute-a-b-1: spec.portPool: is not known to this release"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn addresses_are_read_back_and_one_that_cannot_be_leads_nowhere_and_is_named() {
    let service = json!({"namespace": "a", "name": "s", "portName": "p"});
    let probe = json!({"kind": "TCP", "intervalMs": 5000, "timeoutMs": 1000, "failures": 3, "successes": 2});
    let address = |address: &str, port: i32| json!({"address": address, "port": port, "probe": probe});
    let read = |backend: Value| {
        let mut object = object();
        object["spec"]["backends"] = json!([{"weight": 1, "service": service}, backend]);
        let (stored, problems) = claim(raw_of(object), &interner());
        let claim = stored.claim.unwrap().claim;
        assert_eq!(claim.route.as_deref(), Some("tlsroute/a/b"));
        let ClaimBackends::Services { references, .. } = &claim.backends else { panic!("{claim:?}") };
        assert!(references.len() == 2 && references[0].service().is_some(), "{references:?}");
        (references[1].clone(), lines(&problems).join("\n"))
    };
    for text in ["10.0.0.7:6443", "[2001:db8::7]:6443"] {
        let at: SocketAddr = text.parse().unwrap();
        let (backend, said) = read(json!({"weight": 3, "address": address(&at.ip().to_string(), 6443)}));
        let Some(ClaimTarget::Address(own)) = &backend.to else { panic!("{backend:?}") };
        assert_eq!((backend.weight, own.at(), said), (3, at, String::new()));
        assert_eq!(own.probe.as_ref().unwrap().interval_ms, 5000);
    }
    let both = json!({"weight": 1, "service": service, "address": address("10.0.0.7", 6443)});
    for (backend, wrong) in [
        (json!({"weight": 1, "address": address("10.0.0.x", 6443)}), "10.0.0.x, port 6443"),
        (json!({"weight": 1, "address": address("127.0.0.1", 6443)}), "127.0.0.1, port 6443"),
        (json!({"weight": 1, "address": address("10.0.0.7", 0)}), "10.0.0.7, port 0"),
        (both, "is beside a Service: its share is refused"),
    ] {
        let (backend, said) = read(backend);
        assert_eq!((backend.weight, backend.to), (1, None), "{said}");
        assert!(
            said.contains("Claim tlsroute-a-b-1: spec.backends.address: ") && said.contains(wrong),
            "{said}"
        );
    }
}

#[test]
fn addresses_are_written_with_their_ports_and_shares() {
    let written = |backends: &[BackendSpec]| {
        let mut claim = (*claim(raw_of(object()), &interner()).0.claim.unwrap().claim).clone();
        claim.backends = ClaimBackends::Addresses(backends.into());
        let origin = ClaimOrigin::of(&claim).unwrap();
        serde_json::to_value(ClaimSpec::of(origin, &claim, "t").backends).unwrap()
    };
    let address = "10.0.0.7".parse().unwrap();
    let backend = BackendSpec { address, port: 6443, weight: 3, failing: false };
    assert_eq!(
        written(&[backend, BackendSpec::refusing(address, 2)]),
        json!([{"weight": 3, "address": {"address": "10.0.0.7", "port": 6443}}, {"weight": 2}])
    );
}

#[test]
fn a_claim_for_some_clients_leads_nowhere_and_that_is_named() {
    let ranges = json!(["192.0.2.0/24"]);
    let said = leads_nowhere(|object| object["spec"]["clientRanges"] = ranges.clone());
    assert!(
        said.contains("spec.clientRanges: is not known to this release") && said.contains("192.0.2.0/24"),
        "{said}"
    );
    let said = leads_nowhere(|object| object["spec"]["grants"][1]["clientRanges"] = ranges.clone());
    assert!(said.contains("spec.grants.clientRanges: is not known to this release"), "{said}");
}

#[test]
fn a_claim_with_a_precedence_leads_nowhere_and_that_is_named() {
    let said = leads_nowhere(|object| object["spec"]["precedence"] = json!(0));
    assert!(said.contains("spec.precedence: is not known to this release"), "{said}");
    let said = leads_nowhere(|object| object["spec"]["grants"][0]["precedence"] = json!(-1));
    assert!(said.contains("spec.grants.precedence: is not known to this release"), "{said}");
}

/// It is no node's problem: the Service says so.
#[test]
fn a_claim_to_a_protocol_that_is_not_served_is_read_and_has_nothing() {
    for (text, protocol) in [("UDP", AskedProtocol::Udp), ("SCTP", AskedProtocol::Sctp)] {
        let mut object = object();
        object["spec"]["protocol"] = json!(text);
        let (stored, problems) = claim(raw_of(object.clone()), &interner());
        assert_eq!(stored.claim.unwrap().claim.grants, [], "a later release may grant it");
        assert!(
            lines(&problems).join("\n").contains("a protocol that this release does not serve"),
            "{problems:?}"
        );
        object["spec"]["grants"] = json!([]);
        object["spec"]["refusals"] =
            json!([{"address": "", "port": 53, "reason": "Refused", "message": "m"}]);
        let (stored, problems) = claim(raw_of(object), &interner());
        assert_eq!((stored.claim.unwrap().claim.protocol, problems), (protocol, Vec::new()));
    }
}

proptest! {
    #[test]
    fn garbage_does_not_panic_and_is_bounded(
        texts in prop::collection::vec("\\PC{0,80}|(\\*\\.)?[a-z0-9.:*-]{0,80}", 40),
        number in any::<i32>(),
    ) {
        let (mut object, mut texts) = (object(), texts.into_iter());
        object["spec"]["port"] = json!(number);
        object["spec"]["backends"][0]["weight"] = json!(number);
        for path in ["/spec/origin/kind", "/spec/origin/created", "/spec/tenant", "/spec/route", "/spec/probeServerName",
                     "/spec/grants/0/address", "/spec/grants/0/names", "/spec/backends/0/service/portName"] {
            *object.pointer_mut(path).unwrap() = json!(texts.next());
        }
        object["spec"]["grants"] = texts
            .map(|text| json!({"address": text, "port": number, "names": text, "since": text}))
            .collect();
        let (_, problems) = claim(raw_of(object), &interner());
        prop_assert!(problems.len() <= 16);
    }
}
