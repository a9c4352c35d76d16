use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Connection, Kubectl};
use tests::skip_without_root;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use super::scene::{Agent, RELEASE, SOON, Scene, tenant, until};

/// The content of the maps in each state without a kill.
type Golden = [(State, BTreeMap<&'static str, Vec<String>>)];

/// The longest time from an agent's start until the maps are as desired.
const MEND: Duration = Duration::from_secs(20);
/// After every kill whose number is a multiple of this, the complete content of the maps is checked.
const WHOLE: u32 = 6;
/// The largest number of steps that a change may take.
const STEPS_MAX: u32 = 400;

/// The two states of the API server: in the second one route `b` exists, `a` has other backends and `c` is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    First,
    Second,
}

impl State {
    fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Changes the API server's objects to this state.
    fn write(self, api: &mut Connection) {
        let (gone, there, backends) = match self {
            Self::First => ("b", "c", json!(["10.99.1.1", "10.99.1.2"])),
            Self::Second => ("c", "b", json!(["10.99.1.1", "10.99.1.3", "10.99.1.4"])),
        };
        let each = backends.as_array().unwrap().iter();
        let each: Vec<Value> =
            each.map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
        let slices = "/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices";
        api.merge(&format!("{slices}/a"), &json!({"endpoints": each})).unwrap();
        let [_, _, (routes, route)] = tenant(there, "10.99.2.1");
        api.create(&routes, &route).unwrap();
        api.delete(&format!("{routes}/{gone}")).unwrap();
    }
}

/// Returns the content of the maps, without ids: routes, listeners and backends are identified by their names.
fn content(scene: &Scene) -> Option<BTreeMap<&'static str, Vec<String>>> {
    let maps = read::open(&Pins::new(scene.pins.path())).ok()?;
    let content = read::content(&maps).ok()?;
    Some(super::named::named(&content))
}

#[test]
fn an_agent_killed_at_any_step_of_a_change_leaves_nothing_that_its_next_start_does_not_mend() {
    skip_without_root!();
    let scene = Scene::new();
    let mut api = scene.server.rest().connect().unwrap();
    for (name, backend) in [("a", "10.99.1.1"), ("b", "10.99.2.1"), ("c", "10.99.2.1")] {
        for (path, object) in tenant(name, backend) {
            // The route of `b` is created with the second state.
            if object["kind"] != "TLSRoute" || name != "b" {
                api.create(&path, &object).unwrap();
            }
        }
    }
    let first = json!({"endpoints": [{"addresses": ["10.99.1.1"], "conditions": {"ready": true}},
                                     {"addresses": ["10.99.1.2"], "conditions": {"ready": true}}]});
    api.merge("/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices/a", &first).unwrap();
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();

    // The result of an agent that is not killed, for each state.
    let agent = start(&scene, &account, 0);
    let serves = |route: &'static str| {
        let scene = &scene;
        move || content(scene).is_some_and(|maps| maps["routes"].iter().any(|one| one.contains(route)))
    };
    until("the first state", &[&agent], serves("tenant/c "));
    let mut golden = vec![(State::First, settle(&scene))];
    State::Second.write(&mut api);
    until("the second state", &[&agent], serves("tenant/b "));
    golden.push((State::Second, settle(&scene)));
    assert_ne!(golden[0].1, golden[1].1);

    let (mut agent, mut now, mut killed) = (agent, State::Second, 0);
    for step in 1..=STEPS_MAX {
        now = now.other();
        let is_dead = kill_at(&mut agent, step, || now.write(&mut api), || leads(&scene, &golden, now));
        if is_dead {
            killed += 1;
            drop(agent);
            agent = start(&scene, &account, step);
            repaired(&scene, &golden, now, &agent, step);
        } else {
            repaired(&scene, &golden, now, &agent, WHOLE);
            eprintln!("killed at each of {killed} steps");
            assert!(killed > 20, "a change of every table takes more steps than {killed}");
            return;
        }
    }
    panic!("a change takes more than {STEPS_MAX} steps");
}

fn start(scene: &Scene, account: &Kubectl, step: u32) -> Agent {
    scene.agent_by(&format!("agent-{step}"), account.kubeconfig())
}

fn is(scene: &Scene, golden: &Golden, state: State) -> bool {
    let wanted = golden.iter().find(|(other, _)| *other == state).map(|(_, maps)| maps);
    content(scene).as_ref() == wanted
}

/// Returns whether everything leads to the right backend, regardless of entries still to be removed.
fn leads(scene: &Scene, golden: &Golden, state: State) -> bool {
    let wanted = golden.iter().find(|(other, _)| *other == state).map(|(_, maps)| maps);
    let (Some(now), Some(wanted)) = (content(scene), wanted) else { return false };
    ["addresses", "listeners", "names", "wildcards", "routes"].iter().all(|map| now[map] == wanted[map])
}

/// Waits until the maps have the same content as without a kill.
fn repaired(scene: &Scene, golden: &Golden, state: State, agent: &Agent, step: u32) {
    let begun = Instant::now();
    // Removed entries are deleted a second later; most kills come before that.
    let holds: fn(&Scene, &Golden, State) -> bool = if step.is_multiple_of(WHOLE) { is } else { leads };
    while !holds(scene, golden, state) {
        if begun.elapsed() > MEND {
            let wanted = &golden.iter().find(|(other, _)| *other == state).unwrap().1;
            for (map, now) in content(scene).unwrap() {
                let lacks: Vec<_> = wanted[map].iter().filter(|one| !now.contains(one)).collect();
                let more: Vec<_> = now.iter().filter(|one| !wanted[map].contains(one)).collect();
                if now != wanted[map] {
                    eprintln!("{map} lacks {lacks:#?}\nand has beyond it {more:#?}");
                }
            }
            panic!("not repaired within {MEND:?}: {state:?} after a kill at step {step}: {}", agent.log());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the maps have not changed for three seconds, since deletions follow a second later. Returns
/// the content.
fn settle(scene: &Scene) -> BTreeMap<&'static str, Vec<String>> {
    let (mut before, mut since) = (content(scene).unwrap(), Instant::now());
    while since.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(100));
        let now = content(scene).unwrap();
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    before
}

/// Kills the agent when it is about to make its bpf(2) call number `step`, counted from before the change.
/// Returns whether it was killed; if not, the change was completed first.
fn kill_at(agent: &mut Agent, step: u32, change: impl FnOnce(), is_through: impl Fn() -> bool) -> bool {
    // The agent receives the changes made while it is stopped all at once.
    agent.signal(Signal::SIGSTOP);
    let inject = format!("inject=bpf:signal=KILL:when={step}");
    let mut tracer = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=bpf", "-e", &inject, "-p", &agent.pid().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    change();
    let begun = Instant::now();
    while !is_traced(agent.pid()) {
        assert!(begun.elapsed() < SOON, "strace does not attach");
        std::thread::sleep(Duration::from_millis(5));
    }
    agent.signal(Signal::SIGCONT);
    let is_dead = loop {
        assert!(begun.elapsed() < SOON, "neither killed nor through at step {step}: {}", agent.log());
        if !agent.is_running() {
            break true;
        }
        if is_through() {
            // The agent may be making its last calls.
            std::thread::sleep(Duration::from_millis(1500));
            break !agent.is_running();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    is_dead
}

fn is_traced(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
    })
}
