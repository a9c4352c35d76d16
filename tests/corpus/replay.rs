//! Replays the fuzzers' corpus with the fuzzers' own checks.

use anyhow::{Context, Result};
use common::reason::{REASONS_MAX, Reason};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[expect(unreachable_pub, reason = "a library of its own for the fuzz targets")]
#[path = "../fuzz/src/lib.rs"]
mod fuzz;

/// Minimum number of reasons that the corpus of packets reaches, so that it does not lose its effect unnoticed.
const REACHED_MIN: usize = 55;

/// Runs `check` over the corpus of a target. A failed check panics; the file's name is printed before.
fn replay(target: &str, mut check: impl FnMut(&[u8])) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        eprintln!("{}", path.display());
        check(&fs::read(&path)?);
        count += 1;
    }
    assert!(count >= 10, "only {count} files in {}", folder.display());
    Ok(())
}

#[test]
fn client_hello() {
    replay("client_hello", fuzz::client_hello::check).unwrap();
}

#[test]
fn neighbour() {
    replay("neighbour", fuzz::neighbour::check).unwrap();
}

#[test]
fn config_name() {
    replay("config_name", fuzz::config_name::check).unwrap();
}

#[test]
fn packets() {
    tests::skip_without_root!();
    let mut bench = fuzz::packets::Bench::new().unwrap();
    let mut reached = BTreeSet::new();
    replay("packets", |input| bench.check(input, |way| _ = reached.insert(way % REASONS_MAX))).unwrap();
    let missing: Vec<_> =
        Reason::ALL.iter().filter(|reason| !reached.contains(&(**reason as usize))).collect();
    assert!(reached.len() >= REACHED_MIN, "the corpus reaches {} reasons, not {missing:?}", reached.len());
}
