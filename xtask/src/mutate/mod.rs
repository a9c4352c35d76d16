//! Removes the guards listed in `tests/guards.txt` one by one, and shows that a test fails without each, in ten of ten runs.

mod record;

use crate::failure::{Failure, Outcome};
use crate::needs::{self, Needs};
use crate::process;
use crate::setup::{self, tools};
use std::collections::HashMap;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use record::Record;

const LIST: &str = "tests/guards.txt";
const STEP: &str = "removing guards";
/// Where cargo finds the packet tests.
const PACKETS: &[&str] = &["--package", "tests", "--test", "packet"];
/// Where cargo finds the daemon's unit tests.
const DAEMON: &[&str] = &["--package", "userspace", "--lib"];
/// Where cargo finds the unit tests of what programs and daemon share.
const COMMON: &[&str] = &["--package", "common", "--lib"];
/// What the eBPF programs are built from, and the manifests that cargo wants to see beside it.
const SOURCES: [&str; 8] =
    ["Cargo.toml", "Cargo.lock", ".cargo", "common", "xdp-ebpf", "userspace", "tests", "xtask"];
/// How often a test must fail without the guard, of as many runs: a race that is forced, and not waited for, is found by each.
const RUNS: usize = 10;
/// The test that shows whether the kernel takes the programs.
const LOADS: &str = "load::the_kernel_accepts_both_programs";

/// A guard of the programs or of the daemon.
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
    /// The name of the test that is run first, and alone if it fails; none if empty.
    shown: Vec<String>,
    /// Words in the names of the tests that may fail without it.
    tests: Vec<String>,
}

impl Guard {
    /// Returns the tests that may fail without it, by where cargo finds them: first those that are built faster. Unit tests have to be
    /// built without it, and run no programs.
    fn judged_by(&self) -> &'static [&'static [&'static str]] {
        match self.file.split_once('/').map(|(package, _)| package) {
            Some("userspace") => &[DAEMON],
            Some("common") => &[COMMON, PACKETS],
            _ => &[PACKETS],
        }
    }
}

/// Tests, built with or without a guard.
#[derive(Debug)]
struct Judge {
    tests: PathBuf,
    /// The programs that packet tests load; the ones built into them otherwise.
    object: Option<PathBuf>,
}

/// Removes every guard whose name contains one of the words; all of them if there is no word. With `--minutes N` it begins with those that
/// were shown longest ago, and ends after that time. The table of guards has what became of each.
pub(crate) fn run(options: &[String]) -> Outcome {
    let (words, time) = options_of(options)?;
    let text = fs::read_to_string(process::root().join(LIST))
        .map_err(|error| Failure::new(STEP, format!("{LIST}: {error}"), "restore it"))?;
    let mut guards = guards(&text)?;
    let all: Vec<String> = guards.iter().map(|guard| guard.name.clone()).collect();
    guards.retain(|guard| words.is_empty() || words.iter().any(|word| guard.name.contains(word.as_str())));
    if let Some(why) = needs::obstacle(Needs::Lab) {
        return Err(Failure::new(STEP, why, "run it where packet tests run"));
    }
    if guards.is_empty() {
        return Err(Failure::new(STEP, format!("no guard of {LIST} has one of these words"), "look at it"));
    }
    let record = Record::read()?;
    if time.is_some() {
        record.sort(&mut guards);
    }
    setup::for_build()?;
    let linker = tools::bpf_linker()?;
    let mut own = HashMap::new();
    for which in guards.iter().flat_map(|guard| guard.judged_by()) {
        if !own.contains_key(which) {
            let tests = build_tests(which, &process::root(), &process::target())?;
            own.insert(*which, Judge { tests, object: None });
        }
    }
    let (tree, commit) = (process::target().join("mutants"), process::commit(&[]));
    copy_tree(&tree)?;
    let (mut count, mut faults, begun) = (0, Vec::new(), Instant::now());
    for guard in &guards {
        if time.is_some_and(|time| begun.elapsed() > time) {
            break;
        }
        count += 1;
        let mut judged = judged(guard, &own, &tree, &linker);
        match &mut judged {
            Ok(judgement) => println!("{}: {judgement}", guard.name),
            // The others are judged.
            Err(failure) => failure.tell(),
        }
        Record::note(guard, &judged, &commit, &all)?;
        if !matches!(judged, Ok(Judgement::Shown(_))) {
            faults.push(guard.name.as_str());
        }
    }
    println!("mutate: {count} guards, {} without a test, or not judged", faults.len());
    if faults.is_empty() {
        return Ok(());
    }
    let remedy =
        "write the test that fails, or choose what remains so that it compiles and the verifier accepts it";
    Err(Failure::new(STEP, format!("without a test, or not judged: {}", faults.join("; ")), remedy))
}

