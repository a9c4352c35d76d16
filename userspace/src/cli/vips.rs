//! `vestibule vips`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use common::decide::previous::{CLOSED_NS, is_there};
use common::maps::announced::{Announced, OWNER_ONLY};
use common::maps::previous::Peer;
use common::maps::segment::Owned;
use serde_json::json;

use super::print::{self, Row};
use super::probe::SOCKET;
use super::{Format, Shown};
use crate::admin;
use crate::dataplane::pin::Pins;
use crate::dataplane::read::{self, Before};
use crate::model::Node;
use crate::outputs::l2::{CandidateShown, Picture, VipShown, Why, written};

/// The time limit for each part of the agent's answer.
const LIMIT: Duration = Duration::from_secs(4);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Socket of the agent, which knows of other nodes what the maps do not hold.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    shown: Shown,
}

pub(super) fn show(pins: &Pins, asked: &Args) -> Result<()> {
    let mut announced = read::announced(pins)?;
    let (epochs, previous, now_ns) = (read::bids(pins)?, read::previous(pins)?, read::now_ns());
    let (owned, gates) = (read::owned(pins)?, read::closed_gates(pins)?);
    announced.sort_by_key(|(key, _)| (IpAddr::from(key.address), key.device));
    // Reads the caller's network namespace. It is the instance's, unless several instances run.
    let node = Node::look()?;
    let picture = admin::vips_of(&asked.socket, LIMIT).and_then(|text| serde_json::from_str(&text).ok());
    let Picture { vips, candidates } = picture.unwrap_or_default();
    let known: HashMap<(u32, &str), &VipShown> =
        vips.iter().map(|vip| ((vip.device, vip.address.as_str()), vip)).collect();
    let rows: Vec<Row> = announced
        .iter()
        .map(|(key, announced)| {
            let address = IpAddr::from(key.address).to_string();
            // While clients learn the new owner's link address, also where this node has left it to another one.
            let before = previous.get(key).filter(|before| {
                announced.is_here() || now_ns.saturating_sub(before.entry.closed_ns) < CLOSED_NS
            });
            Vip {
                known: known.get(&(key.device, address.as_str())).copied(),
                address,
                device: node.name(key.device),
                ifindex: key.device,
                announced: *announced,
                // One that is alone has none.
                epoch: epochs.get(key).copied().filter(|_| announced.is_here()),
                owned: owned.get(key).copied().filter(|_| announced.is_here()),
                is_closed: gates.get(&key.device).copied(),
                before: before.map(|before| Former::of(before, now_ns)),
            }
            .row()
        })
        .collect();
    let candidates: Vec<Row> = candidates.iter().map(candidate).collect();
    print::rows(&HEADINGS, &rows, asked.shown.output)?;
    if !candidates.is_empty() {
        if asked.shown.output == Format::Table {
            print::line(&"")?;
        }
        print::rows(
            &["other candidate", "device", "link address", "state"],
            &candidates,
            asked.shown.output,
        )?;
    }
    Ok(())
}

const HEADINGS: [&str; 10] = [
    "address",
    "device",
    "owner",
    "since",
    "why",
    "claims",
    "gate",
    "link address",
    "epoch",
    "previous owner",
];

/// An address on a device.
struct Vip<'a> {
    address: String,
    device: String,
    ifindex: u32,
    announced: Announced,
    epoch: Option<u64>,
    owned: Option<Owned>,
    /// Whether the node is silent about its addresses on the device; `None`: it has no gate there.
    is_closed: Option<bool>,
    before: Option<Former>,
    /// What the agent knows; `None`: it is dead, or alone.
    known: Option<&'a VipShown>,
}

