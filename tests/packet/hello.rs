//! The ClientHello, over any number of segments and records.

use common::maps::flow::PENDING_COLLECTING;
use common::reason::Reason;
use tests::addresses::{FAMILIES, server_name};
use tests::hello::hello;
use tests::packet::Segment;
use tests::program::{Outcome, Programs};
use tests::world::Device;

use crate::check::{assert_dropped, assert_sent, reset_of, sent, timestamps};
use crate::scene::{Backend, Client, ISN, Offer, behind, dial, ready, usual_hello};
use crate::setup::{hellos, waiting_of};

/// The longest ClientHello without record headers.
const MESSAGE: usize = 1 << 14;

/// Cuts the stream at these offsets; returns the offset and the bytes of each part.
fn cut<'h>(bytes: &'h [u8], at: &[usize]) -> Vec<(u32, &'h [u8])> {
    let ends = at.iter().copied().chain([bytes.len()]);
    let begins = [0].into_iter().chain(at.iter().copied());
    begins.zip(ends).map(|(begin, end)| (begin as u32, &bytes[begin..end])).collect()
}

/// Asserts that the SYN was sent, the client got nothing, and every byte is stored.
#[track_caller]
fn assert_complete(programs: &Programs, client: Client, outcome: &Outcome, bytes: usize) {
    assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    assert_eq!(outcome.emitted, []);
    Backend::of(&sent(outcome));
    assert_eq!(client.waiting(programs).expect("the hello is kept").have as usize, bytes);
}

#[test]
fn bytes_are_acknowledged_on_push_and_the_last_segment_never_is() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        for (port, offer) in (40_000..).zip([Offer::linux(1440, 7), Offer::plain(1440)]) {
            let client = dial(family).port(port).offer(offer).shake(&mut programs);
            let parts = cut(&bytes, &[1, 5, 6, 44, 300, 516]);
            let (last, first) = parts.split_last().unwrap();
            for (offset, part) in first {
                let segment = client.at(*offset).psh().payload(*part);
                let outcome = client.give(&mut programs, &segment);
                assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)]);
                client.assert_acknowledged(&outcome, offset + part.len() as u32);
                assert_eq!(client.waiting(&programs).unwrap().connection.state, PENDING_COLLECTING);
            }
            let outcome = client.give(&mut programs, &client.at(last.0).psh().payload(last.1));
            assert_complete(&programs, client, &outcome, bytes.len());
        }
    }
}

#[test]
fn every_second_segment_without_push_is_acknowledged() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        for (index, (offset, part)) in cut(&bytes, &[100, 200, 300, 400]).into_iter().enumerate() {
            let outcome = client.send(&mut programs, offset, part);
            match index {
                0 | 2 => assert_dropped(&outcome, Reason::HelloBuffered),
                1 | 3 => {
                    assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)]);
                    client.assert_acknowledged(&outcome, offset + part.len() as u32);
                }
                _ => assert_complete(&programs, client, &outcome, bytes.len()),
            }
        }
    }
}

#[test]
fn a_hello_split_anywhere_is_one_hello() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).bytes();
    for family in FAMILIES {
        for (port, at) in (1_024..).zip(1..bytes.len()) {
            let client = dial(family).port(port).shake(&mut programs);
            assert_dropped(&client.send(&mut programs, 0, &bytes[..at]), Reason::HelloBuffered);
            let outcome = client.send(&mut programs, at as u32, &bytes[at..]);
            assert_complete(&programs, client, &outcome, bytes.len());
            crate::setup::forget_all(&mut programs);
        }
    }
}

#[test]
fn a_hello_byte_by_byte_is_one_hello() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).records_of(50).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        for (offset, byte) in bytes.iter().enumerate() {
            let outcome = client.give(&mut programs, &client.at(offset as u32).psh().payload([*byte]));
            if offset + 1 == bytes.len() {
                assert_complete(&programs, client, &outcome, bytes.len());
            } else {
                assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)], "byte {offset}");
            }
        }
    }
}

