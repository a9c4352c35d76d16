//! The command line.

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "\
soak [--minutes N] [--seed N] [--clients N] | --resume
  --minutes N   how long (60)
  --seed N      what decides every connection and every change (random)
  --clients N   connections at once (32)
  --resume      go on with the last run in the table that a signal ended, for the minutes it had left
";

/// The options of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Options {
    New { minutes: u64, seed: Option<u64>, clients: u64 },
    Resume,
}

/// Reads the arguments.
pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let (mut minutes, mut seed, mut clients) = (60, None, 32);
    let (mut resume, mut others) = (false, false);
    while let Some(argument) = arguments.next() {
        if argument == "--resume" {
            resume = true;
            continue;
        }
        others = true;
        let text = arguments.next().with_context(|| format!("{argument}: no number\n{USAGE}"))?;
        let number: u64 = text.parse().with_context(|| format!("{argument} {text}\n{USAGE}"))?;
        match argument.as_str() {
            "--minutes" => minutes = number,
            "--seed" => seed = Some(number),
            "--clients" => clients = number,
            _ => bail!("{argument} is not known\n{USAGE}"),
        }
    }
    ensure!(!(resume && others), "--resume goes on as the run was started: leave out the others\n{USAGE}");
    ensure!(minutes > 0 && clients > 0, "at least one minute and one client\n{USAGE}");
    Ok(if resume { Options::Resume } else { Options::New { minutes, seed, clients } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let of = |text: &str| read(text.split_whitespace().map(str::to_owned));
        assert_eq!(of("").unwrap(), Options::New { minutes: 60, seed: None, clients: 32 });
        assert_eq!(
            of("--seed 7 --minutes 1 --clients 3").unwrap(),
            Options::New { minutes: 1, seed: Some(7), clients: 3 }
        );
        assert_eq!(of("--resume").unwrap(), Options::Resume);
        assert!(of("--resume --minutes 5").is_err() && of("--seed 5 --resume").is_err());
        assert!(of("--minutes").is_err() && of("--minutes 0").is_err() && of("--hours 3").is_err());
    }
}
