use super::builder::{Hello, prefixed, record, server_name};
use super::*;

/// Parses the bytes and returns the outcome and the name as text.
pub(super) fn read(bytes: &[u8]) -> (Outcome, String) {
    let (outcome, parser) = parse(bytes);
    checked(outcome, &parser)
}

/// Checks what must hold for every parser that stopped, then returns the outcome and the name.
fn checked(outcome: Outcome, parser: &Parser) -> (Outcome, String) {
    let (name, rest) = parser.name.split_at(parser.name_length as usize);
    assert_eq!(outcome == Outcome::Name, !name.is_empty());
    if outcome == Outcome::Name {
        assert!(rest.iter().all(|byte| *byte == 0), "not zero behind the name");
    }
    (outcome, String::from_utf8(name.to_vec()).unwrap())
}

pub(super) fn name(name: &str) -> (Outcome, String) {
    (Outcome::Name, name.to_owned())
}

pub(super) fn no(outcome: Outcome) -> (Outcome, String) {
    (outcome, String::new())
}

/// Returns a small hello, one in several records, and a large one with the name after a post-quantum key
/// share.
fn three() -> [Vec<u8>; 3] {
    let mut large = Hello::named(b"Tenant-A.k8s.example.com.");
    large.extensions.as_mut().unwrap().insert(0, (51, vec![0x5a; 1263]));
    [Hello::named(b"a.example.com").stream(), Hello::named(b"b.example.com").records(50), large.records(1000)]
}

#[test]
fn the_name_is_found_folded_and_without_its_dot() {
    let [small, fragmented, large] = three();
    assert_eq!(read(&small), name("a.example.com"));
    assert_eq!(read(&fragmented), name("b.example.com"));
    assert_eq!(read(&large), name("tenant-a.k8s.example.com"));
}

#[test]
fn every_cut_waits_and_every_split_in_two_gives_the_same() {
    for stream in three() {
        let whole = parse(&stream);
        for cut in 0..stream.len() {
            let mut parser = Parser::zeroed();
            assert_eq!(parser.run(&stream[..cut], cut as u32), Outcome::NeedMore, "cut at {cut}");
            assert_eq!(parser.position as usize, cut, "every byte is consumed");
            // Consumed bytes are not read again, so they are overwritten.
            let mut rest = stream.clone();
            rest[..cut].fill(0xee);
            assert_eq!(parser.run(rest.as_slice(), rest.len() as u32), whole.0);
            assert_eq!(parser, whole.1, "split at {cut}");
        }
    }
}

#[test]
fn every_record_size_gives_the_same() {
    let hello = Hello::named(b"a.example.com");
    for size in 1..=hello.message().len() {
        assert_eq!(read(&hello.records(size)), name("a.example.com"), "records of {size}");
    }
}

#[test]
fn each_step_consumes_a_byte_or_is_the_last() {
    for stream in three() {
        for end in [stream.len(), 100] {
            let mut parser = Parser::zeroed();
            let mut position = 0;
            while !parser.step(&stream[..end], end as u32) {
                assert!(parser.position > position);
                position = parser.position;
            }
        }
    }
}

#[test]
fn what_is_not_tls_is_told_by_its_first_bytes() {
    for stream in
        [&b"G"[..], b"GET / HTTP/1.1\r\n", b"\x80\x2e\x01\x03", b"\r\n", b"\x15\x03\x01\0\x02\x01\0"]
    {
        assert_eq!(read(stream), no(Outcome::NotTls), "{}", stream.escape_ascii());
    }
    // The second byte is the major version.
    for stream in [&b"\x16\x02"[..], b"\x16\xfe\xff\0\x01\x01", b"\x16\x04\x01\x02\0\x01"] {
        assert_eq!(read(stream), no(Outcome::NotTls), "{}", stream.escape_ascii());
    }
    for minor in [0, 1, 3, 4, 255] {
        let mut stream = Hello::named(b"a.example.com").stream();
        stream[2] = minor;
        assert_eq!(read(&stream), name("a.example.com"));
    }
}