/// Returns the hello in records of at most this many bytes.
fn recut(bytes: &[u8], record: usize) -> Vec<u8> {
    let parts = bytes[5..].chunks(record);
    parts.flat_map(|part| [&[22, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat()).collect()
}

#[test]
fn a_hello_over_several_records_and_segments_is_one_hello() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (port, record) in (40_000..).zip([7, 100, 1_000, 2_043]) {
            let bytes = recut(&hello().name(server_name(0)).length(2_500).bytes(), record);
            let client = dial(family).port(port).shake(&mut programs);
            for (offset, part) in cut(&bytes, &[999, 2_048]) {
                let outcome = client.send(&mut programs, offset, part);
                match offset {
                    0 => assert_dropped(&outcome, Reason::HelloBuffered),
                    999 => client.assert_acknowledged(&outcome, 2_048),
                    _ => assert_complete(&programs, client, &outcome, bytes.len()),
                }
            }
        }
    }
}

#[test]
fn duplicates_and_gaps_are_answered_with_what_is_there() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let parts = cut(&bytes, &[100, 200, 400]);
        let mut give = |index: usize| client.send(&mut programs, parts[index].0, parts[index].1);
        assert_dropped(&give(0), Reason::HelloBuffered);
        // To avoid a deadlock when the second segment is lost, the retransmitted first one is acknowledged.
        for _ in 0..3 {
            let outcome = give(0);
            assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)]);
            client.assert_acknowledged(&outcome, 100);
        }
        let outcome = give(2);
        assert_eq!(outcome.counted, [(Reason::HelloGap, 1)]);
        client.assert_acknowledged(&outcome, 100);
        let outcome = give(3);
        assert_eq!(outcome.counted, [(Reason::HelloGap, 1)]);
        client.assert_acknowledged(&outcome, 100);
        assert_dropped(&give(1), Reason::HelloBuffered);
        let outcome = give(2);
        assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)]);
        client.assert_acknowledged(&outcome, 400);
        let outcome = give(3);
        assert_complete(&programs, client, &outcome, bytes.len());
    }
}

#[test]
fn overlapping_segments_add_what_is_new() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(4_000).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        assert_dropped(&client.send(&mut programs, 0, &bytes[..1_000]), Reason::HelloBuffered);
        let mut wrong = bytes[500..2_060].to_vec();
        // Bytes that are already stored are not overwritten.
        wrong[..500].fill(0xff);
        let outcome = client.send(&mut programs, 500, &wrong[..1_400]);
        client.assert_acknowledged(&outcome, 1_900);
        assert_dropped(&client.send(&mut programs, 600, &wrong[100..1_500]), Reason::HelloBuffered);
        let outcome = client.send(&mut programs, 1_999, &bytes[1_999..3_000]);
        client.assert_acknowledged(&outcome, 3_000);
        let outcome = client.send(&mut programs, 2_800, &bytes[2_800..]);
        assert_complete(&programs, client, &outcome, 4_000);
        let backend = Backend::of(&sent(&outcome));
        let outcome = backend.accept(&mut programs);
        assert_eq!(crate::delivery::delivered(&outcome, ISN), bytes);
    }
}

#[test]
fn super_packets_count_as_the_segments_they_hold() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(3_500).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let part = client.at(0).payload(&bytes[..2_800]).bytes();
        let outcome = programs.ingress_gso(Device::Client, &part, 1_400, 2);
        assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)]);
        client.assert_acknowledged(&outcome, 2_800);
        let outcome = client.send(&mut programs, 2_800, &bytes[2_800..]);
        assert_complete(&programs, client, &outcome, bytes.len());
        // A whole hello in one super-packet.
        let client = dial(family).port(40_001).shake(&mut programs);
        let whole = client.at(0).payload(bytes.as_slice()).bytes();
        let outcome = programs.ingress_gso(Device::Client, &whole, 1_400, 3);
        assert_complete(&programs, client, &outcome, bytes.len());
    }
}

