/// A capture of all ports.
mod record;
/// What trials are made of.
mod ground;

use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::skip_without_root;

use super::owners;
use super::scene::{Segment, VIPS, serve};
use ground::{
    address, assert_found, assert_turns, assert_yields, far, foreign, forget_all, found, halves, record,
    stops, trials, turn_off, until_known, written,
};
use record::{Events, Record};

/// The agents' grace.
const GRACE: Duration = Duration::from_secs(2);

/// Waits until each VIP is announced by one of the nodes that are not `off`.
fn until_owned(segment: &Segment, off: Option<usize>) -> [usize; 2] {
    let owner = |segment: &Segment, vip| match segment
        .owners(vip)
        .into_iter()
        .filter(|node| Some(*node) != off)
        .collect::<Vec<_>>()[..]
    {
        [owner] => Some(owner),
        _ => None,
    };
    segment
        .until("one node announces each VIP", |segment| VIPS.iter().all(|vip| owner(segment, vip).is_some()));
    VIPS.map(|vip| owner(segment, vip).unwrap())
}

/// Two never answer at once, not even when the node is back: it remembers nothing.
#[test]
fn a_node_that_is_off_is_replaced_and_takes_nothing_back() {
    skip_without_root!();
    trials(50, 3, Segment::new, |segment, trial| {
        let before = owners(segment);
        let off = before[trial % 2];
        let record = record(segment);
        assert_found(segment, before);
        turn_off(segment, off);
        let after = until_owned(segment, Some(off));
        assert_found(segment, after);
        segment.link(off, "up");
        segment.start(off);
        until_known(segment, off, after);
        sleep(Duration::from_secs(1));
        let events = record.end();
        for (number, vip) in VIPS.into_iter().enumerate() {
            assert_turns(segment, &events, vip, &[before[number], after[number]]);
            assert!(before[number] == off || before[number] == after[number], "{vip} had no reason to move");
        }
        assert_eq!(owners(segment), after);
    });
}

/// While the link is cut, each of both answers to those whom it reaches. Once it is whole, both may answer for one heartbeat.
#[test]
fn a_node_whose_link_was_cut_yields_within_a_heartbeat_to_who_replaced_it() {
    skip_without_root!();
    trials(50, 2, Segment::new, |segment, trial| {
        let before = owners(segment);
        let off = before[trial % 2];
        let record = record(segment);
        assert_found(segment, before);
        segment.link(off, "down");
        let meanwhile = until_owned(segment, Some(off));
        assert_found(segment, meanwhile);
        let whole = record.mark();
        segment.link(off, "up");
        let after = until_owned(segment, None);
        until_known(segment, off, after);
        sleep(Duration::from_secs(1));
        let events = record.end();
        for (number, vip) in VIPS.into_iter().enumerate() {
            let owners = [before[number], meanwhile[number]];
            assert_turns(segment, &events.before(whole), vip, &owners);
            if owners[0] == owners[1] {
                assert_turns(segment, &events, vip, &owners);
            } else {
                assert!(owners.contains(&after[number]), "{vip}");
                assert_yields(segment, &events.after(whole), vip, owners, after[number]);
            }
        }
        assert_found(segment, after);
    });
}

/// An address moves only where an answer of the kernel showed a stamp older than the grace, and never are there two that answer.
fn assert_judged(segment: &Segment, record: Record, before: [usize; 2], without: usize) -> Events {
    let after = until_owned(segment, None);
    until_known(segment, without, after);
    assert_found(segment, after);
    sleep(Duration::from_secs(1));
    let events = record.end();
    let age = events.age(segment.nodes[without].link);
    println!("node{without}: its agent's last stamp was {age:?} old");
    for (number, vip) in VIPS.into_iter().enumerate() {
        assert_turns(segment, &events, vip, &[before[number], after[number]]);
        let may_move = before[number] == without && age >= GRACE;
        assert!(may_move || before[number] == after[number], "{vip} moved, though its agent lived");
    }
    events
}

#[test]
fn a_killed_or_stopped_agent_loses_its_addresses_after_its_grace_and_never_answers_beside_another() {
    skip_without_root!();
    trials(10, 2, Segment::new, |segment, trial| {
        let before = owners(segment);
        let killed = before[trial % 2];
        let record_of_killed = record(segment);
        segment.crash(killed);
        segment.start(killed);
        assert_judged(segment, record_of_killed, before, killed);
        for time in stops(trial) {
            let before = owners(segment);
            let stopped = before[trial % 2];
            let record = record(segment);
            segment.signal(stopped, Signal::SIGSTOP);
            sleep(time);
            if time > GRACE {
                let is_taken = |vip: &str| segment.owners(vip).iter().any(|owner| *owner != stopped);
                segment.until("another node announces them", |_| VIPS.iter().all(|vip| is_taken(vip)));
            }
            if time > GRACE {
                // Long enough for two that answer to be seen.
                sleep(Duration::from_millis(500));
            }
            let resumed = record.mark();
            segment.signal(stopped, Signal::SIGCONT);
            let events = assert_judged(segment, record, before, stopped);
            let late = events.before(resumed).claims_at_age(segment.nodes[stopped].link, GRACE);
            assert_eq!(late, 0, "the kernel of node{stopped} answered though its gate had closed");
            let has_moved = owners(segment) != before;
            assert!(has_moved || time <= GRACE, "it was stopped for {time:?}");
        }
    });
}

