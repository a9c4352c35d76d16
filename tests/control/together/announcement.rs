//! What is announced, from the controller to an agent.

use serde_json::Value;
use tests::skip_without_root;

use crate::agent::scene::{NODE, Scene, until};
use crate::controller::announcement::{node, rights, wait};

const ON: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"], "l2": true},
    "settings": {"maxFlows": 10000, "maxNames": 40000, "maxHellos": 1024}}"#;

/// What the agent has saved of it.
fn saved(scene: &Scene) -> Option<Value> {
    let text = std::fs::read_to_string(scene.folder.path().join("state/announcement")).ok()?;
    serde_json::from_str(text.lines().nth(1)?).ok()
}

#[test]
fn an_agent_knows_what_is_announced_and_keeps_it_without_object_and_without_api_server() {
    skip_without_root!();
    let mut scene = Scene::bare(ON, &[]);
    let kubectl = scene.kubectl().clone();
    rights(&kubectl);
    node(&kubectl, NODE);
    scene.settle();
    scene.tenant("a", "10.99.1.1");
    let account = kubectl.of_service_account(crate::process::RELEASE, "vestibule-agent").unwrap();
    let agent = scene.agent_by("first", account.kubeconfig());
    let is_member = |said: &Value| said["members"] == serde_json::json!([NODE]);
    wait(&kubectl, "it is a member", |object| is_member(&object["spec"]));
    until("it knows that", &[&agent], || saved(&scene).is_some_and(|said| is_member(&said)));
    assert_eq!(saved(&scene).unwrap()["rules"][0]["addresses"], serde_json::json!(["192.0.2.0/28"]));
    until("it is ready", &[&agent], || agent.is_ready());

    // Its definition is deleted, and with it the object.
    kubectl.run(&["delete", "crd", "announcements.vestibule.dev"]).unwrap();
    until("it says so", &[&agent], || agent.probe("--readyz").1.contains("announcements: "));
    scene.tenant("b", "10.99.1.2");
    until("all else goes on", &[&agent], || scene.backends().len() == 2 && agent.is_ready());
    assert!(is_member(&saved(&scene).unwrap()));
    agent.end();

    // Power is lost, and the API server does not return.
    scene.server.crash().unwrap();
    assert!(scene.vestibule().arg("detach").status().unwrap().success());
    let agent = scene.agent_by("booted", account.kubeconfig());
    until("what was saved is announced", &[&agent], || agent.log().contains("announces what was saved"));
    until("and served", &[&agent], || scene.backends().len() == 2);
    assert_eq!(scene.refusals(), [""; 0]);
}
