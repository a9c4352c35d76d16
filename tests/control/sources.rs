//! Watching the under cluster's objects at a real API server that starts, stops, hangs and refuses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl, Options};
use tokio::runtime::Runtime;
use userspace::model::cluster::{ClusterRoute, Endpoint, Policy};
use userspace::model::{Cluster, Kind, ObjectName, ObjectRef};
use userspace::sources::kubernetes::{self, Reads, Store};

/// The time limit until a new CRD or object is seen.
const SOON: Duration = Duration::from_secs(1);
/// The time limit for anything that waits for a retry: the longest wait is 6 s.
const RETRIED: Duration = Duration::from_secs(15);
/// The time limit where lists replace others: they wait up to 30 s. A server that was restarted knows no old versions.
const LISTED: Duration = Duration::from_secs(30 + 15);
/// The time limit until a connection that hangs is found: 90 s without a byte, and 10 s without an answer.
const HUNG: Duration = Duration::from_secs(90 + 10 + 15);
/// The time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/default/tlsroutes";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tlsroutes.gateway.networking.k8s.io";

fn route(name: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "TLSRoute",
        "metadata": {"name": name},
        "spec": {
            "parentRefs": [{"name": "front"}],
            "hostnames": [format!("{name}.example.com")],
            "rules": [{"backendRefs": [{"name": "api", "port": 6443}]}],
        },
    })
}

/// A store, and the runtime in which it runs.
struct Watched {
    runtime: Runtime,
    store: Store,
}

impl Watched {
    fn start(kubeconfig: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig).unwrap();
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
            let client = kubernetes::connect(config, "test").unwrap();
            Store::start(kubernetes::Options { client, policy: Policy::default(), reads: Reads::Origins })
        });
        Self { runtime, store }
    }

    /// Processes changes until the condition is true; returns when that was.
    fn until(&mut self, what: &str, patience: Duration, wanted: impl Fn(&Store) -> bool) -> Instant {
        self.follow(what, patience, wanted, |_| {})
    }

    /// The same, and checks each intermediate state.
    fn follow(
        &mut self,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&Store) -> bool,
        mut each: impl FnMut(&Store),
    ) -> Instant {
        let end = Instant::now() + patience;
        while !wanted(&self.store) {
            let left = end.saturating_duration_since(Instant::now());
            let changed =
                self.runtime.block_on(async { tokio::time::timeout(left, self.store.changed()).await });
            assert!(
                changed.is_ok(),
                "not within {patience:?}: {what}; complete: {}, stale: {:?}, routes: {:?}",
                self.store.is_complete(),
                self.store.stale(),
                self.store.cluster().tls_routes.keys()
            );
            each(&self.store);
        }
        Instant::now()
    }

    fn complete(&mut self) {
        self.until("complete", PATIENCE, Store::is_complete);
    }
}

fn routes(store: &Store) -> Vec<String> {
    store.cluster().tls_routes.keys().map(ToString::to_string).collect()
}

/// The objects that the tests create. The server's own objects may change at any time.
#[derive(PartialEq)]
struct Ours {
    routes: BTreeMap<ObjectName, Arc<ClusterRoute>>,
    endpoints: Option<Arc<[Endpoint]>>,
}

impl Ours {
    fn of(store: &Store) -> Self {
        let Cluster { tls_routes, endpoints, .. } = store.cluster();
        Self {
            routes: tls_routes.clone(),
            endpoints: endpoints.get(&ObjectName::new("default", "api")).cloned(),
        }
    }

    /// Creates routes and a slice of endpoints.
    fn create(server: &ApiServer, names: &[&str]) {
        let mut api = server.rest().connect().unwrap();
        for name in names {
            api.create(ROUTES, &route(name)).unwrap();
        }
        let slice = json!({
            "metadata": {"name": "api-1", "labels": {"kubernetes.io/service-name": "api"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": 6443}],
            "endpoints": [{"addresses": ["10.244.0.1"]}, {"addresses": ["10.244.0.2"], "conditions": {"ready": false}}],
        });
        api.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).unwrap();
    }
}

fn is_fresh(store: &Store) -> bool {
    store.stale().is_empty()
}

fn stale(store: &Store) -> Vec<&'static str> {
    store.stale().into_iter().map(|stale| stale.source).collect()
}

