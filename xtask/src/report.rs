//! The results of a level: reads the output of the test binaries, and counts.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::Duration;

/// Number of tests by result.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) skipped: u32,
}

/// The results of a level.
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) tally: Tally,
    pub(crate) time: Duration,
    /// Why tests were skipped or could not be counted, and which tests.
    pub(crate) notes: BTreeMap<String, Vec<String>>,
}

/// What a test prints if it cannot run here, followed by the reason.
const SKIPPED: &str = "SKIPPED: ";

impl Tally {
    /// Adds another tally.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Parses a line like `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`.
    fn of_line(line: &str) -> Option<Self> {
        let counts = line.strip_prefix("test result: ")?;
        let count = |word: &str| {
            let before = counts.split(word).next()?;
            before.rsplit([' ', ';']).find(|part| !part.is_empty())?.parse().ok()
        };
        Some(Self { passed: count(" passed")?, failed: count(" failed")?, skipped: count(" ignored")? })
    }
}

impl Report {
    /// Makes a report without results.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, tally: Tally::default(), time: Duration::ZERO, notes: BTreeMap::new() }
    }

    /// Counts a failure that no test reported.
    pub(crate) fn broke_off(&mut self, why: String) {
        self.tally.failed += 1;
        self.notes.entry(why).or_default();
    }

    /// Reads the output of test binaries under `--show-output`, and passes on the lines that people should
    /// see: for tests that passed only their names (not even those if `quiet`), for all others everything.
    pub(crate) fn read(&mut self, output: impl BufRead, quiet: bool, mut show: impl FnMut(&str)) {
        // The test whose captured output is being read; `None` outside the section about tests that passed.
        let mut successful: Option<String> = None;
        let mut skipped = 0;
        for line in output.lines().map_while(Result::ok) {
            if let Some(mut tally) = Tally::of_line(&line) {
                // The binary counts them as passed.
                tally.passed = tally.passed.saturating_sub(skipped);
                tally.skipped += std::mem::take(&mut skipped);
                self.tally.add(tally);
                successful = None;
            } else if line == "successes:" {
                successful.get_or_insert_default();
                continue;
            } else if line == "failures:" {
                successful = None;
            }
            if let Some(test) = &mut successful {
                let header = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
                if let Some(name) = header {
                    name.clone_into(test);
                } else if let Some(why) = line.strip_prefix(SKIPPED).filter(|_| !test.is_empty()) {
                    skipped += 1;
                    // A test counts once, however often it prints this.
                    self.notes.entry(why.to_owned()).or_default().push(std::mem::take(test));
                }
                continue;
            }
            if let Some((test, why)) = ignored(&line) {
                self.notes.entry(why.to_owned()).or_default().push(test.to_owned());
            }
            let noise = line.is_empty() || line.ends_with(" ... ok") || line.starts_with("running ");
            if !(quiet && noise) {
                show(&line);
            }
        }
    }

    /// The report's lines in the summary.
    pub(crate) fn text(&self) -> String {
        let Tally { passed, failed, skipped } = self.tally;
        let (name, seconds) = (self.name, self.time.as_secs_f64());
        let mut text = format!("{name:11} {passed:>7} {failed:>7} {skipped:>7} {seconds:>9.1}\n");
        for (why, tests) in &self.notes {
            text += &match tests.as_slice() {
                [] => format!("            NOTE: {why}\n"),
                [test] => format!("            SKIPPED: {test}: {why}\n"),
                tests => format!("            SKIPPED: {} tests: {why}\n", tests.len()),
            };
        }
        text
    }
}

/// Parses a line like `test name ... ignored, reason`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (test, why) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some((test, why.strip_prefix(", ").unwrap_or("marked #[ignore]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of two binaries: one with an ignored test and a test that skips itself, one with a failure.
    const OUTPUT: &str = "
running 3 tests
test a ... ok
test b ... ignored, needs a switch
test c ... ok

successes:

---- c stdout ----
SKIPPED: not root
SKIPPED: not root


successes:
    a
    c

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s


running 2 tests
test d ... ok
test e ... FAILED

successes:

successes:
    d

failures:

---- e stdout ----
left: 1
SKIPPED: is not what it says


failures:
    e

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn a_test_that_skips_itself_does_not_count_as_passed() {
        let mut report = Report::new("x");
        report.read(OUTPUT.as_bytes(), true, |_| ());
        assert_eq!(report.tally, Tally { passed: 2, failed: 1, skipped: 2 });
        assert_eq!(report.notes["not root"], ["c"]);
        assert_eq!(report.notes["needs a switch"], ["b"]);
        assert_eq!(report.notes.len(), 2);
    }

    #[test]
    fn only_what_matters_is_shown_in_ci() {
        let mut shown = Vec::new();
        Report::new("x").read(OUTPUT.as_bytes(), true, |line| shown.push(line.to_owned()));
        assert!(shown.contains(&"left: 1".to_owned()), "{shown:?}");
        assert!(shown.iter().all(|line| !line.contains("... ok") && !line.contains("not root")), "{shown:?}");
    }

    #[test]
    fn a_result_line_is_counted() {
        let line = "test result: FAILED. 17 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.3s";
        assert_eq!(Tally::of_line(line), Some(Tally { passed: 17, failed: 2, skipped: 1 }));
        assert_eq!(Tally::of_line("test path ... ok"), None);
    }
}
