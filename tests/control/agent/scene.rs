use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl, Options};
use tests::daemon::binary;
use tests::net::{End, Namespace, Pins, veth};
use tests::temp::TempDir;

use crate::process::{Controller, Process, refusals, server};
pub(crate) use crate::process::{RELEASE, SOON};

/// The name of the node.
pub(crate) const NODE: &str = "node1";

pub(crate) const CONFIG: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"]},
    "settings": {"maxFlows": 10000, "maxNames": 40000, "maxHellos": 1024}}"#;

/// A class, and a Gateway.
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
pub(crate) struct Scene {
    /// What agents serve is what it settles. It ends before the server.
    controller: Option<Controller>,
    pub(crate) server: ApiServer,
    pub(crate) pins: Pins,
    pub(crate) folder: TempDir,
    pub(crate) namespace: Namespace,
    /// The namespace of clients and backends.
    pub(crate) outside: Namespace,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let mut scene = Self::bare(CONFIG, &[]);
        scene.settle();
        scene
    }

    /// The same while no other test runs.
    pub(crate) fn alone() -> Self {
        let mut scene = Self::made(CONFIG, &[], true);
        scene.settle();
        scene
    }

    /// Starts with this chart's file while no other test runs, without a controller.
    pub(crate) fn alone_bare(config: &str) -> Self {
        Self::made(config, &[], true)
    }

    /// Starts with this chart's file and these arguments of the API server, without a controller.
    pub(crate) fn bare(config: &str, arguments: &[&str]) -> Self {
        Self::made(config, arguments, false)
    }

    fn made(config: &str, arguments: &[&str], alone: bool) -> Self {
        Self::around(config, |namespace| {
            server(&Options { namespace: Some(namespace), arguments, alone, ..Options::default() })
        })
    }

    /// Starts with this chart's file and an API server that is made in the node's namespace, without a controller.
    pub(crate) fn around(config: &str, server: impl FnOnce(&Namespace) -> ApiServer) -> Self {
        let namespace = Namespace::new("agent").unwrap();
        namespace.forward().unwrap();
        // Every address of 10.99.0.0/16 is local to `outside`.
        let outside = Namespace::new("outside").unwrap();
        veth(
            End { namespace: &namespace, device: "uplink", addresses: &["10.98.0.1/24"] },
            End { namespace: &outside, device: "beyond", addresses: &["10.98.0.2/24"] },
            1500,
        )
        .unwrap();
        namespace.ip("route add 10.99.0.0/16 via 10.98.0.2\n").unwrap();
        outside.ip("route add local 10.99.0.0/16 dev lo\nroute add default via 10.98.0.1\n").unwrap();
        let server = server(&namespace);
        let (pins, folder) = (Pins::new().unwrap(), TempDir::new().unwrap());
        let scene = Self { controller: None, server, pins, folder, namespace, outside };
        scene.kubectl().apply(OBJECTS).unwrap();
        scene.folder.write("vestibule.json", config).unwrap();
        scene
    }

    /// Starts the controller, or another one that reads the chart's file as it is now.
    pub(crate) fn settle(&mut self) {
        if let Some(controller) = self.controller.take() {
            controller.end();
        }
        self.controller = Some(self.controller("settler", &[]));
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.server.kubectl()
    }

    /// Creates a tenant's route to a backend: TLSRoute, Service, EndpointSlice.
    pub(crate) fn tenant(&self, name: &str, backend: &str) {
        let objects = tenant(name, backend).map(|(_, object)| object.to_string());
        self.kubectl().apply(&objects.join("\n---\n")).unwrap();
    }

    /// Creates many tenants, over some connections at once.
    pub(crate) fn tenants(&self, count: usize, name: fn(usize) -> String, backend: fn(usize) -> String) {
        /// The number of connections.
        const HANDS: usize = 4;
        std::thread::scope(|threads| {
            for hand in 0..HANDS {
                let mut api = self.server.rest().connect().unwrap();
                threads.spawn(move || {
                    for number in (hand..count).step_by(HANDS) {
                        for (path, object) in tenant(&name(number), &backend(number)) {
                            api.create(&path, &object).unwrap();
                        }
                    }
                });
            }
        });
    }

    /// Starts an agent whose pod has this name, with the ServiceAccount's rights.
    pub(crate) fn agent(&self, pod: &str) -> Agent {
        let account = self.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
        self.agent_by(pod, account.kubeconfig())
    }

    pub(crate) fn agent_by(&self, pod: &str, kubeconfig: &Path) -> Agent {
        self.agent_with(pod, kubeconfig, &[])
    }

    /// The same with more flags.
    pub(crate) fn agent_with(&self, pod: &str, kubeconfig: &Path, flags: &[&str]) -> Agent {
        self.agent_of(&binary().unwrap(), pod, kubeconfig, flags)
    }

    /// The same by this build.
    pub(crate) fn agent_of(&self, build: &Path, pod: &str, kubeconfig: &Path, flags: &[&str]) -> Agent {
        let host = Host { name: NODE, namespace: &self.namespace, pins: &self.pins, folder: &self.folder };
        Agent::start(&host, build, pod, kubeconfig, flags)
    }

    /// Starts a controller next to the agents, with these flags.
    pub(crate) fn controller(&self, pod: &str, flags: &[&str]) -> Controller {
        self.controller_of(&binary().unwrap(), pod, flags)
    }

    /// The same by this build.
    pub(crate) fn controller_of(&self, build: &Path, pod: &str, flags: &[&str]) -> Controller {
        let command = self.namespace.command(build);
        Controller::start(command, &self.server, &self.folder, pod, flags)
    }

    /// Returns a command for the binary with our pins, in the namespace.
    pub(crate) fn vestibule(&self) -> Command {
        let mut command = self.namespace.command(binary().unwrap());
        command.arg("--pins").arg(self.pins.path());
        command
    }

    /// Returns what a reading command prints, or `None` if nothing is pinned.
    pub(crate) fn read(&self, command: &str) -> Option<Vec<Value>> {
        let output = self.vestibule().args([command, "-o", "json"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        output
            .status
            .success()
            .then(|| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    /// Returns the backends in the maps that take new connections, as `route address`.
    pub(crate) fn backends(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let backends = self.read("backends").unwrap_or_default();
        let usable = backends.iter().filter(|backend| backend["flags"] == json!([]));
        usable.map(|backend| format!("{} {}", text(&backend["route"]), text(&backend["address"]))).collect()
    }

    /// Returns the requests that the API server refused.
    pub(crate) fn refusals(&self) -> Vec<String> {
        refusals(&self.server)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // All agents have been dropped before this.
        let _ = self.vestibule().arg("detach").output();
    }
}

/// Waits until the condition is true.
pub(crate) fn until(what: &str, agents: &[&Agent], mut wanted: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !wanted() {
        if begun.elapsed() > SOON {
            let logs: Vec<String> = agents.iter().map(|agent| agent.log()).collect();
            panic!("not within {SOON:?}: {what}\n{}", logs.join("\n---\n"));
        }
        // Most conditions ask a process of ours. What takes seconds is asked less often.
        std::thread::sleep(
            (begun.elapsed() / 8).clamp(Duration::from_millis(50), Duration::from_millis(250)),
        );
    }
}

/// Returns a tenant's objects, each with the collection it belongs to.
pub(crate) fn tenant(name: &str, backend: &str) -> [(String, Value); 3] {
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

/// Returns the one EndpointSlice of a tenant's Service.
pub(crate) fn slice(name: &str, backend: &str) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "tenant", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "tls", "port": 6443, "protocol": "TCP"}],
        "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}]})
}

/// The agent's process. Dropping it kills it.
pub(crate) struct Agent {
    process: Process,
    socket: PathBuf,
}

/// Where an agent runs.
pub(crate) struct Host<'a> {
    /// The node's name.
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a Namespace,
    pub(crate) pins: &'a Pins,
    /// The chart's file is there, and what agents keep.
    pub(crate) folder: &'a TempDir,
}