#[test]
fn definitions_that_are_absent_appear_change_and_go() {
    let server = ApiServer::with(&Options { bare: true, ..Options::default() }).unwrap();
    let mut watched = Watched::start(server.kubeconfig());
    watched.complete();
    assert!(is_fresh(&watched.store), "{:?}", watched.store.stale());
    assert_eq!(watched.store.version(Kind::TlsRoute), None);
    // The server creates these itself, a little after it is ready.
    let kubernetes = ObjectName::new("default", "kubernetes");
    let is_there = |store: &Store| {
        let cluster = store.cluster();
        cluster.services.contains_key(&kubernetes) && cluster.endpoints.contains_key(&kubernetes)
    };
    watched.until("the Service of the API", PATIENCE, is_there);
    let cluster = watched.store.cluster();
    assert_eq!(cluster.services[&kubernetes].ports[0].port, 443);
    assert_eq!(&*cluster.endpoints[&kubernetes][0].port_name, "https");
    assert!(cluster.namespaces.labels["default"].contains_key("kubernetes.io/metadata.name"));

    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            server.define().unwrap();
            server.rest().connect().unwrap().create(ROUTES, &route("a")).unwrap();
            Instant::now()
        });
        let seen = watched.until("a route of a new kind", PATIENCE, |store| routes(store) == ["default/a"]);
        let waited = seen.saturating_duration_since(made.join().unwrap());
        assert!(waited < SOON, "seen {waited:?} after it was made");
    });
    watched.complete();
    assert_eq!(watched.store.version(Kind::TlsRoute), Some("v1"));
    assert!(is_fresh(&watched.store), "{:?}", watched.store.stale());

    // v1 is no longer served: the next best version is read, and no route disappears during the change.
    let mut api = server.rest().connect().unwrap();
    server.kubectl().run(&["delete", "validatingadmissionpolicy", "--all"]).unwrap();
    serve(&mut api, &["v1alpha3", "v1alpha2"]);
    let keeps = |store: &Store| assert_eq!(routes(store), ["default/a"]);
    let next = |store: &Store| store.version(Kind::TlsRoute) == Some("v1alpha3") && is_fresh(store);
    watched.follow("v1alpha3", PATIENCE, next, keeps);
    api.create(&ROUTES.replace("/v1/", "/v1alpha3/"), &older("b")).unwrap();
    watched.until("a route of v1alpha3", PATIENCE, |store| routes(store) == ["default/a", "default/b"]);

    // And back to the best version.
    serve(&mut api, &["v1"]);
    let best = |store: &Store| store.version(Kind::TlsRoute) == Some("v1") && is_fresh(store);
    let keeps = |store: &Store| assert_eq!(routes(store), ["default/a", "default/b"]);
    watched.follow("v1 again", PATIENCE, best, keeps);

    std::thread::scope(|scope| {
        let gone = scope.spawn(|| {
            server.kubectl().run(&["delete", "crd", "tlsroutes.gateway.networking.k8s.io"]).unwrap();
            Instant::now()
        });
        let absent = |store: &Store| routes(store).is_empty() && store.version(Kind::TlsRoute).is_none();
        let seen = watched.until("the kind is gone", PATIENCE, absent);
        let waited = seen.saturating_duration_since(gone.join().unwrap());
        assert!(waited < SOON, "seen {waited:?} after it was deleted");
    });
    assert!(watched.store.is_complete() && is_fresh(&watched.store), "{:?}", watched.store.stale());
    assert_eq!(watched.store.version(Kind::Gateway), Some("v1"));
}

/// Serves exactly these versions of TLSRoute.
fn serve(api: &mut tests::cluster::Connection, served: &[&str]) {
    let mut definition = api.read(DEFINITION).unwrap();
    for version in definition["spec"]["versions"].as_array_mut().unwrap() {
        version["served"] = served.iter().any(|name| version["name"] == *name).into();
    }
    api.replace(DEFINITION, &definition).unwrap();
}

fn older(name: &str) -> Value {
    let mut route = route(name);
    route["apiVersion"] = "gateway.networking.k8s.io/v1alpha3".into();
    route
}

#[test]
fn a_server_that_goes_away_leaves_the_last_state_and_comes_back_without_a_flap() {
    let mut server = ApiServer::start().unwrap();
    Ours::create(&server, &["a", "b", "c"]);
    let mut watched = Watched::start(server.kubeconfig());
    watched.complete();
    let before = Ours::of(&watched.store);
    assert_eq!((before.routes.len(), before.endpoints.as_ref().map(|all| all.len())), (3, Some(2)));
    for end in [ApiServer::stop, ApiServer::crash] {
        end(&mut server).unwrap();
        let keeps = |store: &Store| assert!(Ours::of(store) == before && store.is_complete());
        watched.follow("all sources are stale", PATIENCE, |store| store.stale().len() == 10, keeps);
        let told = watched.store.stale();
        assert!(
            told.iter().all(|stale| !stale.why.is_empty() && stale.since.elapsed() < PATIENCE),
            "{told:?}"
        );
        // Long enough to reach the longest waits.
        std::thread::scope(|scope| {
            let back = scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(5));
                server.launch().unwrap();
                Instant::now()
            });
            let seen = watched.follow("fresh", PATIENCE + LISTED, is_fresh, keeps);
            let waited = seen.saturating_duration_since(back.join().unwrap());
            assert!(waited < LISTED, "fresh {waited:?} after the server was ready");
        });
    }
    let mut api = server.rest().connect().unwrap();
    api.delete(&format!("{ROUTES}/b")).unwrap();
    watched.until("a change after all that", SOON, |store| routes(store) == ["default/a", "default/c"]);
}