#[test]
fn a_later_record_must_be_a_handshake_record() {
    let message = Hello::named(b"a.example.com").message();
    for kind in [20, 21, 23, 24, 0, 255] {
        let stream = [record(22, &message[..60]), record(kind, &[1]), record(22, &message[60..])].concat();
        assert_eq!(read(&stream), no(Outcome::Malformed), "record type {kind}");
    }
    let mut stream = [record(22, &message[..60]), record(22, &message[60..])].concat();
    stream[66] = 2;
    assert_eq!(read(&stream), no(Outcome::Malformed), "major version of the second record");
}

#[test]
fn empty_and_oversized_records_are_malformed() {
    let message = Hello::named(b"a.example.com").message();
    assert_eq!(read(&record(22, &[])), no(Outcome::Malformed));
    let stream = [record(22, &message[..60]), record(22, &[]), record(22, &message[60..])].concat();
    assert_eq!(read(&stream), no(Outcome::Malformed));
    assert_eq!(read(b"\x16\x03\x01\x40\x00"), no(Outcome::NeedMore));
    assert_eq!(read(b"\x16\x03\x01\x40\x01"), no(Outcome::Malformed));
    assert_eq!(read(b"\x16\x03\x01\x80\x00"), no(Outcome::Malformed));
    // One byte at a time, the header is read by the other branch.
    let mut parser = Parser::zeroed();
    let stream = b"\x16\x03\x01\x40\x01";
    let outcomes: Vec<_> = (1..=5).map(|have| parser.run(&stream[..], have)).collect();
    assert_eq!(outcomes[..4], [Outcome::NeedMore; 4]);
    assert_eq!(outcomes[4], Outcome::Malformed);
}

#[test]
fn other_handshake_messages_are_malformed() {
    for kind in [0, 2, 4, 11, 20, 255] {
        let hello = Hello { kind, ..Hello::named(b"a.example.com") };
        assert_eq!(read(&hello.stream()), no(Outcome::Malformed), "handshake type {kind}");
    }
}

#[test]
fn vectors_before_the_extensions_are_checked() {
    let good = Hello::named(b"a.example.com");
    let with = |change: fn(&mut Hello)| {
        let mut hello = good.clone();
        change(&mut hello);
        read(&hello.stream())
    };
    assert_eq!(with(|hello| hello.session_id.clear()), name("a.example.com"));
    assert_eq!(with(|hello| hello.session_id.push(0)), no(Outcome::Malformed));
    assert_eq!(with(|hello| hello.cipher_suites.clear()), no(Outcome::Malformed));
    assert_eq!(with(|hello| hello.cipher_suites.push(0)), no(Outcome::Malformed));
    assert_eq!(with(|hello| hello.compression.clear()), no(Outcome::Malformed));
    assert_eq!(with(|hello| hello.compression = vec![0; 255]), name("a.example.com"));
}

#[test]
fn every_message_cut_short_is_malformed() {
    let body = Hello::named(b"a.example.com").message().split_off(4);
    for length in 0..body.len() {
        let header = (length as u32 | 1 << 24).to_be_bytes();
        let outcome = read(&record(22, &[&header, &body[..length]].concat()));
        // A hello may end where its extensions would start.
        let before_extensions = 2 + 32 + 33 + 8 + 2;
        let expected = if length == before_extensions { Outcome::NoName } else { Outcome::Malformed };
        assert_eq!(outcome, no(expected), "message of {length} bytes");
    }
}

#[test]
fn a_hello_without_server_name_has_no_name() {
    let without = Hello { extensions: None, ..Hello::named(b"") };
    assert_eq!(read(&without.stream()), no(Outcome::NoName));
    assert_eq!(read(&Hello::with(vec![]).stream()), no(Outcome::NoName));
    assert_eq!(read(&Hello::with(vec![(16, vec![1]), (43, vec![2])]).stream()), no(Outcome::NoName));
}

