//! What waits for a kind that cannot be listed, and Services that are left alone. Pure.
//!
//! What waits for which kind is in its row ([`Waits`]).
//!
//! A Claim that waits keeps what it was granted: another one that would get it waits, too.

use super::queue::Write;
use crate::model::cluster::{AddressHold, ClusterRoute, GatewayListener, ParentRef};
use crate::model::{Claim, Cluster, Kind, Meta, ObjectName, ObjectRef, Problem};
use crate::origins;
use crate::sources::kubernetes::api::claim::{ClaimGrant, ClaimOrigin, ClaimSpec};
use crate::sources::kubernetes::{Source, StoredStatus, Waits};
use foldhash::HashSet;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Whether nothing can be judged without this source.
pub(super) fn is_basis(source: Source) -> bool {
    source.waits() == Waits::All
}

/// Which addresses nobody gets while these sources are not listed.
pub(super) fn addresses(unlisted: &BTreeSet<Source>) -> AddressHold {
    let hold = |source: &Source| match source.waits() {
        Waits::All | Waits::Gateways => AddressHold::All,
        Waits::Pools => AddressHold::Pools,
        Waits::ObjectsOf(_) | Waits::Routes(_) | Waits::Parents(_) | Waits::References | Waits::Nothing => {
            AddressHold::Nothing
        }
    };
    unlisted.iter().map(hold).max().unwrap_or_default()
}

/// What waits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hold {
    unlisted: BTreeSet<Source>,
    /// Objects whose status and Events wait.
    pub(super) objects: BTreeSet<ObjectRef>,
    /// Names of Claims that stay as they are.
    pub(super) claims: BTreeSet<String>,
}

/// What Claims that wait have: protocol and names, by address and port.
type Granted<'a> = BTreeMap<(&'a str, i32), There<'a>>;

/// What Claims that wait have at one of them.
#[derive(Default)]
struct There<'a> {
    protocols: BTreeSet<&'a str>,
    /// `None`: the address and port itself.
    names: HashSet<Option<&'a str>>,
}

