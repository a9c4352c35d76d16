//! Nodes on one segment, which settle among themselves who announces an address.

/// The segment.
mod scene;
/// A Service whose pods are on some of the nodes.
mod local;
/// Connections that are open while their address moves.
mod uploads;
/// Nodes, agents and links that fail, with all that passes the ports of the segment captured.
mod trials;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::skip_without_root;

use scene::{Segment, VIPS, serve};

/// Long enough for an answer on a busy machine.
const ANSWER: Duration = Duration::from_millis(200);

/// Asks for both VIPs until the time is over. Returns who answered each question; nobody ever answers together with another.
fn answers(segment: &Segment, time: Duration) -> Vec<(usize, BTreeSet<[u8; 6]>)> {
    let begun = Instant::now();
    let mut all = Vec::new();
    while begun.elapsed() < time {
        for (number, vip) in VIPS.iter().enumerate() {
            let links = segment.ask(vip, ANSWER);
            assert!(links.len() <= 1, "{vip} is answered by {links:x?}\n{}", segment.logs());
            all.push((number, links));
        }
    }
    all
}

/// Returns the nodes that own the VIPs.
fn owners(segment: &Segment) -> [usize; 2] {
    VIPS.map(|vip| segment.owner(vip))
}

/// Whether each VIP is announced by one node, which answers for it and serves it.
fn is_settled(segment: &Segment) -> bool {
    segment.forget();
    VIPS.iter().all(|vip| {
        let owners = segment.owners(vip);
        let [owner] = owners[..] else { return false };
        let answered = segment.ask(vip, ANSWER);
        answered == [segment.nodes[owner].link].into() && segment.dial(vip).is_ok()
    })
}

/// A column of a line of `vestibule vips`, counted from 0. Columns are two spaces apart at least.
fn cell(line: &str, number: usize) -> &str {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).nth(number).unwrap_or_default()
}

/// Columns of `vestibule vips`.
const OWNER: usize = 2;
const SINCE: usize = 3;
const WHY: usize = 4;
const CLAIMS: usize = 5;
const GATE: usize = 6;
const EPOCH: usize = 8;

/// The cells of a VIP's line of `vestibule vips` on a node.
fn cells<const N: usize>(segment: &Segment, node: usize, vip: &str, columns: [usize; N]) -> [String; N] {
    let shown = segment.shown(node);
    let line = shown.lines().find(|line| line.contains(vip)).unwrap_or_default();
    columns.map(|column| cell(line, column).to_owned())
}

#[test]
fn one_of_three_nodes_answers_for_an_address_and_a_killed_agent_that_returns_moves_nothing() {
    skip_without_root!();
    // Time enough to start an agent on a busy machine.
    let mut segment = Segment::with_grace(3, 6);
    let before = owners(&segment);
    assert!(is_settled(&segment), "{}", segment.logs());
    // The other nodes are silent, also with the addresses where kube-proxy and others put them on every node: their kernels would answer.
    let are_silent = |segment: &Segment| {
        let mut answers = answers(segment, Duration::from_secs(1)).into_iter();
        answers.all(|(number, links)| links == [segment.nodes[before[number]].link].into())
    };
    assert!(are_silent(&segment), "{}", segment.logs());
    let [v4, v6] = VIPS;
    for node in &segment.nodes {
        let add = format!(
            "addr add {v4}/32 dev lo\nlink add kube-ipvs0 type bridge\nlink set kube-ipvs0 up\naddr add {v4}/32 dev kube-ipvs0\n"
        );
        node.namespace.ip(&add).unwrap();
        node.namespace
            .ip(&format!("addr add {v6}/128 dev lo nodad\naddr add {v6}/128 dev kube-ipvs0 nodad\n"))
            .unwrap();
    }
    assert!(are_silent(&segment), "{}", segment.logs());
    for (number, _) in segment.nodes.iter().enumerate() {
        let shown = segment.shown(number);
        let line = shown.lines().find(|line| line.contains(VIPS[0])).unwrap();
        let epoch = cell(line, EPOCH);
        let owner = &format!("node{}", before[0]);
        match number == before[0] {
            true => {
                assert!(line.contains("this node") && epoch.parse::<u64>().is_ok(), "{shown}");
                assert_eq!((cell(line, WHY), cell(line, GATE)), ("free", "open"), "{shown}");
                assert_eq!(cell(line, CLAIMS), format!("{owner} {epoch}"), "{shown}");
            }
            false => assert!(cell(line, OWNER) == format!("elsewhere ({owner})") && epoch == "-", "{shown}"),
        }
        let alive = shown.lines().filter(|line| line.starts_with("node") && line.ends_with("  alive"));
        assert_eq!(alive.count(), 2, "the other candidates\n{shown}");
    }
    let shown = cells(&segment, before[0], VIPS[0], KEPT);
    assert!(shown[1].starts_with("20") && shown[1].ends_with('Z'), "{shown:?}");
    segment.crash(before[0]);
    // Its kernel answers on, and its maps say since when.
    assert_eq!(segment.ask(VIPS[0], ANSWER), [segment.nodes[before[0]].link].into());
    assert_eq!(cells(&segment, before[0], VIPS[0], KEPT), shown);
    segment.start(before[0]);
    let links = before.map(|owner| segment.nodes[owner].link);
    for (number, answered) in answers(&segment, Duration::from_secs(8)) {
        assert_eq!(answered, [links[number]].into(), "{}\n{}", VIPS[number], segment.logs());
    }
    // Not even for a moment: the epochs are the same.
    assert_eq!((owners(&segment), cells(&segment, before[0], VIPS[0], KEPT)), (before, shown));
}

