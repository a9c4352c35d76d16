//! Formats packets as lines of a script.

use super::end::End;
use crate::packet::{Segment, flag};
use crate::tcp_option::TcpOption;

const LETTERS: [(u8, char); 8] = [
    (flag::SYN, 'S'),
    (flag::FIN, 'F'),
    (flag::RST, 'R'),
    (flag::PSH, 'P'),
    (flag::URG, 'U'),
    (flag::ECE, 'E'),
    (flag::CWR, 'W'),
    (flag::ACK, '.'),
];

/// Formats a segment that arrived at an end as a line of a script.
pub(super) fn arrived(end: &End, got: &Segment) -> String {
    let flags: String =
        LETTERS.iter().filter(|(bit, _)| got.flags & bit != 0).map(|(_, letter)| letter).collect();
    let begin = u64::from(got.seq.wrapping_sub(end.peer_isn.unwrap_or(0)));
    let mut line = format!("{flags} {begin}:{}", begin + got.payload.len() as u64);
    if got.flags & flag::ACK != 0 {
        line += &format!(" ack {}", got.ack.wrapping_sub(end.isn));
    }
    line += &format!(" win {}", got.window);
    if got.urgent != 0 {
        line += &format!(" urg {}", got.urgent);
    }
    line += ["", " ect1", " ect0", " ce"][usize::from(got.traffic_class & 3)];
    let options: Vec<String> = got.options.iter().filter_map(|option| shown(end, option)).collect();
    if !options.is_empty() {
        line += &format!(" <{}>", options.join(","));
    }
    format!("{line}    (from {} to {})", got.from, got.to)
}

fn shown(end: &End, option: &TcpOption) -> Option<String> {
    Some(match option {
        TcpOption::Nop => return None,
        TcpOption::Mss(mss) => format!("mss {mss}"),
        TcpOption::WindowScale(shift) => format!("wscale {shift}"),
        TcpOption::SackPermitted => "sackOK".into(),
        TcpOption::Timestamps(value, echo) => format!("TS {} {echo}", end.since_clock(*value)),
        TcpOption::Sack(blocks) => {
            let own = |number: &u32| number.wrapping_sub(end.isn);
            let blocks = blocks.iter().map(|(left, right)| format!(" {}:{}", own(left), own(right)));
            format!("sack{}", blocks.collect::<String>())
        }
        TcpOption::Raw(bytes) => {
            format!("raw {}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
    })
}
