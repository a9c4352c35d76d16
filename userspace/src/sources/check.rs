//! Reports the problems of a static file, or of the chart's, to its author.

use super::{chart, file};
use crate::compile::compile;
use crate::config;
use crate::model::{NodeFacts, Problem, Settings};
use std::fmt;
use std::path::{Path, PathBuf};

/// Everything that is wrong with a file, and everything that may surprise its author on this node.
pub fn check(path: &Path, node: &NodeFacts) -> Report {
    let (usable, problems) = match file::load(path, node) {
        Ok(loaded) => {
            let (listeners, routes) = (loaded.desired.listeners.len(), loaded.desired.routes.len());
            (Some(Usable { listeners, routes, settings: loaded.desired.settings.clone() }), loaded.warnings)
        }
        Err(problems) => (None, problems),
    };
    Report { path: path.to_owned(), problems, usable }
}

/// The same for the file that the chart gives to agents and controller, as the controller judges it.
pub fn check_chart(path: &Path) -> Report {
    let (usable, problems) = match chart::read(path) {
        Ok(text) => judge_chart(&text),
        Err(problems) => (None, problems),
    };
    Report { path: path.to_owned(), problems, usable }
}

/// Returns what the text asks for, if it can be used, and its problems.
fn judge_chart(text: &str) -> (Option<Usable>, Vec<Problem>) {
    let (chart, mut problems) = config::parse_chart(text);
    if problems.is_empty() {
        // Without a cluster, warnings would be about what is in no file.
        problems.extend(compile(&chart.facts).problems.into_iter().filter(Problem::is_error));
    }
    config::locate(text, &mut problems);
    problems.sort_by_key(|problem| problem.line);
    let facts = chart.facts;
    let usable =
        Usable { listeners: facts.listeners.len(), routes: facts.routes.len(), settings: facts.settings };
    let is_usable = !problems.iter().any(Problem::is_error);
    (is_usable.then_some(usable), problems)
}

/// What is wrong with a file; prints one line a problem and one for the whole.
#[derive(Clone, Debug)]
pub struct Report {
    path: PathBuf,
    problems: Vec<Problem>,
    usable: Option<Usable>,
}

/// What a file without errors asks for.
#[derive(Clone, Debug)]
struct Usable {
    listeners: usize,
    routes: usize,
    settings: Settings,
}

impl Report {
    /// Whether the file can be used; it may have warnings.
    pub fn is_usable(&self) -> bool {
        self.usable.is_some()
    }

    /// The settings of a file that can be used.
    pub fn settings(&self) -> Option<&Settings> {
        self.usable.as_ref().map(|usable| &usable.settings)
    }

    /// Errors and warnings, in the order of their lines.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        for problem in &self.problems {
            writeln!(f, "{}", problem.in_file(&path))?;
        }
        let errors = self.problems.iter().filter(|problem| problem.is_error()).count();
        let warnings = self.problems.len() - errors;
        match &self.usable {
            Some(Usable { listeners, routes, .. }) => {
                write!(f, "{path}: ok: listeners: {listeners}, routes: {routes}, warnings: {warnings}")
            }
            None => write!(f, "{path}: refused: errors: {errors}, warnings: {warnings}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    const GOOD: &str = r#"addresses: { ranges: [192.0.2.0/28] }
listeners:
  - { name: shared, addresses: ["10.97.0.10"], port: 443, protocol: TLS, defaultRoute: tenant-a }
routes:
  - { name: tenant-a, listeners: [shared], backends: [{ address: "10.97.2.2", port: 6443 }] }
"#;

    #[test]
    fn the_charts_file_is_judged_as_a_controller_does() {
        let said = |text: &str| {
            let (usable, problems) = judge_chart(text);
            Report { path: "f.yaml".into(), problems, usable }.to_string()
        };
        expect!["f.yaml: ok: listeners: 1, routes: 1, warnings: 0"].assert_eq(&said(GOOD));
        // An agent would take it, and the controller would not.
        expect![[r#"
            f.yaml:2: error: addresses.ranges[0]: is a loopback address (value "127.0.0.1"); write an address that other machines can reach
            f.yaml: refused: errors: 1, warnings: 0"#]].assert_eq(&said("addresses:\n  ranges: [127.0.0.1]\n"));
        expect![[r#"
            f.yaml:3: error: listeners[0].defaultRoute: there is no route of this name (value "tenant-x"); did you mean "tenant-a"?
            f.yaml:5: error: routes[0].hostnames: route tenant-a has no names for TLS listener shared; write hostnames, or make it the listener's defaultRoute
            f.yaml: refused: errors: 2, warnings: 0"#]].assert_eq(&said(&GOOD.replace("defaultRoute: tenant-a", "defaultRoute: tenant-x")));
        expect![[r#"
            f.yaml:1: error: apiVersion: unknown field; the fields here are addresses, devices, settings, probe, savedState, ingress, metallb, loadBalancerClasses, defaultLoadBalancerClass, agentGraceSeconds, serveHealthCheckNodePorts, listeners, routes
            f.yaml:2: error: kind: unknown field; the fields here are addresses, devices, settings, probe, savedState, ingress, metallb, loadBalancerClasses, defaultLoadBalancerClass, agentGraceSeconds, serveHealthCheckNodePorts, listeners, routes
            f.yaml: refused: errors: 2, warnings: 0"#]].assert_eq(&said("apiVersion: vestibule.dev/v1alpha1\nkind: StaticConfig\n"));
    }
}
