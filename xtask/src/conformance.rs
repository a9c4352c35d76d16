//! The Gateway API conformance tests: upstream's, unmodified, and ours beside them, against the chart as it is installed.

use crate::cluster::{Cluster, Surroundings};
use crate::failure::Outcome;
use crate::report::Report;
use crate::{image, process, setup};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

/// As named on the command line.
pub(crate) const NAME: &str = "conformance";

/// Longest run of all tests together, as Go writes it.
const LIMIT: &str = "25m";

/// Addresses that the router sends to the nodes (`tests/cluster/settings.sh`).
const RANGES: &[&str] = &["198.51.100.0/24", "2001:db8:51::/64"];

/// Installs the definitions and the chart in the cluster, then runs the tests beyond its router.
pub(crate) fn run(surroundings: &Surroundings) -> Outcome<Report> {
    println!("\n== {NAME} ==");
    let begun = Instant::now();
    let mut report = Report::new(NAME);
    let Some(cluster) = &surroundings.cluster else {
        report.broke_off("has no cluster".to_owned());
        return Ok(report);
    };
    let tests = setup::go::conformance()?;
    install(cluster)?;
    let folder = process::root().join("deploy/conformance");
    let mut command = cluster.inside("client", &tests)?;
    command.args(["-test.v", "-test.timeout", LIMIT, "-report-folder"]).arg(&folder);
    let mut child = command.stdout(Stdio::piped()).spawn();
    let step = "running the conformance tests";
    let child = child.as_mut().map_err(|error| process::not_run(step, &command, error))?;
    if let Some(output) = child.stdout.take() {
        read(&mut report, BufReader::new(output), |line| println!("{line}"));
    }
    let status = child.wait().map_err(|error| process::not_run(step, &command, &error))?;
    if !status.success() && report.tally.failed == 0 {
        report.broke_off(format!("broke off ({status})"));
    }
    report.time = begun.elapsed();
    Ok(report)
}

/// The definitions of exactly the suite's version, the image on every node, the chart.
fn install(cluster: &Cluster) -> Outcome {
    let crds = setup::go::gateway_crds()?;
    cluster.kubectl(&["apply", "--server-side", "-f", &crds.to_string_lossy()])?;
    cluster.load(&image::run()?)?;
    let mut values = vec!["image.tag=dev".to_owned()];
    values.extend(RANGES.iter().enumerate().map(|(at, range)| format!("addresses.ranges[{at}]={range}")));
    let chart = process::root().join("deploy/charts/vestibule");
    let chart = chart.to_string_lossy();
    let mut arguments = vec!["upgrade", "--install", "vestibule", &*chart];
    arguments.extend(["--namespace", "vestibule-system", "--create-namespace", "--wait", "--timeout", "2m"]);
    for value in &values {
        arguments.extend(["--set", value]);
    }
    cluster.helm(&arguments)
}

/// Counts the tests that Go's verbose output names, those directly below the two functions, and shows what went wrong.
fn read(report: &mut Report, output: impl BufRead, mut show: impl FnMut(&str)) {
    for line in output.lines().map_while(Result::ok) {
        if let Some((verdict, test)) = verdict(&line) {
            match verdict {
                "PASS" => report.tally.passed += 1,
                "FAIL" => report.tally.failed += 1,
                _ => report.tally.skipped += 1,
            }
            if verdict == "SKIP" {
                report
                    .notes
                    .entry("not for TLS and TCP listeners, or none of ours".to_owned())
                    .or_default()
                    .push(test.to_owned());
            } else {
                show(line.trim());
            }
        }
    }
}

/// Reads a line like `    --- PASS: TestUpstream/TLSRouteSimpleSameNamespace (3.10s)`.
fn verdict(line: &str) -> Option<(&str, &str)> {
    let (verdict, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
    let (name, _) = rest.split_once(" (")?;
    let mut parts = name.split('/').skip(1);
    let test = parts.next()?;
    parts.next().is_none().then_some((verdict, test))
}
