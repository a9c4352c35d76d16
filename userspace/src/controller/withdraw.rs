//! `vestibule withdraw`: takes Vestibule out of a cluster, so that it can be uninstalled.
//!
//! ```text
//! take the leader's Lease ─► mark all Claims as withdrawn ─► nodes refuse new connections ─► no address is left in a status
//! ```
//! Established connections go on. A controller that leads later takes all of it back.

use super::ControllerError;
use super::agents::Agents;
use super::class_finalizers;
use super::election::REQUEST;
use super::object_writes;
use super::preempt::Preemption;
use super::queue::{Outcome, Write};
use super::reports;
use super::writes::{self, short};
use crate::config::ChartFile;
use crate::model::cluster::ServiceSpec;
use crate::model::{Cluster, Kind, ListenerSpec, ObjectName, ObjectRef};
use crate::origins;
use crate::sources::chart::{self, Reader};
use crate::sources::kubernetes::{self, Store, StoredStatus};
use crate::status::{self, Nodes, withdrawn};
use futures_util::future::join_all;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// Writes beside each other.
const FLIGHTS: usize = 16;
/// After this time, kinds that have not been listed yet are not waited for: some may be refused.
const LISTS: Duration = Duration::from_secs(15);
/// How long statuses and finalizers are tried to be written.
const WRITES: Duration = Duration::from_secs(60);
/// The interval between looks.
const LOOK: Duration = Duration::from_millis(500);
/// The wait after a round in which not all could be written.
const AGAIN: Duration = Duration::from_secs(1);

/// Options of `vestibule withdraw`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the pod, or another name of this process.
    pub pod: String,
    /// Namespace of the release, with the Leases.
    pub namespace: String,
    /// The chart's file, which says which origins are served and where.
    pub config: PathBuf,
    /// How long to wait for nodes.
    pub wait: Duration,
}

/// What was withdrawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Withdrawn {
    /// Nodes that refuse new connections.
    pub nodes: usize,
    /// Nodes that may not, and why.
    pub others: Vec<String>,
    /// Objects that were written.
    pub written: usize,
}

/// Withdraws, and returns once no status has an address any more.
pub fn run(options: &Options) -> Result<Withdrawn, ControllerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options))
}

async fn serve(options: &Options) -> Result<Withdrawn, ControllerError> {
    let client = kubernetes::connect(kube::Config::infer().await?, &format!("withdraw ({})", options.pod))
        .map_err(|error| ControllerError::Client(Box::new(error)))?;
    let chart = chart::load(&options.config, Reader::Controller).unwrap_or_else(|problems| {
        let why = problems.first().map(ToString::to_string).unwrap_or_default();
        warn!(file = %options.config.display(), why, "is not read: the status of objects at its listeners stays");
        ChartFile::default()
    });
    let (policy, reads) = (chart.policy, kubernetes::Reads::Origins);
    let ours = chart.facts.listeners.iter().flat_map(ListenerSpec::bindings).collect();
    let mut store = Store::start(kubernetes::Options { client: client.clone(), policy, reads });
    let mut agents = Agents::start(&client, &options.namespace);
    let identity = format!("{}_{}", options.pod, std::process::id());
    let mut lease = Preemption::take(&client, &options.namespace, identity)
        .await
        .map_err(|why| ControllerError::Withdraw(format!("the leader's Lease cannot be taken: {why}")))?;
    let outcome = withdraw(&client, &mut store, &mut agents, &mut lease, options.wait, &ours).await;
    match outcome {
        Ok(withdrawn) => {
            lease.leave().await.map_err(ControllerError::Withdraw)?;
            Ok(withdrawn)
        }
        Err(why) => {
            if let Err(why) = lease.give_back().await {
                warn!("the leader's Lease was not given back: {why}");
            }
            Err(ControllerError::Withdraw(why))
        }
    }
}

