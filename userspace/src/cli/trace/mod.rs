//! `vestibule trace`: one line for each packet as it leaves the programs.

/// A packet as a line of text or an object.
mod line;

use std::collections::HashMap;
use std::io::{self, Write as _};

use anyhow::{Context, Result};
use common::maps::address::{Address, Port};
use common::maps::flow::{BackendTuple, ClientTuple};
use common::maps::route::{LABEL_ROUTE, LabelKey};
use common::maps::trace::{CLASS_ICMP, KNOWN_CLIENT, LINES_PER_SECOND, REASON_ANY, TraceFilter, TraceRecord};
use common::reason::Reason;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::line::{Line, full_name};
use super::Format;
use super::ends::{End, end, network};
use super::names::socket;
use crate::dataplane::maps::Maps;
use crate::dataplane::pin::Pins;
use crate::dataplane::read::{self, now_ns};
use crate::dataplane::trace::{RENEW_EVERY, Trace};
use crate::model::Node;

/// Renewals between two looks at what was lost: a second.
const RENEWALS_PER_LOOK: u32 = 2;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Packets of these clients' connections, in both directions: 192.0.2.7, 192.0.2.0/24, 2001:db8::/64.
    #[arg(long, value_name = "CIDR", value_parser = network)]
    from: IpNet,
    /// Only connections to this virtual address, with or without a port.
    #[arg(long, value_name = "VIP[:PORT]", value_parser = end)]
    to: Option<End>,
    /// Only packets that leave for this reason, as `vestibule reasons` names it: `stage/reason`, or `reason` where one
    /// stage alone has it.
    #[arg(long, value_name = "REASON", value_parser = reason)]
    reason: Option<Reason>,
    /// End after this many lines. Default: on Ctrl-C.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// How to print: a line of text or an object for each packet.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

fn reason(text: &str) -> Result<Reason, String> {
    let named =
        |reason: &&Reason| full_name(**reason) == text || reason.label() == text || reason.name() == text;
    let found: Vec<Reason> = Reason::ALL.iter().filter(named).copied().collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err("not a reason; `vestibule reasons --all` lists them".into()),
        _ => {
            let names: Vec<String> = found.into_iter().map(full_name).collect();
            Err(format!("several stages have it: {}", names.join(", ")))
        }
    }
}

impl Args {
    fn filter(&self) -> TraceFilter {
        let bits = if self.from.addr().is_ipv4() { 96 } else { 0 } + self.from.prefix_len();
        let (vip, port) = self.to.map_or((None, None), |(vip, port)| (Some(vip), port));
        TraceFilter {
            clients: Address::from(self.from.addr()),
            clients_mask: mask(bits),
            vip: vip.map_or(Address::default(), Address::from),
            vip_mask: mask(if vip.is_some() { 128 } else { 0 }),
            vip_port: Port::new(port.unwrap_or_default()),
            reason: self.reason.map_or(REASON_ANY, |reason| reason as u32),
            ..TraceFilter::zeroed()
        }
    }
}

/// The mask of a prefix of an address in its 16-byte form.
fn mask(bits: u8) -> Address {
    let ones = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or_default();
    Address::v6(ones.to_be_bytes())
}

pub(super) fn run(asked: &Args, pins: &Pins) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(trace(asked, pins))
}

async fn trace(asked: &Args, pins: &Pins) -> Result<()> {
    let mut printer = Printer::new(read::open(pins)?, asked.output);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut trace = Trace::start(pins, asked.filter())?;
    eprintln!("tracing packets of clients in {}; Ctrl-C ends it", asked.from);
    let mut renewals = renewals();
    let mut losses = Losses::default();
    let mut left = asked.count.unwrap_or(u64::MAX);
    while left > 0 {
        tokio::select! {
            biased;
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = renewals.tick() => {
                trace.renew()?;
                losses.look(&trace)?;
            }
            records = trace.next() => left -= printer.print(&records.context("reading records")?, left)?,
        }
    }
    let last = trace.finish()?;
    left -= printer.print(&last, left)?;
    // Behind the last line that was asked for nothing is missed.
    if left > 0 {
        losses.end(trace.lost()?);
    }
    Ok(())
}

fn renewals() -> Interval {
    let mut renewals = interval(RENEW_EVERY);
    // Behind a pause one renewal is enough.
    renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
    renewals
}

/// What was not logged, as shown on standard error.
#[derive(Default)]
struct Losses {
    renewals: u32,
    /// At the last look: shown a look later, for by then what was in the ring has been read.
    seen: u64,
    shown: u64,
}

impl Losses {
    fn look(&mut self, trace: &Trace) -> Result<()> {
        self.renewals += 1;
        if self.renewals.is_multiple_of(RENEWALS_PER_LOOK) {
            let lost = trace.lost()?;
            let sure = lost.min(self.seen);
            self.seen = lost;
            if sure > self.shown {
                show_lost(sure - self.shown);
                self.shown = sure;
            }
        }
        Ok(())
    }

    fn end(&self, lost: u64) {
        if lost > self.shown {
            show_lost(lost - self.shown);
        }
    }
}

fn show_lost(packets: u64) {
    eprintln!(
        "{packets} more packets were not printed: over {LINES_PER_SECOND} a second, or faster than they are read"
    );
}

/// Turns records into lines.
struct Printer {
    maps: Maps,
    format: Format,
    /// Wall clock minus monotonic clock.
    offset: SignedDuration,
    node: Node,
    routes: HashMap<u32, String>,
}

