use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::daemon::binary;
use tests::server::{Server, Speech};
use tests::skip_without_root;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use super::scene::{CONFIG, Scene, until};
use crate::process::{cpu_secs, of_files_kib, resident_kib};

const ROUTES: usize = 10_000;
/// The number of changes, each of one slice, and their rate.
const CHANGES: usize = 1500;
const CHANGES_PER_SEC: u32 = 100;
/// The number of changes in the second run, in which every backend is probed.
const PROBED_CHANGES: usize = 600;
/// The number of parts in which the changes are judged.
const WINDOWS: usize = 3;

/// The limit until the controller has written all Claims.
const WRITTEN: Duration = Duration::from_secs(180);
/// The limit from a start to everything in the maps.
const COLD: Duration = Duration::from_secs(10);
/// The limit from the answered write of a slice to its map entry, for 99 of 100 changes, in the best of
/// [`WINDOWS`]: other work on the machine delays some of them.
const P99: Duration = Duration::from_millis(100);
/// Memory is measured after this pause: a turn's working memory is given back a second after the last one.
const REST: Duration = Duration::from_secs(5);
/// How often it is measured: what is needed for a moment is not counted.
const RESTS: usize = 3;
/// The limit for the agent's resident memory, its program included, KiB.
const MEMORY_KIB: u64 = 42 * 1024;

/// Returns a backend's address. Each tenant has one, and another one after its change.
fn backend(number: usize) -> String {
    format!("10.99.{}.{}", number / 250, number % 250 + 2)
}

fn name(number: usize) -> String {
    format!("t{number:05}")
}

#[test]
fn ten_thousand_routes_start_quickly_and_follow_each_change() {
    skip_without_root!();
    let mut scene = Scene::alone();
    let idle = {
        let agent = scene.agent("idle");
        until("it is ready", &[&agent], || agent.is_ready());
        // As with routes: what loading the programs needed for a moment is given back.
        std::thread::sleep(REST);
        let idle = resident_kib(agent.pid());
        agent.end();
        assert!(scene.vestibule().arg("detach").status().unwrap().success());
        idle
    };
    scene.tenants(ROUTES, name, backend);
    until_settled(&scene, "");
    let begun = Instant::now();
    let agent = scene.agent("many");
    let pins = Pins::new(scene.pins.path());
    let count = || read::open(&pins).ok().and_then(|maps| maps.backends.count().ok()).unwrap_or(0);
    until("all routes are in the maps", &[&agent], || count() == ROUTES as u64);
    let cold = begun.elapsed();
    until("it is ready", &[&agent], || agent.is_ready());
    let untouched = |agent: &super::scene::Agent| {
        ["ROUTES_EXACT", "LISTENERS", "ADDRESSES", "LABELS"]
            .map(|map| agent.metric(&format!("vestibule_map_writes_total{{map=\"{map}\"}}")).unwrap_or(0.0))
    };
    // What it wrote after its first load is counted a moment after clients find it.
    let mut before = untouched(&agent);
    until("its writes are counted", &[&agent], || {
        std::thread::sleep(Duration::from_secs(1));
        untouched(&agent) == std::mem::replace(&mut before, untouched(&agent))
    });
    let turns = agent.metric("vestibule_compile_seconds_count").unwrap_or(0.0);
    let worked = (cpu_secs(agent.pid()), turns);
    let (p99, half) = judged(&mut follow(&scene, &pins, 0..CHANGES), CHANGES, &agent);
    let mean = |what: &str| {
        let of = |part| agent.metric(&format!("vestibule_{what}_seconds_{part}")).unwrap_or(0.0);
        Duration::from_secs_f64(of("sum") / of("count").max(1.0))
    };
    eprintln!("mean turn: compile {:?}, apply {:?}", mean("compile"), mean("apply"));
    let turns = agent.metric("vestibule_compile_seconds_count").unwrap_or(0.0);
    let work = Duration::from_secs_f64((cpu_secs(agent.pid()) - worked.0) / (turns - worked.1).max(1.0));
    eprintln!("{} turns, CPU time of each {work:?}", turns - worked.1);
    // The state may be saved at any of these moments, which takes memory until it is.
    let rests = (0..RESTS).map(|_| {
        std::thread::sleep(REST);
        (resident_kib(agent.pid()), of_files_kib(agent.pid()))
    });
    let (memory, of_files) = rests.min().unwrap();
    eprintln!(
        "{ROUTES} routes: cold start {cold:?}, a change {half:?} (p99 {p99:?}), {memory} KiB, {of_files} KiB of it the program's file and \
         mapped maps; without routes {idle} KiB"
    );
    assert_eq!(untouched(&agent), before, "an endpoint touches no name, listener, address or label");
    // The limits apply to release builds, not to debug builds.
    if binary().unwrap().ancestors().any(|folder| folder.ends_with("release")) {
        assert!(cold <= COLD, "cold start: {cold:?}");
        assert!(p99 <= P99, "a change: {p99:?}");
        assert!(memory <= MEMORY_KIB, "memory: {memory} KiB");
    }
    agent.end();
    probed(&mut scene, &pins);
}