async fn withdraw(
    client: &Client,
    store: &mut Store,
    agents: &mut Agents,
    lease: &mut Preemption,
    wait: Duration,
    ours: &BTreeSet<SocketAddr>,
) -> Result<Withdrawn, String> {
    let marked = timeout(REQUEST, writes::withdraw(client)).await;
    let marked = marked.map_err(|_| "the API server does not answer".to_owned())?;
    let version =
        marked.map_err(|error| format!("Claims cannot be marked as withdrawn: {}", short(&error)))?;
    let mut withdrawn = Withdrawn::default();
    if let Some(version) = version {
        let nodes = wait_for(agents, version, lease, wait).await?;
        let (holds, lacks): (Vec<_>, Vec<_>) =
            nodes.live.into_iter().partition(|(_, held)| held.claims_version >= version);
        withdrawn.nodes = holds.len();
        let lacks = lacks.into_iter().map(|(node, _)| format!("{node}: its agent has not answered in time"));
        let unknown = nodes.unknown.into_iter().map(|(node, unknown)| format!("{node}: {}", unknown.why));
        let unlisted =
            nodes.are_unlisted.then(|| "all nodes: the agents' Leases cannot be listed".to_owned());
        withdrawn.others = lacks.chain(unknown).chain(unlisted).collect();
    }
    withdrawn.written = clear(client, store, lease, ours).await?;
    Ok(withdrawn)
}

/// Waits until all nodes hold this version of the Claims, but not longer than `wait`. Returns what they hold then.
async fn wait_for(
    agents: &mut Agents,
    version: u64,
    lease: &mut Preemption,
    wait: Duration,
) -> Result<Nodes, String> {
    let begun = Instant::now();
    loop {
        let nodes = agents.nodes();
        let is_held = nodes.live.values().all(|held| held.claims_version >= version);
        if agents.is_known() && is_held && !nodes.knows_less() || begun.elapsed() >= wait {
            return Ok(nodes);
        }
        lease.keep().await?;
        // What nodes hold may become known by time alone.
        let _ = timeout(LOOK, agents.changed()).await;
    }
}

/// Takes addresses and finalizers out of all objects. Returns how many were written.
async fn clear(
    client: &Client,
    store: &mut Store,
    lease: &mut Preemption,
    ours: &BTreeSet<SocketAddr>,
) -> Result<usize, String> {
    let begun = Instant::now();
    while !store.unlisted().is_empty() && begun.elapsed() < LISTS {
        lease.keep().await?;
        let _ = timeout(LOOK, store.changed()).await;
    }
    for source in store.unlisted() {
        warn!(source = source.text(), "cannot be listed: what these objects say stays");
    }
    let (begun, mut written) = (Instant::now(), 0);
    loop {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let left = left(store.cluster(), &|object| store.status(object), ours, &now);
        let finalizers = class_finalizers::left(store);
        if left.is_empty() && finalizers.is_empty() {
            return Ok(written);
        }
        let mut failed = None;
        for some in left.chunks(FLIGHTS) {
            if begun.elapsed() >= WRITES {
                failed = some.first().map(|(object, _)| object.to_string());
                break;
            }
            lease.keep().await?;
            let write = |(object, write): &(ObjectRef, Write)| {
                let (object, write, served) = (object.clone(), write.clone(), store.version(object.kind));
                async move {
                    let outcome =
                        timeout(REQUEST, object_writes::write(client, &object, served?, &write)).await;
                    Some((object, outcome.unwrap_or(Outcome::Failed)))
                }
            };
            for (object, outcome) in join_all(some.iter().map(write)).await.into_iter().flatten() {
                match outcome {
                    Outcome::Written | Outcome::NoEffect | Outcome::Made => {
                        info!(%object, "it says no more that it is served");
                        written += 1;
                    }
                    // It has changed: the next round is about what it says then.
                    Outcome::Conflict => {}
                    Outcome::Failed => failed = Some(object.to_string()),
                }
            }
        }
        for class_finalizers::Finalizers { class, served, version, finalizers } in finalizers {
            lease.keep().await?;
            let write = writes::finalizers(client, &class, served, &version, &finalizers);
            match timeout(REQUEST, write).await {
                Ok(Ok(())) => written += 1,
                Ok(Err(error)) => failed = Some(format!("GatewayClass {class}: {}", short(&error))),
                Err(_) => failed = Some(format!("GatewayClass {class}")),
            }
        }
        if begun.elapsed() >= WRITES {
            let what = failed.unwrap_or_else(|| "objects that change all the time".to_owned());
            return Err(format!("not all statuses can be written: {what}"));
        }
        if failed.is_some() {
            sleep(AGAIN).await;
        }
        // Until the watches have reported what was written.
        let _ = timeout(AGAIN, store.changed()).await;
    }
}

