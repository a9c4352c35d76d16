//! Reads scripts.

use anyhow::{Context, Result, bail, ensure};
use common::reason::Reason;

use super::{Kept, Line, Opt, Packet, Step};
use crate::addresses::{TENANT_NETS, tenant_name};

/// Bytes of a hello if none are given.
pub const HELLO_BYTES: usize = 517;

/// Reads a script; the error names line and word.
pub fn parse(text: &str) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (number, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if !text.is_empty() {
            let step = step(text).with_context(|| format!("line {number}: {text}"))?;
            lines.push(Line { number, text: text.into(), step });
        }
    }
    Ok(lines)
}

/// The words of a line; text in `<>` is one word.
#[derive(Debug)]
struct Words<'t>(&'t str);

impl<'t> Words<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let text = self.0.trim_start();
        let end = if text.starts_with('<') && !text.starts_with("<-") {
            text.find('>').map_or(text.len(), |at| at + 1)
        } else {
            text.find(' ').unwrap_or(text.len())
        };
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    fn need(&mut self, what: &str) -> Result<&'t str> {
        self.next().with_context(|| format!("no {what}"))
    }
}

fn step(text: &str) -> Result<Step> {
    let mut words = Words(text);
    let first = words.need("word")?;
    let step = match first {
        "set" => set(&mut words)?,
        "use" => Step::Use(words.need("name")?.into()),
        "stream" => stream(&mut words)?,
        "anew" => Step::Anew { end: words.need("end")?.into(), tenant: tenant(words.need("tenant")?)? },
        "challenged" => Step::Challenged { end: words.need("end")?.into() },
        "age" => Step::Age { seconds: number(words.need("seconds")?)? as u32 },
        "sweep" => Step::Sweep,
        "counts" => Step::Counts(pairs(&mut words, reason)?),
        "entries" => Step::Entries(
            pairs(&mut words, kept)?.into_iter().map(|(kept, count)| (kept, count as usize)).collect(),
        ),
        end => {
            let end = end.to_owned();
            match words.need("`->` or `<-`")? {
                "->" => Step::Sends { end, packet: packet(&mut words)? },
                "<-" => Step::Gets { end, packet: packet(&mut words)? },
                other => bail!("{other} is neither -> nor <-"),
            }
        }
    };
    match words.next() {
        None => Ok(step),
        Some(word) => bail!("{word} is one word too many"),
    }
}

fn set(words: &mut Words<'_>) -> Result<Step> {
    Ok(match words.need("what to set")? {
        "listener" => match words.need("protocol")? {
            "tcp" => Step::TcpListener,
            other => bail!("{other} is no other listener than the usual one"),
        },
        "port" => Step::Port { end: words.need("end")?.into(), port: words.need("port")?.parse()? },
        "isn" => {
            Step::Isn { end: words.need("end")?.into(), number: number(words.need("number")?)?.try_into()? }
        }
        "hello" => Step::Hello {
            end: words.need("end")?.into(),
            tenant: tenant(words.need("tenant")?)?,
            bytes: words.next().map_or(Ok(HELLO_BYTES as u64), number)? as usize,
        },
        "ports" => {
            let range = words.need("range")?;
            let (first, last) = range.split_once('-').context("a range is first-last")?;
            Step::Ports { first: first.parse()?, last: last.parse()? }
        }
        other => bail!("{other} cannot be set"),
    })
}

fn stream(words: &mut Words<'_>) -> Result<Step> {
    let end = words.need("end")?.into();
    let (begin, until) = range(words.need("range")?)?;
    ensure!(words.next() == Some("by"), "`by` is missing");
    let by = number(words.need("segment size")?)?;
    ensure!(words.next() == Some("ack"), "`ack` is missing");
    let ack = number(words.need("number")?)?;
    ensure!(by > 0 && begin <= until, "nothing to stream");
    Ok(Step::Stream { end, begin, until, by, ack })
}