#[test]
fn what_looks_like_a_server_name_elsewhere_is_none() {
    let (_, fake) = server_name(&[(0, b"evil.example.com")]);
    let extension = [&[0, 0], prefixed(&fake).as_slice()].concat();
    let mut hello = Hello::with(vec![(21, extension.clone()), (41, extension.clone()), (0x100, fake)]);
    hello.session_id = extension[..25].to_vec();
    assert_eq!(read(&hello.stream()), no(Outcome::NoName));
    hello.extensions.as_mut().unwrap().push(server_name(&[(0, b"good.example.com")]));
    assert_eq!(read(&hello.stream()), name("good.example.com"));
}

#[test]
fn bytes_behind_the_extensions_are_malformed_once_the_message_is_there() {
    for count in [1, 4, 100] {
        let hello = Hello { trailer: vec![0; count], ..Hello::named(b"a.example.com") };
        let stream = hello.stream();
        assert_eq!(read(&stream), no(Outcome::Malformed));
        assert_eq!(read(&stream[..stream.len() - 1]), no(Outcome::NeedMore));
    }
}

#[test]
fn every_wrong_extension_length_is_refused_or_passes_over_the_name() {
    let hello = Hello::named(b"a.example.com");
    let stream = hello.stream();
    let first = stream.len() - (4 + 4 + 2 + 3 + 13 + 4 + 5) + 2;
    for length in 1..200_u16 {
        let mut stream = stream.clone();
        stream[first..first + 2].copy_from_slice(&length.to_be_bytes());
        let (outcome, _) = read(&stream);
        assert!(matches!(outcome, Outcome::Malformed | Outcome::NoName), "{length}: {outcome:?}");
    }
}

#[test]
fn the_extensions_length_must_reach_the_end_of_the_message() {
    let stream = Hello::named(b"a.example.com").stream();
    let at = 9 + 2 + 32 + 33 + 8 + 2;
    let right = u16::from_be_bytes([stream[at], stream[at + 1]]);
    for length in (0..300_u16).chain([16_384, 65_535]) {
        let mut stream = stream.clone();
        stream[at..at + 2].copy_from_slice(&length.to_be_bytes());
        let expected = if length == right { name("a.example.com") } else { no(Outcome::Malformed) };
        assert_eq!(read(&stream), expected, "extensions length {length}");
    }
}

#[test]
fn the_server_name_list_must_fit_exactly() {
    let list = |data: &[u8]| read(&Hello::with(vec![(0, data.to_vec()), (16, vec![])]).stream());
    assert_eq!(list(b"\0\x04\0\0\x01a"), name("a"));
    for bad in [
        &b""[..],                    // no list
        b"\0",                       // half a length
        b"\0\0",                     // empty list
        b"\0\0\0\0\x01a",            // list length 0 but data
        b"\0\x03\0\0\x01a",          // list length one too small
        b"\0\x05\0\0\x01a",          // list length one too large
        b"\xff\xff\0\0\x01a",        // list of 64 KiB
        b"\0\x03\0\0\0",             // empty name
        b"\0\x04\0\0\x02a",          // name length one too large
        b"\0\x05\0\0\x01ab",         // name length one too small
        b"\0\x04\0\xff\xffa",        // name of 64 KiB
        b"\0\x01\0",                 // entry is only a type
        b"\0\x02\0\0",               // entry ends inside its length
        b"\0\x04\0\0\x01ab",         // byte after the list
        b"\0\x08\0\0\x01a\0\0\x01b", // two host names
        b"\0\x07\x01\0\0\0\0\x01a",  // unknown type with an empty name
    ] {
        assert_eq!(list(bad), no(Outcome::Malformed), "{}", bad.escape_ascii());
    }
}