/// Rules of the bridge that let no heartbeats pass between the first two nodes: from the first to the second, and back.
const BLOCKED: [&str; 2] = ["iifname node0 oifname node1", "iifname node1 oifname node0"];

/// The nodes still receive what hosts ask and answer: a probe is answered, and vetoes. So nobody ever answers beside the owner.
#[test]
fn heartbeats_that_are_blocked_in_one_or_both_directions_move_nothing() {
    skip_without_root!();
    trials(10, 2, Segment::new, |segment, trial| {
        let before = owners(segment);
        let record = record(segment);
        let mut marks = Vec::new();
        for rules in [&BLOCKED[trial % 2..=trial % 2], &BLOCKED[..]] {
            let rules: String = rules.iter().map(|rule| format!("{rule} ether type 0x88b5 drop\n")).collect();
            let table = "table bridge blocked";
            let chain = "chain blocked { type filter hook forward priority 0; policy accept;";
            segment.bridge.nft(&format!("{table} {{ {chain}\n{rules}}}\n}}\n")).unwrap();
            marks.push(record.mark());
            // Longer than the grace, and than bids take after it.
            sleep(Duration::from_secs(5));
            marks.push(record.mark());
            assert_found(segment, before);
            segment.bridge.nft(&format!("delete {table}\n")).unwrap();
        }
        sleep(Duration::from_secs(1));
        let events = record.end();
        let passed = |from: u32, to: u32, sender: usize| {
            let receiver = format!("node{}", 1 - sender);
            events.after(from).before(to).received(&receiver, segment.nodes[sender].link)
        };
        let single = [0, 1].map(|sender| passed(marks[0], marks[1], sender));
        assert!(single[trial % 2] == 0 && single[1 - trial % 2] > 0, "blocked in one direction: {single:?}");
        assert_eq!(
            [0, 1].map(|sender| passed(marks[2], marks[3], sender)),
            [0, 0],
            "blocked in both directions"
        );
        for (vip, owner) in VIPS.into_iter().zip(before) {
            assert_turns(segment, &events, vip, &[owner]);
        }
        assert_eq!(owners(segment), before);
    });
}

/// Each half has one that answers, and never a second one; once they are joined, both may answer for one heartbeat.
#[test]
fn halves_of_a_segment_have_an_owner_each_and_one_of_them_yields_within_a_heartbeat() {
    skip_without_root!();
    trials(10, 3, halves, |segment, _| {
        let far = far(segment);
        let ports = |number: usize| segment.nodes[number].name.clone();
        let all: Vec<String> =
            (0..segment.nodes.len()).map(ports).chain(["host", "far"].map(str::to_owned)).collect();
        let near = ["node0", "host"];
        let other: Vec<&str> = all.iter().map(|port| &**port).filter(|port| !near.contains(port)).collect();
        let before = owners(segment);
        let record = Record::start(&segment.bridge, &all, &[&segment.host, &far], &VIPS.map(address));
        sleep(Duration::from_secs(1));
        let split = record.mark();
        segment.bridge.ip("link set joint0 down\n").unwrap();
        segment.until("a node of each half announces the VIPs", |segment| {
            let owns = |owners: &[usize]| matches!(owners, [0, far] if *far > 0);
            VIPS.iter().all(|vip| owns(&segment.owners(vip)))
        });
        let halves = VIPS.map(|vip| [0, segment.owners(vip)[1]]);
        for (vip, [one, two]) in VIPS.into_iter().zip(halves) {
            for (host, owner) in [(&segment.host, one), (&far, two)] {
                assert_eq!(found(host, vip), [written(segment.nodes[owner].link)].into(), "{vip}");
            }
        }
        let whole = record.mark();
        segment.bridge.ip("link set joint0 up\n").unwrap();
        let after = until_owned(segment, None);
        (0..segment.nodes.len()).for_each(|number| until_known(segment, number, after));
        assert_found(segment, after);
        sleep(Duration::from_secs(1));
        let events = record.end();
        for (number, vip) in VIPS.into_iter().enumerate() {
            assert_turns(segment, &events.before(split), vip, &[before[number]]);
            let apart = events.after(split).before(whole);
            assert_turns(segment, &apart.at(&near), vip, &[halves[number][0]]);
            assert_turns(segment, &apart.at(&other), vip, &[halves[number][1]]);
            assert!(halves[number].contains(&before[number]) && halves[number].contains(&after[number]));
            assert_yields(segment, &events.after(whole), vip, halves[number], after[number]);
        }
    });
}

