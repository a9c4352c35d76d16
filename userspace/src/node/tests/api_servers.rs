use super::scene::{Folder, Scene, never, serve_one, until};
use crate::model::ObjectName;
use crate::outputs::memory::Memory;

/// Nothing on the node may be led away from them.
#[tokio::test]
async fn outputs_know_the_api_servers_also_while_none_says_that_it_is_there() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let known = || output.image().node.api_servers.iter().map(ToString::to_string).collect::<Vec<_>>();
    scene
        .play(async {
            serve_one(&cluster, &output).await;
            assert!(known().is_empty());
            let service = || ObjectName::new("default", "kubernetes");
            cluster.put_endpoints_of(service(), &[8, 9]);
            until("both are known", || known() == ["10.0.0.8", "10.0.0.9"]).await;
            cluster.put_endpoints_of(service(), &[9]);
            until("one is gone", || known() == ["10.0.0.9"]).await;
            cluster.put_endpoints_of(service(), &[]);
            never("it is forgotten", || known().is_empty()).await;
        })
        .await;
}
