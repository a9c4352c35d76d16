//! The command line.

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "\
soak [--minutes N] [--seed N] [--clients N]
  --minutes N   how long (60)
  --seed N      what decides every connection and every change (random)
  --clients N   connections at once (32)
";

/// The options of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) minutes: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) clients: u64,
}

/// Reads the arguments.
pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { minutes: 60, seed: None, clients: 32 };
    while let Some(argument) = arguments.next() {
        let text = arguments.next().with_context(|| format!("{argument}: no number\n{USAGE}"))?;
        let number: u64 = text.parse().with_context(|| format!("{argument} {text}\n{USAGE}"))?;
        match argument.as_str() {
            "--minutes" => options.minutes = number,
            "--seed" => options.seed = Some(number),
            "--clients" => options.clients = number,
            _ => bail!("{argument} is not known\n{USAGE}"),
        }
    }
    ensure!(options.minutes > 0 && options.clients > 0, "at least one minute and one client\n{USAGE}");
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let of = |text: &str| read(text.split_whitespace().map(str::to_owned));
        assert_eq!(of("").unwrap(), Options { minutes: 60, seed: None, clients: 32 });
        assert_eq!(
            of("--seed 7 --minutes 1 --clients 3").unwrap(),
            Options { minutes: 1, seed: Some(7), clients: 3 }
        );
        assert!(of("--minutes").is_err() && of("--minutes 0").is_err() && of("--hours 3").is_err());
    }
}
