//! File and cluster together: one door for each address and port, and who has what behind it.

/// Which listeners a route attaches to.
mod attach;
/// From a route's backend references to endpoints with weights.
mod backends;
/// From settled ownership to what the data plane shall do.
mod build;
/// What the maps hold of an object, as a number.
mod digest;
/// Addresses and ports we answer on.
mod doors;
/// Which backends are probed.
mod probing;
/// Objects that are none of our business.
mod foreign;
/// ReferenceGrants.
mod grant;
/// Which listener of a Gateway has a name.
mod isolation;
/// Names of doors and routes.
mod label;
/// Gateways and ListenerSets of ours with their listeners.
mod listener;
/// Who has a name on a door.
mod own;
/// Conditions of GatewayClasses, Gateways, ListenerSets.
mod parent;
/// Patterns that overlap, and patterns that are wider than others.
mod pattern;
/// Who comes first where two want the same.
mod rank;
/// Routes: what they attach to, what they want, what becomes of them.
mod route;
/// Services of our class.
mod service;
/// When nothing but endpoints changed.
mod refresh;
/// Weights.
mod shares;
#[cfg(test)]
mod tests;

use super::{Compiled, Surroundings, file};
use crate::ipam;
use crate::model::verdict::{Condition, Status};
use crate::model::{Cluster, Desired, DesiredListener, DesiredRoute, Facts, Kind, Problem, Verdicts};
use backends::Services;
use build::Builder;
use doors::{Claim, Door, Most, Outcome, Whose};
use foldhash::HashSet;
use grant::Grants;
use isolation::Isolation;
use listener::Parents;
use own::{Candidate, Ground, Names};
use rank::Claimant;
use route::Routes;
use service::Balancers;
use std::net::SocketAddr;
use std::sync::Arc;

pub use refresh::{Refreshed, refresh};

/// API group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// Type of our own condition: False where another object has an address and port, or a name.
pub const OWNED: &str = "vestibule.dev/Owned";
/// `status.supportedFeatures` of a GatewayClass, sorted: what tests of the upstream suite have proven.
pub const SUPPORTED_FEATURES: [&str; 4] = ["Gateway", "ReferenceGrant", "TCPRoute", "TLSRoute"];

/// Compiles file and cluster.
pub(super) fn compile(facts: &Facts, cluster: &Cluster, around: &Surroundings) -> Compiled {
    compile_at_most(facts, cluster, around, Most::default())
}

/// The same with this much room for doors.
fn compile_at_most(facts: &Facts, cluster: &Cluster, around: &Surroundings, most: Most) -> Compiled {
    let file = FilePart::new(facts);
    let assignment = ipam::assign(cluster);
    let mut parents = Parents::new(cluster, &assignment);
    let mut balancers = Balancers::new(cluster, &assignment);
    let mut routes = Routes::new(cluster, &mut parents);
    let mut file_full = Vec::new();
    let mut file_doors = vec![Vec::new(); file.listeners.len()];
    let doors =
        doors::open(claims(&file, &parents, &balancers), most, |whose, outcome| match (whose, outcome) {
            (Whose::File(at), Outcome::Own(place) | Outcome::Lost(place)) => file_doors[at].push(place),
            (Whose::File(_), Outcome::Full(door)) => file_full.push(door),
            (Whose::Listener(at), Outcome::Own(place)) => parents.listeners[at].doors.push(place),
            (Whose::Listener(at), Outcome::Lost(place)) => parents.listeners[at].lost.push(place),
            (Whose::Listener(at), Outcome::Full(door)) => parents.listeners[at].full.push(door),
            (Whose::ServicePort(at), Outcome::Own(place)) => balancers.ports[at].doors.push(place),
            (Whose::ServicePort(at), Outcome::Lost(place)) => balancers.ports[at].lost.push(place),
            (Whose::ServicePort(at), Outcome::Full(door)) => balancers.ports[at].full.push(door),
        });
    let names = settle(&file, &file_doors, &parents, &balancers, &mut routes, &doors);
    let dialled: HashSet<SocketAddr> = doors.iter().map(|door| door.at).collect();
    let services = Services::new(cluster, around.zone.as_ref(), dialled);
    let grants = Grants::new(cluster);
    for route in &mut routes.all {
        route.resolved = services.of_route(route.kind, route.spec, &grants);
    }
    let mut problems = Vec::new();
    let names_max = facts.settings.max_names;
    let (file, doors) = (&file, &doors);
    let builder =
        Builder { file, doors, routes: &routes, balancers: &balancers, services: &services, names_max };
    let built = builder.build(&names, &mut parents, &mut problems);
    let first_port = file.routes.len() + routes.all.len();
    for port in built.left_out.iter().filter_map(|target| target.checked_sub(first_port)) {
        balancers.ports[port].left_out = true;
    }
    let full = no_room(&file_full).map(|what| Problem::error("listeners", what, "serve fewer"));
    problems.extend(full);
    let judge = parent::Judge { parents: &parents, doors, assignment: &assignment };
    let verdicts = Verdicts {
        classes: parent::classes(cluster),
        gateways: judge.gateways(&mut problems),
        listener_sets: judge.listener_sets(&mut problems),
        tls_routes: routes.verdicts(Kind::TlsRoute, doors, &mut problems).collect(),
        tcp_routes: routes.verdicts(Kind::TcpRoute, doors, &mut problems).collect(),
        services: balancers.verdicts(&assignment, doors, &mut problems),
    };
    let unread = foreign::without(cluster, &verdicts);
    problems.splice(0..0, file.problems.iter().cloned().chain(unread));
    let (listeners, routes) = file::sorted(built.listeners, built.routes);
    let routes = routes.into_iter().map(Arc::new).collect();
    let desired = Desired { settings: facts.settings.clone(), listeners, routes };
    Compiled { desired, problems, verdicts, probes: built.probes }
}

