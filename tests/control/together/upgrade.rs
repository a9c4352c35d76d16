//! From the release before Claims to this one and back: agents first, controllers first. Its binary and its chart are built from this
//! repository's history.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::{Value, json};
use tests::clients::ask;
use tests::cluster::{ApiServer, Kubectl, Options, gateway_definitions, helm, previous_release};
use tests::daemon::binary;
use tests::machine::is_ci;
use tests::server::{Server, Speech};
use tests::skip_without_root;
use tests::stop::Stop;
use tests::tls::{self, Authority};

use crate::agent::scene::{Agent, CONFIG, Scene, until};
use crate::held::Held;
use crate::process::{Controller, RELEASE, SOON};

const NAME: &str = "a.example.com";
const VIP: &str = "192.0.2.5:443";
/// How long nothing may happen.
const QUIET: Duration = Duration::from_secs(15);

/// A cluster with the chart of the previous release, whose pods are processes of ours.
struct Upgrade {
    // Agents end before the scene.
    held: Held,
    config: Arc<ClientConfig>,
    _servers: [Server; 2],
    account: Kubectl,
    previous: PathBuf,
    scene: Scene,
}

/// Installs the previous release with a route that is served. Returns its processes, too; `None`: it could not be built.
fn installed() -> Option<(Upgrade, Controller, Agent)> {
    let Some(previous) = previous_release() else {
        let why = "this checkout has no history to build the previous release from";
        assert!(!is_ci(), "{why}: in CI, fetch all of it (`git fetch --unshallow`)");
        eprintln!("SKIPPED: {why}");
        return None;
    };
    let scene = Scene::around(CONFIG, |namespace| {
        let options = Options { namespace: Some(namespace), bare: true, audit: true, ..Options::default() };
        let server = ApiServer::with(&options).unwrap();
        server.kubectl().apply_files(&gateway_definitions().unwrap()).unwrap();
        server.kubectl().wait_for_definitions().unwrap();
        let chart = previous.join("chart").display().to_string();
        release(
            namespace.command(helm().unwrap()),
            &server,
            &["install", "vestibule", &chart, "--create-namespace"],
        );
        server
    });
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    let authority = Authority::new("a").unwrap();
    let config = authority.server_config(&authority.server(&[NAME]).unwrap()).unwrap();
    let serve = |address: &str, name: &str| {
        let at: SocketAddr = format!("{address}:6443").parse().unwrap();
        Server::start(&scene.outside, at, name, Speech::Tls(Arc::clone(&config))).unwrap()
    };
    let servers = [serve("10.99.1.1", "one"), serve("10.99.1.2", "two")];
    scene.tenant("a", "10.99.1.1");
    let controller = scene.controller_of(&previous.join("vestibule"), "old-controller", &[]);
    let agent = scene.agent_of(&previous.join("vestibule"), "old-agent", account.kubeconfig(), &[]);
    until("the previous release serves", &[&agent], || agent.is_ready() && scene.backends().len() == 1);
    let config = authority.client_config(None).unwrap();
    let vip: SocketAddr = VIP.parse().unwrap();
    let connect = || scene.outside.run(|| tls::connect(vip, Arc::clone(&config), NAME));
    until("the tenant is served", &[&agent], || connect().is_ok());
    let held = Held::new(connect().unwrap());
    let upgrade = Upgrade { held, config, _servers: servers, account, previous, scene };
    upgrade.programmed();
    Some((upgrade, controller, agent))
}

