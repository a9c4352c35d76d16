//! Runs the test levels and sums up their results. The last line is the count alone.

use crate::build::Building;
use crate::cluster::Surroundings;
use crate::failure::{Failure, Outcome};
use crate::level::{BENCH, FLEET, L2, Level, SIMULATION, SLOW, TRIALS, WITNESS};
use crate::needs::{self, Needs};
use crate::report::{Report, Tally};
use crate::{conformance, process, setup};

/// Every level, the quick ones first. Each builds the whole workspace: with fewer packages, dependencies
/// would have other features and be compiled again.
const LEVELS: &[Level] = &[
    Level { name: "unit", targets: &["--workspace", "--lib", "--bins"], needs: Needs::Nothing },
    Level { name: "corpus", targets: &["--workspace", "--test", "corpus"], needs: Needs::Kernel },
    Level { name: "packet", targets: &["--workspace", "--test", "packet"], needs: Needs::Kernel },
    Level { name: "budget", targets: &["--workspace", "--test", "budget"], needs: Needs::Kernel },
    Level { name: "path", targets: &["--workspace", "--test", "path"], needs: Needs::Lab },
    Level { name: BENCH, targets: &["--workspace", "--bin", "bench"], needs: Needs::Lab },
    Level { name: "control", targets: &["--workspace", "--test", "control"], needs: Needs::Control },
    Level { name: "cluster", targets: &["--workspace", "--test", "cluster"], needs: Needs::Cluster },
    // Run by Go, not by cargo.
    Level { name: conformance::NAME, targets: &[], needs: Needs::Cluster },
    Level {
        name: SIMULATION,
        targets: &["--release", "--package", "userspace", "--lib"],
        needs: Needs::Nothing,
    },
    Level { name: FLEET, targets: &["--release", "--workspace", "--test", "control"], needs: Needs::Control },
    Level { name: WITNESS, targets: &["--workspace", "--test", "control"], needs: Needs::Witness },
    Level { name: L2, targets: &["--workspace", "--test", "cluster"], needs: Needs::Cluster },
    Level { name: TRIALS, targets: &["--workspace", "--test", "control"], needs: Needs::Control },
    Level { name: SLOW, targets: &["--workspace", "--test", "slow"], needs: Needs::Lab },
];

/// Levels that run only where they are named.
const ON_REQUEST: [&str; 6] = [FLEET, SIMULATION, WITNESS, L2, TRIALS, SLOW];

/// Runs the named levels, or all of them but [`ON_REQUEST`].
pub(crate) fn run(names: &[String]) -> Outcome {
    let levels = chosen(names)?;
    setup::for_build()?;
    let lab = levels.iter().any(|level| level.needs >= Needs::Lab) && needs::obstacle(Needs::Lab).is_none();
    if lab {
        setup::for_tests()?;
    }
    if levels.iter().any(|level| level.needs >= Needs::Control) && process::quiet() {
        // Elsewhere these tests are skipped; in CI, a run that never runs them would look like one that does.
        if let Some(reason) = setup::go::missing() {
            return Err(Failure::new(
                "preparing the tests with Kubernetes",
                reason,
                "install Go, then again",
            ));
        }
    }
    let mut building = match levels.iter().any(|level| level.needs > Needs::Kernel) {
        true => Some(Building::start()?),
        false => None,
    };
    let (mut built, mut reports) = (None, Vec::new());
    for level in levels {
        // The first levels run beside the build: they start no daemon, and have the programs in them.
        if level.needs > Needs::Kernel
            && let Some(building) = building.take()
        {
            built = Some(building.end()?);
        }
        reports.push(match needs::obstacle(level.needs) {
            Some(reason) => level.skip(&reason)?,
            None => {
                let surroundings = Surroundings::of(level.needs)?;
                match level.name {
                    conformance::NAME => conformance::run(&surroundings)?,
                    _ => level.run(built.as_ref(), &surroundings)?,
                }
            }
        });
    }
    let (text, total) = summary(&reports);
    let outcome = match total.failed {
        0 => Ok(()),
        _ => {
            let again = format!("cargo xtask test {}", failed(&reports).join(" "));
            let mut failure = Failure::new("cargo xtask test", "tests failed; see their output above", again);
            // Before the summary, because the count must be the last line.
            failure.tell();
            Err(failure)
        }
    };
    print!("{text}");
    outcome
}

