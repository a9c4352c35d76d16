use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::balancers::{Balancers, RANGE, SERVICES};

use super::scene::{Agent, SOON, Scene, balancer_of};
use crate::counted::{Audit, Counts, WRITES};
use crate::process::Controller;

const COUNT: usize = 1_000;
/// What MetalLB's first releases wrote: it is removed by the write that has the address.
const NOTED: &str = "metallb.universe.tf/ip-allocated-from-pool";
/// A controller that has written nothing for this long will write nothing: a write that failed waits for five seconds.
const QUIET: Duration = Duration::from_secs(6);
const REST: Duration = Duration::from_secs(12);
/// Events in a burst, and a second: those of a thousand Services take three minutes.
const EVENTS: [usize; 2] = [50, 5];

#[test]
fn a_thousand_services_cost_three_writes_each_and_nothing_at_rest() {
    let scene = Scene::new();
    scene.configure(&json!({"addresses": {"ranges": [RANGE]}}).to_string());
    let mut audit = Audit::new(scene.server.audit_log());
    let begun = Instant::now();
    let first = scene.controller("first");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    wait_for_lead(&first);
    let services = Balancers::new(&scene.server, COUNT, json!({NOTED: "former"})).unwrap();
    let served = services.serve(2 * SOON).unwrap();
    let distinct: BTreeSet<IpAddr> = served.addresses.values().copied().collect();
    assert_eq!((served.addresses.len(), distinct.len()), (COUNT, COUNT));
    let mut api = scene.server.rest().connect().unwrap();
    let listed = api.read(SERVICES).unwrap();
    let notes = |service: &Value| service["metadata"]["annotations"][NOTED].is_string();
    assert_eq!(listed["items"].as_array().unwrap().iter().filter(|one| notes(one)).count(), 0);

    wait_until_only_events_are_written(&mut audit);
    let mark = audit.read().clone();
    let mut written = writes(&mark);
    eprintln!(
        "{COUNT} Services served after {:?}, created in {:?}: {written:?}",
        served.took, served.created
    );
    let [burst, a_second] = EVENTS;
    let events = written.remove("events").unwrap();
    assert!(events <= burst + a_second * (begun.elapsed().as_secs() as usize + 1), "{events} Events");
    // What its condition waits for, unless nodes hold its Claim by then, and the address with the annotation.
    let statuses = written.remove("services/status").unwrap();
    assert!((COUNT..=2 * COUNT).contains(&statuses), "{statuses} writes of statuses");
    // Once, and again when the node has its Lease.
    assert!(written.remove("announcements").is_some_and(|announcements| announcements <= 2));
    // One Claim each, and the mark of all.
    assert_eq!(written, [("claims", COUNT + 1), ("secrets", 1)].into());

    // The next leader finds all as it is to be.
    first.end();
    let next = scene.controller("next");
    wait_for_lead(&next);
    let mark = audit.read().clone();
    std::thread::sleep(REST);
    let counts = audit.read().since(&mark);
    assert_eq!(writes(&counts), BTreeMap::new(), "at rest");
    assert!(counts.of("controller", &WRITES, "leases") > 0, "the leader renews its Lease");
    // It was at work: one Service more costs its own writes.
    let mark = audit.read().clone();
    api.create(SERVICES, &balancer_of("many", "late", Some("vestibule.dev/lb"), 443)).unwrap();
    let has_address = |service: &Value| service["status"]["loadBalancer"]["ingress"][0]["ip"].is_string();
    scene.kubectl().wait_for("an address", &["-n", "many", "service", "late"], SOON, has_address).unwrap();
    let counts = audit.read().since(&mark);
    let mut written = writes(&counts);
    assert!(written.remove("services/status").is_some_and(|statuses| statuses <= 2));
    assert!(written.remove("events").is_none_or(|events| events == 1));
    assert_eq!(written, [("claims", 1)].into());
    assert_eq!(scene.refusals(), [""; 0]);
}

fn wait_for_lead(controller: &Controller) {
    controller.wait_for_answer("/readyz", |answer| answer.contains("\nleads"));
}

/// Returns what our accounts wrote except Leases, by kind.
fn writes(counts: &Counts) -> BTreeMap<&str, usize> {
    let mut writes = BTreeMap::new();
    for ((_, verb, what), count) in counts.requests() {
        if WRITES.contains(&verb.as_str()) && what != "leases" {
            *writes.entry(what.as_str()).or_default() += count;
        }
    }
    writes
}

fn wait_until_only_events_are_written(audit: &mut Audit) {
    let begun = Instant::now();
    let mut read = || {
        let counts = audit.read();
        counts.writes() - counts.of("controller", &WRITES, "events")
    };
    let (mut before, mut since) = (read(), Instant::now());
    while since.elapsed() < QUIET {
        std::thread::sleep(Duration::from_millis(250));
        let now = read();
        if now != before {
            (before, since) = (now, Instant::now());
        }
        assert!(begun.elapsed() < SOON, "something is written all the time");
    }
}
