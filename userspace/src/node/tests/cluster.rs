use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::maps::settings::CookieKey;

use super::log::Lines;
use super::scene::{Folder, Scene, never, ready, routes, serve_one, until};
use crate::model::{Desired, DesiredRoute, Node, Settings};
use crate::node::inputs::Input;
use crate::node::saving::Loaded;
use crate::node::{keys, saved, saved_announcement};
use crate::outputs::memory::Memory;
use crate::outputs::{CookieKeys, Word};
use crate::sources::kubernetes::api::announcement::{AnnouncementRule, AnnouncementSpec};

fn route(desired: &Desired, name: &str) -> Arc<DesiredRoute> {
    Arc::clone(desired.routes.find(name).unwrap())
}

fn keys() -> CookieKeys {
    CookieKeys { keys: [CookieKey { k0: 1, k1: 2 }, CookieKey { k0: 3, k1: 4 }], current: 1 }
}

#[tokio::test]
async fn nothing_is_touched_before_every_source_has_said_all() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let told = Arc::clone(&scene.told);
    scene
        .play(async {
            cluster.list_slices();
            cluster.put_endpoints("s", &[1]);
            never("it writes", || output.image().counts.answered > 0).await;
            assert!(ready(&told).contains("not synced"), "{}", ready(&told));
            cluster.list_services(&[("s", [192, 0, 2, 1])]);
            let wanted = ["a: 10.1.0.1", "service/ns/s:443: 10.0.0.1"];
            until("file and cluster together", || routes(&output) == wanted).await;
            until("it is ready", || ready(&told) == "ok\n").await;
        })
        .await;
}

/// Only routes whose endpoints changed are compiled. The others remain identical objects, not only equal ones.
#[tokio::test]
async fn changed_endpoints_alone_are_compiled_alone() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let inputs = scene.inputs.clone();
    scene
        .play(async {
            cluster.list_slices();
            cluster.list_services(&[("s", [192, 0, 2, 1])]);
            cluster.put_endpoints("s", &[1]);
            until("the first state", || {
                routes(&output).last().is_some_and(|last| last.ends_with("10.0.0.1"))
            })
            .await;
            let first = Arc::clone(&output.image().desired);
            cluster.put_endpoints("s", &[1, 2]);
            until("one endpoint more", || routes(&output)[1] == "service/ns/s:443: 10.0.0.1 10.0.0.2").await;
            let second = Arc::clone(&output.image().desired);
            assert!(Arc::ptr_eq(&route(&first, "a"), &route(&second, "a")), "all was compiled");
            // A change of the file is not a change of endpoints.
            folder.write(&[("a", &[7])]);
            inputs.send(Input::File).unwrap();
            until("the file", || routes(&output)[0] == "a: 10.1.0.7").await;
        })
        .await;
}

#[tokio::test]
async fn health_zone_devices_keys_and_drain_are_facts() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let inputs = scene.inputs.clone();
    scene
        .play(async {
            cluster.list_slices();
            cluster.list_services(&[("s", [192, 0, 2, 1])]);
            cluster.put_endpoints("s", &[1, 2]);
            until("the first state", || routes(&output) == ["service/ns/s:443: 10.0.0.1 10.0.0.2"]).await;
            inputs.send(Input::Zone(Some("z1".into()))).unwrap();
            until("the zone", || output.image().node.zone.as_deref() == Some("z1")).await;
            let node = Arc::new(Node::default());
            inputs.send(Input::Network(Ok(Arc::clone(&node)))).unwrap();
            until("the devices", || Arc::ptr_eq(&output.image().node.network, &node)).await;
            inputs.send(Input::Keys(keys())).unwrap();
            until("the keys", || output.image().keys == Some(keys())).await;
            // The command line wrote this into the maps, and the output read it.
            output.say(Word::Draining(true));
            until("the drain", || output.image().node.is_draining).await;
            output.say(Word::Draining(false));
            until("the drain's end", || !output.image().node.is_draining).await;
        })
        .await;
    assert_eq!(keys::load(&folder.0).unwrap(), keys(), "kept for a boot without the API server");
}

