//! What a million SYNs cost that are answered, and a million segments that are dropped: by TCX alone, and by XDP in front of it. The
//! frames come from a program that sends one frame again and again; what that costs itself is measured, and subtracted.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tests::addresses::{Family, TLS_PORT, client};
use tests::config::Config;
use tests::daemon::Daemon;
use tests::live_frames::{self, Every};
use tests::offload;
use tests::packet::{Segment, segment};
use tests::topology::{CLIENT_DEVICE, Lab, Options, UPLINK};

use crate::cpu::{self, Mark};
use crate::rounds::Effort;
use crate::stats::Median;
use crate::table::{Row, Target};

/// Frames of one run.
const FRAMES: u32 = 1_000_000;
/// The part of them that must have been handled: the device's queue may overflow.
const HANDLED: f64 = 0.5;

const SYSTEMS: [&str; 2] = ["vestibule, TCX", "vestibule, XDP"];

/// A frame that is sent, and the reasons for which TCX and XDP count it.
struct Load {
    name: &'static str,
    frame: Vec<u8>,
    reasons: [&'static str; 2],
    /// How much less XDP must cost.
    least: f64,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    let rounds = if effort.quick { 1 } else { effort.rounds.min(10) };
    let lab = Lab::with(&Options { servers: false, offloads: false, ..Options::default() })?;
    // On the other end of a veth, answers of either are taken alike.
    let _end = Every::drops(&lab.client, UPLINK)?;
    // Nor does the client answer who has its address then.
    let [a, b, c, d, e, f] = lab.client.mac(UPLINK)?;
    lab.balancer.ip(&format!(
        "neigh replace {} lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} dev {CLIENT_DEVICE} nud permanent\n",
        client(Family::V4)
    ))?;
    let loads = loads(&lab)?;
    let mut idle = vec![Vec::new(); loads.len()];
    let mut costs = vec![[Vec::new(), Vec::new()]; loads.len()];
    for _ in 0..rounds {
        for (load, idle) in loads.iter().zip(&mut idle) {
            let _all = Every::drops(&lab.balancer, CLIENT_DEVICE)?;
            idle.push(spend(&lab, load)? / f64::from(FRAMES));
        }
        for system in 0..SYSTEMS.len() {
            let daemon = start(&lab, system == 1)?;
            for (place, load) in loads.iter().enumerate() {
                let before = handled(&daemon, load, system)?;
                let spent = spend(&lab, load)?;
                let count = handled(&daemon, load, system)? - before;
                ensure!(
                    count as f64 > HANDLED * f64::from(FRAMES),
                    "{}, {}: only {count} of {FRAMES} frames were handled",
                    load.name,
                    SYSTEMS[system]
                );
                // Sent they were all.
                let own = idle[place].last().copied().unwrap_or_default() * f64::from(FRAMES);
                costs[place][system].push((spent - own).max(0.0) / count as f64);
            }
        }
    }
    let all = loads.iter().zip(idle).zip(costs);
    Ok(all.flat_map(|((load, idle), costs)| rows(load, &idle, &costs)).collect())
}

fn loads(lab: &Lab) -> Result<[Load; 2]> {
    let from = std::net::SocketAddr::new(client(Family::V4), 40_000);
    let macs = (lab.balancer.mac(CLIENT_DEVICE)?, lab.client.mac(UPLINK)?);
    let syn: Segment = segment(from, lab.vip(Family::V4, TLS_PORT))
        .ethernet(macs.0, macs.1)
        .syn(7)
        .linux_syn_options(1460, 5, 7);
    let mut garbage = syn.bytes();
    garbage[47] = 0;
    Ok([
        Load {
            name: "SYNs answered",
            frame: syn.bytes(),
            reasons: ["SynAnswered", "XdpAnswered"],
            least: 1.5,
        },
        Load {
            name: "segments without flags dropped",
            frame: garbage,
            reasons: ["ParseFlags"; 2],
            least: 2.5,
        },
    ])
}

/// Starts the daemon. Without a program of ours, the device takes the frames only if it puts segments together (GRO).
fn start(lab: &Lab, with_xdp: bool) -> Result<Daemon> {
    let mut config = Config::lab();
    config.settings.xdp_devices = with_xdp.then(|| vec![CLIENT_DEVICE.to_owned()]);
    offload::set_aggregation(&lab.balancer, CLIENT_DEVICE, true)?;
    lab.vestibule(&config)
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
        live_frames::send(index, &load.frame, FRAMES)?;
        Ok(mark.until_now(&pids)?.ours.as_secs_f64())
    })
}

/// Returns the rows of a load: what each system costs, without what sending costs, and how much less XDP costs.
fn rows(load: &Load, idle: &[f64], costs: &[Vec<f64>; 2]) -> Vec<Row> {
    let ratios: Vec<f64> = costs[0].iter().zip(&costs[1]).map(|(tcx, xdp)| tcx / xdp).collect();
    let million = |costs: &[f64]| 1e6 * Median::of(costs).value;
    let row = |system: usize| Row {
        workload: format!("{}, CPU of a million", load.name),
        system: SYSTEMS[system].into(),
        figure: format!("{:.3} s", million(&costs[system])),
        value: (system == 1).then(|| Median::of(&ratios)),
        target: (system == 1).then_some(Target::AtLeast(load.least)),
        failures: 0,
        note: format!("sending them took {:.3} s, which is subtracted", million(idle)),
    };
    vec![row(0), row(1)]
}
