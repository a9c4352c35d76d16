//! What a cache line costs that two CPUs write: packets of both directions of one flow, each direction on a CPU of its own, beside
//! packets of two flows. The kernel runs the program on frames (`BPF_PROG_TEST_RUN`) and measures each run.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread::scope;
use std::time::{Duration, Instant};

use ::tests::addresses::{Family, TLS_PORT, client, server_name, vip};
use ::tests::at_once::{only, two_cpus};
use ::tests::hello::hello;
use ::tests::net::{self, Namespace};
use ::tests::packet::{Segment, segment};
use ::tests::program::{Programs, verdict};
use ::tests::tcp_option::TcpOption;
use ::tests::timed::Timed;
use ::tests::world::Device;
use anyhow::{Context, Result, anyhow, bail, ensure};
use common::reason::Reason;
use nix::sched::sched_setaffinity;
use nix::unistd::Pid;

use crate::rounds::Effort;
use crate::stats::Median;
use crate::table::Row;

/// Packets of one direction in one run. Each has one byte, and no window is ever full.
const PACKETS: u32 = 20_000;
const PACKETS_QUICK: u32 = 2_000;
/// The part of a run in which both CPUs must be at work, and how often one is tried: others may need a CPU, too. A quick one may have none.
const TOGETHER: f64 = 0.8;
const TRIES: u32 = 20;

/// The first sequence numbers of client and backend, their clocks, and the segment size and window scale of both.
const ISN: [u32; 2] = [0x1000_0000, 0x2000_0000];
const TIME: u32 = 5_000;
const MSS: u16 = 1440;
const SCALE: u8 = 7;

/// The two directions, in the order of all arrays here.
const DEVICES: [Device; 2] = [Device::Client, Device::Backend];
const CLIENT: usize = 0;
const BACKEND: usize = 1;

/// An open connection.
struct Open {
    /// What each end sends next but for its byte, with the numbers of its first byte and of the other's first.
    next: [Segment; 2],
    /// Bytes that each end has sent.
    sent: [u32; 2],
    /// Bytes of the other that each has acknowledged.
    acked: [u32; 2],
}

impl Open {
    /// Opens a connection from this port by the usual hello.
    fn new(programs: &mut Programs, port: u16) -> Result<Self> {
        let family = Family::V4;
        let from = SocketAddr::new(client(family), port);
        let plain =
            |from, to, device: Device| segment(from, to).ethernet(device.near_mac(), device.far_mac());
        let client = plain(from, SocketAddr::new(vip(family), TLS_PORT), Device::Client);
        let syn = client.clone().syn(ISN[CLIENT]).linux_syn_options(MSS, TIME, SCALE);
        let answer = pass(programs, Device::Client, &syn, Reason::SynAnswered)?;
        let bytes = hello().name(server_name(0)).length(517).bytes();
        let greeted = ISN[CLIENT].wrapping_add(1).wrapping_add(bytes.len() as u32);
        let next =
            stamped(client.seq(ISN[CLIENT].wrapping_add(1)).ack(answer.seq.wrapping_add(1)), clock(&answer));
        let asked = pass(programs, Device::Client, &next.clone().payload(bytes), Reason::ConnectSyn)?;
        let backend = plain(asked.to, asked.from, Device::Backend);
        let accept = backend.clone().syn(ISN[BACKEND]).ack(asked.end()).linux_syn_options(MSS, TIME, SCALE);
        pass(programs, Device::Backend, &accept, Reason::ConnectHello)?;
        let other = stamped(backend.seq(ISN[BACKEND].wrapping_add(1)).ack(greeted), clock(&asked));
        // With it, the hello is delivered.
        pass(programs, Device::Backend, &other, Reason::ForwardClient)?;
        Ok(Self { next: [next.seq(greeted), other], sent: [0; 2], acked: [0; 2] })
    }

    /// Returns the next frames of one end: each has one byte more, and acknowledges one more of what the other end has sent before, if
    /// there is one.
    fn frames(&self, end: usize, count: u32) -> Vec<Vec<u8>> {
        let next = &self.next[end];
        let frame = |number: u32| {
            let seq = next.seq.wrapping_add(self.sent[end] + number);
            let ack = next.ack.wrapping_add(self.acked[end] + (number + 1).min(self.unanswered(end)));
            next.clone().seq(seq).ack(ack).payload([7]).bytes()
        };
        (0..count).map(frame).collect()
    }

    /// Returns how many bytes of the other end this one has not acknowledged.
    fn unanswered(&self, end: usize) -> u32 {
        self.sent[1 - end] - self.acked[end]
    }

    /// Notes that one end has sent its next frames.
    fn advance(&mut self, end: usize, count: u32, unanswered: u32) {
        self.sent[end] += count;
        self.acked[end] += count.min(unanswered);
    }
}

/// Adds timestamps, as on segments of an open connection; `echo` is the other end's.
fn stamped(segment: Segment, echo: u32) -> Segment {
    segment.option(TcpOption::Nop).option(TcpOption::Nop).timestamps(TIME + 1, echo)
}

