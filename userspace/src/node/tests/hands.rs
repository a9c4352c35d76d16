use super::scene::{Folder, Scene, routes, until};
use crate::node::handover;
use crate::outputs::memory::Memory;
use crate::outputs::{PinError, Pins};
use crate::sources::kubernetes::script::Script;

fn list(cluster: &Script) {
    cluster.list_slices();
    cluster.list_services(&[]);
}

#[tokio::test]
async fn the_next_one_takes_over_and_there_is_one_writer() {
    let (folder, output, next_output) = (Folder::new(), Memory::default(), Memory::default());
    folder.write(&[("a", &[1])]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let (next, next_cluster) = Scene::of_cluster(&folder, &next_output);
    scene
        .play(async {
            list(&cluster);
            until("the first one writes", || routes(&output) == ["a: 10.1.0.1"]).await;
            next.play(async {
                assert!(output.image().is_prepared);
                list(&next_cluster);
                until("the next one writes", || routes(&next_output) == ["a: 10.1.0.1"]).await;
                let (released, is_prepared) = {
                    let image = output.image();
                    (image.counts.released, image.is_prepared)
                };
                assert_eq!((released, is_prepared), (1, false));
                let lock = Pins::new(&folder.0).lock();
                assert!(matches!(lock, Err(PinError::Locked(_))), "{lock:?}");
                let before = output.image().counts.answered;
                super::scene::never("both write", || output.image().counts.answered > before).await;
            })
            .await;
        })
        .await;
}

/// If the next process dies before its first write, the previous one takes the maps back.
#[tokio::test]
async fn maps_that_nobody_took_are_taken_back() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    scene
        .play(async {
            list(&cluster);
            until("it writes", || routes(&output) == ["a: 10.1.0.1"]).await;
            let mut gift = None;
            // The socket exists once the first order is answered.
            for _ in 0..100 {
                gift = handover::ask(&folder.0).await.ok();
                if gift.is_some() {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            assert_eq!(output.image().counts.released, 1);
            let before = output.image().counts.answered;
            drop(gift.expect("the maps are given"));
            until("they are taken back", || output.image().counts.answered > before).await;
            assert!(output.image().is_prepared);
        })
        .await;
}