/// Returns the statuses that still say that something is served, as writes that take it out. `ours`: where the chart's listeners take connections.
fn left<'a>(
    cluster: &Cluster,
    status: &dyn Fn(&ObjectRef) -> Option<&'a StoredStatus>,
    ours: &BTreeSet<SocketAddr>,
    now: &str,
) -> Vec<(ObjectRef, Write)> {
    let mut left = Vec::new();
    let mut add = |kind, name: &ObjectName, desired: &dyn Fn(&StoredStatus) -> Option<serde_json::Value>| {
        let object = ObjectRef { kind, name: name.clone() };
        let Some(stored) = status(&object) else { return };
        if let Some(status) = desired(stored) {
            let version = stored.resource_version.clone();
            left.push((object, Write { status, version, is_urgent: true, ..Write::default() }));
        }
    };
    for (name, gateway) in &cluster.gateways {
        if cluster.classes.contains_key(&gateway.class) {
            add(Kind::Gateway, name, &|stored| withdrawn::gateway(&stored.status, now));
        }
    }
    for (name, set) in &cluster.listener_sets {
        let namespace = set.parent.namespace.as_ref().unwrap_or(&name.namespace);
        let parent = ObjectName::new(Arc::clone(namespace), Arc::clone(&set.parent.name));
        // Those of other Gateways are another controller's.
        if cluster.gateways.get(&parent).is_some_and(|gateway| cluster.classes.contains_key(&gateway.class)) {
            add(Kind::ListenerSet, name, &|stored| withdrawn::gateway(&stored.status, now));
        }
    }
    for (kind, routes) in [(Kind::TlsRoute, &cluster.tls_routes), (Kind::TcpRoute, &cluster.tcp_routes)] {
        for name in routes.keys() {
            add(kind, name, &|stored| withdrawn::route(&stored.status, now));
        }
    }
    for origin in origins::all() {
        for (name, object) in cluster.origins.of(origin.kind().resource()) {
            let cleared =
                |stored: &StoredStatus| origin.withdrawn(cluster, object, &stored.status, ours, now);
            add(origin.kind(), name, &cleared);
        }
    }
    left.extend(cluster.services.iter().filter_map(|(name, service)| service_left(name, service, status)));
    // Last: addresses matter more.
    left.extend(reports::leave(cluster));
    left
}

