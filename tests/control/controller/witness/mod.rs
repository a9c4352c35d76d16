//! MetalLB's own controller as a witness: of the same pools and Services, made in the same order, it and ours give the same addresses
//! and refuse the same ones. What differs must be a rule of ours.

/// Random pools and Services.
mod cases;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::Connection;
use tests::corpus;
use tests::temp::TempDir;

use super::pools::define;
use super::scene::{Agent, SOON, Scene};
use crate::chart::rendered::template;
use crate::process::Process;
use cases::{Case, NAMESPACES};

/// How many random sets of pools and Services are compared, from [`FIRST`] on.
const SEEDS: u64 = 200;
const FIRST: u64 = 1;
/// How many of them are served by MetalLB first, then by ours.
const MIGRATED: u64 = 20;
const POOLS: &str = "/apis/metallb.io/v1beta1/namespaces/metallb-system/ipaddresspools";
/// After this time a controller does not give addresses of pools that are gone.
const FORGOTTEN: Duration = Duration::from_millis(400);
/// MetalLB's class here, and ours.
const CLASSES: [&str; 2] = ["example.com/metallb", "vestibule.dev/lb"];

/// Without ranges of the chart, which come before pools that are bound to no Service.
const READS: &str = r#"{"metallb": {"namespaces": ["metallb-system"]}}"#;

/// The addresses that a Service was given; empty: it was refused.
type Given = BTreeSet<IpAddr>;

fn services(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services")
}

/// Returns our rule by which a Service gets what MetalLB refuses it, or refuses it what MetalLB gives; `None`: there is none.
fn rule(case: &Case, at: usize, theirs: &[Given], ours: &[Given]) -> Option<&'static str> {
    let (namespace, _) = case.services[at];
    let is_of_its_namespace = |address: &IpAddr| {
        (0..at).any(|before| case.services[before].0 == namespace && ours[before].contains(address))
    };
    let has_all = theirs[at].is_empty() && ours[at].iter().any(is_of_its_namespace);
    has_all
        .then_some("a namespace shares by value what is its own, without a key: the older one has the port")
}

/// Waits for something to be found.
fn found<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        // A controller waits for a minute until it is sure that MetalLB is gone.
        assert!(begun.elapsed() < 3 * SOON, "{what}");
        std::thread::sleep(Duration::from_millis(15));
    }
}

/// Makes the case's objects for Services of this class, one after the other, and removes them. Returns what each Service got.
fn play(
    api: &mut Connection,
    case: &Case,
    class: &str,
    verdict: impl Fn(&mut Connection, &str, &Value) -> Option<Given>,
) -> Vec<Given> {
    for pool in &case.pools {
        api.create(POOLS, pool).unwrap();
    }
    // A controller that wrote how many addresses each of them has knows all of them.
    found("the pools' status", || {
        let pools = api.read(POOLS).unwrap();
        let has_status = |pool: &Value| {
            let status = &pool["status"];
            ["availableIPv4", "availableIPv6"].iter().any(|field| status[field].as_i64().unwrap_or(0) > 0)
        };
        pools["items"].as_array().unwrap().iter().all(has_status).then_some(())
    });
    let mut given = Vec::new();
    for (namespace, service) in &case.services {
        let mut service = service.clone();
        service["spec"]["loadBalancerClass"] = json!(class);
        let made = api.create(&services(namespace), &service).unwrap();
        let name = made["metadata"]["name"].as_str().unwrap();
        given.push(found(name, || verdict(api, namespace, &made)));
    }
    for (namespace, service) in &case.services {
        api.delete(&format!("{}/{}", services(namespace), service["metadata"]["name"].as_str().unwrap()))
            .unwrap();
    }
    for pool in &case.pools {
        api.delete(&format!("{POOLS}/{}", pool["metadata"]["name"].as_str().unwrap())).unwrap();
    }
    // No sign shows that a controller has forgotten the pools.
    std::thread::sleep(FORGOTTEN);
    given
}

/// The addresses in a Service's status.
fn ips(service: &Value) -> Given {
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().map_or(&[][..], Vec::as_slice);
    ingress.iter().map(|entry| entry["ip"].as_str().unwrap().parse().unwrap()).collect()
}

