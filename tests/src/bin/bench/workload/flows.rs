//! Millions of flows in the maps, 10,000 of them of connections that are open: what new connections, the daemon at rest, removals and
//! `vestibule flows` cost among them.

use std::mem::take;
use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ::tests::written_flows::{self, Draw, Written};
use ::tests::{copies, daemon::Daemon};
use anyhow::{Context, Result, bail, ensure};
use load::order::{Order, Report, Task};
use userspace::dataplane::pin::Pins;
use userspace::dataplane::sizes::Sizes;
use userspace::dataplane::{OBJECT, memory, read};
use userspace::model::Settings;

use super::behind::{self, SPARE, row};
use super::carried::rows;
use super::grouped;
use super::routes::most_memory;
use crate::greeting;
use crate::rig::{SERVERS, WIRE};
use crate::rounds::{Effort, per_cpu_second, turns};
use crate::stats::Median;
use crate::system::Bench;
use crate::system::vestibule::{self, Format};
use crate::table::{Row, Target};

/// Routes, each with one backend.
const TENANTS: u32 = 1_000;
/// Connections that are open, and how many of the two clients' each.
const REAL: u32 = 10_000;
const EACH: u32 = REAL / 2;
/// Flows of what is removed.
const BEHIND: u32 = 100_000;
/// Two checks of all flows are less far apart.
const WALKS_WITHIN: Duration = Duration::from_secs(480);
/// Where the tuples are drawn from.
const SEED: u32 = 0x2026_1129;
/// What is left for all else, in bytes.
const BESIDE: u64 = 1_500 << 20;

/// A system with flows.
struct Filled {
    bench: Bench,
    /// All of them.
    flows: u32,
    written: Written,
}

impl Filled {
    /// Where its flows are from.
    fn origin(&self) -> String {
        let hours = Settings::default().idle_timeout.as_secs() / 3600;
        let sources = grouped(self.written.by_client.len() as f64);
        format!("seed {SEED:#x}; {sources} sources; {TENANTS} routes; idleTimeout {hours} h")
    }
}

/// Returns the systems that are measured: their flows, and what their maps have room for. First the same maps with few flows, then those
/// with many, and last what a node has that was not made for many.
fn wanted(effort: &Effort) -> Vec<(u32, u32)> {
    let usual = Settings::default().max_flows;
    // Over four fifths, the daemon makes room.
    let max_flows = usual.max(effort.flows.saturating_add(effort.flows / 10 * 3));
    let mut wanted = vec![(REAL, max_flows), (effort.flows, max_flows)];
    if max_flows != usual {
        wanted.push((REAL, usual));
    }
    wanted
}

/// Says what all systems need together, and refuses where that is not there.
pub(super) fn check_memory(effort: &Effort) -> Result<()> {
    need(&wanted(effort))
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    let wanted = wanted(effort);
    let max_flows = wanted[1].1;
    need(&wanted)?;
    let mut filled = wanted.into_iter().map(|(flows, max)| fill(flows, max)).collect::<Result<Vec<_>>>()?;
    let mut all = connect(&mut filled, effort)?;
    if let (Some(row), Some(many)) = (all.first_mut(), filled.get(1)) {
        row.note = [many.origin(), take(&mut row.note)].join("; ").trim_end_matches("; ").to_owned();
    }
    all.extend(at_rest(&mut filled, effort)?);
    let [_, many, ..] = &mut filled[..] else { return Ok(all) };
    all.push(shown(many)?);
    check_held(many)?;
    let behind = BEHIND.min(effort.flows / 4);
    let mut writing = behind::Writing { draw: Draw::new(SEED), next: many.flows - REAL, each: behind };
    for removal in behind::removals(&text(max_flows), TENANTS)? {
        all.push(removal.row(&mut many.bench, many.flows, effort, &mut writing)?);
    }
    let daemon = many.bench.daemon().context("the system is ours")?;
    let peak = most_memory(daemon)? * 1e3;
    all.push(row(many.flows, "memory of the daemon at most, MB", Median::one(peak), "MB", None));
    Ok(all)
}

