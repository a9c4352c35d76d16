//! Settles who owns what: from the objects of the cluster and the static file to claims with their grants, and to the
//! verdict on each object. One binding for each address and port, and one owner of each name on it. Pure; cannot fail: of two
//! objects that contradict each other one is kept, always the same one, and a problem names both.

/// Which listeners a route attaches to.
mod attach;
/// Addresses and ports we answer on.
mod bindings;
/// Claims from settled ownership.
mod emit;
/// Problems of objects that are not ours.
mod foreign;
/// ReferenceGrants.
mod grant;
/// The listener of a Gateway that a name belongs to.
mod isolation;
/// Names of routes.
mod label;
/// Which addresses origins ask for.
mod wish;
/// Whose an object is.
mod tenant;
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
/// Backend references: which Services they lead to, and what is wrong with them.
pub(crate) mod references;
/// Routes: what they attach to, what they request, and their conditions.
mod route;
/// Services of our class.
mod service;
/// What objects of the table of origins ask for.
mod asks;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::model::kind::OWNED;
pub use bindings::{ADDRESSES_MAX, BINDINGS_MAX, Most};

use crate::ipam::{self, Assignment};
use crate::model::verdict::{Condition, Status};
use crate::model::{Claim, Cluster, Desired, Kind, Possession, Problem, Verdicts};
use asks::Asks;
use bindings::{Bid, Binding, Outcome, Whose};
use foldhash::HashSet;
use isolation::Isolation;
use listener::Parents;
use own::{Candidate, Lead, NONE, Names, Ownership};
use precedence::Claimant;
use references::References;
use route::Routes;
use service::Balancers;
use std::net::SocketAddr;
use std::sync::Arc;

/// `status.supportedFeatures` of a GatewayClass, sorted: the features that the upstream test suite has
/// proven.
pub const SUPPORTED_FEATURES: [&str; 4] = ["Gateway", "ReferenceGrant", "TCPRoute", "TLSRoute"];

/// Settled ownership: the claims, and what the verdicts are made from.
pub struct Settled<'a> {
    /// Those of the static file, then those of objects; those of one origin one after the other.
    pub claims: Vec<Claim>,
    cluster: &'a Cluster,
    assignment: &'a Assignment,
    parents: Parents<'a>,
    balancers: Balancers<'a>,
    routes: Routes<'a>,
    asks: Asks<'a>,
    bindings: Vec<Binding<'a>>,
    names: Names<'a>,
    /// Bindings of the static file that the maps have no room for.
    file_full: Vec<SocketAddr>,
    first_route: usize,
}

/// Settles the cluster together with what the static file results in by itself. At most `most` bindings are opened.
pub fn settle<'a>(
    file: &'a Desired,
    cluster: &'a Cluster,
    assignment: &'a Assignment,
    most: Most,
) -> Settled<'a> {
    let mut parents = Parents::new(cluster, assignment);
    let mut balancers = Balancers::new(cluster, assignment);
    let references = References::new(cluster);
    let mut routes = Routes::new(cluster, &mut parents, &references);
    let mut asks = Asks::new(cluster, file, &references);
    let mut file_full = Vec::new();
    let mut file_doors = vec![Vec::new(); file.listeners.len()];
    let bindings = bindings::open(bids(file, &parents, &balancers), cluster, most, |whose, outcome| {
        match (whose, outcome) {
            (Whose::File(at), Outcome::Own(place) | Outcome::Lost(place)) => file_doors[at].push(place),
            (Whose::File(_), Outcome::Full(binding)) => file_full.push(binding),
            // The file is the operator's, as the ports are.
            (Whose::File(_), Outcome::TlsOnly(_)) => {}
            (Whose::Listener(at), Outcome::Own(place)) => parents.listeners[at].bindings.push(place),
            (Whose::Listener(at), Outcome::Lost(place)) => parents.listeners[at].lost.push(place),
            (Whose::Listener(at), Outcome::Full(binding)) => parents.listeners[at].full.push(binding),
            (Whose::Listener(at), Outcome::TlsOnly(binding)) => parents.listeners[at].tls_only.push(binding),
            (Whose::ServicePort(at), Outcome::Own(place)) => balancers.ports[at].bindings.push(place),
            (Whose::ServicePort(at), Outcome::Lost(place)) => balancers.ports[at].lost.push(place),
            (Whose::ServicePort(at), Outcome::Full(binding)) => balancers.ports[at].full.push(binding),
            (Whose::ServicePort(at), Outcome::TlsOnly(binding)) => balancers.ports[at].tls_only.push(binding),
        }
    });
    let first_route = file.routes.len();
    let possession = &cluster.possession;
    let field = Field {
        file,
        file_doors: &file_doors,
        parents: &parents,
        balancers: &balancers,
        bindings: &bindings,
        possession,
    };
    let names = owners(&field, &mut routes, &mut asks);
    let emitter = emit::Emitter {
        file,
        file_doors: &file_doors,
        bindings: &bindings,
        names: &names,
        parents: &parents,
        routes: &routes,
        balancers: &balancers,
        asks: &asks,
        cluster,
    };
    let claims = emitter.claims();
    Settled {
        claims,
        cluster,
        assignment,
        parents,
        balancers,
        routes,
        asks,
        bindings,
        names,
        file_full,
        first_route,
    }
}

/// Settles the static file alone. Adds to `problems` what there is no room for.
pub fn settle_file(file: &Desired, problems: &mut Vec<Problem>) -> Vec<Claim> {
    let (cluster, assignment) = (Cluster::default(), Assignment::default());
    let mut settled = settle(file, &cluster, &assignment, Most::default());
    let claims = std::mem::take(&mut settled.claims);
    settled.verdicts(&[], problems);
    claims
}