#[test]
fn acknowledgements_of_ours_are_absorbed_while_the_hello_waits() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.send(&mut programs, 0, &bytes[..300]);
        assert_dropped(&client.give(&mut programs, &client.at(300)), Reason::SynAcked);
        let outcome = client.send(&mut programs, 300, &bytes[300..]);
        assert_complete(&programs, client, &outcome, bytes.len());
        // The same while the backend has not answered.
        assert_dropped(&client.give(&mut programs, &client.at(517)), Reason::SynAcked);
    }
}

#[test]
fn a_hello_is_whole_once_its_record_is() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // A byte, bytes that are no message, and another hello behind this one in its record.
        let second = usual_hello()[5..].to_vec();
        for (port, behind) in (40_000..).zip([vec![0], vec![0xff; 300], second]) {
            let mut bytes = [&usual_hello()[..], &behind].concat();
            let length = (bytes.len() as u16 - 5).to_be_bytes();
            bytes[3..5].copy_from_slice(&length);
            let client = dial(family).port(port).shake(&mut programs);
            assert_dropped(&client.send(&mut programs, 0, &bytes[..517]), Reason::HelloBuffered);
            let end = bytes.len() as u32;
            for (offset, byte) in (517..end - 1).zip(&behind) {
                let outcome = client.give(&mut programs, &client.at(offset).psh().payload([*byte]));
                assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)], "byte {offset}");
            }
            let last = [behind[behind.len() - 1], 0x17];
            let outcome = client.send(&mut programs, end - 1, &last);
            assert_complete(&programs, client, &outcome, bytes.len() + 1);
            // The record passes as it arrived, with what follows it.
            let outcome = Backend::of(&sent(&outcome)).accept(&mut programs);
            assert_eq!(crate::delivery::delivered(&outcome, ISN), [&bytes[..], &[0x17]].concat());
        }
    }
}

/// Returns a hello whose message has this many bytes, in records of at most `record` bytes.
fn of_message(message: usize, record: usize) -> Vec<u8> {
    let length = message + 5 * message.div_ceil(record);
    hello().name(server_name(0)).length(length).records_of(record).bytes()
}

#[test]
fn record_headers_may_bring_the_longest_hello_to_nine_buffers_and_no_further() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let bytes = of_message(MESSAGE, 40);
        assert_eq!(bytes.len(), 18_434);
        // The last record begins here; its header shows where it ends.
        let last = bytes.len() - MESSAGE % 40 - 5;
        let mut at = 0;
        while at < last {
            let end = last.min(at + 1_400);
            let outcome = client.give(&mut programs, &client.at(at as u32).psh().payload(&bytes[at..end]));
            assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)], "up to {end}");
            client.assert_acknowledged(&outcome, end as u32);
            at = end;
        }
        let outcome = client.send(&mut programs, last as u32, &bytes[last..]);
        assert_sent(&outcome, Reason::HelloTooLong, &client.refusal());
        assert_eq!(hellos(&programs), []);
        assert_eq!(waiting_of(&programs, client.dial.host), 0);
    }
}

/// Returns hellos that are refused, each with the reason.
fn refused() -> Vec<(Vec<u8>, Reason)> {
    let good = hello().name(server_name(0)).bytes();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    vec![
        (b"GET / HTTP/1.1\r\nHost: tenant-a.k8s.example.com\r\n\r\n".to_vec(), Reason::HelloNotTls),
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), Reason::HelloNotTls),
        // An alert; a handshake record that does not start with a ClientHello; a session id too long; an
        // empty record.
        (changed(0, 21), Reason::HelloNotTls),
        (changed(5, 2), Reason::HelloMalformed),
        (changed(43, 33), Reason::HelloMalformed),
        ([&[22, 3, 1, 0, 0], &good[5..]].concat(), Reason::HelloMalformed),
        (hello().name("bad name").bytes(), Reason::HelloNameInvalid),
        (hello().name(".a").bytes(), Reason::HelloNameInvalid),
        (of_message(MESSAGE + 1, MESSAGE), Reason::HelloTooLong),
        (of_message(MESSAGE + 1, 1_000), Reason::HelloTooLong),
    ]
}

