use std::time::{Duration, Instant};

use serde_json::json;

use super::scene::{Controller, OBJECTS, SOON, Scene, is};

fn wait_until(what: &str, patience: Duration, is_so: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < patience, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    begun.elapsed()
}

fn generation(scene: &Scene, generation: i64) {
    scene.wait("the new generation", ["gateway", "gw"], |gateway| {
        let conditions = gateway["status"]["conditions"].as_array().unwrap();
        conditions.iter().all(|condition| condition["observedGeneration"] == generation)
    });
}

fn change(scene: &Scene, port: u16) {
    let patch = json!({"spec": {"listeners": [{"name": "tls", "port": port, "protocol": "TLS",
        "tls": {"mode": "Passthrough"}}]}});
    let patch = patch.to_string();
    scene.kubectl().run(&["-n", "tenant", "patch", "gateway", "gw", "--type=merge", "-p", &patch]).unwrap();
}

/// Returns the leader, then the other.
fn roles(pair: [Controller; 2]) -> (Controller, Controller) {
    let [first, second] = pair;
    wait_until("one leads", SOON, || first.leads() || second.leads());
    if first.leads() { (first, second) } else { (second, first) }
}

#[test]
fn of_two_controllers_one_writes_and_the_other_takes_over() {
    let scene = Scene::new();
    scene.kubectl().apply(OBJECTS).unwrap();
    let (leader, follower) = roles([scene.controller("a"), scene.controller("b")]);
    scene.wait("judged", ["gateway", "gw"], |gateway| is(gateway, "Accepted", "True", "Accepted"));
    for port in [444, 445] {
        change(&scene, port);
        generation(&scene, i64::from(port) - 442);
    }
    assert!(leader.leads() && !follower.leads());
    assert!(leader.writes() > 0);
    assert_eq!(follower.writes(), 0, "a follower wrote");
    assert!(follower.ask("/readyz").unwrap().starts_with("HTTP/1.0 200"), "it could take over");

    // A controller that ends releases the Lease: the other one leads at its next check.
    leader.end();
    let took = wait_until("the other leads", SOON, || follower.leads());
    assert!(took < Duration::from_secs(6), "{took:?}");
    change(&scene, 446);
    generation(&scene, 4);

    // After a controller is killed, another one leads when the Lease has expired, and not before.
    let third = scene.controller("c");
    wait_until("the third is ready", SOON, || {
        third.ask("/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.0 200"))
    });
    drop(follower);
    let took = wait_until("the third leads", SOON, || third.leads());
    assert!(took > Duration::from_secs(8) && took < Duration::from_secs(22), "{took:?}");
    change(&scene, 447);
    generation(&scene, 5);
    assert_eq!(scene.refusals(), [""; 0]);
}
