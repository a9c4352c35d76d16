//! Random traffic for hours, with everything around it changing: the program `soak` of crate `tests`.

use crate::failure::{Failure, Outcome};
use crate::needs::{self, Needs};
use crate::{build, process, setup};

/// Builds, and runs the soak with these options.
pub(crate) fn run(options: &[String]) -> Outcome {
    if let Some(obstacle) = needs::obstacle(Needs::Lab) {
        let remedy = "as root, on Linux 6.6 or newer; in a container, privileged";
        return Err(Failure::new("preparing the soak", obstacle, remedy));
    }
    setup::for_build()?;
    setup::for_tests()?;
    let built = build::run()?;
    let mut command = process::cargo();
    command.args(["build", "--workspace", "--bin", "soak"]);
    if process::quiet() {
        command.arg("--quiet");
    }
    process::run("building the soak", &mut command, "see the compiler's message above")?;
    let mut command = process::command(process::target().join("debug/soak"));
    command.args(options).env("VESTIBULE_BIN", built.binary).env("VESTIBULE_COMMIT", process::commit(&[]));
    process::run("running the soak", &mut command, "see the report above")
}
