//! The daemon is killed, stopped and restarted; the pinned programs keep serving.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::maps::address::Port;
use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::{BackendTuple, ClientTuple, FLOW_ESTABLISHED, FLOW_RESET, Flow, Reply};
use common::maps::name;
use nix::sys::signal::Signal;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name};
use tests::config::Config;
use tests::pinned::{insert_pinned, pinned_elements, pinned_entries};
use tests::topology::Options;

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually};
use crate::traffic::under_traffic;

/// Ends the daemon with a signal and starts it again, under traffic that never fails.
fn ends_and_comes_back(signal: Signal) {
    tests::skip_without_root!();
    under_traffic(Scene::echo(), |daemon, lab, traffic| {
        for _ in 0..3 {
            traffic.assert_goes_on("with the daemon");
            daemon.end(signal).unwrap();
            traffic.assert_goes_on("without the daemon");
            daemon.launch(&lab.balancer).unwrap();
            traffic.assert_goes_on("with the daemon again");
        }
    });
}

#[test]
fn nothing_is_lost_when_the_daemon_is_killed() {
    ends_and_comes_back(Signal::SIGKILL);
}

#[test]
fn nothing_is_lost_when_the_daemon_ends() {
    ends_and_comes_back(Signal::SIGTERM);
}

#[test]
fn the_commands_read_the_maps_without_the_daemon() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let open = Open::by_name(&scene, Family::V4, &server_name(0));
    scene.daemon.end(Signal::SIGKILL).unwrap();
    let flows = scene.daemon.cli_text(&["flows", "-o", "json"]).unwrap();
    let flows = tests::report::objects(&flows).unwrap();
    assert_eq!(flows.len(), 1, "{flows:?}");
    assert_eq!(flows[0]["client"], open.stream.local_addr().unwrap().to_string());
    assert_eq!(flows[0]["route"], "tenant-a");
    assert_eq!(flows[0]["state"], "established");
    assert_eq!(
        tests::report::objects(&scene.daemon.cli_text(&["routes", "-o", "json"]).unwrap()).unwrap().len(),
        3
    );
    assert_eq!(
        tests::report::objects(&scene.daemon.cli_text(&["backends", "-o", "json"]).unwrap()).unwrap().len(),
        12
    );
}

#[test]
fn source_ports_start_at_random_and_go_on_after_a_restart() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let cursors = scene.daemon.pins().join(name::PORT_CURSORS);
    let before = pinned_elements::<u64>(&cursors).unwrap();
    let distinct = before.iter().collect::<BTreeSet<_>>().len();
    assert!(distinct > before.len() - 10, "{distinct} of {}", before.len());
    scene.daemon.end(Signal::SIGKILL).unwrap();
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert_eq!(pinned_elements::<u64>(&cursors).unwrap(), before);
}

#[test]
fn a_change_of_the_file_while_the_daemon_was_away_is_made_at_its_start() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut gone = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(0)));
    let mut kept = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(1)));
    scene.daemon.end(Signal::SIGKILL).unwrap();
    let mut config = Config::lab_on(ECHO_PORT);
    config.routes.retain(|route| route.name != "tenant-a");
    config.listeners.retain(|listener| listener.name != "tenant-a-direct");
    scene.daemon.write_config(&config.json()).unwrap();
    gone.iter_mut().for_each(Open::assert_alive);
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    gone.iter_mut().for_each(|open| open.assert_reset(Duration::from_secs(1)));
    kept.iter_mut().for_each(Open::assert_alive);
}

#[test]
fn a_bad_file_at_the_start_is_refused_and_what_is_pinned_serves_on() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut open = Open::by_name(&scene, Family::V4, &server_name(2));
    scene.daemon.end(Signal::SIGTERM).unwrap();
    let good = Config::lab_on(ECHO_PORT).json();
    scene.daemon.write_config(&good.replace("tenant-b.k8s", "tenant-a.k8s")).unwrap();
    let refused = format!("{:#}", scene.daemon.launch(&scene.lab.balancer).unwrap_err());
    assert!(refused.contains("tenant-a.k8s.example.com"), "{refused}");
    open.assert_alive();
    assert!(Open::by_name(&scene, Family::V6, &server_name(1)).backend.starts_with("tenant-b/"));
    scene.daemon.write_config(&good).unwrap();
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    open.assert_alive();
}