impl Agent {
    /// Starts this build on a node, as the pod of this name.
    pub(crate) fn start(host: &Host<'_>, build: &Path, pod: &str, kubeconfig: &Path, flags: &[&str]) -> Self {
        let path = |name: &str| host.folder.path().join(name);
        let socket = path(&format!("{pod}.sock"));
        let mut command = host.namespace.command(build);
        command.arg("--pins").arg(host.pins.path());
        command.args(["agent", "--log-format=json", "--config"]).arg(path("vestibule.json"));
        if !flags.iter().any(|flag| flag.starts_with("--metrics-port=")) {
            command.arg("--metrics-port=0");
        }
        for (flag, folder) in [("--state", "state"), ("--run", "run")] {
            command.arg(flag).arg(path(folder));
        }
        command.args(flags).arg("--socket").arg(&socket).env("NODE_NAME", host.name);
        command.env("VESTIBULE_LOG", "debug,hyper=info,kube=info,rustls=info,tower=info");
        Self { process: Process::start(command, host.folder, pod, kubeconfig), socket }
    }

    /// Returns the last lines of its log.
    pub(crate) fn log(&self) -> String {
        let text = self.process.log();
        let lines: Vec<&str> = text.lines().collect();
        let (_, ready) = self.probe("--readyz");
        format!("{}\n/readyz: {ready}", lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Kills it, as a crash does.
    pub(crate) fn crash(self) {
        drop(self);
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn end(mut self) {
        self.process.end();
    }

    /// Returns the result of `vestibule probe`.
    pub(crate) fn probe(&self, what: &str) -> (bool, String) {
        let mut command = Command::new(binary().unwrap());
        let output = command.args(["probe", what, "--socket"]).arg(&self.socket).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// Returns the socket on which it answers.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.probe("--readyz").0
    }

    /// Returns the value of a metric, without labels or with the ones in `name`.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.probe("--metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}