/// Waits until as many Claims as there are routes contain this text.
fn until_settled(scene: &Scene, text: &str) {
    let mut api = scene.server.rest().connect().unwrap();
    let begun = Instant::now();
    loop {
        let claims = api.read("/apis/vestibule.dev/v1alpha1/claims").unwrap();
        let holds = |claim: &&serde_json::Value| claim.to_string().contains(text);
        // One more is the Gateway's, and one says that they are all.
        let of_routes = claims["items"].as_array().unwrap().iter().filter(holds).count().saturating_sub(2);
        if of_routes >= ROUTES - 2 {
            eprintln!("{ROUTES} Claims are written after {:?}", begun.elapsed());
            return;
        }
        assert!(begun.elapsed() < WRITTEN, "{of_routes} of {ROUTES} Claims are written");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Returns p99 and median of the best part.
fn judged(times: &mut [Duration], changes: usize, agent: &super::scene::Agent) -> (Duration, Duration) {
    assert_eq!(times.len(), changes, "{}", agent.log());
    let windows = times.chunks_mut(changes / WINDOWS).map(|window| {
        window.sort();
        (window[window.len() * 99 / 100], window[window.len() / 2])
    });
    let mut windows: Vec<_> = windows.collect();
    eprintln!("p99 and median of each part: {windows:?}");
    windows.sort();
    windows[0]
}

/// Runs the same changes while every backend is probed once in two minutes.
fn probed(scene: &mut Scene, pins: &Pins) {
    let everywhere = "0.0.0.0:6443".parse().unwrap();
    let backends = Server::start(&scene.outside, everywhere, "backends", Speech::Plain).unwrap();
    let probe = r#""probe": {"enabled": true, "interval": "2m"}, "settings""#;
    scene.folder.write("vestibule.json", CONFIG.replace(r#""settings""#, probe)).unwrap();
    scene.settle();
    let scene = &*scene;
    until_settled(scene, "\"probe\"");
    let agent = scene.agent("probed");
    until("it writes", &[&agent], || agent.metric("vestibule_writer") == Some(1.0));
    until("backends are probed", &[&agent], || backends.accepted() > 100);
    let (p99, half) =
        judged(&mut follow(scene, pins, CHANGES..CHANGES + PROBED_CHANGES), PROBED_CHANGES, &agent);
    eprintln!("probed: a change {half:?} (p99 {p99:?}), {} probes", backends.accepted());
    if binary().unwrap().ancestors().any(|folder| folder.ends_with("release")) {
        assert!(p99 <= P99, "a change while backends are probed: {p99:?}");
    }
}

/// Changes one slice after the other; returns the times until their backends were in the map.
fn follow(scene: &Scene, pins: &Pins, numbers: Range<usize>) -> Vec<Duration> {
    let maps = read::open(pins).unwrap();
    let changes = numbers.len();
    let awaited: Mutex<BTreeMap<IpAddr, Instant>> = Mutex::default();
    std::thread::scope(|threads| {
        let mut api = scene.server.rest().connect().unwrap();
        let told = &awaited;
        threads.spawn(move || {
            let begun = Instant::now();
            for (turn, number) in numbers.enumerate() {
                let due = begun + Duration::from_secs(1) / CHANGES_PER_SEC * turn as u32;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let address = backend(ROUTES + number);
                let endpoints =
                    json!({"endpoints": [{"addresses": [address], "conditions": {"ready": true}}]});
                let path = "/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices";
                api.merge(&format!("{path}/{}", name(number * 7 % ROUTES)), &endpoints).unwrap();
                told.lock().unwrap().insert(address.parse().unwrap(), Instant::now());
            }
        });
        let (mut times, begun) = (Vec::new(), Instant::now());
        while times.len() < changes && begun.elapsed() < Duration::from_secs(120) {
            let mut there = Vec::new();
            maps.backends.walk(|_, backend| there.push(IpAddr::from(backend.address))).unwrap();
            let now = Instant::now();
            let mut awaited = awaited.lock().unwrap();
            times.extend(
                there
                    .iter()
                    .filter_map(|address| awaited.remove(address))
                    .map(|told| now.saturating_duration_since(told)),
            );
            drop(awaited);
            std::thread::sleep(Duration::from_millis(2));
        }
        times
    })
}
