//! Files with many routes: read for the first time, and read again with one route changed.

use std::fs;
use std::time::{Duration, Instant};

use ::tests::daemon::Daemon;
use anyhow::{Context, Result, ensure};
use load::order::{Order, Task};

use super::grouped;
use crate::greeting;
use crate::rig::{Rig, WIRE};
use crate::rounds::Effort;
use crate::stats::Median;
use crate::system::vestibule::{self, Format};
use crate::system::{Bench, System};
use crate::table::{Row, Target};

const MANY: u32 = 100_000;
const MILLION: u32 = 1_000_000;
const SERVERS: u32 = 10;

/// JSON, 100,000 routes.
pub(super) fn load(effort: &Effort) -> Result<Vec<Row>> {
    loaded(MANY, Format::Json, if effort.quick { 1 } else { 5 }, 1.5)
}

/// JSON, 1,000,000 routes.
pub(super) fn load_million(effort: &Effort) -> Result<Vec<Row>> {
    loaded(MILLION, Format::Json, if effort.quick { 1 } else { 2 }, 15.0)
}

/// YAML, 100,000 routes.
pub(super) fn load_yaml(effort: &Effort) -> Result<Vec<Row>> {
    loaded(MANY, Format::Yaml, if effort.quick { 1 } else { 3 }, 4.0)
}

/// Measures the time from SIGHUP until all routes are in effect in a daemon that had none, and the time of a
/// start that also creates the maps.
fn loaded(routes: u32, format: Format, times: u32, seconds: f64) -> Result<Vec<Row>> {
    let rig = Rig::new(WIRE, SERVERS)?;
    let text = vestibule::text(routes, SERVERS, format, None);
    let none = vestibule::text(0, SERVERS, Format::Json, Some(vestibule::names_most(routes)));
    let (mut reads, mut starts, mut peak) = (Vec::new(), Vec::new(), 0.0_f64);
    for _ in 0..times {
        let daemon = vestibule::start_with(&rig.node, &none)?;
        reads.push(daemon.reload_text(&text)?.as_secs_f64());
        peak = peak.max(most_memory(&daemon)?);
        drop(daemon);
        let begun = Instant::now();
        let daemon = vestibule::start_with(&rig.node, &text)?;
        starts.push(begun.elapsed().as_secs_f64());
        peak = peak.max(most_memory(&daemon)?);
    }
    let (read, start) = (Median::of(&reads), Median::of(&starts));
    let kind = if format == Format::Json { "JSON" } else { "YAML" };
    let mut rows = vec![Row {
        workload: format!(
            "load {} routes from {kind} ({:.0} MB), s",
            grouped(routes.into()),
            text.len() as f64 / 1e6
        ),
        system: System::Vestibule.name().into(),
        figure: format!("{:.2} s; a start that makes its maps too {:.2} s", read.value, start.value),
        value: Some(read),
        target: Some(Target::AtMost(seconds)),
        failures: 0,
        note: String::new(),
    }];
    if routes == MILLION {
        rows.push(Row {
            workload: "its peak of memory, GB".to_owned(),
            figure: format!("{peak:.2} GB"),
            value: Some(Median::one(peak)),
            target: Some(Target::AtMost(1.5)),
            ..rows[0].clone()
        });
    } else {
        rows[0].note = format!("peak {:.0} MB", peak * 1000.0);
    }
    Ok(rows)
}

/// Returns the peak resident memory of the daemon so far, in gigabytes.
pub(super) fn most_memory(daemon: &Daemon) -> Result<f64> {
    let pid = daemon.pid().context("the daemon runs")?;
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: f64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kilobytes * 1024.0 / 1e9)
}