/// What the node that announces an address shows of it, also after its agent has started again.
const KEPT: [usize; 4] = [OWNER, SINCE, WHY, EPOCH];

/// The next one may need long for its first order.
#[test]
fn an_agent_that_gave_the_maps_away_keeps_its_addresses_until_the_next_one_has_taken_them() {
    skip_without_root!();
    let mut segment = Segment::new(2);
    let before = owners(&segment);
    let shown = cells(&segment, before[0], VIPS[0], KEPT);
    let links = before.map(|owner| segment.nodes[owner].link);
    let given = segment.given(before[0]);
    assert!(!segment.is_writer(before[0]));
    // Longer than the grace.
    for (number, answered) in answers(&segment, Duration::from_secs(4)) {
        assert_eq!(answered, [links[number]].into(), "{}\n{}", VIPS[number], segment.logs());
    }
    drop(given);
    segment.until("it takes them back", |segment| segment.is_writer(before[0]));
    segment.replace(before[0]);
    for (number, answered) in answers(&segment, Duration::from_secs(4)) {
        assert_eq!(answered, [links[number]].into(), "{}\n{}", VIPS[number], segment.logs());
    }
    assert_eq!((owners(&segment), cells(&segment, before[0], VIPS[0], KEPT)), (before, shown));
}

#[test]
fn an_address_moves_from_a_node_whose_agent_is_dead_for_longer_than_its_grace() {
    skip_without_root!();
    let mut segment = Segment::new(2);
    let before = owners(&segment);
    segment.crash(before[0]);
    let other = 1 - before[0];
    segment.until("the other node announces it", |segment| segment.owners(VIPS[0]).contains(&other));
    // The map of the dead agent's node still says that it answers; its gate does not let it.
    for _ in 0..5 {
        assert_eq!(segment.ask(VIPS[0], ANSWER), [segment.nodes[other].link].into(), "{}", segment.logs());
    }
    // Its agent dies, too. Nobody asks now whether the first node is there: its gate stays closed all the same.
    segment.crash(other);
    for (number, answered) in answers(&segment, Duration::from_secs(3)) {
        assert!(
            number == 1 || answered == [segment.nodes[other].link].into(),
            "{answered:x?}\n{}",
            segment.logs()
        );
    }
    segment.start(other);
    segment.start(before[0]);
    segment.until("the returned agent has learned who announces it, and that one answers", |segment| {
        let answered = segment.ask(VIPS[0], ANSWER);
        assert!(answered.is_subset(&[segment.nodes[other].link].into()), "{answered:x?}");
        segment.owners(VIPS[0]) == [other] && !answered.is_empty()
    });
    for (number, answered) in answers(&segment, Duration::from_secs(2)) {
        assert!(number == 1 || answered == [segment.nodes[other].link].into(), "{}", segment.logs());
    }
}

#[test]
fn all_agents_dead_stop_no_address() {
    skip_without_root!();
    let mut segment = Segment::new(2);
    let links = owners(&segment).map(|owner| segment.nodes[owner].link);
    segment.crash_all();
    // Longer than the grace: with nobody there to take over, the gates stay open.
    std::thread::sleep(Duration::from_secs(4));
    for (number, answered) in answers(&segment, Duration::from_secs(1)) {
        assert_eq!(answered, [links[number]].into(), "{}", VIPS[number]);
    }
}