/// What MetalLB says of a Service: its status, or an Event.
fn of_metallb(api: &mut Connection, namespace: &str, made: &Value) -> Option<Given> {
    let name = made["metadata"]["name"].as_str()?;
    let given = ips(&api.read(&format!("{}/{name}", services(namespace))).unwrap());
    if !given.is_empty() {
        return Some(given);
    }
    let uid = made["metadata"]["uid"].as_str()?;
    let events = format!("/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.uid%3D{uid}");
    let events = api.read(&events).unwrap();
    let is_refused =
        |event: &Value| event["reason"] == "AllocationFailed" || event["reason"] == "LoadBalancerFailed";
    events["items"].as_array()?.iter().any(is_refused).then(Given::new)
}

/// What ours says of it: its Claims.
fn of_ours(api: &mut Connection, _: &str, made: &Value) -> Option<Given> {
    let claims = api.read("/apis/vestibule.dev/v1alpha1/claims").unwrap();
    let is_of_it = |claim: &&Value| claim["spec"]["origin"]["uid"] == made["metadata"]["uid"];
    let of_it: Vec<&Value> = claims["items"].as_array()?.iter().filter(is_of_it).collect();
    let ports = made["spec"]["ports"].as_array()?.len();
    (of_it.len() == ports).then(|| {
        let grants = of_it.iter().flat_map(|claim| claim["spec"]["grants"].as_array().into_iter().flatten());
        grants.map(|grant| grant["address"].as_str().unwrap().parse().unwrap()).collect()
    })
}

/// An API server with MetalLB's definitions and the namespaces; `None`, and a line that says so: there are none.
fn scene() -> Option<Scene> {
    let Some(folder) = corpus::folder() else {
        eprintln!(
            "SKIPPED: no definitions of MetalLB; set VESTIBULE_FIXTURES to the folder that holds crds/"
        );
        return None;
    };
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    let namespaces = NAMESPACES.iter().map(|(name, heat)| (*name, json!({ "heat": heat })));
    for (name, labels) in namespaces.chain([("metallb-system", json!({}))]) {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        kubectl.apply(&namespace.to_string()).unwrap();
    }
    for file in fs::read_dir(folder.join("crds/metallb")).unwrap() {
        let path = file.unwrap().path();
        if let Some(kind) = path.file_stem().and_then(|stem| stem.to_str()?.strip_prefix("metallb.io_")) {
            define(kubectl, &format!("{kind}.metallb.io"), &fs::read_to_string(&path).unwrap());
        }
    }
    Some(scene)
}

/// Starts MetalLB's controller.
fn metallb(scene: &Scene, logs: &TempDir, flags: &[&str]) -> Process {
    let mut command = Command::new(tests::cluster::metallb().unwrap());
    command.args(["--namespace=metallb-system", "--webhook-mode=disabled", "--disable-cert-rotation"]);
    command.arg("--port=0").args(flags);
    Process::start(command, logs, "metallb", scene.kubectl().kubeconfig())
}

