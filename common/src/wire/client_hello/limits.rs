//! How long a hello may be, and where it ends.

use super::builder::{Hello, record};
use super::tests::{name, no, read};
use super::*;

/// Parses the stream as it arrives, in segments of `size` bytes.
fn in_segments(stream: &[u8], size: usize) -> Outcome {
    let mut parser = Parser::zeroed();
    for end in (size..stream.len()).step_by(size).chain([stream.len()]) {
        parser.run(&stream[..end], end as u32);
    }
    parser.outcome()
}

#[test]
fn records_behind_the_hello_do_not_matter() {
    let mut stream = Hello::named(b"a.example.com").stream();
    let end = stream.len();
    stream.extend(record(20, &[1]));
    stream.extend(record(23, &[0; 400]));
    assert_eq!(read(&stream), name("a.example.com"));
    assert_eq!(parse(&stream).1.position as usize, end);
    stream.truncate(end);
    stream.resize(40_000, 0x17);
    assert_eq!(read(&stream), name("a.example.com"));
}

#[test]
fn a_record_that_announces_more_than_its_hello_is_waited_for() {
    let hello = Hello::named(b"a.example.com");
    let message = hello.message();
    let second = Hello::named(b"b.example.com").message();
    // A byte, bytes that are no message, and another hello.
    for behind in [&[0_u8][..], &[0xff; 300], &second] {
        let stream = record(22, &[&message, behind].concat());
        let begins = stream.len() - behind.len();
        for have in [begins, begins + 1, stream.len() - 1] {
            let expected = if have < stream.len() { no(Outcome::NeedMore) } else { name("a.example.com") };
            assert_eq!(read(&stream[..have]), expected, "{} bytes more, {have} here", behind.len());
        }
        for size in [1, 100, 1400] {
            assert_eq!(in_segments(&stream, size), Outcome::Name, "segments of {size}");
        }
        let (outcome, parser) = parse(&[&stream[..], &[0x17; 50]].concat());
        assert_eq!((outcome, parser.position as usize), (Outcome::Name, stream.len()));
        // The hello may end in a later record, and only that one counts.
        let (first, rest) = message.split_at(60);
        let stream = [record(22, first), record(22, &[rest, behind].concat())].concat();
        assert_eq!(read(&stream[..stream.len() - 1]), no(Outcome::NeedMore));
        assert_eq!(read(&stream), name("a.example.com"));
    }
}

#[test]
fn no_verdict_precedes_the_end_of_the_record() {
    let without = Hello { extensions: None, ..Hello::named(b"") };
    let trailing = Hello { trailer: vec![0; 4], ..Hello::named(b"a.example.com") };
    for (hello, verdict) in [
        (Hello::with(vec![]), Outcome::NoName),
        (without, Outcome::NoName),
        (Hello::named(b"*.example.com"), Outcome::NameInvalid),
        (trailing, Outcome::Malformed),
    ] {
        let stream = record(22, &[&hello.message()[..], &[0; 7]].concat());
        assert_eq!(read(&stream[..stream.len() - 1]), no(Outcome::NeedMore), "{verdict:?}");
        assert_eq!(read(&stream), no(verdict));
    }
}