/// What the static file comes to by itself.
struct FilePart {
    listeners: Vec<DesiredListener>,
    routes: Vec<DesiredRoute>,
    problems: Vec<Problem>,
}

impl FilePart {
    fn new(facts: &Facts) -> Self {
        let (listeners, routes, problems) = file::compile(facts);
        Self { listeners, routes, problems }
    }
}

/// Everyone's wish for addresses and ports.
fn claims<'a>(file: &'a FilePart, parents: &Parents<'a>, balancers: &Balancers<'a>) -> Vec<Claim<'a>> {
    let mut claims = Vec::new();
    for (at, listener) in file.listeners.iter().enumerate() {
        let claimant = Claimant::File { what: "listener", name: &listener.name };
        claims.extend(listener.addresses.iter().map(|address| Claim {
            claimant,
            at: SocketAddr::new(*address, listener.port),
            protocol: listener.protocol,
            whose: Whose::File(at),
        }));
    }
    for parent in parents.all.iter().filter(|parent| parent.refusal.is_none()) {
        for at in parent.listeners.clone().filter(|at| parents.listeners[*at].is_accepted()) {
            let listener = &parents.listeners[at];
            let Some(protocol) = listener.protocol else { continue };
            claims.extend(parents.all[parent.gateway].addresses.iter().map(|address| Claim {
                claimant: parent.claimant,
                at: SocketAddr::new(*address, listener.spec.port),
                protocol,
                whose: Whose::Listener(at),
            }));
        }
    }
    balancers.claims(&mut claims);
    claims
}

/// Decides who has which name and which TCP door. Targets are the file's routes, the cluster's, then ports of Services.
fn settle<'a>(
    file: &'a FilePart,
    file_doors: &[Vec<usize>],
    parents: &Parents<'a>,
    balancers: &Balancers<'a>,
    routes: &mut Routes<'a>,
    doors: &[Door<'a>],
) -> Names<'a> {
    let mut targets: Vec<Claimant<'a>> = Vec::new();
    targets.extend(file.routes.iter().map(|route| Claimant::File { what: "route", name: &route.name }));
    let first_route = targets.len();
    targets.extend(routes.claimants());
    let first_port = targets.len();
    targets.extend(balancers.ports.iter().map(|port| Claimant::object(Kind::Service, &port.service.meta)));
    let mut candidates: Vec<Candidate<'a>> = Vec::with_capacity(2 * targets.len());
    for (target, route) in file.routes.iter().enumerate() {
        let names = route
            .names
            .iter()
            .flat_map(|(listener, name)| file_doors[*listener].iter().map(move |d| (*d, name)));
        candidates.extend(names.map(|(door, pattern)| route::other(door, Some(pattern), target)));
    }
    for (listener, own) in file.listeners.iter().zip(file_doors) {
        let default =
            listener.route.into_iter().flat_map(|target| own.iter().map(move |door| (*door, target)));
        candidates.extend(default.map(|(door, target)| route::other(door, None, target)));
    }
    for (at, port) in balancers.ports.iter().enumerate() {
        candidates.extend(port.doors.iter().map(|door| route::other(*door, None, first_port + at)));
    }
    let isolation = Isolation::new(parents);
    routes.candidates(parents, doors, &isolation, first_route, &mut candidates);
    let ground = Ground { targets: &targets, parents, isolation: &isolation };
    Names::settle(candidates, &ground, |attachment, loss| {
        routes.attachments[attachment].losses.push(loss);
    })
}

/// What is told of doors that the maps have no room for; `None`: there is room.
fn no_room(full: &[SocketAddr]) -> Option<String> {
    let first = full.first()?;
    let more = if full.len() > 1 { format!(" and {} more", full.len() - 1) } else { String::new() };
    let most = super::capacity::DOORS_MAX;
    Some(format!(
        "no room for {first}{more}: {most} addresses and ports are served, and older objects come first"
    ))
}

/// What is told of a route that the maps have no room for.
fn left_out(route: &str) -> String {
    format!("{route} is not served: the maps are full, and older objects come first")
}

fn yes(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind, status: Status::True, reason, message: message.into() }
}

fn no(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind, status: Status::False, reason, message: message.into() }
}
