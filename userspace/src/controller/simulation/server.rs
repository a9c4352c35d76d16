use super::super::claim_store::{ClaimWrite, Stored};
use super::super::queue::{Outcome, Write};
use super::options::{Hangs, Options};
use crate::dice::Dice;
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, Pattern};
use crate::settle::tests::{Scene, namespace};
use crate::sources::kubernetes::StoredStatus;
use crate::sources::kubernetes::api::claim::{ClaimOrigin, ClaimSpec, SETTLED};
use crate::status;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the API server has.
pub(super) struct Server {
    pub(super) cluster: Cluster,
    pub(super) statuses: BTreeMap<ObjectRef, StoredStatus>,
    pub(super) claims: BTreeMap<String, Stored>,
    version: u64,
    /// The number of writes of statuses and of Claims.
    pub(super) counts: (u64, u64),
    namespaces: usize,
    /// The number of the next route that is created.
    next: usize,
    hangs: Hangs,
    /// All routes were programmed for the first time.
    pub(super) are_all_programmed: bool,
    /// Who has each name of the shared Gateway: the name of its Claim.
    owners: BTreeMap<String, String>,
    /// Who asks for each name.
    asked: BTreeMap<String, BTreeSet<ObjectName>>,
}

impl Server {
    pub(super) fn new(options: &Options, _: &mut Dice) -> Self {
        let mut scene = Scene::new();
        scene.cluster().namespaces.labels.extend([namespace("infra")]);
        scene.gateway("infra/gw", 1, "192.0.2.1", &["tls TLS:443 from=All"]);
        for number in 0..options.namespaces {
            let own = format!("t{number}");
            scene.cluster().namespaces.labels.extend([namespace(&own)]);
            scene.service(&format!("{own}/s"), &["10.1.0.1"]);
        }
        let mut this = Self {
            cluster: scene.cluster().clone(),
            statuses: BTreeMap::new(),
            claims: BTreeMap::new(),
            version: 1,
            counts: (0, 0),
            namespaces: options.namespaces,
            next: 0,
            hangs: options.hangs,
            are_all_programmed: false,
            owners: BTreeMap::new(),
            asked: BTreeMap::new(),
        };
        for kind in [Kind::GatewayClass, Kind::Gateway] {
            let names: Vec<_> = match kind {
                Kind::Gateway => this.cluster.gateways.keys().cloned().collect(),
                _ => vec![ObjectName::new("", "ours")],
            };
            for name in names {
                this.touch(&ObjectRef { kind, name });
            }
        }
        (0..options.routes).for_each(|_| drop(this.create()));
        this
    }

    /// Its newest version.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The object has another version from now on.
    fn touch(&mut self, object: &ObjectRef) {
        self.version += 1;
        let status = self.statuses.get(object).map_or(Value::Null, |stored| stored.status.clone());
        let (resource_version, uid) = (self.version.to_string(), "u".to_owned());
        self.statuses.insert(object.clone(), StoredStatus { resource_version, uid, status });
    }

    pub(super) fn routes(&self) -> Vec<ObjectRef> {
        let names = self.cluster.tls_routes.keys().cloned();
        names.map(|name| ObjectRef { kind: Kind::TlsRoute, name }).collect()
    }

    /// Whether writes of the object's status, or of its Claims, hang.
    pub(super) fn hangs(&self, object: &ObjectRef) -> bool {
        match self.hangs {
            Hangs::Nothing => false,
            Hangs::Namespaces(count) => is_among(&object.name.namespace, count),
            Hangs::Claims(count) => self.are_all_programmed && is_among(&object.name.namespace, count),
            Hangs::Everything => true,
        }
    }

    /// Whether writes of the object's status hang.
    pub(super) fn status_hangs(&self, object: &ObjectRef) -> bool {
        !matches!(self.hangs, Hangs::Claims(_)) && self.hangs(object)
    }

    /// Whether a write of a Claim hangs.
    pub(super) fn claim_hangs(&self, name: &str, write: &ClaimWrite) -> bool {
        let Hangs::Claims(count) = self.hangs else { return false };
        let namespace = match write {
            ClaimWrite::Create(spec) | ClaimWrite::Replace(spec, _) => spec.origin.namespace.as_str(),
            ClaimWrite::Delete { .. } => self.claims[name].spec.origin.namespace.as_str(),
        };
        self.are_all_programmed && is_among(namespace, count)
    }

    fn create(&mut self) -> ObjectRef {
        let (number, namespace) = (self.next, self.next % self.namespaces);
        self.next += 1;
        let name = route_name(namespace, number);
        let host = hostname(namespace, number, 1);
        let age = i64::try_from(number).unwrap();
        let route = Scene::route(&["infra/gw"], &name.to_string(), age, &[&host.to_string()], &["s:443"]);
        let mut route = Arc::unwrap_or_clone(route);
        route.meta.generation = 1;
        let object = ObjectRef { kind: Kind::TlsRoute, name: name.clone() };
        self.cluster.tls_routes.insert(name.clone(), Arc::new(route));
        self.ask(&name, [host].into());
        self.touch(&object);
        object
    }

