//! What a client's connection takes beside a flood of SYNs from 65,536 sources: with TCX alone, and with XDP in front of it. The flood
//! arrives on another device than the client's packets.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ::tests::addresses::{BACKEND_PORT, Family, TLS_PORT, server_name};
use ::tests::config::Config;
use ::tests::daemon::Daemon;
use ::tests::hello::hello;
use ::tests::live_frames::{self, Every};
use ::tests::net::{End, Namespace, veth};
use ::tests::offload;
use ::tests::packet::{Segment, segment};
use ::tests::pinned::xdp_in_driver;
use ::tests::server::read_line;
use ::tests::stop::Stop;
use ::tests::tls;
use ::tests::topology::{CLIENT_DEVICE, Lab, Options, UPLINK};
use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use userspace::net::ethtool;

use super::grouped;
use crate::rounds::Effort;
use crate::stats::Median;
use crate::table::{Row, Target};

/// The rate of a flood, in SYNs a second.
const RATE: u32 = 300_000;
/// The part of them that must have been answered.
const REACHED: f64 = 0.95;
/// The part of the answers that must be of the hook that is measured. TCX answers the first of each eighth of a second beside XDP, too.
const OWN: f64 = 0.9;
/// How many frames XDP must send back to the client for each of its connections, where it is in front of a flood with a rate: TCX answers
/// the first SYN of each eighth of a second. Beside as many SYNs as a CPU sends, connections may be that rare.
const CLIENTS: f64 = 0.5;
/// The network of the forged sources.
const FORGED: [u8; 4] = [10, 98, 0, 0];
/// How often that many are sent at once.
const EACH: Duration = Duration::from_millis(5);
/// Frames that are sent at once without a rate.
const AT_ONCE: u32 = 20_000;
/// The balancer's device towards the forger.
const DEVICE: &str = "forger";

/// Whether XDP is in front, and the rate of the flood; `None`: as many as one CPU sends.
const FLOODS: [(bool, Option<u32>); 4] =
    [(false, Some(RATE)), (true, Some(RATE)), (false, None), (true, None)];

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>> {
    // XDP judges only checksums that the client makes itself.
    let lab = Lab::with(&Options { servers: false, offloads: false, ..Options::default() })?;
    let _echoes = lab.echo_servers(BACKEND_PORT)?;
    let forger = Namespace::new("forger")?;
    let near = End { namespace: &lab.balancer, device: DEVICE, addresses: &["10.96.0.1/24"] };
    veth(near, End { namespace: &forger, device: UPLINK, addresses: &["10.96.0.2/24"] }, 1500)?;
    // Answers go back to the forger; the daemon serves the devices of default routes.
    lab.balancer.ip("route add 10.98.0.0/16 via 10.96.0.2\nroute add default via 10.96.0.2 metric 500\n")?;
    // On the other end of a veth, answers of either hook are taken alike.
    let _ends = [Every::drops(&forger, UPLINK)?, Every::passes(&lab.client, UPLINK)?];
    let [a, b, c, d, e, f] = forger.mac(UPLINK)?;
    lab.balancer.ip(&format!(
        "neigh replace 10.96.0.2 lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} dev {DEVICE} nud permanent\n"
    ))?;
    let frame = forged(lab.vip(Family::V4, TLS_PORT))
        .ethernet(lab.balancer.mac(DEVICE)?, forger.mac(UPLINK)?)
        .bytes();
    let count = if effort.quick { 100 } else { 2_000 };
    let mut rows = Vec::new();
    for (with_xdp, rate) in FLOODS {
        let mut config = Config::lab();
        config.settings.xdp_devices = with_xdp.then(|| vec![DEVICE.to_owned(), CLIENT_DEVICE.to_owned()]);
        // Without a program of ours, the device takes these frames only if it puts segments together (GRO).
        offload::set_aggregation(&lab.balancer, DEVICE, true)?;
        let daemon = lab.vestibule(&config)?;
        for device in config.settings.xdp_devices.iter().flatten() {
            xdp_in_driver(daemon.pins(), &lab.balancer, device)?;
        }
        let (met, answered, sent) = flood(&daemon, &forger, &frame, rate, || met(&lab, count))?;
        check_hook(with_xdp, answered)?;
        let mut met = met?;
        met.check_hook(with_xdp, rate)?;
        met.answered = answered.iter().sum();
        met.sent = sent;
        rows.extend(met.rows(with_xdp, rate));
    }
    Ok(rows)
}

/// Returns the SYN that is sent from many sources: the bytes that differ are 0.
fn forged(to: SocketAddr) -> Segment {
    segment((FORGED, 40_000).into(), to).syn(0).linux_syn_options(1460, 5, 7)
}