/// Returns the words, and how long guards are removed.
fn options_of(options: &[String]) -> Outcome<(Vec<&String>, Option<Duration>)> {
    let failure = |reason: String| {
        Failure::new("reading the command line", reason, "cargo xtask mutate [--minutes N] [WORD...]")
    };
    let (mut words, mut time, mut options) = (Vec::new(), None, options.iter());
    while let Some(option) = options.next() {
        if option == "--minutes" {
            let minutes: Option<u64> = options.next().and_then(|text| text.parse().ok());
            let minutes = minutes.ok_or_else(|| failure("--minutes takes a number".into()))?;
            time = Some(Duration::from_secs(minutes * 60));
        } else if option.starts_with('-') {
            return Err(failure(format!("`{option}` is not expected")));
        } else {
            words.push(option);
        }
    }
    Ok((words, time))
}

/// What became of a guard that was removed.
enum Judgement {
    /// These tests fail.
    Shown(Vec<String>),
    /// No test does.
    Survived,
    /// Programs that the kernel refuses fail every test, and show nothing.
    Refused,
}

impl fmt::Display for Judgement {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shown(failed) => to.write_str(&failed.join(", ")),
            Self::Survived => write!(to, "NO TEST fails in {RUNS} of {RUNS} runs"),
            Self::Refused => to.write_str("THE KERNEL REFUSES the programs without it"),
        }
    }
}

/// Removes a guard, and has it judged by one kind of tests after the other, until one shows it.
fn judged(guard: &Guard, own: &HashMap<&[&str], Judge>, tree: &Path, linker: &Path) -> Outcome<Judgement> {
    for which in guard.judged_by() {
        let Some(own) = own.get(which) else { continue };
        let mutant = mutant(guard, which, own, tree, linker)?;
        if mutant.object.is_some() && !failed_of(&mutant, &[LOADS.to_owned()], true)?.is_empty() {
            return Ok(Judgement::Refused);
        }
        let failed = failing(guard, own, &mutant)?;
        if !failed.is_empty() {
            return Ok(Judgement::Shown(failed));
        }
    }
    Ok(Judgement::Survived)
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
            "shown" => guard.shown = vec![value],
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
    let failure = |error: io::Error| {
        Failure::new("copying the sources", format!("{}: {error}", tree.display()), "check the free space")
    };
    fs::create_dir_all(tree).map_err(failure)?;
    for entry in SOURCES {
        prune(&process::root().join(entry), &tree.join(entry)).map_err(failure)?;
    }
    let mut command = process::command("cp");
    command.args(["--recursive", "--preserve=timestamps"]).args(SOURCES).arg(tree);
    process::run("copying the sources", &mut command, "check the free space")
}