fn chosen(names: &[String]) -> Outcome<Vec<&'static Level>> {
    if names.is_empty() {
        return Ok(LEVELS.iter().filter(|level| !ON_REQUEST.contains(&level.name)).collect());
    }
    let level = |name: &String| {
        LEVELS.iter().find(|level| level.name == name).ok_or_else(|| {
            let known: Vec<_> = LEVELS.iter().map(|level| level.name).collect();
            let reason = format!("there is no test level `{name}`");
            Failure::new("reading the command line", reason, format!("one of {}", known.join(", ")))
        })
    };
    let mut chosen = names.iter().map(level).collect::<Outcome<Vec<_>>>()?;
    if names.iter().any(|name| name == SLOW) {
        let with_it = [SIMULATION, FLEET, WITNESS, L2, TRIALS]
            .into_iter()
            .filter(|with_it| names.iter().all(|name| name != with_it));
        chosen.extend(with_it.filter_map(|with_it| LEVELS.iter().find(|level| level.name == with_it)));
    }
    Ok(chosen)
}

fn failed(reports: &[Report]) -> Vec<&'static str> {
    reports.iter().filter(|report| report.tally.failed > 0).map(|report| report.name).collect()
}

/// Returns the table with its closing line, and the total.
fn summary(reports: &[Report]) -> (String, Tally) {
    let mut text =
        format!("\n{:11} {:>7} {:>7} {:>7} {:>9}\n", "level", "passed", "failed", "skipped", "seconds");
    let mut total = Tally::default();
    for report in reports {
        text += &report.text();
        total.add(report.tally);
    }
    let Tally { passed, failed, skipped } = total;
    text += &format!("\n{passed} passed, {failed} failed, {skipped} skipped\n");
    (text, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_ends_with_the_count_and_tells_what_was_skipped() {
        let mut unit = Report::new("unit");
        unit.tally.passed = 7;
        let mut path = Report::new("path");
        path.tally.skipped = 2;
        path.notes.insert("not root".to_owned(), vec!["a".to_owned(), "b".to_owned()]);
        let (text, _) = summary(&[unit, path]);
        assert!(text.contains("SKIPPED: 2 tests: not root\n"), "{text}");
        assert!(text.ends_with("\n7 passed, 0 failed, 2 skipped\n"), "{text}");
    }

    #[test]
    fn the_slow_level_runs_only_where_it_is_named() {
        let names = |named: &[String]| -> Vec<&str> {
            chosen(named).ok().unwrap_or_default().iter().map(|level| level.name).collect()
        };
        assert_eq!(names(&[]).len(), LEVELS.len() - ON_REQUEST.len());
        assert!(ON_REQUEST.iter().all(|name| !names(&[]).contains(name)));
        assert_eq!(names(&[SLOW.to_owned()]), [SLOW, SIMULATION, FLEET, WITNESS, L2, TRIALS]);
        assert_eq!(names(&[SIMULATION.to_owned()]), [SIMULATION]);
    }

    #[test]
    fn help_names_every_level() {
        let words: Vec<&str> = crate::USAGE.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        for level in LEVELS {
            assert!(words.contains(&level.name), "{}", level.name);
        }
    }

    #[test]
    fn an_unknown_level_is_refused_with_the_known_ones() {
        let failure =
            chosen(&["paht".to_owned()]).err().map(|failure| failure.to_string()).unwrap_or_default();
        assert!(
            failure.contains("paht")
                && failure.contains("unit, corpus, packet, budget, path, bench, control"),
            "{failure}"
        );
    }
}
