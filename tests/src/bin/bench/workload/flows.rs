//! Millions of flows in the maps, 10,000 of them of connections that are open: what new connections, the daemon at rest, removals and
//! `vestibule flows` cost among them.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ::tests::written_flows::{self, Draw, Written};
use ::tests::{copies, daemon::Daemon};
use anyhow::{Context, Result, bail, ensure};
use common::reason::Reason;
use load::order::{Order, Report, Task};
use userspace::dataplane::pin::Pins;
use userspace::dataplane::sizes::Sizes;
use userspace::dataplane::{OBJECT, memory, read};
use userspace::model::Settings;

use super::carried::rows;
use super::grouped;
use super::routes::most_memory;
use crate::greeting;
use crate::rig::{SERVERS, WIRE};
use crate::rounds::{Effort, per_cpu_second, turns};
use crate::stats::Median;
use crate::system::vestibule::{self, Format};
use crate::system::{Bench, System};
use crate::table::{Row, Target};

/// Routes, each with one backend.
const TENANTS: u32 = 1_000;
/// Connections that are open, and how many of the two clients' each.
const REAL: u32 = 10_000;
const EACH: u32 = REAL / 2;
/// Flows of what is removed.
const BEHIND: u32 = 100_000;
/// Two checks of all flows are less far apart.
const WALKS_WITHIN: Duration = Duration::from_secs(240);
/// The longest that a removal may take.
const PATIENCE: Duration = Duration::from_secs(60);
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
    all.extend(at_rest(&mut filled, effort)?);
    let [_, many, ..] = &mut filled[..] else { return Ok(all) };
    all.push(shown(many)?);
    check_held(many)?;
    let behind = BEHIND.min(effort.flows / 4);
    let text = text(max_flows);
    let moved = text.replacen(
        &format!("\"port\":{}", SERVERS.port()),
        &format!("\"port\":{}", SERVERS.port() + 2),
        1,
    );
    all.push(removed(many, "backend", &moved, behind)?);
    all.push(removed(many, "route", &without_route(&moved)?, behind)?);
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

/// Returns the file without its second route.
fn without_route(text: &str) -> Result<String> {
    let at = |number: u32| text.find(&format!(",\n{{\"name\":\"tenant-{number}\""));
    let (begin, end) = at(1).zip(at(2)).context("the file has no such routes")?;
    Ok(format!("{}{}", &text[..begin], &text[end..]))
}

/// Starts a system, opens its connections, and writes the other flows.
fn fill(flows: u32, max_flows: u32) -> Result<Filled> {
    let begun = Instant::now();
    let mut bench = Bench::with_text(WIRE, TENANTS, TENANTS, &text(max_flows))?;
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

fn row(flows: u32, what: &str, value: Median, unit: &str, target: Option<Target>) -> Row {
    let figure = format!("{:.3} {unit}", value.value);
    let (workload, system) =
        (format!("{} flows: {what}", grouped(flows.into())), System::Vestibule.name().into());
    Row { workload, system, figure, value: Some(value), target, failures: 0, note: String::new() }
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
    // From the end of a check of all flows to the end of the next but one: they are up to three minutes apart.
    end_of_walk(&mut filled[1])?;
    let (before, begun) = (used(filled)?, Instant::now());
    for _ in 0..if effort.quick { 1 } else { 2 } {
        end_of_walk(&mut filled[1])?;
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
    Ok(vec![share, resident])
}

/// Waits until the daemon has used the better part of a CPU for a moment, and no more of it since.
fn end_of_walk(filled: &mut Filled) -> Result<()> {
    let (begun, step) = (Instant::now(), Duration::from_millis(200));
    let mut walks = false;
    while begun.elapsed() < WALKS_WITHIN {
        let before = daemon(filled)?.cpu_time()?;
        sleep(step);
        let is_busy = daemon(filled)?.cpu_time()? - before > step / 2;
        if walks && !is_busy {
            return Ok(());
        }
        walks |= is_busy;
    }
    bail!("the daemon did not look at all flows within {WALKS_WITHIN:?}")
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

/// Removes what `behind` flows depend on: with this file they do not have it any more.
fn removed(filled: &mut Filled, what: &str, text: &str, behind: u32) -> Result<Row> {
    let flows = filled.flows;
    let daemon = daemon(filled)?;
    let pins = Pins::new(daemon.pins());
    let count = |reason: Reason| -> Result<u64> {
        let all = read::reasons(&pins)?;
        Ok(all.iter().find(|(counted, _)| *counted == reason).map_or(0, |(_, count)| *count))
    };
    let (before, unsent) = (count(Reason::ExpireRemoved)?, count(Reason::EmitCopyLost)?);
    let (begun, used) = (Instant::now(), daemon.cpu_time()?);
    let reloaded = daemon.reload_text(text)?;
    while count(Reason::ExpireRemoved)? - before < u64::from(behind) {
        ensure!(begun.elapsed() < PATIENCE, "not all of {behind} flows ended: {}", daemon.log());
        sleep(Duration::from_millis(2));
    }
    let ended = begun.elapsed().as_secs_f64();
    let what = format!("{} behind a {what}, which is removed, s", grouped(behind.into()));
    let mut row = row(flows, &what, Median::one(ended), "s", Some(Target::AtMost(1.0)));
    row.failures = count(Reason::EmitCopyLost)? - unsent;
    row.note = format!(
        "the file was in force after {:.0} ms; {:.2} s of CPU of the daemon's threads that still run",
        reloaded.as_secs_f64() * 1e3,
        (daemon.cpu_time()?.saturating_sub(used)).as_secs_f64()
    );
    // The second look at what was removed, and the walk that may be going on, are over by then.
    sleep(Duration::from_secs(12));
    let log = daemon.log();
    let by_keys = |line: &str| Some(line.split_once("ended before the walk: removal ")?.1.to_owned());
    let by_keys = log.lines().rev().find_map(by_keys).unwrap_or_else(|| "none".into());
    row.note.push_str(&format!("; found by keys: {by_keys}"));
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_and_a_backend_are_taken_out_of_the_file() {
        let whole = text(13_000_000);
        let without = without_route(&whole).unwrap();
        let names = |text: &str| -> Vec<String> {
            let file: serde_json::Value = serde_json::from_str(text).unwrap();
            let routes = file["routes"].as_array().unwrap();
            routes.iter().map(|route| route["name"].as_str().unwrap().to_owned()).collect()
        };
        let (whole, without) = (names(&whole), names(&without));
        assert_eq!(whole.len(), TENANTS as usize);
        assert_eq!(without, whole.into_iter().filter(|name| name != "tenant-1").collect::<Vec<_>>());
        assert!(text(13_000_000).contains("\"maxFlows\":13000000"));
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let refused = need(&[(REAL, u32::MAX / 4)]).unwrap_err().to_string();
        assert!(refused.contains("--flows"), "{refused}");
        assert!(need(&[]).is_ok());
    }
}
