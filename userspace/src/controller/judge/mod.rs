//! Computes what must be written from what is known. Pure, except that it remembers how each object was last
//! judged, so that one change costs the comparison of one object instead of all.

/// Objects of the table of origins.
mod origins;
/// What statuses say that nodes hold.
mod programmed;
/// Services.
mod services;
/// What a judgement is based on.
mod view;

use crate::compile::{Compiled, compile};
use crate::controller::allocated::{Allocated, Happening};
use crate::controller::announcement::resolve::chosen::{Holders, holders};
use crate::controller::claim_flights::Failures;
use crate::controller::claims::Claims;
use crate::controller::health::{self, Health};
use crate::controller::hold::{self, Hold};
use crate::controller::kube_events;
use crate::controller::queue::Write;
use crate::controller::reports::{Conflict, Written};
use crate::controller::standing::Standings;
use crate::ipam::{self, Assignment};
use crate::model::cluster::AddressHold;
use crate::model::verdict::Programmable;
use crate::model::{Cluster, Facts, Kind, ObjectName, ObjectRef, Problem, Verdicts};
use crate::sources::kubernetes::Source;
use crate::status::{self, Counted, Progress};
use foldhash::{HashMap, HashMapExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

pub(super) use view::View;

/// The result of a judgement.
#[derive(Debug, Default)]
pub(super) struct Judgement {
    /// Objects that were judged again; `None`: the status is up to date. For all others the previous result
    /// still applies.
    pub(super) writes: Vec<(ObjectRef, Option<Write>)>,
    /// All objects that were considered, judged again or not.
    pub(super) objects: BTreeSet<ObjectRef>,
    /// Problems that were found.
    pub(super) problems: Vec<Problem>,
    /// Routes that regain something with their write, each with the message about what it had lost.
    pub(super) won: BTreeMap<ObjectRef, String>,
    /// Addresses in use by Gateways and Services.
    pub(super) in_use: BTreeSet<IpAddr>,
    /// Those of them that are, or were, of one of MetalLB's pools, as annotations of Services say.
    pub(super) pooled: BTreeSet<IpAddr>,
    /// The labels of who has them, if an L2Advertisement asks for it.
    pub(super) holders: Holders,
    /// Foreign hosts that answer for addresses of objects.
    pub(super) conflicts: Vec<Conflict>,
    /// What happened to the addresses of Services.
    pub(super) happenings: Vec<Happening>,
    /// When to judge again even if nothing changes.
    pub(super) again: Option<Instant>,
}

impl Judgement {
    /// Takes objects that are made for others to read.
    pub(super) fn take(&mut self, written: Vec<Written>) {
        self.objects.extend(written.iter().map(|(object, _)| object.clone()));
        self.writes.extend(written);
    }
}

/// Judges objects, and remembers what it judged.
#[derive(Debug)]
pub(super) struct Judge {
    /// Settings, listeners and routes of the files.
    file: Facts,
    judged: HashMap<ObjectRef, Judged>,
    last: Verdicts,
    bundle: Option<String>,
    /// What was not listed then.
    unlisted: BTreeSet<Source>,
    /// Addresses that were written, with the version they were written for, until the watch reports a newer version.
    given: BTreeMap<ObjectName, (String, Vec<IpAddr>)>,
    health: Health,
    standings: Standings,
    allocated: Allocated,
}

/// What an object was judged by, besides its verdict.
#[derive(Debug, Default, PartialEq, Eq)]
struct Judged {
    version: String,
    progress: Option<Progress>,
    addresses: Vec<IpAddr>,
    /// For a route: its message about failing backends.
    health: Option<String>,
    /// For a Service: what its annotations are to say.
    pool: Option<Arc<str>>,
}

impl Judge {
    pub(super) fn new(file: Facts) -> Self {
        Self {
            file,
            judged: HashMap::new(),
            last: Verdicts::default(),
            bundle: None,
            unlisted: BTreeSet::new(),
            given: BTreeMap::new(),
            health: Health::default(),
            standings: Standings::new(),
            allocated: Allocated::default(),
        }
    }

    /// Replaces the content of the files.
    pub(super) fn reads(&mut self, file: Facts) {
        self.file = file;
    }

    /// Begins or ceases to lead: another controller may have changed everything.
    pub(super) fn lead(&mut self) {
        self.forget_all();
        self.allocated.clear();
    }

    /// Forgets all results, so that every object is judged again.
    pub(super) fn forget_all(&mut self) {
        self.judged.clear();
        self.given.clear();
        self.standings.clear();
    }

    /// Forgets the result of one object, so that it is judged again.
    pub(super) fn forget(&mut self, object: &ObjectRef) {
        self.judged.remove(object);
    }

    /// Records a Gateway's addresses whose write is in flight, so that no other object gets them before the
    /// watch reports the write.
    pub(super) fn gives(&mut self, gateway: &ObjectName, write: &Write) {
        let Some(addresses) = write.status.get("addresses").and_then(Value::as_array) else { return };
        let addresses = addresses.iter().filter_map(|one| one.get("value")?.as_str()?.parse().ok()).collect();
        self.given.insert(gateway.clone(), (write.version.clone(), addresses));
    }

    /// Compiles the configuration, asks for the Claims that follow from it, and compares the result with the objects' status.
    pub(super) fn judge(&mut self, view: &View<'_>, own: &mut Claims) -> Judgement {
        if self.unlisted != view.unlisted {
            // Not all that was judged could be written.
            self.forget_all();
            self.unlisted.clone_from(&view.unlisted);
        }
        let mut cluster = self.with_given(view);
        cluster.possession = own.possession();
        let assignment = ipam::assign(&cluster);
        let happenings = self.allocated.changes(&cluster, &assignment.services);
        let facts = Facts { cluster: Some(cluster), ..self.file.clone() };
        let Compiled { problems, verdicts, claims, .. } = compile(&facts);
        let held = services::held(&assignment);
        let has_moved = services::moved(&assignment);
        let stored = own.stored().filter(|(_, spec)| !has_moved(&spec.origin));
        let hold = Hold::of(view.unlisted.clone(), held, view.cluster, &claims, stored);
        own.want(claims, hold.claims.clone(), view.now);
        self.health.begin();
        self.standings.begin();
        let nodes = view.nodes.counted_by(|name| own.object_of(name));
        let leading = if nodes.has_reports() { services::leading(view.cluster) } else { HashMap::new() };
        let nodes = nodes.led_by(leading);
        let (failing, out) = (own.failing(view.at), Judgement { happenings, ..Judgement::default() });
        let mut round = Round { judge: self, view, nodes: &nodes, claims: own, failing, out };
        round.classes(&verdicts);
        round.gateways(&verdicts, &assignment);
        round.listener_sets(&verdicts);
        round.services(&verdicts, &assignment);
        round.origins(&verdicts);
        round.pools(&assignment);
        round.routes(&verdicts);
        let mut out = round.out;
        if own.is_unmarked() {
            own.note_in_statuses(programmed::first(view, &verdicts, &assignment).as_ref());
        }
        out.take(view.basis().l2_statuses(&assignment));
        out.conflicts = view.basis().conflicts(&assignment);
        self.last = verdicts;
        self.bundle = view.bundle.map(str::to_owned);
        self.judged.retain(|object, _| out.objects.contains(object));
        let standing = self.standings.end(|object| out.objects.contains(object));
        let health = self.health.end(|object| out.objects.contains(object));
        let unwritten = if let Failures::Some { until } = failing { Some(until) } else { None };
        out.again = standing.into_iter().chain(health).chain(unwritten).min();
        out.problems = problems;
        hold.apply(&mut out.writes, &mut out.problems, view.cluster, |object| (view.status)(object));
        let left_alone = assignment.services.values().filter(|allocation| allocation.is_held);
        out.problems.extend(left_alone.filter_map(|allocation| allocation.problem.clone()));
        // One that is left alone has its annotation, too.
        let is_noted = |name: &ObjectName| {
            view.cluster.services.get(name).is_some_and(|service| service.noted.pool.is_some())
        };
        let noted = assignment.services.iter().filter(|(name, _)| is_noted(name));
        out.pooled.extend(noted.flat_map(|(_, allocation)| &allocation.addresses));
        out.holders = holders(view.cluster, &assignment);
        let allocations = assignment.gateways.into_values().chain(assignment.services.into_values());
        out.in_use.extend(allocations.flat_map(|allocation| allocation.addresses));
        // When it waits no more, it is judged as if for the first time.
        hold.objects.iter().for_each(|object| self.forget(object));
        out
    }

    /// Returns the objects, with addresses that were written but not reported yet.
    fn with_given(&mut self, view: &View<'_>) -> Cluster {
        let mut cluster = view.cluster.clone();
        cluster.pools_closed.clone_from(&view.metallb);
        cluster.address_hold = hold::addresses(&view.unlisted);
        self.given.retain(|name, (version, addresses)| {
            let object = ObjectRef { kind: Kind::Gateway, name: name.clone() };
            let is_old = (view.status)(&object).is_some_and(|stored| stored.resource_version == *version);
            if is_old && let Some(gateway) = cluster.gateways.get_mut(name) {
                Arc::make_mut(gateway).given.clone_from(addresses);
            }
            is_old
        });
        cluster
    }
}

struct Round<'r, 'v> {
    judge: &'r mut Judge,
    view: &'r View<'v>,
    nodes: &'r Counted<'r>,
    claims: &'r Claims,
    /// [`Claims::failing`].
    failing: Failures,
    out: Judgement,
}

impl Round<'_, '_> {
    fn classes(&mut self, verdicts: &Verdicts) {
        for (name, verdict) in &verdicts.classes {
            let object = ObjectRef { kind: Kind::GatewayClass, name: ObjectName::new("", Arc::clone(name)) };
            let (bundle, now) = (self.view.bundle, self.view.now);
            let is_same =
                self.judge.last.classes.get(name) == Some(verdict) && self.judge.bundle.as_deref() == bundle;
            self.one(object, is_same, Judged::default(), |current| {
                status::class::desired_status(current, verdict, bundle, now)
            });
        }
    }

    fn gateways(&mut self, verdicts: &Verdicts, assignment: &Assignment) {
        for (name, verdict) in &verdicts.gateways {
            let object = ObjectRef { kind: Kind::Gateway, name: name.clone() };
            let is_same = self.judge.last.gateways.get(name) == Some(verdict);
            let progress = self.progress(&object, &verdict.programmable, verdict.generation);
            let addresses = assignment.gateways.get(name).map_or(&[][..], |given| &given.addresses);
            let now = self.view.now;
            let judged = Judged {
                progress: Some(progress.clone()),
                addresses: addresses.to_vec(),
                ..Judged::default()
            };
            self.one(object, is_same, judged, |current| {
                status::gateway::desired_status(current, verdict, addresses, &progress, now)
            });
        }
    }

    fn listener_sets(&mut self, verdicts: &Verdicts) {
        for (name, verdict) in &verdicts.listener_sets {
            let object = ObjectRef { kind: Kind::ListenerSet, name: name.clone() };
            let is_same = self.judge.last.listener_sets.get(name) == Some(verdict);
            let progress = self.progress(&object, &verdict.programmable, verdict.generation);
            let now = self.view.now;
            let judged = Judged { progress: Some(progress.clone()), ..Judged::default() };
            self.one(object, is_same, judged, |current| {
                status::listener_set::desired_status(current, verdict, &progress, now)
            });
        }
    }

    /// While MetalLB may run, it writes their status.
    fn pools(&mut self, assignment: &Assignment) {
        let is_known = hold::addresses(&self.view.unlisted) == AddressHold::Nothing;
        let is_ours = self.view.metallb.is_none() && is_known;
        for (name, pool) in assignment.pools.iter().filter(|_| is_ours) {
            let object = ObjectRef { kind: Kind::IpAddressPool, name: name.clone() };
            self.one(object, false, Judged::default(), |current| status::pool::desired_status(current, pool));
        }
    }

    /// Judges all routes, including those that are no longer ours: our entries are removed from their status.
    fn routes(&mut self, verdicts: &Verdicts) {
        let cluster = self.view.cluster;
        let kinds = [
            (Kind::TlsRoute, &cluster.tls_routes, &verdicts.tls_routes),
            (Kind::TcpRoute, &cluster.tcp_routes, &verdicts.tcp_routes),
        ];
        for (kind, routes, verdicts) in kinds {
            for (name, route) in routes {
                let object = ObjectRef { kind, name: name.clone() };
                let verdict = verdicts.get(name);
                let last = match kind {
                    Kind::TlsRoute => self.judge.last.tls_routes.get(name),
                    _ => self.judge.last.tcp_routes.get(name),
                };
                let (is_same, now) = (last == verdict, self.view.now);
                let said =
                    verdict.and_then(|_| health::message(route, &cluster.endpoints, self.view.failing));
                let said = self.judge.health.of(&object, said, self.view.at);
                let health = said.clone().map(health::condition);
                let progress = verdict.filter(|verdict| verdict.is_accepted()).map(|verdict| {
                    let generation = verdict.generation;
                    match self.claims.has_grants(&object) {
                        true => Some(self.progress(&object, &Programmable::Yes, generation)),
                        false => None,
                    }
                });
                let programmed =
                    progress.as_ref().map(|progress| status::route::programmed(progress.as_ref()));
                let judged = Judged { health: said, progress: progress.flatten(), ..Judged::default() };
                let conditions =
                    status::route::OfAll { health: health.as_ref(), programmed: programmed.as_ref() };
                self.one(object, is_same, judged, |current| {
                    status::route::desired_status(current, verdict, conditions, &name.namespace, now)
                });
            }
        }
    }

    /// Returns which nodes hold an object of this generation, and whether that is enough.
    fn progress(&mut self, object: &ObjectRef, programmable: &Programmable, generation: i64) -> Progress {
        self.progress_since(object, programmable, generation, |_| true)
    }

    /// The same where its status says it of what it asks for now: Services have no generation.
    fn progress_since(
        &mut self,
        object: &ObjectRef,
        programmable: &Programmable,
        generation: i64,
        says_it_of_this: impl Fn(&Value) -> bool,
    ) -> Progress {
        if let Programmable::No(_) = programmable {
            return Progress::NoAgents;
        }
        let was = (self.view.status)(object).is_some_and(|stored| {
            status::is_programmed(&stored.status, object.kind, generation) && says_it_of_this(&stored.status)
        });
        let (version, at) = (self.claims.version_of(object), self.view.at);
        let progress = self.judge.standings.progress(object, version, was, self.nodes, at);
        let is_unwritten = version.is_none() && self.claims.fail(object, self.failing);
        let unwritten = is_unwritten.then(|| Progress::Unwritten(self.claims.refusal(object)));
        self.judge.standings.bounded(object, progress, unwritten, at)
    }

    fn one(
        &mut self,
        object: ObjectRef,
        is_same: bool,
        judged: Judged,
        desired: impl FnOnce(&Value) -> Option<Value>,
    ) {
        self.one_with(object, is_same, judged, None, desired);
    }

    /// The same of one that needs annotations, too.
    fn one_with(
        &mut self,
        object: ObjectRef,
        is_same: bool,
        judged: Judged,
        annotations: Option<Value>,
        desired: impl FnOnce(&Value) -> Option<Value>,
    ) {
        self.out.objects.insert(object.clone());
        let Some(stored) = (self.view.status)(&object) else { return };
        let judged = Judged { version: stored.resource_version.clone(), ..judged };
        if is_same && self.judge.judged.get(&object) == Some(&judged) {
            return;
        }
        let status = desired(&stored.status).or_else(|| annotations.is_some().then(|| json!({})));
        let write = status.map(|status| Write {
            is_urgent: status.get("addresses").is_some(),
            status,
            annotations,
            version: judged.version.clone(),
            whole: None,
        });
        if let Some(write) = &write
            && let Some(lost) = kube_events::won(&stored.status, &write.status)
        {
            self.out.won.insert(object.clone(), lost);
        }
        self.judge.judged.insert(object.clone(), judged);
        self.out.writes.push((object, write));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::claim_store::{ClaimNews, ClaimOutcome, ClaimWrite, Stored};
    use crate::controller::health::Failing;
    use crate::controller::reports::Reporting;
    use crate::model::Meta;
    use crate::model::cluster::{ClassSpec, ClusterRoute, GatewaySpec, LoadBalancerSpec, PoolsClosed};
    use crate::settle::tests::Scene;
    use crate::sources::kubernetes::StoredStatus;
    use crate::sources::kubernetes::api::claim::SETTLED;
    use crate::status::{CONTROLLER_NAME, Complaint, Held, Nodes};

    fn object(kind: Kind, name: &str) -> ObjectRef {
        ObjectRef { kind, name: ObjectName::new("ns", name) }
    }

    fn stored(version: &str, status: Value) -> StoredStatus {
        StoredStatus { resource_version: version.to_owned(), uid: "u".to_owned(), status }
    }

    static NO_NODES: Nodes = Nodes {
        live: BTreeMap::new(),
        unknown: BTreeMap::new(),
        joining: BTreeSet::new(),
        members: BTreeSet::new(),
        silent: BTreeSet::new(),
        are_unlisted: false,
    };
    static NO_FAILING: Failing = Failing::new();

    /// A view of this cluster, whose objects have these statuses. No agent runs, and nothing is wrong.
    pub(super) fn view<'a>(
        cluster: &'a Cluster,
        status: &'a dyn Fn(&ObjectRef) -> Option<&'a StoredStatus>,
    ) -> View<'a> {
        View {
            cluster,
            status,
            nodes: &NO_NODES,
            bundle: None,
            failing: &NO_FAILING,
            metallb: None,
            now: "2026-11-21T10:00:00Z",
            at: Instant::now(),
            unlisted: BTreeSet::new(),
            reporting: &Reporting::NONE,
        }
    }

    /// Judges `cluster`, whose objects have these statuses.
    fn judge(
        judge: &mut Judge,
        cluster: &Cluster,
        statuses: &BTreeMap<ObjectRef, StoredStatus>,
    ) -> Judgement {
        judge_without(judge, cluster, statuses, BTreeSet::new())
    }

    /// The same where these kinds are not listed.
    fn judge_without(
        judge: &mut Judge,
        cluster: &Cluster,
        statuses: &BTreeMap<ObjectRef, StoredStatus>,
        unlisted: BTreeSet<Source>,
    ) -> Judgement {
        let status = |object: &ObjectRef| statuses.get(object);
        judge.judge(&View { unlisted, ..view(cluster, &status) }, &mut Claims::default())
    }

    /// A controller that starts without the agents' Leases, and one that has just listed them.
    #[test]
    fn what_waits_for_nodes_stays_as_it_is_said_until_nodes_are_known() {
        let mut scene = Scene::new();
        scene.gateway("ns/gw", 1, "192.0.2.1", &["tls TLS:443"]);
        let gateway = object(Kind::Gateway, "gw");
        Arc::make_mut(scene.cluster().gateways.get_mut(&gateway.name).unwrap()).meta.generation = 3;
        let cluster = scene.cluster().clone();
        let mut claims = Claims::default();
        claims.take(ClaimNews::Listed(BTreeMap::new(), 0));
        let held = Held { claims_version: 0, ..Held::default() };
        let behind = Nodes { live: BTreeMap::from([("n1".to_owned(), held)]), ..Nodes::default() };
        let unlisted = Nodes { are_unlisted: true, ..Nodes::default() };
        let begun = Instant::now();
        let mut said = |this: &mut Judge, now: &Value, nodes: &Nodes, seconds: u64| {
            let stored = stored("5", now.clone());
            let status = |of: &ObjectRef| (*of == gateway).then_some(&stored);
            let at = begun + std::time::Duration::from_secs(seconds);
            let mut judged =
                |claims: &mut Claims| this.judge(&View { nodes, at, ..view(&cluster, &status) }, claims);
            let mut writes = judged(&mut claims).writes;
            carry_out(&mut claims);
            writes.extend(judged(&mut claims).writes);
            let of_it = writes.into_iter().rfind(|(of, _)| *of == gateway).and_then(|(_, write)| write);
            of_it.map(|write| write.status).filter(|status| status.get("conditions").is_some())
        };
        let text = |status: &Value| {
            let mut all = status["conditions"].as_array().unwrap().iter();
            all.find(|one| one["type"] == "Programmed").unwrap()["message"].as_str().unwrap().to_owned()
        };
        // Without a status there is nothing to keep.
        let first = said(&mut Judge::new(Facts::default()), &Value::Null, &unlisted, 0).unwrap();
        assert!(text(&first).starts_with("it is not known which nodes hold it"), "{first:#}");
        let mut this = Judge::new(Facts::default());
        said(&mut this, &first, &behind, 0);
        let waits = said(&mut this, &first, &behind, 20).unwrap();
        assert!(text(&waits).starts_with("waits for node n1"), "{waits:#}");
        for nodes in [&unlisted, &behind] {
            let mut next = Judge::new(Facts::default());
            assert_eq!(said(&mut next, &waits, nodes, 30), None);
        }
        let none = said(&mut Judge::new(Facts::default()), &waits, &Nodes::default(), 30).unwrap();
        assert!(text(&none).starts_with("no agent has a live Lease"), "{none:#}");
        assert_eq!(said(&mut Judge::new(Facts::default()), &none, &unlisted, 30), None);
        // What says how to find out says more than that it may be soon.
        let soon = waits
            .to_string()
            .replace(&text(&waits), "its Claims are being written, or nodes are about to hold them");
        let soon: Value = serde_json::from_str(&soon).unwrap();
        assert_ne!(soon, waits);
        let unknown = said(&mut Judge::new(Facts::default()), &soon, &unlisted, 30).unwrap();
        assert!(text(&unknown).starts_with("it is not known which nodes hold it"), "{unknown:#}");
        // What it asks for now was never said.
        let mut other = waits.clone();
        for condition in other["conditions"].as_array_mut().unwrap() {
            condition["observedGeneration"] = json!(7);
        }
        assert!(said(&mut Judge::new(Facts::default()), &other, &unlisted, 30).is_some());
    }

    /// It named nodes for ever that were not behind.
    #[test]
    fn what_waits_for_nodes_says_so_no_more_once_claims_or_leases_fail_for_some_time() {
        let mut scene = Scene::new();
        scene.gateway("ns/gw", 1, "192.0.2.1", &["tls TLS:443"]);
        let gateway = object(Kind::Gateway, "gw");
        Arc::make_mut(scene.cluster().gateways.get_mut(&gateway.name).unwrap()).meta.generation = 3;
        let cluster = scene.cluster().clone();
        let held = Held { claims_version: 0, ..Held::default() };
        let behind = Nodes { live: BTreeMap::from([("n1".to_owned(), held)]), ..Nodes::default() };
        let unlisted = Nodes { are_unlisted: true, ..Nodes::default() };
        let begun = Instant::now();
        for (nodes, refuses, text) in [
            (&behind, Some(""), "its Claims cannot be read or written"),
            (&behind, Some("a webhook says no"), ": a webhook says no; see which webhook"),
            (&unlisted, None, "it is still not known which nodes hold it"),
        ] {
            let waits = "waits for node n1";
            let condition = |message: &str| {
                let written = json!({"type": "Programmed", "status": "False", "reason": "Pending",
                           "observedGeneration": 3, "message": message});
                json!({"conditions": [written]})
            };
            let mut claims = Claims::default();
            claims.take(ClaimNews::Listed(BTreeMap::new(), 0));
            let mut this = Judge::new(Facts::default());
            let mut said = |message: &str, seconds: u64| {
                let stored = stored("5", condition(message));
                let status = |of: &ObjectRef| (*of == gateway).then_some(&stored);
                let at = begun + std::time::Duration::from_secs(seconds);
                this.forget(&gateway);
                let judged = this.judge(&View { nodes, at, ..view(&cluster, &status) }, &mut claims);
                if refuses.is_none() {
                    carry_out(&mut claims);
                }
                while let Ok((name, _)) = claims.next(at) {
                    match refuses.filter(|why| !why.is_empty()) {
                        Some(why) => drop(claims.failed(&name, &why.to_owned().into(), at)),
                        None => claims.ended(&name, ClaimOutcome::Failed, at),
                    }
                }
                let (_, write) = judged.writes.into_iter().find(|(of, _)| *of == gateway).unwrap();
                let status = write.map_or_else(|| condition(message), |write| write.status);
                let mut all = status["conditions"].as_array().unwrap().iter();
                let programmed = all.find(|one| one["type"] == "Programmed").unwrap();
                (programmed["message"].as_str().unwrap().to_owned(), judged.again.filter(|again| *again > at))
            };
            said(waits, 0);
            let (still, again) = said(waits, 1);
            assert_eq!(still, waits);
            let due = begun + std::time::Duration::from_secs(21);
            assert!(again.is_some_and(|again| again <= due), "time alone changes it");
            assert_eq!(said(waits, 19).0, waits);
            let now = said(waits, 21).0;
            assert!(now.contains(text), "{now}");
            let names_it = now.starts_with("its Claim gateway-ns-gw-");
            assert_eq!(names_it, refuses.is_some_and(|why| !why.is_empty()), "{now}");
            // It is said once.
            assert_eq!(said(&now, 90).0, now);
        }
    }

    /// Nodes do not serve it, and it was `Programmed`.
    #[test]
    fn a_claim_whose_owner_a_node_never_read_is_missing_to_that_owner() {
        let mut scene = Scene::new();
        scene.gateway("ns/gw", 1, "192.0.2.1", &["tls TLS:443"]);
        let gateway = object(Kind::Gateway, "gw");
        let cluster = scene.cluster().clone();
        let mut claims = Claims::default();
        claims.take(ClaimNews::Listed(BTreeMap::new(), 0));
        let (begun, stored) = (Instant::now(), stored("5", json!({})));
        let status = |of: &ObjectRef| (*of == gateway).then_some(&stored);
        Judge::new(Facts::default()).judge(&view(&cluster, &status), &mut claims);
        carry_out(&mut claims);
        let names: Vec<String> = claims.stored().map(|(name, _)| name.clone()).collect();
        let [own] = names.as_slice() else { panic!("{names:?}") };
        for (name, lacks) in [(own.as_str(), true), ("other", false)] {
            let complaint = Complaint {
                object: Some(format!("Claim/{name}")),
                missing: true,
                text: "spec: is no such thing".to_owned(),
                ..Complaint::default()
            };
            let held = Held { claims_version: 9, complaints: vec![complaint], ..Held::default() };
            let nodes = Nodes { live: BTreeMap::from([("n1".to_owned(), held)]), ..Nodes::default() };
            let status = |of: &ObjectRef| (*of == gateway).then_some(&stored);
            let mut this = Judge::new(Facts::default());
            let mut said = String::new();
            for seconds in [0, 20] {
                let at = begun + std::time::Duration::from_secs(seconds);
                let judged = this.judge(&View { nodes: &nodes, at, ..view(&cluster, &status) }, &mut claims);
                said.push_str(&format!("{:?}", judged.writes));
            }
            assert_eq!(said.contains("waits for node n1; n1: spec: is no such thing"), lacks, "{said}");
        }
    }

    #[test]
    fn a_route_that_left_us_is_written_once_and_not_looked_at_again() {
        let route = object(Kind::TlsRoute, "r");
        let mut cluster = Cluster::default();
        let meta = Meta { name: route.name.clone(), ..Meta::default() };
        cluster
            .tls_routes
            .insert(route.name.clone(), Arc::new(ClusterRoute { meta, ..ClusterRoute::default() }));
        let ours = json!({"parents": [{"parentRef": {"name": "gw"}, "controllerName": CONTROLLER_NAME, "conditions": []}]});
        let mut statuses = BTreeMap::from([(route.clone(), stored("5", ours.clone()))]);
        let mut this = Judge::new(Facts::default());
        let first = judge(&mut this, &cluster, &statuses);
        assert_eq!(first.objects, BTreeSet::from([route.clone()]));
        let [(written, Some(write))] = first.writes.as_slice() else { panic!("{:?}", first.writes) };
        assert_eq!((written, write.version.as_str()), (&route, "5"));
        assert_eq!(write.status, json!({"parents": []}));
        // Nothing is new: the previous result still applies.
        assert_eq!(judge(&mut this, &cluster, &statuses).writes, []);
        statuses.insert(route.clone(), stored("6", write.status.clone()));
        assert_eq!(judge(&mut this, &cluster, &statuses).writes, [(route.clone(), None)]);
        // Another controller restores the old status, or the judgement is requested again.
        statuses.insert(route.clone(), stored("7", ours));
        assert!(judge(&mut this, &cluster, &statuses).writes[0].1.is_some());
        this.forget(&route);
        assert!(judge(&mut this, &cluster, &statuses).writes[0].1.is_some());
        cluster.tls_routes.clear();
        let last = judge(&mut this, &cluster, &statuses);
        assert!(last.objects.is_empty() && last.writes.is_empty() && this.judged.is_empty());
    }

    /// The number of its routes is not written while they are unknown, though it was judged.
    #[test]
    fn an_objects_routes_are_counted_when_they_can_be_listed_again() {
        let gateway = object(Kind::Gateway, "g");
        let mut scene = Scene::new();
        scene.gateway("ns/g", 1, "192.0.2.1", &["tcp TCP:9000"]);
        let cluster = scene.cluster().clone();
        let mut this = Judge::new(Facts::default());
        let counted = |judgement: &Judgement| {
            let write = judgement.writes.iter().find(|(object, _)| *object == gateway);
            write
                .and_then(|(_, write)| Some(write.as_ref()?.status["listeners"][0]["attachedRoutes"].clone()))
        };
        let new = judge(&mut this, &cluster, &BTreeMap::from([(gateway.clone(), stored("1", json!({})))]));
        let write =
            new.writes.into_iter().find_map(|(object, write)| write.filter(|_| object == gateway)).unwrap();
        let mut status = write.status;
        status["listeners"][0]["attachedRoutes"] = 1.into();
        let statuses = BTreeMap::from([(gateway.clone(), stored("2", status))]);
        let unlisted = BTreeSet::from([Source::TcpRoutes]);
        assert_ne!(counted(&judge_without(&mut this, &cluster, &statuses, unlisted)), Some(json!(0)));
        assert_eq!(counted(&judge(&mut this, &cluster, &statuses)), Some(json!(0)));
    }

    /// A Service has no generation, so that its condition may be about the address before.
    #[test]
    fn a_services_new_address_is_not_shown_before_nodes_hold_it() {
        let service = object(Kind::Service, "s");
        let mut scene = Scene::new();
        let balancer =
            LoadBalancerSpec { addresses: vec!["192.0.2.8".parse().unwrap()], ..LoadBalancerSpec::default() };
        scene.service("ns/s", &["10.0.0.1"]).load_balancer = Some(Arc::new(balancer));
        let cluster = scene.cluster().clone();
        let status = json!({
            "loadBalancer": {"ingress": [{"ip": "192.0.2.7", "ports": [{"port": 443, "protocol": "TCP"}]}]},
            "conditions": [{"type": "vestibule.dev/Programmed", "status": "True"}],
        });
        let statuses = BTreeMap::from([(service.clone(), stored("5", status))]);
        let judged = judge(&mut Judge::new(Facts::default()), &cluster, &statuses);
        let (_, write) = judged.writes.into_iter().find(|(object, _)| *object == service).unwrap();
        let status = write.unwrap().status;
        assert_eq!(status["conditions"][0]["status"], "False", "{status}");
        assert!(!status.to_string().contains("192.0.2.8"), "{status}");
    }

    #[test]
    fn a_service_that_metallb_may_serve_is_left_alone() {
        let service = object(Kind::Service, "s");
        let mut scene = Scene::new();
        let given = vec!["192.0.2.7".parse().unwrap()];
        let balancer = LoadBalancerSpec { given, is_adopted: true, ..LoadBalancerSpec::default() };
        let spec = scene.service("ns/s", &["10.0.0.1"]);
        spec.load_balancer = Some(Arc::new(balancer));
        spec.noted.pool = Some("gone".into());
        let cluster = scene.cluster().clone();
        let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7", "ipMode": "VIP"}]}});
        let statuses = BTreeMap::from([(service.clone(), stored("5", status))]);
        let mut this = Judge::new(Facts::default());
        let mut judged = |closed: Option<PoolsClosed>| {
            let status = |object: &ObjectRef| statuses.get(object);
            this.judge(&View { metallb: closed, ..view(&cluster, &status) }, &mut Claims::default())
        };
        let held = judged(Some(PoolsClosed {
            why: "MetalLB runs".into(),
            brief: "MetalLB runs".into(),
            may_run: true,
            was_seen: true,
        }));
        assert!(held.writes.is_empty() && held.in_use.len() == 1, "{held:?}");
        assert_eq!(held.pooled, held.in_use, "as its annotation says");
        let [problem] = held.problems.as_slice() else { panic!("{:?}", held.problems) };
        assert_eq!((problem.object.as_ref(), &*problem.field), (Some(&service), "spec.loadBalancerClass"));
        let free = judged(None);
        assert_eq!(free.problems, []);
        let [(_, Some(write))] = free.writes.as_slice() else { panic!("{:?}", free.writes) };
        assert_eq!(write.status["loadBalancer"]["ingress"][0]["ip"], "192.0.2.7");
    }

    /// Agents would answer for the Service at an address that it has no more.
    #[test]
    fn claims_go_where_metallb_has_given_another_address_and_stay_otherwise() {
        let mut scene = Scene::new();
        scene.service("ns/s", &["10.0.0.1"]).load_balancer = Some(Arc::default());
        let mut cluster = scene.cluster().clone();
        let mut gives = |address: &str| {
            let given = vec![address.parse().unwrap()];
            let balancer = LoadBalancerSpec { given, is_adopted: true, ..LoadBalancerSpec::default() };
            let service = cluster.services.get_mut(&ObjectName::new("ns", "s")).unwrap();
            Arc::make_mut(service).load_balancer = Some(Arc::new(balancer));
            cluster.clone()
        };
        let (had, other) = (gives("192.0.2.7"), gives("192.0.2.9"));
        let (mut this, mut claims) = (Judge::new(Facts::default()), Claims::default());
        claims.take(ClaimNews::Listed(BTreeMap::new(), 0));
        let mut judged = |cluster: &Cluster, may_run: bool| {
            let runs = || "MetalLB runs".into();
            let metallb =
                may_run.then(|| PoolsClosed { why: runs(), brief: runs(), may_run, was_seen: may_run });
            this.judge(&View { metallb, ..view(cluster, &|_| None) }, &mut claims);
            let mut writes = Vec::new();
            while let Ok((name, write)) = claims.next(Instant::now()) {
                let version = "1".to_owned();
                let news = match write {
                    ClaimWrite::Create(spec) | ClaimWrite::Replace(spec, _) => {
                        let stored = Stored { spec, version, uid: "u".to_owned(), is_withdrawn: false };
                        ClaimNews::Put(name.clone(), Box::new(stored))
                    }
                    ClaimWrite::Delete { .. } => ClaimNews::Gone(name.clone()),
                };
                if name != SETTLED {
                    writes.push(matches!(news, ClaimNews::Gone(_)));
                }
                claims.take(news);
                claims.ended(&name, ClaimOutcome::Written, Instant::now());
            }
            writes
        };
        assert_eq!(judged(&had, false), [false], "it is granted");
        assert_eq!(judged(&had, true), [false; 0]);
        assert_eq!(judged(&other, true), [true]);
        assert_eq!(judged(&other, true), [false; 0]);
        assert_eq!(judged(&other, false), [false], "it is adopted with what it has by now");
    }

    /// Carries out what Claims are to be, and returns the origins of those written, with whether they went.
    fn carry_out(claims: &mut Claims) -> BTreeSet<(String, bool)> {
        let mut written = BTreeSet::new();
        while let Ok((name, write)) = claims.next(Instant::now()) {
            let news = match write {
                ClaimWrite::Create(spec) | ClaimWrite::Replace(spec, _) => {
                    written.extend((name != SETTLED).then(|| (spec.origin.name.clone(), false)));
                    let (version, uid) = ("1".to_owned(), "u".to_owned());
                    ClaimNews::Put(name.clone(), Box::new(Stored { spec, version, uid, is_withdrawn: false }))
                }
                ClaimWrite::Delete { .. } => {
                    let origin = claims.stored().find(|(other, _)| **other == name);
                    written.extend(origin.map(|(_, spec)| (spec.origin.name.clone(), true)));
                    ClaimNews::Gone(name.clone())
                }
            };
            claims.take(news);
            claims.ended(&name, ClaimOutcome::Written, Instant::now());
        }
        written
    }

    /// They are unknown, not gone: neither names nor addresses of theirs go to others, and what needs none of them goes on.
    #[test]
    fn while_gateways_classes_or_pools_are_not_listed_nothing_of_theirs_goes() {
        let mut scene = Scene::new();
        scene.gateway("ns/g", 1, "192.0.2.1", &["tls TLS:443"]);
        scene.tls("ns/r", 1, &["g"], &["a.example"], &["backend:443"]);
        scene.service("ns/backend", &["10.0.0.1"]);
        let mut balanced = |service: &str, addresses: &[&str]| {
            let addresses = addresses.iter().map(|one| one.parse().unwrap()).collect();
            let balancer = LoadBalancerSpec { addresses, ..LoadBalancerSpec::default() };
            scene.service(service, &["10.0.0.1"]).load_balancer = Some(Arc::new(balancer));
        };
        balanced("ns/has", &["192.0.2.8"]);
        balanced("ns/goes", &["192.0.2.9"]);
        let all = scene.cluster().clone();
        balanced_later(&mut scene);
        let mut changed = scene.cluster().clone();
        changed.services.remove(&ObjectName::new("ns", "goes"));
        let without = |cluster: &Cluster, unlisted: Source| {
            let mut cluster = cluster.clone();
            match unlisted {
                Source::Gateways => cluster.gateways.clear(),
                Source::GatewayClasses => cluster.classes.clear(),
                _ => cluster.pools.clear(),
            }
            cluster
        };
        for (unlisted, new) in [
            (Source::Gateways, &["goes"][..]),
            (Source::GatewayClasses, &["goes"]),
            (Source::Pools, &["by-value", "goes"]),
        ] {
            let (mut this, mut claims) = (Judge::new(Facts::default()), Claims::default());
            claims.take(ClaimNews::Listed(BTreeMap::new(), 0));
            let mut judged = |cluster: &Cluster, unlisted: &[Source]| {
                let unlisted = unlisted.iter().copied().collect();
                this.judge(&View { unlisted, ..view(cluster, &|_| None) }, &mut claims);
                carry_out(&mut claims)
            };
            let origins = |names: &[&str]| -> BTreeSet<(String, bool)> {
                names.iter().map(|name| ((*name).to_owned(), *name == "goes")).collect()
            };
            let first = judged(&all, &[]);
            assert_eq!(first, ["g", "goes", "has", "r"].map(|name| (name.to_owned(), false)).into());
            assert_eq!(judged(&without(&changed, unlisted), &[unlisted]), origins(new), "{unlisted:?}");
            assert_eq!(judged(&without(&changed, unlisted), &[unlisted]), origins(&[]), "{unlisted:?}");
            // What waited gets what it asks for, and nothing of what the others have.
            let rest: Vec<&str> =
                ["any", "by-value"].into_iter().filter(|name| !new.contains(name)).collect();
            assert_eq!(judged(&changed, &[]), origins(&rest), "{unlisted:?}");
        }
    }

    /// Adds Services that ask for any address, and for one of the chart's.
    fn balanced_later(scene: &mut Scene) {
        for (service, addresses) in [("ns/any", vec![]), ("ns/by-value", vec!["192.0.2.30".parse().unwrap()])]
        {
            let balancer = LoadBalancerSpec { addresses, ..LoadBalancerSpec::default() };
            scene.service(service, &["10.0.0.1"]).load_balancer = Some(Arc::new(balancer));
        }
    }

    #[test]
    fn a_service_that_is_no_longer_ours_loses_our_condition_alone() {
        let [left, never] = ["left", "never"].map(|name| object(Kind::Service, name));
        let mut cluster = Cluster::default();
        for object in [&left, &never] {
            cluster.services.insert(object.name.clone(), Arc::default());
        }
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let (ours, others) = (condition("vestibule.dev/Programmed"), condition("example.com/Seen"));
        let status = |conditions: Value| stored("5", json!({"loadBalancer": {}, "conditions": conditions}));
        let mut this = Judge::new(Facts::default());
        for (before, after) in [(json!([ours]), Value::Null), (json!([others, ours]), json!([others]))] {
            let statuses = BTreeMap::from([(left.clone(), status(before))]);
            this.forget_all();
            let judged = judge(&mut this, &cluster, &statuses);
            assert_eq!(judged.objects, BTreeSet::from([left.clone()]));
            let [(written, Some(write))] = judged.writes.as_slice() else { panic!("{:?}", judged.writes) };
            assert_eq!((written, &write.status), (&left, &json!({"conditions": after})));
        }
        assert!(judge(&mut this, &cluster, &BTreeMap::new()).objects.is_empty());
    }

    #[test]
    fn addresses_on_their_way_are_nobody_elses() {
        let gateway = object(Kind::Gateway, "gw");
        let mut cluster = Cluster::default();
        cluster.classes.insert("c".into(), Arc::new(ClassSpec::default()));
        let spec = GatewaySpec { class: "c".into(), ..GatewaySpec::default() };
        cluster.gateways.insert(gateway.name.clone(), Arc::new(spec));
        let address: IpAddr = "192.0.2.7".parse().unwrap();
        let write = Write {
            status: json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.7"}]}),
            version: "5".to_owned(),
            ..Write::default()
        };
        let mut this = Judge::new(Facts::default());
        this.gives(&gateway.name, &write);
        let given = |this: &mut Judge, version: &str| {
            let stored = stored(version, Value::Null);
            this.with_given(&view(&cluster, &|_| Some(&stored))).gateways[&gateway.name].given.clone()
        };
        assert_eq!(given(&mut this, "5"), [address]);
        assert_eq!(given(&mut this, "6"), [] as [IpAddr; 0], "the watch reported it: what it says holds");
        assert_eq!(given(&mut this, "5"), [] as [IpAddr; 0]);
    }
}
