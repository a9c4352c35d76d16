//! Many agents and many routes: what a change costs the API server. What is counted is gated, and so is memory in the large sizes; times
//! are shown, and recorded in `deploy/SCALE.md`.

/// Agents without maps, many in one process.
pub(super) mod thin;
/// What the API server counted.
mod counted;

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::daemon::binary;
use tests::net::Pins;
use tests::skip_without_root;
use tests::temp::TempDir;

use crate::agent::scene::{CONFIG, Scene};
use crate::process::{Controller, Process, RELEASE, cpu_secs, resident_kib};
use counted::{Asked, account, audited, by_agent, counted, is_list, watch_events};
use thin::Thin;

const CHANGES_PER_SEC: u32 = 5;
/// Lists that replace others are spread over 30 s.
const LISTS: Duration = Duration::from_secs(40);
/// Watches last at least this long.
const WATCH_MIN: u64 = 300;
/// A Lease is smaller than this: each is written and sent to the controller all the time.
const LEASE_BYTES: usize = 2_048;
/// An event of a Claim of one hostname has 1.3 to 1.4 kB: its grants, and what the API server adds.
const EVENT_BYTES: f64 = 1_700.0;
/// The most memory of a controller, and the most that an agent needs for ten thousand routes.
const CONTROLLER_MIB: u64 = 512;
const AGENT_MIB: u64 = 40;

const ROUTES_PATH: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/tenant/tlsroutes";

/// How much of everything there is.
#[derive(Clone, Copy)]
struct Size {
    /// Processes, each with maps of its own.
    agents: usize,
    /// Agents without maps.
    thin: usize,
    routes: usize,
    changes: usize,
    /// Run while no other test has a server: its times are recorded.
    alone: bool,
    /// The time limit until nodes hold what was asked, and objects say so.
    patience: Duration,
}

#[test]
fn a_change_costs_the_api_server_a_few_writes_and_each_agent_one_event() {
    skip_without_root!();
    let patience = Duration::from_secs(180);
    run(Size { agents: 10, thin: 0, routes: 2_000, changes: 100, alone: false, patience });
}

#[test]
#[ignore = "runs for minutes: `cargo xtask test fleet`"]
fn fifty_agents_cost_each_change_no_more_than_ten() {
    skip_without_root!();
    let patience = Duration::from_secs(600);
    run(Size { agents: 50, thin: 0, routes: 2_000, changes: 200, alone: true, patience });
}

#[test]
#[ignore = "runs for minutes: `cargo xtask test fleet`"]
fn five_hundred_nodes_cost_each_change_no_more_than_ten() {
    skip_without_root!();
    let patience = Duration::from_secs(1_800);
    run(Size { agents: 1, thin: 499, routes: 10_000, changes: 300, alone: true, patience });
}

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

fn run(size: Size) {
    let mut scene = match size.alone {
        true => Scene::alone_bare(CONFIG),
        false => Scene::bare(CONFIG, &[]),
    };
    let controller = scene.controller("leader", &[]);
    let agents: Vec<Agent> = (0..size.agents).map(|number| Agent::start(&scene, number)).collect();
    wait_until_idle(&scene, size);
    let idle = show_memory(&agents, &controller);
    let begun = Instant::now();
    scene.tenants(size.routes, name, backend);
    let created = begun.elapsed();
    let programmed = wait_for_all(&scene, size, 1);
    show(&format!(
        "{} routes: created in {created:?}, all programmed on {} nodes {programmed:?} later",
        size.routes, size.agents
    ));
    let thin = (size.thin > 0).then(|| join(&scene, size));
    settle(&scene, size);
    gate_memory(idle, show_memory(&agents, &controller));
    change(&scene, size, &agents, &controller);
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
    restart(&mut scene, size);
    gate_memory(idle, show_memory(&agents, &controller));
    drop((thin, agents));
}

/// Many nodes join.
fn join(scene: &Scene, size: Size) -> Thin {
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    let thin = Thin::start(&scene.namespace, account.kubeconfig().to_owned(), size.thin);
    let begun = Instant::now();
    thin.wait_for(newest_claim(scene), size.patience);
    let read = begun.elapsed();
    wait_for_all(scene, size, 1);
    let memory = resident_kib(std::process::id()) / 1024;
    show(&format!(
        "{} nodes join: each has read all Claims after {read:?}, in {memory} MiB for all of them",
        size.thin
    ));
    thin
}

