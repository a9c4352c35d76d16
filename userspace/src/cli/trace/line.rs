//! A packet as a line of text or an object.

use std::fmt::Write as _;
use std::net::IpAddr;

use common::maps::address::{Address, Port};
use common::maps::trace::{
    CLASS_FLOW, CLASS_HALF_OPEN, CLASS_ICMP, CLASS_NEW, CLASS_PENDING, CLASS_STRAY, EXIT_NEXT, EXIT_SENT,
    HOOK_TCX, KNOWN_BACKEND, KNOWN_CLIENT, KNOWN_NOTHING, KNOWN_SEGMENT, TraceRecord,
};
use common::reason::Reason;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::names::socket;

/// A packet, ready to be printed.
pub(super) struct Line<'a> {
    pub(super) record: &'a TraceRecord,
    pub(super) time: Timestamp,
    pub(super) device: String,
    pub(super) route: Option<String>,
    pub(super) backend: Option<String>,
}

impl Line<'_> {
    pub(super) fn text(&self) -> String {
        let record = self.record;
        let mut text = format!("{:.6} {} {}", self.time, hook(record.hook), self.device);
        match record.known {
            KNOWN_NOTHING => text.push_str(" not IP"),
            known if known < KNOWN_SEGMENT => {
                let _ = write!(text, " {} > {}", IpAddr::from(record.from), IpAddr::from(record.to));
            }
            _ => {
                let _ = write!(
                    text,
                    " {} > {} [{}] seq {} ack {} win {}",
                    socket(record.from, record.from_port),
                    socket(record.to, record.to_port),
                    flags(record.flags),
                    record.seq,
                    record.ack,
                    record.window
                );
            }
        }
        let _ = write!(text, " len {}", record.bytes);
        if let Some(class) = class(record.class) {
            let _ = write!(text, " {class}");
        }
        if let Some(route) = &self.route {
            let _ = write!(text, " of {route}");
        }
        if let Some(backend) = &self.backend {
            let _ = write!(text, " at {backend}");
        }
        let _ = write!(text, ": {}, {}", exit(record.exit), self.reason());
        text
    }

    pub(super) fn json(&self) -> Value {
        let record = self.record;
        let is_ip = record.known != KNOWN_NOTHING;
        let is_segment = record.known >= KNOWN_SEGMENT;
        let address = |address: Address, port: Port| match (is_ip, is_segment) {
            (_, true) => Some(socket(address, port)),
            (true, false) => Some(IpAddr::from(address).to_string()),
            _ => None,
        };
        let of_connection = record.known >= KNOWN_CLIENT || record.class == CLASS_ICMP;
        let number = |number: u32| is_segment.then_some(number);
        let ends = &record.client;
        json!({
            "time": format!("{:.9}", self.time), "number": record.number, "hook": hook(record.hook),
            "device": self.device, "side": side(record.known),
            "source": address(record.from, record.from_port),
            "destination": address(record.to, record.to_port),
            "flags": is_segment.then(|| flags(record.flags)), "seq": number(record.seq), "ack": number(record.ack),
            "window": number(u32::from(record.window)), "bytes": record.bytes,
            "client": of_connection.then(|| socket(ends.client, ends.client_port)),
            "vip": of_connection.then(|| socket(ends.vip, ends.vip_port)),
            "class": class(record.class), "generation": (record.generation != 0).then_some(record.generation),
            "route": self.route, "backend": self.backend,
            "exit": exit(record.exit), "reason": self.reason(),
        })
    }

    fn reason(&self) -> String {
        let number = u32::from(self.record.reason);
        let found = Reason::ALL.iter().find(|reason| **reason as u32 == number);
        found.map_or_else(|| format!("#{number}"), |reason| full_name(*reason))
    }
}

fn hook(number: u8) -> &'static str {
    if number == HOOK_TCX { "tcx" } else { "unknown" }
}

fn side(known: u8) -> Option<&'static str> {
    match known {
        KNOWN_CLIENT => Some("client"),
        KNOWN_BACKEND => Some("backend"),
        _ => None,
    }
}

fn class(class: u8) -> Option<&'static str> {
    match class {
        CLASS_FLOW => Some("flow"),
        CLASS_PENDING => Some("pending"),
        CLASS_HALF_OPEN => Some("half-open"),
        CLASS_NEW => Some("new"),
        CLASS_STRAY => Some("stray"),
        CLASS_ICMP => Some("icmp"),
        _ => None,
    }
}

fn exit(exit: u8) -> &'static str {
    match exit {
        EXIT_NEXT => "next",
        EXIT_SENT => "sent",
        _ => "drop",
    }
}

/// TCP flags as tcpdump writes them; a dot is ACK (RFC 9293 section 3.1).
fn flags(flags: u8) -> String {
    const LETTERS: [char; 8] = ['F', 'S', 'R', 'P', '.', 'U', 'E', 'W'];
    LETTERS.iter().enumerate().filter(|(bit, _)| flags & (1 << bit) != 0).map(|(_, letter)| *letter).collect()
}

/// A reason as the option `--reason` takes it.
pub(super) fn full_name(reason: Reason) -> String {
    format!("{}/{}", reason.stage(), reason.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_where_a_packet_belongs_and_why_it_left() {
        let record = TraceRecord {
            from: Address::v4([192, 0, 2, 7]),
            to: Address::v4([10, 97, 0, 10]),
            from_port: Port::new(40_000),
            to_port: Port::new(443),
            seq: 1,
            ack: 2,
            bytes: 517,
            window: 502,
            flags: 0x18,
            known: KNOWN_CLIENT,
            class: CLASS_FLOW,
            exit: EXIT_SENT,
            reason: Reason::ForwardBackend as u8,
            ..TraceRecord::zeroed()
        };
        let line = |record| Line {
            record,
            time: Timestamp::UNIX_EPOCH,
            device: "eth0".into(),
            route: Some("tenant-a".into()),
            backend: Some("10.97.2.2:6443".into()),
        };
        assert_eq!(
            line(&record).text(),
            "1970-01-01T00:00:00.000000Z tcx eth0 192.0.2.7:40000 > 10.97.0.10:443 [P.] seq 1 ack 2 win 502 len 517 \
             flow of tenant-a at 10.97.2.2:6443: sent, forward/to_backend"
        );
        let value = line(&record).json();
        assert_eq!(
            (&value["flags"], &value["class"], &value["bytes"]),
            (&json!("P."), &json!("flow"), &json!(517))
        );
        // What is left of an earlier packet is not shown.
        let other = TraceRecord { known: KNOWN_NOTHING, class: 0, exit: EXIT_NEXT, reason: 1, ..record };
        let bare = Line { route: None, backend: None, ..line(&other) };
        assert_eq!(bare.text(), "1970-01-01T00:00:00.000000Z tcx eth0 not IP len 517: next, parse/not_ip");
        let value = bare.json();
        assert_eq!([&value["source"], &value["seq"], &value["client"]], [&Value::Null; 3]);
    }
}
