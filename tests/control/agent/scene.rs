use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl, Options};
use tests::daemon::binary;
use tests::net::{Namespace, Pins};
use tests::temp::TempDir;

/// Namespace of the release, as in the plain manifests.
pub(super) const RELEASE: &str = "vestibule-system";
/// Name of the node.
pub(super) const NODE: &str = "node1";
/// How long something may take on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(60);

const CONFIG: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"]},
    "settings": {"maxFlows": 10000, "maxNames": 40000, "maxHellos": 1024}}"#;

/// A class, and a Gateway that the controller has given its address.
const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: tenant}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vestibule}
spec: {controllerName: vestibule.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: tenant}
spec:
  gatewayClassName: vestibule
  addresses: [{type: IPAddress, value: 192.0.2.5}]
  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}]
";

/// A node with a network and an API server.
pub(super) struct Scene {
    pub(super) server: ApiServer,
    pub(super) pins: Pins,
    pub(super) folder: TempDir,
    pub(super) namespace: Namespace,
}

impl Scene {
    pub(super) fn new() -> Self {
        let namespace = Namespace::new("agent").unwrap();
        namespace.forward().unwrap();
        // Backends are never dialled here: it is enough that a route leads to them over Ethernet.
        namespace
            .ip("link add uplink type veth peer name beyond\nlink set beyond up\naddr add 10.99.0.1/16 dev uplink\nlink set uplink up\n")
            .unwrap();
        let options = Options { namespace: Some(&namespace), audit: true, ..Options::default() };
        let server = ApiServer::with(&options).unwrap();
        let scene = Self { server, pins: Pins::new().unwrap(), folder: TempDir::new().unwrap(), namespace };
        scene.kubectl().apply(&rights()).unwrap();
        scene.kubectl().apply(OBJECTS).unwrap();
        scene.give_address();
        scene.folder.write("vestibule.json", CONFIG).unwrap();
        scene
    }

    /// As the controller does it.
    fn give_address(&self) {
        let status = json!({"status": {"addresses": [{"type": "IPAddress", "value": "192.0.2.5"}]}});
        let path = "/apis/gateway.networking.k8s.io/v1/namespaces/tenant/gateways/gw/status";
        self.server.rest().connect().unwrap().merge(path, &status).unwrap();
    }

    pub(super) fn kubectl(&self) -> &Kubectl {
        self.server.kubectl()
    }

    /// A tenant's route to a backend: TLSRoute, Service, EndpointSlice.
    pub(super) fn tenant(&self, name: &str, backend: &str) {
        for (_, object) in tenant(name, backend) {
            self.kubectl().apply(&object.to_string()).unwrap();
        }
    }

    /// An agent whose pod has this name, with the ServiceAccount's rights.
    pub(super) fn agent(&self, pod: &str) -> Agent {
        let account = self.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
        self.agent_by(pod, account.kubeconfig())
    }

