//! Every reason is exercised by some test.

use std::fs;
use std::path::Path;

use common::reason::Reason;

/// Reasons that no test can cause, and why.
const NOT_REACHED: [(Reason, &str); 1] =
    [(Reason::EmitFailed, "the kernel refuses to change a packet only when it is out of memory")];

#[test]
fn every_reason_that_can_be_reached_is() {
    let mut sources = String::new();
    for level in ["packet", "path"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(level)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("packet/reasons.rs") {
                sources.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let named = |reason: &Reason| {
        let name = format!("Reason::{}", reason.name());
        sources
            .match_indices(&name)
            .any(|(at, _)| !sources[at + name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()))
    };
    let missing: Vec<&Reason> = Reason::ALL.iter().filter(|reason| !named(reason)).collect();
    let expected: Vec<&Reason> = NOT_REACHED.iter().map(|(reason, _)| reason).collect();
    assert_eq!(missing, expected);
}
