//! How long many Services wait for their addresses: those that are created while the controller runs, and those that are there when it
//! starts. The API server and etcd are real, and so is the controller; one agent is simulated, which reports each second what a node holds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use ::tests::cluster::balancers::{Balancers, RANGE, Served};
use ::tests::cluster::{self, ApiServer, Controller, Options, ReportingAgent, Reports};
use ::tests::daemon::binary;
use ::tests::temp::TempDir;
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::grouped;
use crate::rounds::Effort;
use crate::stats::Median;
use crate::system::System;
use crate::table::{Row, Target};

const COUNT: usize = 1_000;
const COUNT_QUICK: usize = 50;
/// The most seconds until all have their address.
const TARGET: f64 = 15.0;
/// The longest that a round waits.
const PATIENCE: Duration = Duration::from_secs(180);

/// The name of the simulated agent's node.
const NODE: &str = "n1";

/// Refuses where there is no API server.
pub(super) fn check() -> Result<()> {
    ensure!(
        std::env::var_os("VESTIBULE_API_SERVER").is_some(),
        "workload `services` needs an API server, which is built with Go: install Go, then run `cargo xtask bench --only services`"
    );
    cluster::programs()?;
    cluster::gateway_definitions().map(drop)
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    check()?;
    let (times, count) = if effort.quick { (1, COUNT_QUICK) } else { (7, COUNT) };
    let (mut running, mut starting) = (Vec::new(), Vec::new());
    for _ in 0..times {
        running.push(Scene::new()?.created_while_it_runs(count)?);
        starting.push(Scene::new()?.there_before_it_starts(count)?);
    }
    let number = grouped(count as f64);
    let row = |what: &str, all: &[Served], note: String| {
        let median = median(all, |served| served.took);
        Row {
            workload: format!("{number} Services {what}: until all have an address, s"),
            system: System::Vestibule.name().into(),
            figure: format!("{:.1} s", median.value),
            value: Some(median),
            target: Some(Target::AtMost(TARGET)),
            failures: all.iter().map(shared).sum(),
            note,
        }
    };
    let created = median(&running, |served| served.created).value;
    let note = format!("all of one namespace, created in {created:.1} s, which is part of it");
    Ok(vec![
        row("created while the controller runs", &running, note),
        row("there before the controller starts", &starting, "from the start of its process".to_owned()),
    ])
}

fn median(all: &[Served], of: fn(&Served) -> Duration) -> Median {
    Median::of(&all.iter().map(|served| of(served).as_secs_f64()).collect::<Vec<_>>())
}

/// Returns how many have an address that another has, too.
fn shared(served: &Served) -> u64 {
    let distinct: BTreeSet<&IpAddr> = served.addresses.values().collect();
    (served.addresses.len() - distinct.len()) as u64
}

/// An API server with the rights of the plain manifests, a node's agent, and what the controller reads.
struct Scene {
    _agent: ReportingAgent,
    server: ApiServer,
    folder: TempDir,
}

impl Scene {
    fn new() -> Result<Self> {
        let server = ApiServer::with(&Options { objects: &cluster::rights()?, ..Options::default() })?;
        let folder = TempDir::new()?;
        folder.write("vestibule.json", json!({"addresses": {"ranges": [RANGE]}}).to_string())?;
        let reports = Reports::default();
        reports.up_to(NODE, u64::MAX);
        let agent = ReportingAgent::start(server.rest(), &reports, NODE);
        Ok(Self { _agent: agent, server, folder })
    }

    fn services(&self, count: usize) -> Result<Balancers> {
        Balancers::new(&self.server, count, json!({}))
    }

    fn controller(&self) -> Result<Controller> {
        Controller::start(Command::new(binary()?), &self.server, &self.folder, "controller", &[])
    }

    /// Measures from the start of the creation.
    fn created_while_it_runs(&self, count: usize) -> Result<Served> {
        let services = self.services(count)?;
        let controller = self.controller()?;
        let begun = Instant::now();
        while !controller.leads() {
            ensure!(begun.elapsed() < PATIENCE, "it does not lead; {}", log(&controller));
            std::thread::sleep(Duration::from_millis(50));
        }
        services.serve(PATIENCE).with_context(|| log(&controller))
    }

    /// Measures from the start of the controller.
    fn there_before_it_starts(&self, count: usize) -> Result<Served> {
        let services = self.services(count)?;
        let created = services.create()?;
        let begun = Instant::now();
        let controller = self.controller()?;
        let addresses = services.addresses(begun, PATIENCE).with_context(|| log(&controller))?;
        Ok(Served { created, took: begun.elapsed(), addresses })
    }
}

/// Returns the last lines of its log.
fn log(controller: &Controller) -> String {
    let log = controller.process().log().unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    format!("the controller's log: {}", lines[lines.len().saturating_sub(20)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_two_services_is_a_failure() {
        let served = |addresses: [&str; 3]| {
            let by_name = addresses.iter().enumerate();
            let addresses = by_name.map(|(n, ip)| (n.to_string(), ip.parse().unwrap())).collect();
            Served { created: Duration::ZERO, took: Duration::ZERO, addresses }
        };
        assert_eq!(shared(&served(["198.18.0.1", "198.18.0.2", "198.18.0.3"])), 0);
        assert_eq!(shared(&served(["198.18.0.1", "198.18.0.2", "198.18.0.1"])), 1);
    }

    #[test]
    #[ignore = "needs the daemon and an API server: `cargo xtask test bench`"]
    fn a_quick_run_serves_some_services_both_ways() {
        if let Err(error) = check() {
            return eprintln!("SKIPPED: {error:#}");
        }
        let effort = Effort { rounds: 2, milliseconds: 200, quick: true, flows: 0, against: None };
        let rows = measure(&effort).unwrap();
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert!(row.workload.starts_with("50 Services ") && row.failures == 0, "{row:?}");
            assert!(row.value.is_some_and(|value| value.value > 0.0), "{row:?}");
        }
    }
}