#[test]
fn another_node_answers_when_one_is_off_and_without_the_api_server() {
    skip_without_root!();
    let mut segment = Segment::new(3);
    (0..3).for_each(|number| segment.disconnect(number));
    let off = segment.owner(VIPS[0]);
    segment.link(off, "down");
    segment.until("another node announces it", |segment| {
        VIPS.iter().all(|vip| segment.owners(vip).iter().any(|owner| *owner != off))
    });
    for (number, answered) in answers(&segment, Duration::from_secs(1)) {
        assert!(answered.len() == 1 && !answered.contains(&segment.nodes[off].link), "{}", VIPS[number]);
    }
    let new = segment.owners(VIPS[0]).into_iter().find(|owner| *owner != off).unwrap();
    assert_eq!(cells(&segment, new, VIPS[0], [WHY]), ["owner silent"], "{}", segment.shown(new));
    let shown = segment.shown(new);
    let is_named = |line: &str| line.starts_with(&format!("node{off} ")) && line.contains("silent for");
    assert!(shown.lines().any(is_named), "{shown}");
    segment.forget();
    assert!(VIPS.iter().all(|vip| segment.dial(vip).is_ok()), "{}", segment.logs());
    // It comes back with what it held. One of both gives up: it, unless its agent is late just then, which others take for a stopped one.
    segment.link(off, "up");
    segment.until("each address has one owner", |segment| {
        VIPS.iter().all(|vip| segment.owners(vip).len() == 1) && is_settled(segment)
    });
    assert!(is_settled(&segment), "{}", segment.logs());
}

#[test]
fn a_stopped_agent_that_goes_on_takes_nothing_back() {
    skip_without_root!();
    let segment = Segment::new(2);
    let before = segment.owner(VIPS[0]);
    let other = 1 - before;
    segment.signal(before, Signal::SIGSTOP);
    segment.until("the other node announces it", |segment| segment.owners(VIPS[0]).contains(&other));
    segment.signal(before, Signal::SIGCONT);
    segment.until("it has learned who announces it", |segment| segment.owners(VIPS[0]) == [other]);
    for (number, answered) in answers(&segment, Duration::from_secs(2)) {
        assert!(number == 1 || answered == [segment.nodes[other].link].into(), "{}", segment.logs());
    }
    // Shorter than its grace, nothing moves.
    let owners = owners(&segment);
    segment.signal(other, Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(1));
    segment.signal(other, Signal::SIGCONT);
    answers(&segment, Duration::from_secs(2));
    assert_eq!(owners, self::owners(&segment));
}

/// Sends bytes on a connection, and reads them back.
fn is_echoed(connection: &mut TcpStream) -> bool {
    let mut echoed = [0; 4];
    connection.write_all(b"ping").is_ok() && connection.read_exact(&mut echoed).is_ok() && echoed == *b"ping"
}