/// One of nodes that know nothing answers for each address, and the others never do.
#[test]
fn nodes_that_start_together_settle_on_one_before_anybody_answers() {
    skip_without_root!();
    trials(10, 3, Segment::new, |segment, _| {
        let all = 0..segment.nodes.len();
        all.clone().for_each(|number| forget_all(segment, number));
        let record = record(segment);
        all.clone().for_each(|number| segment.start(number));
        let owners = until_owned(segment, None);
        all.for_each(|number| until_known(segment, number, owners));
        assert_found(segment, owners);
        sleep(Duration::from_secs(1));
        let events = record.end();
        for (vip, owner) in VIPS.into_iter().zip(owners) {
            assert_turns(segment, &events, vip, &[owner]);
        }
    });
}

/// Addresses that a foreign host has before a Service gets them.
const TAKEN: [&str; 2] = ["192.0.2.5", "2001:db8::5"];

/// Nobody answers beside a host that was first. Beside one that takes what a node has, that node goes on, and no other.
#[test]
fn no_node_answers_beside_a_foreign_host_that_was_first_and_only_the_owner_beside_one_that_comes_later() {
    skip_without_root!();
    trials(10, 2, Segment::new, |segment, trial| {
        let foreign = foreign(segment);
        let link = foreign.mac("uplink").unwrap();
        let give = |what: &str, addresses: [&str; 2]| {
            let [v4, v6] = addresses;
            let nodad = if what == "add" { " nodad" } else { "" };
            foreign
                .ip(&format!("addr {what} {v4}/32 dev uplink\naddr {what} {v6}/128 dev uplink{nodad}\n"))
                .unwrap();
        };
        let names = segment.nodes.iter().map(|node| node.name.clone());
        let ports: Vec<String> = names.chain(["host", "foreign"].map(str::to_owned)).collect();
        let start = |addresses: [&str; 2]| {
            Record::start(&segment.bridge, &ports, &[&segment.host], &addresses.map(address))
        };

        give("add", TAKEN);
        let record = start(TAKEN);
        let name = format!("taken{trial}");
        serve(segment.kubectl(), &name, TAKEN);
        segment.until("a node shows who has them", |segment| {
            let shown = segment.shown(0);
            TAKEN.iter().all(|vip| {
                let line = shown.lines().find(|line| line.contains(vip));
                line.is_some_and(|line| line.contains(&written(link)))
            })
        });
        sleep(Duration::from_secs(2));
        TAKEN.iter().for_each(|vip| assert_eq!(found(&segment.host, vip), [written(link)].into(), "{vip}"));
        let gone = record.mark();
        give("del", TAKEN);
        segment
            .until("a node announces each", |segment| TAKEN.iter().all(|vip| segment.owners(vip).len() == 1));
        sleep(Duration::from_secs(1));
        let events = record.end();
        for vip in TAKEN {
            let owner = segment.nodes[segment.owner(vip)].link;
            assert_eq!(events.before(gone).turns(address(vip)), [link], "{vip}\n{}", segment.logs());
            assert_eq!(events.turns(address(vip)), [link, owner], "{vip}\n{}", segment.logs());
        }
        segment.kubectl().run(&["-n", "tenant", "delete", "service", &name]).unwrap();

        let before = owners(segment);
        let record = start(VIPS);
        give("add", VIPS);
        sleep(Duration::from_secs(3));
        let both = |owner: usize| [written(segment.nodes[owner].link), written(link)].into();
        for (vip, owner) in VIPS.into_iter().zip(before) {
            assert_eq!(found(&segment.host, vip), both(owner), "{vip}");
        }
        give("del", VIPS);
        let gone = record.mark();
        sleep(Duration::from_secs(2));
        let events = record.end();
        for (vip, owner) in VIPS.into_iter().zip(before) {
            let own = segment.nodes[owner].link;
            let mut links = events.turns(address(vip));
            links.sort_unstable();
            links.dedup();
            let mut expected = [own, link];
            expected.sort_unstable();
            assert_eq!(links, expected, "{vip}\n{}", segment.logs());
            assert_eq!(events.after(gone).turns(address(vip)), [own], "{vip}\n{}", segment.logs());
        }
        assert_eq!(owners(segment), before);
        assert_found(segment, before);
    });
}
