//! Compiles file and cluster together: one binding for each address and port, and the owner of each name on
//! it.

/// Which listeners a route attaches to.
mod attach;
/// Resolves backend references to endpoints with weights.
mod backends;
/// Builds what the data plane should do from settled ownership.
mod build;
/// The digest of what the maps hold of an object.
mod digest;
/// Addresses and ports we answer on.
mod bindings;
/// Which backends are probed, and how.
mod probing;
/// Problems of objects that are not ours.
mod foreign;
/// ReferenceGrants.
mod grant;
/// The listener of a Gateway that a name belongs to.
mod isolation;
/// Names of bindings and routes.
mod label;
/// Our Gateways and ListenerSets with their listeners.
mod listener;
/// The owner of each name on a binding.
mod own;
/// Conditions of GatewayClasses, Gateways and ListenerSets.
mod parent;
/// Patterns that overlap, and patterns that are wider than others.
mod pattern;
/// Precedence of claimants.
mod precedence;
/// Routes: what they attach to, what they request, and their conditions.
mod route;
/// Services of our class.
mod service;
/// The quick path if only endpoints changed.
mod refresh;
/// Weights of backends.
mod shares;
#[cfg(test)]
mod tests;

use super::Compiled;
use super::part::FilePart;
use crate::ipam;
use crate::model::verdict::{Condition, Status};
use crate::model::{Cluster, Desired, Kind, NodeFacts, Problem, Verdicts};
use backends::Services;
use bindings::{Bid, Binding, Most, Outcome, Whose};
use build::Builder;
use foldhash::HashSet;
use grant::Grants;
use isolation::Isolation;
use listener::Parents;
use own::{Candidate, Names, Ownership};
use precedence::Claimant;
use route::Routes;
use service::Balancers;
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) use refresh::{Before, Refreshed, refresh, refresh_file};

/// API group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// Type of our own condition. It is False if another object has an address and port, or a name.
pub const OWNED: &str = "vestibule.dev/Owned";
/// `status.supportedFeatures` of a GatewayClass, sorted: the features that the upstream test suite has
/// proven.
pub const SUPPORTED_FEATURES: [&str; 4] = ["Gateway", "ReferenceGrant", "TCPRoute", "TLSRoute"];

/// Compiles the cluster together with the compiled file. Warnings about the file are not included.
pub(super) fn compile(file: &FilePart, cluster: &Cluster, node: &NodeFacts) -> Compiled {
    compile_at_most(file, cluster, node, Most::default())
}

/// Same as [`compile`], with this much room for bindings.
fn compile_at_most(part: &FilePart, cluster: &Cluster, node: &NodeFacts, most: Most) -> Compiled {
    let file = &part.desired;
    let assignment = ipam::assign(cluster);
    let mut parents = Parents::new(cluster, &assignment);
    let mut balancers = Balancers::new(cluster, &assignment);
    let mut routes = Routes::new(cluster, &mut parents);
    let mut file_full = Vec::new();
    let mut file_doors = vec![Vec::new(); file.listeners.len()];
    let bindings =
        bindings::open(claims(file, &parents, &balancers), most, |whose, outcome| match (whose, outcome) {
            (Whose::File(at), Outcome::Own(place) | Outcome::Lost(place)) => file_doors[at].push(place),
            (Whose::File(_), Outcome::Full(binding)) => file_full.push(binding),
            (Whose::Listener(at), Outcome::Own(place)) => parents.listeners[at].bindings.push(place),
            (Whose::Listener(at), Outcome::Lost(place)) => parents.listeners[at].lost.push(place),
            (Whose::Listener(at), Outcome::Full(binding)) => parents.listeners[at].full.push(binding),
            (Whose::ServicePort(at), Outcome::Own(place)) => balancers.ports[at].bindings.push(place),
            (Whose::ServicePort(at), Outcome::Lost(place)) => balancers.ports[at].lost.push(place),
            (Whose::ServicePort(at), Outcome::Full(binding)) => balancers.ports[at].full.push(binding),
        });
    let names = settle(file, &file_doors, &parents, &balancers, &mut routes, &bindings);
    let dialled: HashSet<SocketAddr> = bindings.iter().map(|binding| binding.at).collect();
    let services = Services::new(cluster, node, dialled);
    let grants = Grants::new(cluster);
    for route in &mut routes.all {
        route.resolved = services.of_route(route.kind, route.spec, &grants);
    }
    let mut problems = Vec::new();
    let names_max = file.settings.max_names;
    let bindings = &bindings;
    let builder =
        Builder { file, bindings, routes: &routes, balancers: &balancers, services: &services, names_max };
    let built = builder.build(&names, &mut parents, &mut problems);
    let first_port = file.routes.len() + routes.all.len();
    for port in built.left_out.iter().filter_map(|target| target.checked_sub(first_port)) {
        balancers.ports[port].left_out = true;
    }
    let full = no_room(&file_full).map(|what| Problem::error("listeners", what, "serve fewer"));
    problems.extend(full);
    let judge = parent::Judge { parents: &parents, bindings, assignment: &assignment };
    let verdicts = Verdicts {
        classes: parent::classes(cluster),
        gateways: judge.gateways(&mut problems),
        listener_sets: judge.listener_sets(&mut problems),
        tls_routes: routes.verdicts(Kind::TlsRoute, bindings, &mut problems).collect(),
        tcp_routes: routes.verdicts(Kind::TcpRoute, bindings, &mut problems).collect(),
        services: balancers.verdicts(&assignment, bindings, &mut problems),
    };
    let unread = foreign::without(cluster, &verdicts);
    problems.splice(0..0, part.problems.iter().cloned().chain(unread));
    let (listeners, routes) = super::file::sorted(built.listeners, built.routes);
    let routes = routes.into_iter().map(Arc::new).collect();
    let desired = Desired { settings: file.settings.clone(), listeners, routes };
    Compiled { desired, problems, verdicts, probes: built.probes }
}

