//! The committed table of loads in their long form.

use std::fmt::Display;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use tests::machine;
use tests::record::{self, in_cell};

const TABLE: &str = "slow/LOADS.md";

/// Whether the tests are to run the long form of their loads.
pub(crate) fn is_long() -> bool {
    std::env::var_os("VESTIBULE_SOAK").is_some_and(|value| value == "1")
}

static TURN: RwLock<()> = RwLock::new(());

/// Waits until no load runs that [`beside`] keeps, and keeps all of these from beginning until it is dropped.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps loads from running that have to be [`alone`].
pub(crate) fn beside() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Appends a row to the table if this was the long form. `count`: what was done; `faults`: what was wrong with it, or empty.
pub(crate) fn record(load: &str, count: impl Display, faults: &str, begun: Instant) {
    if is_long() {
        let row = row(load, &count.to_string(), faults, begun.elapsed().as_secs());
        let path = record::append(TABLE, &row).expect("the table is writable");
        eprintln!("appended to {}", path.display());
    }
}

fn row(load: &str, count: &str, faults: &str, secs: u64) -> String {
    let faults = if faults.is_empty() { "none".into() } else { format!("**{}**", in_cell(faults)) };
    let (date, commit, kernel) = (record::today(), record::commit(), machine::kernel());
    format!("| {date} | {commit} | {kernel} | {load} | {} | {faults} | {secs} |", in_cell(count))
}

/// Or rows would not be shown as such.
#[test]
fn the_table_has_the_columns_of_a_row() {
    let columns = |line: &str| line.matches('|').count();
    let row = row("hellos", "1000000 connections", "connect: a | b\nc", 900);
    assert!(row.ends_with(" | hellos | 1000000 connections | **connect: a / b c** | 900 |"), "{row}");
    let (_, text) = record::read(TABLE).unwrap();
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert!(table.len() >= 2 && table.iter().all(|line| columns(line) == columns(&row)), "{table:?}");
    assert!(text.trim_end().ends_with('|'), "rows are appended to the table");
}
