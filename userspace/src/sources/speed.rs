//! From a file's text to map writes, in processor time. Release builds only: the promise is theirs.

use super::file::judge;
use crate::model::{Desired, NodeFacts};
use crate::plan::{Applied, Hop, Hops, plan};
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

/// A file of this many tenants with two names and three backends each. `generation` is in every tenant's addresses.
fn json(routes: u32, generation: u32) -> String {
    let mut text = String::from(
        r#"{"apiVersion":"vestibule.dev/v1alpha1","kind":"StaticConfig","listeners":[{"name":"shared","addresses":["10.97.0.10","fd97::10"],"port":443,"protocol":"TLS"}],"routes":["#,
    );
    for n in 0..routes {
        let (a, b, c) = (n >> 16, n >> 8 & 255, n & 255);
        let comma = if n == 0 { "" } else { "," };
        write!(
            text,
            r#"{comma}{{"name":"tenant-{n:06}","listeners":["shared"],"hostnames":["tenant-{n}.k8s.example.com","*.tenant-{n}.example.com"],"backends":[{{"address":"10.{a}.{b}.{c}","port":{port}}},{{"address":"11.{a}.{b}.{c}","port":{port}}},{{"address":"fd00::{a:x}:{b:x}{c:02x}","port":{port},"weight":2}}]}}"#,
            port = 6443 + generation
        )
        .unwrap();
    }
    text + "]}"
}

fn ways(desired: &Desired) -> Hops {
    let hop = |address: IpAddr| {
        let source = if address.is_ipv4() { "10.255.0.1" } else { "fd00::ffff:1" };
        (address, Hop { source: source.parse().unwrap(), ifindex: 2, mtu: 1500, is_on_link: true })
    };
    Hops { towards: desired.backend_addresses().into_iter().map(hop).collect(), ..Hops::default() }
}

/// How long this thread has run on a processor.
fn on_cpu() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// The shortest of some runs, in processor time: other work on the machine is not what is measured.
fn shortest<T>(mut work: impl FnMut() -> T) -> (Duration, T) {
    let run = |work: &mut dyn FnMut() -> T| {
        let begun = on_cpu();
        let result = work();
        (on_cpu() - begun, result)
    };
    (0..8).map(|_| run(&mut work)).min_by_key(|(elapsed, _)| *elapsed).unwrap()
}

fn measure(routes: u32, limit: Duration) {
    let (first_text, next_text) = (json(routes, 0), json(routes, 1));
    let (parse, (desired, problems)) = shortest(|| judge(&first_text, &NodeFacts::default()));
    assert!(problems.is_empty(), "{:?}", problems.first());
    let hops = ways(&desired);
    let (begin, first) = shortest(|| plan(&Applied::default(), &desired, &hops));
    let (same, unchanged) = shortest(|| plan(&first.applied, &desired, &hops));
    assert!(unchanged.changes.is_empty());
    let (other, _) = judge(&next_text, &NodeFacts::default());
    let (all, changed) = shortest(|| plan(&first.applied, &other, &hops));
    println!(
        "{routes} routes, {} MiB: parse and compile {parse:.1?}, first plan {begin:.1?} ({} writes), same again {same:.1?}, \
         every backend changed {all:.1?} ({} writes)",
        first_text.len() >> 20,
        first.changes.len(),
        changed.changes.len() + changed.later.len(),
    );
    let most = parse + begin.max(all);
    assert!(most < limit, "{most:?} for {routes} routes");
}

#[test]
fn ten_thousand_routes_are_planned_in_150_ms() {
    measure(10_000, Duration::from_millis(150));
}

#[test]
fn a_hundred_thousand_routes_are_planned_in_two_seconds() {
    measure(100_000, Duration::from_secs(2));
}
