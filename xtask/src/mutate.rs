//! Removes the guards listed in `tests/guards.txt` one by one, and shows that a test fails without each.

use crate::failure::{Failure, Outcome};
use crate::process;
use crate::setup::{self, tools};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const LIST: &str = "tests/guards.txt";
const STEP: &str = "removing guards";
/// What the eBPF programs are built from, and the manifests that cargo wants to see beside it.
const SOURCES: [&str; 8] =
    ["Cargo.toml", "Cargo.lock", ".cargo", "common", "xdp-ebpf", "userspace", "tests", "xtask"];

/// A guard of the programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Guard {
    /// What it guarantees.
    name: String,
    /// The file that has it, from the root of the tree.
    file: String,
    /// The code, on one line.
    code: String,
    /// What remains of the code without the guard.
    without: String,
    /// Words in the names of the packet tests that may fail without it.
    tests: Vec<String>,
}

/// Removes every guard whose name contains one of the words; all of them if there is no word.
pub(crate) fn run(words: &[String]) -> Outcome {
    let text = fs::read_to_string(process::root().join(LIST))
        .map_err(|error| Failure::new(STEP, format!("{LIST}: {error}"), "restore it"))?;
    let guards: Vec<Guard> = guards(&text)?
        .into_iter()
        .filter(|guard| words.is_empty() || words.iter().any(|word| guard.name.contains(word)))
        .collect();
    setup::for_build()?;
    let linker = tools::bpf_linker()?;
    let tree = process::target().join("mutants");
    copy_tree(&tree)?;
    let mut survivors = Vec::new();
    for guard in &guards {
        let object = build_without(guard, &tree, &linker)?;
        let failed = failing(guard, &object)?;
        match failed.is_empty() {
            true => survivors.push(guard.name.as_str()),
            false => println!("{}: {}", guard.name, failed.join(", ")),
        }
    }
    println!("mutate: {} guards, {} without a test", guards.len(), survivors.len());
    match survivors.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(
            STEP,
            format!("no test fails without: {}", survivors.join("; ")),
            "write the test that does",
        )),
    }
}

/// Reads the list.
fn guards(text: &str) -> Outcome<Vec<Guard>> {
    let mut guards: Vec<Guard> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let failure =
            || Failure::new(STEP, format!("{LIST}:{}: `{line}`", number + 1), "a line is `FIELD: TEXT`");
        let (field, value) = line.split_once(':').ok_or_else(failure)?;
        let value = value.trim().to_owned();
        if field == "guard" {
            guards.push(Guard { name: value, ..Guard::default() });
            continue;
        }
        let guard = guards.last_mut().ok_or_else(failure)?;
        match field {
            "file" => guard.file = value,
            "code" => guard.code = value,
            "without" => guard.without = value,
            "tests" => guard.tests = value.split(' ').map(str::to_owned).collect(),
            _ => return Err(failure()),
        }
    }
    Ok(guards)
}

/// Returns the file without the guard.
fn without(guard: &Guard, source: &str) -> Outcome<String> {
    match source.matches(&guard.code).count() {
        1 => Ok(source.replacen(&guard.code, &guard.without, 1)),
        count => Err(Failure::new(
            format!("removing the guard `{}`", guard.name),
            format!("its code occurs {count} times in {}", guard.file),
            format!("write its code in {LIST} as it is now"),
        )),
    }
}

/// Copies the sources, so that the tree itself is never without a guard.
fn copy_tree(tree: &Path) -> Outcome {
    let failure = |error: std::io::Error| {
        Failure::new("copying the sources", format!("{}: {error}", tree.display()), "check the free space")
    };
    fs::create_dir_all(tree).map_err(failure)?;
    let mut command = process::command("cp");
    command.args(["--recursive", "--preserve=timestamps"]).args(SOURCES).arg(tree);
    process::run("copying the sources", &mut command, "check the free space")
}

/// Builds the programs without the guard, in the copy; returns the object.
fn build_without(guard: &Guard, tree: &Path, linker: &Path) -> Outcome<PathBuf> {
    let file = tree.join(&guard.file);
    let failure = |error: std::io::Error| {
        Failure::new(STEP, format!("{}: {error}", file.display()), format!("see {LIST}"))
    };
    let source = fs::read_to_string(process::root().join(&guard.file)).map_err(failure)?;
    fs::write(&file, without(guard, &source)?).map_err(failure)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = linker.parent().map(Path::to_path_buf).into_iter().chain(env::split_paths(&path));
    let target = tree.join("target");
    let mut command = process::cargo();
    command
        .args(["build", "--release", "--bins", "--quiet", "--target", "bpfel-unknown-none", "--target-dir"])
        .arg(&target)
        .current_dir(tree.join("xdp-ebpf"))
        .env("RUSTC_BOOTSTRAP", "1");
    if let Ok(path) = env::join_paths(folders) {
        command.env("PATH", path);
    }
    // What is unused without the guard is only a warning.
    command.stderr(Stdio::null());
    let built = process::run(
        &format!("building without the guard `{}`", guard.name),
        &mut command,
        "choose what remains so that it compiles",
    );
    fs::write(&file, source).map_err(failure)?;
    built.map(|()| target.join("bpfel-unknown-none/release/vestibule-ebpf"))
}

/// Returns the packet tests that fail with the programs in `object`.
fn failing(guard: &Guard, object: &Path) -> Outcome<Vec<String>> {
    let mut command = process::cargo();
    command.args(["test", "--quiet", "--package", "tests", "--test", "packet", "--"]).args(&guard.tests);
    command.env("VESTIBULE_EBPF", object).stderr(Stdio::null());
    let output = command.output().map_err(|error| process::not_run(STEP, &command, &error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = failed_tests(&text);
    if !output.status.success() && failed.is_empty() {
        let reason = format!("{} ended with {}", process::shown(&command), output.status);
        return Err(Failure::new(STEP, reason, "run it by hand; packet tests need root"));
    }
    Ok(failed)
}

/// Returns the names under the last `failures:` of a test run.
fn failed_tests(text: &str) -> Vec<String> {
    let last = text.rsplit_once("\nfailures:\n").map_or("", |(_, last)| last);
    let names = last.lines().map_while(|line| line.strip_prefix("    "));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guard_of_the_list_is_in_the_tree() {
        let root = process::root();
        let guards = guards(&fs::read_to_string(root.join(LIST)).unwrap()).unwrap();
        assert!(guards.len() > 10);
        for guard in guards {
            let source = fs::read_to_string(root.join(&guard.file)).expect(&guard.file);
            assert_ne!(without(&guard, &source).unwrap(), source, "{}", guard.name);
            assert!(!guard.tests.is_empty(), "{}", guard.name);
        }
    }

    #[test]
    fn a_guard_that_is_not_there_is_an_error() {
        let guard = Guard { code: "if a {".into(), ..Guard::default() };
        assert!(without(&guard, "if b {").is_err());
        assert!(without(&guard, "if a { if a {").is_err());
        assert!(guards("guard: x\nwhat: y\n").is_err());
        assert!(guards("file: y\n").is_err());
    }

    #[test]
    fn the_failed_tests_are_listed_last() {
        let text =
            "\nfailures:\n\n---- a::b stdout ----\nx\n\nfailures:\n    a::b\n    c::d\n\ntest result: FAILED";
        assert_eq!(failed_tests(text), ["a::b", "c::d"]);
        assert_eq!(failed_tests("test result: ok"), [""; 0]);
    }
}
