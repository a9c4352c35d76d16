//! The clients' process: reads orders, carries them out on one thread, reports.

/// One connection, opened and greeted.
mod connection;
/// Many short connections.
mod short;
/// A few long ones.
mod long;

use std::io::{self, BufRead, Write};

use anyhow::{Context, Result};

use self::connection::Walk;
use crate::content::Pattern;
use crate::order::{Order, Report, Task};

/// Carries out orders until standard input ends.
pub fn run() -> Result<()> {
    let pattern = Pattern::new();
    let mut held = long::Held::default();
    println!("ready");
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).context("reading an order")?;
        let report = obey(order, &pattern, &mut held)?;
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &report)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn obey(order: Order, pattern: &Pattern, held: &mut long::Held) -> Result<Report> {
    let mut walk = Walk::new(order.aim, order.template);
    match order.task {
        Task::Connect { slots, milliseconds } => short::connect(walk, slots, milliseconds),
        Task::Arrive { rate, milliseconds } => short::arrive(walk, rate, milliseconds),
        Task::Turn { server, milliseconds } => Ok(short::turn(&mut walk, server, milliseconds)),
        Task::Ask { connections, milliseconds } => long::ask(&mut walk, connections, milliseconds),
        Task::Stream { way, connections, milliseconds } => {
            long::stream(&mut walk, way, connections, milliseconds, pattern)
        }
        Task::Hold { connections } => Ok(held.hold(&mut walk, connections)),
        Task::Check => Ok(held.check()),
        Task::Release => Ok(held.release()),
    }
}
