//! The Gateway API conformance tests: upstream's, unmodified, and our own, run against the installed chart.

use crate::cluster::{Cluster, Surroundings};
use crate::failure::{Failure, Outcome};
use crate::report::Report;
use crate::{image, process, setup};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

/// Its name on the command line.
pub(crate) const NAME: &str = "conformance";

/// Time limit of all tests together, in Go's notation.
const LIMIT: &str = "25m";

/// Address ranges that the router sends to the nodes (`tests/cluster/settings.sh`).
const RANGES: &[&str] = &["198.51.100.0/24", "2001:db8:51::/64"];

/// What the report says about us, besides the version.
const ABOUT: &[&str] = &[
    "--organization=vestibule",
    "--project=vestibule",
    "--url=https://vestibule.dev",
    "--contact=https://vestibule.dev",
    "--gateway-class=vestibule",
];

/// Installs the definitions and the chart in the cluster, then runs the tests from beyond its router.
pub(crate) fn run(surroundings: &Surroundings) -> Outcome<Report> {
    println!("\n== {NAME} ==");
    let begun = Instant::now();
    let mut report = Report::new(NAME);
    let Some(cluster) = &surroundings.cluster else {
        report.broke_off("has no cluster".to_owned());
        return Ok(report);
    };
    let tests = setup::go::conformance()?;
    if let Err(mut failure) = install(cluster) {
        failure.tell();
        report.broke_off("the chart cannot be installed".to_owned());
        report.time = begun.elapsed();
        return Ok(report);
    }
    println!("conformance: chart installed after {:.1} s", begun.elapsed().as_secs_f64());
    let written = process::target().join("conformance.yaml");
    let mut command = cluster.inside("client", &tests)?;
    command.args(["-test.v", "-test.timeout", LIMIT]).args(ABOUT);
    command.arg(format!("--version=v{}", env!("CARGO_PKG_VERSION")));
    command.arg(format!("--report-output={}", written.display()));
    let step = "running the conformance tests";
    let mut child = command.stdout(Stdio::piped()).spawn();
    let child = child.as_mut().map_err(|error| process::not_run(step, &command, error))?;
    if let Some(output) = child.stdout.take() {
        let log = process::target().join("conformance.log");
        read(&mut report, BufReader::new(output), |line| println!("{line}"), &log)?;
        println!("conformance: every line of the suite: {}", log.display());
    }
    let status = child.wait().map_err(|error| process::not_run(step, &command, &error))?;
    if !status.success() && report.tally.failed == 0 {
        report.broke_off(format!("broke off ({status})"));
    }
    if !process::quiet() {
        keep(&written)?;
    }
    report.time = begun.elapsed();
    Ok(report)
}

/// Installs the definitions of exactly the suite's version, the image on every node, and the chart.
fn install(cluster: &Cluster) -> Outcome {
    let crds = setup::go::gateway_crds()?;
    cluster.kubectl(&["apply", "--server-side", "-f", &crds.to_string_lossy()])?;
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"])?;
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
    let installed = cluster.helm(&arguments);
    if installed.is_err() {
        // Best effort: show what a reader wants to see next.
        let pods = ["--namespace", "vestibule-system", "get", "pods,events", "-o", "wide"];
        let logs = [
            "--namespace",
            "vestibule-system",
            "logs",
            "-l",
            "app.kubernetes.io/name=vestibule",
            "--tail=20",
            "--prefix",
        ];
        for shown in [cluster.kubectl(&pods), cluster.kubectl(&logs)] {
            shown.unwrap_or_else(|mut failure| failure.tell());
        }
    }
    installed
}

/// Copies a report without failures to where it is committed.
fn keep(written: &Path) -> Outcome {
    let report = fs::read_to_string(written).unwrap_or_default();
    if !report.contains("statistics:") || report.contains("failedTests:") {
        return Ok(());
    }
    let kept = process::root().join("deploy/conformance/report.yaml");
    let copied = kept.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&kept, report));
    copied.map(|()| println!("conformance: {}", kept.display())).map_err(|error| {
        Failure::new("keeping the report", format!("{}: {error}", kept.display()), "check the folder's owner")
    })
}

/// Counts the tests in Go's verbose output, only those directly below the two test functions. Shows those
/// that ran, and writes the whole output to `log`.
fn read(report: &mut Report, output: impl BufRead, mut show: impl FnMut(&str), log: &Path) -> Outcome {
    let mut all = String::new();
    for line in output.lines().map_while(Result::ok) {
        all += &line;
        all.push('\n');
        if let Some((test, reason)) = skip(&line) {
            report.notes.entry(reason.to_owned()).or_default().push(test.to_owned());
        } else if let Some((verdict, test)) = verdict(&line) {
            match verdict {
                "PASS" => report.tally.passed += 1,
                "FAIL" => report.tally.failed += 1,
                _ => report.tally.skipped += 1,
            }
            if verdict != "SKIP" {
                show(&format!("{verdict} {test}"));
            }
        }
    }
    fs::write(log, all).map_err(|error| {
        Failure::new(
            "keeping the suite's output",
            format!("{}: {error}", log.display()),
            "check the free space",
        )
    })
}

/// Parses a line like `    --- PASS: TestUpstream/TLSRouteSimpleSameNamespace (3.10s)`; returns verdict and test.
fn verdict(line: &str) -> Option<(&str, &str)> {
    let (verdict, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
    let (name, _) = rest.split_once(" (")?;
    let (_, test) = name.split_once('/')?;
    (!test.contains('/')).then_some((verdict, test))
}

/// Parses why a test is not run: `skip: TEST: REASON` from our tests, `Skipping TEST: REASON` from the suite.
fn skip(line: &str) -> Option<(&str, &str)> {
    if let Some((_, ours)) = line.split_once(" skip: ") {
        return ours.split_once(": ");
    }
    let (test, reason) = line.split_once(" Skipping ")?.1.split_once(": ")?;
    // The reason was already given in a `skip:` line.
    (reason != "test explicitly skipped").then_some((test, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_directly_below_the_functions_are_counted() {
        assert_eq!(verdict("    --- PASS: TestOwn/Address (0.10s)"), Some(("PASS", "Address")));
        assert_eq!(verdict("        --- FAIL: TestOwn/Address/one (0.10s)"), None);
        assert_eq!(verdict("--- FAIL: TestOwn (3.10s)"), None);
        assert_eq!(verdict("=== RUN   TestOwn/Address"), None);
    }

    #[test]
    fn reasons_of_skipped_tests_are_read() {
        assert_eq!(
            skip("    upstream_test.go:51: skip: A: its listeners are HTTP"),
            Some(("A", "its listeners are HTTP"))
        );
        let theirs = "    conformance.go:58: Skipping B: suite does not support HTTPRoute";
        assert_eq!(skip(theirs), Some(("B", "suite does not support HTTPRoute")));
        assert_eq!(skip("    conformance.go:72: Skipping A: test explicitly skipped"), None);
    }
}