#[test]
fn unknown_name_types_are_passed_over() {
    let entries = |entries: &[(u8, &[u8])]| read(&Hello::with(vec![server_name(entries)]).stream());
    assert_eq!(entries(&[(1, b"x\0y"), (0, b"a.example.com")]), name("a.example.com"));
    assert_eq!(entries(&[(0, b"a.example.com"), (1, b"x")]), name("a.example.com"));
    assert_eq!(entries(&[(1, b"a.example.com")]), no(Outcome::NoName));
    assert_eq!(entries(&[(0, b"a"), (7, b"x"), (0, b"b")]), no(Outcome::Malformed));
}

#[test]
fn a_second_server_name_is_malformed() {
    let sni = |name: &[u8]| server_name(&[(0, name)]);
    for second in [sni(b"b.example.com"), sni(b"a.example.com"), (0, vec![])] {
        let hello = Hello::with(vec![sni(b"a.example.com"), (23, vec![]), second]);
        assert_eq!(read(&hello.stream()), no(Outcome::Malformed));
    }
    // Also if neither of them contains a host name.
    let unknown = server_name(&[(1, b"x")]);
    assert_eq!(read(&Hello::with(vec![unknown.clone(), unknown]).stream()), no(Outcome::Malformed));
}

#[test]
fn the_name_follows_the_rules_for_names() {
    let of = |name: &[u8]| read(&Hello::named(name).stream());
    assert_eq!(of(b"A_b-C.EXAMPLE.com"), name("a_b-c.example.com"));
    assert_eq!(of(b"kubernetes"), name("kubernetes"));
    assert_eq!(of(b"10.0.0.1"), no(Outcome::NoName));
    assert_eq!(of(b"10.0.0.1."), no(Outcome::NoName));
    assert_eq!(of(b"fd97::10"), no(Outcome::NoName));
    for bad in
        [&b"*.example.com"[..], b"a..b", b".a", b"a..", b".", b"a b", b"a\0", b"[::1]", b"b\xc3\xbc.de"]
    {
        assert_eq!(of(bad), no(Outcome::NameInvalid), "{}", bad.escape_ascii());
    }
}

#[test]
fn a_name_is_never_cut_to_fit() {
    let of = |length: usize, end: &str| {
        let long: String = "abcdefg.".chars().cycle().take(length).collect();
        (read(&Hello::named((long.clone() + end).as_bytes()).stream()), long)
    };
    let (found, long) = of(253, "");
    assert_eq!(found, name(&long));
    let (found, long) = of(253, ".");
    assert_eq!(found, name(&long));
    for length in [254, 255, 257, 300, 509, 4096] {
        assert_eq!(of(length, "x").0, no(Outcome::NameInvalid), "{length} bytes");
    }
    assert_eq!(of(253, "x").0, no(Outcome::NameInvalid));
    assert_eq!(of(253, "..").0, no(Outcome::NameInvalid));
}

#[test]
fn an_invalid_name_counts_only_at_the_end() {
    let stream = Hello::named(b"*.example.com").stream();
    assert_eq!(read(&stream[..stream.len() - 1]), no(Outcome::NeedMore));
    assert_eq!(read(&stream), no(Outcome::NameInvalid));
}

#[test]
fn the_window_reads_like_a_slice() {
    for stream in three() {
        let mut window = Box::new(Window { bytes: [0xee; WINDOW_BYTES] });
        let mut parser = Parser::zeroed();
        let mut end = 0;
        for segment in stream.chunks(37) {
            window.bytes[end..end + segment.len()].copy_from_slice(segment);
            end += segment.len();
            parser.run(&*window, end as u32);
        }
        assert_eq!((parser.outcome(), parser), parse(&stream));
    }
}

#[test]
fn a_decided_parser_stays_decided() {
    let stream = Hello::named(b"a.example.com").stream();
    let (_, mut parser) = parse(&stream);
    let before = parser;
    assert_eq!(parser.run(&b"GET / HTTP/1.1"[..], 14), Outcome::Name);
    assert_eq!(parser, before);
    let (_, mut refused) = parse(b"G");
    assert_eq!(refused.run(stream.as_slice(), stream.len() as u32), Outcome::NotTls);
    parser.begin();
    assert_eq!(parser, Parser::zeroed());
}