fn announced(member: &str) -> AnnouncementSpec {
    let rules = vec![AnnouncementRule::default()];
    AnnouncementSpec {
        agent_grace_seconds: 15,
        members: vec![member.to_owned()],
        rules,
        ..AnnouncementSpec::default()
    }
}

/// Returns the first member of what the output has, if anything is announced.
fn member(output: &Memory) -> Option<String> {
    let announcement = output.image().node.announcement.clone()?;
    assert_eq!(announcement.rules.len(), 1);
    Some(announcement.members[0].to_string())
}

#[tokio::test]
async fn what_is_announced_is_a_fact_that_changes_alone_and_is_kept_until_something_else_is() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    scene
        .play(async {
            cluster.list_endpoints();
            cluster.list_services(&[("s", [192, 0, 2, 1])]);
            never("it writes before that is known", || output.image().counts.answered > 0).await;
            cluster.list_announcement(&announced("a"));
            until("the first", || member(&output).as_deref() == Some("a")).await;
            let compiled = || route(&output.image().desired, "service/ns/s:443");
            let before = compiled();
            cluster.list_announcement(&announced("b"));
            until("another", || member(&output).as_deref() == Some("b")).await;
            assert!(Arc::ptr_eq(&before, &compiled()), "nothing is compiled for it");
            // Another client has deleted it, or its definition.
            cluster.list_no_announcement();
            never("it is gone", || member(&output).as_deref() != Some("b")).await;
        })
        .await;
    assert_eq!(saved_announcement::read(&folder.0).unwrap(), announced("b").read().unwrap());
}

/// As where the definition is of the release before.
#[tokio::test]
async fn what_cannot_be_read_holds_up_nothing_and_what_was_saved_is_announced_until_it_can_be() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    saved_announcement::write(&folder.0, &announced("saved").read().unwrap()).unwrap();
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let told = Arc::clone(&scene.told);
    scene
        .play(async {
            cluster.list_endpoints();
            cluster.list_services(&[("s", [192, 0, 2, 1])]);
            cluster.put_endpoints("s", &[1]);
            cluster.refuse_announcement();
            until("all else", || routes(&output) == ["service/ns/s:443: 10.0.0.1"]).await;
            assert_eq!(member(&output).as_deref(), Some("saved"));
            until("it is said", || ready(&told).contains("announcements: 404 NotFound")).await;
            cluster.list_announcement(&announced("b"));
            until("what is announced now", || member(&output).as_deref() == Some("b")).await;
        })
        .await;
}

/// As `vestibule withdraw` asks for it.
#[tokio::test]
async fn a_cluster_that_is_left_gets_no_new_connections_until_that_is_taken_back() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    scene
        .play(async {
            serve_one(&cluster, &output).await;
            assert!(!output.image().is_withdrawn);
            cluster.mark(7, true);
            until("new connections are refused", || output.image().is_withdrawn).await;
            assert_eq!(routes(&output), ["service/ns/s:443: 10.0.0.1"], "all else stays");
            cluster.put_endpoints("s", &[1, 2]);
            until("what changes meanwhile", || routes(&output)[0].ends_with("10.0.0.2")).await;
            assert!(output.image().is_withdrawn);
            cluster.mark(9, false);
            until("it is taken back", || !output.image().is_withdrawn).await;
        })
        .await;
}

#[tokio::test]
async fn a_cluster_that_cannot_be_followed_is_stale_and_what_it_said_stays() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let told = Arc::clone(&scene.told);
    scene
        .play(async {
            serve_one(&cluster, &output).await;
            cluster.cut_off("connection refused");
            until("it is reported", || ready(&told).contains("stale: claims: connection refused")).await;
            assert_eq!(routes(&output), ["service/ns/s:443: 10.0.0.1"]);
        })
        .await;
}