fn packet(words: &mut Words<'_>) -> Result<Packet> {
    let flags = flags(words.need("flags")?)?;
    let (begin, end) = range(words.need("numbers")?)?;
    let mut packet =
        Packet { flags, begin, end, ack: None, window: None, urgent: 0, ecn: 0, options: Some(Vec::new()) };
    while let Some(word) = words.next() {
        match word {
            "ack" => packet.ack = Some(number(words.need("number")?)?),
            "win" => packet.window = Some(words.need("window")?.parse()?),
            "urg" => packet.urgent = words.need("offset")?.parse()?,
            "ect1" => packet.ecn = 1,
            "ect0" => packet.ecn = 2,
            "ce" => packet.ecn = 3,
            "<...>" => packet.options = None,
            _ => packet.options = Some(options(word)?),
        }
    }
    ensure!(packet.ack.is_some() == (flags & crate::packet::flag::ACK != 0), "`.` goes with `ack`");
    Ok(packet)
}

fn flags(word: &str) -> Result<u8> {
    use crate::packet::flag::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};
    if word == "-" {
        return Ok(0);
    }
    word.chars().try_fold(0, |flags, letter| {
        Ok(flags
            | match letter {
                'F' => FIN,
                'S' => SYN,
                'R' => RST,
                'P' => PSH,
                '.' => ACK,
                'U' => URG,
                'E' => ECE,
                'W' => CWR,
                _ => bail!("{letter} is no flag"),
            })
    })
}

/// `begin:end`.
fn range(word: &str) -> Result<(u64, u64)> {
    let (begin, end) = word.split_once(':').with_context(|| format!("{word} is not begin:end"))?;
    let (begin, end) = (number(begin)?, number(end)?);
    ensure!(begin <= end && end - begin <= u64::from(u32::MAX), "{word} goes backwards");
    Ok((begin, end))
}

fn options(word: &str) -> Result<Vec<Opt>> {
    let inner = word.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    let inner = inner.with_context(|| format!("{word} is not understood"))?;
    inner.split(',').filter(|text| !text.trim().is_empty()).map(|text| option(text.trim())).collect()
}

fn option(text: &str) -> Result<Opt> {
    let mut words = text.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let mut need = || words.next().with_context(|| format!("{kind} needs a number"));
    let option = match kind {
        "mss" => Opt::Mss(need()?.parse()?),
        "wscale" => Opt::Scale(need()?.parse()?),
        "sackOK" => Opt::SackPermitted,
        "TS" => Opt::Timestamps(any(need()?)?, any(need()?)?),
        "sack" => return Ok(Opt::Sack(words.map(range).collect::<Result<_>>()?)),
        "nop" => Opt::Nop,
        "raw" => Opt::Raw(hex(need()?)?),
        other => bail!("{other} is no option"),
    };
    ensure!(words.next().is_none(), "{text} has a word too many");
    Ok(option)
}

/// `*` is any number.
fn any(word: &str) -> Result<Option<u32>> {
    if word == "*" { Ok(None) } else { Ok(Some(number(word)?.try_into()?)) }
}

fn hex(word: &str) -> Result<Vec<u8>> {
    ensure!(word.len().is_multiple_of(2) && word.is_ascii(), "{word} is not whole bytes");
    (0..word.len()).step_by(2).map(|at| Ok(u8::from_str_radix(&word[at..at + 2], 16)?)).collect()
}

/// Parses a decimal number, with `_` anywhere, or a hexadecimal one after `0x`.
fn number(word: &str) -> Result<u64> {
    let plain = word.replace('_', "");
    let read = match plain.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => plain.parse(),
    };
    read.with_context(|| format!("{word} is no number"))
}

fn tenant(word: &str) -> Result<usize> {
    (0..TENANT_NETS.len()).find(|tenant| tenant_name(*tenant) == word).with_context(|| format!("no {word}"))
}

