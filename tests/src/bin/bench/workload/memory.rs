//! Memory of connections that are open and idle.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use load::order::{Order, Task};

use crate::greeting;
use crate::rig::WIRE;
use crate::rounds::Effort;
use crate::stats::Median;
use crate::system::{Bench, System};
use crate::table::{Row, Target};

/// Connections of each client; a process may have 20,000 open files.
const CONNECTIONS: u32 = 9000;
/// The kernel's caches that grow with connections.
const CACHES: [&str; 7] = [
    "TCP",
    "sock_inode_cache",
    "request_sock_TCP",
    "tw_sock_TCP",
    "nf_conntrack",
    "skbuff_head_cache",
    "eventpoll_epi",
];

/// Memory in use, in bytes.
#[derive(Clone, Copy, Debug)]
struct Taken {
    caches: f64,
    process: f64,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    let (each, rounds) = if effort.quick { (500, 3) } else { (CONNECTIONS, 7) };
    let mut direct = Bench::new(System::Direct, WIRE, 1000)?;
    let mut bench = Bench::new(System::Vestibule, WIRE, 1000)?;
    let (mut caches, mut process) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (direct, ours) = (idle(&mut direct, each)?, idle(&mut bench, each)?);
        // The first round is not counted: it includes one-time allocations.
        if round > 0 {
            caches.push(ours.caches - direct.caches);
            process.push(ours.process);
        }
    }
    let daemon = bench.daemon().context("the system is ours")?;
    let (flows, entries) = map(&daemon.pins().join(common::maps::name::FLOWS))?;
    let (nats, _) = map(&daemon.pins().join(common::maps::name::NATS))?;
    let (listed, _) = map(&daemon.pins().join(common::maps::name::DNAT_FLOWS))?;
    let maps = (flows + nats + listed) / entries;
    let (caches, process) = (Median::of(&caches), Median::of(&process));
    let sum = |caches: f64| (maps + caches.max(0.0) + process.value.max(0.0)) / 1024.0;
    Ok(vec![Row {
        workload: format!("memory per idle connection ({} held), KB", 2 * each),
        system: System::Vestibule.name().into(),
        figure: format!(
            "maps {maps:.0} B, kernel caches above direct {:.0} B, process {:.0} B",
            caches.value, process.value
        ),
        value: Some(Median {
            value: sum(caches.value),
            low: sum(caches.low),
            high: sum(caches.high),
            figures: caches.figures,
        }),
        target: Some(Target::AtMost(0.4)),
        failures: 0,
        note: format!("FLOWS, NATS and DNAT_FLOWS at {entries} flows"),
    }])
}

/// Returns the growth per connection while each of the two clients holds `each` connections.
fn idle(bench: &mut Bench, each: u32) -> Result<Taken> {
    let before = settled(bench)?;
    let order = |seed| Order {
        template: greeting::usual(),
        aim: bench.aim(seed),
        task: Task::Hold { connections: each },
    };
    let orders = [order(0), order(1)];
    let report = bench.rig.order(&orders)?;
    ensure!(report.done == u64::from(2 * each), "held {} connections: {:?}", report.done, report.errors);
    let after = taken(bench)?;
    let check = orders.map(|order| Order { task: Task::Check, ..order });
    let asked = bench.rig.order(&check)?;
    ensure!(asked.done == report.done, "{} of {} answered: {:?}", asked.done, report.done, asked.errors);
    let release = check.map(|order| Order { task: Task::Release, ..order });
    bench.rig.order(&release)?;
    let per = |before: f64, after: f64| (after - before) / f64::from(2 * each);
    Ok(Taken { caches: per(before.caches, after.caches), process: per(before.process, after.process) })
}

/// Returns the memory in use once it no longer shrinks: released sockets are freed a little later.
fn settled(bench: &mut Bench) -> Result<Taken> {
    let mut last = taken(bench)?;
    for _ in 0..100 {
        sleep(Duration::from_millis(300));
        let now = taken(bench)?;
        if now.caches >= last.caches {
            break;
        }
        last = now;
    }
    Ok(last)
}

fn taken(bench: &mut Bench) -> Result<Taken> {
    let text = fs::read_to_string("/proc/slabinfo").context("reading /proc/slabinfo")?;
    let process = match bench.daemon().and_then(|daemon| daemon.pid()) {
        Some(pid) => proportional(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?)
            .context("no line Pss in smaps_rollup")?,
        None => 0.0,
    };
    Ok(Taken { caches: caches(&text), process })
}

/// Returns the bytes of objects in use in [`CACHES`].
fn caches(slabinfo: &str) -> f64 {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let (active, _, size) = (words.next()?, words.next()?, words.next()?);
        CACHES
            .contains(&name)
            .then(|| Some(active.parse::<f64>().ok()? * size.parse::<f64>().ok()?))
            .flatten()
    };
    slabinfo.lines().filter_map(line).sum()
}

/// Returns the bytes of a process, with its proportional share of shared memory.
fn proportional(smaps_rollup: &str) -> Option<f64> {
    let line = smaps_rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

/// Returns bytes and entries of a pinned map, as the kernel reports them.
fn map(pin: &Path) -> Result<(f64, f64)> {
    let output = std::process::Command::new("bpftool")
        .args(["-j", "map", "show", "pinned"])
        .arg(pin)
        .output()
        .context("running bpftool")?;
    let told: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("reading bpftool's answer")?;
    let number = |field: &str| told.get(field).and_then(serde_json::Value::as_f64);
    number("bytes_memlock").zip(number("max_entries")).with_context(|| format!("bpftool says {told}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        let slabs = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize>\nTCP 10 20 2432 13 8\n\
                     tw_sock_TCP 4 5 256 1 1\nTCPv6 1 1 2600\ndentry 5 5 192\n";
        assert_eq!(caches(slabs), 10.0 * 2432.0 + 4.0 * 256.0);
        assert_eq!(proportional("Rss: 900 kB\nPss:     12 kB\nPss_Dirty: 1 kB\n"), Some(12288.0));
    }
}
