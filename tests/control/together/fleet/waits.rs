//! Until everything is as wanted. What asks the API server asks for little, and pauses: it shares the machine with all others.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{ROUTES_PATH, Size, changed, name};
use crate::agent::scene::{RELEASE, Scene};
use crate::counted::Audit;

/// The routes that are asked for again and again. All others are read once these are as wanted.
const SAMPLE: usize = 100;
/// From one question to the next, where the answer is small, and where it is all of a kind.
const PAUSE: Duration = Duration::from_millis(250);
const LONG_PAUSE: Duration = Duration::from_secs(5);
/// A Lease is smaller than this: each is written and sent to the controller all the time.
const LEASE_BYTES: usize = 2_048;

const CLAIMS_PATH: &str = "/apis/vestibule.dev/v1alpha1/claims";

/// Waits until all routes are programmed as they are, the newest of them in this generation: 1, or 2 of those that were changed. Returns
/// after what time a sample was, which is followed closely, the last route included; where others were later, when they were seen.
pub(super) fn for_all(scene: &Scene, size: Size, generation: i64) -> Duration {
    let newest: Vec<usize> = match generation {
        1 => (0..size.routes).collect(),
        _ => changed(size).collect(),
    };
    let step = newest.len().div_ceil(SAMPLE);
    let sample: Vec<usize> = newest.into_iter().rev().step_by(step).collect();
    let begun = Instant::now();
    for_routes(scene, size, generation, sample);
    loop {
        let seen = begun.elapsed();
        // An API server that many nodes read of at once answers late.
        let read = scene.server.rest().connect().and_then(|mut api| api.read(ROUTES_PATH));
        let routes = read.map(|routes| routes["items"].as_array().cloned().unwrap_or_default());
        let (programmed, found) = routes.as_ref().map_or((0, None), |routes| {
            let generations = routes.iter().filter_map(|route| route["metadata"]["generation"].as_i64());
            (routes.iter().filter(|route| is_programmed(route)).count(), generations.max())
        });
        if programmed == size.routes && found == Some(generation) {
            return seen;
        }
        let error = routes.err();
        assert!(
            begun.elapsed() < size.patience,
            "{programmed} of {} routes are programmed, the newest in generation {found:?}: {error:?}",
            size.routes
        );
        std::thread::sleep(LONG_PAUSE);
    }
}

/// Waits until these routes are programmed in this generation.
pub(super) fn for_routes(scene: &Scene, size: Size, generation: i64, mut numbers: Vec<usize>) {
    let begun = Instant::now();
    loop {
        if let Ok(mut api) = scene.server.rest().connect() {
            let is_as_wanted =
                |route: &Value| route["metadata"]["generation"] == generation && is_programmed(route);
            let mut is_late = |number: &usize| {
                let route = api.read(&format!("{ROUTES_PATH}/{}", name(*number)));
                !route.is_ok_and(|route| is_as_wanted(&route))
            };
            numbers.retain(&mut is_late);
        }
        if numbers.is_empty() {
            return;
        }
        let late: Vec<String> = numbers.iter().copied().map(name).collect();
        assert!(begun.elapsed() < size.patience, "not programmed in generation {generation}: {late:?}");
        std::thread::sleep(PAUSE);
    }
}

/// Whether it is programmed as it is.
fn is_programmed(route: &Value) -> bool {
    let conditions = route["status"]["parents"][0]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| {
        one["type"] == "vestibule.dev/Programmed"
            && one["status"] == "True"
            && one["observedGeneration"] == route["metadata"]["generation"]
    })
}

/// Returns the version of the newest Claim.
pub(super) fn newest_claim(scene: &Scene) -> u64 {
    let claims = scene.server.rest().connect().unwrap().read(CLAIMS_PATH).unwrap();
    let claims = claims["items"].as_array().unwrap().iter();
    claims.map(|claim| claim["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()).max().unwrap()
}

/// Waits until all nodes report that they hold the Claims that there are now.
pub(super) fn for_nodes(scene: &Scene, size: Size) {
    let nodes = size.agents + size.thin;
    let begun = Instant::now();
    // The mark that all Claims are written is one itself.
    let mut newest = None;
    loop {
        newest = newest.or_else(|| has_claims(scene).then(|| newest_claim(scene)));
        let held =
            newest.map_or(0, |newest| versions(scene).into_iter().filter(|held| *held >= newest).count());
        if held == nodes {
            return;
        }
        assert!(begun.elapsed() < size.patience, "{held} of {nodes} nodes hold all Claims: {newest:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Whether there is a Claim.
fn has_claims(scene: &Scene) -> bool {
    let claims =
        scene.server.rest().connect().and_then(|mut api| api.read(&format!("{CLAIMS_PATH}?limit=1")));
    claims.is_ok_and(|claims| claims["items"].as_array().is_some_and(|all| !all.is_empty()))
}

/// Returns up to which version of the API server each node reports to hold all Claims.
fn versions(scene: &Scene) -> Vec<u64> {
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases?labelSelector=app.kubernetes.io/component%3Dagent"
    );
    let Ok(leases) = scene.server.rest().connect().and_then(|mut api| api.read(&path)) else {
        return Vec::new();
    };
    let version = |lease: &Value| {
        let bytes = lease.to_string().len();
        assert!(bytes < LEASE_BYTES, "a Lease of {bytes} bytes: {lease}");
        lease["metadata"]["annotations"]["vestibule.dev/claims-version"].as_str()?.parse().ok()
    };
    leases["items"].as_array().into_iter().flatten().filter_map(version).collect()
}

/// Waits until nothing is written any more but Leases at rest.
pub(super) fn settle(audit: &mut Audit, size: Size) {
    let begun = Instant::now();
    let mut before = audit.read().writes();
    loop {
        std::thread::sleep(Duration::from_secs(3));
        let now = audit.read().writes();
        if now == before {
            return;
        }
        before = now;
        assert!(begun.elapsed() < size.patience, "something is written all the time");
    }
}