impl Hold {
    /// What waits while these sources are not listed, and with these objects. `wanted` was settled without them, `stored` is there.
    pub(super) fn of<'a>(
        unlisted: BTreeSet<Source>,
        objects: BTreeSet<ObjectRef>,
        cluster: &Cluster,
        wanted: &[Claim],
        stored: impl Iterator<Item = (&'a String, &'a ClaimSpec)>,
    ) -> Self {
        let mut this = Self { unlisted, objects, ..Self::default() };
        if this.is_empty() {
            return this;
        }
        this.routes(cluster);
        this.objects_of(cluster);
        let stored: Vec<_> = stored.collect();
        if this.unlisted.is_empty() && !stored.iter().any(|(_, spec)| this.holds_origin(&spec.origin)) {
            return this;
        }
        let mut wanted: Vec<(String, ClaimSpec)> = wanted
            .iter()
            .filter_map(|claim| {
                let origin = ClaimOrigin::of(claim)?;
                Some((origin.object_name(), ClaimSpec::of(origin, claim, "")))
            })
            .collect();
        // One that waits because of another may itself have what a third one would get.
        loop {
            let is_held = |(name, spec): &(&String, &ClaimSpec)| {
                this.claims.contains(*name) || this.holds_origin(&spec.origin)
            };
            let held: Vec<_> = stored.iter().copied().filter(is_held).collect();
            let granted = granted(&held);
            this.claims.extend(held.into_iter().map(|(name, _)| name.clone()));
            let (waiting, free): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(name, spec)| {
                this.claims.contains(name)
                    || this.holds_origin(&spec.origin)
                    || spec.grants.iter().any(|grant| is_taken(&granted, &spec.protocol, grant))
            });
            wanted = free;
            if waiting.is_empty() {
                return this;
            }
            for (name, spec) in waiting {
                this.objects.extend(object(&spec.origin));
                this.claims.insert(name);
            }
        }
    }

    /// Removes what waits from what was judged, and leaves unknown numbers as they are.
    pub(super) fn apply<'a>(
        &self,
        writes: &mut Vec<(ObjectRef, Option<Write>)>,
        problems: &mut Vec<Problem>,
        cluster: &Cluster,
        stored: impl Fn(&ObjectRef) -> Option<&'a StoredStatus>,
    ) {
        if self.is_empty() {
            return;
        }
        writes.retain(|(object, _)| !self.objects.contains(object));
        problems
            .retain(|problem| problem.object.as_ref().is_none_or(|object| !self.objects.contains(object)));
        for (object, write) in writes {
            let Some(current) = stored(object).map(|stored| &stored.status) else { continue };
            if let Some(new) = write {
                self.keep_counts(cluster, object, current, &mut new.status);
                if new.annotations.is_none() && says_nothing_new(&new.status, current) {
                    *write = None;
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.unlisted.is_empty() && self.objects.is_empty()
    }

    /// Routes that need what is not listed.
    fn routes(&mut self, cluster: &Cluster) {
        let kinds = [(Kind::TlsRoute, &cluster.tls_routes), (Kind::TcpRoute, &cluster.tcp_routes)];
        for (kind, routes) in kinds {
            for (name, route) in routes {
                let waits = |source: Source| match source.waits() {
                    Waits::Parents(parents) => route.parents.iter().any(|parent| is_of(parent, parents)),
                    Waits::Gateways => route.parents.iter().any(leads_to_gateway),
                    Waits::References => leaves_its_namespace(route),
                    Waits::All | Waits::Pools | Waits::ObjectsOf(_) | Waits::Routes(_) | Waits::Nothing => {
                        false
                    }
                };
                if self.unlisted.iter().copied().any(waits) {
                    self.objects.insert(ObjectRef { kind, name: name.clone() });
                }
            }
        }
    }

    /// Objects of kinds that cannot be judged, for what decides about them is not listed.
    fn objects_of(&mut self, cluster: &Cluster) {
        for source in &self.unlisted {
            let kinds = match source.waits() {
                Waits::ObjectsOf(kind) => [Some(kind), None],
                Waits::Gateways => [Some(Kind::Gateway), Some(Kind::ListenerSet)],
                _ => continue,
            };
            for kind in kinds.into_iter().flatten() {
                let object = |meta: &Meta| ObjectRef { kind, name: meta.name.clone() };
                self.objects.extend(cluster.metas(kind).map(object));
            }
        }
    }

    fn holds_origin(&self, origin: &ClaimOrigin) -> bool {
        let is_unlisted = |of: Kind| self.unlisted.iter().any(|source| kind(*source) == Some(of));
        object(origin).is_some_and(|object| is_unlisted(object.kind) || self.objects.contains(&object))
    }

    /// The numbers of routes and ListenerSets in a status that are not known stay as they are.
    fn keep_counts(&self, cluster: &Cluster, object: &ObjectRef, current: &Value, new: &mut Value) {
        const ROUTES: &str = "attachedRoutes";
        const SETS: &str = "attachedListenerSets";
        let listeners: &[GatewayListener] = match object.kind {
            Kind::Gateway => cluster.gateways.get(&object.name).map_or(&[], |gateway| &gateway.listeners),
            Kind::ListenerSet => cluster.listener_sets.get(&object.name).map_or(&[], |set| &set.listeners),
            _ => return,
        };
        for listener in listeners.iter().filter(|listener| self.counts_are_unknown(listener)) {
            let before = entry(current, &listener.name).and_then(|entry| entry.get(ROUTES)).cloned();
            let entries = new.get_mut("listeners").and_then(Value::as_array_mut);
            let entry = entries.and_then(|all| all.iter_mut().find(|entry| is_named(entry, &listener.name)));
            if let (Some(before), Some(entry)) = (before, entry.and_then(Value::as_object_mut)) {
                entry.insert(ROUTES.to_owned(), before);
            }
        }
        if self.unlisted.contains(&Source::ListenerSets)
            && let (Some(before), Some(status)) = (current.get(SETS), new.as_object_mut())
        {
            status.insert(SETS.to_owned(), before.clone());
        }
    }

    fn counts_are_unknown(&self, listener: &GatewayListener) -> bool {
        let routes = if &*listener.protocol == "TCP" { Source::TcpRoutes } else { Source::TlsRoutes };
        self.unlisted.contains(&routes)
    }
}

/// The kind of objects whose Claims wait for a source, of those that something but not everything waits for.
fn kind(source: Source) -> Option<Kind> {
    match source.waits() {
        Waits::ObjectsOf(kind) | Waits::Routes(kind) | Waits::Parents(kind) => Some(kind),
        Waits::Gateways => Some(Kind::Gateway),
        Waits::All | Waits::Pools | Waits::References | Waits::Nothing => None,
    }
}

fn granted<'a>(held: &[(&String, &'a ClaimSpec)]) -> Granted<'a> {
    let mut granted = Granted::new();
    for (_, spec) in held {
        for grant in &spec.grants {
            let there = granted.entry((grant.address.as_str(), grant.port)).or_default();
            there.protocols.insert(spec.protocol.as_str());
            there.names.insert(grant.names.as_deref());
        }
    }
    granted
}

