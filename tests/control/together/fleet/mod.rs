//! Many agents and many routes: what a change costs the API server. What is counted is gated, and so is memory in the large sizes; times
//! are shown, and recorded in `deploy/SCALE.md`.

/// Agents without maps, many in one process.
pub(super) mod thin;
/// An API server that starts again.
mod restart;
/// Until everything is as wanted.
mod waits;

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::daemon::binary;
use tests::net::Pins;
use tests::skip_without_root;
use tests::temp::TempDir;

use crate::agent::scene::{CONFIG, Scene};
use crate::counted::{Audit, WRITES, watch_events};
use crate::process::{Controller, Process, RELEASE, cpu_secs, resident_kib};
use thin::Thin;

const CHANGES_PER_SEC: u32 = 5;
/// Watches last at least this long.
const WATCH_MIN: u64 = 300;
/// An event of a Claim of one hostname has 1.3 to 1.4 kB: its grants, and what the API server adds.
const EVENT_BYTES: f64 = 1_700.0;
/// The most memory of a controller, and of an agent with ten thousand routes: all of it, as the limit of one agent alone
/// (`agent/speed.rs`). An agent of a release build only: the code of a debug build alone takes more.
const CONTROLLER_KIB: u64 = 512 * 1024;
const AGENT_KIB: u64 = 40 * 1024;
/// Memory is measured after this pause, as often as this, and the least counts: what a turn or the saving of the state needs for a
/// moment is given back.
const REST: Duration = Duration::from_secs(5);
const RESTS: usize = 3;

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
    let patience = Duration::from_secs(300);
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
    let patience = Duration::from_secs(900);
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
    let begun = Instant::now();
    let mut scene = match size.alone {
        true => Scene::alone_bare(CONFIG),
        false => Scene::bare(CONFIG, &[]),
    };
    let mut audit = Audit::new(scene.server.audit_log());
    // Agents hold no Claims before a controller has said that these are all.
    let controller = scene.controller("first", &[]);
    let agents: Vec<Agent> = (0..size.agents).map(|number| Agent::start(&scene, number)).collect();
    // Nodes that join later would each read everything, encoded for each of them. What is created later is encoded once for all.
    let thin = (size.thin > 0).then(|| {
        let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
        Thin::start(&scene.namespace, account.kubeconfig().to_owned(), size.thin)
    });
    waits::for_nodes(&scene, size);
    show_memory(&agents, &controller);
    let controller = create(&scene, size, &mut audit, controller);
    if let Some(thin) = &thin {
        thin.wait_for(waits::newest_claim(&scene), size.patience);
        let memory = resident_kib(std::process::id()) / 1024;
        show(&format!("{} thin agents have read everything: {memory} MiB for all of them", size.thin));
    }
    waits::for_nodes(&scene, size);
    waits::settle(&mut audit, size);
    let settled = show_memory(&agents, &controller);
    change(&scene, size, &mut audit, &agents, &controller);
    // An API server that has just started refuses what it does not know the rights for yet.
    let forbidden = audit.read().forbidden();
    assert!(forbidden.is_empty(), "{forbidden:?}");
    restart::restart(&mut scene, size, &mut audit, thin.as_ref());
    let restarted = show_memory(&agents, &controller);
    let leases = audit.read().of("agent", &["list", "watch"], "leases");
    assert_eq!(leases, 0, "the controller alone follows Leases");
    show(&format!(
        "{} agents, {} thin ones, {} routes: {:?}",
        size.agents,
        size.thin,
        size.routes,
        begun.elapsed()
    ));
    drop((thin, agents));
    // Last, so that all other figures are shown.
    gate_memory(settled);
    gate_memory(restarted);
}

/// Creates all tenants while no controller runs: the next one, which is returned, settles them once.
fn create(scene: &Scene, size: Size, audit: &mut Audit, controller: Controller) -> Controller {
    controller.end();
    let mark = audit.read().clone();
    let begun = Instant::now();
    scene.tenants(size.routes, name, backend);
    let created = begun.elapsed();
    let controller = scene.controller("leader", &[]);
    let programmed = waits::for_all(scene, size, 1);
    let claims = audit.read().since(&mark).of("controller", &WRITES, "claims");
    assert!(claims <= size.routes * 102 / 100 + 5, "{claims} writes of Claims: each is settled once");
    show(&format!(
        "{} routes: created in {created:?}; all programmed on {} nodes {programmed:?} after the start of a controller, which wrote {claims} Claims",
        size.routes,
        size.agents + size.thin
    ));
    controller
}