#[test]
fn a_second_daemon_on_the_same_pins_is_refused() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut open = Open::by_name(&scene, Family::V4, &server_name(0));
    let mut second = scene.daemon.command(&scene.lab.balancer).unwrap();
    let second = second.arg("run").arg("--config").arg(scene.daemon.config_path()).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains("another vestibule runs"), "{second:?}");
    assert!(scene.daemon.runs());
    open.assert_alive();
}

#[test]
fn other_sizes_than_the_pinned_ones_are_refused_before_anything_is_touched() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut open = Open::by_name(&scene, Family::V4, &server_name(0));
    scene.daemon.end(Signal::SIGTERM).unwrap();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_flows = Some(8192);
    scene.daemon.write_config(&config.json()).unwrap();
    let refused = format!("{:#}", scene.daemon.launch(&scene.lab.balancer).unwrap_err());
    assert!(refused.contains("maxFlows") && refused.contains("vestibule detach"), "{refused}");
    open.assert_alive();
}

#[test]
fn detach_removes_everything() {
    tests::skip_without_root!();
    let mut scene =
        Scene::with(&Options { servers: false, ..Options::default() }, &Config::lab_on(ECHO_PORT));
    scene.daemon.end(Signal::SIGTERM).unwrap();
    assert!(scene.daemon.pins().exists());
    // Of a release that has more maps.
    let pin = |map: &str| scene.daemon.pins().join(map);
    std::fs::hard_link(pin("LABELS"), pin("LATER")).unwrap();
    scene.daemon.cli_text(&["detach"]).unwrap();
    assert!(!scene.daemon.pins().exists(), "pins are left");
    // The VIP is no longer answered once the kernel has released the last link.
    let to = scene.lab.vip(Family::V4, TLS_PORT);
    let patience = Duration::from_millis(300);
    let answers = || scene.lab.client.run(|| std::net::TcpStream::connect_timeout(&to, patience)).is_ok();
    assert!(eventually(Duration::from_secs(2), || !answers()), "the VIP is still answered");
}

/// Another folder of pins would not be the one that is to be removed.
#[test]
fn detach_is_refused_while_the_daemon_runs_and_names_the_remedy() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let mut open = Open::by_name(&scene, Family::V4, &server_name(0));
    let refused = scene.daemon.cli(&["detach"]).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("end it first"), "{refused:?}");
    assert!(said.contains("Node maintenance") && !said.contains("--pins"), "{said}");
    open.assert_alive();
}

/// What an operator does on a node that has no binary any more.
#[test]
fn removing_the_pin_folder_by_hand_does_what_detach_does() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    assert!(Open::by_name(&scene, Family::V4, &server_name(0)).backend.starts_with("tenant-a/"));
    scene.daemon.end(Signal::SIGTERM).unwrap();
    std::fs::remove_dir_all(scene.daemon.pins()).unwrap();
    let to = scene.lab.vip(Family::V4, TLS_PORT);
    let patience = Duration::from_millis(300);
    let answers = || scene.lab.client.run(|| std::net::TcpStream::connect_timeout(&to, patience)).is_ok();
    assert!(eventually(Duration::from_secs(2), || !answers()), "the VIP is still answered");
    // The next start makes maps, of the sizes of now.
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_flows = Some(8192);
    scene.daemon.write_config(&config.json()).unwrap();
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert!(Open::by_name(&scene, Family::V4, &server_name(0)).backend.starts_with("tenant-a/"));
}

