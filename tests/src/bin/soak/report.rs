//! What is printed and stored when a fault is found.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::book::{Fault, Note};
use crate::director::Director;
use crate::network::device_name;
use crate::stranger::HOPS;
use crate::tail::{Headers, Packet};

/// Lines of `vestibule flows` that do not concern the connection.
const OTHER_FLOWS: usize = 40;
/// RSTs that do not.
const OTHER_RESETS: usize = 100;
/// How far behind a client's first number a segment of its connection may be.
const NEAR: u32 = 100_000;
/// TCP flags of the first segment.
const SYN: u8 = 2;

/// A report that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    /// Packets by reason since the last comparison, or why they are not known.
    pub(crate) moved: Result<BTreeMap<String, u64>, String>,
}

/// Prints and writes the report of the faults.
pub(crate) fn write(director: &Director<'_>, seed: u64, faults: &[Fault]) -> Result<Written> {
    // First of all, because they are overwritten.
    let tail = director.tail.last();
    let moved = director.moved().map_err(|error| format!("{error:#}"));
    let text = text(director, seed, faults, &tail, &moved)?;
    println!("\n{text}");
    let folder = target().join("soak");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join(format!("fault-{seed}.txt"));
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(Written { path, moved })
}

fn text(
    director: &Director<'_>,
    seed: u64,
    faults: &[Fault],
    tail: &[Packet],
    moved: &Result<BTreeMap<String, u64>, String>,
) -> Result<String> {
    let now = Instant::now();
    let time = time_of_day(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis());
    let mut text = format!("seed {seed}, after {:.1?}; written at {time} UTC\n", director.elapsed());
    for fault in faults {
        writeln!(text, "\n{:.3?} ago: {}", now - fault.at, fault.what)?;
        if let Some(connection) = &fault.connection {
            let (plan, local) = (&connection.plan, connection.local());
            writeln!(
                text,
                "started {:.3?} ago, client {local:?}, backend {:?}",
                now - connection.begun,
                connection.backend()
            )?;
            writeln!(text, "{plan:?}")?;
        }
    }
    writeln!(text, "\npackets by reason since the last comparison:")?;
    match moved {
        Ok(moved) => moved.iter().try_for_each(|(reason, count)| writeln!(text, "{count:>10} {reason}"))?,
        Err(error) => writeln!(text, "not known: {error}")?,
    }
    notes(&mut text, &director.book.notes(), now)?;
    for injector in &director.network.injectors {
        writeln!(text, "{}", injector.summary())?;
    }
    let concerned: Vec<String> =
        faults.iter().filter_map(|fault| Some(fault.connection.as_ref()?.local()?.to_string())).collect();
    flows(&mut text, director, &concerned)?;
    packets(&mut text, director, tail, &concerned, now)?;
    resets(&mut text, director, &concerned, now)?;
    writeln!(text, "\nthe daemon's log:\n{}", director.daemon.log())?;
    Ok(text)
}

/// What the director did last: changes, signals, and READY.
fn notes(text: &mut String, notes: &[Note], now: Instant) -> Result<()> {
    writeln!(text, "\nwhat the director did, the last {}:", notes.len())?;
    for Note { at, what } in notes {
        writeln!(text, "{:>9.3?} ago: {what}", now.saturating_duration_since(*at))?;
    }
    writeln!(text)?;
    Ok(())
}