/// The same of a Service.
fn service_left<'a>(
    name: &ObjectName,
    service: &ServiceSpec,
    status: &dyn Fn(&ObjectRef) -> Option<&'a StoredStatus>,
) -> Option<(ObjectRef, Write)> {
    let object = ObjectRef { kind: Kind::Service, name: name.clone() };
    let stored = status(&object)?;
    let has_ours = withdrawn::has_ours(&stored.status);
    // What an adopted one has may be of MetalLB again, which serves it: only our condition and annotation go.
    let is_ours = service.load_balancer.as_ref().is_some_and(|own| !own.is_adopted);
    let cleared = withdrawn::service(&stored.status, is_ours);
    let annotations = status::service::annotations(&service.noted, None).filter(|_| is_ours || has_ours);
    let status = cleared.or_else(|| annotations.is_some().then(|| serde_json::json!({})))?;
    let version = stored.resource_version.clone();
    Some((object, Write { status, annotations, version, is_urgent: true, whole: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::{
        ClassSpec, GatewaySpec, ListenerSetSpec, LoadBalancerSpec, ParentRef, PoolNote,
    };
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    #[test]
    fn only_what_is_ours_is_cleared() {
        let mut cluster = Cluster::default();
        cluster.classes.insert("ours".into(), Arc::new(ClassSpec::default()));
        let mut statuses = BTreeMap::new();
        let mut object = |kind, name: &str, status: Value| {
            let name = ObjectName::new("ns", name);
            let stored = StoredStatus { resource_version: "7".into(), uid: "u".into(), status };
            statuses.insert(ObjectRef { kind, name: name.clone() }, stored);
            name
        };
        let addresses = || json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.1"}]});
        for (name, class) in [("a", "ours"), ("b", "theirs")] {
            let gateway = GatewaySpec { class: class.into(), ..GatewaySpec::default() };
            cluster.gateways.insert(object(Kind::Gateway, name, addresses()), Arc::new(gateway));
        }
        let conditions = json!([{"type": "Programmed", "status": "True"}]);
        for (name, parent) in [("g", "a"), ("h", "b")] {
            let parent = ParentRef { name: parent.into(), ..ParentRef::default() };
            let set = ListenerSetSpec { parent, ..ListenerSetSpec::default() };
            let status = json!({"conditions": conditions});
            cluster.listener_sets.insert(object(Kind::ListenerSet, name, status), Arc::new(set));
        }
        let ingress = || json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}});
        let ours = ServiceSpec {
            noted: PoolNote { pool: Some("p".into()), has_old: false },
            load_balancer: Some(Arc::new(LoadBalancerSpec::default())),
            ..ServiceSpec::default()
        };
        cluster.services.insert(object(Kind::Service, "c", ingress()), Arc::new(ours));
        cluster.services.insert(object(Kind::Service, "d", ingress()), Arc::new(ServiceSpec::default()));
        let own = LoadBalancerSpec { is_adopted: true, ..LoadBalancerSpec::default() };
        let noted = PoolNote { pool: Some("q".into()), has_old: false };
        let adopted =
            Arc::new(ServiceSpec { noted, load_balancer: Some(Arc::new(own)), ..ServiceSpec::default() });
        // MetalLB alone has written the first one, and may serve the second one again.
        cluster.services.insert(object(Kind::Service, "d1", ingress()), Arc::clone(&adopted));
        let mut status = ingress();
        status["conditions"] = json!([{"type": "vestibule.dev/Programmed", "status": "True"}]);
        cluster.services.insert(object(Kind::Service, "d2", status), adopted);
        let programmed = json!({"conditions": [{"type": "vestibule.dev/Programmed", "status": "True"}]});
        let sample = object(origins::tests::KIND, "e", programmed);
        origins::tests::put_sample(&mut cluster, sample, "a.example");
        let status = |object: &ObjectRef| statuses.get(object);
        let listeners = BTreeSet::from(["192.0.2.2:443".parse().unwrap()]);
        let left = left(&cluster, &status, &listeners, "now");
        let names: Vec<String> = left.iter().map(|(object, _)| object.to_string()).collect();
        assert_eq!(
            names,
            ["Gateway ns/a", "ListenerSet ns/g", "Sample ns/e", "Service ns/c", "Service ns/d2"]
        );
        assert!(left.iter().all(|(_, write)| write.version == "7"));
        assert_eq!(left[0].1.status, json!({"addresses": []}));
        let annotations: Vec<&Value> =
            left.iter().filter_map(|(_, write)| write.annotations.as_ref()).collect();
        assert_eq!(annotations, [&json!({"metallb.io/ip-allocated-from-pool": null}); 2]);
        assert_eq!(left[4].1.status, json!({"conditions": null}));
    }
}