fn reason(word: &str) -> Result<Reason> {
    let found = Reason::ALL.iter().find(|reason| reason.name() == word);
    found.copied().with_context(|| format!("{word} is no reason"))
}

fn kept(word: &str) -> Result<Kept> {
    Ok(match word {
        "flows" => Kept::Flows,
        "nats" => Kept::Nats,
        "hellos" => Kept::Hellos,
        "half_opens" => Kept::HalfOpens,
        other => bail!("{other} is nothing that is kept"),
    })
}

/// Parses `what=count` pairs until the end of the line.
fn pairs<T>(words: &mut Words<'_>, read: impl Fn(&str) -> Result<T>) -> Result<Vec<(T, u64)>> {
    let mut pairs = Vec::new();
    while let Some(word) = words.next() {
        let (what, count) = word.split_once('=').with_context(|| format!("{word} is not what=count"))?;
        pairs.push((read(what)?, number(count)?));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::flag;

    fn one(text: &str) -> Step {
        parse(text).unwrap().remove(0).step
    }

    #[test]
    fn a_packet_has_all_its_parts() {
        let told = one(
            "client <- SEW. 0:5 ack 1 win 64240 urg 3 ce <mss 1460, nop, TS 7 *,sack 1:2 4:5,raw fe04f989>",
        );
        let Step::Gets { end, packet } = told else { panic!("{told:?}") };
        assert_eq!(end, "client");
        assert_eq!(packet.flags, flag::SYN | flag::ECE | flag::CWR | flag::ACK);
        assert_eq!((packet.begin, packet.end, packet.ack), (0, 5, Some(1)));
        assert_eq!((packet.window, packet.urgent, packet.ecn), (Some(64_240), 3, 3));
        let options = vec![
            Opt::Mss(1460),
            Opt::Nop,
            Opt::Timestamps(Some(7), None),
            Opt::Sack(vec![(1, 2), (4, 5)]),
            Opt::Raw(vec![0xfe, 4, 0xf9, 0x89]),
        ];
        assert_eq!(packet.options, Some(options));
    }

    #[test]
    fn options_not_told_are_none_and_dots_are_any() {
        let Step::Sends { packet, .. } = one("backend/2 -> R 518:518") else { panic!() };
        assert_eq!((packet.options, packet.ack), (Some(Vec::new()), None));
        let Step::Gets { packet, .. } = one("backend <- . 4_294_967_297:4_294_967_297 ack 1 <...>") else {
            panic!()
        };
        assert_eq!((packet.options, packet.begin), (None, 1 << 32 | 1));
    }

    #[test]
    fn other_steps_are_read() {
        assert_eq!(one("set isn other 0xfffffff0"), Step::Isn { end: "other".into(), number: 0xffff_fff0 });
        assert_eq!(one("set port client 444"), Step::Port { end: "client".into(), port: 444 });
        assert_eq!(one("  age 7200 # two hours"), Step::Age { seconds: 7200 });
        assert_eq!(one("counts SynAnswered=2"), Step::Counts(vec![(Reason::SynAnswered, 2)]));
        assert_eq!(one("entries flows=1"), Step::Entries(vec![(Kept::Flows, 1)]));
        let stream = Step::Stream { end: "backend".into(), begin: 1, until: 11, by: 5, ack: 518 };
        assert_eq!(one("stream backend 1:11 by 5 ack 518"), stream);
        assert_eq!(parse("# nothing\n\n").unwrap(), Vec::new());
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for (text, word) in [
            ("\nclient => S 0:0", "=>"),
            ("\nclient -> X 0:0", "X"),
            ("\nclient -> S 5:0", "5:0"),
            ("\nclient -> . 1:1", "ack"),
            ("\nclient -> S 0:0 <msss 4>", "msss"),
            ("\nclient -> S 0:0 <mss>", "mss"),
            ("\ncounts NoSuchReason=1", "NoSuchReason"),
            ("\nsweep it", "it"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.starts_with("line 2: ") && error.contains(word), "{error}");
        }
    }
}