/// Whether a Claim that waits has this. Many may answer at an address and port with TLS, and one with TCP.
fn is_taken(granted: &Granted<'_>, protocol: &str, grant: &ClaimGrant) -> bool {
    granted.get(&(grant.address.as_str(), grant.port)).is_some_and(|there| {
        let names = grant.names.as_deref();
        let is_shared = names.is_none() && protocol == "TLS";
        there.protocols.iter().any(|other| *other != protocol) || (!is_shared && there.names.contains(&names))
    })
}

/// Returns the object that a Claim is of.
pub(super) fn object(origin: &ClaimOrigin) -> Option<ObjectRef> {
    let kind = origins::kind(&origin.kind)?;
    Some(ObjectRef { kind, name: ObjectName::new(origin.namespace.as_str(), origin.name.as_str()) })
}

fn is_of(parent: &ParentRef, kind: Kind) -> bool {
    parent.kind.as_deref() == Some(kind.text())
}

/// Whether a parent is a Gateway, as it is by default, or a ListenerSet, which is attached to one.
fn leads_to_gateway(parent: &ParentRef) -> bool {
    parent.kind.is_none() || is_of(parent, Kind::Gateway) || is_of(parent, Kind::ListenerSet)
}

fn leaves_its_namespace(route: &ClusterRoute) -> bool {
    let own = &route.meta.name.namespace;
    let mut references = route.rules.iter().flatten();
    references.any(|reference| reference.namespace.as_ref().is_some_and(|other| other != own))
}

fn entry<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status.get("listeners")?.as_array()?.iter().find(|entry| is_named(entry, name))
}

/// Whether a merge patch (RFC 7396) would change nothing.
fn says_nothing_new(patch: &Value, current: &Value) -> bool {
    let Value::Object(fields) = patch else { return patch == current };
    current.is_object()
        && fields.iter().all(|(name, new)| match current.get(name) {
            Some(old) => says_nothing_new(new, old),
            None => new.is_null(),
        })
}

