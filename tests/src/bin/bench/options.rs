//! The command line.

use anyhow::{Context, Result, bail};

use crate::rounds::Effort;

const USAGE: &str = "\
bench [--only NAME]... [--rounds N] [--quick] [--write]
  --only NAME   only workloads whose names begin so: connect, connect-long, ask, latency, bulk-down, bulk-up, names,
                memory, load, load-million, load-yaml, change, kill
  --rounds N    rounds in which all systems take their turn (40)
  --quick       two short rounds of ours and plain forwarding: shows that it works, not how fast
  --write       also puts the table into README.md and the chart beside it; not with --only
";

/// What is asked for.
pub(crate) struct Options {
    pub(crate) only: Vec<String>,
    pub(crate) effort: Effort,
    pub(crate) write: bool,
}

/// Reads the arguments.
pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    // Many short rounds: a machine's speed changes from second to second, and a ratio is taken within a round.
    let effort = Effort { rounds: 40, milliseconds: 300, quick: false };
    let mut options = Options { only: Vec::new(), effort, write: false };
    let mut rounds = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => options.only.push(arguments.next().context("--only which?")?),
            "--rounds" => {
                let text = arguments.next().context("--rounds how many?")?;
                let number: usize = text.parse().with_context(|| format!("--rounds {text}"))?;
                rounds = Some(number.max(1));
            }
            "--quick" => options.effort = Effort { rounds: 2, milliseconds: 200, quick: true },
            "--write" => options.write = true,
            _ => bail!("{argument} is not known\n{USAGE}"),
        }
    }
    options.effort.rounds = rounds.unwrap_or(options.effort.rounds);
    if options.write && !options.only.is_empty() {
        bail!("--write replaces the whole table: not with --only\n{USAGE}");
    }
    Ok(options)
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
        assert!(of("--write").unwrap().write && of("--only kill --write").is_err());
    }
}
