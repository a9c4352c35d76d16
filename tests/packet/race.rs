//! Two packets of one connection at the same time, on two CPUs.

use std::sync::Barrier;

use common::maps::flow::{FLOW_CLOSED, FLOW_ESTABLISHED};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tests::addresses::{FAMILIES, Family};
use tests::compare::assert_frame;
use tests::packet::{Segment, flag};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::open::{HELLO, Open, open_with};
use crate::scene::{Backend, Client, Offer, dial, usual_hello};

const ROUNDS: u16 = 150;
/// The number of segments in each direction before the end.
const SEGMENTS: u32 = 20;

/// Sends the segments of both sides at the same time, and returns what arrived at each.
fn at_once(programs: &Programs, client: &[Segment], backend: &[Segment]) -> [Vec<Vec<u8>>; 2] {
    send_at_once(programs, [(Device::Client, client), (Device::Backend, backend)])
}

fn send_at_once(programs: &Programs, each: [(Device, &[Segment]); 2]) -> [Vec<Vec<u8>>; 2] {
    let begin = Barrier::new(2);
    std::thread::scope(|scope| {
        for (cpu, (device, segments)) in each.into_iter().enumerate() {
            let (begin, world) = (&begin, &programs.world);
            scope.spawn(move || {
                let cpus = std::thread::available_parallelism().map_or(1, usize::from);
                let mut set = CpuSet::new();
                set.set(cpu % cpus).expect("this CPU is below the most there are");
                // If the affinity cannot be set, the scheduler chooses the CPU.
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

/// Asserts that each side got what the other sent, in order, and nothing else.
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
    // The FINs cross, then their acknowledgements: the later one has to see that the connection is over.
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
            assert_eq!(open.flow(&programs).connection.state, FLOW_CLOSED, "{family:?} port {port}");
        }
    }
}

/// Calls `judge` for connections whose backend is about to answer.
fn waiting(mut judge: impl FnMut(&Programs, Client, Backend)) {
    let mut programs = Programs::attached(Sizes::default()).expect("the programs load");
    programs.tls_with_one_route();
    for family in FAMILIES {
        for port in (40_000..).take(2 * usize::from(ROUNDS)) {
            let client = dial(family).port(port).shake(&mut programs);
            let backend = client.ask(&mut programs, &usual_hello());
            programs.world.drain();
            judge(&programs, client, backend);
            assert_eq!(client.flow(&programs).expect("it is open").connection.state, FLOW_ESTABLISHED);
            assert_eq!(client.waiting(&programs), None);
        }
    }
}

/// Sends both at the same time. Asserts that the client gets nothing; returns what the backend gets.
#[track_caller]
fn at_backend(programs: &Programs, each: [(Device, &[Segment]); 2]) -> Vec<Segment> {
    let [at_client, at_backend] = send_at_once(programs, each);
    assert!(at_client.is_empty(), "{at_client:?}");
    at_backend.iter().map(|frame| Segment::parse(frame).expect("a TCP segment")).collect()
}

/// A network that duplicates packets: one CPU delivers the hello, the other finds it gone. The flow stays open.
#[test]
fn a_syn_ack_that_comes_twice_at_once_opens_one_flow() {
    tests::skip_without_root!();
    let hello = usual_hello();
    waiting(|programs, _, backend| {
        let syn_ack = [backend.syn_ack()];
        let arrived = at_backend(programs, [(Device::Backend, &syn_ack), (Device::Backend, &syn_ack)]);
        let count = |payload: &[u8], flags| {
            arrived.iter().filter(|one| one.payload == payload && one.flags == flags).count()
        };
        // The SYN-ACK may be acknowledged a second time.
        let (hellos, acknowledgements) = (count(&hello, flag::ACK | flag::PSH), count(&[], flag::ACK));
        assert_eq!((hellos, hellos + acknowledgements), (1, arrived.len()), "{arrived:?}");
    });
}

/// The client retransmits its hello while its backend answers: no second backend is dialled for it.
#[test]
fn a_hello_repeated_while_its_backend_answers_opens_one_flow() {
    tests::skip_without_root!();
    let hello = usual_hello();
    waiting(|programs, client, backend| {
        let (again, syn_ack) = ([client.at(0).payload(hello.clone())], [backend.syn_ack()]);
        let arrived = at_backend(programs, [(Device::Client, &again), (Device::Backend, &syn_ack)]);
        // A CPU that finds the other one at work drops its packet: the backend repeats its SYN-ACK.
        let mut arrived = arrived;
        if client.flow(programs).is_none() {
            arrived.extend(at_backend(programs, [(Device::Backend, &syn_ack), (Device::Client, &[])]));
        }
        // The backend may also get the SYN again, or the hello as the client retransmits it.
        assert!(arrived.iter().any(|segment| segment.payload == hello), "{arrived:?}");
        for segment in &arrived {
            assert!(segment.flags & flag::RST == 0 && segment.from == backend.source, "{segment:?}");
        }
    });
}
