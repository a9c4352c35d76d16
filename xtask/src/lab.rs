//! The lab of network namespaces, and the demonstration in it. The lab itself is the program `lab` of crate `tests`.

use crate::failure::{Failure, Outcome};
use crate::needs::{self, Needs};
use crate::{build, process, setup};

/// Shows Vestibule at work; `--keep` leaves the lab running.
pub(crate) fn demo(options: &[String]) -> Outcome {
    start("demo", options)
}

/// Only makes the lab.
pub(crate) fn lab(options: &[String]) -> Outcome {
    start("lab", options)
}

fn start(what: &str, options: &[String]) -> Outcome {
    if let Some(obstacle) = needs::obstacle(Needs::Lab) {
        let remedy = "as root, on Linux 6.6 or newer; in a container, privileged";
        return Err(Failure::new(format!("preparing the {what}"), obstacle, remedy));
    }
    setup::for_build()?;
    setup::for_lab()?;
    let built = build::run()?;
    let mut command = process::cargo();
    command.args(["build", "--workspace", "--bin", "lab"]);
    if process::quiet() {
        command.arg("--quiet");
    }
    process::run("building the lab", &mut command, "the compiler's message stands above")?;
    let mut command = process::command(process::target().join("debug/lab"));
    command.arg(what).args(options).env("VESTIBULE_BIN", built.binary);
    process::run(
        &format!("running the {what}"),
        &mut command,
        "the step that failed and what to try stand above",
    )
}