/// Removes from a former copy what the original no longer has: cargo would build a file that was renamed under both names. What
/// has another kind is removed as well.
fn prune(original: &Path, copy: &Path) -> io::Result<()> {
    let Ok(copied) = fs::symlink_metadata(copy) else { return Ok(()) };
    let kept = fs::symlink_metadata(original).is_ok_and(|kept| kept.file_type() == copied.file_type());
    match (kept, copied.is_dir()) {
        (true, true) => {
            for entry in fs::read_dir(copy)? {
                let name = entry?.file_name();
                prune(&original.join(&name), &copy.join(&name))?;
            }
            Ok(())
        }
        (true, false) => Ok(()),
        (false, true) => fs::remove_dir_all(copy),
        (false, false) => fs::remove_file(copy),
    }
}

/// Builds, in the copy, what judges the guard without it.
fn mutant(guard: &Guard, which: &[&str], own: &Judge, tree: &Path, linker: &Path) -> Outcome<Judge> {
    let file = tree.join(&guard.file);
    let failure =
        |error: io::Error| Failure::new(STEP, format!("{}: {error}", file.display()), format!("see {LIST}"));
    let source = fs::read_to_string(process::root().join(&guard.file)).map_err(failure)?;
    fs::write(&file, without(guard, &source)?).map_err(failure)?;
    let built = match which == PACKETS {
        true => build_programs(guard, tree, linker)
            .map(|object| Judge { tests: own.tests.clone(), object: Some(object) }),
        // Cargo gives what it builds of the copy the names that the tree's own have: they need folders of their own.
        false => build_tests(which, tree, &tree.join("target")).map(|tests| Judge { tests, object: None }),
    };
    fs::write(&file, source).map_err(failure)?;
    built
}

/// Builds the programs in the copy; returns the object.
fn build_programs(guard: &Guard, tree: &Path, linker: &Path) -> Outcome<PathBuf> {
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
    process::run(
        &format!("building without the guard `{}`", guard.name),
        &mut command,
        "choose what remains so that it compiles",
    )?;
    Ok(target.join("bpfel-unknown-none/release/vestibule-ebpf"))
}

/// Builds tests of the workspace in this folder; returns their program. Cargo would cost more than they do, ten times for
/// each guard.
fn build_tests(which: &[&str], workspace: &Path, target: &Path) -> Outcome<PathBuf> {
    let mut command = process::cargo();
    command.args(["test", "--no-run", "--quiet"]).args(which).current_dir(workspace);
    command.env("CARGO_TARGET_DIR", target);
    command.arg("--message-format=json").stderr(Stdio::inherit());
    let output = command.output().map_err(|error| process::not_run(STEP, &command, &error))?;
    executable(&String::from_utf8_lossy(&output.stdout)).map(PathBuf::from).ok_or_else(|| {
        let reason = format!("{} ended with {}", process::shown(&command), output.status);
        Failure::new("building the tests", reason, "run it by hand")
    })
}