#[test]
fn what_is_no_acceptable_hello_is_refused_with_its_own_reason() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (bytes, reason) in refused() {
            let part = &bytes[..bytes.len().min(1_400)];
            let client = dial(family).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, part);
            assert_sent(&outcome, reason, &client.refusal());
            assert_eq!(hellos(&programs), []);
            // The same in pieces: refused as soon as the error is seen, and nothing is left.
            let mut counted = Vec::new();
            for (offset, part) in cut(part, &[3, 5, 9, 20]) {
                let outcome = client.give(&mut programs, &client.at(offset).psh().payload(part));
                counted = outcome.counted.clone();
                if counted != [(Reason::HelloAcked, 1)] {
                    assert_sent(&outcome, reason, &client.refusal());
                    break;
                }
            }
            assert_eq!(counted, [(reason, 1)]);
            assert_eq!(hellos(&programs), []);
            assert_eq!(waiting_of(&programs, client.dial.host), 0);
        }
    }
}

/// The RST that refused a client may be lost. The client repeats only what we did not acknowledge, or asks by a keep-alive
/// probe: it echoes our acknowledgement's timestamp, so it is not taken for one whose first segment is still to come.
#[test]
fn a_client_whose_rst_was_lost_gets_another() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name("nobody.example.org").bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let acked = client.give(&mut programs, &client.at(0).psh().payload(&bytes[..100]));
        let (time, _) = timestamps(&sent(&acked)).unwrap();
        let client = Client { time, ..client };
        let last = client.at(100).psh().payload(&bytes[100..]);
        assert_sent(&client.give(&mut programs, &last), Reason::RouteNone, &client.refusal());
        for repeated in [last, client.at(99), client.at(bytes.len() as u32).fin()] {
            let outcome = client.give(&mut programs, &repeated);
            assert_sent(&outcome, Reason::SynCookieMismatch, &client.refusal());
        }
    }
}

/// A client that closes its half behind the hello, whose FIN the network brings first: the hello may still be complete.
#[test]
fn a_fin_that_overtakes_the_end_of_its_hello_refuses_nobody() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.send(&mut programs, 0, &bytes[..300]);
        let outcome = client.give(&mut programs, &client.at(bytes.len() as u32).fin());
        assert_eq!(outcome.counted, [(Reason::HelloGap, 1)]);
        client.assert_acknowledged(&outcome, 300);
        let outcome = client.send(&mut programs, 300, &bytes[300..]);
        assert_complete(&programs, client, &outcome, bytes.len());
    }
}

#[test]
fn a_client_that_closes_before_its_hello_is_whole_is_refused() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let with_part =
            |offset: u32, end: usize| client.at(offset).fin().payload(&bytes[offset as usize..end]);
        // A FIN after a part, with the next part, and with the first.
        let ways: [(bool, Segment); 3] =
            [(true, client.at(300).fin()), (true, with_part(300, 400)), (false, with_part(0, 300))];
        for (begun, fin) in ways {
            if begun {
                client.send(&mut programs, 0, &bytes[..300]);
            }
            let outcome = client.give(&mut programs, &fin);
            assert_sent(&outcome, Reason::HelloAbandoned, &client.refusal());
            assert_eq!(client.waiting(&programs), None, "started {begun}, {} bytes", fin.payload.len());
            assert_eq!(waiting_of(&programs, client.dial.host), 0);
        }
        // With the last part it is a half-close: the backend may still answer.
        client.send(&mut programs, 0, &bytes[..300]);
        let outcome = client.give(&mut programs, &with_part(300, 517));
        assert_complete(&programs, client, &outcome, bytes.len());
    }
}

