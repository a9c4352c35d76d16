//! Removes what many flows among millions depend on: a backend, a route, and a backend that sees its clients' own addresses.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ::tests::daemon::Daemon;
use ::tests::tls;
use ::tests::tuple::client_tuple;
use ::tests::written_flows::{self, Draw};
use anyhow::{Context, Result, ensure};
use common::maps::backend::{DELIVERY_DNAT, DELIVERY_NAT};
use common::maps::flow::FLOW_ESTABLISHED;
use common::reason::Reason;
use load::content::{MESSAGE, host_name};
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use super::grouped;
use crate::greeting;
use crate::rig::{SERVERS, VIP};
use crate::rounds::Effort;
use crate::stats::Median;
use crate::system::{Bench, System};
use crate::table::{Row, Target};

/// Servers that no route leads to at first.
pub(super) const SPARE: u32 = 3;
/// How often each removal is measured.
const TIMES: u32 = 3;
/// The longest that a removal may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this, the second look at what was removed, and the walk that may be going on, are over.
const REST: Duration = Duration::from_secs(12);
const REST_QUICK: Duration = Duration::from_secs(3);

/// The flows that are written for a removal.
pub(super) struct Writing {
    pub(super) draw: Draw,
    /// The number of the first one that is not written.
    pub(super) next: u32,
    /// How many are written for each.
    pub(super) each: u32,
}

/// Returns the file with another port in place of the first that is this one.
fn with_port(text: &str, from: u16, to: u16) -> String {
    text.replacen(&format!("\"port\":{from}"), &format!("\"port\":{to}"), 1)
}

/// Returns the file with one more route, whose backend sees its clients' own addresses.
fn with_seeing(text: &str, tenants: u32, port: u16) -> String {
    let (name, address) = (host_name(tenants), SERVERS.ip());
    let route = format!(
        ",\n{{\"name\":\"seeing\",\"listeners\":[\"shared\"],\"hostnames\":[\"{name}\"],\"externalTrafficPolicy\":\"Local\",\
         \"backends\":[{{\"address\":\"{address}\",\"port\":{port},\"weight\":1}}]}}\n]}}\n"
    );
    text.strip_suffix("\n]}\n").unwrap_or(text).to_owned() + &route
}

/// What is removed.
#[derive(Clone)]
pub(super) struct Removal {
    what: &'static str,
    /// The port of its backend, which no other has.
    port: u16,
    /// The number in the name of the route that it is about.
    tenant: u32,
    /// How its backend is reached.
    delivery: u8,
    /// Its flows are written.
    is_filled: bool,
    /// The file with it and the one without.
    with: String,
    without: String,
    target: Option<Target>,
}

/// Returns what is removed, one after the other from the file for this many tenants, each with a server. There are [`SPARE`] more.
pub(super) fn removals(text: &str, tenants: u32) -> Result<[Removal; 3]> {
    let [first, spare] = [SERVERS.port(), SERVERS.port() + tenants as u16];
    let moved = with_port(text, first, spare);
    let without = without_route(&moved)?;
    let seeing = [1, 2].map(|number| with_seeing(&without, tenants, spare + number));
    let [seeing, seeing_moved] = seeing;
    let backend = Removal {
        what: "backend",
        port: first,
        tenant: 0,
        delivery: DELIVERY_NAT,
        is_filled: true,
        with: text.to_owned(),
        without: moved.clone(),
        target: Some(Target::AtMost(1.0)),
    };
    let route =
        Removal { what: "route", port: first + 1, tenant: 1, with: moved, without, ..backend.clone() };
    let what = "backend that sees its clients (`dnat`)";
    let (delivery, is_filled) = (DELIVERY_DNAT, false);
    let (port, tenant, with, without) = (spare + 1, tenants, seeing, seeing_moved);
    let seeing = Removal { what, port, tenant, delivery, is_filled, with, without, ..backend.clone() };
    Ok([backend, route, seeing])
}

/// What a removal took.
struct Removed {
    /// Its flows, those of open connections included.
    flows: u32,
    /// Seconds until all of them had ended.
    ended: f64,
    /// Seconds until the file was in force.
    reloaded: f64,
    /// Seconds of CPU of the daemon's threads that still run.
    cpu: f64,
    /// RSTs that were not sent.
    unsent: u64,
    /// What was found by keys, as the daemon logs it.
    by_keys: Option<String>,
}

