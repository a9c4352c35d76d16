//! Runs the fuzz targets in `tests/fuzz` with cargo-fuzz on a dated nightly, because libFuzzer needs unstable flags.

use crate::failure::{Failure, Outcome};
use crate::process;
use crate::setup::{self, tools};
use std::env;
use std::path::Path;
use std::process::Command;

const NIGHTLY: &str = "nightly-2026-08-01";
const SECONDS: u32 = 60;

/// Runs one target, or all of them in turn, for some seconds each.
pub(crate) fn run(options: &[String]) -> Outcome {
    let (target, seconds) = options_of(options)?;
    setup::for_build()?;
    setup::for_fuzzing()?;
    setup::toolchain(NIGHTLY, &[])?;
    let driver = tools::cargo_fuzz()?;
    let targets = match target {
        Some(target) => vec![target],
        None => process::answer(cargo_fuzz(&driver).arg("list"))
            .map(|list| list.lines().map(str::to_owned).collect())
            .ok_or_else(|| {
                Failure::new("listing the fuzz targets", "cargo fuzz list failed", "look at tests/fuzz")
            })?,
    };
    for target in targets {
        println!("\nfuzz: {target}, {seconds} seconds");
        let mut command = cargo_fuzz(&driver);
        command.args(["run", &target, "--", &format!("-max_total_time={seconds}")]);
        let remedy = "make the input under tests/fuzz/artifacts a named case, then fix the code";
        process::run(&format!("fuzzing {target}"), &mut command, remedy)?;
    }
    Ok(())
}

fn options_of(options: &[String]) -> Outcome<(Option<String>, u32)> {
    let failure = |reason: String| {
        Failure::new("reading the command line", reason, "cargo xtask fuzz [TARGET] [--seconds N]")
    };
    let (mut target, mut seconds) = (None, SECONDS);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.as_str() {
            "--seconds" => {
                let number = options.next().and_then(|text| text.parse().ok());
                seconds = number.ok_or_else(|| failure("--seconds takes a number".into()))?;
            }
            name if !name.starts_with('-') && target.is_none() => target = Some(name.to_owned()),
            other => return Err(failure(format!("`{other}` is not expected"))),
        }
    }
    Ok((target, seconds))
}

/// Returns `cargo fuzz` of the nightly, with the driver's folder first in PATH.
fn cargo_fuzz(driver: &Path) -> Command {
    let mut command = process::tool_of(NIGHTLY, "cargo");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = driver.parent().map(Path::to_path_buf).into_iter().chain(env::split_paths(&path));
    if let Ok(path) = env::join_paths(folders) {
        command.env("PATH", path);
    }
    command.arg("fuzz").current_dir(process::root().join("tests/fuzz"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let read = |text| options_of(&words(text)).ok();
        assert_eq!(read("hello --seconds 5"), Some((Some("hello".into()), 5)));
        assert_eq!(read("--seconds 5 hello"), Some((Some("hello".into()), 5)));
        assert_eq!(read("--seconds"), None);
        assert_eq!(read("a b"), None);
    }
}
