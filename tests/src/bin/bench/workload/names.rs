//! Vestibule with 10 to 1,000,000 host names. Each has its own route and backend; the same ten servers serve
//! all of them.

use anyhow::Result;
use load::order::{Order, Task};

use super::carried::rows;
use super::grouped;
use crate::greeting;
use crate::rig::WIRE;
use crate::rounds::{Effort, by_turns, per_cpu_second};
use crate::system::{Bench, System};
use crate::table::{Row, Target};

const SERVERS: u32 = 10;

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    let counts: &[u32] = if effort.quick { &[10, 1000] } else { &[10, 1000, 100_000, 1_000_000] };
    let make = |tenants: &u32| Bench::with_servers(System::Vestibule, WIRE, *tenants, SERVERS);
    let mut benches: Vec<Bench> = counts.iter().map(make).collect::<Result<_>>()?;
    for bench in &mut benches {
        bench.title = Some(format!("vestibule, {} names", grouped(f64::from(bench.tenants))));
    }
    let template = greeting::usual();
    let task = Task::Connect { slots: 32, milliseconds: effort.milliseconds };
    let mut turns: Vec<&mut Bench> = benches.iter_mut().collect();
    let series = by_turns(
        &mut turns,
        effort,
        |bench, seed| {
            let order = |seed| Order { template: template.clone(), aim: bench.aim(seed), task };
            let orders = [order(seed), order(seed + 1)];
            bench.rig.order(&orders)
        },
        per_cpu_second,
    )?;
    let what = "new connections by host names (x 10 names)";
    Ok(rows(what, &series, Target::Within(0.05), |figure| format!("{} per CPU-s", grouped(figure))))
}