/// Repeatedly changes the backend of one route of 100,000. One client waits for the change; other connections
/// are open.
pub(super) fn change(effort: &Effort) -> Result<Vec<Row>> {
    const HELD: u32 = 100;
    let mut bench = Bench::with_servers(System::Vestibule, WIRE, MANY, SERVERS)?;
    let texts = [1, 0].map(|server| {
        vestibule::text(MANY, SERVERS, Format::Json, None).replacen(
            &format!("\"port\":{}", crate::rig::SERVERS.port()),
            &format!("\"port\":{}", crate::rig::SERVERS.port() + server),
            1,
        )
    });
    let order = |task, seed| Order { template: greeting::usual(), aim: bench.aim(seed), task };
    let [hold, check] = [Task::Hold { connections: HELD }, Task::Check].map(|task| order(task, 1));
    let one = load::order::Aim { tenants: 1, ..bench.aim(0) };
    let held = bench.rig.order(std::slice::from_ref(&hold))?;
    let (mut whole, mut handed, mut seen, mut failed) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut wrong = String::new();
    for time in 0..if effort.quick { 2 } else { 12 } {
        let server = time % 2;
        let task = Task::Turn { server, milliseconds: 10_000 };
        bench.rig.tell(1, &Order { template: greeting::usual(), aim: one, task })?;
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        let daemon = bench.daemon().context("the system is ours")?;
        daemon.reload_text(&texts[server as usize])?;
        let written = begun.elapsed();
        let turned = bench.rig.hear(1)?;
        failed += turned.failures();
        wrong.extend(turned.errors.iter().map(|(what, times)| format!("; {times} x {what}")));
        // The client started 50 ms earlier; it sees the change with its next connection.
        seen.push((turned.nanoseconds as f64 / 1e6 - 50.0).min(written.as_secs_f64() * 1e3));
        // The daemon reports READY and writes its log a moment later.
        std::thread::sleep(Duration::from_millis(200));
        let log = bench.daemon().context("the system is ours")?.log();
        let (in_force, parsed) = times(&log)
            .with_context(|| format!("the daemon does not log its times (VESTIBULE_LOG=debug):\n{log}"))?;
        whole.push(in_force);
        handed.push(in_force - parsed);
    }
    let again = bench.rig.order(std::slice::from_ref(&check))?;
    let lost = held.done.saturating_sub(again.done);
    ensure!(held.done == u64::from(HELD), "held {} connections: {:?}", held.done, held.errors);
    let seen = Median::of(&seen);
    let row = |what: &str, times: &[f64], most: f64| {
        let median = Median::of(times);
        Row {
            workload: format!("one route of {} changed, {what}, ms", grouped(MANY.into())),
            system: System::Vestibule.name().into(),
            figure: format!("{:.1} ms", median.value),
            value: Some(median),
            target: Some(Target::AtMost(most)),
            failures: failed + lost,
            note: format!(
                "{lost} of {HELD} connections lost, {failed} new ones failed; a client sees it after {:.0} ms{wrong}",
                seen.value
            ),
        }
    };
    Ok(vec![row("from `compile` on", &handed, 20.0), row("file read again", &whole, 400.0)])
}

/// Returns when the last reload was in effect and when its file was parsed, in milliseconds since its start.
fn times(log: &str) -> Option<(f64, f64)> {
    let last = |what: &str| log.lines().rev().find(|line| line.contains(what));
    let in_force = last("in_force_ms=")?.split_once("in_force_ms=")?.1.split_whitespace().next()?;
    let parsed = last("parsed parsed_ms=")?.split_once("parsed_ms=")?.1.split_whitespace().next()?;
    Some((in_force.parse().ok()?, parsed.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_times_are_read_from_its_log() {
        let log = "DEBUG parsed parsed_ms=9.5\nINFO reloaded changes=6 in_force_ms=10.0 took_ms=3\n\
                   DEBUG parsed parsed_ms=200.5\nINFO reloaded changes=6 in_force_ms=230.1 took_ms=300.0\n";
        assert_eq!(times(log), Some((230.1, 200.5)));
        assert_eq!(times("INFO ready"), None);
    }
}