/// Runs helm against the API server.
fn release(mut helm: std::process::Command, server: &ApiServer, arguments: &[&str]) {
    // Tokens of these tests belong to no pod, so the policy about an agent's own node would refuse them.
    let values = "--set=addresses.ranges={192.0.2.0/28},ownNodeOnly.enabled=false";
    let values = if arguments[0] == "rollback" { &[][..] } else { &[values] };
    helm.args(arguments).args(values).args(["--namespace", RELEASE, "--kubeconfig"]).arg(server.kubeconfig());
    let output = helm.output().unwrap();
    assert!(output.status.success(), "helm {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The condition `Programmed` of a Gateway.
fn condition(gateway: &Value) -> Value {
    let conditions = gateway["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|one| one["type"] == "Programmed").unwrap_or_default()
}

impl Upgrade {
    fn helm(&self, arguments: &[&str]) {
        release(self.scene.namespace.command(helm().unwrap()), &self.scene.server, arguments);
    }

    /// Installs this release's chart.
    fn upgrade(&self) {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/charts/vestibule");
        self.helm(&["upgrade", "vestibule", chart]);
        self.scene.kubectl().wait_for_definitions().unwrap();
    }

    fn agent(&self, build: &Path, pod: &str) -> Agent {
        self.scene.agent_of(build, pod, self.account.kubeconfig(), &[])
    }

    fn old(&self) -> PathBuf {
        self.previous.join("vestibule")
    }

    /// Returns the backend that a new connection leads to.
    fn dial(&self) -> String {
        let vip: SocketAddr = VIP.parse().unwrap();
        let connect = || ask(tls::connect(vip, Arc::clone(&self.config), NAME)?);
        self.scene.outside.run(connect).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Whether a tenant's route is in the maps.
    fn serves(&self, tenant: &str) -> bool {
        let route = format!("tlsroute/tenant/{tenant} ");
        self.scene.backends().iter().any(|backend| backend.starts_with(&route))
    }

    /// Adds a backend to the one that the connection from before goes to.
    fn add_backend(&self) {
        let endpoint = |address: &str| json!({"addresses": [address], "conditions": {"ready": true}});
        let both = json!({"endpoints": [endpoint("10.99.1.1"), endpoint("10.99.1.2")]});
        let slices = "/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices/a";
        self.scene.server.rest().connect().unwrap().merge(slices, &both).unwrap();
    }

    fn gateway(&self) -> Value {
        self.scene.kubectl().get(&["-n", "tenant", "gateway", "gw"]).unwrap()
    }

    /// Waits until the Gateway is programmed.
    fn programmed(&self) -> Value {
        let programmed = |gateway: &Value| condition(gateway)["status"] == "True";
        let gateway = ["-n", "tenant", "gateway", "gw"];
        self.scene.kubectl().wait_for("it is programmed", &gateway, SOON, programmed).unwrap()
    }

    /// Whether the agents' account may read origins.
    fn has_former_rights(&self) -> bool {
        self.scene.kubectl().get(&["clusterrolebinding", "vestibule-reader"]).is_ok()
    }

    /// Runs a part of the upgrade while clients come all the time, and requires that each is served.
    fn while_clients_come<T>(&self, part: impl FnOnce() -> T) -> T {
        let (is_over, served) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let said = self.dial();
                    assert!(said == "one -" || said == "two -", "a client was not served: {said}");
                    served.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let result = {
                let _stop = Stop(&is_over);
                part()
            };
            clients.join().unwrap();
            assert!(served.load(Ordering::Relaxed) > 10, "no client came");
            result
        })
    }
}

#[test]
fn agents_first_then_controllers_and_back() {
    skip_without_root!();
    let Some((mut upgrade, old_controller, old_agent)) = installed() else { return };
    upgrade.while_clients_come(|| {
        let scene = &upgrade.scene;
        upgrade.upgrade();
        assert!(upgrade.has_former_rights(), "an agent of the previous release runs");
        let agent = upgrade.agent(&binary().unwrap(), "new-agent");
        until("the new agent waits", &[&agent], || {
            agent.probe("--readyz").1.contains("there is no Claim 0-settled")
        });
        // The old ones go on, with routes and endpoints.
        assert_eq!(old_agent.metric("vestibule_writer"), Some(1.0));
        scene.tenant("b", "10.99.2.1");
        until("a new route", &[&old_agent], || upgrade.serves("b"));
        upgrade.add_backend();
        until("another endpoint", &[&old_agent], || upgrade.dial() == "two -");

        let controller = scene.controller("new-controller", &[]);
        old_controller.end();
        // The previous release took `Programmed` back for a moment whenever a route or an endpoint came. It may have done so until its end.
        let before = upgrade.programmed();
        until("the new agent writes", &[&agent, &old_agent], || {
            agent.is_ready() && agent.metric("vestibule_writer") == Some(1.0)
        });
        old_agent.end();
        scene.tenant("c", "10.99.3.1");
        until("the next route", &[&agent], || upgrade.serves("c"));
        is_as_before(&upgrade, &before);
        upgrade.upgrade();
        assert!(!upgrade.has_former_rights(), "all agents are of this release");

        // Back: first the controller, whose Claims go with the chart.
        let old_controller = scene.controller_of(&upgrade.old(), "old-controller-again", &[]);
        upgrade.helm(&["rollback", "vestibule", "1"]);
        controller.end();
        let old_agent = upgrade.agent(&upgrade.old(), "old-agent-again");
        until("the old agent writes", &[&agent, &old_agent], || {
            old_agent.is_ready() && old_agent.metric("vestibule_writer") == Some(1.0)
        });
        agent.end();
        assert!(["a", "b", "c"].into_iter().all(|tenant| upgrade.serves(tenant)));
        scene.tenant("d", "10.99.4.1");
        until("a route by the previous release", &[&old_agent], || upgrade.serves("d"));
        // It takes `Programmed` back for a moment again.
        assert_eq!(upgrade.programmed()["status"]["addresses"], before["status"]["addresses"]);
        drop(old_controller);
    });
    upgrade.held.holds();
}

#[test]
fn controllers_first_then_agents_and_back() {
    skip_without_root!();
    let Some((mut upgrade, old_controller, old_agent)) = installed() else { return };
    let before = upgrade.gateway();
    let refused = upgrade.while_clients_come(|| {
        let scene = &upgrade.scene;
        upgrade.upgrade();
        let controller = scene.controller("new-controller", &[]);
        old_controller.end();
        // Nobody knows what an agent of the other report version holds: conditions stay as they are.
        scene.tenant("b", "10.99.2.1");
        until("a new route", &[&old_agent], || upgrade.serves("b"));
        std::thread::sleep(QUIET);
        is_as_before(&upgrade, &before);
        let route = scene.kubectl().get(&["-n", "tenant", "tlsroute", "b"]).unwrap();
        assert!(!is_programmed(&route), "{route:#}");
        upgrade.add_backend();
        until("another endpoint", &[&old_agent], || upgrade.dial() == "two -");

        let agent = upgrade.agent(&binary().unwrap(), "new-agent");
        until("the new agent writes", &[&agent, &old_agent], || {
            agent.is_ready() && agent.metric("vestibule_writer") == Some(1.0)
        });
        old_agent.end();
        let route = ["-n", "tenant", "tlsroute", "b"];
        scene.kubectl().wait_for("the route is programmed", &route, SOON, is_programmed).unwrap();
        is_as_before(&upgrade, &before);
        let refused = scene.refusals();

        // Back: first the agent, while a controller leads that may not read Claims any more.
        upgrade.helm(&["rollback", "vestibule", "1"]);
        let old_agent = upgrade.agent(&upgrade.old(), "old-agent-again");
        until("the old agent writes", &[&agent, &old_agent], || {
            old_agent.is_ready() && old_agent.metric("vestibule_writer") == Some(1.0)
        });
        agent.end();
        assert!(["a", "b"].into_iter().all(|tenant| upgrade.serves(tenant)));
        std::thread::sleep(QUIET);
        is_as_before(&upgrade, &before);
        let _old_controller = scene.controller_of(&upgrade.old(), "old-controller-again", &[]);
        controller.end();
        scene.tenant("c", "10.99.3.1");
        until("a route by the previous release", &[&old_agent], || upgrade.serves("c"));
        upgrade.programmed();
        assert!(["a", "b"].into_iter().all(|tenant| upgrade.serves(tenant)));
        refused
    });
    upgrade.held.holds();
    assert!(refused.is_empty(), "{refused:?}");
}

/// Whether a route says that all nodes hold it.
fn is_programmed(route: &Value) -> bool {
    let conditions = route["status"]["parents"][0]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|one| one["type"] == "vestibule.dev/Programmed" && one["status"] == "True")
}

/// The Gateway has its address, and was `Programmed` all the time.
fn is_as_before(upgrade: &Upgrade, before: &Value) {
    let now = upgrade.gateway();
    assert_eq!(now["status"]["addresses"], before["status"]["addresses"]);
    let (now, before) = (condition(&now), condition(before));
    assert_eq!(
        (&now["status"], &now["lastTransitionTime"]),
        (&before["status"], &before["lastTransitionTime"]),
        "{now:#}\n{before:#}"
    );
}
