//! One load process: `load serve FIRST COUNT` or `load dial`. The conductor in crate `tests` starts it in a rig.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use load::{dial, serve};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", first, count] => {
            serve::run(first.parse().context("the first address")?, count.parse().context("how many")?)
        }
        ["dial"] => dial::run(),
        _ => bail!("`load serve FIRST COUNT` or `load dial`"),
    }
}
