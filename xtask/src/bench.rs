//! Vestibule beside plain forwarding and its peers. The benchmark itself is the program `bench` of crate `tests`; the load
//! is carried by the program `load`, built optimised.

use crate::failure::{Failure, Outcome};
use crate::needs::{self, Needs};
use crate::{build, process, setup};

/// Installs peers, builds, measures.
pub(crate) fn run(options: &[String]) -> Outcome {
    if let Some(obstacle) = needs::obstacle(Needs::Lab) {
        let remedy = "as root, on Linux 6.6 or newer; in a container, privileged";
        return Err(Failure::new("preparing the benchmark", obstacle, remedy));
    }
    setup::for_build()?;
    setup::for_lab()?;
    setup::for_bench()?;
    let built = build::run()?;
    for arguments in [["--release", "--package", "load"].as_slice(), &["--workspace", "--bin", "bench"]] {
        let mut command = process::cargo();
        command.arg("build").args(arguments);
        if process::quiet() {
            command.arg("--quiet");
        }
        process::run("building the benchmark", &mut command, "the compiler's message stands above")?;
    }
    let mut command = process::command(process::target().join("debug/bench"));
    command.args(options).env("VESTIBULE_BIN", built.binary);
    command.env("LOAD_BIN", process::target().join("release/load"));
    // The daemon tells its times in its log.
    command.env("VESTIBULE_LOG", "info,userspace=debug");
    process::run("running the benchmark", &mut command, "what failed stands above")
}
