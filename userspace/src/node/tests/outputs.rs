use std::io;
use std::sync::Arc;

use super::scene::{Folder, Scene, never, ready, routes, until};
use crate::config::ChartFile;
use crate::node::error::NodeError;
use crate::node::facts::Sources;
use crate::node::inputs::Input;
use crate::outputs::memory::Memory;
use crate::outputs::{StartError, Word};
use crate::sources::kubernetes::script::Script;

fn broken() -> StartError {
    io::Error::other("the map is full").into()
}

#[tokio::test]
async fn a_failure_is_told_and_tried_again_and_the_last_good_state_stays() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let scene = Scene::of_file(&folder, &output);
    let (inputs, told) = (scene.inputs.clone(), Arc::clone(&scene.told));
    scene
        .play(async {
            until("the first state", || routes(&output) == ["a: 10.1.0.1"]).await;
            output.image().failure = Some(broken);
            folder.write(&[("a", &[2])]);
            inputs.send(Input::File).unwrap();
            until("the failure is reported", || ready(&told).contains("the map is full")).await;
            let before = output.image().counts.answered;
            until("it is tried again", || output.image().counts.answered > before).await;
            assert_eq!(routes(&output), ["a: 10.1.0.1"]);
            output.image().failure = None;
            until("it is held", || routes(&output) == ["a: 10.1.0.2"]).await;
            until("the recovery is reported", || !ready(&told).contains("the map is full")).await;
        })
        .await;
}

/// A slow output does not delay the loop: further changes are read and compiled, and only the last waiting
/// order is carried out.
#[tokio::test]
async fn the_loop_does_not_wait_for_an_output() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let scene = Scene::of_file(&folder, &output);
    let inputs = scene.inputs.clone();
    scene
        .play(async {
            until("the first state", || routes(&output) == ["a: 10.1.0.1"]).await;
            // The order after the first one is answered, too.
            until("quiet", || output.image().counts.answered == 2).await;
            output.image().is_slow = true;
            for host in 2..5 {
                folder.write(&[("a", &[host])]);
                inputs.send(Input::File).unwrap();
                let waits = || {
                    let desired = output.ordered()?.desired;
                    Some(desired.routes.get(0)?.backends.first()?.address)
                };
                until("the order", || waits() == Some([10, 1, 0, host].into())).await;
            }
            assert_eq!(
                (routes(&output), output.image().counts.answered),
                (vec!["a: 10.1.0.1".to_owned()], 2)
            );
            output.hurry();
            until("the last file", || routes(&output) == ["a: 10.1.0.4"]).await;
            assert_eq!(output.image().counts.answered, 3);
        })
        .await;
}

/// A state that only one of two outputs holds is not reported as in effect.
#[tokio::test]
async fn what_one_output_alone_holds_is_not_in_force() {
    let (folder, quick, slow) = (Folder::new(), Memory::default(), Memory::default());
    folder.write(&[("a", &[1])]);
    let (script, store) = Script::begin();
    let mut sources = Sources::of_cluster(store, ChartFile::default(), Some(folder.file()), "node");
    sources.read_file().unwrap();
    let scene = Scene::new(&folder, sources, &[&quick, &slow], true);
    let told = Arc::clone(&scene.told);
    slow.image().is_slow = true;
    scene
        .play(async {
            script.list_slices();
            script.list_services(&[]);
            until("one holds it", || routes(&quick) == ["a: 10.1.0.1"]).await;
            never("it is reported", || ready(&told) == "ok\n").await;
            slow.hurry();
            until("both hold it", || routes(&slow) == ["a: 10.1.0.1"]).await;
            until("it is reported", || ready(&told) == "ok\n").await;
        })
        .await;
}

#[tokio::test]
async fn an_output_that_is_gone_is_the_end() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let scene = Scene::of_file(&folder, &output);
    let story = async {
        until("the first state", || routes(&output) == ["a: 10.1.0.1"]).await;
        output.say(Word::Gone(broken()));
    };
    let (outcome, ()) = tokio::join!(scene.end(), story);
    assert!(matches!(outcome, Err(NodeError::Kernel(StartError::System(_)))), "{outcome:?}");
}

#[tokio::test]
async fn a_start_that_fails_is_tried_again_where_agents_meet() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let told = Arc::clone(&scene.told);
    output.image().failure = Some(broken);
    scene
        .play(async {
            cluster.list_slices();
            cluster.list_services(&[]);
            until("it is reported", || ready(&told).contains("the map is full")).await;
            output.image().failure = None;
            until("it writes", || routes(&output) == ["a: 10.1.0.1"]).await;
            until("it is well", || ready(&told) == "ok\n").await;
        })
        .await;
}
