//! Runs the fuzz targets in `tests/fuzz` with cargo-fuzz on a dated nightly, because libFuzzer needs unstable flags.

use crate::failure::{Failure, Outcome};
use crate::process;
use crate::setup::{self, tools};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

const NIGHTLY: &str = "nightly-2026-08-01";
const SECONDS: u32 = 60;
/// The committed table of runs, and the length from which on a run gets a row.
const TABLE: &str = "tests/fuzz/FUZZ.md";
const RECORDED_SECONDS: u32 = 600;

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
        fuzz(&driver, &target, seconds)?;
    }
    Ok(())
}

/// Runs one target, and records a long run.
fn fuzz(driver: &Path, target: &str, seconds: u32) -> Outcome {
    println!("\nfuzz: {target}, {seconds} seconds");
    let (step, commit) = (format!("fuzzing {target}"), process::commit(&[]));
    let mut command = cargo_fuzz(driver);
    command.args(["run", target, "--", &format!("-max_total_time={seconds}")]);
    let (status, work) = watch(&step, &mut command)?;
    if let Some(results) = work.results().filter(|_| seconds >= RECORDED_SECONDS) {
        let date = process::answer(process::command("date").args(["-u", "+%F"]));
        let kernel = process::answer(process::command("uname").arg("-r"));
        let version = kernel.as_deref().and_then(|release| release.split('-').next());
        let (date, version) = (date.as_deref().unwrap_or("-"), version.unwrap_or("-"));
        append(&format!("| {date} | {commit} | {version} | {target} | {results} |"))?;
        println!("fuzz: recorded in {TABLE}");
    }
    if status.success() {
        return Ok(());
    }
    let reason = format!("{} ended with {status}; see its output above", process::shown(&command));
    Err(Failure::new(
        step,
        reason,
        "make the input under tests/fuzz/artifacts a named case, then fix the code",
    ))
}

/// Runs a target and shows its output; returns how it ended, and what it says of its work.
fn watch(step: &str, command: &mut Command) -> Outcome<(ExitStatus, Work)> {
    let mut child =
        command.stderr(Stdio::piped()).spawn().map_err(|error| process::not_run(step, command, &error))?;
    let mut work = Work::default();
    if let Some(output) = child.stderr.take() {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            eprintln!("{line}");
            work.read(&line);
        }
    }
    let status = child.wait().map_err(|error| process::not_run(step, command, &error))?;
    Ok((status, work))
}

/// What libFuzzer says of its work.
#[derive(Debug, Default, PartialEq, Eq)]
struct Work {
    executions: u64,
    /// How long it ran; `None`: it did not run until its time was over.
    seconds: Option<u64>,
    /// The files of inputs that failed, without their folder.
    finds: Vec<String>,
}

impl Work {
    /// Takes up a line of its output.
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Frames of a stack begin with a number as well, and are indented.
        let progress = line.strip_prefix('#').and_then(|_| words.first()?[1..].parse().ok());
        self.executions = self.executions.max(progress.unwrap_or(0));
        if let ["Done", executions, "runs", "in", seconds, "second(s)"] = words[..] {
            self.executions = executions.parse().unwrap_or(self.executions);
            self.seconds = seconds.parse().ok();
        }
        if let Some((_, path)) = line.split_once("Test unit written to ") {
            let file = path.trim().rsplit('/').next().unwrap_or_default();
            // One that only took long is none.
            if !file.starts_with("slow-unit-") {
                self.finds.push(file.to_owned());
            }
        }
    }

    /// Returns the last cells of a row; `None`: the target did not run, or was interrupted.
    fn results(&self) -> Option<String> {
        let minutes = match self.seconds {
            Some(seconds) => format!("{:.1}", seconds as f64 / 60.0),
            None if self.finds.is_empty() => return None,
            None => "until the find".to_owned(),
        };
        let finds = if self.finds.is_empty() {
            "none".to_owned()
        } else {
            format!("**{}: {}**", self.finds.len(), self.finds.join(", "))
        };
        Some(format!("{minutes} | {} | {finds}", self.executions))
    }
}

/// Appends a row to the table.
fn append(row: &str) -> Outcome {
    let path = process::root().join(TABLE);
    let failure =
        |error: std::io::Error| Failure::new("recording the run", format!("{TABLE}: {error}"), "restore it");
    let text = fs::read_to_string(&path).map_err(failure)?;
    fs::write(&path, format!("{}\n{row}\n", text.trim_end())).map_err(failure)
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

    fn work(output: &str) -> Work {
        let mut work = Work::default();
        output.lines().for_each(|line| work.read(line));
        work
    }

    #[test]
    fn a_run_to_its_end_is_a_row() {
        let work = work(
            "INFO: Running with entropic power schedule (0xFF, 100).\n\
             #2\tINITED cov: 11 ft: 12 corp: 1/1b exec/s: 0 rss: 89Mb\n\
             #65536\tpulse  cov: 4127 ft: 9120 corp: 402/61Kb lim: 4096 exec/s: 33 rss: 141Mb\n\
             Test unit written to ./slow-unit-da39\n\
             #113837\tDONE   cov: 4310 ft: 9666 corp: 431/70Kb lim: 4096 exec/s: 31 rss: 141Mb\n\
             ###### Recommended dictionary. ######\n\
             Done 113837 runs in 3611 second(s)\n",
        );
        assert_eq!(work, Work { executions: 113_837, seconds: Some(3611), finds: Vec::new() });
        assert_eq!(work.results().as_deref(), Some("60.2 | 113837 | none"));
    }

    #[test]
    fn a_find_is_a_row_and_says_after_how_many_executions() {
        let work = work(
            "#4096\tpulse  cov: 4127 ft: 9120 corp: 402/61Kb lim: 4096 exec/s: 33 rss: 141Mb\n\
             #4100\tNEW    cov: 4128 ft: 9121 corp: 403/61Kb lim: 4096 exec/s: 33 rss: 141Mb\n\
             thread '<unnamed>' (7) panicked at tests/fuzz/src/packets/mod.rs:10:5:\n\
             ==7== ERROR: libFuzzer: deadly signal\n    \
             #90000 0x5581 in __sanitizer_print_stack_trace\n\
             artifact_prefix='/x/artifacts/packets/'; Test unit written to /x/artifacts/packets/crash-0a1b\n",
        );
        assert_eq!(work, Work { executions: 4_100, seconds: None, finds: vec!["crash-0a1b".into()] });
        assert_eq!(work.results().as_deref(), Some("until the find | 4100 | **1: crash-0a1b**"));
    }

    #[test]
    fn a_target_that_did_not_run_or_was_interrupted_is_no_row() {
        assert_eq!(work("SKIPPED: not root\n").results(), None);
        let interrupted = "#4096\tpulse  cov: 4127\n==7== libFuzzer: run interrupted; exiting\n";
        assert_eq!(work(interrupted).results(), None);
    }

    /// Or the next long run would end with an error after its hour.
    #[test]
    fn the_table_has_the_columns_of_a_row() {
        let committed = include_str!("../../tests/fuzz/FUZZ.md");
        let row = format!("| 2026-11-30 | abc | 6.18.44 | packets | {} |", "60.2 | 113837 | none");
        let columns = |line: &str| line.matches('|').count();
        let table: Vec<&str> = committed.lines().filter(|line| line.starts_with('|')).collect();
        assert!(table.len() >= 2 && table.iter().all(|line| columns(line) == columns(&row)), "{table:?}");
        assert!(committed.trim_end().ends_with('|'), "rows are appended to the table");
    }
}
