//! What `cargo xtask bench` runs: Vestibule beside plain forwarding and its peers.

/// CPU time.
mod cpu;
/// The network of one system.
mod rig;
/// What stands between clients and backends.
mod system;
/// Hellos.
mod greeting;
/// Medians.
mod stats;
/// Systems by turns.
mod rounds;

/// What is measured.
mod workload;
/// Rows, and what is made of them.
mod table;
/// Where results go.
mod results;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tests::net;

use rounds::Effort;

const USAGE: &str = "\
bench [--only NAME]... [--rounds N] [--quick] [--write]
  --only NAME   only workloads whose names begin so: connect, connect-long, ask, latency, bulk-down, bulk-up, names,
                memory, load, load-million, load-yaml, change, kill
  --rounds N    rounds in which all systems take their turn (12)
  --quick       two short rounds of ours and plain forwarding: shows that it works, not how fast
  --write       also puts the table into README.md and the chart beside it
";

/// What is asked for.
struct Options {
    only: Vec<String>,
    effort: Effort,
    write: bool,
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| conduct(&options)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nreason: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let effort = Effort { rounds: 12, milliseconds: 1000, quick: false };
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
    Ok(options)
}

fn conduct(options: &Options) -> Result<ExitCode> {
    if let Some(why) = net::unavailable() {
        bail!("the benchmark {why}");
    }
    let _control = rig::Control::allow()?;
    let rows = workload::run(&options.only, options.effort)?;
    println!("\n{}", table::plain(&rows));
    results::store(&rows, options.effort)?;
    if options.write {
        results::publish(&rows, options.effort)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let of = |text: &str| options(text.split_whitespace().map(str::to_owned));
        let told = of("--only connect --quick --rounds 3 --only kill").unwrap();
        assert_eq!(told.only, ["connect", "kill"]);
        assert_eq!((told.effort.rounds, told.effort.milliseconds, told.write), (3, 200, false));
        assert_eq!(of("").unwrap().effort.rounds, 12);
        assert!(of("--rounds many").is_err() && of("--all").is_err());
    }

    /// One short workload with everything that others use: a rig, loads, the daemon, turns, rows.
    #[test]
    fn a_quick_run_measures_ours_beside_plain_forwarding() {
        tests::skip_without_root!();
        let built = std::env::var_os("LOAD_BIN").is_some();
        if !built {
            eprintln!("SKIPPED: needs the optimised `load` (LOAD_BIN), as `cargo xtask bench` builds it");
            return;
        }
        let _control = rig::Control::allow().unwrap();
        let rows =
            workload::run(&["ask".to_owned()], options(["--quick".to_owned()].into_iter()).unwrap().effort);
        let rows = rows.unwrap();
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.failures == 0 && row.value.is_some_and(|value| value.value > 0.0)));
    }
}
