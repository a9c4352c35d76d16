//! A heartbeat that comes as its sender's entry becomes another node's: what is written late, and what puts it right.

use std::mem::offset_of;

use common::maps::name;
use common::maps::previous::{Peer, PeerKey, STAMP_MS};
use common::maps::segment::{HeardNs, Segment};
use common::reason::Reason;
use common::wire::heartbeat;
use tests::program::{Pod, Programs};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::heartbeat::{OWN, PEERS_ID, SECOND, answer_aged, now_ns, on_segment, question_with, segment};

/// Link addresses of the node whose heartbeat it is, of the same later, and of the node that has the entry by then.
const WAS: [u8; 6] = [2, 0, 0, 0, 1, 0x55];
const MOVED: [u8; 6] = [2, 0, 0, 0, 1, 0x66];
const OTHER: [u8; 6] = [2, 0, 0, 0, 2, 0x77];

const LINK: usize = offset_of!(Peer, link);
const HEARD: usize = offset_of!(Peer, heard_ns);

fn key(programs: &Programs) -> PeerKey {
    PeerKey::new(PEERS_ID, programs.world.ifindex(Device::Client))
}

fn noted(programs: &Programs) -> Peer {
    programs.entry(name::PEERS, key(programs)).expect("it is known")
}

/// The entry that the other node has, which was last there long ago.
fn others() -> Peer {
    Peer::new(now_ns() - 60 * SECOND, true, OTHER)
}

fn link_of(address: [u8; 6]) -> u64 {
    Peer::new(0, true, address).link
}

/// The programs, with an entry of the node.
fn known() -> Programs {
    // Its agent lives all through the test: questions show nobody that a node is there.
    let mut programs = on_segment(Segment { stamp_ns: now_ns() + 60 * SECOND, ..segment() });
    let entry = Peer::new(now_ns(), true, WAS);
    programs.insert(name::PEERS, key(&programs), entry);
    programs
}

/// Gives the program a frame; behind its first access to a word of the entry, that or a part of it becomes the other node's.
fn give<T: Pod>(programs: &mut Programs, frame: &[u8], word: usize, (at, value): (usize, &T)) {
    let key = key(programs);
    let place = Place::new(name::PEERS, &key, word);
    let change = Change::write(name::PEERS, &key, at, value);
    let schedule = programs.behind_access(&place, 1, &[change]).expect("a hardware breakpoint");
    programs.ingress(Device::Client, frame);
    assert!(schedule.happened());
}

#[test]
fn a_link_address_that_is_written_late_is_mended_by_the_next_question() {
    tests::skip_without_root!();
    let mut programs = known();
    let heard_ns: HeardNs = others().heard_ns;
    // The first access is the write itself: the entry is the other node's, with what was just written.
    let late = question_with(PEERS_ID, OWN, heartbeat::asker(MOVED, false));
    give(&mut programs, &late, LINK, (HEARD, &heard_ns));
    assert_eq!(noted(&programs), Peer { heard_ns, link: link_of(MOVED) }, "it is another's");
    let asked = question_with(PEERS_ID, OWN, heartbeat::asker(OTHER, false));
    assert_eq!(programs.ingress(Device::Client, &asked).counted, [(Reason::HeartbeatAnswered, 1)]);
    assert_eq!(noted(&programs), Peer { heard_ns, link: link_of(OTHER) }, "mended");
}

#[test]
fn a_late_answer_shows_that_another_node_is_there_but_never_that_its_agent_was() {
    tests::skip_without_root!();
    // Behind the look at the link address, and behind the one at the time.
    for (age_ms, word, is_stamped, is_attended) in [
        (0, LINK, true, true),
        (STAMP_MS + 1, LINK, true, false),
        (0, HEARD, false, true),
        (STAMP_MS + 1, HEARD, true, false),
    ] {
        for was_attended in [false, true] {
            let mut programs = known();
            let before = now_ns();
            let other = Peer::new(others().last_ns(), was_attended, OTHER);
            give(&mut programs, &answer_aged(PEERS_ID, WAS, age_ms), word, (0, &other));
            let found = noted(&programs);
            assert_eq!(found.link, other.link, "{age_ms} ms, word at {word}");
            assert_eq!(found.last_ns() >= before, is_stamped, "{age_ms} ms, word at {word}");
            // One that the other node's entry lost does not come back.
            assert_eq!(found.is_attended(), is_attended && was_attended, "{age_ms} ms, word at {word}");
        }
    }
}
