//! The command line.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::rounds::Effort;

const USAGE: &str = "\
bench [--only NAME]... [--rounds N] [--quick] [--flows N] [--against BINARY] [--write]
  --only NAME   only workloads whose names begin so: connect, connect-long, ask, latency, bulk-down, bulk-up, names,
                memory, load, load-million, load-yaml, change, kill, remove, answer, flood,
                flows, lines, services
  --rounds N    rounds in which all systems take their turn (40)
  --quick       two short rounds of ours and plain forwarding: shows that it works, not how fast
  --flows N     flows in the maps for `flows` (10,000,000; with --quick 200,000)
  --against BINARY
                an old build of ours as one more system, `old`, in place of the peers: the ratio new/old of each workload
                from connect to bulk-up, with its 95 % interval
  --write       also replaces the tables of these workloads in tests/bench/RESULTS.md, and makes its chart and the summary in
                README.md from all tables there; not with --quick or --against
";

/// Flows in the maps for workload `flows`, if the command line does not say how many.
const FLOWS: u32 = 10_000_000;
const FLOWS_QUICK: u32 = 200_000;
/// How many there may be: enough for those that are removed, and what `maxFlows` allows with room for more.
const FLOWS_ALLOWED: std::ops::RangeInclusive<u32> = 100_000..=12_000_000;

/// The options of a run.
pub(crate) struct Options {
    pub(crate) only: Vec<String>,
    pub(crate) effort: Effort,
    pub(crate) write: bool,
}

/// Reads the arguments.
pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    // Many short rounds: a machine's speed changes from second to second, and ratios are taken within a
    // round.
    let effort = Effort { rounds: 40, milliseconds: 300, quick: false, flows: FLOWS, against: None };
    let mut options = Options { only: Vec::new(), effort, write: false };
    let (mut rounds, mut flows, mut against) = (None, None, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => options.only.push(arguments.next().context("--only which?")?),
            "--rounds" => {
                let text = arguments.next().context("--rounds how many?")?;
                let number: usize = text.parse().with_context(|| format!("--rounds {text}"))?;
                rounds = Some(number.max(1));
            }
            "--quick" => {
                options.effort =
                    Effort { rounds: 2, milliseconds: 200, quick: true, flows: FLOWS_QUICK, against: None };
            }
            "--flows" => {
                let text = arguments.next().context("--flows how many?")?;
                let number: u32 =
                    text.replace([',', '_'], "").parse().with_context(|| format!("--flows {text}"))?;
                ensure!(
                    FLOWS_ALLOWED.contains(&number),
                    "--flows {text}: from {} to {}",
                    FLOWS_ALLOWED.start(),
                    FLOWS_ALLOWED.end()
                );
                flows = Some(number);
            }
            "--against" => {
                let text = arguments.next().context("--against which binary?")?;
                against = Some(executable(Path::new(&text))?);
            }
            "--write" => options.write = true,
            _ => bail!("{argument} is not known\n{USAGE}"),
        }
    }
    options.effort.rounds = rounds.unwrap_or(options.effort.rounds);
    options.effort.flows = flows.unwrap_or(options.effort.flows);
    options.effort.against = against;
    if options.write && (options.effort.quick || options.effort.against.is_some()) {
        bail!(
            "--write publishes what was measured in full beside peers: not with --quick or --against\n{USAGE}"
        );
    }
    Ok(options)
}

/// Returns the absolute path of an executable. It is checked now, before the first rig is created.
fn executable(path: &Path) -> Result<PathBuf> {
    let whole = path.canonicalize().with_context(|| format!("--against {}", path.display()))?;
    let metadata = whole.metadata().with_context(|| format!("--against {}", path.display()))?;
    let runs = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    ensure!(runs, "--against {}: no program", path.display());
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let of = |text: &str| read(text.split_whitespace().map(str::to_owned));
        let told = of("--only connect --quick --rounds 3 --only kill").unwrap();
        assert_eq!(told.only, ["connect", "kill"]);
        assert_eq!((told.effort.rounds, told.effort.milliseconds, told.write), (3, 200, false));
        assert_eq!(of("").unwrap().effort.rounds, 40);
        assert!(of("--rounds many").is_err() && of("--all").is_err());
        assert_eq!(
            ["", "--quick", "--quick --flows 300,000", "--flows 12000000 --quick"]
                .map(|text| of(text).unwrap().effort.flows),
            [10_000_000, 200_000, 300_000, 12_000_000]
        );
        assert!(of("--flows 99999").is_err() && of("--flows 12000001").is_err() && of("--flows").is_err());
        assert!(of("--only kill --write").unwrap().write && of("--write --quick").is_err());
    }

    #[test]
    fn an_old_build_is_a_program_and_never_part_of_the_readme() {
        let of = |text: &str| read(text.split_whitespace().map(str::to_owned));
        assert_eq!(of("").unwrap().effort.against, None);
        let told = of("--against /bin/../bin/sh --only ask").unwrap();
        assert_eq!(told.effort.against, Some(Path::new("/bin/sh").canonicalize().unwrap()));
        assert_eq!((told.effort.rounds, told.effort.milliseconds), (40, 300));
        // In any order.
        for text in ["--against /bin/sh --quick --rounds 3", "--rounds 3 --quick --against /bin/sh"] {
            let told = of(text).unwrap().effort;
            assert!(told.against.is_some() && told.quick && told.rounds == 3, "{text}");
        }
        for text in ["--against", "--against /none", "--against /etc", "--against /etc/passwd"] {
            assert!(of(text).is_err(), "{text}");
        }
        assert!(of("--against /bin/sh --write").is_err());
    }
}
