//! Compares whole packets, byte for byte, and describes the difference.

use std::fmt::Write as _;

use crate::packet::Segment;

/// Describes a frame, one field per line.
pub fn describe(frame: &[u8]) -> String {
    let mut text = String::new();
    if let Some(parsed) = Segment::parse(frame) {
        text = format!("{parsed:#?}\n");
        let right = parsed.bytes();
        if right.len() == frame.len() && right != frame {
            let wrong = (0..frame.len()).filter(|at| right[*at] != frame[*at]).collect::<Vec<_>>();
            let _ = writeln!(text, "checksum or reserved bits wrong at bytes {wrong:?}");
        } else if right.len() < frame.len() {
            let _ = writeln!(text, "{} bytes behind the packet", frame.len() - right.len());
        }
    }
    for (at, row) in frame.chunks(16).enumerate() {
        let row: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "{:04x}: {}", at * 16, row.join(" "));
    }
    text
}

/// Asserts that a frame equals the segment byte for byte, checksums included.
#[track_caller]
pub fn assert_frame(actual: &[u8], expected: &Segment) {
    assert_bytes(actual, &expected.bytes());
}

/// Asserts that two frames are equal. The panic message describes both and marks the lines that differ.
#[track_caller]
pub fn assert_bytes(actual: &[u8], expected: &[u8]) {
    if actual == expected {
        return;
    }
    let (actual, expected) = (describe(actual), describe(expected));
    let (actual, expected): (Vec<_>, Vec<_>) = (actual.lines().collect(), expected.lines().collect());
    let mut message = String::from("packets differ (- expected, + actual)\n");
    for at in 0..actual.len().max(expected.len()) {
        match (expected.get(at), actual.get(at)) {
            (Some(left), Some(right)) if left == right => {
                let _ = writeln!(message, "  {left}");
            }
            (left, right) => {
                for (mark, line) in [("-", left), ("+", right)] {
                    if let Some(line) = line {
                        let _ = writeln!(message, "{mark} {line}");
                    }
                }
            }
        }
    }
    panic!("{message}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{ETHERNET_BYTES, tests::examples};

    #[test]
    fn equal_frames_pass() {
        for example in examples() {
            assert_frame(&example.bytes(), &example);
        }
    }

    #[test]
    fn one_wrong_bit_is_shown() {
        let [example, _] = examples();
        let mut frame = example.bytes();
        frame[ETHERNET_BYTES + 20 + 16] ^= 1;
        let shown = std::panic::catch_unwind(|| assert_frame(&frame, &example)).unwrap_err();
        assert!(
            shown.downcast_ref::<String>().unwrap().contains("checksum or reserved bits wrong at bytes [50]")
        );
    }
}
