use serde_json::Value;
use tests::skip_without_root;

use super::scene::{Agent, NODE, Scene, until};

fn is_writer(agent: &Agent) -> bool {
    agent.metric("vestibule_writer") == Some(1.0)
}

#[test]
fn the_next_agent_takes_over_and_a_dead_one_is_replaced() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let first = scene.agent("first");
    until("the first writes", &[&first], || first.is_ready() && is_writer(&first));
    let before = scene.read("backends").unwrap();

    let second = scene.agent("second");
    until("the second writes", &[&first, &second], || second.is_ready() && is_writer(&second));
    assert!(!is_writer(&first));
    assert!(first.is_ready(), "{:?}", first.probe("--readyz"));
    assert_eq!(scene.read("backends").unwrap(), before, "nothing was written that was there");
    let pod = |state: &Value| state["spec"]["pod"] == "second";
    scene.kubectl().wait_for("its word", &["nodestate", NODE], super::scene::SOON, pod).unwrap();

    // Both watch the cluster; only one writes.
    scene.tenant("b", "10.99.1.2");
    until("the second programs", &[&first, &second], || scene.backends().len() == 2);
    first.end();
    assert!(is_writer(&second));
    assert_eq!(scene.backends().len(), 2);

    // A third agent is running when the second one dies without notice.
    let third = scene.agent("third");
    until("the third writes", &[&second, &third], || is_writer(&third));
    third.crash();
    until("the second takes the maps back", &[&second], || is_writer(&second));
    scene.tenant("c", "10.99.1.3");
    until("it programs again", &[&second], || scene.backends().len() == 3);
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
}
