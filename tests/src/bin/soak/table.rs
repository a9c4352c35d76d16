//! The committed table of all runs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::PathBuf;

use ::tests::machine;
use ::tests::record::{self, in_cell};
use anyhow::{Context, Result};

use crate::course::{self, Cell, Course};
use crate::director::Tally;

const TABLE: &str = "slow/SOAK.md";
/// The line before the sum over all rows.
const SUM: &str = "Minutes without a fault, over all rows: ";
/// How a row without fault ends.
const CLEAN: &str = "| none |";

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) date: String,
    pub(crate) commit: String,
    /// What was done of which seed.
    pub(crate) cell: Cell,
    pub(crate) minutes: f64,
    pub(crate) classes: BTreeMap<&'static str, u64>,
    pub(crate) tally: Tally,
    /// What was found, in few words; `None`: nothing.
    pub(crate) fault: Option<String>,
    /// When there is a fault: packets by reason since the last comparison, or why they are not known.
    pub(crate) moved: Option<Result<BTreeMap<String, u64>, String>>,
}

impl Row {
    fn line(&self) -> String {
        let sums = &self.tally.sums;
        let [captured, counted] = sums.totals();
        let total: u64 = self.classes.values().sum();
        let fault = self
            .fault
            .as_ref()
            .map_or("none".into(), |what| format!("**{}**{}", in_cell(what), in_cell(&self.moved())));
        format!(
            "| {} | {} | {} | {} | {:.1} | {total}: {} | {captured} / {counted} | {} | {} | {} | {} | {fault} |",
            self.date,
            self.commit,
            machine::kernel(),
            self.cell,
            self.minutes,
            list(self.classes.iter()),
            list(sums.counted.iter().chain([(&"the node's stack", &sums.of_stack)])),
            self.tally.kills,
            self.tally.changes,
            comparisons(&self.tally),
        )
    }

    /// What follows the fault: the packets since the last comparison.
    fn moved(&self) -> String {
        let what = match &self.moved {
            None => return String::new(),
            Some(Ok(moved)) if moved.is_empty() => "none".into(),
            Some(Ok(moved)) => list(moved.iter()),
            Some(Err(error)) => format!("not known: {error}"),
        };
        format!("; packets by reason since the last comparison: {what}")
    }
}

fn comparisons(tally: &Tally) -> String {
    match tally.unknown {
        0 => format!("{} equal", tally.equal),
        unknown => format!("{} equal, {unknown} without result", tally.equal),
    }
}

fn list<'a>(counts: impl Iterator<Item = (impl Display, &'a u64)>) -> String {
    counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// Returns what is left of the last run that a signal ended and none has continued.
pub(crate) fn to_resume() -> Result<Course> {
    let (path, text) = record::read(TABLE)?;
    let found = course::to_resume(&cells(&text));
    found.with_context(|| {
        format!("no run in {} was ended by a signal and not continued: leave out --resume", path.display())
    })
}

/// What the rows say of their runs.
fn cells(text: &str) -> Vec<Cell> {
    text.lines().filter_map(|line| Cell::read(line.split('|').nth(4)?.trim())).collect()
}

/// Appends a row to the table.
pub(crate) fn append(row: &Row) -> Result<PathBuf> {
    let (path, text) = record::read(TABLE)?;
    fs::write(&path, with_row(&text, &row.line())).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// The text with one more row, and the new sum.
fn with_row(text: &str, line: &str) -> String {
    let text = record::with_row(text, line);
    let minutes: f64 = text.lines().filter_map(clean_minutes).sum();
    let lines = text.lines().map(|line| match line.starts_with(SUM) {
        true => format!("{SUM}{minutes:.1}"),
        false => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

/// The minutes of a row without fault.
fn clean_minutes(line: &str) -> Option<f64> {
    let minutes = || line.split('|').nth(5)?.trim().parse().ok();
    line.ends_with(CLEAN).then(minutes)?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rows_are_appended_and_minutes_without_fault_are_added_up() {
        let text = format!("# Soak\n\n{SUM}0.0\n\n| date | ... |\n|---|---|\n");
        let row = |minutes: f64, fault: Option<&str>| Row {
            date: "2026-11-24".into(),
            commit: "abc".into(),
            cell: Cell { seed: 5, from: 0, rest: None },
            minutes,
            classes: BTreeMap::from([("tcp", 7), ("refused", 2)]),
            tally: Tally::default(),
            fault: fault.map(str::to_owned),
            moved: fault
                .map(|_| Ok(BTreeMap::from([("RouteNone".to_owned(), 4), ("SynDraining".to_owned(), 1)]))),
        };
        let text = with_row(&text, &row(60.0, None).line());
        let text = with_row(&text, &row(3.5, Some("client: a | b")).line());
        let text = with_row(&text, &row(1.2, None).line());
        assert!(text.contains(&format!("{SUM}61.2\n")), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("| 2026")).count(), 3);
        assert!(text.contains("| 9: refused 2, tcp 7 |"), "{text}");
        let moved = "packets by reason since the last comparison: RouteNone 4, SynDraining 1 |";
        assert!(text.contains(&format!("**client: a / b**; {moved}")), "{text}");
        let unknown = Row { moved: Some(Err("no\npins".into())), ..row(1.0, Some("x")) };
        assert!(unknown.line().ends_with("since the last comparison: not known: no pins |"));
    }

    #[test]
    fn rows_say_what_is_left_of_their_runs() {
        let course = Course { seed: 5, from: 30, time: Duration::from_secs(3600), clients: 32 };
        let cell = Cell { seed: 5, from: 30, rest: course.rest(77, Duration::from_secs(60)) };
        let text = "# Soak\n\n| date | commit | kernel | seed | minutes |\n|---|---|---|---|---|\n| 2026 | - | 6.18 | 4 | 1.1 | none |\n";
        let row = Row {
            date: "2026-11-24".into(),
            commit: "abc".into(),
            cell,
            minutes: 1.0,
            classes: BTreeMap::new(),
            tally: Tally::default(),
            fault: None,
            moved: None,
        };
        let text = with_row(text, &row.line());
        assert_eq!(cells(&text), [Cell { seed: 4, from: 0, rest: None }, cell], "{text}");
        assert_eq!(text.lines().filter_map(clean_minutes).sum::<f64>(), 2.1);
        let committed = cells(include_str!("../../../slow/SOAK.md"));
        assert!(committed.len() > 15 && committed.iter().any(|cell| cell.seed == 401), "{committed:?}");
    }
}
