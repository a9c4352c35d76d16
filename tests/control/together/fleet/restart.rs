//! An API server that starts again: all agents find their watches broken at once.

use std::time::{Duration, Instant};

use serde_json::json;

use super::thin::Thin;
use super::{ROUTES_PATH, Size, changed, name, show, waits};
use crate::agent::scene::Scene;
use crate::counted::{Asked, Audit, Counts};

/// What all agents follow; those with maps follow the keys, too.
const OF_ALL: [&str; 3] = ["announcements", "claims", "endpointslices"];
const KEYS: &str = "secrets";
/// Lists that replace others are spread over 30 s.
const LISTS: Duration = Duration::from_secs(40);

/// Restarts it, waits until every agent follows it again, which a change shows, and judges what that took.
pub(super) fn restart(scene: &mut Scene, size: Size, audit: &mut Audit, thin: Option<&Thin>) {
    let mark = audit.read().clone();
    let begun = Instant::now();
    scene.server.restart_within(size.patience).unwrap();
    let ready = begun.elapsed();
    until_all_ask(size, audit, &mark);
    let asked = begun.elapsed();
    let last = size.routes - 1;
    assert!(changed(size).all(|number| number != last), "it was changed before");
    let patch = json!({"spec": {"hostnames": [format!("{}-2.example.com", name(last))]}});
    scene.server.rest().connect().unwrap().merge(&format!("{ROUTES_PATH}/{}", name(last)), &patch).unwrap();
    waits::for_routes(scene, size, 2, vec![last]);
    waits::for_nodes(scene, size);
    if let Some(thin) = thin {
        thin.wait_for(waits::newest_claim(scene), size.patience);
    }
    let followed = begun.elapsed();
    // One that lists a second time would do so until then.
    std::thread::sleep((ready + LISTS).saturating_sub(followed));
    waits::for_all(scene, size, 2);
    show(&format!(
        "a restart of the API server: ready after {ready:?}, all agents have asked it after {asked:?}, and hold a change after {followed:?}"
    ));
    let requests = audit.read().since(&mark);
    for resource in OF_ALL {
        judge(&requests, resource, size.agents + size.thin);
    }
    judge(&requests, KEYS, size.agents);
}

/// Waits until every agent has watches of everything again.
fn until_all_ask(size: Size, audit: &mut Audit, mark: &Counts) {
    let begun = Instant::now();
    let kinds = OF_ALL.map(|kind| (kind, size.agents + size.thin)).into_iter().chain([(KEYS, size.agents)]);
    let kinds: Vec<(&str, usize)> = kinds.collect();
    loop {
        let requests = audit.read().since(mark);
        let lacks = |(kind, agents): &(&'static str, usize)| {
            let watching = requests.by_agent(kind).values().filter(|asked| asked.watches > 0).count();
            (watching < *agents).then_some((*kind, watching))
        };
        let lacking: Vec<_> = kinds.iter().filter_map(lacks).collect();
        if lacking.is_empty() {
            return;
        }
        assert!(begun.elapsed() < size.patience, "agents that watch again: {lacking:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Requires that agents, as many as these, asked for little of a kind.
fn judge(requests: &Counts, resource: &str, nodes: usize) {
    let agents = requests.by_agent(resource);
    let sum = |what: fn(&Asked) -> usize| agents.values().map(what).sum::<usize>();
    show(&format!(
        "after a restart of the API server, {} agents ask for {resource}: {} lists, {} questions for the version; {} refused, {} of them lists",
        agents.len(),
        sum(|asked| asked.lists),
        sum(|asked| asked.questions),
        sum(|asked| asked.refused),
        sum(|asked| asked.refused_lists)
    ));
    assert_eq!(agents.len(), nodes, "agents that ask for {resource}");
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