/// A connection as its record in the maps describes it.
struct Belonging {
    route: u32,
    nat: Option<BackendTuple>,
}

impl Printer {
    fn new(maps: Maps, format: Format) -> Self {
        let since_boot = SignedDuration::from_nanos(i64::try_from(now_ns()).unwrap_or(i64::MAX));
        let offset = Timestamp::now().duration_since(Timestamp::UNIX_EPOCH) - since_boot;
        Self { maps, format, offset, node: Node::default(), routes: HashMap::new() }
    }

    /// Prints at most `most` lines; how many it printed.
    fn print(&mut self, records: &[TraceRecord], most: u64) -> Result<u64> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let chosen = &records[..records.len().min(most)];
        let mut out = io::BufWriter::new(io::stdout().lock());
        for record in chosen {
            let line = self.line(record);
            writeln!(out, "{line}")?;
        }
        out.flush()?;
        Ok(chosen.len() as u64)
    }

    fn line(&mut self, record: &TraceRecord) -> String {
        let belonging = self.belonging(record);
        let route = belonging.as_ref().filter(|of| of.route != 0).map(|of| self.route(of.route));
        let backend = belonging.and_then(|of| of.nat).map(|nat| socket(nat.backend, nat.backend_port));
        let line = Line {
            record,
            time: self.time(record.time_ns),
            device: self.device(record.device),
            route,
            backend,
        };
        match self.format {
            Format::Json => line.json().to_string(),
            Format::Table => line.text(),
        }
    }

    fn time(&self, monotonic_ns: u64) -> Timestamp {
        let since_boot = SignedDuration::from_nanos(i64::try_from(monotonic_ns).unwrap_or(i64::MAX));
        Timestamp::UNIX_EPOCH.checked_add(self.offset + since_boot).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn device(&mut self, index: u32) -> String {
        if !self.node.links.contains_key(&index) {
            // A device that came later, or has gone by now.
            self.node = Node::look().unwrap_or_default();
        }
        self.node.name(index)
    }

    fn route(&mut self, id: u32) -> String {
        let name = || {
            let label = self.maps.labels.look_up(&LabelKey { kind: LABEL_ROUTE, id }).ok().flatten()?;
            let text = label.text.get(..usize::from(label.length)).unwrap_or(&label.text);
            Some(String::from_utf8_lossy(text).into_owned())
        };
        self.routes.entry(id).or_insert_with(|| name().unwrap_or_else(|| format!("#{id}"))).clone()
    }

    /// The connection's record, if it is still there.
    fn belonging(&self, record: &TraceRecord) -> Option<Belonging> {
        if record.known < KNOWN_CLIENT && record.class != CLASS_ICMP {
            return None;
        }
        let of = |found: (u32, u32, Option<BackendTuple>)| {
            let (generation, route, nat) = found;
            // Another connection of the same four-tuple is not this packet's.
            (record.generation == 0 || generation == 0 || generation == record.generation)
                .then_some(Belonging { route, nat })
        };
        let client: &ClientTuple = &record.client;
        if let Ok(Some(flow)) = self.maps.flows.look_up(client) {
            return of((flow.connection.generation, flow.connection.route, Some(flow.nat)));
        }
        if let Ok(Some(waiting)) = self.maps.hellos.look_up(client) {
            let nat = (waiting.connection.generation != 0).then_some(waiting.nat);
            return of((waiting.connection.generation, waiting.connection.route, nat));
        }
        let half_open = self.maps.half_opens.look_up(client).ok().flatten()?;
        of((half_open.connection.generation, half_open.connection.route, Some(half_open.nat)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_named_as_the_table_of_reasons_names_it() {
        for known in Reason::ALL {
            assert_eq!(reason(&full_name(*known)), Ok(*known));
            assert_eq!(reason(known.name()), Ok(*known));
        }
        assert_eq!(reason("cookie_mismatch"), Ok(Reason::SynCookieMismatch));
        assert!(reason("none_such").unwrap_err().contains("--all"));
        // Of more than one stage: parse and classify drop, for example.
        let twice =
            Reason::ALL.iter().find(|r| Reason::ALL.iter().filter(|o| o.label() == r.label()).count() > 1);
        if let Some(twice) = twice {
            assert!(reason(twice.label()).unwrap_err().contains(&full_name(*twice)));
        }
    }

    #[test]
    fn a_filter_has_masks_of_sixteen_bytes() {
        let asked = |from: &str, to: Option<&str>| Args {
            from: network(from).unwrap(),
            to: to.map(|to| end(to).unwrap()),
            reason: None,
            count: None,
            output: Format::Table,
        };
        let v4 = asked("192.0.2.0/24", Some("10.97.0.10:443")).filter();
        assert_eq!(v4.clients, Address::v4([192, 0, 2, 0]));
        assert_eq!(v4.clients_mask, mask(120));
        assert_eq!(v4.clients_mask.bytes[14..], [255, 0]);
        assert_eq!((v4.vip_mask, v4.vip_port.number(), v4.reason), (mask(128), 443, REASON_ANY));
        let v6 = asked("2001:db8::/32", None).filter();
        assert_eq!((v6.clients_mask, v6.vip_mask, v6.vip_port.number()), (mask(32), mask(0), 0));
        // Every IPv4 client, and no IPv6 client.
        assert_eq!(asked("0.0.0.0/0", None).filter().clients_mask, mask(96));
        assert_eq!(asked("::/0", None).filter().clients_mask, Address::default());
    }
}