fn is_named(entry: &Value, name: &str) -> bool {
    entry.get("name").and_then(Value::as_str) == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::claim::{ClaimBackends, Grant, Granted as Has};
    use crate::model::cluster::{BackendRef, GatewaySpec};
    use crate::model::{Opaque, Origin, OriginObject, Pattern, Protocol, ServerName};
    use serde_json::json;
    use std::sync::Arc;

    fn route(name: &str) -> ObjectRef {
        ObjectRef { kind: Kind::TlsRoute, name: ObjectName::new("ns", name) }
    }

    /// A claim of an object to these names.
    fn claim(kind: Kind, name: &str, names: &[&str]) -> Claim {
        let at = "192.0.2.1:443".parse().unwrap();
        let of = |name: &&str| Has::Names(Pattern::Exact(ServerName::new(name).unwrap()));
        let grant = |name: &&str| Grant::new(at, Protocol::Tls, of(name));
        let binding = Grant::new(at, Protocol::Tls, Has::Binding);
        Claim {
            origin: Origin::Object { created_secs: 0, kind, name: ObjectName::new("ns", name) },
            part: "0".into(),
            tenant: Some("ns".into()),
            port: 443,
            protocol: Protocol::Tls.into(),
            route: None,
            grants: names.iter().map(grant).chain([binding]).collect(),
            asked: None,
            backends: ClaimBackends::None,
            source_ranges: None,
            affinity: crate::model::Affinity::None,
            traffic: crate::model::TrafficPolicy::Cluster,
            health_port: None,
        }
    }

    fn stored(claims: &[Claim]) -> BTreeMap<String, ClaimSpec> {
        let stored = |claim: &Claim| {
            let origin = ClaimOrigin::of(claim).unwrap();
            (origin.object_name(), ClaimSpec::of(origin, claim, "t"))
        };
        claims.iter().map(stored).collect()
    }

    fn name(claim: &Claim) -> String {
        ClaimOrigin::of(claim).unwrap().object_name()
    }

    /// A cluster with a route that has this parent, and a backend in this namespace.
    fn cluster(parent: &str, namespace: Option<&str>) -> Cluster {
        let name = route("r").name;
        let backend = BackendRef {
            group: "".into(),
            kind: "Service".into(),
            namespace: namespace.map(Into::into),
            name: "s".into(),
            port: Some(443),
            weight: 1,
        };
        let parent = ParentRef { kind: Some(parent.into()), ..ParentRef::default() };
        let route = ClusterRoute {
            meta: Meta { name: name.clone(), ..Meta::default() },
            parents: vec![parent],
            rules: vec![vec![backend]],
            ..ClusterRoute::default()
        };
        Cluster { tls_routes: BTreeMap::from([(name, Arc::new(route))]), ..Cluster::default() }
    }

    fn objects(unlisted: Source, cluster: &Cluster) -> BTreeSet<ObjectRef> {
        Hold::of(BTreeSet::from([unlisted]), BTreeSet::new(), cluster, &[], [].into_iter()).objects
    }

    #[test]
    fn routes_to_other_namespaces_wait_for_reference_grants() {
        let grants = Source::ReferenceGrants;
        assert_eq!(objects(grants, &cluster("Gateway", Some("other"))), BTreeSet::from([route("r")]));
        assert_eq!(objects(grants, &cluster("Gateway", Some("ns"))), BTreeSet::new());
        assert_eq!(objects(grants, &cluster("Gateway", None)), BTreeSet::new());
        assert_eq!(objects(Source::TcpRoutes, &cluster("Gateway", Some("other"))), BTreeSet::new());
    }

    #[test]
    fn routes_to_listener_sets_wait_for_these() {
        assert_eq!(objects(Source::ListenerSets, &cluster("ListenerSet", None)), [route("r")].into());
        assert_eq!(objects(Source::ListenerSets, &cluster("Gateway", None)), BTreeSet::new());
        assert_eq!(objects(Source::EndpointSlices, &cluster("ListenerSet", Some("other"))), BTreeSet::new());
    }

    #[test]
    fn claims_of_a_kind_that_is_not_listed_stay_and_others_come_and_go() {
        let (tcp, gone) = (claim(Kind::TcpRoute, "t", &[]), claim(Kind::TlsRoute, "gone", &["a.example"]));
        let new = claim(Kind::TlsRoute, "new", &["b.example"]);
        let there = stored(&[tcp.clone(), gone]);
        let unlisted = BTreeSet::from([Source::TcpRoutes]);
        let hold = Hold::of(
            unlisted,
            BTreeSet::new(),
            &Cluster::default(),
            std::slice::from_ref(&new),
            there.iter(),
        );
        assert_eq!((hold.claims, hold.objects), ([name(&tcp)].into(), BTreeSet::new()));
        let all = Hold::of(BTreeSet::new(), BTreeSet::new(), &Cluster::default(), &[new], there.iter());
        assert_eq!(all, Hold::default());
    }

    #[test]
    fn claims_of_objects_that_are_left_alone_stay() {
        let (own, other) =
            (claim(Kind::Service, "s", &["a.example"]), claim(Kind::Service, "t", &["a.example"]));
        let object = ObjectRef { kind: Kind::Service, name: ObjectName::new("ns", "s") };
        let hold = |there: &[Claim], wanted: &[Claim]| {
            let objects = BTreeSet::from([object.clone()]);
            Hold::of(BTreeSet::new(), objects, &Cluster::default(), wanted, stored(there).iter()).claims
        };
        assert_eq!(hold(&[], std::slice::from_ref(&other)), BTreeSet::new(), "it has none");
        let both = BTreeSet::from([name(&own), name(&other)]);
        assert_eq!(hold(&[own], &[other]), both, "what it has goes to no other one");
    }

    #[test]
    fn what_a_claim_that_waits_has_goes_to_no_other_one() {
        // The ListenerSet's name would go to "young", what that has to "third"; "free" wants neither.
        let there = stored(&[
            claim(Kind::ListenerSet, "set", &["a.example"]),
            claim(Kind::TlsRoute, "young", &["b.example"]),
        ]);
        let wanted = [
            claim(Kind::TlsRoute, "free", &["c.example"]),
            claim(Kind::TlsRoute, "third", &["b.example"]),
            claim(Kind::TlsRoute, "young", &["a.example"]),
        ];
        let hold = Hold::of(
            [Source::ListenerSets].into(),
            BTreeSet::new(),
            &Cluster::default(),
            &wanted,
            there.iter(),
        );
        assert_eq!(hold.objects, BTreeSet::from([route("third"), route("young")]));
        assert!(!hold.claims.contains(&name(&wanted[0])) && hold.claims.len() == 3, "{:?}", hold.claims);
        // With another protocol, the whole address and port is another's.
        let tcp = Claim { protocol: Protocol::Tcp.into(), ..claim(Kind::Service, "s", &[]) };
        let hold = Hold::of(
            [Source::ListenerSets].into(),
            BTreeSet::new(),
            &Cluster::default(),
            std::slice::from_ref(&tcp),
            there.iter(),
        );
        assert!(hold.claims.contains(&name(&tcp)), "{:?}", hold.claims);
    }

    #[test]
    fn status_and_events_of_what_waits_are_not_written_and_unknown_numbers_stay() {
        let listener = |name: &str, protocol: &str| GatewayListener {
            name: name.into(),
            hostname: None,
            port: 443,
            protocol: protocol.into(),
            tls_mode: None,
            namespaces: crate::model::cluster::NamespaceScope::Same,
            kinds: Vec::new(),
        };
        let gateway = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("ns", "gw") };
        let spec = GatewaySpec {
            listeners: vec![listener("tls", "TLS"), listener("tcp", "TCP")],
            ..GatewaySpec::default()
        };
        let mut cluster = cluster("Gateway", Some("other"));
        cluster.gateways.insert(gateway.name.clone(), Arc::new(spec));
        let status = |tls: u32, tcp: u32| json!({"listeners": [{"name": "tls", "attachedRoutes": tls}, {"name": "tcp", "attachedRoutes": tcp}]});
        let current = StoredStatus { resource_version: "5".into(), uid: "u".into(), status: status(1, 3) };
        let apply = |new: Value| {
            let write = |status| Some(Write { status, version: "5".into(), ..Write::default() });
            let mut writes = vec![(gateway.clone(), write(new)), (route("r"), write(json!({})))];
            let mut problems =
                vec![Problem::warning("", "x", "y").object(route("r")), Problem::warning("", "x", "y")];
            let unlisted = BTreeSet::from([Source::TcpRoutes, Source::ReferenceGrants]);
            let hold = Hold::of(unlisted, BTreeSet::new(), &cluster, &[], [].into_iter());
            hold.apply(&mut writes, &mut problems, &cluster, |_| Some(&current));
            assert_eq!(problems.len(), 1);
            let [(object, write)] = writes.as_slice() else { panic!("{writes:?}") };
            assert_eq!(*object, gateway);
            write.as_ref().map(|write| write.status.clone())
        };
        assert_eq!(apply(status(2, 0)), Some(status(2, 3)));
        assert_eq!(apply(status(1, 0)), None, "nothing else is new");
        // Nor is what the patch does not name.
        let mut with_addresses = status(1, 3);
        with_addresses["addresses"] = json!([{"value": "192.0.2.1"}]);
        assert!(says_nothing_new(&status(1, 3), &with_addresses));
        assert!(!says_nothing_new(&json!({"addresses": null}), &with_addresses));
        assert!(says_nothing_new(&json!({"addresses": null}), &status(1, 3)));
        assert!(!says_nothing_new(&json!({"listeners": {}}), &status(1, 3)));
    }

    /// It asks for no names, so that its address and port alone say that they are taken.
    #[test]
    fn a_tcp_listener_without_a_route_that_waits_goes_to_no_other_one() {
        let tcp = |claim: Claim| {
            let grants = claim.grants.into_iter().map(|grant| Grant { protocol: Protocol::Tcp, ..grant });
            Claim { protocol: Protocol::Tcp.into(), grants: grants.collect(), ..claim }
        };
        let (set, gateway) = (tcp(claim(Kind::ListenerSet, "s", &[])), tcp(claim(Kind::Gateway, "g", &[])));
        let has = stored(std::slice::from_ref(&set));
        let hold = Hold::of(
            [Source::ListenerSets].into(),
            BTreeSet::new(),
            &Cluster::default(),
            std::slice::from_ref(&gateway),
            has.iter(),
        );
        assert_eq!(hold.claims, BTreeSet::from([name(&set), name(&gateway)]));
        // With TLS both may answer.
        let (set, gateway) = (claim(Kind::ListenerSet, "s", &[]), claim(Kind::Gateway, "g", &[]));
        let has = stored(std::slice::from_ref(&set));
        let hold = Hold::of(
            [Source::ListenerSets].into(),
            BTreeSet::new(),
            &Cluster::default(),
            &[gateway],
            has.iter(),
        );
        assert_eq!(hold.claims, BTreeSet::from([name(&set)]));
    }

    /// Without one of the kinds that are read for an origin it may not be known which of its objects are ours.
    #[test]
    fn objects_of_an_origin_wait_for_every_kind_that_is_read_for_it() {
        for row in origins::all().flat_map(|origin| origin.watched()) {
            let kind = row.of;
            let mut cluster = Cluster::default();
            let waiting = ObjectRef { kind, name: ObjectName::new("ns", "i") };
            let meta = Meta { name: waiting.name.clone(), ..Meta::default() };
            cluster.origins.put(kind.resource(), OriginObject { meta, says: Opaque::new(()) });
            let has = stored(&[claim(kind, "i", &["a.example"]), claim(Kind::TlsRoute, "r", &["b.example"])]);
            // It is settled as if there were no such object, and another would get its name.
            let wanted =
                [claim(Kind::TlsRoute, "r", &["b.example"]), claim(Kind::TlsRoute, "x", &["a.example"])];
            let unlisted = [Source::Origin(row)].into();
            let hold = Hold::of(unlisted, BTreeSet::new(), &cluster, &wanted, has.iter());
            let held = [claim(kind, "i", &[]), claim(Kind::TlsRoute, "x", &[])].map(|claim| name(&claim));
            assert_eq!(hold.claims, BTreeSet::from(held), "{row:?}");
            assert!(hold.objects.contains(&waiting), "{row:?}");
        }
    }

    /// What attaches to a Gateway has its addresses, and a class says whose it is.
    #[test]
    fn gateways_and_what_attaches_to_them_wait_for_gateways_and_classes() {
        let mut cluster = cluster("Gateway", None);
        let parents =
            |kind: Option<&str>| vec![ParentRef { kind: kind.map(Into::into), ..ParentRef::default() }];
        let mut add = |name: &str, parents: Vec<ParentRef>| {
            let name = route(name).name;
            let meta = Meta { name: name.clone(), ..Meta::default() };
            let route = ClusterRoute { meta, parents, ..ClusterRoute::default() };
            cluster.tls_routes.insert(name, Arc::new(route));
        };
        add("by-default", parents(None));
        add("set", parents(Some("ListenerSet")));
        add("mesh", parents(Some("Service")));
        let gateway = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("ns", "g") };
        let meta = Meta { name: gateway.name.clone(), ..Meta::default() };
        cluster
            .gateways
            .insert(gateway.name.clone(), Arc::new(GatewaySpec { meta, ..GatewaySpec::default() }));
        let there = [
            claim(Kind::Gateway, "unlisted", &[]),
            claim(Kind::TlsRoute, "set", &["a.example"]),
            claim(Kind::Service, "s", &["b.example"]),
        ];
        let has = stored(&there);
        let kind = origins::TABLE[0].kind();
        let wanted = [claim(kind, "i", &["a.example"]), claim(kind, "j", &["c.example"])];
        for source in [Source::Gateways, Source::GatewayClasses] {
            let hold = Hold::of([source].into(), BTreeSet::new(), &cluster, &wanted, has.iter());
            let asking = ObjectRef { kind, name: ObjectName::new("ns", "i") };
            let objects = [gateway.clone(), route("r"), route("by-default"), route("set"), asking];
            assert_eq!(hold.objects, BTreeSet::from(objects), "{source:?}");
            // The name of a route that waits goes to no object of an origin, and a Service is not concerned.
            assert_eq!(hold.claims, [&there[0], &there[1], &wanted[0]].map(name).into(), "{source:?}");
            assert_eq!(addresses(&[source].into()), AddressHold::All);
        }
        let pools = Hold::of([Source::Pools].into(), BTreeSet::new(), &cluster, &wanted, has.iter());
        assert_eq!((pools.objects, pools.claims), Default::default());
        assert_eq!(addresses(&[Source::Pools, Source::TcpRoutes].into()), AddressHold::Pools);
        assert_eq!(addresses(&[Source::TcpRoutes].into()), AddressHold::Nothing);
    }
}
