//! Both directions of a flow at the same moment, on two CPUs.

use std::sync::Barrier;

use common::maps::flow::FLOW_CLOSED;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tests::addresses::{FAMILIES, Family};
use tests::compare::assert_frame;
use tests::packet::Segment;
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::open::{HELLO, Open, open_with};
use crate::scene::{Offer, dial};

const ROUNDS: u16 = 150;
/// Segments each way before the end.
const SEGMENTS: u32 = 20;

/// Sends what each side has to say, both sides at once, and gives what arrived at each.
fn at_once(programs: &Programs, client: &[Segment], backend: &[Segment]) -> [Vec<Vec<u8>>; 2] {
    let begin = Barrier::new(2);
    std::thread::scope(|scope| {
        for (cpu, device, segments) in [(0, Device::Client, client), (1, Device::Backend, backend)] {
            let (begin, world) = (&begin, &programs.world);
            scope.spawn(move || {
                let cpus = std::thread::available_parallelism().map_or(1, usize::from);
                let mut set = CpuSet::new();
                set.set(cpu % cpus).expect("this CPU is below the most there are");
                // Where the CPU is not ours to choose, the scheduler does.
                let _ = sched_setaffinity(Pid::from_raw(0), &set);
                let frames: Vec<_> = segments.iter().map(Segment::bytes).collect();
                begin.wait();
                for frame in frames {
                    world.send(device, &frame).expect("the device takes frames");
                }
            });
        }
    });
    let mut arrived = [Vec::new(), Vec::new()];
    for (device, frame) in programs.world.drain() {
        arrived[device as usize].push(frame);
    }
    arrived
}

/// Each side gets what the other sent, in order, and nothing else.
#[track_caller]
fn assert_passed(open: Open, arrived: &[Vec<Vec<u8>>; 2], client: &[Segment], backend: &[Segment]) {
    let at_backend: Vec<_> = client.iter().map(|segment| open.at_backend(segment)).collect();
    let at_client: Vec<_> = backend.iter().map(|segment| open.at_client(segment)).collect();
    for (arrived, expected) in arrived.iter().zip([at_client, at_backend]) {
        assert_eq!(arrived.len(), expected.len());
        for (frame, segment) in arrived.iter().zip(&expected) {
            assert_frame(frame, segment);
        }
    }
}

fn round(programs: &mut Programs, family: Family, port: u16) -> Open {
    let open = open_with(programs, dial(family).port(port), Offer::linux(1460, 9));
    programs.world.drain();
    let part = |n: u32| n * 100..(n + 1) * 100;
    let client: Vec<_> = (0..SEGMENTS)
        .map(|n| open.client_segment(HELLO + part(n).start, 0).payload(vec![n as u8; 100]))
        .collect();
    let backend: Vec<_> = (0..SEGMENTS)
        .map(|n| open.backend_segment(part(n).start, HELLO).payload(vec![!n as u8; 100]))
        .collect();
    assert_passed(open, &at_once(programs, &client, &backend), &client, &backend);
    // The FINs cross, then their acknowledgements: whichever comes second has to see that all is over.
    let end = SEGMENTS * 100;
    let fins =
        ([open.client_segment(HELLO + end, end).fin()], [open.backend_segment(end, HELLO + end).fin()]);
    assert_passed(open, &at_once(programs, &fins.0, &fins.1), &fins.0, &fins.1);
    let acks =
        ([open.client_segment(HELLO + end + 1, end + 1)], [open.backend_segment(end + 1, HELLO + end + 1)]);
    assert_passed(open, &at_once(programs, &acks.0, &acks.1), &acks.0, &acks.1);
    open
}

#[test]
fn both_directions_on_two_cpus_pass_and_see_the_end() {
    tests::skip_without_root!();
    let mut programs = Programs::attached(Sizes::default()).unwrap();
    programs.tls_with_one_route();
    for family in FAMILIES {
        for port in (40_000..).take(ROUNDS.into()) {
            let open = round(&mut programs, family, port);
            assert_eq!(open.flow(&programs).state, FLOW_CLOSED, "{family:?} port {port}");
        }
    }
}
