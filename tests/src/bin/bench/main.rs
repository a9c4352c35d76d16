//! The benchmark run by `cargo xtask bench`: Vestibule compared with plain forwarding and its peers.

/// The command line.
mod options;
/// CPU time.
mod cpu;
/// The network of one system.
mod rig;
/// The congestion control of its sockets.
mod congestion;
/// The systems between clients and backends.
mod system;
/// Hellos.
mod greeting;
/// Medians.
mod stats;
/// Runs systems by turns.
mod rounds;

/// The workloads.
mod workload;
/// Result rows, and their output as tables and a chart.
mod table;
/// The tables in RESULTS.md, one for each workload.
mod published;
/// Stores results.
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
    let measured = workload::run(&options.only, &options.effort)?;
    let rows: Vec<table::Row> = measured.iter().flat_map(|(_, rows)| rows).cloned().collect();
    println!("\n{}", table::plain(&rows));
    if options.effort.against.is_some() {
        println!("{}", table::plain(&table::against(&rows)));
    }
    results::store(&rows)?;
    if options.write {
        results::publish(&measured)?;
    }
    Ok(ExitCode::SUCCESS)
}
