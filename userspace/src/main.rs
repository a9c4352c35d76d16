//! Flags -> command.

use std::process::ExitCode;

fn main() -> ExitCode {
    userspace::cli::main()
}