/// What a client met.
struct Met {
    /// Seconds from `connect` until the connection was established.
    times: Vec<f64>,
    failures: BTreeMap<String, u64>,
    /// Frames that XDP sent back to it: answers to its SYNs, repeated ones included.
    by_xdp: u64,
    /// SYNs of the flood that were sent and answered each second.
    sent: f64,
    answered: f64,
}

/// Returns how many frames XDP has sent back to the client. On its device nothing else arrives.
fn sent_back(lab: &Lab) -> Result<u64> {
    let sent = lab.balancer.run(|| ethtool::sent_back(CLIENT_DEVICE));
    Ok(sent.with_context(|| format!("reading what {CLIENT_DEVICE} counts"))?.taken)
}

/// Connects again and again, each time until the backend has answered a hello.
fn met(lab: &Lab, count: u32) -> Result<Met> {
    let before = sent_back(lab)?;
    let (mut times, mut failures) = (Vec::new(), BTreeMap::<String, u64>::new());
    let vip = lab.vip(Family::V4, TLS_PORT);
    let bytes = hello().name(server_name(0)).bytes();
    for _ in 0..count {
        let begun = Instant::now();
        let connection = lab.client.run(|| tls::dial(vip));
        times.push(begun.elapsed().as_secs_f64());
        let reached = connection.map_err(anyhow::Error::from).and_then(|stream| {
            (&stream).write_all(&bytes)?;
            let name = read_line(&mut &stream)?.context("ended without an answer")?;
            ensure!(name.starts_with("tenant-a"), "answered by {name}");
            Ok(())
        });
        if let Err(error) = reached {
            *failures.entry(format!("{error:#}")).or_default() += 1;
        }
        sleep(Duration::from_millis(2));
    }
    Ok(Met { times, failures, by_xdp: sent_back(lab)? - before, sent: 0.0, answered: 0.0 })
}

/// Refuses the figures of another hook than the one that is measured, by what TCX and XDP have answered.
fn check_hook(with_xdp: bool, [by_tcx, by_xdp]: [f64; 2]) -> Result<()> {
    let own = if with_xdp { by_xdp } else { by_tcx };
    ensure!(
        own >= OWN * (by_tcx + by_xdp),
        "with XDP: {with_xdp}, but TCX answered {} and XDP {} SYNs a second",
        grouped(by_tcx),
        grouped(by_xdp)
    );
    Ok(())
}

/// Floods while `story` runs. Returns what it returns, and how many SYNs TCX and XDP answered, and how many were sent, each second.
fn flood<T: Send>(
    daemon: &Daemon,
    forger: &Namespace,
    frame: &[u8],
    rate: Option<u32>,
    story: impl FnOnce() -> T + Send,
) -> Result<(T, [f64; 2], f64)> {
    let index = forger.ifindex(UPLINK)?;
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let answered = || -> Result<[u64; 2]> {
        let counted = daemon.reasons()?;
        Ok(["SynAnswered", "XdpAnswered"].map(|reason| counted.get(reason).copied().unwrap_or(0)))
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| forger.run(|| send(index, frame, rate, &over, &sent)));
        let stop = Stop(&over);
        // Until the flood has what it can take.
        sleep(Duration::from_millis(500));
        let (before, sent_before, begun) = (answered()?, sent.load(Ordering::Relaxed), Instant::now());
        let told = story();
        let (after, seconds) = (answered()?, begun.elapsed().as_secs_f64());
        let sent = (sent.load(Ordering::Relaxed) - sent_before) as f64 / seconds;
        let each_second = [0, 1].map(|hook| (after[hook] - before[hook]) as f64 / seconds);
        drop(stop);
        sender.join().map_err(|_| anyhow::anyhow!("the flood ended early"))??;
        Ok((told, each_second, sent))
    })
}

/// Sends frames on one CPU until it is over, and counts `all`.
fn send(index: u32, frame: &[u8], rate: Option<u32>, over: &AtomicBool, all: &AtomicU64) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &one)?;
    let (begun, mut sent) = (Instant::now(), 0_u64);
    while !over.load(Ordering::Relaxed) {
        let due = rate.map(|rate| (begun.elapsed().as_secs_f64() * f64::from(rate)) as u64);
        match due {
            None => {
                live_frames::send_from_many(index, frame, AT_ONCE)?;
                all.fetch_add(AT_ONCE.into(), Ordering::Relaxed);
            }
            Some(due) if due > sent => {
                let count = (due - sent).min(AT_ONCE.into());
                live_frames::send_from_many(index, frame, count as u32)?;
                all.fetch_add(count, Ordering::Relaxed);
                sent = due;
            }
            Some(_) => {}
        }
        if due.is_some() {
            sleep(EACH);
        }
    }
    Ok(())
}

