use super::scene::{Folder, Scene, never, routes, until};
use crate::model::Problem;
use crate::node::error::NodeError;
use crate::node::inputs::Input;
use crate::outputs::StartError;
use crate::outputs::memory::Memory;

fn refused() -> StartError {
    StartError::Problems(vec![Problem::error("routes[0]", "does not fit", "make it fit")])
}

#[tokio::test]
async fn what_the_file_says_is_held_and_so_is_each_change() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1]), ("b", &[2])]);
    let scene = Scene::of_file(&folder, &output);
    let inputs = scene.inputs.clone();
    scene
        .play(async {
            until("the first state", || routes(&output) == ["a: 10.1.0.1", "b: 10.1.0.2"]).await;
            folder.write(&[("a", &[1, 3]), ("b", &[2])]);
            inputs.send(Input::File).unwrap();
            until("a backend more", || routes(&output) == ["a: 10.1.0.1 10.1.0.3", "b: 10.1.0.2"]).await;
            let image = output.image();
            let listener = image.world.listeners.values().next().unwrap();
            assert!(image.world.exact(listener.id, "a.example").is_some(), "clients find it by its name");
        })
        .await;
    assert_eq!(output.image().counts.released, 1, "it must not write any more");
    assert!(!output.image().world.is_empty(), "what it held goes on serving");
}

#[tokio::test]
async fn a_refused_file_changes_nothing_and_a_good_one_does_again() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let scene = Scene::of_file(&folder, &output);
    let inputs = scene.inputs.clone();
    scene
        .play(async {
            until("the first state", || routes(&output) == ["a: 10.1.0.1"]).await;
            folder.write_text("{\"apiVersion\": 1}");
            inputs.send(Input::File).unwrap();
            never("a refused file is in force", || routes(&output) != ["a: 10.1.0.1"]).await;
            folder.write(&[("a", &[2])]);
            inputs.send(Input::File).unwrap();
            until("the good one", || routes(&output) == ["a: 10.1.0.2"]).await;
        })
        .await;
}

/// What an output refuses is not tried again and again. A later change of the node's network is applied with
/// the state that was in effect before.
#[tokio::test]
async fn what_an_output_refuses_leaves_the_last_good_state() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let scene = Scene::of_file(&folder, &output);
    let (inputs, told) = (scene.inputs.clone(), std::sync::Arc::clone(&scene.told));
    scene
        .play(async {
            until("the first state", || routes(&output) == ["a: 10.1.0.1"]).await;
            output.image().failure = Some(refused);
            folder.write(&[("a", &[2])]);
            let before = output.image().counts.answered;
            inputs.send(Input::File).unwrap();
            until("an answer", || output.image().counts.answered > before).await;
            let before = output.image().counts.answered;
            never("what was refused is tried again", || output.image().counts.answered > before).await;
            assert!(super::scene::ready(&told).contains("does not fit"));
            output.image().failure = None;
            let node = std::sync::Arc::new(crate::model::Node::default());
            inputs.send(Input::Network(Ok(std::sync::Arc::clone(&node)))).unwrap();
            until("the network", || std::sync::Arc::ptr_eq(&output.image().node.network, &node)).await;
            assert_eq!(routes(&output), ["a: 10.1.0.1"]);
            folder.write(&[("a", &[3])]);
            inputs.send(Input::File).unwrap();
            until("another file", || routes(&output) == ["a: 10.1.0.3"]).await;
            until("it is well", || !super::scene::ready(&told).contains("does not fit")).await;
        })
        .await;
}

#[tokio::test]
async fn a_start_that_is_refused_is_the_end_where_nobody_meets() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    output.image().failure = Some(refused);
    let outcome = Scene::of_file(&folder, &output).end().await;
    assert!(matches!(outcome, Err(NodeError::Kernel(StartError::Problems(_)))), "{outcome:?}");
    let image = output.image();
    assert_eq!((image.counts.answered, image.world.is_empty()), (0, true), "nothing was touched");
}

#[tokio::test]
async fn a_second_writer_is_refused_where_nobody_meets() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let first = crate::outputs::Pins::new(&folder.0).lock().unwrap();
    let outcome = Scene::of_file(&folder, &output).end().await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("another vestibule runs"), "{error}");
    assert_eq!(output.image().counts.answered, 0, "nothing was touched");
    drop(first);
}
