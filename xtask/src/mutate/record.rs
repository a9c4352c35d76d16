//! The committed table of guards: what showed each of them last, and on which commit.

use super::{Guard, Judgement};
use crate::failure::{Failure, Outcome};
use crate::process;
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// The table.
const TABLE: &str = "tests/slow/GUARDS.md";
/// What its rows follow.
const BEGINS: &str = "| --- |\n";

/// The cells behind a guard's name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    test: String,
    commit: String,
    /// When, to the minute: so it sorts.
    time: String,
}

/// The rows by their guards, and the text before them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    head: String,
    rows: BTreeMap<String, Row>,
}

impl Record {
    /// Reads the table.
    pub(super) fn read() -> Outcome<Self> {
        let text = fs::read_to_string(process::root().join(TABLE)).map_err(|error| failure(&error))?;
        Self::of(&text).ok_or_else(|| failure(&io::Error::other(format!("no `{}`", BEGINS.trim_end()))))
    }

    fn of(text: &str) -> Option<Self> {
        let begin = text.find(BEGINS)? + BEGINS.len();
        let (head, rows) = text.split_at(begin);
        let rows = rows.lines().filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [guard, test, commit, time] = cells[..] else { return None };
            Some((guard.to_owned(), Row { test: test.into(), commit: commit.into(), time: time.into() }))
        });
        Some(Self { head: head.to_owned(), rows: rows.collect() })
    }

    /// Sorts guards: first those that no run has shown, then by when that was.
    pub(super) fn sort(&self, guards: &mut [Guard]) {
        let shown = |row: &Row| (!row.test.starts_with("**"), row.time.clone());
        guards.sort_by_key(|guard| self.rows.get(&guard.name).map(shown));
    }

    /// Notes what became of a guard of this commit, and writes the table, with a row for each of all guards that was judged.
    pub(super) fn note(guard: &Guard, judged: &Outcome<Judgement>, commit: &str, all: &[String]) -> Outcome {
        let test = match judged {
            Ok(Judgement::Shown(tests)) => tests.first().map(|test| format!("`{test}`")).unwrap_or_default(),
            Ok(Judgement::Survived) => "**none**".to_owned(),
            Ok(Judgement::Refused) => "**the kernel refuses the programs without it**".to_owned(),
            Err(_) => "**not judged**".to_owned(),
        };
        let time = process::answer(process::command("date").args(["-u", "+%F %R"])).unwrap_or_default();
        // Another run may have written it meanwhile.
        let mut record = Self::read()?;
        record.rows.insert(guard.name.clone(), Row { test, commit: commit.to_owned(), time });
        fs::write(process::root().join(TABLE), record.text(all)).map_err(|error| failure(&error))
    }

    fn text(&self, all: &[String]) -> String {
        let row = |guard: &String| {
            let Row { test, commit, time } = self.rows.get(guard)?;
            Some(format!("| {guard} | {test} | {commit} | {time} |\n"))
        };
        self.head.clone() + &all.iter().filter_map(row).collect::<String>()
    }
}

fn failure(error: &io::Error) -> Failure {
    Failure::new("recording guards", format!("{TABLE}: {error}"), "restore it")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Guards\n\n| guard | test | commit | time |\n| --- | --- | --- | --- |\n\
        | first | `a::b` | 1234567 | 2026-11-30 10:00 |\n| second | **none** | 1234567 | 2026-11-30 11:00 |\n";

    fn guard(name: &str) -> Guard {
        Guard { name: name.into(), ..Guard::default() }
    }

    #[test]
    fn the_table_is_written_as_it_was_read_without_guards_that_are_gone() {
        let record = Record::of(TEXT).unwrap();
        let names = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).into()).collect() };
        assert_eq!(record.text(&names(&["first", "second", "third"])), TEXT);
        let second = record.text(&names(&["second"]));
        assert!(second.contains("| second |") && !second.contains("| first |"));
        assert_eq!(Record::of("# Guards\n"), None);
    }

    #[test]
    fn what_was_never_shown_is_first_and_then_what_was_shown_first() {
        let record = Record::of(TEXT).unwrap();
        let mut guards = ["first", "second", "third", "fourth"].map(guard);
        record.sort(&mut guards);
        assert_eq!(guards.map(|guard| guard.name), ["third", "fourth", "second", "first"]);
    }

    #[test]
    fn no_name_of_a_guard_breaks_the_table() {
        let list = fs::read_to_string(process::root().join(super::super::LIST)).unwrap();
        assert!(super::super::guards(&list).unwrap().iter().all(|guard| !guard.name.contains('|')));
        Record::read().unwrap();
    }
}
