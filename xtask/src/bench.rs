//! Vestibule beside plain forwarding and its peers. The benchmark itself is the program `bench` of crate `tests`; the load
//! is carried by the program `load`, built optimised.

use crate::failure::{Failure, Outcome};
use crate::needs::{self, Needs};
use crate::{build, process, setup};

const AGAINST: &str = "--against";

/// The options with an absolute path of the binary: it is relative to the user's folder, and the benchmark runs elsewhere.
fn whole_paths(options: &[String]) -> Outcome<Vec<String>> {
    let mut whole = options.to_vec();
    for place in 1..whole.len() {
        if whole[place - 1] == AGAINST {
            let path = std::path::absolute(&whole[place]).map_err(|error| {
                Failure::new(
                    "reading the options",
                    format!("{AGAINST} {}: {error}", whole[place]),
                    "name a file",
                )
            })?;
            whole[place] = path.display().to_string();
        }
    }
    Ok(whole)
}

/// Installs peers, builds, measures.
pub(crate) fn run(options: &[String]) -> Outcome {
    if let Some(obstacle) = needs::obstacle(Needs::Lab) {
        let remedy = "as root, on Linux 6.6 or newer; in a container, privileged";
        return Err(Failure::new("preparing the benchmark", obstacle, remedy));
    }
    setup::for_build()?;
    setup::for_tests()?;
    let options = whole_paths(options)?;
    // An old build replaces the peers.
    if !options.iter().any(|option| option == AGAINST) {
        setup::for_bench()?;
    }
    let built = build::run()?;
    for arguments in [["--release", "--package", "load"].as_slice(), &["--workspace", "--bin", "bench"]] {
        let mut command = process::cargo();
        command.arg("build").args(arguments);
        if process::quiet() {
            command.arg("--quiet");
        }
        process::run("building the benchmark", &mut command, "see the compiler's message above")?;
    }
    let mut command = process::command(process::target().join("debug/bench"));
    command.args(&options).env("VESTIBULE_BIN", built.binary);
    command.env("LOAD_BIN", process::target().join("release/load"));
    // The daemon logs its times.
    command.env("VESTIBULE_LOG", "info,userspace=debug");
    process::run("running the benchmark", &mut command, "see what failed above")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_old_builds_path_is_made_whole() {
        let of = |text: &str| {
            let options: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            whole_paths(&options).map(|options| options.join(" ")).unwrap_or_default()
        };
        let here = std::env::current_dir().unwrap_or_default();
        assert_eq!(
            of("--only ask --against old --quick"),
            format!("--only ask --against {} --quick", here.join("old").display())
        );
        assert_eq!(of("--against /a/old"), "--against /a/old");
        assert_eq!(of("--only against --against"), "--only against --against");
    }
}
