//! A backend, a route or a right that many connections depend on is removed.

use std::time::{Duration, Instant};

use ::tests::addresses::{BACKEND_PORT, Family, TLS_PORT, server_name, tenant_name};
use ::tests::config::Config;
use ::tests::copies;
use ::tests::daemon::Daemon;
use ::tests::hello::hello;
use ::tests::topology::{Lab, Options};
use ::tests::tuple::client_tuple;
use anyhow::{Context, Result, ensure};
use common::reason::Reason;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use super::grouped;
use crate::rounds::Effort;
use crate::stats::Median;
use crate::system::System;
use crate::table::{Row, Target};

/// The connections that end.
const BEHIND: u32 = 100_000;
/// The connections of another route.
const BESIDE: u32 = 400_000;
/// The longest that a round waits for them to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is removed, the reason that its connections are counted under, and how it is removed.
type Removal = (&'static str, Reason, fn(&mut Config));

const REMOVALS: [Removal; 3] = [
    ("backend", Reason::ExpireRemoved, |config| {
        config.route_mut(tenant_name(0)).backends.retain(|backend| backend.address.is_ipv6());
    }),
    ("route", Reason::ExpireRemoved, |config| {
        config.routes.retain(|route| route.name != tenant_name(0));
        config.listeners.retain(|listener| !listener.name.starts_with(tenant_name(0)));
    }),
    ("right", Reason::ExpireRefused, |config| {
        config.route_mut(tenant_name(0)).source_ranges = Some(vec!["198.51.100.0/24".into()]);
    }),
];

/// The figures of one round.
struct Round {
    /// From the signal until the last connection is reset.
    ended: Duration,
    /// CPU time of the daemon meanwhile, with what its threads pass on to both ends.
    cpu: Duration,
    /// How long another change took meanwhile.
    beside: Duration,
    /// RSTs that were not sent.
    unsent: u64,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    REMOVALS.iter().map(|removal| row(effort, removal)).collect()
}

fn row(effort: &Effort, removal: &Removal) -> Result<Row> {
    let times = if effort.quick { 1 } else { 7 };
    let rounds = (0..times).map(|_| round(removal)).collect::<Result<Vec<Round>>>()?;
    let seconds = |of: fn(&Round) -> Duration| -> Median {
        Median::of(&rounds.iter().map(|round| of(round).as_secs_f64()).collect::<Vec<_>>())
    };
    let (ended, cpu) = (seconds(|round| round.ended), seconds(|round| round.cpu));
    let beside = seconds(|round| round.beside);
    Ok(Row {
        workload: format!("{} behind a {}, which is removed, s", grouped(BEHIND.into()), removal.0),
        system: System::Vestibule.name().into(),
        figure: format!("{:.2} s", ended.value),
        value: Some(ended),
        target: Some(Target::AtMost(1.0)),
        failures: rounds.iter().map(|round| round.unsent).sum(),
        note: format!(
            "among {} connections; {:.2} s of CPU; another change meanwhile in force after {:.0} ms",
            grouped((BEHIND + BESIDE).into()),
            cpu.value,
            beside.value * 1e3
        ),
    })
}

fn round((_, reason, remove): &Removal) -> Result<Round> {
    let lab = Lab::with(&Options { servers: false, ..Options::default() })?;
    copies::own_clients(&lab.client)?;
    let _echoes = lab.echo_servers(BACKEND_PORT)?;
    let mut config = Config::lab();
    config.settings.max_flows = Some(1_000_000);
    let daemon = lab.vestibule(&config)?;
    let pins = Pins::new(daemon.pins());
    let maps = read::open(&pins)?;
    let mut open = Vec::new();
    for (tenant, numbers) in [(0, 0..BEHIND), (1, BEHIND..BEHIND + BESIDE)] {
        let vip = lab.vip(Family::V4, TLS_PORT);
        let stream = lab.client.run(|| ::tests::tls::dial(vip))?;
        let bytes = hello().name(server_name(tenant)).bytes();
        std::io::Write::write_all(&mut &stream, &bytes)?;
        ::tests::server::read_line(&mut &stream)?;
        copies::copy(&maps, &client_tuple(stream.local_addr()?, vip), numbers)?;
        open.push(stream);
    }
    let count = |reason: Reason| -> Result<u64> {
        let all = read::reasons(&pins)?;
        Ok(all.iter().find(|(counted, _)| *counted == reason).map_or(0, |(_, count)| *count))
    };
    remove(&mut config);
    let (begun, before) = (Instant::now(), cpu_time(&daemon)?);
    daemon.reload(&config)?;
    config.route_mut(tenant_name(2)).hostnames.push("another.example.net".into());
    let beside = daemon.reload(&config)?;
    while count(*reason)? < u64::from(BEHIND) {
        ensure!(begun.elapsed() < PATIENCE, "{} of {BEHIND} ended: {}", count(*reason)?, daemon.log());
        std::thread::sleep(Duration::from_millis(2));
    }
    let (ended, cpu) = (begun.elapsed(), cpu_time(&daemon)? - before);
    Ok(Round { ended, cpu, beside, unsent: count(Reason::EmitCopyLost)? })
}

/// Returns the CPU time of a daemon, threads that have ended included.
fn cpu_time(daemon: &Daemon) -> Result<Duration> {
    let pid = daemon.pid().context("the daemon does not run")?;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("reading stat")?;
    ticks(&text).map(|ticks| Duration::from_millis(10 * ticks)).context("stat has no times")
}

/// Returns user and system time in hundredths of a second (proc(5)), which follow the name in parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_follows_the_name() {
        let stat = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 311 22 0 0 20 0 9 0 1\n";
        assert_eq!((ticks(stat), ticks("42 (cut")), (Some(333), None));
    }
}
