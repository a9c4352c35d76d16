//! `vestibule vips`.

use std::net::IpAddr;

use anyhow::Result;
use common::decide::previous::{CLOSED_NS, is_there};
use common::maps::previous::Peer;
use serde_json::json;

use super::Format;
use super::print::{self, Row};
use crate::dataplane::pin::Pins;
use crate::dataplane::read::{self, Before};
use crate::model::Node;

pub(super) fn show(pins: &Pins, format: Format) -> Result<()> {
    let mut announced = read::announced(pins)?;
    let (epochs, previous, now_ns) = (read::bids(pins)?, read::previous(pins)?, read::now_ns());
    announced.sort_by_key(|(key, _)| (IpAddr::from(key.address), key.device));
    // Reads the caller's network namespace. It is the instance's, unless several instances run.
    let node = Node::look()?;
    let rows: Vec<Row> = announced
        .iter()
        .map(|(key, announced)| {
            let (address, device) = (IpAddr::from(key.address).to_string(), node.name(key.device));
            let owner = if announced.is_here() { "this node" } else { "elsewhere" };
            let link = written(announced.link);
            // One that is alone has none.
            let epoch = epochs.get(key).filter(|_| announced.is_here());
            // While clients learn the new owner's link address, also where this node has left it to another one.
            let before = previous.get(key).filter(|before| {
                announced.is_here() || now_ns.saturating_sub(before.entry.closed_ns) < CLOSED_NS
            });
            let before = before.map(|before| Shown::of(before, now_ns));
            Row {
                json: json!({
                    "address": address, "device": device, "ifindex": key.device, "owner": owner,
                    "linkAddress": link, "epoch": epoch, "previous": before.as_ref().map(Shown::json),
                })
                .into(),
                cells: vec![
                    address,
                    device,
                    owner.to_owned(),
                    link,
                    epoch.map_or_else(|| "-".to_owned(), u64::to_string),
                    before.as_ref().map_or_else(|| "-".to_owned(), Shown::cell),
                ],
            }
        })
        .collect();
    print::rows(&["address", "device", "owner", "link address", "epoch", "previous owner"], &rows, format)
}

/// The node that announced an address before, as the programs judge it.
struct Shown {
    node: u64,
    link: Option<String>,
    /// Seconds since the address moved from it.
    age: u64,
    is_there: bool,
    has_agent: bool,
}

impl Shown {
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

fn written(link: [u8; 6]) -> String {
    link.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::previous::Previous;

    #[test]
    fn link_addresses_are_written_as_ip_does() {
        assert_eq!(written([2, 0, 0x5e, 0xa, 0xff, 1]), "02:00:5e:0a:ff:01");
    }

    #[test]
    fn whether_the_previous_owner_answers_is_shown_as_the_programs_judge_it() {
        const SECOND: u64 = 1_000_000_000;
        let now = 100 * SECOND;
        let entry = Previous { epoch: 7, since_ns: 40 * SECOND, node: 0xab, closed_ns: 0 };
        let shown = |peer, stamp_ns| Shown::of(&Before { entry, peer, stamp_ns }, now);
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