#[test]
fn a_reset_is_believed_at_the_clients_own_numbers() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        for good in [100, 300] {
            client.give(&mut programs, &client.at(0).psh().payload(&bytes[..100]));
            client.send(&mut programs, 100, &bytes[100..300]);
            for outside in [0, 50, 99, 100 + 18_433, 1 << 31] {
                assert_dropped(&client.give(&mut programs, &client.at(outside).rst()), Reason::SynStray);
                assert_eq!(client.waiting(&programs).unwrap().have, 300);
            }
            for inside in [101, 299, 301, 5_000, 100 + 18_432] {
                let outcome = client.give(&mut programs, &client.at(inside).rst());
                assert_eq!(outcome.counted, [(Reason::HelloChallenged, 1)]);
                client.assert_acknowledged(&outcome, 100);
                assert_eq!(client.waiting(&programs).unwrap().have, 300);
            }
            let outcome = client.give(&mut programs, &client.at(good).rst());
            assert_dropped(&outcome, Reason::HelloReset);
            assert_eq!(hellos(&programs), []);
            assert_eq!(waiting_of(&programs, client.dial.host), 0);
        }
        // While the backend has not answered: its port is released too.
        let backend = client.ask(&mut programs, &bytes);
        assert_dropped(&client.give(&mut programs, &client.at(517).rst()), Reason::HelloReset);
        assert_eq!((client.waiting(&programs), backend.owner(&programs)), (None, None));
    }
}

/// Such a RST used to be dropped: the connection was opened for a client that is gone, and held until its time was over.
#[test]
fn a_client_that_sent_more_than_was_kept_is_forgotten_once_it_answers_our_challenge() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &bytes);
        // What it sent behind a segment that was lost is not kept.
        let beyond = client.at(2_000).payload([1; 100]);
        assert_dropped(&client.give(&mut programs, &beyond), Reason::HelloBeyond);
        let outcome = client.give(&mut programs, &client.at(2_100).rst());
        assert_eq!(outcome.counted, [(Reason::HelloChallenged, 1)]);
        client.assert_acknowledged(&outcome, 0);
        assert!(client.waiting(&programs).is_some());
        // RFC 9293 section 3.10.7.1: a closed end answers at the number that was acknowledged.
        assert_dropped(&client.give(&mut programs, &client.at(0).rst()), Reason::HelloReset);
        assert_eq!((client.waiting(&programs), backend.owner(&programs)), (None, None));
    }
}

#[test]
fn a_client_that_begins_anew_on_its_port_replaces_its_hello() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.send(&mut programs, 0, &bytes[..300]);
        let isn = ISN.wrapping_sub(50_000);
        let answer = sent(&client.give(&mut programs, &dial(family).syn().seq(isn)));
        let anew = client.told(&answer);
        let first = anew.at(0).seq(behind(isn, 0));
        assert_dropped(
            &client.give(&mut programs, &first.clone().payload(&bytes[..100])),
            Reason::HelloBuffered,
        );
        assert_eq!(waiting_of(&programs, client.dial.host), 1);
        let waiting = client.waiting(&programs).unwrap();
        assert_eq!((waiting.isn, waiting.have), (isn, 100));
        let rest = first.seq(behind(isn, 100)).payload(&bytes[100..]);
        let outcome = client.give(&mut programs, &rest);
        assert_complete(&programs, client, &outcome, bytes.len());
    }
}

#[test]
fn a_segment_without_the_hellos_cookie_does_not_end_it() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.send(&mut programs, 0, &bytes[..300]);
        let before = client.waiting(&programs);
        // Anyone who knows addresses and ports can send these, but only the receiver of our SYN-ACK has the number.
        for forged in [client.at(300).ack(client.wrong_ack()), client.at(300).ack(client.wrong_ack()).fin()] {
            let outcome = client.give(&mut programs, &forged);
            assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(&forged));
            assert_eq!(client.waiting(&programs), before);
        }
        let outcome = client.send(&mut programs, 300, &bytes[300..]);
        assert_complete(&programs, client, &outcome, bytes.len());
    }
}
