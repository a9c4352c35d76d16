use super::*;
use crate::status::route::OfAll;

fn parent(section: Option<&str>, status: Status) -> ParentVerdict {
    ParentVerdict {
        parent: ParentRef { name: "gw".into(), section: section.map(Into::into), ..ParentRef::default() },
        conditions: vec![condition("Accepted", status, "Accepted")],
    }
}

fn route(parents: Vec<ParentVerdict>) -> RouteVerdict {
    RouteVerdict { generation: 4, parents }
}

fn of_another(name: &str) -> Value {
    json!({"parentRef": {"name": name}, "controllerName": "example.com/other",
           "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                           "lastTransitionTime": BEFORE}]})
}

#[test]
fn a_route_has_one_entry_a_parent_and_others_keep_theirs() {
    let verdict =
        route(vec![parent(None, Status::True), parent(Some("a"), Status::False), parent(None, Status::True)]);
    // Another controller has an entry for the same parent. Of our entries, one is of a parent that is gone,
    // and one is duplicated.
    let ours = |name: &str| json!({"parentRef": {"name": name}, "controllerName": CONTROLLER_NAME, "conditions": []});
    let current = json!({"parents": [of_another("gw"), ours("gone"), ours("gw"), ours("gw")]});
    let status = settled(&current, |current, now| {
        route::desired_status(current, Some(&verdict), OfAll::default(), "ns", now)
    });
    let parents = elements(status.get("parents"));
    assert_eq!(parents.len(), 3, "{status:#}");
    assert_eq!(parents[0], of_another("gw"));
    let own: Vec<&Value> =
        parents.iter().filter(|parent| text(parent, "controllerName") == CONTROLLER_NAME).collect();
    assert_eq!(own[0]["parentRef"], json!({"name": "gw"}));
    assert_eq!(own[1]["parentRef"], json!({"name": "gw", "sectionName": "a"}));
    assert_eq!(own[1]["conditions"][0]["observedGeneration"], 4);
}

#[test]
fn defaults_that_the_server_filled_in_are_no_change() {
    let verdict = route(vec![parent(None, Status::True)]);
    let mut status = settled(&json!({}), |current, now| {
        route::desired_status(current, Some(&verdict), OfAll::default(), "ns", now)
    });
    status["parents"][0]["parentRef"] =
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw", "namespace": "ns"});
    assert_eq!(route::desired_status(&status, Some(&verdict), OfAll::default(), "ns", NOW), None);
    // In another namespace the reference means another parent.
    let moved = route::desired_status(&status, Some(&verdict), OfAll::default(), "elsewhere", NOW).unwrap();
    assert_eq!(elements(moved.get("parents")).len(), 1);
    assert_eq!(moved["parents"][0]["parentRef"], json!({"name": "gw"}));
}

#[test]
fn a_route_that_left_us_keeps_only_what_others_said() {
    let current = json!({"parents": [
        {"parentRef": {"name": "gw"}, "controllerName": CONTROLLER_NAME, "conditions": []}, of_another("x")]});
    let status =
        settled(&current, |current, now| route::desired_status(current, None, OfAll::default(), "ns", now));
    assert_eq!(status, json!({"parents": [of_another("x")]}));
    for never_ours in [json!({}), Value::Null, json!({"parents": [of_another("x")]})] {
        assert_eq!(
            route::desired_status(&never_ours, None, OfAll::default(), "ns", NOW),
            None,
            "{never_ours}"
        );
    }
}

#[test]
fn ports_tell_parents_apart_and_at_most_32_entries_are_written() {
    let with_port = |port| ParentVerdict {
        parent: ParentRef { name: "gw".into(), port: Some(port), ..ParentRef::default() },
        conditions: vec![accepted()],
    };
    let verdict = route((1..=40).map(with_port).collect());
    let current = json!({"parents": [of_another("x")]});
    let status = settled(&current, |current, now| {
        route::desired_status(current, Some(&verdict), OfAll::default(), "ns", now)
    });
    let parents = elements(status.get("parents"));
    assert_eq!(parents.len(), 32);
    assert_eq!(parents[0], of_another("x"));
    assert_eq!(parents[31]["parentRef"], json!({"name": "gw", "port": 31}));
}

#[test]
fn whether_a_parent_owned_its_names_is_read_back() {
    let entry =
        |status: &str| json!({"conditions": [{"type": OWNED, "status": status, "message": "lost to x"}]});
    assert_eq!(owned(&entry("False")), Some(Err("lost to x")));
    assert_eq!(owned(&entry("True")), Some(Ok(())));
    assert_eq!(owned(&json!({"conditions": []})), None);
}

#[test]
fn where_others_leave_little_room_what_is_worth_least_is_left_out() {
    let mut verdict = parent(None, Status::True);
    verdict.conditions.push(condition(OWNED, Status::False, "OwnedByOther"));
    verdict.conditions.push(condition("ResolvedRefs", Status::True, "ResolvedRefs"));
    let verdict = route(vec![verdict]);
    let health = condition("vestibule.dev/BackendsHealthy", Status::False, "ProbeFailed");
    let programmed = route::programmed(Some(&Progress::Everywhere));
    let foreign = |count: usize| -> Vec<Value> {
        let one = |n| json!({"type": format!("example.com/{n}"), "status": "True"});
        (0..count).map(one).collect()
    };
    let kinds = |count: usize| -> Vec<String> {
        let entry = json!({"parentRef": {"name": "gw"}, "controllerName": CONTROLLER_NAME, "conditions": foreign(count)});
        let current = json!({"parents": [entry]});
        let status = settled(&current, |current, now| {
            let of_all = OfAll { health: Some(&health), programmed: Some(&programmed) };
            route::desired_status(current, Some(&verdict), of_all, "ns", now)
        });
        let conditions = elements(status["parents"][0].get("conditions"));
        assert_eq!(conditions[..count], foreign(count));
        conditions[count..].iter().map(|one| text(one, "type").to_owned()).collect()
    };
    let all =
        ["Accepted", "vestibule.dev/Programmed", "ResolvedRefs", OWNED, "vestibule.dev/BackendsHealthy"];
    assert_eq!(kinds(0), all);
    assert_eq!(kinds(3), all);
    assert_eq!(kinds(4), all[..4]);
    assert_eq!(kinds(7), all[..1]);
}

#[test]
fn a_route_says_whether_nodes_hold_it_where_it_is_accepted() {
    let verdict = route(vec![parent(None, Status::True), parent(Some("a"), Status::False)]);
    let status_with = |progress: Option<&Progress>| {
        let programmed = route::programmed(progress);
        let of_all = OfAll { programmed: Some(&programmed), ..OfAll::default() };
        settled(&json!({}), |current, now| route::desired_status(current, Some(&verdict), of_all, "ns", now))
    };
    let said = |progress: Option<&Progress>| {
        let status = status_with(progress);
        let [ours, refused] = [0, 1].map(|at| &status["parents"][at]["conditions"]);
        assert!(elements(Some(refused)).iter().all(|one| text(one, "type") != "vestibule.dev/Programmed"));
        let programmed = find(ours, "type", "vestibule.dev/Programmed");
        (text(programmed, "status").to_owned(), text(programmed, "reason").to_owned())
    };
    let of = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(said(Some(&Progress::Everywhere)), of("True", "Programmed"));
    assert_eq!(said(Some(&Progress::Missing(vec![("n".into(), None)].into()))), of("False", "Pending"));
    assert_eq!(said(None), of("False", "NothingGranted"));
    // It is read back, of the generation that it was said of.
    let status = status_with(Some(&Progress::Enough));
    assert!(is_programmed(&status, Kind::TlsRoute, 4) && !is_programmed(&status, Kind::TlsRoute, 5));
    assert!(!is_programmed(&json!({"parents": [of_another("gw")]}), Kind::TlsRoute, 4));
}
