//! The chart's file is followed.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::scene::{Folder, Scene, never, routes, until};
use crate::node::chart::ChartSource;
use crate::node::inputs::Input;
use crate::outputs::memory::Memory;

/// The chart's file.
fn write(folder: &Folder, text: &str) -> PathBuf {
    let path = folder.0.join("vestibule.yaml");
    fs::write(&path, text).unwrap();
    path
}

/// A chart's file with a listener and a route of its own.
fn with_route(name: &str) -> String {
    format!(
        "listeners: [{{name: own, addresses: [192.0.2.201], port: 443, protocol: TLS}}]\n\
         routes: [{{name: {name}, listeners: [own], hostnames: [{name}.example], \
         backends: [{{address: 10.2.0.1, port: 6443}}]}}]\n"
    )
}

/// Without its copy, a node that boots with a broken ConfigMap would serve nobody, with a good state on its disk.
#[test]
fn a_start_with_a_bad_file_uses_the_last_good_one() {
    let folder = Folder::new();
    let path = write(&folder, "devices: [a/b]\n");
    let problems = ChartSource::start(&path, &folder.0).unwrap_err();
    assert_eq!(problems[0].field, "devices[0]");
    write(&folder, "devices: [eth7]\nsavedState: {maxAge: 1h}\n");
    let (source, good) = ChartSource::start(&path, &folder.0).unwrap();
    assert!(source.problems().is_empty());
    for bad in ["devices: [a/b]\n", "devices: [\n", ""] {
        match bad {
            "" => fs::remove_file(&path).unwrap(),
            text => drop(write(&folder, text)),
        }
        let (source, chart) = ChartSource::start(&path, &folder.0).unwrap();
        assert_eq!(chart, good);
        assert_eq!(source.problems().len(), 1, "{bad}");
    }
}

#[tokio::test]
async fn a_changed_file_is_put_into_effect_and_a_bad_one_changes_nothing() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[("a", &[1])]);
    let path = write(&folder, "devices: [eth0]\nsettings: {idleTimeout: 1h}\n");
    let (mut scene, cluster) = Scene::of_cluster(&folder, &output);
    let (source, chart) = ChartSource::start(&path, &folder.0).unwrap();
    assert!(scene.node.sources.set_chart(chart));
    scene.node.chart = Some(source);
    let inputs = scene.inputs.clone();
    let read = || inputs.send(Input::File).unwrap();
    let idle = || output.image().desired.settings.idle_timeout;
    let devices = || output.image().node.devices.iter().map(ToString::to_string).collect::<Vec<_>>();
    scene
        .play(async {
            cluster.list_slices();
            cluster.list_services(&[]);
            until("the first state", || routes(&output) == ["a: 10.1.0.1"]).await;
            assert_eq!((idle(), devices()), (Duration::from_secs(3600), vec!["eth0".to_owned()]));
            write(&folder, "devices: [eth0, eth1]\nsettings: {idleTimeout: 2h}\n");
            read();
            until("the settings", || idle() == Duration::from_secs(7200)).await;
            until("the devices", || devices() == ["eth0", "eth1"]).await;
            write(&folder, "devices: [eth9]\nsettings: {idleTimeout: never}\n");
            read();
            never("it uses a part of it", || devices() != ["eth0", "eth1"]).await;
            // The static file is read nevertheless.
            folder.write(&[("a", &[2])]);
            read();
            until("the static file", || routes(&output) == ["a: 10.1.0.2"]).await;
            write(&folder, &with_route("b"));
            read();
            until("its route", || routes(&output) == ["a: 10.1.0.2", "b: 10.2.0.1"]).await;
            // While the static file is bad, a change of the chart's waits.
            folder.write_text("{");
            write(&folder, &with_route("c"));
            read();
            never("anything changes", || routes(&output) != ["a: 10.1.0.2", "b: 10.2.0.1"]).await;
            folder.write(&[("a", &[3])]);
            read();
            until("both are good", || routes(&output) == ["a: 10.1.0.3", "c: 10.2.0.1"]).await;
        })
        .await;
    let (_, copy) = {
        write(&folder, "devices: [\n");
        ChartSource::start(&path, &folder.0).unwrap()
    };
    assert_eq!(
        copy.facts.routes.iter().map(|route| Arc::clone(&route.name)).collect::<Vec<_>>(),
        ["c".into()]
    );
}