/// The time of day, to find it in the daemon's log.
fn time_of_day(unix_milliseconds: u128) -> String {
    let (seconds, milliseconds) = (unix_milliseconds / 1000 % 86_400, unix_milliseconds % 1000);
    format!("{:02}:{:02}:{:02}.{milliseconds:03}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The packets of the connections that a fault concerns, on both sides: a client's numbers are the backend's, too.
fn packets(
    text: &mut String,
    director: &Director<'_>,
    all: &[Packet],
    concerned: &[String],
    now: Instant,
) -> Result<()> {
    let read: Vec<(&Packet, Headers)> =
        all.iter().filter_map(|packet| Some((packet, packet.headers()?))).collect();
    let is_client = |headers: &Headers| concerned.contains(&headers.from.to_string());
    let firsts: Vec<u32> =
        read.iter().filter(|(_, h)| h.flags == SYN && is_client(h)).map(|(_, h)| h.seq).collect();
    let is_near = |number: u32| firsts.iter().any(|first| number.wrapping_sub(*first) < NEAR);
    writeln!(text, "\npackets that are concerned, of {} kept:", all.len())?;
    let mut names = BTreeMap::new();
    for (packet, headers) in &read {
        let own = is_client(headers) || concerned.contains(&headers.to.to_string());
        if own || is_near(headers.seq) || is_near(headers.ack) {
            let device = names
                .entry(packet.device)
                .or_insert_with(|| device_name(&director.network.node, packet.device));
            let direction = if packet.sent { "out of" } else { "in from" };
            writeln!(text, "{:>9.3?} ago {direction} {device}: {headers}", now - packet.at)?;
        }
    }
    Ok(())
}

/// The RSTs of the connections that a fault concerns, and the last ones of others.
fn resets(text: &mut String, director: &Director<'_>, concerned: &[String], now: Instant) -> Result<()> {
    writeln!(text, "\nRSTs (hop limit 64: the node's own; {HOPS} or one less: the stranger's):")?;
    let node = &director.network.node;
    let mut names = BTreeMap::new();
    let all = director.capture.last();
    let others = all.len().saturating_sub(OTHER_RESETS);
    for (index, seen) in all.iter().enumerate() {
        let ends = [seen.segment.from, seen.segment.to].map(|end| end.to_string());
        if index < others && !ends.iter().any(|end| concerned.contains(end)) {
            continue;
        }
        let device = names.entry(seen.device).or_insert_with(|| device_name(node, seen.device));
        let (segment, direction) = (&seen.segment, if seen.sent { "out of" } else { "in from" });
        writeln!(
            text,
            "{:>9.3?} ago {direction} {device}: {} > {} seq {} ack {} flags {:#x} hops {}",
            now.saturating_duration_since(seen.at),
            segment.from,
            segment.to,
            segment.seq,
            segment.ack,
            segment.flags,
            segment.hop_limit
        )?;
    }
    Ok(())
}

/// `vestibule flows`: those that a fault concerns, and some others.
fn flows(text: &mut String, director: &Director<'_>, concerned: &[String]) -> Result<()> {
    let flows = director.daemon.cli_text(&["flows"]).unwrap_or_else(|error| format!("{error:#}"));
    let (own, others): (Vec<&str>, Vec<&str>) =
        flows.lines().partition(|line| concerned.iter().any(|client| line.contains(client.as_str())));
    writeln!(text, "\nflows that are concerned: {}", own.len())?;
    for line in own {
        writeln!(text, "{line}")?;
    }
    writeln!(text, "others: {}", others.len())?;
    for line in others.into_iter().take(OTHER_FLOWS) {
        writeln!(text, "{line}")?;
    }
    Ok(())
}

/// The target folder this program was built into.
fn target() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn notes_have_their_age() {
        let at = Instant::now();
        let note = |at, what: &str| Note { at, what: what.into() };
        let given =
            [note(at, "SIGKILL is sent"), note(at + Duration::from_millis(250), "READY after a start")];
        let mut text = String::new();
        notes(&mut text, &given, at + Duration::from_millis(1500)).expect("text");
        assert!(text.contains("1.500s ago: SIGKILL is sent\n"), "{text}");
        assert!(text.contains("1.250s ago: READY after a start\n"), "{text}");
    }

    #[test]
    fn the_time_of_day_is_that_of_the_clock() {
        assert_eq!(time_of_day(0), "00:00:00.000");
        assert_eq!(time_of_day(1_735_689_599_042), "23:59:59.042");
    }
}
