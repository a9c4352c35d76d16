//! The workloads.

/// Load carried by all systems.
mod carried;
/// Vestibule with an increasing number of host names.
mod names;
/// Memory of idle connections.
mod memory;
/// Files with many routes: loaded for the first time, and changed.
mod routes;
/// SYNs that are answered, and segments that are dropped.
mod answered;
/// The daemon is killed.
mod killed;
/// What many connections depend on is removed.
mod removed;
/// Clients beside a flood of SYNs.
mod flooded;
/// What many flows among millions depend on is removed.
mod behind;
/// Millions of flows in the maps.
mod flows;
/// A cache line that two CPUs write.
mod lines;
/// Services that wait for their addresses.
mod services;

use anyhow::{Result, ensure};

use crate::rounds::Effort;
use crate::table::Row;

/// The name of a workload, and the function that measures it.
type Workload = (&'static str, fn(&Effort) -> Result<Vec<Row>>);

/// The number of [`WORKLOADS`], from the first, that all systems carry, including an old build.
const CARRIED: usize = 6;

/// The one that needs an API server.
const SERVICES: &str = "services";

const WORKLOADS: [Workload; 19] = [
    ("connect", carried::connect),
    ("connect-long", carried::connect_long),
    ("ask", carried::ask),
    ("latency", carried::latency),
    ("bulk-down", carried::bulk_down),
    ("bulk-up", carried::bulk_up),
    ("names", names::measure),
    ("memory", memory::measure),
    ("load", routes::load),
    ("load-million", routes::load_million),
    ("load-yaml", routes::load_yaml),
    ("change", routes::change),
    ("kill", killed::measure),
    ("remove", removed::measure),
    ("answer", answered::measure),
    ("flood", flooded::measure),
    ("flows", flows::measure),
    ("lines", lines::measure),
    (SERVICES, services::measure),
];

/// The rows of a workload, by its name.
pub(crate) type Measured = (&'static str, Vec<Row>);

/// The names of all workloads, in order.
pub(crate) fn names() -> Vec<&'static str> {
    WORKLOADS.iter().map(|(name, _)| *name).collect()
}

/// Runs all workloads, or those whose names begin with one of `only`.
pub(crate) fn run(only: &[String], effort: &Effort) -> Result<Vec<Measured>> {
    let api_server = services::check();
    let has_api_server = api_server.is_ok();
    let chosen = |name: &str| is_chosen(name, only, has_api_server);
    let workloads = if effort.against.is_some() { &WORKLOADS[..CARRIED] } else { &WORKLOADS[..] };
    let known: Vec<&str> = workloads.iter().map(|(name, _)| *name).collect();
    for wanted in only {
        ensure!(known.iter().any(|name| name.starts_with(wanted.as_str())), "{wanted} is none of {known:?}");
    }
    // Before hours of work.
    if workloads.iter().any(|(name, _)| *name == "flows" && chosen(name)) {
        flows::check_memory(effort)?;
    }
    if let Err(error) = api_server
        && effort.against.is_none()
    {
        if chosen(SERVICES) {
            return Err(error);
        }
        if only.is_empty() {
            eprintln!("{SERVICES}: SKIPPED: {error:#}");
        }
    }
    let mut all = Vec::new();
    for (name, work) in workloads.iter().filter(|(name, _)| chosen(name)) {
        let begun = std::time::Instant::now();
        let measured = work(effort)?;
        eprintln!("{name}: {:.0?}", begun.elapsed());
        print!("{}", crate::table::plain(&measured));
        all.push((*name, measured));
    }
    Ok(all)
}

/// Whether a workload is one of `only`, or `only` is empty. Who does not ask for it by name need not have an API server.
fn is_chosen(name: &str, only: &[String], has_api_server: bool) -> bool {
    match only {
        [] => name != SERVICES || has_api_server,
        only => only.iter().any(|wanted| name.starts_with(wanted.as_str())),
    }
}

/// Formats a number with commas.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0.4, 999.0, 1000.0, 1_234_567.0].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn without_an_api_server_its_workload_is_left_out_unless_it_is_asked_for() {
        let chosen = |name: &str, only: &[&str], has_api_server| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            is_chosen(name, &only, has_api_server)
        };
        assert!(chosen(SERVICES, &[], true) && !chosen(SERVICES, &[], false));
        assert!(chosen(SERVICES, &["ask", "serv"], false) && !chosen(SERVICES, &["ask"], true));
        assert!(chosen("connect-long", &[], false) && chosen("connect-long", &["connect"], false));
    }

    /// One short workload with all the parts that others use: a rig, loads, the daemon, turns, rows.
    #[test]
    #[ignore = "needs the daemon and `load`: `cargo xtask test bench`"]
    fn a_quick_run_measures_ours_beside_plain_forwarding() {
        let effort = Effort { rounds: 2, milliseconds: 200, quick: true, flows: 0, against: None };
        let rows = |effort: &Effort| run(&["ask".to_owned()], effort).unwrap().remove(0).1;
        let first = rows(&effort);
        assert_eq!(first.len(), 2);
        assert!(
            first.iter().all(|row| row.failures == 0 && row.value.is_some_and(|value| value.value > 0.0))
        );

        // The same build also as the old one: a second daemon that takes turns with the first.
        let against = Some(::tests::daemon::binary().unwrap());
        let rows = rows(&Effort { against, ..effort });
        let systems: Vec<&str> = rows.iter().map(|row| row.system.as_str()).collect();
        assert_eq!(systems, ["direct", "vestibule", "old", "new/old"]);
        assert!(rows.iter().all(|row| row.failures == 0 && row.value.is_some_and(|value| value.value > 0.0)));
    }

    #[test]
    fn an_old_build_takes_part_only_in_what_all_carry() {
        assert_eq!((WORKLOADS[0].0, WORKLOADS[CARRIED - 1].0), ("connect", "bulk-up"));
        let against = Some("/nowhere/vestibule".into());
        let effort = Effort { rounds: 2, milliseconds: 200, quick: true, flows: 0, against };
        let refused = run(&["names".to_owned()], &effort).unwrap_err().to_string();
        assert!(refused.contains("names is none of"), "{refused}");
    }
}
