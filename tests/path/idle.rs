//! Connections on which nobody says anything for hours: their ends are asked whether they still have them.

use std::net::TcpListener;
use std::time::Duration;

use common::maps::flow::{FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ESTABLISHED, Flow};
use common::maps::name;
use tests::addresses::{FAMILIES, TLS_PORT};
use tests::net::Namespace;
use tests::pinned::insert_pinned;
use tests::raw::{End, end_of};
use tests::server::reset;
use tests::walker::has_clocks;
use userspace::dataplane::keepalive::SILENT_SECS;

use crate::held::{MUTE_PORT, Pair, SOON, TRIED, mute, walker};
use crate::scene::{Scene, eventually};

/// A time that tests do not take.
const LONG: u32 = 60;
/// Kernel and daemon forget a connection within this time after its end.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// The end of a connection that does not take part any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// Two connections of each family, with the end that will be gone.
fn pairs(scene: &Scene, listeners: &[TcpListener; 2]) -> Vec<(Side, Pair)> {
    let each = FAMILIES.into_iter().zip(listeners);
    each.flat_map(|(family, listener)| {
        [Side::Client, Side::Server].map(|side| (side, Pair::open(scene, family, listener)))
    })
    .collect()
}

/// Makes a host lose what matches this, of what reaches it (`input`) or of what it sends (`output`).
fn lose(host: &Namespace, hook: &str, what: &str) {
    let chain = format!("chain {hook} {{\ntype filter hook {hook} priority filter\n{what} drop\n}}");
    host.nft(&format!("table inet silenced {{\n{chain}\n}}\n")).unwrap();
}

#[test]
fn a_silent_connection_whose_ends_answer_goes_on() {
    tests::skip_without_root!();
    if !has_clocks() {
        return;
    }
    let (scene, listeners) = mute();
    let mut pairs = pairs(&scene, &listeners);
    let mut walker = walker(&scene);
    // So that the time of an answer differs from that of what was sent before.
    for (_, pair) in &pairs {
        let flow = pair.flow(&scene);
        let aged = Flow { seen_secs: flow.seen_secs.saturating_sub(LONG), ..flow };
        insert_pinned(&scene.daemon.pins().join(name::FLOWS), pair.tuple, aged).unwrap();
    }
    let seen: Vec<u32> = pairs.iter().map(|(_, pair)| pair.flow(&scene).seen_secs).collect();
    let count = |reason| scene.daemon.reasons().unwrap().get(reason).copied();
    assert_eq!([walker.walk(0), walker.walk(SILENT_SECS - 2 * LONG)], [0, 0]);
    assert_eq!(count("ExpireProbe"), None, "too early");
    assert_eq!(walker.walk(SILENT_SECS - LONG), 0);
    assert_eq!(count("ExpireProbe"), Some(4), "one question each");
    for ((_, pair), seen) in pairs.iter_mut().zip(seen) {
        let has_answered = |flow: &Flow| {
            let trial = flow.connection.flags & (FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL);
            flow.connection.state == FLOW_ESTABLISHED && trial == 0 && flow.seen_secs > seen
        };
        // The end that answered last is asked again: the daemon's next walk finds it on trial.
        assert!(eventually(TRIED, || has_answered(&pair.flow(&scene))), "{:#?}", pair.flow(&scene));
        pair.progress(&scene);
    }
    let asked = count("ExpireProbe");
    assert_eq!([walker.walk(0), walker.walk(SILENT_SECS - LONG)], [0, 0]);
    assert_eq!(count("ExpireProbe"), asked, "they answered not so long ago");
    assert_eq!(["ExpireTrial", "ExpireIdle", "ExpireHeld"].map(count), [None; 3]);
}

/// It was reset, and the RST was lost.
#[test]
fn a_connection_that_is_over_at_one_end_is_reset_at_the_other() {
    tests::skip_without_root!();
    if !has_clocks() {
        return;
    }
    let (scene, listeners) = mute();
    let (client, tenant) = (&scene.lab.client, &scene.lab.tenants[1].namespace);
    let pairs = pairs(&scene, &listeners);
    for (host, what) in
        [(client, format!("tcp dport {TLS_PORT}")), (tenant, format!("tcp sport {MUTE_PORT}"))]
    {
        lose(host, "output", &format!("{what} tcp flags & rst == rst"));
    }
    let mut left: Vec<_> = pairs
        .into_iter()
        .map(|(side, Pair { client, server, tuple })| {
            let (gone, left) = if side == Side::Client { (client, server) } else { (server, client) };
            reset(&gone).unwrap();
            drop(gone);
            (side, tuple, left)
        })
        .collect();
    for host in [client, tenant] {
        host.nft("flush ruleset\n").unwrap();
    }
    let mut walker = walker(&scene);
    let ((), moved) = scene.counted_until(
        || assert_eq!([walker.walk(0), walker.walk(SILENT_SECS + 1)], [0, 0]),
        |moved| moved.get("ForwardReset") == Some(&4),
    );
    assert_eq!([moved.get("ExpireProbe"), moved.get("ForwardReset")], [Some(&4); 2], "{moved:?}");
    for (side, tuple, left) in &mut left {
        assert_eq!(end_of(left, SOON).unwrap(), End::Reset, "{side:?} of {tuple:?} is gone");
    }
    scene.assert_empty_within(FORGOTTEN);
}

/// One that is switched off, or that a stranger's RST ended and whose answers are lost.
#[test]
fn a_connection_whose_end_is_silent_is_reset_after_three_questions() {
    tests::skip_without_root!();
    if !has_clocks() {
        return;
    }
    let (scene, listeners) = mute();
    let (client, tenant) = (&scene.lab.client, &scene.lab.tenants[1].namespace);
    let mut pairs = pairs(&scene, &listeners);
    for (side, pair) in &pairs {
        // What is left of it says nothing, not even that it ends.
        let (host, port) = match side {
            Side::Client => (client, pair.client.local_addr().unwrap().port()),
            Side::Server => (tenant, pair.server.peer_addr().unwrap().port()),
        };
        lose(host, "input", &format!("tcp {} {port}", if *side == Side::Client { "dport" } else { "sport" }));
    }
    let mut walker = walker(&scene);
    assert_eq!([walker.walk(0), walker.walk(SILENT_SECS + 1)], [0, 0]);
    // The daemon's next walk finds them on trial, and goes on.
    let are_ended = eventually(TRIED, || scene.daemon.reasons().unwrap().get("ExpireTrial") == Some(&4));
    assert!(are_ended, "{:?}", scene.daemon.reasons());
    for (side, pair) in &mut pairs {
        let left = if *side == Side::Client { &mut pair.server } else { &mut pair.client };
        assert_eq!(end_of(left, SOON).unwrap(), End::Reset, "{side:?} is silent");
    }
    scene.assert_empty_within(FORGOTTEN);
    let reasons = scene.daemon.reasons().unwrap();
    assert_eq!(["ExpireIdle", "ExpireHeld", "ForwardReset"].map(|reason| reasons.get(reason)), [None; 3]);
    // One by the walk ahead, and three by the daemon, which knows nothing of that one.
    assert!(reasons.get("ExpireProbe").is_some_and(|probes| *probes >= 4 * 4), "{reasons:?}");
}
