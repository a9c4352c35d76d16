//! `vestibule drain`: refuses new connections, and waits until the open ones have ended.

use std::mem::replace;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use common::maps::flow::{FLOW_ESTABLISHED, PENDING_UNDELIVERED};
use common::maps::{DRAIN_ASKED, DRAIN_WITHDRAWN};
use indicatif::{ProgressBar, ProgressStyle};

use super::print;
use crate::config;
use crate::dataplane::maps::Maps;
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::dataplane::table::TableError;

/// The interval between counts. It also allows for their cost: a walk of a million flows takes 0.2 s.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// The interval between lines if there is no terminal to show a bar.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The agent writes the flag that it has read within this time.
const AGENT_WRITES: Duration = Duration::from_millis(20);

/// The most attempts to set the flag.
const ATTEMPTS: u32 = 10;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Wait at most this long, such as `10m`. Connections still open then stay open. Default: no limit.
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    deadline: Option<Duration>,
    /// Accept new connections again.
    #[arg(long, conflicts_with = "deadline")]
    cancel: bool,
}

pub(super) fn run(asked: &Args, pins: &Pins) -> Result<ExitCode> {
    let maps = read::open(pins)?;
    if asked.cancel {
        let word = refuse(&maps, false)?;
        print::line(&match word & DRAIN_WITHDRAWN {
            0 => "new connections are taken again",
            _ => {
                "new connections stay refused: Vestibule is withdrawn from the cluster or from this node, see `vestibule doctor`"
            }
        })?;
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

/// Sets or clears the command line's bit, and returns the word. The agent may write its own bit at the same time, from a word that it
/// read before.
fn refuse(maps: &Maps, new_ones: bool) -> Result<u32> {
    let bit = if new_ones { DRAIN_ASKED } else { 0 };
    let read = || Ok::<_, TableError>(maps.drain.look_up(&0)?.unwrap_or_default());
    let set = || {
        let mut word = read()?;
        for _ in 0..ATTEMPTS {
            maps.drain.put(&0, &(word & !DRAIN_ASKED | bit))?;
            thread::sleep(AGENT_WRITES);
            word = read()?;
            if word & DRAIN_ASKED == bit {
                break;
            }
        }
        Ok::<_, TableError>(word)
    };
    set().context("setting the drain flag")
}

/// Waits until no connection is open or the deadline has passed. Returns the number of open connections.
fn wait(maps: &Maps, deadline: Option<Duration>) -> Result<u64> {
    let begun = Instant::now();
    let first = open_connections(maps)?;
    let bar = ProgressBar::new(first).with_style(style()?);
    let mut told = begun;
    let mut left = first;
    // Not zero, so that two counts are needed.
    let mut before = 1;
    loop {
        // More than at first: pending handshakes have completed.
        bar.set_length(bar.length().unwrap_or(first).max(left));
        bar.set_position(bar.length().unwrap_or(first) - left);
        let waited = begun.elapsed();
        // Requires two zero counts: a client that has its SYN-ACK but has not sent its hello is in no map.
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

/// Counts the connections that a client would miss: those with a backend, and those being opened.
fn open_connections(maps: &Maps) -> Result<u64, TableError> {
    let mut open = 0;
    maps.flows.walk(|_, flow| open += u64::from(flow.connection.state == FLOW_ESTABLISHED))?;
    // If its hello is still undelivered, the connection has a flow, which is counted already.
    maps.hellos.walk(|_, hello| open += u64::from(hello.connection.state != PENDING_UNDELIVERED))?;
    Ok(open + maps.half_opens.count()?)
}