/// Returns the timestamp of a segment; 0 without one.
fn clock(of: &Segment) -> u32 {
    let value = |option: &TcpOption| match option {
        TcpOption::Timestamps(value, _) => Some(*value),
        _ => None,
    };
    of.options.iter().find_map(value).unwrap_or_default()
}

/// Has the program handle a packet for this reason, and returns what it sends.
fn pass(programs: &mut Programs, device: Device, packet: &Segment, reason: Reason) -> Result<Segment> {
    let outcome = programs.ingress(device, &packet.bytes());
    ensure!(outcome.counted == [(reason, 1)], "counted were {:?}, not {reason:?}", outcome.counted);
    Segment::parse(&outcome.packet).context("no segment is sent")
}

/// What one direction took.
struct Taken {
    /// The nanoseconds of each run.
    each: Vec<u32>,
    span: [Instant; 2],
}

impl Taken {
    /// The median of its packets: what interrupts a run takes much longer.
    fn median(&self) -> f64 {
        let each: Vec<f64> = self.each.iter().copied().map(f64::from).collect();
        Median::of(&each).value
    }
}

/// Passes frames of both directions at once, each on one of these CPUs.
fn together(
    node: &Namespace,
    cpus: [usize; 2],
    timed: [Timed<'_>; 2],
    frames: &[Vec<Vec<u8>>; 2],
) -> Result<[Taken; 2]> {
    let start = Barrier::new(2);
    let path = node.path();
    let prepare = |cpu: usize| -> Result<()> {
        net::enter(&path)?;
        sched_setaffinity(Pid::from_raw(0), &only(cpu)?).with_context(|| format!("pinning to CPU {cpu}"))
    };
    let pass = |end: usize| -> Result<Taken> {
        let prepared = prepare(cpus[end]);
        let mut each = Vec::with_capacity(frames[end].len());
        // The other one waits for it, also if it failed.
        start.wait();
        prepared?;
        let begun = Instant::now();
        for frame in &frames[end] {
            let (answer, took) = timed[end].run(frame)?;
            ensure!(answer == verdict::REDIRECT, "a packet is not passed on: {answer}");
            each.push(took);
        }
        Ok(Taken { each, span: [begun, Instant::now()] })
    };
    scope(|scope| {
        let threads = [CLIENT, BACKEND].map(|end| scope.spawn(move || pass(end)));
        let [one, other] =
            threads.map(|thread| thread.join().map_err(|_| anyhow!("a thread ended early")).flatten());
        Ok([one?, other?])
    })
}

/// Returns the part of the longer span in which both were at work.
fn overlap([one, other]: [&Taken; 2]) -> f64 {
    let length = |span: [Instant; 2]| span[1].saturating_duration_since(span[0]);
    let both = [one.span[0].max(other.span[0]), one.span[1].min(other.span[1])];
    let longer: Duration = length(one.span).max(length(other.span));
    length(both).as_secs_f64() / longer.as_secs_f64()
}

/// What was measured: for one flow and for two, a figure for each round, in nanoseconds.
#[derive(Default)]
struct Figures {
    each: [Vec<f64>; 2],
    /// The smallest part of a run in which both CPUs were at work.
    overlap: f64,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    let cpus = two_cpus()?;
    let (count, together) = if effort.quick { (PACKETS_QUICK, 0.0) } else { (PACKETS, TOGETHER) };
    let how = How { cpus, count, together };
    let mut programs = Programs::load()?;
    programs.tls_with_one_route();
    let mut open = [Open::new(&mut programs, 40_000)?, Open::new(&mut programs, 40_001)?];
    let mut figures = Figures { overlap: 1.0, ..Figures::default() };
    // The first round warms up.
    for round in 0..=effort.rounds {
        let mut sums = [0.0; 2];
        for first in [0, 1] {
            // The client's packets of one flow, with the backend's of the same one or of the other, and in the next round in the other order.
            for turn in [round % 2, 1 - round % 2] {
                let flows = [first, if turn == 0 { first } else { 1 - first }];
                let (median, overlap) = run_together(&programs, &mut open, flows, how)?;
                sums[turn] += median / 2.0;
                figures.overlap = figures.overlap.min(overlap);
            }
        }
        if round > 0 {
            figures.each.iter_mut().zip(sums).for_each(|(each, sum)| each.push(sum));
        }
    }
    Ok(rows(&figures, &siblings(cpus)?))
}

/// How packets are passed: on which CPUs, how many of each direction, and the least part of the time in which both are at work.
#[derive(Clone, Copy)]
struct How {
    cpus: [usize; 2],
    count: u32,
    together: f64,
}

/// Carries out a [`run`] in which both CPUs are at work for long enough.
fn run_together(
    programs: &Programs,
    open: &mut [Open; 2],
    flows: [usize; 2],
    how: How,
) -> Result<(f64, f64)> {
    for _ in 0..TRIES {
        let done = run(programs, open, flows, how)?;
        if done.1 >= how.together {
            return Ok(done);
        }
    }
    bail!("in {TRIES} tries something else needed one of the two CPUs")
}

/// Passes the client's packets of one flow, and at the same time the backend's of one. Returns what the median packet takes, and
/// the part of the time in which both CPUs were at work.
fn run(
    programs: &Programs,
    open: &mut [Open; 2],
    flows: [usize; 2],
    How { cpus, count, .. }: How,
) -> Result<(f64, f64)> {
    let frames = [CLIENT, BACKEND].map(|end| open[flows[end]].frames(end, count));
    let unanswered = [CLIENT, BACKEND].map(|end| open[flows[end]].unanswered(end));
    let [client, backend] = DEVICES.map(|device| programs.timed(device));
    let before = programs.counters();
    let [one, other] = together(&programs.world.node, cpus, [client?, backend?], &frames)?;
    let after = programs.counters();
    for reason in [Reason::ForwardBackend, Reason::ForwardClient] {
        let passed = after[&reason] - before[&reason];
        ensure!(passed == u64::from(count), "{passed} of {count} packets are {reason:?}");
    }
    for end in [CLIENT, BACKEND] {
        open[flows[end]].advance(end, count, unanswered[end]);
    }
    Ok((f64::midpoint(one.median(), other.median()), overlap([&one, &other])))
}

/// Says what the two CPUs share.
fn siblings([one, other]: [usize; 2]) -> Result<String> {
    let path = format!("/sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let are = if shares(text.trim(), other) { "two threads of one core" } else { "two cores" };
    Ok(format!("CPUs {one} and {other} are {are}"))
}

/// Whether this CPU is in a list like `0-1,4`.
fn shares(list: &str, cpu: usize) -> bool {
    list.split(',').any(|part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let [low, high] = [low, high].map(str::parse::<usize>);
        matches!((low, high), (Ok(low), Ok(high)) if (low..=high).contains(&cpu))
    })
}

fn rows(figures: &Figures, siblings: &str) -> Vec<Row> {
    let [one, two] = &figures.each;
    let ratios: Vec<f64> = one.iter().zip(two).map(|(one, two)| one / two).collect();
    let row = |what: &str, each: &[f64], value: Option<Median>, note: String| Row {
        workload: "a packet of an established flow, the other direction on another CPU, ns".to_owned(),
        system: what.to_owned(),
        figure: format!("{:.0} ns", Median::of(each).value),
        value,
        target: None,
        failures: 0,
        note,
    };
    let note = format!(
        "{siblings}; each packet has a byte that is new, and mostly a new acknowledgement; the median packet of each direction; both CPUs were at work in at least {:.0} % of each run",
        100.0 * figures.overlap
    );
    vec![
        row("of another flow", two, None, String::new()),
        row("of the same flow", one, Some(Median::of(&ratios)), note),
    ]
}

#[cfg(test)]
mod tests {
    use nix::sched::CpuSet;

    use super::*;

    #[test]
    fn two_threads_of_one_core_are_siblings() {
        assert!(["0-1", "0,1", "0-3,8"].iter().all(|list| shares(list, 1)));
        assert!(!["0", "0,2", "2-3", ""].iter().any(|list| shares(list, 1)));
        assert!(shares("2,6", 6) && !shares("2,6", 3));
    }

    #[test]
    fn a_cpu_that_cannot_be_had_fails_both_directions() {
        ::tests::skip_without_root!();
        let programs = Programs::load().unwrap();
        let timed = || DEVICES.map(|device| programs.timed(device).unwrap());
        // The last CPU that can be named; the other direction must not wait for it.
        let (missing, [cpu, _]) = (CpuSet::count() - 1, two_cpus().unwrap());
        for cpus in [[missing, cpu], [cpu, missing]] {
            let failed = together(&programs.world.node, cpus, timed(), &[vec![], vec![]]);
            let error = failed.err().map(|error| error.to_string());
            assert_eq!(error, Some(format!("pinning to CPU {missing}")));
        }
    }

    #[test]
    fn every_packet_of_a_quick_run_is_passed_on() {
        ::tests::skip_without_root!();
        let effort = Effort { rounds: 2, milliseconds: 0, quick: true, flows: 0, against: None };
        let rows = measure(&effort).unwrap();
        let [two, one] = &rows[..] else { panic!("a row for each") };
        assert!(
            two.value.is_none() && one.value.is_some_and(|ratio| ratio.value > 0.1 && ratio.figures == 2)
        );
        let [first, second] = two_cpus().unwrap();
        assert!(one.note.starts_with(&format!("CPUs {first} and {second} are ")), "{}", one.note);
    }

    #[test]
    fn the_ratio_is_taken_within_each_round() {
        let figures = Figures { each: [vec![600.0, 1200.0], vec![400.0, 800.0]], overlap: 0.97 };
        let [two, one] = &rows(&figures, "CPUs 0 and 1 are two cores")[..] else { panic!("a row for each") };
        assert_eq!((&*two.figure, &*one.figure), ("600 ns", "900 ns"));
        assert_eq!(one.value.map(|ratio| (ratio.value, ratio.low, ratio.high)), Some((1.5, 1.5, 1.5)));
        assert!(one.note.ends_with("at least 97 % of each run"), "{}", one.note);
    }
}
