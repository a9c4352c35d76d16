//! `vestibule doctor` next to other programs on the same devices, as root on the host: their names and their order.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::addresses::{FAMILIES, TLS_PORT, server_name};
use tests::config::Config;
use tests::offload;
use tests::pinned::pinned_program;
use tests::topology::CLIENT_DEVICE;

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene};

/// Returns whether the node is healthy, and all findings.
fn findings(scene: &Scene) -> (bool, Vec<Value>) {
    let mut doctor = scene.daemon.command(&scene.lab.balancer).unwrap();
    let output = doctor.args(["doctor", "-o", "json"]).output().unwrap();
    (output.status.success(), tests::report::objects(&String::from_utf8_lossy(&output.stdout)).unwrap())
}

fn found<'a>(findings: &'a [Value], what: &str) -> &'a Value {
    findings.iter().find(|one| one["what"] == what).unwrap_or_else(|| panic!("no {what} in {findings:#?}"))
}

#[test]
fn a_node_that_serves_is_well_and_its_mtu_and_sums_are_told() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let (is_well, all) = findings(&scene);
    assert!(is_well, "{all:#?}");
    for what in ["kernel", "BTF", "tcx", "bpffs", "MTU", "maps", "writer", "checksums on client"] {
        assert_eq!(found(&all, what)["verdict"], "ok", "{what}");
    }
    // A smaller MTU on one route, and forwarding off, with which no connection works.
    scene.lab.balancer.ip("link set tenant-a mtu 1400\n").unwrap();
    scene.lab.balancer.sysctl("net/ipv4/conf/client/forwarding", "0").unwrap();
    scene.daemon.cli_text(&["drain", "--deadline", "0s"]).unwrap();
    let (is_well, all) = findings(&scene);
    assert!(!is_well);
    assert_eq!(found(&all, "forwarding on client")["verdict"], "bad");
    let mtu = found(&all, "MTU");
    assert_eq!(mtu["verdict"], "note");
    assert!(mtu["found"].as_str().unwrap().starts_with("1400 on tenant-a, 1500 on "), "{mtu}");
    assert_eq!(found(&all, "draining")["verdict"], "note");
}

#[test]
fn programs_of_others_are_named_in_their_order() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let node = &scene.lab.balancer;
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    // Another TCX program that was attached later and runs before ours: a second instance's, with its own pins.
    let other = scene.lab.vestibule(&Config::lab_on(ECHO_PORT)).unwrap();
    let id = pinned_program(&other.pins().join("programs/ingress")).unwrap();
    // And one attached by classic traffic control, which runs after ours.
    run(node.command("tc").args(["qdisc", "add", "dev", CLIENT_DEVICE, "clsact"]));
    let mut filter = node.command("tc");
    filter.args(["filter", "add", "dev", CLIENT_DEVICE, "ingress", "bpf", "direct-action", "object-pinned"]);
    run(filter.arg(other.pins().join("programs/ingress")));
    let (_, all) = findings(&scene);
    let order = found(&all, "client tcx/ingress");
    let text = order["found"].as_str().unwrap();
    assert_eq!(order["verdict"], "note", "{text}");
    assert!(text.starts_with(&format!("#{id} ingress, then #")) && text.ends_with("(ours)"), "{text}");
    let behind = found(&all, "client tc/ingress");
    assert!(behind["found"].as_str().unwrap().starts_with(&format!("#{id} ")), "{behind}");
    drop(other);
    let (_, all) = findings(&scene);
    assert_eq!(found(&all, "client tcx/ingress")["verdict"], "ok");
}

/// The kernel chains segments of a connection that has no socket on the node, and a program sees only the first one's headers.
#[test]
fn a_device_that_chains_segments_is_bad() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for on in [true, false] {
        offload::set_feature(&scene.lab.balancer, CLIENT_DEVICE, "rx-gro-list", on).unwrap();
        let (is_well, all) = findings(&scene);
        assert_eq!(is_well, !on, "{all:#?}");
        let told = all.iter().find(|one| one["what"] == "rx-gro-list on client");
        assert_eq!(told.map(|one| &one["verdict"]), on.then(|| "bad".into()).as_ref(), "{told:?}");
    }
}

/// A kernel with PREEMPT_RT handles two packets on one CPU at once: the second is dropped, and an operator has to know.
#[test]
fn packets_that_met_another_on_their_cpu_are_told() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let (_, all) = findings(&scene);
    assert!(all.iter().all(|one| one["what"] != "packets at once"), "{all:#?}");
    let pins = scene.daemon.pins().to_owned();
    tests::busy::set_pinned_busy(&pins, true).unwrap();
    let vip = scene.lab.vip(FAMILIES[0], TLS_PORT);
    let refused = scene.lab.client.run(|| TcpStream::connect_timeout(&vip, Duration::from_millis(300)));
    tests::busy::set_pinned_busy(&pins, false).unwrap();
    assert!(refused.is_err(), "no packet passes meanwhile");
    let (is_well, all) = findings(&scene);
    assert!(is_well, "{all:#?}");
    let met = found(&all, "packets at once");
    assert!(met["found"].as_str().unwrap().ends_with("were dropped") && met["verdict"] == "note", "{met}");
}

/// What the programs send goes past netfilter's hooks for forwarded packets, and an operator who has rules there has to
/// know that.
#[test]
fn rules_that_do_not_see_our_packets_are_reported() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let (_, all) = findings(&scene);
    assert_eq!(found(&all, "netfilter")["verdict"], "ok");
    assert_eq!(found(&all, "masquerading")["verdict"], "ok");
    let rules = "table inet firewall { \
        chain forwarded { type filter hook forward priority 0; policy drop; tcp dport 7000 drop; }; \
        chain own { type filter hook input priority 0; policy accept; udp dport 9 drop; }; \
        chain masked { type nat hook postrouting priority 100; masquerade; }; }";
    let output = scene.lab.balancer.command("nft").arg(rules).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for family in FAMILIES {
        Open::by_name(&scene, family, &server_name(0)).assert_alive();
    }
    let (is_well, all) = findings(&scene);
    assert!(is_well, "{all:#?}");
    assert_eq!(found(&all, "masquerading")["verdict"], "warning", "to any port of the node's addresses");
    let forward = found(&all, "netfilter forward");
    assert_eq!(
        (&forward["verdict"], &forward["found"]),
        (&"note".into(), &"inet firewall forwarded: 1 rules, policy drop".into())
    );
    assert_eq!(found(&all, "netfilter postrouting")["found"], "inet firewall masked: 1 rules");
    assert!(all.iter().all(|one| one["what"] != "netfilter" && one["what"] != "netfilter input"), "{all:#?}");
    // A host without `nft` is not called well.
    let mut doctor = scene.daemon.command(&scene.lab.balancer).unwrap();
    let output = doctor.args(["doctor", "-o", "json"]).env("PATH", "/nowhere").output().unwrap();
    let all = tests::report::objects(&String::from_utf8_lossy(&output.stdout)).unwrap();
    let unread = found(&all, "netfilter");
    assert!(
        unread["verdict"] == "note" && unread["found"].as_str().unwrap().starts_with("not checked"),
        "{unread}"
    );
}