#[tokio::test]
async fn a_silent_cluster_makes_it_use_what_was_saved() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    {
        let (scene, cluster) = Scene::of_cluster(&folder, &output);
        let inputs = scene.inputs.clone();
        scene
            .play(async {
                inputs.send(Input::Keys(keys())).unwrap();
                cluster.list_slices();
                cluster.list_services(&[]);
                until("the first state", || routes(&output) == ["a: 10.1.0.1"]).await;
                until("the keys", || output.image().keys == Some(keys())).await;
            })
            .await;
    }
    assert!(folder.0.join(saved::FILE).exists(), "it is saved at the end");
    let output = Memory::default();
    let (mut scene, cluster) = Scene::of_cluster(&folder, &output);
    scene.node.pace.hopeless = Some(tokio::time::Instant::now());
    let told = Arc::clone(&scene.told);
    scene
        .play(async {
            until("the saved state", || routes(&output) == ["a: 10.1.0.1"]).await;
            assert_eq!(output.image().keys, Some(keys()));
            assert!(ready(&told).contains("not synced"), "{}", ready(&told));
            cluster.list_slices();
            cluster.list_services(&[("s", [192, 0, 2, 1])]);
            cluster.put_endpoints("s", &[1]);
            let wanted = ["a: 10.1.0.1", "service/ns/s:443: 10.0.0.1"];
            until("the cluster's own word", || routes(&output) == wanted).await;
        })
        .await;
}

/// What was saved long ago leads to addresses that other pods may have by now. What the node's own file says has no age.
#[tokio::test]
async fn endpoints_that_were_saved_too_long_ago_get_no_new_connections() {
    let folder = Folder::new();
    folder.write(&[("a", &[1])]);
    save_a_service(&folder).await;
    let hour = Duration::from_secs(3600);
    let (desired, confirmed) = saved::read(&folder.0, &Settings::default()).unwrap();
    let now = SystemTime::now();
    assert!(now.duration_since(confirmed.unwrap()).unwrap() < hour, "it is confirmed");
    let all = ["a: 10.1.0.1", "service/ns/s:443: 10.0.0.1"];
    let aged = ["a: 10.1.0.1", "service/ns/s:443: "];
    for (confirmed, wanted) in [
        (Some(now - 25 * hour), aged),
        (Some(now - 23 * hour), all),
        (Some(now + 25 * hour), all),
        (None, all),
    ] {
        saved::write(&folder.0, &desired, confirmed).unwrap();
        let output = Memory::default();
        let (mut scene, _cluster) = Scene::of_cluster(&folder, &output);
        scene.node.pace.hopeless = Some(tokio::time::Instant::now());
        scene
            .play(async {
                until("the saved state", || routes(&output).len() == 2).await;
                assert_eq!(routes(&output), wanted, "{confirmed:?}");
            })
            .await;
        assert_eq!(saved::read(&folder.0, &Settings::default()).unwrap().1.is_some(), confirmed.is_some());
    }
}

/// What it serves came from this boot or from a file that was young enough, however long the API server has been silent since.
#[tokio::test]
async fn a_running_agent_never_ages_out() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    save_a_service(&folder).await;
    let hour = Duration::from_secs(3600);
    let (desired, _) = saved::read(&folder.0, &Settings::default()).unwrap();
    let (mut scene, _cluster) = Scene::of_cluster(&folder, &output);
    let node = &mut scene.node;
    let serves = |node: &crate::node::reconcile::Node| {
        let desired = &node.state.as_ref().unwrap().desired;
        route(desired, "service/ns/s:443").backends.len()
    };
    for (hours, of_a_new_one) in [(23, 1), (25, 0)] {
        saved::write(&folder.0, &desired, Some(SystemTime::now() - hours * hour)).unwrap();
        node.pace.hopeless = Some(tokio::time::Instant::now() - hour);
        node.use_saved();
        assert_eq!(serves(node), 1, "{hours} h");
        // An agent that starts does age.
        let (mut other, _cluster) = Scene::of_cluster(&folder, &output);
        other.node.pace.hopeless = Some(tokio::time::Instant::now() - hour);
        other.node.use_saved();
        assert_eq!(serves(&other.node), of_a_new_one, "{hours} h");
    }
}

