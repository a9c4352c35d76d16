//! The daemon is killed (SIGKILL) under load and started again a second later.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use load::order::{Order, Task};
use nix::sys::signal::Signal;

use crate::greeting;
use crate::rig::WIRE;
use crate::rounds::Effort;
use crate::stats::Median;
use crate::system::{Bench, System};
use crate::table::{Row, Target};

/// Connections held throughout.
const HELD: u32 = 100;
/// New connections per second.
const RATE: u32 = 500;

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    let times = if effort.quick { 1 } else { 5 };
    let mut bench = Bench::new(System::Vestibule, WIRE, 1000)?;
    let (mut lost, mut failed, mut new, mut wrong) = (0, 0, 0, Vec::new());
    for time in 0..times {
        let order = |task, seed| Order { template: greeting::usual(), aim: bench.aim(seed), task };
        let hold = order(Task::Hold { connections: HELD }, time);
        let arrive = order(Task::Arrive { rate: RATE, milliseconds: 3000 }, time + 100);
        let (check, release) = (order(Task::Check, 0), order(Task::Release, 0));
        let held = bench.rig.order(std::slice::from_ref(&hold))?;
        bench.rig.tell(1, &arrive)?;
        sleep(Duration::from_secs(1));
        bench.daemon().context("the system is ours")?.end(Signal::SIGKILL)?;
        sleep(Duration::from_secs(1));
        let checked = bench.rig.order(std::slice::from_ref(&check))?;
        bench.relaunch()?;
        let arrived = bench.rig.hear(1)?;
        let again = bench.rig.order(std::slice::from_ref(&check))?;
        bench.rig.order(std::slice::from_ref(&release))?;
        lost += u64::from(HELD) - checked.done.min(again.done).min(held.done);
        failed += arrived.failures();
        new += arrived.done;
        let errors = [&held, &checked, &again, &arrived].into_iter().flat_map(|report| &report.errors);
        wrong.extend(errors.map(|(what, times)| format!("{times} x {what}")));
    }
    let value = (lost + failed) as f64;
    Ok(vec![Row {
        workload: format!("daemon killed under load, {times} times: lost and failed"),
        system: System::Vestibule.name().into(),
        figure: format!("{lost} of {} held lost, {failed} of {new} new failed", times * HELD),
        value: Some(Median::one(value)),
        target: Some(Target::AtMost(0.0)),
        failures: lost + failed,
        note: wrong.join("; "),
    }])
}