fn need(wanted: &[(u32, u32)]) -> Result<()> {
    let Settings { max_hellos, .. } = Settings::default();
    let mut needed = BESIDE;
    for (_, flows) in wanted {
        let sizes = Sizes { flows: *flows, names: vestibule::names_most(TENANTS), hellos: max_hellos };
        needed += memory::of(OBJECT, sizes)?.at_once;
    }
    let available = memory::available().context("the kernel does not say what memory is available")?;
    let gb = |bytes: u64| bytes as f64 / 1e9;
    eprintln!(
        "flows: needs {:.1} GB of memory: {} systems at once, with their maps for {:?} flows; {:.1} GB are available",
        gb(needed),
        wanted.len(),
        wanted.iter().map(|(_, max)| *max).collect::<Vec<_>>(),
        gb(available)
    );
    ensure!(needed <= available, "too little memory: choose fewer with --flows, or a machine with more");
    Ok(())
}

fn text(max_flows: u32) -> String {
    let text = vestibule::text(TENANTS, TENANTS, Format::Json, None);
    text.replacen("\"maxNames\"", &format!("\"maxFlows\":{max_flows},\"maxNames\""), 1)
}

/// Starts a system, opens its connections, and writes the other flows.
fn fill(flows: u32, max_flows: u32) -> Result<Filled> {
    let begun = Instant::now();
    let mut bench = Bench::with_text(WIRE, TENANTS, TENANTS + SPARE, &text(max_flows))?;
    bench.title =
        Some(format!("vestibule, {} flows of {}", grouped(flows.into()), grouped(max_flows.into())));
    bench.check_congestion_control()?;
    copies::own_clients(&bench.rig.client)?;
    let held = both(&mut bench, 0, Task::Hold { connections: EACH })?;
    ensure!(held.done == u64::from(REAL), "held {} of {REAL} connections: {:?}", held.done, held.errors);
    let mut written = Written::default();
    if flows > REAL {
        let maps = read::open(&Pins::new(bench.daemon().context("the system is ours")?.pins()))?;
        let behind = BEHIND.min(flows / 4);
        written =
            written_flows::write(&maps, Draw::new(SEED), SERVERS.port(), TENANTS, behind, flows - REAL)?;
        let clients = written.by_client.len();
        eprintln!(
            "flows: {} written from seed {SEED:#x}, of {clients} clients to {TENANTS} routes, in {:.0?}",
            grouped((flows - REAL).into()),
            begun.elapsed()
        );
    }
    Ok(Filled { bench, flows, written })
}

/// Gives both clients the same task.
fn both(bench: &mut Bench, seed: u32, task: Task) -> Result<Report> {
    let order = |seed| Order { template: greeting::usual(), aim: bench.aim(seed), task };
    let orders = [order(seed), order(seed + 1)];
    bench.rig.order(&orders)
}

/// New connections: the ratio to the system with few flows.
fn connect(filled: &mut [Filled], effort: &Effort) -> Result<Vec<Row>> {
    let task = Task::Connect { slots: 32, milliseconds: effort.milliseconds };
    let flows = filled.get(1).map_or(0, |many| many.flows);
    let mut benches: Vec<&mut Bench> = filled.iter_mut().map(|filled| &mut filled.bench).collect();
    let series = turns(&mut benches, effort, |bench, seed| both(bench, seed, task), per_cpu_second)?;
    let what = format!("{} flows: new connections, 517 B hello", grouped(flows.into()));
    let mut rows =
        rows(&what, &series, Target::AtLeast(0.95), |figure| format!("{} per CPU-s", grouped(figure)));
    // A smaller table is nearer, with the same flows.
    rows.iter_mut().skip(2).for_each(|row| row.target = None);
    Ok(rows)
}