#[tokio::test]
async fn how_old_a_saved_state_is_is_logged_and_that_it_is_not_known() {
    let (folder, output, lines) = (Folder::new(), Memory::default(), Lines::default());
    folder.write(&[]);
    save_a_service(&folder).await;
    let (desired, _) = saved::read(&folder.0, &Settings::default()).unwrap();
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let unknown = ["WARN", "the state of the last boot is used", "its age is not known", "routes=1"];
    for (confirmed, wanted) in [
        (Some(now - 25 * hour), ["ERROR", "older than savedState.maxAge", "hours=25", "routes=1"]),
        (Some(now - 2 * hour), ["INFO", "the state of the last boot is used", "minutes=120", "routes=1"]),
        // The clock is before the time when it was confirmed.
        (Some(now + hour), unknown),
        // A release before did not say when.
        (None, unknown),
    ] {
        let (mut scene, _cluster) = Scene::of_cluster(&folder, &output);
        let loaded = Loaded { desired: desired.clone(), keys: None, confirmed };
        tracing::subscriber::with_default(lines.subscriber(), || scene.node.use_loaded(loaded, now));
        let text = lines.text();
        let is_logged = wanted.iter().all(|part| text.contains(part)) && text.lines().count() == 1;
        assert!(is_logged, "{confirmed:?}: {text}");
        let is_unknown = text.contains("its age is not known");
        assert_eq!(is_unknown, wanted == unknown, "{text}");
    }
}

/// An agent serves a Service, and ends.
async fn save_a_service(folder: &Folder) {
    let output = Memory::default();
    let (scene, cluster) = Scene::of_cluster(folder, &output);
    scene
        .play(async {
            cluster.list_slices();
            cluster.list_services(&[("s", [192, 0, 2, 1])]);
            cluster.put_endpoints("s", &[1]);
            let serves = |output: &Memory| routes(output).contains(&"service/ns/s:443: 10.0.0.1".to_owned());
            until("the first state", || serves(&output)).await;
            // Its loop confirms it four times a second.
            tokio::time::sleep(Duration::from_secs(1)).await;
        })
        .await;
}

#[tokio::test]
async fn a_cluster_that_was_never_heard_and_left_nothing_is_waited_for() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let (mut scene, _cluster) = Scene::of_cluster(&folder, &output);
    scene.node.pace.hopeless = Some(tokio::time::Instant::now());
    scene.play(never("it writes", || output.image().counts.answered > 0)).await;
    assert!(!folder.0.join(saved::FILE).exists(), "what is not in force is not saved");
}

/// What a list holds that the controller has not marked may be any part of what it settled.
#[tokio::test]
async fn claims_without_the_controllers_mark_are_not_served_and_the_last_ones_are() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let told = Arc::clone(&scene.told);
    let (a, b) = (("a", [192, 0, 2, 1]), ("b", [192, 0, 2, 2]));
    let is_unmarked = || ready(&told).contains("there is no Claim 0-settled");
    scene
        .play(async {
            cluster.list_slices();
            for service in ["a", "b"] {
                cluster.put_endpoints(service, &[1]);
            }
            cluster.list_some(&[a]);
            until("it is reported", is_unmarked).await;
            never("it writes", || output.image().counts.answered > 0).await;
            cluster.list_services(&[a, b]);
            let both = ["service/ns/a:443: 10.0.0.1", "service/ns/b:443: 10.0.0.1"];
            until("both", || routes(&output) == both).await;
            until("it is ready", || ready(&told) == "ok\n").await;
            // All Claims are deleted, or restored from a backup by and by. Endpoints are followed nevertheless.
            cluster.list_some(&[b]);
            until("it is reported again", is_unmarked).await;
            cluster.put_endpoints("a", &[2]);
            until("endpoints", || {
                routes(&output) == ["service/ns/a:443: 10.0.0.1 10.0.0.2", "service/ns/b:443: 10.0.0.1"]
                    || routes(&output) == ["service/ns/a:443: 10.0.0.2", "service/ns/b:443: 10.0.0.1"]
            })
            .await;
            cluster.list_services(&[b]);
            until("what was settled", || routes(&output) == ["service/ns/b:443: 10.0.0.1"]).await;
        })
        .await;
}