/// By the hash of its name, the node that joins comes first for the second VIP.
#[test]
fn a_node_that_joins_gets_its_share_once_it_has_been_there_for_long_enough() {
    skip_without_root!();
    const AFTER: Duration = Duration::from_secs(4);
    let mut segment = Segment::of_first(2, "4s");
    assert_eq!(owners(&segment), [0, 0]);
    let mut connection = segment.dial(VIPS[0]).unwrap();
    connection.read_exact(&mut [0; 8]).unwrap();
    assert!(is_echoed(&mut connection));
    segment.reconnect(1);
    let joined = Instant::now();
    segment.start(1);
    segment.members(2);
    let links = [segment.nodes[0].link, segment.nodes[1].link];
    while joined.elapsed() < AFTER {
        let owners = owners(&segment);
        assert!(owners == [0, 0] || joined.elapsed() >= AFTER, "before the delay");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A question that comes between the two owners is not answered, and none is answered by both. The new one announces the address some
    // 50 ms after the other one has closed it: to wait for longer would take that for a second answer.
    segment.until("the second VIP has moved", |segment| {
        for vip in VIPS {
            let is_of_both = || segment.ask(vip, Duration::from_millis(15)).len() > 1;
            assert!(!(is_of_both() && is_of_both()), "{vip} is answered by both\n{}", segment.logs());
        }
        segment.owners(VIPS[1]) == [1]
    });
    for (number, answered) in answers(&segment, Duration::from_secs(3)) {
        assert_eq!(answered, [links[number]].into(), "{}\n{}", VIPS[number], segment.logs());
    }
    assert!(is_settled(&segment) && is_echoed(&mut connection), "{}", segment.logs());
    // The other one has not moved for a moment.
    assert_eq!(cells(&segment, 0, VIPS[0], [EPOCH]), ["1"], "{}", segment.shown(0));
    assert_eq!(
        cells(&segment, 1, VIPS[1], [WHY, CLAIMS]),
        ["handed over", "node1 2"],
        "{}",
        segment.shown(1)
    );
    assert_eq!(cells(&segment, 0, VIPS[1], [OWNER, WHY])[0], "elsewhere (node1)", "{}", segment.shown(0));
}

#[test]
fn a_foreign_host_with_an_address_is_named_on_the_service_until_it_is_silent() {
    skip_without_root!();
    const TAKEN: [&str; 2] = ["192.0.2.5", "2001:db8::5"];
    let segment = Segment::new(2);
    segment.host.ip(&format!("addr add {}/32 dev uplink\n", TAKEN[0])).unwrap();
    let link = segment.host.mac("uplink").unwrap().map(|byte| format!("{byte:02x}")).join(":");
    serve(segment.kubectl(), "taken", TAKEN);
    let events = || segment.kubectl().run(&["-n", "tenant", "get", "events", "-o", "json"]).unwrap();
    let conflict = || {
        let events: Value = serde_json::from_str(&events()).unwrap();
        let is_it = |event: &&Value| event["reason"] == "AddressConflict";
        events["items"].as_array().unwrap().iter().find(is_it).cloned()
    };
    segment.until("the Event names it", |_| conflict().is_some());
    let event = conflict().unwrap();
    let note = event["note"].as_str().or(event["message"].as_str()).unwrap();
    for named in [link.as_str(), TAKEN[0], "device uplink", "on node", "out of the pool"] {
        assert!(note.contains(named), "{named} is missing: {note}");
    }
    let about = event.get("involvedObject").or(event.get("regarding")).unwrap();
    assert_eq!((&about["kind"], &about["name"]), (&json!("Service"), &json!("taken")));
    assert!(segment.owners(TAKEN[0]).is_empty(), "nobody answers for it beside that host");
    let foreign = "nobody: the host ".to_owned() + &link + " has it";
    assert_eq!(cells(&segment, 0, TAKEN[0], [OWNER]), [foreign], "{}", segment.shown(0));
    let states = || segment.kubectl().run(&["get", "nodestates", "-o", "yaml"]).unwrap();
    assert!(states().contains("conflicts:"), "{}", states());
    // It has it no more.
    segment.host.ip(&format!("addr del {}/32 dev uplink\n", TAKEN[0])).unwrap();
    segment.until("a node announces it", |segment| segment.owners(TAKEN[0]).len() == 1);
    segment.until("nobody names it any more", |_| !states().contains("conflicts:"));
    let count = event["series"]["count"].clone();
    assert_eq!(conflict().unwrap()["series"]["count"], count, "it is not written again");
    segment.forget();
    assert!(segment.dial(TAKEN[0]).is_ok(), "{}", segment.logs());
}

#[test]
fn a_node_that_is_cut_off_withdraws_what_another_may_announce() {
    skip_without_root!();
    let segment = Segment::of_two_that_withdraw();
    let off = segment.owner(VIPS[0]);
    let other = 1 - off;
    segment.link(off, "down");
    segment.until("the other node announces both, and the one that is cut off none", |segment| {
        VIPS.iter().all(|vip| segment.owners(vip) == [other])
    });
    // Nothing is left to be settled when it is back.
    segment.link(off, "up");
    for (number, answered) in answers(&segment, Duration::from_secs(3)) {
        assert_eq!(answered, [segment.nodes[other].link].into(), "{}\n{}", VIPS[number], segment.logs());
    }
    assert_eq!(owners(&segment), [other; 2]);
}

#[test]
fn of_two_devices_of_a_node_on_one_segment_the_first_announces_and_the_other_one_when_that_fails() {
    skip_without_root!();
    let segment = Segment::of_two_devices();
    let (first, second) = (segment.nodes[0].link, segment.nodes[0].namespace.mac("second").unwrap());
    for (number, answered) in answers(&segment, Duration::from_secs(3)) {
        assert_eq!(answered, [first].into(), "{}\n{}", VIPS[number], segment.logs());
    }
    segment.until("it is named", |segment| segment.logs().contains("another device of this node announces"));
    segment.link(0, "down");
    segment.until("the other device announces", |segment| {
        VIPS.iter().all(|vip| segment.ask(vip, ANSWER) == [second].into())
    });
}
