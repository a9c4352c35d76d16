//! Ten agents and two thousand routes: what a change costs the API server. What is counted is gated; times and memory are shown, and
//! recorded in `deploy/SCALE.md`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::daemon::binary;
use tests::net::Pins;
use tests::skip_without_root;
use tests::temp::TempDir;

use crate::agent::scene::{CONFIG, Scene};
use crate::process::{Controller, Process, RELEASE, cpu_secs, resident_kib};

const AGENTS: usize = 10;
const ROUTES: usize = 2_000;
const CHANGES: usize = 100;
const CHANGES_PER_SEC: u32 = 5;
/// The time limit until nodes hold what was asked, and objects say so.
const PATIENCE: Duration = Duration::from_secs(180);
/// Lists that replace others are spread over 30 s.
const LISTS: Duration = Duration::from_secs(40);

const ROUTES_PATH: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/tenant/tlsroutes";

fn name(number: usize) -> String {
    format!("t{number:04}")
}

fn backend(number: usize) -> String {
    format!("10.99.{}.{}", 1 + number / 250, number % 250 + 2)
}

/// An agent with maps of its own. All are in one network namespace, where each attaches its programs.
struct Agent {
    process: Process,
    pins: Pins,
    _folder: TempDir,
}

impl Agent {
    fn start(scene: &Scene, number: usize) -> Self {
        let (pins, folder) = (Pins::new().unwrap(), TempDir::new().unwrap());
        let config = folder.write("vestibule.json", CONFIG).unwrap();
        let mut command = scene.namespace.command(binary().unwrap());
        command.arg("--pins").arg(pins.path());
        command.args(["agent", "--log-format=json", "--metrics-port=0", "--config"]).arg(config);
        for (flag, file) in [("--state", "state"), ("--run", "run"), ("--socket", "socket")] {
            command.arg(flag).arg(folder.path().join(file));
        }
        command.env("NODE_NAME", node(number));
        let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
        let process = Process::start(command, &folder, &node(number), account.kubeconfig());
        Self { process, pins, _folder: folder }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.end();
        let mut command = std::process::Command::new(binary().unwrap());
        let _ = command.arg("--pins").arg(self.pins.path()).arg("detach").output();
    }
}

fn node(number: usize) -> String {
    format!("fleet-{number}")
}

#[test]
fn a_change_costs_the_api_server_a_few_writes_and_each_agent_one_event() {
    skip_without_root!();
    let mut scene = Scene::alone_bare(CONFIG);
    let controller = scene.controller("leader", &[]);
    let agents: Vec<Agent> = (0..AGENTS).map(|number| Agent::start(&scene, number)).collect();
    let begun = Instant::now();
    scene.tenants(ROUTES, name, backend);
    let created = begun.elapsed();
    let programmed = wait_for_all(&scene, 1);
    show(&format!(
        "{ROUTES} routes: created in {created:?}, all programmed on {AGENTS} nodes {programmed:?} later"
    ));
    settle(&scene);
    show_memory(&agents, &controller);

    let (mark, events) = (audited(&scene).len(), watch_events(&scene));
    let begun = Instant::now();
    let before = used(&agents, &controller);
    change_some(&scene);
    let last = wait_for_all(&scene, 2);
    settle(&scene);
    let took = begun.elapsed();
    let spent = used(&agents, &controller);
    show(&format!(
        "{CHANGES} changes, {CHANGES_PER_SEC} a second: the last one programmed after {last:?}; CPU time of each change: \
         controller {:.1} ms, each agent {:.1} ms",
        (spent.0 - before.0) * 1000.0 / CHANGES as f64,
        (spent.1 - before.1) * 1000.0 / (CHANGES * AGENTS) as f64
    ));
    let requests = audited(&scene).split_off(mark);
    let counts = counted(&requests);
    show(&format!("requests: {counts:#?}"));
    let count = |account: &str, verbs: &[&str], resource: &str| -> usize {
        let wanted = |(who, verb, what): &(String, String, String)| {
            who == account && verbs.contains(&verb.as_str()) && what == resource
        };
        counts.iter().filter(|(key, _)| wanted(key)).map(|(_, count)| count).sum()
    };
    let writes = ["create", "update", "patch", "delete"];
    assert_eq!(count("controller", &writes, "claims"), CHANGES, "one write of a Claim for each change");
    let statuses = count("controller", &writes, "tlsroutes/status");
    assert!((CHANGES..=CHANGES * 21 / 10).contains(&statuses), "accepted, and programmed: {statuses}");
    assert!(
        count("controller", &writes, "gateways/status") <= 1,
        "another route's change is none of the Gateway"
    );
    // Every 2 s while something changes, every 10 s otherwise.
    let renewals = AGENTS * (took.as_secs() as usize / 2 + 2);
    assert!(count("agent", &writes, "leases") <= renewals, "at most {renewals} renewals");
    assert_eq!(count("agent", &writes, "nodestates"), 0, "no node has an exception");
    let lists = requests.iter().filter(|event| account(event) == "agent" && is_list(event));
    assert_eq!(lists.count(), 0, "agents list nothing, by a watch neither");
    // Watches last 5 to 10 minutes.
    assert!(
        count("agent", &["watch"], "claims") <= AGENTS
            && count("agent", &["watch"], "endpointslices") <= AGENTS
    );
    // The agents' and the controller's watches.
    let seen = watch_events(&scene);
    let (of_claims, bytes) = (seen.0 - events.0, seen.1 - events.1);
    show(&format!("events of Claims: {of_claims}, {:.0} bytes each", bytes / of_claims));
    assert!(of_claims <= (CHANGES * (AGENTS + 1)) as f64 * 1.02 + 5.0, "{of_claims} events");
    assert!(bytes / of_claims <= 3_000.0, "{} bytes an event", bytes / of_claims);

    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());

    restart(&mut scene);
    drop(agents);
}

