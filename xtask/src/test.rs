//! Runs the test levels and sums them up. The last line is the count, alone.

use crate::failure::{Failure, Outcome};
use crate::level::{self, Level, Needs, Report, Tally};
use crate::{build, setup};

/// Every level, the quick ones first.
const LEVELS: &[Level] = &[
    Level { name: "unit", targets: &["--workspace", "--lib", "--bins"], needs: Needs::Nothing },
    Level { name: "corpus", targets: &["--package", "tests", "--test", "corpus"], needs: Needs::Kernel },
    Level { name: "packet", targets: &["--package", "tests", "--test", "packet"], needs: Needs::Kernel },
    Level { name: "budget", targets: &["--package", "tests", "--test", "budget"], needs: Needs::Kernel },
    Level { name: "path", targets: &["--package", "tests", "--test", "path"], needs: Needs::Lab },
];

/// Runs the named levels, or all of them.
pub(crate) fn run(names: &[String]) -> Outcome {
    let levels = chosen(names)?;
    setup::for_build()?;
    let lab = levels.iter().any(|level| level.needs == Needs::Lab) && level::obstacle(Needs::Lab).is_none();
    if lab {
        setup::for_lab()?;
    }
    let binary = match levels.iter().any(|level| level.needs > Needs::Nothing) {
        true => Some(build::run()?),
        false => None,
    };
    let mut reports = Vec::new();
    for level in levels {
        reports.push(match level::obstacle(level.needs) {
            Some(reason) => level.skip(&reason),
            None => level.run(binary.as_deref())?,
        });
    }
    let (text, total) = summary(&reports);
    print!("{text}");
    match total.failed {
        0 => Ok(()),
        _ => Err(Failure::new(
            "cargo xtask test",
            "tests failed; their output stands above",
            format!("cargo xtask test {}", failed(&reports).join(" ")),
        )),
    }
}

fn chosen(names: &[String]) -> Outcome<Vec<&'static Level>> {
    if names.is_empty() {
        return Ok(LEVELS.iter().collect());
    }
    let level = |name: &String| {
        LEVELS.iter().find(|level| level.name == name).ok_or_else(|| {
            let known: Vec<_> = LEVELS.iter().map(|level| level.name).collect();
            let reason = format!("there is no test level `{name}`");
            Failure::new("reading the command line", reason, format!("one of {}", known.join(", ")))
        })
    };
    names.iter().map(level).collect()
}

fn failed(reports: &[Report]) -> Vec<&'static str> {
    reports.iter().filter(|report| report.tally.failed > 0).map(|report| report.name).collect()
}

/// The table, and the closing line.
fn summary(reports: &[Report]) -> (String, Tally) {
    let mut text =
        format!("\n{:8} {:>7} {:>7} {:>7} {:>9}\n", "level", "passed", "failed", "skipped", "seconds");
    let mut total = Tally::default();
    for Report { name, tally, time, notes } in reports {
        let Tally { passed, failed, skipped } = tally;
        text += &format!("{name:8} {passed:>7} {failed:>7} {skipped:>7} {:>9.1}\n", time.as_secs_f64());
        let sign = if *failed > 0 { "FAILED" } else { "SKIPPED" };
        for note in notes {
            text += &format!("         {sign}: {note}\n");
        }
        total.add(*tally);
    }
    let Tally { passed, failed, skipped } = total;
    text += &format!("\n{passed} passed, {failed} failed, {skipped} skipped\n");
    (text, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_summary_ends_with_the_count_and_tells_what_was_skipped() {
        let report = |name, passed, skipped, notes: &[&str]| Report {
            name,
            tally: Tally { passed, failed: 0, skipped },
            time: Duration::from_secs(2),
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
        };
        let (text, _) = summary(&[report("unit", 7, 0, &[]), report("path", 0, 3, &["not root"])]);
        assert!(text.contains("SKIPPED: not root"), "{text}");
        assert!(text.ends_with("\n7 passed, 0 failed, 3 skipped\n"), "{text}");
    }

    #[test]
    fn an_unknown_level_is_refused_with_the_known_ones() {
        let failure =
            chosen(&["paht".to_owned()]).err().map(|failure| failure.to_string()).unwrap_or_default();
        assert!(
            failure.contains("paht") && failure.contains("unit, corpus, packet, budget, path"),
            "{failure}"
        );
    }
}