impl Removal {
    /// Measures it among this many flows.
    pub(super) fn row(
        &self,
        bench: &mut Bench,
        flows: u32,
        effort: &Effort,
        writing: &mut Writing,
    ) -> Result<Row> {
        let mut all: Vec<Removed> = Vec::new();
        let (times, rest) = if effort.quick { (1, REST_QUICK) } else { (TIMES, REST) };
        for time in 0..times {
            let _open = match time == 0 && self.is_filled {
                true => None,
                // With its open connection, as many as the first time.
                false => Some(self.put_back(
                    bench,
                    writing,
                    all.first().map_or(writing.each, |one| one.flows - 1),
                )?),
            };
            all.push(self.removed(daemon(bench)?, rest)?);
        }
        let counts = || all.iter().map(|one| one.flows);
        let (least, most) = (counts().min().unwrap_or_default(), counts().max().unwrap_or_default());
        ensure!(
            least >= writing.each,
            "only {least} of {} flows were behind the {}",
            writing.each,
            self.what
        );
        let flows_each = match least == most {
            true => grouped(most.into()),
            false => format!("{} to {}", grouped(least.into()), grouped(most.into())),
        };
        let median = |of: fn(&Removed) -> f64| Median::of(&all.iter().map(of).collect::<Vec<_>>());
        let what = format!("{} behind a {}, which is removed, s", grouped(writing.each.into()), self.what);
        let mut row = row(flows, &what, median(|one| one.ended), "s", self.target);
        row.failures = all.iter().map(|one| one.unsent).sum();
        row.note = format!(
            "{} times, each of {flows_each} flows with those of open connections; the file was in force after {:.0} ms; {:.2} s of CPU of the daemon's threads that still run",
            all.len(),
            median(|one| one.reloaded).value * 1e3,
            median(|one| one.cpu).value,
        );
        if let Some(by_keys) = all.last().and_then(|one| one.by_keys.as_deref()) {
            row.note += &format!("; found by keys: {by_keys}");
        }
        Ok(row)
    }

    /// Brings back what was removed, opens a connection to it, and writes this many flows as copies of that.
    fn put_back(&self, bench: &mut Bench, writing: &mut Writing, count: u32) -> Result<TcpStream> {
        let daemon = daemon(bench)?;
        daemon.reload_text(&self.with)?;
        let maps = read::open(&Pins::new(daemon.pins()))?;
        let mut open = bench.rig.client.run(|| tls::dial(VIP.into())).context("connecting")?;
        open.write_all(greeting::usual().of(self.tenant))?;
        open.read_exact(&mut [0; MESSAGE]).context("reading the server's answer")?;
        let of = client_tuple(open.local_addr()?, VIP.into());
        let numbers = writing.next..writing.next + count;
        writing.next = numbers.end;
        let delivery = written_flows::write_behind(&maps, writing.draw, &of, numbers)?;
        ensure!(delivery == self.delivery, "the {} has delivery {delivery}", self.what);
        Ok(open)
    }

    /// Removes it, and waits until all flows have ended that it had.
    fn removed(&self, daemon: &Daemon, rest: Duration) -> Result<Removed> {
        let pins = Pins::new(daemon.pins());
        let flows = self.flows(&pins)?;
        let count = |reason: Reason| -> Result<u64> {
            let all = read::reasons(&pins)?;
            Ok(all.iter().find(|(counted, _)| *counted == reason).map_or(0, |(_, count)| *count))
        };
        let logged = daemon.whole_log().len();
        let (before, unsent) = (count(Reason::ExpireRemoved)?, count(Reason::EmitCopyLost)?);
        let (begun, used) = (Instant::now(), daemon.cpu_time()?);
        let reloaded = daemon.reload_text(&self.without)?.as_secs_f64();
        while count(Reason::ExpireRemoved)? - before < u64::from(flows) {
            ensure!(begun.elapsed() < PATIENCE, "not all of {flows} flows ended: {}", daemon.log());
            sleep(Duration::from_millis(2));
        }
        let ended = begun.elapsed().as_secs_f64();
        let unsent = count(Reason::EmitCopyLost)? - unsent;
        let cpu = daemon.cpu_time()?.saturating_sub(used).as_secs_f64();
        let left = self.flows(&pins)?;
        ensure!(left == 0, "{left} of {flows} flows are open behind the {}, which was removed", self.what);
        sleep(rest);
        let log = daemon.whole_log();
        let by_keys = |line: &str| Some(line.split_once("ended before the walk: removal ")?.1.to_owned());
        let by_keys = log.get(logged..).and_then(|log| log.lines().rev().find_map(by_keys));
        Ok(Removed { flows, ended, reloaded, cpu, unsent, by_keys })
    }

    /// Counts the flows of open connections to its backend.
    fn flows(&self, pins: &Pins) -> Result<u32> {
        let mut count = 0;
        read::open(pins)?.flows.walk(|_, flow| {
            let is_its = flow.nat.backend_port.number() == self.port;
            count += u32::from(is_its && flow.connection.state == FLOW_ESTABLISHED);
        })?;
        Ok(count)
    }
}

