//! Leaves out problems of objects that are not ours, so that no Event is written on them.

use crate::model::cluster::ClusterRoute;
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, Problem, Verdicts};
use crate::origins::{self, Origin};
use foldhash::HashSet;
use std::sync::Arc;

/// Returns the sources' problems without those of objects that are not ours.
pub(super) fn without(cluster: &Cluster, verdicts: &Verdicts) -> Vec<Problem> {
    // Computed only if needed: problems are rare and concern few objects.
    let mut backends = None;
    let mut is_ours = |object: &ObjectRef| {
        let namespace = &object.name.namespace;
        verdicts.contains(object)
            || matches!(object.kind, Kind::IpAddressPool | Kind::L2Advertisement)
                && cluster.policy.pools.namespaces.contains(namespace)
            || object.kind == Kind::Service
                && backends.get_or_insert_with(|| backends_of(cluster, verdicts)).contains(&object.name)
    };
    let ours = |problem: &&Problem| problem.object.as_ref().is_none_or(&mut is_ours);
    cluster.problems.iter().filter(ours).cloned().collect()
}

/// Returns the Services that routes of ours and objects of origins refer to.
fn backends_of(cluster: &Cluster, verdicts: &Verdicts) -> HashSet<ObjectName> {
    let tls = cluster.tls_routes.iter().filter(|(name, _)| verdicts.tls_routes.contains_key(*name));
    let tcp = cluster.tcp_routes.iter().filter(|(name, _)| verdicts.tcp_routes.contains_key(*name));
    let of_origin = |origin: &'static dyn Origin| {
        let kind = origin.kind();
        let ours = cluster.origins.of(kind.resource()).filter(move |(name, _)| {
            verdicts.origins.contains_key(&ObjectRef { kind, name: ObjectName::clone(name) })
        });
        ours.flat_map(move |(_, object)| origin.services(object))
    };
    tls.chain(tcp).flat_map(referred).chain(origins::all().flat_map(of_origin)).collect()
}

fn referred((name, route): (&ObjectName, &Arc<ClusterRoute>)) -> Vec<ObjectName> {
    let references = route.rules.iter().flatten().filter(|reference| &*reference.kind == "Service");
    let service = |namespace: &Option<Arc<str>>, service: &Arc<str>| ObjectName {
        namespace: Arc::clone(namespace.as_ref().unwrap_or(&name.namespace)),
        name: Arc::clone(service),
    };
    references.map(|reference| service(&reference.namespace, &reference.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::{BackendRef, Policy, PoolPolicy};
    use crate::model::verdict::RouteVerdict;
    use std::collections::BTreeMap;

    #[test]
    fn only_objects_of_ours_have_problems() {
        let object = |kind, name: &str| ObjectRef { kind, name: ObjectName::new("a", name) };
        let reference = BackendRef {
            group: "".into(),
            kind: "Service".into(),
            namespace: None,
            name: "used".into(),
            port: Some(443),
            weight: 1,
        };
        let route = ClusterRoute { rules: vec![vec![reference]], ..ClusterRoute::default() };
        let (ours, others) = (object(Kind::TlsRoute, "ours"), object(Kind::TlsRoute, "others"));
        let (used, unused) = (object(Kind::Service, "used"), object(Kind::Service, "unused"));
        let problem = |object: &ObjectRef| Problem::warning("f", "w", "r").object(object.clone());
        // Whose they are, the chart says.
        let advertisement = object(Kind::L2Advertisement, "ours");
        let mut of_others = advertisement.clone();
        of_others.name.namespace = "b".into();
        let policy = Policy { pools: PoolPolicy { namespaces: vec!["a".into()] }, ..Policy::default() };
        let cluster = Cluster {
            policy,
            tls_routes: BTreeMap::from([(ours.name.clone(), Arc::new(route))]),
            problems: [&ours, &others, &used, &unused, &advertisement, &of_others].map(problem).to_vec(),
            ..Cluster::default()
        };
        let mut verdicts = Verdicts::default();
        verdicts.tls_routes.insert(ours.name.clone(), RouteVerdict { generation: 1, parents: Vec::new() });
        assert_eq!(without(&cluster, &verdicts), [&ours, &used, &advertisement].map(problem));
    }
}
