//! Annotation `vestibule.dev/probe` of a Service: how its endpoints are asked whether they live.
//!
//! ```text
//! off                                                     no probe
//! tcp                                                     a connection is accepted
//! tls                                                     a ClientHello gets a TLS record
//! tls,interval=5s,timeout=1s,failures=3,successes=2       with own times and thresholds
//! ```
//!
//! What is not written is as the chart has it.

use super::value::{Wrong, wrong};
use crate::model::cluster::{ProbeKind, ProbeSpec};
use crate::model::problem::closest;
use std::ops::RangeInclusive;

/// Shortest and longest interval and timeout: 100 ms to 1 h, as in the chart.
const TIME_MS: RangeInclusive<u64> = 100..=3_600_000;
/// Fewest and most failures or successes in a row.
const IN_A_ROW: RangeInclusive<u8> = 1..=100;

const OPTIONS: [&str; 4] = ["interval", "timeout", "failures", "successes"];
const SYNTAX: &str = "write off, tcp or tls, and after tcp or tls, where wanted, ,interval=5s,timeout=1s,failures=3,successes=2";
const TIME: &str = "write a whole number of ms, s, m or h, from 100ms to 1h, such as 500ms or 5s";
const COUNT: &str = "write a number from 1 to 100";

/// Reads the annotation: `None` switches probes off.
pub(super) fn read(text: &str, defaults: ProbeSpec) -> Result<Option<ProbeSpec>, Wrong> {
    let mut parts = text.split(',').map(str::trim);
    let kind = match parts.next().unwrap_or_default() {
        "off" => {
            return match parts.next() {
                None => Ok(None),
                Some(part) => Err(wrong(format!("has {part:?} after off"), SYNTAX)),
            };
        }
        "tcp" => ProbeKind::Tcp,
        "tls" => ProbeKind::Tls,
        "" => return Err(wrong("does not begin with off, tcp or tls", SYNTAX)),
        other => return Err(unknown(other, &["off", "tcp", "tls"])),
    };
    let mut probe = ProbeSpec { kind, ..defaults };
    let mut written = [false; OPTIONS.len()];
    for part in parts {
        let Some((name, value)) = part.split_once('=') else {
            return Err(wrong(format!("has {part:?}, which is not name=value"), SYNTAX));
        };
        let (name, value) = (name.trim(), value.trim());
        let Some(place) = OPTIONS.iter().position(|option| *option == name) else {
            return Err(unknown(name, &OPTIONS));
        };
        if std::mem::replace(&mut written[place], true) {
            return Err(wrong(format!("has {name} twice"), "write it once"));
        }
        match place {
            0 => probe.interval_ms = time_ms(name, value)?,
            1 => probe.timeout_ms = time_ms(name, value)?,
            2 => probe.failures = in_a_row(name, value)?,
            _ => probe.successes = in_a_row(name, value)?,
        }
    }
    if probe.timeout_ms > probe.interval_ms {
        if written[1] {
            let what = format!(
                "has a timeout of {} ms and an interval of {} ms",
                probe.timeout_ms, probe.interval_ms
            );
            return Err(wrong(
                what,
                "make the timeout at most the interval: one probe ends before the next begins",
            ));
        }
        probe.timeout_ms = probe.interval_ms;
    }
    Ok(Some(probe))
}

fn unknown(word: &str, known: &[&str]) -> Wrong {
    let what = match closest(word, known.iter().copied()) {
        Some(close) => format!("has {word:?}, which is not known; {close} is"),
        None => format!("has {word:?}, which is not known"),
    };
    wrong(what, SYNTAX)
}

fn time_ms(name: &str, text: &str) -> Result<u32, Wrong> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong(format!("has {name}={text}, which is not a duration"), TIME)),
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
    let ms = ms.filter(|ms| TIME_MS.contains(ms)).and_then(|ms| u32::try_from(ms).ok());
    ms.ok_or_else(|| wrong(format!("has {name}={text}, which is out of range"), TIME))
}

fn in_a_row(name: &str, text: &str) -> Result<u8, Wrong> {
    let number = text.parse::<u8>().ok().filter(|number| IN_A_ROW.contains(number));
    number.ok_or_else(|| wrong(format!("has {name}={text}, which is out of range"), COUNT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: ProbeSpec =
        ProbeSpec { kind: ProbeKind::Tcp, interval_ms: 4000, timeout_ms: 1500, failures: 5, successes: 4 };

    #[test]
    fn what_is_not_written_is_the_charts() {
        assert_eq!(read("off", DEFAULTS), Ok(None));
        assert_eq!(read(" tcp ", DEFAULTS), Ok(Some(DEFAULTS)));
        assert_eq!(read("tls", DEFAULTS), Ok(Some(ProbeSpec { kind: ProbeKind::Tls, ..DEFAULTS })));
        assert_eq!(
            read("tls, interval=10s, timeout = 500ms,failures=3,successes=2", DEFAULTS),
            Ok(Some(ProbeSpec {
                kind: ProbeKind::Tls,
                interval_ms: 10_000,
                timeout_ms: 500,
                failures: 3,
                successes: 2
            }))
        );
    }

    #[test]
    fn a_short_interval_shortens_the_charts_timeout_but_not_a_written_one() {
        let fast = read("tcp,interval=200ms", DEFAULTS).unwrap().unwrap();
        assert_eq!((fast.interval_ms, fast.timeout_ms), (200, 200));
        assert!(
            read("tcp,interval=200ms,timeout=1s", DEFAULTS).unwrap_err().what.contains("timeout of 1000 ms")
        );
    }

    #[test]
    fn what_cannot_be_read_says_which_word() {
        for (text, told) in [
            ("", "does not begin"),
            ("on", "\"on\""),
            ("TLS", "tls is"),
            ("off,interval=1s", "after off"),
            ("{\"type\": \"tls\"}", "not known"),
            ("tcp,intervall=1s", "interval is"),
            ("tcp,interval", "not name=value"),
            ("tcp,", "not name=value"),
            ("tcp,interval=1", "interval=1, which is not a duration"),
            ("tcp,interval=99ms", "out of range"),
            ("tcp,interval=2h", "out of range"),
            ("tcp,interval=99999999999999999999s", "out of range"),
            ("tcp,interval=-1s", "not a duration"),
            ("tcp,failures=0", "failures=0, which is out of range"),
            ("tcp,successes=101", "out of range"),
            ("tcp,failures=1,failures=2", "failures twice"),
        ] {
            let wrong = read(text, DEFAULTS).unwrap_err();
            assert!(wrong.what.contains(told), "{text:?} gave {:?}", wrong.what);
        }
    }
}
