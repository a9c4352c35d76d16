//! Invariants for any bytes, cut anywhere, as the start of a TLS connection.

use super::oracle::{self, Verdict};
use common::wire::client_hello::{Outcome, Parser, STEPS_MAX, parse};
use tls_parser::{SNIType, TlsExtension, TlsMessage, TlsMessageHandshake};

/// Maximum number of cuts taken from an input.
const CUTS_MAX: u8 = 7;

/// Input: the number of cuts (in the low bits), their offsets as 16-bit numbers, the stream.
pub fn check(input: &[u8]) {
    let Some((cuts, stream)) = split(input) else { return };
    let (outcome, parser) = parse(stream);
    let name = judged(outcome, &parser);
    segments_give_the_same(stream, &cuts, outcome, &parser);
    oracle_agrees(stream, outcome, name);
    if outcome == Outcome::Name {
        other_parser_sees_no_other_name(stream, name);
        records_do_not_matter(stream, &cuts, name);
    }
}

/// Returns the cuts in ascending order, and the stream.
fn split(input: &[u8]) -> Option<(Vec<usize>, &[u8])> {
    let (count, rest) = input.split_first()?;
    let (places, stream) = rest.split_at_checked(usize::from(count & CUTS_MAX) * 2)?;
    let mut cuts: Vec<usize> =
        places.as_chunks().0.iter().map(|place| usize::from(u16::from_be_bytes(*place))).collect();
    cuts.retain(|cut| *cut < stream.len());
    cuts.sort_unstable();
    Some((cuts, stream))
}

/// Checks the invariants of a name, and returns it.
fn judged(outcome: Outcome, parser: &Parser) -> &str {
    let (name, rest) = parser.name.split_at(usize::from(parser.name_length));
    assert_eq!(outcome == Outcome::Name, !name.is_empty());
    assert!(name.len() <= 253);
    if outcome == Outcome::Name {
        assert!(rest.iter().all(|byte| *byte == 0), "not zero behind the name");
        assert!(name.split(|byte| *byte == b'.').all(|label| (1..=63).contains(&label.len())));
        let legal = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte);
        assert!(name.iter().all(legal));
    }
    str::from_utf8(name).expect("ASCII")
}

/// Fed in segments, with every old byte blanked, the parser must end in the same state. Each step must
/// consume bytes or be the last.
fn segments_give_the_same(stream: &[u8], cuts: &[usize], outcome: Outcome, whole: &Parser) {
    let mut parser = Parser::zeroed();
    let mut seen = stream.to_vec();
    let mut steps = 0;
    for end in cuts.iter().copied().chain([stream.len()]) {
        let mut position = parser.position;
        seen[..position as usize].fill(0xee);
        while !parser.step(&seen[..end], end as u32) {
            assert!(parser.position > position, "a step consumed nothing");
            position = parser.position;
            steps += 1;
            assert!(steps < STEPS_MAX, "more steps than allowed");
        }
        if parser.outcome() == Outcome::NeedMore {
            assert_eq!(parser.position as usize, end, "bytes left over");
        }
    }
    assert_eq!(parser.outcome(), outcome);
    assert_eq!(parser.name_length, whole.name_length);
    if outcome == Outcome::Name {
        assert_eq!(parser.name, whole.name);
    }
    if outcome == Outcome::NeedMore {
        assert_eq!(&parser, whole);
    }
}

/// The plain reference parser must give the same verdict.
fn oracle_agrees(stream: &[u8], outcome: Outcome, name: &str) {
    let verdict = oracle::stream(stream);
    let fits = match &verdict {
        // A violation may show before the message is complete; a name is never accepted before.
        Verdict::Incomplete => {
            matches!(outcome, Outcome::NeedMore | Outcome::Malformed | Outcome::TooLong)
        }
        Verdict::Broken => matches!(outcome, Outcome::NotTls | Outcome::Malformed | Outcome::TooLong),
        Verdict::NoName => outcome == Outcome::NoName,
        Verdict::InvalidName => outcome == Outcome::NameInvalid,
        Verdict::Name(expected) => outcome == Outcome::Name && expected == name,
        Verdict::LikeIpv4(expected) => {
            outcome == Outcome::NoName || outcome == Outcome::Name && expected == name
        }
        Verdict::LikeIpv6 => matches!(outcome, Outcome::NoName | Outcome::NameInvalid),
    };
    assert!(fits, "{outcome:?} {name:?}, the reference says {verdict:?}");
}

/// Another parser, if it accepts the message, must find this name and no other.
fn other_parser_sees_no_other_name(stream: &[u8], name: &str) {
    let body = oracle::message(stream).expect("a whole message");
    let length = u32::try_from(body.len()).expect("at most 16 KiB").to_be_bytes();
    let message = [&[1], &length[1..], &body].concat();
    let Ok((_, TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello)))) =
        tls_parser::parse_tls_message_handshake(&message)
    else {
        return;
    };
    let Ok((_, extensions)) = tls_parser::parse_tls_client_hello_extensions(hello.ext.unwrap_or_default())
    else {
        return;
    };
    for extension in extensions {
        let TlsExtension::SNI(entries) = extension else { continue };
        for (_, text) in entries.iter().filter(|(kind, _)| *kind == SNIType::HostName) {
            let text = str::from_utf8(text).expect("ASCII").to_ascii_lowercase();
            assert_eq!(text.strip_suffix('.').unwrap_or(&text), name, "tls-parser finds another name");
        }
    }
}

/// The same message in records of another size must have the same name.
fn records_do_not_matter(stream: &[u8], cuts: &[usize], name: &str) {
    let body = oracle::message(stream).expect("a whole message");
    let length = u32::try_from(body.len()).expect("at most 16 KiB").to_be_bytes();
    let message = [&[1], &length[1..], &body].concat();
    let size = 1 + cuts.first().copied().unwrap_or(0) % 1000;
    let mut other = Vec::new();
    for part in message.chunks(size) {
        let length = u16::try_from(part.len()).expect("at most 1000").to_be_bytes();
        other.extend([22, 3, 1, length[0], length[1]]);
        other.extend(part);
    }
    let (outcome, parser) = parse(&other);
    match outcome {
        Outcome::Name => assert_eq!(judged(outcome, &parser), name),
        // Smaller records add more headers.
        other_outcome => assert!(other_outcome == Outcome::TooLong && other.len() > 18_432),
    }
}
