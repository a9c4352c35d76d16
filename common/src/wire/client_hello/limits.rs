//! How long a hello may be, and where it ends.

use super::builder::{Hello, record};
use super::tests::{name, no, read};
use super::*;

/// Returns a hello whose message has `bytes` bytes, its header included.
fn of_bytes(bytes: usize) -> Hello {
    let mut hello = Hello::named(b"a.example.com");
    let padding = bytes - hello.message().len() - 4;
    hello.extensions.as_mut().unwrap().insert(0, (21, vec![0; padding]));
    assert_eq!(hello.message().len(), bytes);
    hello
}

/// Parses the stream as it arrives, in segments of `size` bytes.
fn in_segments(stream: &[u8], size: usize) -> Outcome {
    let mut parser = Parser::zeroed();
    for end in (size..stream.len()).step_by(size).chain([stream.len()]) {
        parser.run(&stream[..end], end as u32);
    }
    parser.outcome()
}

#[test]
fn a_message_that_fills_the_largest_record_fits_and_a_byte_more_does_not() {
    let stream = of_bytes(1 << 14).stream();
    assert_eq!(stream.len(), 5 + (1 << 14));
    assert_eq!(read(&stream), name("a.example.com"));
    assert_eq!(read(&stream[..stream.len() - 1]), no(Outcome::NeedMore));
    for size in [1, 1400, 9_000] {
        assert_eq!(in_segments(&stream, size), Outcome::Name, "segments of {size}");
    }
    for size in [16_384, 16_000, 1_000] {
        assert_eq!(read(&of_bytes(1 << 14).records(size)), name("a.example.com"), "records of {size}");
        assert_eq!(read(&of_bytes((1 << 14) + 1).records(size)), no(Outcome::TooLong), "records of {size}");
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_by_its_header() {
    assert_eq!(read(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"), no(Outcome::NeedMore));
    assert_eq!(read(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfd"), no(Outcome::TooLong));
    assert_eq!(read(b"\x16\x03\x01\x40\x00\x01\xff\xff\xff"), no(Outcome::TooLong));
    // The header itself may be split over records.
    let stream = [record(22, &[1]), record(22, &[0]), record(22, &[0x3f]), record(22, &[0xfc])].concat();
    assert_eq!(read(&stream), no(Outcome::NeedMore));
}

#[test]
fn record_headers_may_bring_the_stream_to_nine_buffers_and_no_further() {
    // 410 records.
    let stream = of_bytes(16_382).records(40);
    assert_eq!(stream.len(), STREAM_BYTES_MAX as usize);
    assert_eq!(read(&stream), name("a.example.com"));
    assert_eq!(read(&stream[..stream.len() - 1]), no(Outcome::NeedMore));
    assert_eq!(in_segments(&stream, 1), Outcome::Name);
    let stream = of_bytes(16_383).records(40);
    assert_eq!(stream.len(), STREAM_BYTES_MAX as usize + 1);
    // The header of the last record shows it.
    let last = stream.len() - (16_383 % 40);
    assert_eq!(read(&stream[..last - 1]), no(Outcome::NeedMore));
    assert_eq!(read(&stream[..last]), no(Outcome::TooLong));
    assert_eq!(in_segments(&stream, 1), Outcome::TooLong);
    // The message would go on in another record.
    let mut stream = of_bytes(16_382).records(40);
    stream[8] += 1;
    assert_eq!(read(&stream[..stream.len() - 1]), no(Outcome::NeedMore));
    assert_eq!(read(&stream), no(Outcome::TooLong));
    // Four bytes of the next record's header fit.
    let message = of_bytes(16_384).message();
    let (first, rest) = message.split_at(38 * 41);
    let stream: Vec<u8> = first.chunks(41).chain(rest.chunks(1)).flat_map(|part| record(22, part)).collect();
    assert_eq!(read(&stream[..STREAM_BYTES_MAX as usize - 1]), no(Outcome::NeedMore));
    assert_eq!(read(&stream), no(Outcome::TooLong));
}

#[test]
fn the_worst_stream_ends_within_the_limit_of_steps() {
    // Records of one byte: every byte is read separately.
    let stream = of_bytes(3_072).records(1);
    assert_eq!(stream.len(), STREAM_BYTES_MAX as usize);
    let mut parser = Parser::zeroed();
    let mut steps = 0;
    for have in 1..=stream.len() {
        while !parser.step(stream.as_slice(), have as u32) {
            steps += 1;
        }
        assert_eq!(parser.outcome() == Outcome::NeedMore, have < stream.len(), "{have} bytes");
    }
    assert!(steps < STEPS_MAX, "{steps}");
    assert_eq!(read(&stream), name("a.example.com"));
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
    // A byte, bytes that are no message, another hello, and as many bytes as a record can hold.
    for behind in [&[0_u8][..], &[0xff; 300], &second, &vec![22; (1 << 14) - message.len()]] {
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

#[test]
fn a_record_that_ends_beyond_nine_buffers_is_refused_by_its_header() {
    // 9,000 bytes in 1,500 records, the rest of the hello and more in one record.
    let message = of_bytes(1_600).message();
    let begin: Vec<u8> = message[..1_500].chunks(1).flat_map(|byte| record(22, byte)).collect();
    let room = STREAM_BYTES_MAX as usize - begin.len() - 5;
    let with = |bytes: usize| {
        let rest = [&message[1_500..], &vec![0; bytes - 100]].concat();
        [&begin[..], &record(22, &rest)].concat()
    };
    assert_eq!(read(&with(room)), name("a.example.com"));
    assert_eq!(read(&with(room)[..STREAM_BYTES_MAX as usize - 1]), no(Outcome::NeedMore));
    assert_eq!(read(&with(room + 1)[..begin.len() + 5]), no(Outcome::TooLong));
    assert_eq!(in_segments(&with(room + 1), 1), Outcome::TooLong);
}