    /// Changes something. Returns the routes of which an answer is expected. Only routes that `may` are changed.
    pub(super) fn change(&mut self, dice: &mut Dice, may: impl Fn(&ObjectRef) -> bool) -> Vec<ObjectRef> {
        if dice.below(10) == 0 {
            return vec![self.create()];
        }
        let names: Vec<_> = (0..8)
            .filter_map(|_| {
                let number = dice.below(self.next);
                let name = route_name(number % self.namespaces, number);
                self.cluster.tls_routes.contains_key(&name).then_some((number, name))
            })
            .filter(|(_, name)| may(&ObjectRef { kind: Kind::TlsRoute, name: name.clone() }))
            .take(2)
            .collect();
        let [(number, name), rest @ ..] = &names[..] else { return Vec::new() };
        let object = ObjectRef { kind: Kind::TlsRoute, name: name.clone() };
        let route = Arc::make_mut(self.cluster.tls_routes.get_mut(name).unwrap());
        route.meta.generation += 1;
        let generation = route.meta.generation;
        let own = hostname(number % self.namespaces, *number, generation);
        let others = match (dice.below(10), rest) {
            // It asks for what another one has, too.
            (0, [(_, victim)]) => self.cluster.tls_routes[victim].hostnames.clone(),
            _ => Vec::new(),
        };
        self.ask(name, std::iter::once(own).chain(others).collect());
        self.touch(&object);
        vec![object]
    }

    /// Reports to the controller's store what an object is now.
    pub(super) fn report(
        &self,
        object: &ObjectRef,
        cluster: &mut Cluster,
        statuses: &mut BTreeMap<ObjectRef, StoredStatus>,
    ) {
        if let Some(route) = self.cluster.tls_routes.get(&object.name) {
            cluster.tls_routes.insert(object.name.clone(), Arc::clone(route));
        }
        if let Some(stored) = self.statuses.get(object) {
            statuses.insert(object.clone(), stored.clone());
        }
    }

    pub(super) fn write_status(&mut self, object: &ObjectRef, write: &Write) -> Outcome {
        self.counts.0 += 1;
        if self.status_hangs(object) {
            return Outcome::Failed;
        }
        let Some(stored) = self.statuses.get_mut(object) else { return Outcome::Conflict };
        if stored.resource_version != write.version {
            return Outcome::Conflict;
        }
        if !stored.status.is_object() {
            stored.status = Value::Object(serde_json::Map::new());
        }
        for (field, value) in write.status.as_object().unwrap() {
            stored.status[field] = value.clone();
        }
        self.touch(object);
        Outcome::Written
    }

    /// Whether an object says that it is programmed as it is now.
    pub(super) fn says_programmed(&self, object: &ObjectRef) -> bool {
        let Some(generation) = self.generation(object) else { return false };
        self.statuses
            .get(object)
            .is_some_and(|stored| status::is_programmed(&stored.status, object.kind, generation))
    }

    /// The generation of a route or Gateway.
    pub(super) fn generation(&self, object: &ObjectRef) -> Option<i64> {
        match object.kind {
            Kind::TlsRoute => self.cluster.tls_routes.get(&object.name).map(|route| route.meta.generation),
            Kind::Gateway => self.cluster.gateways.get(&object.name).map(|gateway| gateway.meta.generation),
            _ => None,
        }
    }

    /// Whether an object's status says that it is refused, or that others have all that it asks for.
    pub(super) fn is_refused(&self, object: &ObjectRef) -> bool {
        let Some(stored) = self.statuses.get(object) else { return false };
        let path = if object.kind == Kind::TlsRoute { "/parents/0/conditions" } else { "/conditions" };
        let conditions = stored.status.pointer(path).and_then(Value::as_array).into_iter().flatten();
        conditions.into_iter().any(|one| {
            one["type"] == "Accepted" && one["status"] == "False" || one["reason"] == "NothingGranted"
        })
    }

    /// Returns the version of the newest Claim of a route.
    pub(super) fn claims_version(&self, object: &ObjectRef) -> u64 {
        let is_of_it = |stored: &&Stored| {
            let origin = &stored.spec.origin;
            *origin.name == *object.name.name && *origin.namespace == *object.name.namespace
        };
        let versions = self.claims.values().filter(is_of_it).map(|stored| stored.version.parse().unwrap());
        versions.max().unwrap()
    }