/// Changes some routes, and compares what was asked of the API server with what that may cost.
fn change(scene: &Scene, size: Size, agents: &[Agent], controller: &Controller) {
    let nodes = size.agents + size.thin;
    let (mark, events) = (audited(scene).len(), watch_events(scene));
    let begun = Instant::now();
    let before = used(agents, controller);
    change_some(scene, size);
    let last = wait_for_all(scene, size, 2);
    settle(scene, size);
    let took = begun.elapsed();
    let spent = used(agents, controller);
    show(&format!(
        "{} changes, {CHANGES_PER_SEC} a second: the last one programmed after {last:?}; CPU time of each change: \
         controller {:.1} ms, each agent {:.1} ms",
        size.changes,
        (spent.0 - before.0) * 1000.0 / size.changes as f64,
        (spent.1 - before.1) * 1000.0 / (size.changes * size.agents) as f64
    ));
    let requests = audited(scene).split_off(mark);
    let counts = counted(&requests);
    show(&format!("requests: {counts:#?}"));
    let count = |account: &str, verbs: &[&str], resource: &str| -> usize {
        let wanted = |(who, verb, what): &(String, String, String)| {
            who == account && verbs.contains(&verb.as_str()) && what == resource
        };
        counts.iter().filter(|(key, _)| wanted(key)).map(|(_, count)| count).sum()
    };
    let writes = ["create", "update", "patch", "delete"];
    assert_eq!(count("controller", &writes, "claims"), size.changes, "one write of a Claim for each change");
    assert_eq!(count("controller", &writes, "announcements"), 0, "what is announced is the same");
    let statuses = count("controller", &writes, "tlsroutes/status");
    assert!(
        (size.changes..=size.changes * 21 / 10).contains(&statuses),
        "accepted, and programmed: {statuses}"
    );
    assert!(
        count("controller", &writes, "gateways/status") <= 1,
        "another route's change is none of the Gateway"
    );
    // Every 2 s while something changes, every 10 s otherwise.
    let renewals = nodes * (took.as_secs() as usize / 2 + 2);
    let renewed = count("agent", &writes, "leases");
    show(&format!("renewals: {renewed} of {nodes} Leases in {took:?}"));
    assert!(renewed <= renewals, "at most {renewals} renewals");
    assert_eq!(count("agent", &writes, "nodestates"), 0, "no node has an exception");
    let lists = requests.iter().filter(|event| account(event) == "agent" && is_list(event));
    assert_eq!(lists.count(), 0, "agents list nothing, by a watch neither");
    let watches = 1 + took.as_secs().div_ceil(WATCH_MIN) as usize;
    for resource in ["announcements", "claims", "endpointslices"] {
        for (node, asked) in by_agent(&requests, resource) {
            assert!(asked.watches <= watches, "watches of {resource} by {node}: {asked:?}");
            assert!(
                asked.questions <= asked.watches,
                "questions for the version of {resource} by {node}: {asked:?}"
            );
        }
    }
    // The agents' and the controller's watches.
    let seen = watch_events(scene);
    let (of_claims, bytes) = (seen.0 - events.0, seen.1 - events.1);
    show(&format!("events of Claims: {of_claims}, {:.0} bytes each", bytes / of_claims));
    assert!(of_claims <= (size.changes * (nodes + 1)) as f64 * 1.02 + 5.0, "{of_claims} events");
    assert!(bytes / of_claims <= EVENT_BYTES, "{} bytes an event", bytes / of_claims);
}

/// All agents find their watches broken at once.
fn restart(scene: &mut Scene, size: Size) {
    let mark = audited(scene).len();
    scene.server.restart_within(size.patience).unwrap();
    std::thread::sleep(LISTS);
    wait_for_all(scene, size, 2);
    let requests = audited(scene).split_off(mark);
    for resource in ["claims", "endpointslices", "secrets"] {
        let agents = by_agent(&requests, resource);
        let sum = |what: fn(&Asked) -> usize| agents.values().map(what).sum::<usize>();
        show(&format!(
            "after a restart of the API server, {} agents ask for {resource}: {} lists, {} questions for the version; {} refused",
            agents.len(),
            sum(|asked| asked.lists),
            sum(|asked| asked.questions),
            sum(|asked| asked.refused)
        ));
        let nodes = size.agents + size.thin;
        // The thin ones have no keys.
        let least = if resource == "secrets" { size.agents } else { nodes };
        assert!((least..=nodes).contains(&agents.len()), "{} agents ask for {resource}", agents.len());
        assert!(
            sum(|asked| asked.questions) <= agents.len() + sum(|asked| asked.refused),
            "agents ask once for each watch of {resource} that failed"
        );
        for (node, asked) in agents {
            assert!(asked.lists <= 1, "each agent lists {resource} at most once, {node}: {asked:?}");
            // A connection may break after a question was audited: nothing says that it was refused.
            assert!(
                asked.questions <= 2 + asked.refused,
                "each agent asks once for each watch of {resource} that failed, {node}: {asked:?}"
            );
        }
    }
}