/// Changes some routes, and compares what was asked of the API server with what that may cost.
fn change(scene: &Scene, size: Size, audit: &mut Audit, agents: &[Agent], controller: &Controller) {
    let nodes = size.agents + size.thin;
    let (mark, events) = (audit.read().clone(), watch_events(scene.kubectl()));
    let begun = Instant::now();
    let before = used(agents, controller);
    change_some(scene, size);
    let last = waits::for_all(scene, size, 2);
    waits::settle(audit, size);
    let took = begun.elapsed();
    let spent = used(agents, controller);
    show(&format!(
        "{} changes, {CHANGES_PER_SEC} a second: the last one programmed after {last:?}; CPU time of each change: \
         controller {:.1} ms, each agent {:.1} ms",
        size.changes,
        (spent.0 - before.0) * 1000.0 / size.changes as f64,
        (spent.1 - before.1) * 1000.0 / (size.changes * size.agents) as f64
    ));
    let counts = audit.read().since(&mark);
    show(&format!("requests: {:#?}", counts.requests()));
    let wrote = |account: &str, what: &str| counts.of(account, &WRITES, what);
    assert_eq!(wrote("controller", "claims"), size.changes, "one write of a Claim for each change");
    assert_eq!(wrote("controller", "announcements"), 0, "what is announced is the same");
    let statuses = wrote("controller", "tlsroutes/status");
    assert!(
        (size.changes..=size.changes * 21 / 10).contains(&statuses),
        "accepted, and programmed: {statuses}"
    );
    assert!(wrote("controller", "gateways/status") <= 1, "another route's change is none of the Gateway");
    // Every 2 s while something changes, every 10 s otherwise.
    let renewals = nodes * (took.as_secs() as usize / 2 + 2);
    let renewed = wrote("agent", "leases");
    show(&format!("renewals: {renewed} of {nodes} Leases in {took:?}"));
    assert!(renewed <= renewals, "at most {renewals} renewals");
    assert_eq!(wrote("agent", "nodestates"), 0, "no node has an exception");
    assert_eq!(counts.lists_of_agents(), 0, "agents list nothing, by a watch neither");
    let watches = 1 + took.as_secs().div_ceil(WATCH_MIN) as usize;
    for resource in ["announcements", "claims", "endpointslices"] {
        for (node, asked) in counts.by_agent(resource) {
            assert!(asked.watches <= watches, "watches of {resource} by {node}: {asked:?}");
            assert!(
                asked.questions <= asked.watches,
                "questions for the version of {resource} by {node}: {asked:?}"
            );
        }
    }
    // The agents' and the controller's watches.
    let seen = watch_events(scene.kubectl());
    let (of_claims, bytes) = (seen.0 - events.0, seen.1 - events.1);
    show(&format!("events of Claims: {of_claims}, {:.0} bytes each", bytes / of_claims));
    assert!(of_claims <= (size.changes * (nodes + 1)) as f64 * 1.02 + 5.0, "{of_claims} events");
    assert!(bytes / of_claims <= EVENT_BYTES, "{} bytes an event", bytes / of_claims);
}

/// The routes that are changed, evenly among all.
fn changed(size: Size) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
    let step = size.routes / size.changes;
    (0..size.changes).map(move |turn| turn * step)
}

/// Gives some routes other hostnames.
fn change_some(scene: &Scene, size: Size) {
    let mut api = scene.server.rest().connect().unwrap();
    let begun = Instant::now();
    for (turn, number) in changed(size).enumerate() {
        let due = begun + Duration::from_secs(1) / CHANGES_PER_SEC * u32::try_from(turn).unwrap();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let patch = json!({"spec": {"hostnames": [format!("{}-2.example.com", name(number))]}});
        api.merge(&format!("{ROUTES_PATH}/{}", name(number)), &patch).unwrap();
    }
}

/// Shows and returns how much memory the controller uses at rest, and how much the agent that uses most; KiB.
fn show_memory(agents: &[Agent], controller: &Controller) -> (u64, u64) {
    let pids = || std::iter::once(controller.pid()).chain(agents.iter().map(|agent| agent.process.pid()));
    let mut least = vec![u64::MAX; 1 + agents.len()];
    for _ in 0..RESTS {
        std::thread::sleep(REST);
        for (least, pid) in least.iter_mut().zip(pids()) {
            *least = resident_kib(pid).min(*least);
        }
    }
    let (controller, most) = (least[0], least[1..].iter().copied().max().unwrap());
    show(&format!("resident memory: controller {controller} KiB, agents at most {most} KiB"));
    (controller, most)
}

fn gate_memory((controller, agent): (u64, u64)) {
    assert!(controller <= CONTROLLER_KIB, "controller: {controller} KiB");
    if binary().unwrap().ancestors().any(|folder| folder.ends_with("release")) {
        assert!(agent <= AGENT_KIB, "an agent: {agent} KiB");
    }
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
