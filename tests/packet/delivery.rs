//! Delivery of the hello to the backend: byte for byte, within the backend's segment size.

use common::maps::name;
use common::maps::settings::Cursors;
use common::reason::Reason;
use tests::addresses::{FAMILIES, server_name};
use tests::compare::assert_frame;
use tests::fill::default_settings;
use tests::hello::hello;
use tests::packet::{Segment, flag};
use tests::program::{Outcome, Programs, Sizes, verdict};
use tests::world::Device;

use crate::check::{assert_dropped, sent, whole};
use crate::scene::{
    BACKEND_ISN, BACKEND_TIME, Backend, CLIENT_TIME, CLIENT_WINDOW, Client, Dial, ISN, Offer, behind, dial,
    ready, stamped, usual_hello,
};
use crate::setup::backend_address;

/// Returns the segments of a delivery, the copies first.
#[track_caller]
pub(crate) fn pieces(outcome: &Outcome) -> Vec<Segment> {
    assert_eq!(outcome.verdict, verdict::REDIRECT, "{:?}", outcome.counted);
    let copies = outcome.emitted.iter().map(|(device, frame)| {
        assert_eq!(*device, Device::Backend);
        frame
    });
    copies.chain([&outcome.packet]).map(|frame| whole(frame)).collect()
}

/// Returns the byte stream of a delivery, starting right after the SYN.
#[track_caller]
pub(crate) fn delivered(outcome: &Outcome, isn: u32) -> Vec<u8> {
    let mut stream = Vec::new();
    for piece in pieces(outcome) {
        assert_eq!(piece.seq, behind(isn, stream.len() as u32));
        stream.extend(piece.payload);
    }
    stream
}

/// Sends a hello in segments of `mss` bytes, as a client does; returns the backend that is dialled.
#[track_caller]
pub(crate) fn collect(programs: &mut Programs, client: Client, bytes: &[u8], mss: usize) -> Backend {
    for (index, part) in bytes.chunks(mss).enumerate() {
        let outcome = client.send(programs, (index * mss) as u32, part);
        if (index + 1) * mss >= bytes.len() {
            assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
            assert_eq!(outcome.emitted, []);
            return Backend::of(&sent(&outcome));
        }
        if index % 2 == 0 {
            assert_dropped(&outcome, Reason::HelloBuffered);
        } else {
            assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)]);
            client.assert_acknowledged(&outcome, ((index + 1) * mss) as u32);
        }
    }
    unreachable!("a hello has bytes")
}

/// Asserts that the hello arrives in segments of `mss` bytes, in intact packets, with PSH on the last.
#[track_caller]
fn assert_pieces(outcome: &Outcome, client: Client, backend: Backend, bytes: &[u8], mss: usize, window: u16) {
    assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
    let count = bytes.len().div_ceil(mss);
    let frames: Vec<&Vec<u8>> =
        outcome.emitted.iter().map(|(_, frame)| frame).chain([&outcome.packet]).collect();
    assert_eq!(frames.len(), count);
    pieces(outcome);
    for (index, part) in bytes.chunks(mss).enumerate() {
        let piece = backend
            .to_backend()
            .seq(behind(ISN, (index * mss) as u32))
            .ack(behind(BACKEND_ISN, 0))
            .flags(if index + 1 == count { flag::PSH } else { 0 })
            .window(window);
        let stamps = client.dial.offer.timestamps;
        let piece = if stamps { stamped(piece, CLIENT_TIME + 1, BACKEND_TIME) } else { piece };
        assert_frame(frames[index], &piece.payload(part));
    }
}

/// Returns the payload bytes that the headers of this family leave of 1500.
fn room(dial: Dial) -> usize {
    1_500 - if dial.family.is_v4() { 40 } else { 60 } - if dial.offer.timestamps { 12 } else { 0 }
}

#[test]
fn the_longest_hellos_arrive_byte_for_byte() {
    tests::skip_without_root!();
    let mut programs = ready();
    let mut ports = 40_000..;
    // The longest message in one record and in the shortest records; the longest streams.
    let longest = [(16_389, 16_384), (18_384, 41), (18_431, 40), (18_432, 40)];
    for (length, record) in longest {
        // The last bytes are not zero, as padding would be: each counts in a checksum.
        let bytes = hello().name(server_name(0)).name_last().length(length).records_of(record).bytes();
        for family in FAMILIES {
            for offer in [Offer::linux(1440, 7), Offer::plain(1440)] {
                let dial = dial(family).port(ports.next().expect("a port")).offer(offer);
                let client = dial.shake(&mut programs);
                let backend = collect(&mut programs, client, &bytes, room(dial));
                let outcome = backend.give(&mut programs, &backend.syn_ack());
                assert_eq!(delivered(&outcome, ISN), bytes);
                assert_pieces(&outcome, client, backend, &bytes, room(dial), CLIENT_WINDOW);
            }
        }
    }
}

#[test]
fn the_longest_hello_arrives_in_the_smallest_segments() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(18_432).records_of(40).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = collect(&mut programs, client, &bytes, 1_428);
        let outcome = backend.give(&mut programs, &backend.syn_ack_with(Offer::linux(1, 9)));
        assert_pieces(&outcome, client, backend, &bytes, 76, CLIENT_WINDOW);
    }
}