#[test]
#[ignore = "runs for minutes: `cargo xtask test witness`"]
fn metallb_gives_the_same_addresses() {
    let Some(scene) = scene() else { return };
    let kubectl = scene.kubectl();
    let first = std::env::var("VESTIBULE_SEED").map_or(FIRST, |seed| seed.parse().unwrap());
    let seeds = std::env::var("VESTIBULE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let cases: Vec<Case> = (first..first + seeds).map(|seed| Case::of(seed, 0)).collect();
    let mut api = scene.server.rest().connect().unwrap();

    let logs = TempDir::new().unwrap();
    let theirs = metallb(&scene, &logs, &[&format!("--lb-class={}", CLASSES[0])]);
    let begun = Instant::now();
    let of_theirs: Vec<Vec<Given>> =
        cases.iter().map(|case| play(&mut api, case, CLASSES[0], of_metallb)).collect();
    eprintln!("MetalLB: {seeds} seeds in {:?}", begun.elapsed());
    drop(theirs);

    let rights = ["--set=metallb.namespaces={metallb-system}", "--show-only=templates/rbac.yaml"];
    kubectl.apply(&template(&rights).unwrap()).unwrap();
    scene.configure(READS);
    let _ours = scene.controller("ours");
    let begun = Instant::now();
    let of_us: Vec<Vec<Given>> = cases.iter().map(|case| play(&mut api, case, CLASSES[1], of_ours)).collect();
    eprintln!("ours: {seeds} seeds in {:?}", begun.elapsed());

    let (mut differences, mut given, mut refused) = (Vec::new(), 0, 0);
    let mut by_rule = BTreeMap::new();
    for (number, case) in cases.iter().enumerate() {
        let (theirs, ours) = (&of_theirs[number], &of_us[number]);
        given += theirs.iter().filter(|given| !given.is_empty()).count();
        refused += theirs.iter().filter(|given| given.is_empty()).count();
        // What follows the first difference follows from it.
        if let Some(at) = theirs.iter().zip(ours).position(|(theirs, ours)| theirs != ours) {
            if let Some(rule) = rule(case, at, theirs, ours) {
                *by_rule.entry(rule).or_insert(0) += 1;
                continue;
            }
            differences.push(format!(
                "seed {}, Service {at}: MetalLB {:?}, ours {:?}\n  pools: {}\n  before: {:?}\n  it: {}",
                first + number as u64,
                theirs[at],
                ours[at],
                case.pools
                    .iter()
                    .map(|pool| format!("\n    {} {}", pool["metadata"]["name"], pool["spec"]))
                    .collect::<String>(),
                case.services[..at]
                    .iter()
                    .zip(theirs)
                    .map(|(service, given)| format!("{}: {given:?}", service.1))
                    .collect::<Vec<_>>(),
                case.services[at].1,
            ));
        }
    }
    eprintln!("{given} Services with addresses, {refused} refused; differences by rule: {by_rule:?}");
    assert!(given > seeds as usize && refused > seeds as usize / 4, "the cases are of both kinds");
    assert!(differences.is_empty(), "{} of {seeds}:\n{}", differences.len(), differences.join("\n"));
}

/// MetalLB goes, and ours comes: what MetalLB gave, it serves at the same addresses, also what namespaces share.
#[test]
#[ignore = "runs for minutes: `cargo xtask test witness`"]
fn every_service_of_metallb_keeps_its_addresses() {
    let Some(scene) = scene() else { return };
    let kubectl = scene.kubectl();
    let mut api = scene.server.rest().connect().unwrap();
    let logs = TempDir::new().unwrap();
    let theirs = metallb(&scene, &logs, &[]);
    let mut given = Vec::new();
    for seed in FIRST..FIRST + MIGRATED {
        let mut case = Case::of(seed, 4 * seed as usize);
        for pool in &mut case.pools {
            // Where MetalLB lets namespaces share, it asks no pool.
            pool["metadata"]["annotations"] = json!({});
            api.create(POOLS, pool).unwrap();
        }
        for (namespace, service) in &case.services {
            let made = api.create(&services(namespace), service).unwrap();
            let got = found("what MetalLB says", || of_metallb(&mut api, namespace, &made));
            given.push((*namespace, made["metadata"]["name"].as_str().unwrap().to_owned(), got));
        }
    }
    drop(theirs);
    // Those that it refused may have got one of another pool since.
    for (namespace, name, got) in &mut given {
        *got = ips(&api.read(&format!("{}/{name}", services(namespace))).unwrap());
    }
    given.retain(|(.., got)| !got.is_empty());
    assert!(given.len() > 2 * MIGRATED as usize, "{} Services have addresses", given.len());

    let values = ["--set=metallb.namespaces={metallb-system}", "--set=defaultLoadBalancerClass=true"];
    let rights = [&values[..], &["--show-only=templates/rbac.yaml"]].concat();
    kubectl.apply(&template(&rights).unwrap()).unwrap();
    scene.configure(r#"{"metallb": {"namespaces": ["metallb-system"]}, "defaultLoadBalancerClass": true}"#);
    let _ours = scene.controller("ours");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    let begun = Instant::now();
    for (namespace, name, got) in &given {
        found(&format!("{namespace}/{name} is served at {got:?}"), || {
            let service = api.read(&format!("{}/{name}", services(namespace))).unwrap();
            let now = ips(&service);
            assert!(now.is_empty() || now == *got, "{namespace}/{name} had {got:?}, and has {now:?}");
            let ingress = service["status"]["loadBalancer"]["ingress"].as_array()?;
            (now == *got && ingress.iter().all(|entry| entry["ipMode"] == "Proxy")).then_some(())
        });
    }
    eprintln!("{} Services keep their addresses, served after {:?}", given.len(), begun.elapsed());
}
