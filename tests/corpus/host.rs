//! The parser as user space runs it.

use common::wire::client_hello::{Outcome, Parser, parse};
use tests::corpus::{self, Case, Verdict};

/// The name that was found; empty if none is valid.
fn name(parser: &Parser) -> &[u8] {
    &parser.name[..parser.name_length as usize]
}

#[test]
fn every_file_gives_its_verdict() {
    let Some(cases) = corpus::cases().unwrap() else { return };
    let mut preferred = 0;
    let mut objections = Vec::new();
    for case in &cases {
        let (outcome, parser) = parse(&case.bytes);
        preferred += usize::from(case.allowed[0] == Verdict::from(outcome));
        objections.extend(case.objection(outcome, name(&parser)));
    }
    eprintln!(
        "{} files: {preferred} with the preferred verdict, {} with another allowed one, {} wrong",
        cases.len(),
        cases.len() - preferred - objections.len(),
        objections.len()
    );
    assert!(cases.len() >= 900, "only {} files: the manifests were not read whole", cases.len());
    assert!(objections.is_empty(), "{objections:#?}");
}

#[test]
fn a_cut_hello_waits() {
    let Some(cases) = corpus::cases().unwrap() else { return };
    for case in cases.iter().filter(|case| case.real) {
        let end = hello_end(case);
        let mut parser = Parser::zeroed();
        for have in 0..end {
            let outcome = parser.run(case.bytes.as_slice(), have as u32);
            assert_eq!(outcome, Outcome::NeedMore, "{} cut at {have}", case.path.display());
        }
        // Also from scratch, for a sample of the prefixes: one in 61.
        for have in (0..end).step_by(61) {
            let (outcome, _) = parse(&case.bytes[..have]);
            assert_eq!(outcome, Outcome::NeedMore, "{} cut at {have}", case.path.display());
        }
    }
}

/// Length of the stream up to the end of the hello.
fn hello_end(case: &Case) -> usize {
    let (_, parser) = parse(&case.bytes);
    parser.position as usize
}

#[test]
fn every_split_in_two_gives_the_same() {
    let Some(cases) = corpus::cases().unwrap() else { return };
    let mut splits = 0;
    for case in cases.iter().filter(|case| case.real) {
        let whole = parse(&case.bytes);
        for cut in 1..case.bytes.len() {
            let mut parser = Parser::zeroed();
            parser.run(&case.bytes[..cut], cut as u32);
            parser.run(case.bytes.as_slice(), case.bytes.len() as u32);
            assert_eq!((parser.outcome(), parser), whole, "{} split at {cut}", case.path.display());
            splits += 1;
        }
    }
    eprintln!("{splits} splits");
    assert!(splits > 100_000);
}

#[test]
fn segments_of_any_size_give_the_same() {
    let Some(cases) = corpus::cases().unwrap() else { return };
    for case in &cases {
        let (outcome, whole) = parse(&case.bytes);
        for size in [1, 2, 3, 5, 7, 64, 536, 1220, 1448] {
            let mut parser = Parser::zeroed();
            let mut end = 0;
            while parser.outcome() == Outcome::NeedMore && end < case.bytes.len() {
                end = (end + size).min(case.bytes.len());
                parser.run(case.bytes.as_slice(), end as u32);
            }
            let file = case.path.display();
            assert_eq!(parser.outcome(), outcome, "{file} in segments of {size}");
            assert_eq!(name(&parser), name(&whole), "{file} in segments of {size}");
        }
    }
}