impl Met {
    /// Refuses figures of a client that another hook answered than the one that is measured.
    fn check_hook(&self, with_xdp: bool, rate: Option<u32>) -> Result<()> {
        let (all, by_xdp) = (self.times.len(), self.by_xdp);
        let is_own = match with_xdp {
            true => rate.is_none() || by_xdp as f64 > CLIENTS * all as f64,
            false => by_xdp == 0,
        };
        ensure!(
            is_own,
            "with XDP: {with_xdp}, but XDP sent {by_xdp} answers to the client, which connected {all} times"
        );
        Ok(())
    }

    /// Returns a row of the median and one of the 99th percentile, in milliseconds.
    fn rows(&self, with_xdp: bool, rate: Option<u32>) -> [Row; 2] {
        // A flood that others kept from its rate shows nothing.
        let is_flood = rate.is_none_or(|rate| self.answered > REACHED * f64::from(rate));
        let rate = rate.map_or_else(
            || "as many SYN as a CPU sends".to_owned(),
            |rate| format!("{} SYN/s", grouped(rate.into())),
        );
        let times: Vec<f64> = self.times.iter().map(|time| time * 1e3).collect();
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let late = sorted.get(sorted.len() * 99 / 100).copied().unwrap_or(f64::NAN);
        let failures: u64 = self.failures.values().sum();
        let wrong: String = self.failures.iter().map(|(what, times)| format!("; {times} x {what}")).collect();
        let row = |what: &str, value: Median, most: f64| Row {
            workload: format!("connect beside {rate}, {what}, ms"),
            system: if with_xdp { "vestibule, XDP" } else { "vestibule, TCX" }.to_owned(),
            figure: format!("{:.2} ms", value.value),
            value: Some(value),
            target: is_flood.then_some(Target::AtMost(most)),
            failures,
            note: format!(
                "from 65,536 sources, on another device than the client's; {} sent and {} answered a second; XDP sent {} answers to the client, which connected {} times; {failures} of its connections failed{wrong}",
                grouped(self.sent),
                grouped(self.answered),
                self.by_xdp,
                times.len()
            ),
        };
        let late = Median::one(late);
        [row("median", Median::of(&times), 1.0), row("99th percentile", late, 10.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_hook_answered_is_no_figure_of_this_one() {
        check_hook(true, [9.0, 270_000.0]).unwrap();
        check_hook(false, [270_000.0, 0.0]).unwrap();
        let refused = check_hook(true, [270_000.0, 9.0]).unwrap_err().to_string();
        assert_eq!(refused, "with XDP: true, but TCX answered 270,000 and XDP 9 SYNs a second");
        assert!(check_hook(false, [9.0, 270_000.0]).is_err());
    }

    #[test]
    fn a_client_that_another_hook_answered_shows_nothing_of_this_one() {
        let met = |by_xdp| Met {
            times: vec![0.0003; 200],
            failures: BTreeMap::new(),
            by_xdp,
            sent: 0.0,
            answered: 0.0,
        };
        met(190).check_hook(true, Some(RATE)).unwrap();
        let refused = met(0).check_hook(true, Some(RATE)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "with XDP: true, but XDP sent 0 answers to the client, which connected 200 times"
        );
        assert!(met(100).check_hook(true, Some(RATE)).is_err());
        // Without a rate, so few connections are made that TCX may answer each.
        met(0).check_hook(true, None).unwrap();
        for rate in [Some(RATE), None] {
            met(0).check_hook(false, rate).unwrap();
            assert!(met(1).check_hook(false, rate).is_err());
        }
    }

    #[test]
    fn the_flood_is_of_a_frame_that_can_be_sent_from_many_sources() {
        let frame = forged(([10, 97, 0, 10], 443).into()).bytes();
        live_frames::check_varied(&frame).unwrap();
    }

    #[test]
    fn one_late_connection_in_a_hundred_is_the_99th_percentile() {
        let mut times = vec![0.0003; 198];
        times.extend([0.011, 0.012]);
        let met = Met {
            times,
            failures: [("refused".to_owned(), 2)].into(),
            by_xdp: 205,
            sent: 310_000.0,
            answered: 299_000.0,
        };
        let [median, late] = met.rows(true, Some(RATE));
        assert_eq!((median.figure.as_str(), late.figure.as_str()), ("0.30 ms", "11.00 ms"));
        assert!(median.target.is_some());
        let slow = Met { answered: 200_000.0, ..met };
        assert!(slow.rows(true, Some(RATE)).iter().all(|row| row.target.is_none()), "no flood");
        assert!(slow.rows(true, None).iter().all(|row| row.target.is_some()));
        assert_eq!((median.failures, median.system.as_str()), (2, "vestibule, XDP"));
        assert_eq!(
            late.note,
            "from 65,536 sources, on another device than the client's; 310,000 sent and 299,000 answered a second; XDP sent 205 answers to the client, which connected 200 times; 2 of its connections failed; 2 x refused"
        );
    }
}