/// Gives some routes other hostnames.
fn change_some(scene: &Scene, size: Size) {
    let mut api = scene.server.rest().connect().unwrap();
    let begun = Instant::now();
    for (turn, number) in (0..size.routes).step_by(size.routes / size.changes).take(size.changes).enumerate()
    {
        let due = begun + Duration::from_secs(1) / CHANGES_PER_SEC * u32::try_from(turn).unwrap();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let patch = json!({"spec": {"hostnames": [format!("{}-2.example.com", name(number))]}});
        api.merge(&format!("{ROUTES_PATH}/{}", name(number)), &patch).unwrap();
    }
}

/// Returns the version of the newest Claim.
fn newest_claim(scene: &Scene) -> u64 {
    let claims = scene.server.rest().connect().unwrap().read("/apis/vestibule.dev/v1alpha1/claims").unwrap();
    let versions = claims["items"].as_array().unwrap().iter();
    versions
        .map(|claim| claim["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
        .max()
        .unwrap()
}

/// Waits until all routes of this generation or an older one are programmed as they are. Returns for how long.
fn wait_for_all(scene: &Scene, size: Size, generation: i64) -> Duration {
    let begun = Instant::now();
    loop {
        // An API server that many nodes read of at once answers late.
        let read = scene.server.rest().connect().and_then(|mut api| api.read(ROUTES_PATH));
        let routes = match read {
            Ok(routes) => routes,
            Err(error) => {
                assert!(begun.elapsed() < size.patience, "{error:#}");
                continue;
            }
        };
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
        if programmed == size.routes && newest == Some(generation) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < size.patience, "{programmed} of {} routes are programmed", size.routes);
        // To read all of them is work for the API server, too.
        std::thread::sleep(Duration::from_millis(250) * (size.routes as u32).div_ceil(2_000));
    }
}

/// Waits until nothing is written any more but Leases at rest.
fn settle(scene: &Scene, size: Size) {
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
        assert!(begun.elapsed() < size.patience, "something is written all the time");
    }
}

/// Waits until all agents hold the Claims that there are.
fn wait_until_idle(scene: &Scene, size: Size) {
    let holds = |leases: &Value| {
        let version = |lease: &Value| {
            let bytes = lease.to_string().len();
            assert!(bytes < LEASE_BYTES, "a Lease of {bytes} bytes: {lease}");
            let version = lease["metadata"]["annotations"]["vestibule.dev/claims-version"].as_str()?;
            version.parse::<u64>().ok().filter(|version| *version > 0)
        };
        leases["items"].as_array().is_some_and(|all| all.iter().filter_map(version).count() == size.agents)
    };
    let leases = ["-n", RELEASE, "leases", "-l", "app.kubernetes.io/component=agent"];
    scene.kubectl().wait_for("agents that hold all Claims", &leases, size.patience, holds).unwrap();
}

/// Shows and returns how much memory the controller uses, and how much the agent that uses most; MiB.
fn show_memory(agents: &[Agent], controller: &Controller) -> (u64, u64) {
    let mib = |pid: u32| resident_kib(pid) / 1024;
    let most = agents.iter().map(|agent| mib(agent.process.pid())).max().unwrap();
    let controller = mib(controller.pid());
    show(&format!("resident memory: controller {controller} MiB, agents at most {most} MiB"));
    (controller, most)
}

/// Requires that what there is now needs little memory. `idle`: what is used without it.
fn gate_memory(idle: (u64, u64), now: (u64, u64)) {
    assert!(now.0 <= CONTROLLER_MIB, "controller: {} MiB", now.0);
    assert!(now.1 <= idle.1 + AGENT_MIB, "an agent: {} MiB, {} MiB of them without routes", now.1, idle.1);
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
