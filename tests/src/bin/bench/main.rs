//! What `cargo xtask bench` runs: Vestibule beside plain forwarding and its peers.

/// The command line.
mod options;
/// CPU time.
mod cpu;
/// The network of one system.
mod rig;
/// The congestion control of its sockets.
mod congestion;
/// What stands between clients and backends.
mod system;
/// Hellos.
mod greeting;
/// Medians.
mod stats;
/// Systems by turns.
mod rounds;

/// What is measured.
mod workload;
/// Rows, and what is made of them.
mod table;
/// Where results go.
mod results;

use std::process::ExitCode;

use anyhow::{Result, bail};
use tests::net;

use options::Options;

fn main() -> ExitCode {
    match options::read(std::env::args().skip(1)).and_then(|options| conduct(&options)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nreason: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn conduct(options: &Options) -> Result<ExitCode> {
    if let Some(why) = net::unavailable() {
        bail!("the benchmark {why}");
    }
    let rows = workload::run(&options.only, &options.effort)?;
    println!("\n{}", table::plain(&rows));
    if options.effort.against.is_some() {
        println!("{}", table::plain(&table::against(&rows)));
    }
    results::store(&rows, &options.effort)?;
    if options.write {
        results::publish(&rows, &options.effort)?;
    }
    Ok(ExitCode::SUCCESS)
}