impl Vip<'_> {
    fn row(&self) -> Row {
        let is_here = self.announced.is_here();
        // The maps say that this node does not; who does, its agent knows.
        let (owner, shown) = match self.known.filter(|_| !is_here) {
            _ if is_here => ("this node", "this node".to_owned()),
            Some(VipShown { node: Some(node), .. }) => ("elsewhere", format!("elsewhere ({node})")),
            Some(VipShown { waits, .. }) => ("nobody", format!("nobody: {waits}")),
            None => ("elsewhere", "elsewhere".to_owned()),
        };
        let (since, why) = self.since();
        let since = since.map(utc);
        let link = written(self.announced.link);
        let gate = match self.is_closed.filter(|_| is_here) {
            Some(_) if self.announced.owner == OWNER_ONLY => Some("none: no other node may"),
            Some(true) => Some("closed: its agent is dead"),
            Some(false) => Some("open"),
            None => None,
        };
        let claims = self.known.map(|known| &*known.claims).unwrap_or_default();
        let claimed: Vec<String> =
            claims.iter().map(|claim| format!("{} {}", claim.node, claim.epoch)).collect();
        let foreign = self.known.and_then(|known| known.foreign.as_deref());
        let shown = match foreign.filter(|_| is_here) {
            Some(foreign) => format!("{shown}, and host {foreign}"),
            None => shown,
        };
        let or_none = |text: Option<&str>| text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
        Row {
            json: json!({
                "address": self.address, "device": self.device, "ifindex": self.ifindex, "owner": owner,
                "node": self.known.and_then(|known| known.node.as_deref()), "since": since, "why": why,
                "claims": self.known.map(|known| &known.claims), "candidates": self.known.map(|known| known.candidates),
                "gate": gate.and_then(|gate| gate.split(':').next()), "linkAddress": link, "epoch": self.epoch,
                "previous": self.before.as_ref().map(Former::json), "conflict": foreign,
            })
            .into(),
            cells: vec![
                self.address.clone(),
                self.device.clone(),
                shown,
                or_none(since.as_deref()),
                or_none(why),
                or_none(Some(&claimed.join(", "))),
                or_none(gate),
                link,
                self.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
                self.before.as_ref().map_or_else(|| "-".to_owned(), Former::cell),
            ],
        }
    }

    /// Returns since when the address has the owner that it has, and why: of this node the maps say so, also while its agent is dead.
    fn since(&self) -> (Option<u64>, Option<&str>) {
        if let Some(owned) = &self.owned {
            return (Some(owned.since_ms), Why::of(owned.why).map(Why::text));
        }
        self.known.map_or((None, None), |known| (known.since_ms, known.why.as_deref()))
    }
}