    /// Returns the new version; `None`: a conflict, or it hangs.
    pub(super) fn write_claim(&mut self, name: &str, write: ClaimWrite) -> Option<u64> {
        self.counts.1 += 1;
        if self.claim_hangs(name, &write) {
            return None;
        }
        let found = self.claims.get(name).map(|stored| stored.version.clone());
        let (spec, expected) = match write {
            ClaimWrite::Create(spec) => (Some(spec), None),
            ClaimWrite::Replace(spec, version) => (Some(spec), Some(version)),
            ClaimWrite::Delete { version, .. } => (None, Some(version)),
        };
        if found != expected {
            return None;
        }
        self.version += 1;
        let before = self.claims.get(name).map(|stored| stored.spec.clone()).unwrap_or_default();
        self.check(name, &before, spec.as_ref());
        match spec {
            Some(spec) => {
                let version = self.version.to_string();
                let stored = Stored { spec, version, uid: "u".to_owned(), is_withdrawn: false };
                self.claims.insert(name.to_owned(), stored);
            }
            None => drop(self.claims.remove(name)),
        }
        Some(self.version)
    }

    /// Checks what must always hold: a name for which its owner still asks goes to no other namespace. (Within one, the Gateway API's
    /// order holds.)
    fn check(&mut self, claim: &str, before: &ClaimSpec, after: Option<&ClaimSpec>) {
        if claim == SETTLED {
            return;
        }
        let names = |spec: &ClaimSpec| -> BTreeSet<String> {
            spec.grants.iter().filter_map(|grant| grant.names.clone()).collect()
        };
        let (had, has) = (names(before), after.map(names).unwrap_or_default());
        for lost in had.difference(&has) {
            let namespace = before.origin.namespace.as_str();
            let asks = self.askers(lost).filter(|asker| &*asker.namespace == namespace).count();
            assert!(
                asks != 1 || !self.asks(&before.origin, lost),
                "{}/{} loses {lost}, for which it still asks",
                namespace,
                before.origin.name
            );
            if self.owners.get(lost).is_some_and(|owner| owner == claim) {
                self.owners.remove(lost);
            }
        }
        for won in has.difference(&had) {
            let Some(owner) = self.owners.insert(won.clone(), claim.to_owned()) else { continue };
            let (mine, theirs) = (&after.unwrap().origin, &self.claims[&owner].spec.origin);
            assert!(
                mine.namespace == theirs.namespace || !self.asks(theirs, won),
                "{}/{} gets {won}, for which {}/{} still asks",
                mine.namespace,
                mine.name,
                theirs.namespace,
                theirs.name
            );
        }
    }

    /// This route asks for this name, too. Returns the route.
    pub(super) fn ask_also(&mut self, number: usize, name: &str) -> ObjectRef {
        let route = route_name(number % self.namespaces, number);
        let also = crate::config::pattern(name).unwrap();
        let asked = self.cluster.tls_routes[&route].hostnames.iter().cloned().chain([also]).collect();
        self.ask(&route, asked);
        Arc::make_mut(self.cluster.tls_routes.get_mut(&route).unwrap()).meta.generation += 1;
        let object = ObjectRef { kind: Kind::TlsRoute, name: route };
        self.touch(&object);
        object
    }

    /// Returns the name of the route that has this name.
    pub(super) fn owner(&self, name: &str) -> Option<&str> {
        Some(self.claims[self.owners.get(name)?].spec.origin.name.as_str())
    }

    /// Whether the route of a claim asks for a name now.
    fn asks(&self, origin: &ClaimOrigin, name: &str) -> bool {
        let object = ObjectName::new(origin.namespace.as_str(), origin.name.as_str());
        self.askers(name).any(|asker| *asker == object)
    }

    fn askers(&self, name: &str) -> impl Iterator<Item = &ObjectName> {
        self.asked.get(name).into_iter().flatten()
    }

    /// A route asks for these names from now on.
    fn ask(&mut self, name: &ObjectName, hostnames: BTreeSet<Pattern>) {
        let route = Arc::make_mut(self.cluster.tls_routes.get_mut(name).unwrap());
        let before = std::mem::replace(&mut route.hostnames, hostnames.iter().cloned().collect());
        for pattern in before {
            let askers = self.asked.entry(pattern.to_string()).or_default();
            askers.remove(name);
        }
        for pattern in hostnames {
            self.asked.entry(pattern.to_string()).or_default().insert(name.clone());
        }
    }
}

/// Whether this is one of the first namespaces, this many.
fn is_among(namespace: &str, count: usize) -> bool {
    let number = namespace.strip_prefix('t').and_then(|number| number.parse().ok());
    number.is_some_and(|number: usize| number < count)
}

/// The name that a route asks for.
fn hostname(namespace: usize, route: usize, generation: i64) -> Pattern {
    let text = format!("r{route}-{generation}.t{namespace}.example.com");
    crate::config::pattern(&text).unwrap()
}

fn route_name(namespace: usize, route: usize) -> ObjectName {
    ObjectName::new(format!("t{namespace}").as_str(), format!("r{route}").as_str())
}
