//! `cargo xtask`: installs what the tree needs, builds it, tests it and demonstrates it.
//!
//! xtask is the only crate that the machine's own cargo compiles. It has no dependencies and supports an
//! older Rust than the rest, because it installs the pinned toolchain.

use std::process::ExitCode;

/// What went wrong, why, and what to try.
mod failure;
/// Runs other programs: rustup, cargo of the pinned toolchain, apt-get.
mod process;
/// Installs what is missing.
mod setup;
/// Builds `target/release/vestibule`.
mod build;
/// Tar archives.
mod archive;
/// The image that the chart runs.
mod image;
/// Plain manifests, rendered from the chart.
mod manifests;
/// Runs the test levels and sums them up.
mod test;
/// What tests need from the machine.
mod needs;
/// One level of tests, and how it is run.
mod level;
/// The results of a level.
mod report;
/// The lab of network namespaces, and the demonstration in it.
mod lab;
/// A Kubernetes cluster whose nodes are network namespaces.
mod cluster;
/// The Gateway API conformance tests, run in a cluster.
mod conformance;
/// The benchmark.
mod bench;
/// Fuzz targets.
mod fuzz;
/// Guards, removed one by one.
mod mutate;
/// Random traffic for hours.
mod soak;
/// Formatting, lints, licences.
mod lint;
/// Rules of the tree that no compiler checks.
mod tidy;

use failure::{Failure, Outcome};

const USAGE: &str = "\
cargo xtask COMMAND

  demo [--keep] [--timings]
                        install what is missing, build, make a lab of network namespaces, show Vestibule at work
  lab [ARGUMENT...]     the same lab, kept running to play with (root)
  test [LEVEL...]       run the test levels; all of them when none is named:
                        unit, packet, path, bench, corpus, budget, control, cluster, conformance;
                        and, only where they are named, simulation (a large cluster in virtual time), fleet (root, Go; fifty
                        agents, five hundred nodes), witness (root, Go; addresses compared with MetalLB's own controller), l2
                        (root, Go; addresses of a cluster under load and without its API server, for forty minutes), trials
                        (root, Go; nodes, links and agents of a segment fail, fifty and ten times), and slow
                        (root; loads of many minutes), with which all five run, too
  cluster COMMAND       a Kubernetes cluster of three nodes to play with (root): up, down, kubectl ARGUMENT...,
                        helm ARGUMENT..., node N -- COMMAND..., client -- COMMAND..., kill N, start N,
                        api stop, api start, load IMAGES.tar..., route [N...]
  bench [ARGUMENT...]   Vestibule beside plain forwarding, nftables, haproxy and nginx (root; about 15 minutes):
                        --only NAME, --rounds N, --quick, --write (RESULTS.md and README.md),
                        --against BINARY (an old build in place of the peers: the ratio new/old)
  build                 install what is missing, build target/release/vestibule
  image                 build target/vestibule-image.tar, the image `vestibule:dev`, without a container engine
  manifests             render deploy/manifests from the chart
  setup                 only install what is missing
  lint                  formatting, lints for the host and for the eBPF target
  licences              licences, sources and bans of the dependencies
  tidy                  rules of the tree that no compiler checks
  fuzz [TARGET] [--seconds N]
                        run the fuzz targets, or one of them (60 seconds each; ten minutes or more: appends to tests/fuzz/FUZZ.md)
  mutate [--minutes N] [WORD...]
                        remove the guards of tests/guards.txt one by one, and name the tests that fail (root); with
                        a time, first those that were shown longest ago
  soak [ARGUMENT...]    random connections, floods, loss and changes for hours (root): --minutes N (60), --seed N,
                        --clients N, or --resume the last that a signal ended; appends to tests/slow/SOAK.md
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(mut failure) => {
            failure.tell();
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Outcome {
    let Some((command, rest)) = arguments.split_first() else {
        print!("{USAGE}");
        return Err(usage("no command given"));
    };
    match (command.as_str(), rest) {
        ("help" | "-h" | "--help", _) => {
            print!("{USAGE}");
            Ok(())
        }
        ("setup", []) => setup::everything(),
        ("build", []) => build::run().map(drop),
        ("image", []) => image::run().map(drop),
        ("manifests", []) => manifests::run(),
        ("test", levels) => test::run(levels),
        ("demo", options) => lab::demo(options),
        ("lab", options) => lab::lab(options),
        ("cluster", options) => cluster::run(options),
        ("bench", options) => bench::run(options),
        ("lint", []) => lint::run(),
        ("licences", []) => lint::licences(),
        ("tidy", []) => tidy::run(),
        ("fuzz", options) => fuzz::run(options),
        ("mutate", words) => mutate::run(words),
        ("soak", options) => soak::run(options),
        _ => Err(usage(&format!("`{}` is not a command, or takes other arguments", arguments.join(" ")))),
    }
}

fn usage(reason: &str) -> Failure {
    Failure::new("reading the command line", reason, "`cargo xtask help` lists the commands")
}