fn daemon(bench: &mut Bench) -> Result<&mut Daemon> {
    bench.daemon().context("the system is ours")
}

/// Returns a row about this many flows.
pub(super) fn row(flows: u32, what: &str, value: Median, unit: &str, target: Option<Target>) -> Row {
    let figure = format!("{:.3} {unit}", value.value);
    let (workload, system) =
        (format!("{} flows: {what}", grouped(flows.into())), System::Vestibule.name().into());
    Row { workload, system, figure, value: Some(value), target, failures: 0, note: String::new() }
}

/// Returns the file without its second route.
fn without_route(text: &str) -> Result<String> {
    let at = |number: u32| text.find(&format!(",\n{{\"name\":\"tenant-{number}\""));
    let (begin, end) = at(1).zip(at(2)).context("the file has no such routes")?;
    Ok(format!("{}{}", &text[..begin], &text[end..]))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::rig::WIRE;
    use crate::system::vestibule::{self, Format};

    const TENANTS: u32 = 1_000;

    fn text() -> String {
        vestibule::text(TENANTS, TENANTS, Format::Json, None)
    }

    #[test]
    fn a_route_and_a_backend_are_taken_out_of_the_file() {
        let whole = text();
        let without = without_route(&whole).unwrap();
        let names = |text: &str| -> Vec<String> {
            let file: serde_json::Value = serde_json::from_str(text).unwrap();
            let routes = file["routes"].as_array().unwrap();
            routes.iter().map(|route| route["name"].as_str().unwrap().to_owned()).collect()
        };
        let (whole, without) = (names(&whole), names(&without));
        assert_eq!(whole.len(), TENANTS as usize);
        assert_eq!(without, whole.into_iter().filter(|name| name != "tenant-1").collect::<Vec<_>>());
    }

    #[test]
    fn each_removal_changes_one_route_of_the_file() {
        let file = |text: &str| -> Vec<serde_json::Value> {
            let file: serde_json::Value = serde_json::from_str(text).unwrap();
            file["routes"].as_array().unwrap().clone()
        };
        let all = removals(&text(), TENANTS).unwrap();
        for removal in &all {
            let (with, without) = (file(&removal.with), file(&removal.without));
            let gone: Vec<_> = with.iter().filter(|route| !without.contains(route)).collect();
            let [gone] = gone[..] else { panic!("{}: {gone:?}", removal.what) };
            assert_eq!(gone["hostnames"][0], host_name(removal.tenant), "{}", removal.what);
            let is_local = gone.get("externalTrafficPolicy").is_some_and(|policy| policy == "Local");
            assert_eq!(is_local, removal.delivery == DELIVERY_DNAT);
            assert_eq!(gone["backends"][0]["port"], removal.port, "its flows are found by the port");
            // No two routes lead to one server.
            for routes in [&with, &without] {
                let ports: HashSet<u64> =
                    routes.iter().map(|route| route["backends"][0]["port"].as_u64().unwrap()).collect();
                assert_eq!(ports.len(), routes.len(), "{}", removal.what);
                let most = u64::from(SERVERS.port()) + u64::from(TENANTS + SPARE);
                assert!(ports.iter().all(|port| *port < most), "there is a server at each");
            }
        }
        // One after the other.
        for two in all.windows(2) {
            assert!(file(&two[1].with).starts_with(&file(&two[0].without)));
        }
    }

    /// Of a few flows among few: that they are written, found and ended.
    #[test]
    #[ignore = "needs the daemon and `load`: `cargo xtask test bench`"]
    fn flows_end_when_what_they_depend_on_is_removed() {
        let tenants = 4;
        let file = vestibule::text(tenants, tenants, Format::Json, None);
        let mut bench = Bench::with_text(WIRE, tenants, tenants + SPARE, &file).unwrap();
        ::tests::copies::own_clients(&bench.rig.client).unwrap();
        let effort = Effort { rounds: 1, milliseconds: 0, quick: true, flows: 0, against: None };
        let mut writing = Writing { draw: Draw::new(7), next: 0, each: 100 };
        for removal in removals(&file, tenants).unwrap() {
            let removal = Removal { is_filled: false, ..removal };
            let row = removal.row(&mut bench, 300, &effort, &mut writing).unwrap();
            assert!(row.workload.starts_with("300 flows: 100 behind a "), "{}", row.workload);
            assert!(row.note.starts_with("1 times, each of 101 flows "), "{}", row.note);
        }
        assert_eq!(writing.next, 300);
    }
}