    pub(super) fn agent_by(&self, pod: &str, kubeconfig: &Path) -> Agent {
        let path = |name: &str| self.folder.path().join(name);
        let log = path(&format!("{pod}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let socket = path(&format!("{pod}.sock"));
        let mut command = self.vestibule();
        command.args(["agent", "--log-format=json", "--metrics-port=0", "--config"]);
        command.arg(path("vestibule.json"));
        for (flag, folder) in [("--state", "state"), ("--run", "run")] {
            command.arg(flag).arg(path(folder));
        }
        let child = command
            .arg("--socket")
            .arg(&socket)
            .env("KUBECONFIG", kubeconfig)
            .env("VESTIBULE_LOG", "debug,hyper=info,kube=info,rustls=info,tower=info")
            .envs([("POD_NAME", pod), ("POD_NAMESPACE", RELEASE), ("NODE_NAME", NODE)])
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Agent { child, log, socket }
    }

    /// The binary with our pins, in the namespace.
    pub(super) fn vestibule(&self) -> Command {
        let mut command = self.namespace.command(binary().unwrap());
        command.arg("--pins").arg(self.pins.path());
        command
    }

    /// What a reading command prints; `None` where nothing is pinned.
    pub(super) fn read(&self, command: &str) -> Option<Vec<Value>> {
        let output = self.vestibule().args([command, "-o", "json"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        output
            .status
            .success()
            .then(|| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    /// Backends in the maps that take new connections, `route address`.
    pub(super) fn backends(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let backends = self.read("backends").unwrap_or_default();
        let usable = backends.iter().filter(|backend| backend["flags"] == json!([]));
        usable.map(|backend| format!("{} {}", text(&backend["route"]), text(&backend["address"]))).collect()
    }

    /// What was refused.
    pub(super) fn refusals(&self) -> Vec<String> {
        let log = fs::read_to_string(self.server.audit_log()).unwrap_or_default();
        let refused = |line: &&str| line.contains("\"authorization.k8s.io/decision\":\"forbid\"");
        log.lines().filter(refused).map(str::to_owned).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Agents are gone by now: they borrow nothing but are dropped before.
        let _ = self.vestibule().arg("detach").output();
    }
}

/// Waits until something holds.
pub(super) fn until(what: &str, agents: &[&Agent], wanted: impl Fn() -> bool) {
    let begun = Instant::now();
    while !wanted() {
        if begun.elapsed() > SOON {
            let logs: Vec<String> = agents.iter().map(|agent| agent.log()).collect();
            panic!("not within {SOON:?}: {what}\n{}", logs.join("\n---\n"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The rights of the plain manifests.
fn rights() -> String {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/vestibule.yaml");
    let manifests = fs::read_to_string(manifests).unwrap();
    let kinds = ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    let wanted = |document: &&str| {
        kinds.iter().any(|kind| document.lines().any(|line| line == format!("kind: {kind}")))
    };
    let rights: Vec<&str> = manifests.split("\n---").filter(wanted).collect();
    assert!(rights.len() > 8, "{rights:?}");
    rights.join("\n---")
}

/// A tenant's objects, each with the collection it belongs to.
pub(super) fn tenant(name: &str, backend: &str) -> [(String, Value); 3] {
    let core = "/api/v1/namespaces/tenant/services".to_owned();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "tenant"},
        "spec": {"clusterIP": "None", "ports": [{"name": "tls", "port": 6443, "protocol": "TCP"}]}});
    let routes = "/apis/gateway.networking.k8s.io/v1/namespaces/tenant/tlsroutes".to_owned();
    let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": {"name": name, "namespace": "tenant"},
        "spec": {"parentRefs": [{"name": "gw"}], "hostnames": [format!("{name}.example.com")],
                 "rules": [{"backendRefs": [{"name": name, "port": 6443}]}]}});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices".to_owned();
    [(core, service), (slices, slice(name, backend)), (routes, route)]
}

/// The one slice of a tenant's Service.
pub(super) fn slice(name: &str, backend: &str) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "tenant", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "tls", "port": 6443, "protocol": "TCP"}],
        "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}]})
}

/// The process. Dropping it kills it.
pub(super) struct Agent {
    child: Child,
    log: PathBuf,
    socket: PathBuf,
}

impl Agent {
    /// The last lines of what it wrote.
    pub(super) fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let (_, ready) = self.probe("--readyz");
        format!("{}\n/readyz: {ready}", lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Kills it, as a crash does.
    pub(super) fn crash(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the end.
    pub(super) fn end(mut self) {
        self.signal(Signal::SIGTERM);
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What `vestibule probe` says.
    pub(super) fn probe(&self, what: &str) -> (bool, String) {
        let mut command = Command::new(binary().unwrap());
        let output = command.args(["probe", what, "--socket"]).arg(&self.socket).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.probe("--readyz").0
    }

    /// The value of a metric without labels, or with these.
    pub(super) fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.probe("--metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself: then both fail, and nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