#[test]
fn small_clients_and_small_backends_get_small_segments() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(5_001).bytes();
    for family in FAMILIES {
        let default = if family.is_v4() { 536 } else { 1220 };
        // The MSS that the backend announced (0: none), and the segment size it gets, 12 bytes less for timestamps.
        for (port, (told, mss)) in (40_000..).zip([(536, 524), (1, 76), (0, default - 12), (9_000, 0)]) {
            let dial = dial(family).port(port).offer(Offer::linux(536, 7));
            let client = dial.shake(&mut programs);
            let backend = collect(&mut programs, client, &bytes, 524);
            let offer = Offer { mss: Some(told).filter(|mss| *mss > 0), ..Offer::linux(0, 9) };
            let outcome = backend.give(&mut programs, &backend.syn_ack_with(offer));
            let mss = if mss == 0 { room(dial) } else { mss };
            assert_eq!(delivered(&outcome, ISN), bytes);
            assert_pieces(&outcome, client, backend, &bytes, mss, CLIENT_WINDOW);
        }
    }
}

#[test]
fn the_backends_device_bounds_its_segments() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(3_333).bytes();
    for family in FAMILIES {
        let mut member = programs.backend(1, backend_address(family, 0));
        member.mtu = 1_300;
        programs.route(1, &[(1, member)]);
        let client = dial(family).offer(Offer::plain(1_440)).shake(&mut programs);
        let backend = collect(&mut programs, client, &bytes, 1_400);
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        let mss = 1_300 - if family.is_v4() { 40 } else { 60 };
        assert_pieces(&outcome, client, backend, &bytes, mss, CLIENT_WINDOW);
    }
}

#[test]
fn a_backend_without_options_gets_none() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let mut outcome = backend.give(&mut programs, &backend.syn_ack_with(Offer::plain(1_460)));
        assert_eq!(outcome.counted.pop(), Some((Reason::ConnectDeclined, 1)));
        // No timestamps, and a window without scaling: 502 << 7, as the backend reads it.
        let plain = Client { dial: client.dial.offer(Offer::plain(1_440)), ..client };
        assert_pieces(&outcome, plain, backend, &usual_hello(), 1_460, 64_256);
    }
}

#[test]
fn data_behind_the_hello_is_kept_and_delivered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        // TLS early data: some in the hello's own segment, some in later segments.
        let mut stream = usual_hello();
        stream.extend([0x17; 2_000]);
        let outcome = client.send(&mut programs, 0, &stream[..700]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        let backend = Backend::of(&sent(&outcome));
        assert_dropped(&client.send(&mut programs, 700, &stream[700..1_900]), Reason::HelloBuffered);
        // Data beyond a gap is dropped; the client has to retransmit it.
        assert_dropped(&client.send(&mut programs, 2_000, &stream[2_000..]), Reason::HelloBeyond);
        assert_dropped(&client.send(&mut programs, 1_900, &stream[1_900..]), Reason::HelloBuffered);
        let outcome = backend.accept(&mut programs);
        assert_eq!(delivered(&outcome, ISN), stream);
        assert_eq!(client.flow(&programs).unwrap().client.sent.next, behind(ISN, stream.len() as u32));
        assert_eq!(client.waiting(&programs), None, "nothing was acknowledged, so nothing is undelivered");
    }
}

/// Such data is in no count, so a source could have taken every slot with it.
#[test]
fn data_behind_the_hello_is_not_kept_once_a_quarter_of_all_slots_is_taken() {
    tests::skip_without_root!();
    let mut programs = ready();
    let quarter = default_settings(Sizes::default()).buffers / 4;
    let taken = |programs: &mut Programs, buffered| {
        let cursors: Cursors = programs.element(name::CURSORS, 0);
        programs.set(name::CURSORS, 0, Cursors { buffered, ..cursors });
    };
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let hello = usual_hello();
        let backend = client.ask(&mut programs, &hello);
        taken(&mut programs, quarter);
        let at = hello.len() as u32;
        assert_dropped(&client.send(&mut programs, at, &[0x17; 500]), Reason::HelloBuffered);
        taken(&mut programs, quarter + 1);
        // In the slot that the hello has, there is room.
        assert_dropped(&client.send(&mut programs, at + 500, &[0x18; 500]), Reason::HelloBuffered);
        assert_dropped(&client.send(&mut programs, at + 1_000, &[0x19; 600]), Reason::HelloBeyond);
        // With the hello once more, it asks the backend again all the same.
        let mut stream = hello.clone();
        stream.extend([[0x17; 500], [0x18; 500], [0x19; 500], [0x19; 500]].concat());
        let outcome = client.send(&mut programs, 0, &stream);
        assert_eq!(outcome.counted, [(Reason::ConnectAgain, 1)]);
        assert_eq!(delivered(&backend.accept(&mut programs), ISN), stream[..hello.len() + 1_000]);
        taken(&mut programs, 0);
    }
}

#[test]
fn no_more_than_nine_buffers_are_kept() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(16_389).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = collect(&mut programs, client, &bytes, 1_428);
        let mut stream = bytes.clone();
        stream.extend([0x17; 4_000]);
        for at in [16_389, 17_389, 18_389, 18_432] {
            let part = &stream[at..at + 1_000];
            let outcome = client.send(&mut programs, at as u32, part);
            assert_dropped(&outcome, Reason::HelloBuffered);
        }
        assert_dropped(&client.send(&mut programs, 19_000, &[0x17; 500]), Reason::HelloBeyond);
        let outcome = backend.accept(&mut programs);
        assert_eq!(delivered(&outcome, ISN), stream[..18_432]);
    }
}

#[test]
fn a_piece_larger_than_the_device_takes_is_dropped_and_counted() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(4_000).bytes();
    for family in FAMILIES {
        // The map says 9,000, the device takes 1,500.
        let mut member = programs.backend(1, backend_address(family, 0));
        member.mtu = 9_000;
        programs.route(1, &[(1, member)]);
        let client = dial(family).shake(&mut programs);
        let backend = collect(&mut programs, client, &bytes, 1_428);
        let outcome = backend.give(&mut programs, &backend.syn_ack_with(Offer::linux(8_960, 9)));
        assert_dropped(&outcome, Reason::EmitTooBig);
    }
}