/// Returns milliseconds of Unix time as RFC 3339 has it, to the second. The date is counted in eras of 400 years that begin on 1 March.
fn utc(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (days, time) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the row of another node that may announce something.
fn candidate(shown: &CandidateShown) -> Row {
    let CandidateShown { node, device, link_address, silent_seconds, gate_closed } = shown;
    let state = match (link_address, silent_seconds) {
        (Some(_), 0) if *gate_closed => "alive; its agent is dead, and its gate is closed".to_owned(),
        (Some(_), 0) => "alive".to_owned(),
        (Some(_), seconds) => format!("silent for {seconds} s"),
        (None, seconds) => format!("never received in {seconds} s"),
    };
    let link = link_address.clone().unwrap_or_else(|| "-".to_owned());
    Row {
        json: json!({
            "candidate": node, "device": device, "linkAddress": link_address, "silentSeconds": silent_seconds,
            "gateClosed": gate_closed,
        })
        .into(),
        cells: vec![node.clone(), device.clone(), link, state],
    }
}

/// The node that announced an address before, as the programs judge it.
struct Former {
    node: u64,
    link: Option<String>,
    /// Seconds since the address moved from it.
    age: u64,
    is_there: bool,
    has_agent: bool,
}

impl Former {
    fn of(before: &Before, now_ns: u64) -> Self {
        let peer = before.peer.as_ref();
        let bytes = |peer: &Peer| peer.link.to_ne_bytes();
        Self {
            node: before.entry.node,
            link: peer.map(bytes).map(|[a, b, c, d, e, f, ..]| written([a, b, c, d, e, f])),
            age: now_ns.saturating_sub(before.entry.since_ns) / 1_000_000_000,
            is_there: peer.is_some_and(|peer| is_there(peer, before.stamp_ns, now_ns)),
            has_agent: peer.is_some_and(Peer::is_attended),
        }
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "node": format!("{:016x}", self.node), "linkAddress": self.link, "movedSecondsAgo": self.age, "answers": self.is_there,
            "agentAlive": self.is_there && self.has_agent,
        })
    }

    fn cell(&self) -> String {
        let link = self.link.as_deref().unwrap_or("unknown");
        let state = match (self.is_there, self.has_agent) {
            (false, _) => "silent",
            (true, true) => "answers",
            (true, false) => "answers, its agent is or was dead",
        };
        format!("{link} ({state})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::l2::ClaimShown;
    use common::maps::announced::{OWNER_ELSEWHERE, OWNER_HERE};
    use common::maps::previous::Previous;

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_796_008_931, "2026-11-30T03:22:11Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds * 1_000 + 999), text);
        }
    }

    fn vip(owner: u16) -> Vip<'static> {
        Vip {
            address: "192.0.2.9".to_owned(),
            device: "eth0".to_owned(),
            ifindex: 2,
            announced: Announced { link: [2, 0, 0, 0, 0, 1], owner },
            epoch: Some(7),
            owned: Some(Owned {
                since_ms: 1_709_251_199_000,
                why: Why::OwnerSilent.code(),
                reserved: [0; 7],
            }),
            is_closed: Some(false),
            before: None,
            known: None,
        }
    }

    #[test]
    fn what_a_node_announces_is_known_of_its_maps_also_while_its_agent_is_dead() {
        let cells = |vip: &Vip<'_>| vip.row().cells.join("|");
        let here = vip(OWNER_HERE);
        let rest = "02:00:00:00:00:01|7|-";
        let since = "192.0.2.9|eth0|this node|2024-02-29T23:59:59Z|owner silent|-";
        assert_eq!(cells(&here), format!("{since}|open|{rest}"));
        let closed = Vip { is_closed: Some(true), ..vip(OWNER_HERE) };
        assert_eq!(cells(&closed), format!("{since}|closed: its agent is dead|{rest}"));
        assert_eq!(cells(&vip(OWNER_ONLY)), format!("{since}|none: no other node may|{rest}"));
        // A former release took it.
        let former = Vip { owned: None, ..vip(OWNER_HERE) };
        assert_eq!(cells(&former), format!("192.0.2.9|eth0|this node|-|-|-|open|{rest}"));
        let elsewhere = Vip { owned: None, epoch: None, ..vip(OWNER_ELSEWHERE) };
        assert_eq!(cells(&elsewhere), "192.0.2.9|eth0|elsewhere|-|-|-|-|02:00:00:00:00:01|-|-");
    }

    #[test]
    fn what_the_agent_knows_is_shown_beside_it() {
        let known = VipShown {
            node: Some("b".to_owned()),
            since_ms: Some(0),
            why: Some("higher epoch".to_owned()),
            claims: vec![claim("b", 8), claim("a", 7)],
            ..VipShown::default()
        };
        let elsewhere = |known| Vip { owned: None, epoch: None, known: Some(known), ..vip(OWNER_ELSEWHERE) };
        let cells = elsewhere(&known).row().cells;
        assert_eq!(cells[2..6], ["elsewhere (b)", "1970-01-01T00:00:00Z", "higher epoch", "b 8, a 7"]);
        let waits = "the host 02:00:00:00:00:0a has it".to_owned();
        let nobody = VipShown { node: None, waits, ..VipShown::default() };
        assert_eq!(elsewhere(&nobody).row().cells[2], "nobody: the host 02:00:00:00:00:0a has it");
        let foreign = VipShown { foreign: Some("02:00:00:00:00:0a".to_owned()), ..known };
        let disputed = Vip { known: Some(&foreign), ..vip(OWNER_HERE) };
        let cells = disputed.row().cells;
        assert_eq!(cells[2], "this node, and host 02:00:00:00:00:0a");
        assert_eq!(cells[4], "owner silent", "as its maps say");
    }

    fn claim(node: &str, epoch: u64) -> ClaimShown {
        ClaimShown { node: node.to_owned(), epoch }
    }

    #[test]
    fn a_candidate_is_alive_silent_or_was_never_received() {
        let link = || Some("02:00:00:00:00:0b".to_owned());
        for (link_address, silent_seconds, gate_closed, state) in [
            (link(), 0, false, "alive"),
            (link(), 0, true, "alive; its agent is dead, and its gate is closed"),
            (link(), 12, false, "silent for 12 s"),
            (None, 5, false, "never received in 5 s"),
        ] {
            let (node, device) = ("b".to_owned(), "eth0".to_owned());
            let shown = CandidateShown { node, device, link_address, silent_seconds, gate_closed };
            assert_eq!(candidate(&shown).cells[3], state);
        }
    }

    #[test]
    fn whether_the_previous_owner_answers_is_shown_as_the_programs_judge_it() {
        const SECOND: u64 = 1_000_000_000;
        let now = 100 * SECOND;
        let entry = Previous { epoch: 7, since_ns: 40 * SECOND, node: 0xab, closed_ns: 0 };
        let shown = |peer, stamp_ns| Former::of(&Before { entry, peer, stamp_ns }, now);
        let peer = |heard_ns, is_attended| Some(Peer::new(heard_ns, is_attended, [2, 0, 0, 0, 1, 0x55]));
        for (peer, stamp_ns, cell) in [
            (peer(now, true), now, "02:00:00:00:01:55 (answers)"),
            (peer(now, false), now, "02:00:00:00:01:55 (answers, its agent is or was dead)"),
            (peer(now - 2 * SECOND, true), now, "02:00:00:00:01:55 (silent)"),
            (peer(now - 50 * SECOND, true), now - 50 * SECOND, "02:00:00:00:01:55 (answers)"),
            (None, now, "unknown (silent)"),
        ] {
            assert_eq!(shown(peer, stamp_ns).cell(), cell);
        }
        assert_eq!(
            shown(peer(now, true), now).json(),
            json!({
                "node": "00000000000000ab", "linkAddress": "02:00:00:00:01:55", "movedSecondsAgo": 60,
                "answers": true, "agentAlive": true,
            })
        );
    }
}
