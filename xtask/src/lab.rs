//! The lab of network namespaces, and the demonstration in it. The lab itself is the program `lab` of crate `tests`.

use crate::failure::{Failure, Outcome};
use crate::needs::{self, Needs};
use crate::{process, setup};
use std::time::Instant;

/// Runs the demonstration; `--keep` leaves the lab running, `--timings` writes cargo's measurements below `target`.
pub(crate) fn demo(options: &[String]) -> Outcome {
    start("demo", options)
}

/// Creates the lab only.
pub(crate) fn lab(options: &[String]) -> Outcome {
    start("lab", options)
}

fn start(what: &str, options: &[String]) -> Outcome {
    if let Some(obstacle) = needs::obstacle(Needs::Lab) {
        let remedy = "as root, on Linux 6.6 or newer; in a container, privileged";
        return Err(Failure::new(format!("preparing the {what}"), obstacle, remedy));
    }
    let (timings, options): (Vec<&String>, Vec<&String>) =
        options.iter().partition(|option| *option == "--timings");
    let timings = if timings.is_empty() { [].as_slice() } else { &["--timings"] };
    let started = Instant::now();
    let step = |number: u32, text: &str| {
        println!("{what}: {number} of 3, after {} s: {text}", started.elapsed().as_secs());
    };
    step(1, "installing what is missing (on a new machine: one to two minutes)");
    setup::for_lab()?;
    setup::for_build()?;
    step(2, "compiling vestibule and the lab (the first time: about four minutes; later: seconds)");
    // Both in one build and unoptimised: no crate is compiled twice, and none is worth optimising for a
    // minute's work. The eBPF programs are always optimised.
    let mut command = process::cargo();
    command.args([
        "build",
        "--package",
        "userspace",
        "--package",
        "tests",
        "--bin",
        "vestibule",
        "--bin",
        "lab",
    ]);
    command.args(timings);
    if process::quiet() {
        command.arg("--quiet");
    }
    process::run("building vestibule and the lab", &mut command, "see the compiler's message above")?;
    step(3, &format!("running the {what}"));
    let built = process::target().join("debug");
    let mut command = process::command(built.join("lab"));
    command.arg(what).args(options).env("VESTIBULE_BIN", built.join("vestibule"));
    process::run(&format!("running the {what}"), &mut command, "see the failed step and what to try above")
}