/// Returns the path of the tests in what cargo reports.
fn executable(messages: &str) -> Option<&str> {
    let is_ours =
        |line: &&str| [r#""kind":["test"]"#, r#""kind":["lib"]"#].iter().any(|kind| line.contains(kind));
    // A library itself is none: it has no path here.
    let message = messages.lines().filter(is_ours).find(|line| line.contains(r#""executable":""#))?;
    let (_, path) = message.split_once(r#""executable":""#)?;
    path.split('"').next()
}

/// Returns the tests that fail without the guard in each of [`RUNS`] runs, and pass with it. If the one named beside it does, others
/// are not run.
fn failing(guard: &Guard, own: &Judge, mutant: &Judge) -> Outcome<Vec<String>> {
    first_shown(guard, |names, whole| {
        let first = failed_of(mutant, names, whole)?;
        let mut failed = in_each_run(first, |names| failed_of(mutant, names, true))?;
        if !failed.is_empty() {
            let with_guard = failed_of(own, &failed, true)?;
            failed.retain(|name| !with_guard.contains(name));
        }
        Ok(failed)
    })
}

/// Asks for the tests that fail: first of the one named beside the guard, by its whole name, then of all that may.
fn first_shown(
    guard: &Guard,
    mut failing: impl FnMut(&[String], bool) -> Outcome<Vec<String>>,
) -> Outcome<Vec<String>> {
    if !guard.shown.is_empty() {
        let failed = failing(&guard.shown, true)?;
        if !failed.is_empty() {
            return Ok(failed);
        }
    }
    failing(&guard.tests, false)
}

/// Runs tests `again` until there were [`RUNS`] runs, each time those that failed in all runs before. Returns those that failed
/// in all.
fn in_each_run(
    first: Vec<String>,
    mut again: impl FnMut(&[String]) -> Outcome<Vec<String>>,
) -> Outcome<Vec<String>> {
    let mut failed = first;
    for _ in 1..RUNS {
        if failed.is_empty() {
            break;
        }
        let now = again(&failed)?;
        failed.retain(|name| now.contains(name));
    }
    Ok(failed)
}

/// Runs the tests with these names, or whose names contain one of these words. Returns those that fail.
fn failed_of(judge: &Judge, names: &[String], whole: bool) -> Outcome<Vec<String>> {
    let mut command = process::command(&judge.tests);
    command.arg("--quiet").args(whole.then_some("--exact")).args(names).stderr(Stdio::null());
    match &judge.object {
        Some(object) => command.env("VESTIBULE_EBPF", object),
        None => command.env_remove("VESTIBULE_EBPF"),
    };
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
            if let Some(shown) = guard.shown.first() {
                let (path, test) = shown.rsplit_once("::").expect("a module and a test");
                let packets = root.join(format!("tests/packet/{}.rs", path.replace("::", "/")));
                let has = |file: &Path| {
                    fs::read_to_string(file).is_ok_and(|source| source.contains(&format!("fn {test}()")))
                };
                assert!(has(&packets) || has(&unit_tests(&root, &guard, path)), "{}: {shown}", guard.name);
            }
        }
        let (file, test) = LOADS.split_once("::").unwrap();
        let source = fs::read_to_string(root.join(format!("tests/packet/{file}.rs"))).unwrap();
        assert!(source.contains(&format!("fn {test}()")));
    }

    /// Returns the file of unit tests in this module.
    fn unit_tests(root: &Path, guard: &Guard, module: &str) -> PathBuf {
        let package = guard.file.split('/').next().unwrap();
        let module = module.strip_suffix("::tests").unwrap_or(module).replace("::", "/");
        root.join(format!("{package}/src/{module}.rs"))
    }

    #[test]
    fn the_time_is_no_word() {
        let of = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let read = |text: &str| {
            let options = of(text);
            options_of(&options).ok().map(|(words, time)| (words.into_iter().cloned().collect(), time))
        };
        assert_eq!(read("a b"), Some((of("a b"), None)));
        assert_eq!(read("a --minutes 2 b"), Some((of("a b"), Some(Duration::from_secs(120)))));
        assert_eq!([read("--minutes"), read("--minutes a"), read("--minute 5")], [None, None, None]);
    }

    #[test]
    fn a_guard_is_judged_by_the_tests_of_where_it_is() {
        let of = |file: &str| Guard { file: file.into(), ..Guard::default() }.judged_by();
        assert_eq!(of("userspace/src/settle/own.rs"), [DAEMON]);
        assert_eq!(of("common/src/maps/word.rs"), [COMMON, PACKETS]);
        assert_eq!(of("xdp-ebpf/src/atomic.rs"), [PACKETS]);
    }

    #[test]
    fn the_test_named_beside_a_guard_is_run_first_and_alone_if_it_fails() {
        let list = "guard: x\nfile: a\ncode: b\nwithout:\nshown: m::one\ntests: m n\n";
        let guard = guards(list).unwrap().remove(0);
        let asked = |fails: &[&str]| {
            let mut asked = Vec::new();
            let failed = first_shown(&guard, |names, whole| {
                asked.push((names.to_vec(), whole));
                let is_asked = |name: &str| {
                    names.iter().any(|word| if whole { name == word } else { name.starts_with(word) })
                };
                Ok(fails.iter().filter(|name| is_asked(name)).map(|name| (*name).to_owned()).collect())
            });
            (failed.unwrap(), asked.into_iter().map(|(names, whole)| (names.join(" "), whole)).collect())
        };
        let (one, all) = (("m::one".to_owned(), true), ("m n".to_owned(), false));
        let alone: (Vec<String>, Vec<(String, bool)>) = asked(&["m::one", "n::two"]);
        assert_eq!(alone, (vec!["m::one".to_owned()], vec![one.clone()]));
        assert_eq!(asked(&["n::two"]), (vec!["n::two".to_owned()], vec![one.clone(), all.clone()]));
        assert_eq!(asked(&[]), (vec![], vec![one, all]));
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
    fn a_copy_loses_what_the_tree_no_longer_has() {
        let folder = process::target().join(format!("prune-{}", std::process::id()));
        let [original, copy] = ["original", "copy"].map(|name| folder.join(name));
        let write = |root: &Path, files: &[&str]| {
            for file in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
        };
        write(&original, &["a/kept.rs", "a/new.rs", "a/file", "b/x.rs"]);
        write(&copy, &["a/kept.rs", "a/renamed.rs", "a/file/x.rs", "a/gone/deep/x.rs", "b", "target/x"]);
        for entry in ["a", "b", "c"] {
            prune(&original.join(entry), &copy.join(entry)).unwrap();
        }
        let mut left: Vec<_> =
            fs::read_dir(copy.join("a")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["kept.rs"]);
        assert!(!copy.join("b").exists(), "it is a folder now");
        assert!(copy.join("target/x").exists() && original.join("a/file").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_test_that_passes_once_is_not_the_guards() {
        let names = |names: &str| -> Vec<String> { names.split_whitespace().map(str::to_owned).collect() };
        let mut asked = Vec::new();
        let failed = in_each_run(names("a b c"), |left| {
            asked.push(left.to_vec());
            Ok(names(if asked.len() == 4 { "c d" } else { "b c" }))
        });
        assert_eq!(failed.unwrap(), ["c"]);
        let mut expected = vec![names("a b c"), names("b c"), names("b c"), names("b c")];
        expected.resize(RUNS - 1, names("c"));
        assert_eq!(asked, expected);
        let never = in_each_run(Vec::new(), |_| panic!("nothing failed"));
        assert_eq!(never.unwrap(), [""; 0]);
        assert!(in_each_run(names("a"), |_| Err(Failure::new("", "", ""))).is_err());
    }

    #[test]
    fn the_program_of_the_tests_is_in_cargos_report() {
        let text = concat!(
            r#"{"target":{"kind":["bin"],"name":"bench"},"executable":"/t/bench"}"#,
            "\n",
            r#"{"target":{"kind":["lib"],"name":"tests"},"executable":null}"#,
            "\n",
            r#"{"target":{"kind":["test"],"name":"packet"},"executable":"/t/packet-1","fresh":true}"#,
        );
        assert_eq!(executable(text), Some("/t/packet-1"));
        let text = r#"{"target":{"kind":["lib"],"name":"userspace"},"executable":"/t/userspace-1"}"#;
        assert_eq!(executable(text), Some("/t/userspace-1"));
        assert_eq!(executable(r#"{"reason":"build-finished","success":false}"#), None);
    }

    #[test]
    fn the_failed_tests_are_listed_last() {
        let text =
            "\nfailures:\n\n---- a::b stdout ----\nx\n\nfailures:\n    a::b\n    c::d\n\ntest result: FAILED";
        assert_eq!(failed_tests(text), ["a::b", "c::d"]);
        assert_eq!(failed_tests("test result: ok"), [""; 0]);
    }
}
