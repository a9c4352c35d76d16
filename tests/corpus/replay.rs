//! The fuzzers' corpus, replayed with the fuzzers' own checks.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

#[expect(unreachable_pub, reason = "a library of its own for the fuzz targets")]
#[path = "../fuzz/src/lib.rs"]
mod fuzz;

/// Runs `check` over the corpus of a target; a check that fails panics, with the file named before.
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
fn config_name() {
    replay("config_name", fuzz::config_name::check).unwrap();
}

#[test]
fn packets() {
    tests::skip_without_root!();
    let mut bench = fuzz::packets::Bench::new().unwrap();
    replay("packets", |input| bench.check(input, |_| ())).unwrap();
}
