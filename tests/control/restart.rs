//! An API server that stops and starts again.

use std::fs;

use serde_json::{Value, json};
use tests::cluster::{ApiServer, Options};

#[test]
fn a_restart_keeps_objects_and_address() {
    let mut server = ApiServer::with(&Options { bare: true, ..Options::default() }).unwrap();
    let map = json!({"metadata": {"name": "kept"}, "data": {"a": "1"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut api = server.rest().connect().unwrap();
    let made = api.create(maps, &map).unwrap();
    server.stop().unwrap();
    assert!(server.rest().connect().is_err(), "it still answers");
    server.launch().unwrap();
    let mut api = server.rest().connect().unwrap();
    let kept = api.read(&format!("{maps}/kept")).unwrap();
    assert_eq!(kept["metadata"]["uid"], made["metadata"]["uid"]);
    server.crash().unwrap();
    server.launch().unwrap();
    assert_eq!(server.kubectl().get(&["configmap", "kept"]).unwrap()["data"], json!({"a": "1"}));
}

#[test]
fn who_asks_is_checked_and_written_down() {
    let server = ApiServer::with(&Options { bare: true, audit: true, ..Options::default() }).unwrap();
    let admin = server.kubectl();
    admin.run(&["create", "serviceaccount", "asker"]).unwrap();
    let asker = admin.of_service_account("default", "asker").unwrap();
    let refused = asker.get(&["secrets"]).unwrap_err();
    assert!(refused.to_string().contains("forbidden"), "{refused}");
    admin.run(&["create", "role", "reader", "--verb=list", "--resource=secrets"]).unwrap();
    admin
        .run(&["create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:asker"])
        .unwrap();
    asker.get(&["secrets"]).unwrap();
    let log = fs::read_to_string(server.audit_log()).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let decisions: Vec<&str> = events
        .iter()
        .filter(|event| event["objectRef"]["resource"] == "secrets")
        .map(|event| event["annotations"]["authorization.k8s.io/decision"].as_str().unwrap())
        .collect();
    assert_eq!(decisions, ["forbid", "allow"]);
    assert!(events.iter().all(|event| event["user"]["username"] == "system:serviceaccount:default:asker"));
}