/// All agents find their watches broken at once.
fn restart(scene: &mut Scene) {
    let mark = audited(scene).len();
    scene.server.restart().unwrap();
    std::thread::sleep(LISTS);
    let requests = audited(scene).split_off(mark);
    let lists = |resource: &str| {
        let is_list = |event: &&Value| {
            account(event) == "agent" && event["objectRef"]["resource"] == resource && is_list(event)
        };
        requests.iter().filter(is_list).count()
    };
    for resource in ["claims", "endpointslices", "secrets"] {
        let lists = lists(resource);
        show(&format!("after a restart of the API server: {lists} lists of {resource}"));
        assert!(lists <= AGENTS, "each agent lists {resource} at most once: {lists}");
    }
}

/// Gives some routes other hostnames.
fn change_some(scene: &Scene) {
    let mut api = scene.server.rest().connect().unwrap();
    let begun = Instant::now();
    for (turn, number) in (0..ROUTES).step_by(ROUTES / CHANGES).enumerate() {
        let due = begun + Duration::from_secs(1) / CHANGES_PER_SEC * u32::try_from(turn).unwrap();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let patch = json!({"spec": {"hostnames": [format!("{}-2.example.com", name(number))]}});
        api.merge(&format!("{ROUTES_PATH}/{}", name(number)), &patch).unwrap();
    }
}

/// Waits until all routes of this generation or an older one are programmed as they are. Returns for how long.
fn wait_for_all(scene: &Scene, generation: i64) -> Duration {
    let mut api = scene.server.rest().connect().unwrap();
    let begun = Instant::now();
    loop {
        let routes = api.read(ROUTES_PATH).unwrap();
        let routes = routes["items"].as_array().unwrap();
        let is_programmed = |route: &&Value| {
            let conditions = route["status"]["parents"][0]["conditions"].as_array();
            conditions.into_iter().flatten().any(|one| {
                one["type"] == "vestibule.dev/Programmed"
                    && one["status"] == "True"
                    && one["observedGeneration"] == route["metadata"]["generation"]
            })
        };
        let newest = routes.iter().filter_map(|route| route["metadata"]["generation"].as_i64()).max();
        let programmed = routes.iter().filter(is_programmed).count();
        if programmed == ROUTES && newest == Some(generation) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < PATIENCE, "{programmed} of {ROUTES} routes are programmed");
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// Waits until nothing is written any more but Leases at rest.
fn settle(scene: &Scene) {
    let writes = || {
        let is_write = |event: &&Value| {
            matches!(event["verb"].as_str(), Some("create" | "update" | "patch" | "delete"))
                && event["objectRef"]["resource"] != "leases"
        };
        audited(scene).iter().filter(is_write).count()
    };
    let begun = Instant::now();
    let mut before = writes();
    loop {
        std::thread::sleep(Duration::from_secs(3));
        let now = writes();
        if now == before {
            return;
        }
        before = now;
        assert!(begun.elapsed() < PATIENCE, "something is written all the time");
    }
}

/// Returns the requests of our accounts so far: of watches, that they began.
fn audited(scene: &Scene) -> Vec<Value> {
    let log = fs::read_to_string(scene.server.audit_log()).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["verb"] != "watch" || event["stage"] == "ResponseStarted").collect()
}

/// `agent`, `controller`, or empty.
fn account(event: &Value) -> &str {
    let user = event["user"]["username"].as_str().unwrap_or_default();
    user.rsplit_once(":vestibule-").map_or("", |(_, account)| account)
}

/// Whether it asks for all objects: by a list, or by a watch that begins with them.
fn is_list(event: &Value) -> bool {
    let uri = event["requestURI"].as_str().unwrap_or_default();
    event["verb"] == "list" || uri.contains("sendInitialEvents=true")
}

fn counted(requests: &[Value]) -> BTreeMap<(String, String, String), usize> {
    let mut counts = BTreeMap::new();
    for event in requests {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let mut what = text(&object["resource"]);
        if let Some(part) = object["subresource"].as_str() {
            what = format!("{what}/{part}");
        }
        *counts.entry((account(event).to_owned(), text(&event["verb"]), what)).or_default() += 1;
    }
    counts
}

/// Returns how many events of Claims all watches were sent, and their bytes.
fn watch_events(scene: &Scene) -> (f64, f64) {
    let text = scene.kubectl().run(&["get", "--raw", "/metrics"]).unwrap();
    let sum = |metric: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(metric) && is_of_claims(line));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    (sum("apiserver_watch_events_sizes_count{"), sum("apiserver_watch_events_sizes_sum{"))
}

fn is_of_claims(line: &str) -> bool {
    line.contains("kind=\"Claim\"") || line.contains("resource=\"claims\"")
}

fn show_memory(agents: &[Agent], controller: &Controller) {
    let mib = |pid: u32| resident_kib(pid) / 1024;
    let of_agents: Vec<u64> = agents.iter().map(|agent| mib(agent.process.pid())).collect();
    show(&format!("resident memory: controller {} MiB, agents {of_agents:?} MiB", mib(controller.pid())));
}

/// Returns the CPU time in seconds of the controller and of all agents.
fn used(agents: &[Agent], controller: &Controller) -> (f64, f64) {
    (cpu_secs(controller.pid()), agents.iter().map(|agent| cpu_secs(agent.process.pid())).sum())
}

/// Shows a figure, also of a test that passes.
fn show(figure: &str) {
    let mut terminal = std::io::stderr();
    let _ = writeln!(terminal, "fleet: {figure}");
}