/// Returns all claims on addresses and ports.
fn claims<'a>(file: &'a Desired, parents: &Parents<'a>, balancers: &Balancers<'a>) -> Vec<Bid<'a>> {
    let mut claims = Vec::new();
    for (at, listener) in file.listeners.iter().enumerate() {
        let claimant = Claimant::File { what: "listener", name: &listener.name };
        claims.extend(listener.addresses.iter().map(|address| Bid {
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
            claims.extend(parents.all[parent.gateway].addresses.iter().map(|address| Bid {
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

/// Decides who has which name and which TCP binding. The targets are the file's routes, the cluster's routes,
/// then ports of Services.
fn settle<'a>(
    file: &'a Desired,
    file_doors: &[Vec<usize>],
    parents: &Parents<'a>,
    balancers: &Balancers<'a>,
    routes: &mut Routes<'a>,
    bindings: &[Binding<'a>],
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
        candidates.extend(names.map(|(binding, pattern)| route::other(binding, Some(pattern), target)));
    }
    for (listener, own) in file.listeners.iter().zip(file_doors) {
        let default =
            listener.route.into_iter().flat_map(|target| own.iter().map(move |binding| (*binding, target)));
        candidates.extend(default.map(|(binding, target)| route::other(binding, None, target)));
    }
    for (at, port) in balancers.ports.iter().enumerate() {
        candidates.extend(port.bindings.iter().map(|binding| route::other(*binding, None, first_port + at)));
    }
    let isolation = Isolation::new(parents);
    routes.candidates(parents, bindings, &isolation, first_route, &mut candidates);
    let ownership = Ownership { targets: &targets, parents, isolation: &isolation };
    Names::settle(candidates, &ownership, |attachment, loss| {
        routes.attachments[attachment].losses.push(loss);
    })
}

/// Returns the message about bindings that the maps have no room for; `None`: there is room.
fn no_room(full: &[SocketAddr]) -> Option<String> {
    let first = full.first()?;
    let more = if full.len() > 1 { format!(" and {} more", full.len() - 1) } else { String::new() };
    let most = super::capacity::BINDINGS_MAX;
    Some(format!(
        "no room for {first}{more}: {most} addresses and ports are served, and older objects come first"
    ))
}

/// Returns the message about a route that the maps have no room for.
fn left_out(route: &str) -> String {
    format!("{route} is not served: the maps are full, and older objects come first")
}

fn yes(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind, status: Status::True, reason, message: message.into() }
}

fn no(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind, status: Status::False, reason, message: message.into() }
}
