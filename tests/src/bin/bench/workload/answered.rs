//! What a million SYNs cost that are answered, a million segments that are dropped, and a million that XDP passes: by TCX alone, and by
//! XDP in front of it. The frames come from a program that sends one frame again and again; what that costs itself is measured, and
//! subtracted.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use ::tests::addresses::{BACKEND_PORT, Family, TLS_PORT, client, server_name};
use ::tests::config::Config;
use ::tests::daemon::Daemon;
use ::tests::hello::hello;
use ::tests::live_frames::{self, Every};
use ::tests::offload;
use ::tests::packet::{Segment, segment};
use ::tests::pinned::{xdp_in_driver, xdp_on};
use ::tests::server::read_line;
use ::tests::tap::Tap;
use ::tests::tcp_option::TcpOption;
use ::tests::tls;
use ::tests::topology::{CLIENT_DEVICE, Lab, Options, UPLINK};
use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::cpu::{self, Mark};
use crate::rounds::Effort;
use crate::stats::Median;
use crate::table::{Row, Target};

/// Frames of one run.
const FRAMES: u32 = 1_000_000;
/// The part of them that must have been handled: the device's queue may overflow, and what is lost there would be charged to the others.
const HANDLED: f64 = 0.95;

/// Which load is of an open connection.
const OPEN: usize = 4;
/// Where forged sources come from.
const FORGED: [u8; 4] = [10, 98, 0, 0];

const SYSTEMS: [&str; 2] = ["vestibule, TCX", "vestibule, XDP"];