/// An entry whose record was deleted by hand would hold its source port for ever.
#[test]
fn a_source_port_without_a_connection_is_freed_and_that_of_a_connection_is_not() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut opens = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(1)));
    let nats = scene.daemon.pins().join(name::NATS);
    let held = || pinned_entries::<BackendTuple, Reply>(&nats).unwrap();
    let before: BTreeMap<_, _> = held().into_iter().collect();
    assert_eq!(before.len(), FAMILIES.len());
    for (nat, reply) in &before {
        let nat = BackendTuple { source_port: Port::new(nat.source_port.number() ^ 1), ..*nat };
        insert_pinned(&nats, nat, Reply { generation: reply.generation + 1_000, ..*reply }).unwrap();
    }
    assert_eq!(held().len(), 2 * FAMILIES.len());
    // The daemon looks for them when it starts, and removes those that it finds again.
    scene.daemon.end(Signal::SIGKILL).unwrap();
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    let freed = || held().into_iter().collect::<BTreeMap<_, _>>() == before;
    assert!(eventually(Duration::from_secs(40), freed), "{:?}", held());
    opens.iter_mut().for_each(Open::assert_alive);
}

/// As after a rollback to a release that does not know the list, whose programs take nothing off.
#[test]
fn what_is_listed_without_a_flow_is_removed_and_what_has_one_is_not() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut opens = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(1)));
    let list = scene.daemon.pins().join(name::DNAT_FLOWS);
    let listed =
        || pinned_entries::<ClientTuple, DnatFlow>(&list).unwrap().into_iter().collect::<BTreeMap<_, _>>();
    assert_eq!(listed(), BTreeMap::new(), "their backends do not see them");
    let mut with_flow = BTreeMap::new();
    for (client, flow) in pinned_entries::<ClientTuple, Flow>(&scene.daemon.pins().join(name::FLOWS)).unwrap()
    {
        let entry = DnatFlow::of(&flow.connection);
        let gone = ClientTuple { client_port: Port::new(client.client_port.number() ^ 1), ..client };
        insert_pinned(&list, gone, entry).unwrap();
        // The entry of an earlier flow of the second client.
        let is_own = with_flow.is_empty();
        let generation = entry.generation + if is_own { 0 } else { 1_000 };
        insert_pinned(&list, client, DnatFlow { generation, ..entry }).unwrap();
        with_flow.extend(is_own.then_some((client, entry)));
    }
    assert_eq!(listed().len(), 2 * FAMILIES.len());
    // The daemon looks for them when it starts, and removes those that it finds again.
    scene.daemon.end(Signal::SIGKILL).unwrap();
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert!(eventually(Duration::from_secs(40), || listed() == with_flow), "{:?}", listed());
    opens.iter_mut().for_each(Open::assert_alive);
}

/// Connections that a daemon left when it died are ended at the next start. What began later may belong to a change that
/// came after this start's look at the configuration: it is not judged by that.
#[test]
fn a_start_ends_no_connection_that_is_newer_than_it() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut opens = [server_name(0), server_name(1)].map(|name| Open::by_name(&scene, Family::V4, &name));
    let flows = scene.daemon.pins().join(name::FLOWS);
    let found = || pinned_entries::<ClientTuple, Flow>(&flows).unwrap();
    let [(client, flow), (_, other)] = found()[..] else { panic!("{:?}", found()) };
    // With a backend of another route, on a port of its own.
    let mut lost = flow;
    lost.connection.backend = other.connection.backend;
    lost.nat.source_port = Port::new(flow.nat.source_port.number() ^ 1);
    let generation = flow.connection.generation.max(other.connection.generation);
    let [old, new] = [1u16, 2].map(|port| ClientTuple { client_port: Port::new(port), ..client });
    scene.daemon.end(Signal::SIGKILL).unwrap();
    for (tuple, generation) in [(old, generation), (new, generation + 1_000)] {
        lost.set_generation(generation);
        insert_pinned(&flows, tuple, lost).unwrap();
    }
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    let state =
        |tuple| found().into_iter().find(|(key, _)| *key == tuple).map(|(_, flow)| flow.connection.state);
    assert!(eventually(Duration::from_secs(5), || state(old) == Some(FLOW_RESET)), "{:?}", state(old));
    assert_eq!(state(new), Some(FLOW_ESTABLISHED));
    opens.iter_mut().for_each(Open::assert_alive);
}
