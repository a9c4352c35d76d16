//! `vestibule drain`: no new connections, and a wait for those that are open.

use std::mem::replace;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use common::maps::flow::{FLOW_ESTABLISHED, PENDING_UNDELIVERED};
use indicatif::{ProgressBar, ProgressStyle};

use super::print;
use crate::config;
use crate::dataplane::maps::Maps;
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::dataplane::table::TableError;

/// Between two counts; also what a count may cost: a walk of a million flows takes 0.2 s.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Between two lines where no terminal shows a bar.
const TELL_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Wait no longer than this, such as `10m`; what is open then stays open. Default: as long as it takes.
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    deadline: Option<Duration>,
    /// Take new connections again.
    #[arg(long, conflicts_with = "deadline")]
    cancel: bool,
}

pub(super) fn run(asked: &Args, pins: &Pins) -> Result<ExitCode> {
    let maps = read::open(pins)?;
    if asked.cancel {
        refuse(&maps, false)?;
        print::line(&"new connections are taken again")?;
        return Ok(ExitCode::SUCCESS);
    }
    refuse(&maps, true)?;
    let left = wait(&maps, asked.deadline)?;
    if left == 0 {
        print::line(
            &"drained: no connection is open, new ones are refused; `vestibule drain --cancel` takes them again",
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    print::line(&format!(
        "{left} connections are left and go on; new ones are refused. `vestibule flows` shows them, `vestibule detach` \
         ends them, `vestibule drain --cancel` takes new ones again"
    ))?;
    Ok(ExitCode::FAILURE)
}

fn refuse(maps: &Maps, new_ones: bool) -> Result<()> {
    maps.drain.put(&0, &u32::from(new_ones)).context("telling the programs")
}

/// Waits until no connection is open or the time is over; how many are.
fn wait(maps: &Maps, deadline: Option<Duration>) -> Result<u64> {
    let begun = Instant::now();
    let first = open_connections(maps)?;
    let bar = ProgressBar::new(first).with_style(style()?);
    let mut told = begun;
    let mut left = first;
    // As if one had been open before.
    let mut before = 1;
    loop {
        // More than at first: handshakes that were under way have ended well.
        bar.set_length(bar.length().unwrap_or(first).max(left));
        bar.set_position(bar.length().unwrap_or(first) - left);
        let waited = begun.elapsed();
        // Twice none: a client that had its SYN-ACK and is about to say hello is in no map.
        if left + before == 0 || deadline.is_some_and(|deadline| waited >= deadline) {
            break;
        }
        if bar.is_hidden() && (told == begun || told.elapsed() >= TELL_EVERY) {
            told = Instant::now();
            eprintln!("{left} connections are open after {} s", waited.as_secs());
        }
        thread::sleep(deadline.map_or(COUNT_EVERY, |deadline| COUNT_EVERY.min(deadline - waited)));
        before = replace(&mut left, open_connections(maps)?);
    }
    bar.abandon();
    Ok(left)
}

fn style() -> Result<ProgressStyle> {
    let template = "{elapsed_precise} [{bar:40}] {pos} of {len} connections have ended";
    Ok(ProgressStyle::with_template(template)?.progress_chars("=> "))
}

/// Connections that a client would miss: those that have a backend and are not over, and those about to.
fn open_connections(maps: &Maps) -> Result<u64, TableError> {
    let mut open = 0;
    maps.flows.walk(|_, flow| open += u64::from(flow.connection.state == FLOW_ESTABLISHED))?;
    // One whose hello is still owed to its backend has a flow.
    maps.hellos.walk(|_, hello| open += u64::from(hello.connection.state != PENDING_UNDELIVERED))?;
    Ok(open + maps.half_opens.count()?)
}