/// What the daemons use while nothing happens: of one CPU, and of memory.
fn at_rest(filled: &mut [Filled], effort: &Effort) -> Result<Vec<Row>> {
    // The closed connections of the load are gone by then.
    sleep(Duration::from_secs(if effort.quick { 11 } else { 20 }));
    let used = |filled: &mut [Filled]| -> Result<Vec<Duration>> {
        filled.iter_mut().map(|filled| daemon(filled)?.cpu_time()).collect()
    };
    // From the end of a check of all flows to the end of the next but one: they are up to four minutes apart.
    next_walk(&mut filled[1])?;
    let (before, begun) = (used(filled)?, Instant::now());
    let mut walks = Vec::new();
    for _ in 0..if effort.quick { 1 } else { 2 } {
        walks.push(next_walk(&mut filled[1])?);
    }
    let (after, passed) = (used(filled)?, begun.elapsed());
    let shares: Vec<Median> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| Median::of(&[(*after - *before).as_secs_f64() / passed.as_secs_f64()]))
        .collect();
    let flows = filled[1].flows;
    let mut share =
        row(flows, "the daemon at rest, share of a CPU", shares[1], "", Some(Target::AtMost(0.05)));
    share.note = format!("at {} flows {:.4}", grouped(REAL.into()), shares[0].value);
    let bytes = daemon(&mut filled[1])?.resident_bytes()? as f64 / 1e6;
    let few = daemon(&mut filled[0])?.resident_bytes()? as f64 / 1e6;
    let mut resident = row(flows, "memory of the daemon at rest, MB", Median::one(bytes), "MB", None);
    resident.note = format!("at {} flows {few:.0} MB", grouped(REAL.into()));
    let [wall, cpu] =
        [0, 1].map(|which| Median::of(&walks.iter().map(|took| took[which]).collect::<Vec<_>>()));
    let mut walk = row(flows, "a walk over all flows, s", wall, "s", None);
    walk.note = format!("{:.3} s of CPU; the time limits of connections, in one thread", cpu.value);
    Ok(vec![share, resident, walk])
}

/// Waits for the end of the next check of all flows. Returns the seconds that it took, and those of a CPU.
fn next_walk(filled: &mut Filled) -> Result<[f64; 2]> {
    let daemon = daemon(filled)?;
    let (begun, before) = (Instant::now(), walks(&daemon.whole_log()).count());
    while begun.elapsed() < WALKS_WITHIN {
        sleep(Duration::from_millis(200));
        if let Some(took) = walks(&daemon.whole_log()).nth(before) {
            return Ok(took);
        }
    }
    bail!("the daemon did not look at all flows within {WALKS_WITHIN:?}, or does not log it (VESTIBULE_LOG)")
}

/// Returns what each check of all flows took, from the daemon's log.
fn walks(log: &str) -> impl Iterator<Item = [f64; 2]> {
    let seconds = |line: &str, field: &str| -> Option<f64> {
        let (_, value) = line.split_once(field)?;
        value.split_whitespace().next()?.parse::<f64>().ok().map(|milliseconds| milliseconds / 1e3)
    };
    let checks = log.lines().filter(|line| line.contains("checked: time limit"));
    checks.filter_map(move |line| Some([seconds(line, "elapsed_ms=")?, seconds(line, "cpu_ms=")?]))
}

fn daemon(filled: &mut Filled) -> Result<&mut Daemon> {
    filled.bench.daemon().context("the system is ours")
}

/// `vestibule flows` of one client.
fn shown(filled: &mut Filled) -> Result<Row> {
    let (client, count) = filled.written.by_client.iter().max().context("no flow was written")?;
    let (client, count): (Ipv4Addr, u32) = (*client, *count);
    let (mut times, mut wrong) = (Vec::new(), 0);
    for _ in 0..3 {
        let begun = Instant::now();
        let text = daemon(filled)?.cli_text(&[
            "flows",
            "--from",
            &IpAddr::from(client).to_string(),
            "-o",
            "json",
        ])?;
        times.push(begun.elapsed().as_secs_f64());
        wrong += u64::from(text.lines().count().abs_diff(count as usize) as u32);
    }
    let mut row = row(filled.flows, "`vestibule flows` of one client, s", Median::of(&times), "s", None);
    row.failures = wrong;
    row.note = format!("{count} flows; {wrong} too many or missing");
    Ok(row)
}

/// Fails if a connection that is open no longer is.
fn check_held(filled: &mut Filled) -> Result<()> {
    let checked = both(&mut filled.bench, 0, Task::Check)?;
    ensure!(
        checked.done == u64::from(REAL),
        "{} of {REAL} connections answer: {:?}",
        checked.done,
        checked.errors
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_walk_took_is_in_the_log() {
        let log = "t DEBUG checked: time limit elapsed_ms=2070 cpu_ms=2010\nt DEBUG ended: time limit flows=1\n\
                   t DEBUG checked: left over elapsed_ms=7 cpu_ms=7\nt DEBUG checked: time limit elapsed_ms=30 cpu_ms=20\n";
        assert_eq!(walks(log).collect::<Vec<_>>(), [[2.07, 2.01], [0.03, 0.02]]);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let refused = need(&[(REAL, u32::MAX / 4)]).unwrap_err().to_string();
        assert!(refused.contains("--flows"), "{refused}");
        assert!(need(&[]).is_ok());
    }
}
