//! What a run does from where to where, and how its row in the table says so: a run that a signal ended is continued by another.

use std::fmt;
use std::time::Duration;

use ::tests::dice::Dice;

/// Milliseconds of a minute.
const MINUTE_MS: f64 = 60_000.0;

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    pub(crate) seed: u64,
    /// The number of each client's first connection: 0, or where the run that this one continues has stopped.
    pub(crate) from: u64,
    /// How long it runs unless a signal ends it.
    pub(crate) time: Duration,
    pub(crate) clients: u64,
}

impl Course {
    /// What decides loss, changes and the stranger's packets, which do not end with a number: another thing from each start.
    pub(crate) fn seed_of_changes(&self) -> u64 {
        if self.from == 0 { self.seed } else { Dice::new(self.seed, self.from).number() }
    }

    /// What is left of it when a signal ends it after this time, where no client has made the connection `reached`.
    pub(crate) fn rest(&self, reached: u64, after: Duration) -> Option<Self> {
        let time = self.time.checked_sub(after).filter(|time| *time >= Duration::from_secs(1))?;
        Some(Self { from: reached.max(self.from), time, ..*self })
    }
}

/// The cell of a row that says what was done: the seed; where it went on, if it continues a run; where it stopped, if a signal
/// ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) seed: u64,
    pub(crate) from: u64,
    pub(crate) rest: Option<Course>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        if self.from > 0 {
            write!(f, " continued from {}", self.from)?;
        }
        if let Some(Course { from, time, clients, .. }) = self.rest {
            let minutes = time.as_millis() as f64 / MINUTE_MS;
            write!(f, "; stopped at {from} with {minutes:.2} minutes left, {clients} clients")?;
        }
        Ok(())
    }
}

impl Cell {
    /// Reads the cell; `None`: it is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (done, stopped) = match text.split_once("; stopped at ") {
            Some((done, stopped)) => (done, Some(stopped)),
            None => (text, None),
        };
        let (seed, from) = match done.split_once(" continued from ") {
            Some((seed, from)) => (seed.parse().ok()?, from.parse().ok()?),
            None => (done.parse().ok()?, 0),
        };
        let Some(stopped) = stopped else { return Some(Self { seed, from, rest: None }) };
        let (at, rest) = stopped.split_once(" with ")?;
        let (minutes, clients) = rest.split_once(" minutes left, ")?;
        let minutes: f64 = minutes.parse().ok()?;
        let rest = Course {
            seed,
            from: at.parse().ok()?,
            time: Duration::from_millis((minutes * MINUTE_MS).round() as u64),
            clients: clients.strip_suffix(" clients")?.parse().ok()?,
        };
        Some(Self { seed, from, rest: Some(rest) })
    }
}

/// What is left of the last run that a signal ended and none has continued.
pub(crate) fn to_resume(cells: &[Cell]) -> Option<Course> {
    cells.iter().enumerate().rev().find_map(|(index, cell)| {
        let rest = cell.rest?;
        let continues = |later: &Cell| later.seed == rest.seed && later.from == rest.from;
        (!cells[index + 1..].iter().any(continues)).then_some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Course = Course { seed: 7, from: 0, time: Duration::from_secs(3600), clients: 3 };

    #[test]
    fn a_cell_is_read_as_it_was_written() {
        let rest = HOUR.rest(40, Duration::from_secs(600));
        for (cell, text) in [
            (Cell { seed: 7, from: 0, rest: None }, "7"),
            (Cell { seed: 7, from: 12, rest: None }, "7 continued from 12"),
            (Cell { seed: 7, from: 0, rest }, "7; stopped at 40 with 50.00 minutes left, 3 clients"),
            (
                Cell { seed: 7, from: 12, rest },
                "7 continued from 12; stopped at 40 with 50.00 minutes left, 3 clients",
            ),
        ] {
            assert_eq!(cell.to_string(), text);
            assert_eq!(Cell::read(text), Some(cell));
        }
        for text in ["seed", "---", "", "7; stopped at 40", "7 continued from x", "7; stopped at 4 with 5"] {
            assert_eq!(Cell::read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_left_is_the_rest_of_the_time_from_where_no_client_has_been() {
        let rest = HOUR.rest(40, Duration::from_secs(600)).unwrap();
        assert_eq!(rest, Course { from: 40, time: Duration::from_secs(3000), ..HOUR });
        assert_eq!(rest.rest(0, Duration::ZERO), Some(rest), "a signal before the first connection");
        assert_eq!(HOUR.rest(40, Duration::from_secs(3600)), None, "it was over");
    }

    #[test]
    fn the_last_run_that_none_has_continued_is_resumed() {
        let stopped = |seed, from, at| {
            let course = Course { seed, from, ..HOUR };
            Cell { seed, from, rest: course.rest(at, Duration::from_secs(60)) }
        };
        let whole = |seed, from| Cell { seed, from, rest: None };
        let resumed = |cells: &[Cell]| to_resume(cells).map(|course| (course.seed, course.from));
        assert_eq!(resumed(&[]), None);
        assert_eq!(resumed(&[whole(7, 0)]), None);
        assert_eq!(resumed(&[stopped(7, 0, 40), whole(8, 0)]), Some((7, 40)));
        assert_eq!(resumed(&[stopped(7, 0, 40), whole(7, 40)]), None, "it was continued");
        assert_eq!(resumed(&[stopped(7, 0, 40), stopped(7, 40, 90)]), Some((7, 90)));
        assert_eq!(resumed(&[stopped(6, 0, 9), stopped(7, 0, 40), whole(7, 40)]), Some((6, 9)));
        assert_eq!(resumed(&[stopped(6, 0, 9), stopped(7, 0, 40)]), Some((7, 40)), "the last one first");
    }

    #[test]
    fn a_continuation_has_other_changes() {
        let rest = HOUR.rest(40, Duration::ZERO).unwrap();
        assert_eq!(HOUR.seed_of_changes(), 7);
        assert_ne!(rest.seed_of_changes(), 7);
    }
}