impl Settled<'_> {
    /// Returns the verdict on each object. Adds to `problems` what the source could not read of our objects, then what they lack.
    /// `left_out`: the routes that the maps have no room for, by the name that claims have for them.
    pub fn verdicts(mut self, left_out: &[Arc<str>], problems: &mut Vec<Problem>) -> Verdicts {
        self.note_left_out(left_out);
        let first = problems.len();
        let full = no_room(&self.file_full).map(|what| Problem::error("listeners", what, "serve fewer"));
        problems.extend(full);
        let bindings = &self.bindings;
        let judge = parent::Judge { parents: &self.parents, bindings, assignment: self.assignment };
        let verdicts = Verdicts {
            classes: parent::classes(self.cluster),
            gateways: judge.gateways(problems),
            listener_sets: judge.listener_sets(problems),
            tls_routes: self.routes.verdicts(Kind::TlsRoute, bindings, problems).collect(),
            tcp_routes: self.routes.verdicts(Kind::TcpRoute, bindings, problems).collect(),
            services: self.balancers.verdicts(self.assignment, bindings, problems),
            origins: self.asks.verdicts(self.cluster, bindings, problems),
        };
        tenant::report(self.cluster, &verdicts, problems);
        ipam::report(self.cluster, problems);
        problems.splice(first..first, foreign::without(self.cluster, &verdicts));
        verdicts
    }

    /// Notes on Gateways, ListenerSets and ports of Services each route of theirs that is left out: the maps do not hold them
    /// completely.
    fn note_left_out(&mut self, left_out: &[Arc<str>]) {
        if left_out.is_empty() {
            return;
        }
        let left_out: HashSet<&str> = left_out.iter().map(|route| &**route).collect();
        self.asks.note_left_out(&left_out);
        for port in &mut self.balancers.ports {
            port.left_out = left_out.contains(&*port.label);
        }
        for entry in self.names.entries() {
            let Lead::To { target, candidate } = entry.lead else { continue };
            let listener = self.names.candidates[candidate].listener;
            if listener == NONE {
                continue;
            }
            let label = &self.routes.all[target - self.first_route].label;
            if left_out.contains(&**label) {
                let parent = &mut self.parents.all[self.parents.listeners[listener].parent];
                parent.left_out.get_or_insert_with(|| self::left_out(label));
            }
        }
    }
}

/// Returns what everybody asks for of addresses and ports.
fn bids<'a>(file: &'a Desired, parents: &Parents<'a>, balancers: &Balancers<'a>) -> Vec<Bid<'a>> {
    let mut bids = Vec::new();
    for (at, listener) in file.listeners.iter().enumerate() {
        let claimant = Claimant::File { what: "listener", name: &listener.name };
        bids.extend(listener.addresses.iter().map(|address| Bid {
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
            bids.extend(parents.all[parent.gateway].addresses.iter().map(|address| Bid {
                claimant: parent.claimant,
                at: SocketAddr::new(*address, listener.spec.port),
                protocol,
                whose: Whose::Listener(at),
            }));
        }
    }
    balancers.bids(&mut bids);
    bids
}

/// What claims compete with, besides routes and asks.
struct Field<'f, 'a> {
    file: &'a Desired,
    file_doors: &'f [Vec<usize>],
    parents: &'f Parents<'a>,
    balancers: &'f Balancers<'a>,
    bindings: &'f [Binding<'a>],
    possession: &'f Possession,
}

/// Decides who has which name and which TCP binding. The targets are the file's routes, the cluster's routes, ports of Services,
/// then asks.
fn owners<'a>(field: &Field<'_, 'a>, routes: &mut Routes<'a>, asks: &mut Asks<'a>) -> Names<'a> {
    let Field { file, file_doors, parents, balancers, bindings, possession } = *field;
    let mut targets: Vec<Claimant<'a>> = Vec::new();
    targets.extend(file.routes.iter().map(|route| Claimant::File { what: "route", name: &route.name }));
    let first_route = targets.len();
    targets.extend(routes.claimants());
    let first_port = targets.len();
    targets.extend(balancers.ports.iter().map(service::Port::claimant));
    let first_ask = targets.len();
    targets.extend(asks.all.iter().map(asks::Wanted::claimant));
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
    let first_attachment = routes.attachments.len();
    asks.candidates(file_doors, first_ask, first_attachment, &mut candidates);
    let ownership = Ownership { targets: &targets, parents, isolation: &isolation, bindings, possession };
    let names = Names::settle(candidates, &ownership, |attachment, loss| {
        match (attachment.checked_sub(first_attachment), loss) {
            (Some(ask), Some(loss)) => asks.all[ask].losses.push(loss),
            (None, Some(loss)) => routes.attachments[attachment].losses.push(loss),
            (None, None) => routes.attachments[attachment].has_some = true,
            (Some(_), None) => {}
        }
    });
    for entry in names.entries() {
        if let Lead::To { target, .. } = entry.lead
            && let Some(ask) = target.checked_sub(first_ask)
        {
            asks.all[ask].bindings.push(entry.binding);
        }
    }
    names
}

/// Returns the message about bindings that the maps have no room for; `None`: there is room.
fn no_room(full: &[SocketAddr]) -> Option<String> {
    let first = full.first()?;
    let more = if full.len() > 1 { format!(" and {} more", full.len() - 1) } else { String::new() };
    Some(format!(
        "no room for {first}{more}: {BINDINGS_MAX} addresses and ports are served, and older objects come first"
    ))
}

/// Returns the message about a route that the maps have no room for.
pub fn left_out(route: &str) -> String {
    format!("{route} is not served: the maps are full, and older objects come first")
}

fn yes(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind, status: Status::True, reason, message: message.into() }
}

fn no(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind, status: Status::False, reason, message: message.into() }
}
