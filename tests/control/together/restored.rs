use serde_json::{Value, json};
use tests::skip_without_root;

use super::fleet::thin::Thin;
use crate::agent::scene::{CONFIG, RELEASE, SOON, Scene};

const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/tenant/tlsroutes";

/// Whether the route's one entry says that it is programmed, in its present generation.
fn is_programmed(route: &Value) -> bool {
    let conditions = route["status"]["parents"][0]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|condition| {
        condition["type"] == "vestibule.dev/Programmed"
            && condition["status"] == "True"
            && condition["observedGeneration"] == route["metadata"]["generation"]
    })
}

fn wait_until_programmed(scene: &Scene, what: &str, name: &str) {
    scene.kubectl().wait_for(what, &["-n", "tenant", "tlsroute", name], SOON, is_programmed).unwrap();
}

fn newest_claim(scene: &Scene) -> u64 {
    let claims = scene.kubectl().get(&["claims"]).unwrap();
    let version = |claim: &Value| claim["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    claims["items"].as_array().unwrap().iter().map(version).max().unwrap()
}

/// An API server goes on with a watch from a version that it has not reached, and leaves out all that it writes until then.
#[test]
fn agents_and_the_controller_read_everything_again_once_a_backup_was_restored() {
    skip_without_root!();
    let mut scene = Scene::bare(CONFIG, &[]);
    let _controller = scene.controller("leader", &[]);
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    let thin = Thin::start(&scene.namespace, account.kubeconfig().to_owned(), 3);
    scene.tenant("kept", "10.99.1.1");
    wait_until_programmed(&scene, "before the backup", "kept");
    scene.server.back_up().unwrap();

    // Many versions later.
    for number in 0..100 {
        let map = json!({"metadata": {"name": format!("busy-{number}")}});
        scene.server.rest().connect().unwrap().create("/api/v1/namespaces/default/configmaps", &map).unwrap();
    }
    scene.tenant("lost", "10.99.1.2");
    wait_until_programmed(&scene, "before it was restored", "lost");
    let future = newest_claim(&scene);
    thin.wait_for(future, SOON);
    scene.server.restore().unwrap();
    assert!(scene.server.rest().connect().unwrap().read(&format!("{ROUTES}/lost")).is_err());

    scene.tenant("new", "10.99.1.3");
    wait_until_programmed(&scene, "after it was restored", "new");
    assert!(newest_claim(&scene) < future, "otherwise the test shows nothing");
    wait_until_programmed(&scene, "as it was", "kept");
    let claims = scene.kubectl().get(&["claims"]).unwrap();
    let is_lost = |claim: &Value| claim["spec"]["origin"]["name"] == "lost";
    assert!(!claims["items"].as_array().unwrap().iter().any(is_lost));
}