/// Rights to read all origins, and their subject.
const RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [gateway.networking.k8s.io], resources: ['*'], verbs: [list, watch]}
- {apiGroups: [''], resources: [services, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: agent, namespace: default}]
";

fn agent(admin: &Kubectl) -> Kubectl {
    admin.run(&["create", "serviceaccount", "agent"]).unwrap();
    admin.of_service_account("default", "agent").unwrap()
}

#[test]
fn rights_taken_away_make_stale_and_never_absent() {
    let mut server = ApiServer::start().unwrap();
    Ours::create(&server, &["a"]);
    let agent = agent(server.kubectl());
    let mut watched = Watched::start(agent.kubeconfig());
    // Without any rights the state is unknown, which is not the same as empty.
    watched.until("nothing may be read", PATIENCE, |store| {
        stale(store) == ["customresourcedefinitions", "namespaces", "services", "endpointslices"]
    });
    assert!(!watched.store.is_complete());
    assert!(watched.store.stale()[0].why.contains("403"), "{:?}", watched.store.stale());
    server.kubectl().apply(RIGHTS).unwrap();
    watched.until("rights", RETRIED, |store| store.is_complete() && is_fresh(store));
    let before = Ours::of(&watched.store);
    assert_eq!(before.routes.len(), 1);

    // The rights of a running watch are not checked again; after a restart the server checks them.
    server.kubectl().run(&["delete", "clusterrolebinding", "reader"]).unwrap();
    server.restart().unwrap();
    let keeps = |store: &Store| assert!(Ours::of(store) == before && store.is_complete());
    let refused = |store: &Store| {
        let stale = store.stale();
        stale.len() == 10 && stale.iter().all(|stale| stale.why.contains("403"))
    };
    watched.follow("nothing may be read any more", PATIENCE, refused, keeps);
    server.kubectl().apply(RIGHTS).unwrap();
    watched.follow("rights again", LISTED, is_fresh, keeps);
}

#[test]
fn a_connection_that_hangs_is_found_dead_within_two_minutes() {
    let server = ApiServer::start().unwrap();
    Ours::create(&server, &["a"]);
    let mut watched = Watched::start(server.kubeconfig());
    watched.complete();
    let before = Ours::of(&watched.store);
    server.freeze().unwrap();
    let keeps = |store: &Store| assert!(Ours::of(store) == before);
    watched.follow("stale", HUNG, |store| store.stale().len() == 10, keeps);
    server.thaw().unwrap();
    watched.follow("fresh", LISTED, is_fresh, keeps);
}

#[test]
fn objects_and_statuses_are_followed() {
    let server = ApiServer::start().unwrap();
    let mut api = server.rest().connect().unwrap();
    let mut watched = Watched::start(server.kubeconfig());
    watched.complete();
    let made = api.create(ROUTES, &route("a")).unwrap();
    watched.until("the route", SOON, |store| routes(store) == ["default/a"]);
    let object = ObjectRef { kind: Kind::TlsRoute, name: ObjectName::new("default", "a") };
    let stored = watched.store.status(&object).unwrap();
    assert_eq!(made["metadata"]["resourceVersion"], *stored.resource_version);
    assert_eq!(made["metadata"]["uid"], *stored.uid);
    let condition = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-11-21T20:00:00Z"});
    let parents = json!([{"parentRef": {"name": "front"}, "controllerName": "example.com/x", "conditions": [condition]}]);
    let changed = api.merge(&format!("{ROUTES}/a/status"), &json!({"status": {"parents": parents}})).unwrap();
    watched.until("its status", SOON, |store| {
        store.status(&object).is_some_and(|stored| stored.status["parents"] == changed["status"]["parents"])
    });
    // A Service that is not ours has no status here; one that is ours has.
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, class: &str| {
        json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "loadBalancerClass": class,
            "loadBalancerIP": "192.0.2.7", "ports": [{"port": 443}]}})
    };
    api.create(services, &service("theirs", "example.com/lb")).unwrap();
    api.create(services, &service("ours", "vestibule.dev/lb")).unwrap();
    let name = ObjectName::new("default", "ours");
    watched.until("the Services", SOON, |store| store.cluster().services.contains_key(&name));
    let status = |name: &str| {
        let name = ObjectName::new("default", name);
        watched.store.status(&ObjectRef { kind: Kind::Service, name }).is_some()
    };
    assert!(status("ours") && !status("theirs"));
    let ours = watched.store.cluster().services[&name].load_balancer.clone().unwrap();
    assert_eq!((ours.addresses.len(), &*ours.field), (1, "spec.loadBalancerIP"));
    api.delete(&format!("{ROUTES}/a")).unwrap();
    watched.until("the route is gone", SOON, |store| {
        routes(store).is_empty() && store.status(&object).is_none()
    });
}
