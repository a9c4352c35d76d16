//! Runs the lab of network namespaces and the demonstration in it, for `cargo xtask demo` and
//! `cargo xtask lab`.

mod demo;
mod hold;
mod table;

use std::process::ExitCode;

use tests::net;

const USAGE: &str = "\
lab demo [--keep]   show Vestibule at work; --keep leaves the lab running
lab lab             make the lab and leave it running
lab --stop          end the lab that was left running
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Some(why) = net::unavailable() {
        return failed(&format!("the lab {why}"), "run it as root");
    }
    match arguments[..] {
        ["demo"] => demo::once(),
        ["demo", "--keep"] => hold::begin("demo"),
        ["lab"] => hold::begin("lab"),
        ["lab", "--stop"] | ["demo", "--stop"] | ["--stop"] => hold::stop(),
        // Started in the background by `begin`.
        ["hold", what] => hold::hold(what),
        _ => {
            eprint!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what went wrong and what to try.
fn failed(reason: &str, remedy: &str) -> ExitCode {
    eprintln!("\nreason: {reason}\ntry:    {remedy}");
    ExitCode::FAILURE
}