/// A frame that is sent, and the reasons for which TCX and XDP count it.
struct Load {
    name: &'static str,
    frame: Vec<u8>,
    /// Each frame is of another of 65,536 sources.
    many: bool,
    reasons: [&'static str; 2],
    /// How much less XDP must cost; `None`: it passes the frame, so its one look comes on top.
    least: Option<f64>,
}

/// What was measured of a load.
#[derive(Debug)]
struct Figures {
    /// Seconds that sending a frame takes which the receiving device does not take.
    sent: Vec<f64>,
    /// Seconds that it takes to send one to a program that drops it.
    dropped: Vec<f64>,
    /// Seconds that each system takes for a frame beside that.
    costs: [Vec<f64>; 2],
    /// The smallest part of the frames that each handled in any round.
    handled: [f64; 2],
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    let rounds = if effort.quick { 1 } else { effort.rounds.min(20) };
    let lab = Lab::with(&Options { servers: false, offloads: false, ..Options::default() })?;
    let _echoes = lab.echo_servers(BACKEND_PORT)?;
    // On the other end of a veth, answers of either are taken alike.
    let mut end = Some(Every::drops(&lab.client, UPLINK)?);
    // Nor does the client answer who has its address then.
    let [a, b, c, d, e, f] = lab.client.mac(UPLINK)?;
    lab.balancer.ip(&format!(
        "neigh replace {} lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} dev {CLIENT_DEVICE} nud permanent\n",
        client(Family::V4)
    ))?;
    let mut loads = loads(&lab)?;
    lab.balancer.ip(&format!("route add 10.98.0.0/16 via {} dev {CLIENT_DEVICE}\n", client(Family::V4)))?;
    let none = || Figures {
        sent: Vec::new(),
        dropped: Vec::new(),
        costs: [Vec::new(), Vec::new()],
        handled: [1.0; 2],
    };
    let mut all: Vec<Figures> = loads.iter().map(|_| none()).collect();
    for _ in 0..rounds {
        for (load, figures) in loads.iter().zip(&mut all) {
            // Without GRO and program a veth takes no frames from XDP.
            offload::set_aggregation(&lab.balancer, CLIENT_DEVICE, false)?;
            figures.sent.push(spend(&lab, load)? / f64::from(FRAMES));
            let _all = Every::drops(&lab.balancer, CLIENT_DEVICE)?;
            figures.dropped.push(spend(&lab, load)? / f64::from(FRAMES));
        }
        for (system, title) in SYSTEMS.iter().enumerate() {
            let daemon = start(&lab, system == 1)?;
            drop(end.take());
            let open = Open::new(&lab)?;
            end = Some(Every::drops(&lab.client, UPLINK)?);
            loads[OPEN].frame = open.ack;
            for (load, figures) in loads.iter().zip(&mut all) {
                let before = handled(&daemon, load, system)?;
                let spent = spend(&lab, load)?;
                let count = handled(&daemon, load, system)? - before;
                ensure!(
                    count as f64 > HANDLED * f64::from(FRAMES),
                    "{}, {title}: only {count} of {FRAMES} frames were handled",
                    load.name
                );
                // Sent they were all.
                let own = figures.sent.last().copied().unwrap_or_default() * f64::from(FRAMES);
                figures.costs[system].push((spent - own).max(0.0) / count as f64);
                let part = count as f64 / f64::from(FRAMES);
                figures.handled[system] = figures.handled[system].min(part);
            }
        }
    }
    Ok(loads.iter().zip(&all).flat_map(|(load, figures)| rows(load, figures)).collect())
}

/// A connection, and a segment of its client that acknowledges all.
struct Open {
    _stream: TcpStream,
    ack: Vec<u8>,
}

impl Open {
    fn new(lab: &Lab) -> Result<Self> {
        // What XDP sends back, a veth takes only where there is a program.
        let _end = Every::passes(&lab.client, UPLINK)?;
        let tap = Tap::open(&lab.client, UPLINK)?;
        let mut stream = lab.client.run(|| tls::dial(lab.vip(Family::V4, TLS_PORT)))?;
        stream.write_all(&hello().name(server_name(0)).bytes())?;
        read_line(&mut stream)?.context("the backend sends no name")?;
        // Until all that it sends has arrived.
        sleep(Duration::from_millis(300));
        let own = stream.local_addr()?;
        let received = tap.drain()?;
        let last = received.iter().filter_map(|frame| Segment::parse(frame)).rfind(|one| one.to == own);
        Ok(Self { ack: answer(&last.context("nothing came back")?).bytes(), _stream: stream })
    }
}

/// Returns the acknowledgement of a segment, from its receiver; with its timestamps, if it has any.
fn answer(last: &Segment) -> Segment {
    let (to, from) = last.ethernet;
    let plain = segment(last.to, last.from).ethernet(from, to).seq(last.ack).ack(last.end());
    let stamps = last.options.iter().find_map(|option| match option {
        TcpOption::Timestamps(value, echo) => Some((*value, *echo)),
        _ => None,
    });
    match stamps {
        Some((value, echo)) => plain.option(TcpOption::Nop).option(TcpOption::Nop).timestamps(echo, value),
        None => plain,
    }
}

fn loads(lab: &Lab) -> Result<[Load; 7]> {
    let from = std::net::SocketAddr::new(client(Family::V4), 40_000);
    let macs = (lab.balancer.mac(CLIENT_DEVICE)?, lab.client.mac(UPLINK)?);
    let plain: Segment = segment(from, lab.vip(Family::V4, TLS_PORT)).ethernet(macs.0, macs.1);
    let syn = plain.clone().syn(7).linux_syn_options(1460, 5, 7);
    let without_flags = |mut frame: Vec<u8>| {
        frame[47] = 0;
        frame
    };
    let mut forged = plain.clone().syn(0).linux_syn_options(1460, 5, 7);
    forged.from.set_ip(FORGED.into());
    Ok([
        Load {
            name: "SYNs answered",
            frame: syn.bytes(),
            many: false,
            reasons: ["SynAnswered", "XdpAnswered"],
            least: Some(1.5),
        },
        Load {
            name: "segments without flags dropped",
            frame: without_flags(syn.bytes()),
            many: false,
            reasons: ["ParseFlags"; 2],
            least: Some(2.5),
        },
        // By their flags alone they pass XDP.
        Load {
            name: "ACKs of no connection reset",
            frame: plain.clone().seq(8).ack(9).bytes(),
            many: false,
            reasons: ["SynCookieMismatch"; 2],
            least: None,
        },
        // These pass it once it has read the whole header.
        Load {
            name: "strays (RST of no connection) dropped",
            frame: plain.clone().seq(8).rst().bytes(),
            many: false,
            reasons: ["SynStray"; 2],
            least: None,
        },
        // The frame is that of each system's own connection.
        Load {
            name: "ACKs passed to the backend of an open connection",
            frame: answer(&plain.timestamps(1, 1)).bytes(),
            many: false,
            reasons: ["ForwardBackend"; 2],
            least: None,
        },
        // A flood of forged sources.
        Load {
            name: "SYNs of 65,536 sources answered",
            frame: forged.bytes(),
            many: true,
            reasons: ["SynAnswered", "XdpAnswered"],
            least: Some(1.5),
        },
        Load {
            name: "segments of 65,536 sources without flags dropped",
            frame: without_flags(forged.bytes()),
            many: true,
            reasons: ["ParseFlags"; 2],
            least: Some(2.5),
        },
    ])
}

/// Starts the daemon. Without a program of ours, the device takes the frames only if it puts segments together (GRO).
fn start(lab: &Lab, with_xdp: bool) -> Result<Daemon> {
    let mut config = Config::lab();
    config.settings.xdp_devices = with_xdp.then(|| vec![CLIENT_DEVICE.to_owned()]);
    offload::set_aggregation(&lab.balancer, CLIENT_DEVICE, true)?;
    let daemon = lab.vestibule(&config)?;
    // Of what is dropped, the reason does not say which hook it was.
    match with_xdp {
        true => drop(xdp_in_driver(daemon.pins(), &lab.balancer, CLIENT_DEVICE)?),
        false => ensure!(xdp_on(&lab.balancer, CLIENT_DEVICE)?.is_none(), "XDP is on {CLIENT_DEVICE}"),
    }
    Ok(daemon)
}

/// Returns how many frames the system has handled as the load asks for.
fn handled(daemon: &Daemon, load: &Load, system: usize) -> Result<u64> {
    let counts: BTreeMap<String, u64> = daemon.reasons()?;
    Ok(counts.get(load.reasons[system]).copied().unwrap_or(0))
}

/// Sends the frames, and returns the CPU-seconds that this took.
fn spend(lab: &Lab, load: &Load) -> Result<f64> {
    let mut pids = cpu::softirq_daemons();
    pids.push(std::process::id());
    let index = lab.client.ifindex(UPLINK)?;
    lab.client.run(|| {
        // Where the frames are sent, they are received: on one CPU.
        let mut one = CpuSet::new();
        one.set(0)?;
        sched_setaffinity(Pid::from_raw(0), &one)?;
        let mark = Mark::now(&pids)?;
        match load.many {
            true => live_frames::send_from_many(index, &load.frame, FRAMES)?,
            false => live_frames::send(index, &load.frame, FRAMES)?,
        }
        Ok(mark.until_now(&pids)?.ours.as_secs_f64())
    })
}

/// Returns the rows of a load: what each system costs, without what sending costs, and how much less XDP costs. Where it has no target,
/// the ratio is shown alone.
fn rows(load: &Load, figures: &Figures) -> Vec<Row> {
    let costs = &figures.costs;
    let ratios: Vec<f64> = costs[0].iter().zip(&costs[1]).map(|(tcx, xdp)| tcx / xdp).collect();
    let million = |costs: &[f64]| 1e6 * Median::of(costs).value;
    let row = |system: usize| Row {
        workload: format!("{}, CPU of a million", load.name),
        system: SYSTEMS[system].into(),
        figure: format!("{:.3} s ({:.0} ns each)", million(&costs[system]), 1e3 * million(&costs[system])),
        value: (system == 1).then(|| Median::of(&ratios)),
        target: load.least.filter(|_| system == 1).map(Target::AtLeast),
        failures: 0,
        note: format!(
            "sending them took {:.3} s, which is subtracted ({:.3} s with a program behind it that drops all); at least {:.1} % of them were handled",
            million(&figures.sent),
            million(&figures.dropped),
            100.0 * figures.handled[system]
        ),
    };
    vec![row(0), row(1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_of_all_that_was_received() {
        let [own, far] = [([10, 0, 0, 1], 40_000).into(), ([10, 0, 0, 2], 443).into()];
        let received = segment(far, own).ethernet([1; 6], [2; 6]).seq(u32::MAX).ack(7).payload(*b"name");
        let plain = answer(&received);
        assert_eq!((plain.from, plain.to, plain.ethernet), (own, far, ([2; 6], [1; 6])));
        assert_eq!((plain.seq, plain.ack, plain.bytes().len()), (7, 3, 54));
        let stamped = answer(&received.timestamps(5, 6));
        assert_eq!(stamped.options.last(), Some(&TcpOption::Timestamps(6, 5)));
        assert_eq!(stamped.bytes().len(), 66);
    }

    #[test]
    fn what_xdp_passes_has_a_figure_and_no_target() {
        let load =
            |least| Load { name: "SYNs", frame: Vec::new(), many: false, reasons: ["SynAnswered"; 2], least };
        let figures = Figures {
            sent: vec![2e-7],
            dropped: vec![3e-7],
            costs: [vec![9e-7], vec![3e-7]],
            handled: [0.75, 1.0],
        };
        let [tcx, xdp] = &rows(&load(Some(2.5)), &figures)[..] else { panic!("a row for each system") };
        assert_eq!((&*tcx.figure, &*xdp.figure), ("0.900 s (900 ns each)", "0.300 s (300 ns each)"));
        assert_eq!((tcx.target, xdp.target), (None, Some(Target::AtLeast(2.5))));
        assert!(
            tcx.note.contains("took 0.200 s")
                && tcx.note.contains("0.300 s with")
                && tcx.note.contains("75.0 %"),
            "{}",
            tcx.note
        );
        assert!(xdp.note.contains("100.0 %"), "{}", xdp.note);
        let [_, passed] = &rows(&load(None), &figures)[..] else { panic!("a row for each system") };
        assert!(passed.target.is_none() && passed.value.is_some());
    }
}
