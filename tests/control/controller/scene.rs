use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl, Options};
use tests::daemon::binary;
use tests::temp::TempDir;
use userspace::compile::{Surroundings, compile};
use userspace::model::cluster::{
    AddressRange, ClassSpec, GatewayListener, GatewaySpec, LoadBalancerSpec, NamespaceScope, Policy,
    ServicePort, ServiceSpec,
};
use userspace::model::{Cluster, Facts, Kind, Meta, ObjectName, ObjectRef};

/// Namespace of the release, as in the plain manifests.
pub(super) const RELEASE: &str = "vestibule-system";
/// How long a status may take on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(30);

const CONFIG: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"]}}"#;

/// What tenants write: a class, a Gateway, and a Service of our class.
pub(super) const OBJECTS: &str = "
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
  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}]
";

/// An API server with the rights of the chart, and a folder for logs.
pub(super) struct Scene {
    pub(super) server: ApiServer,
    folder: TempDir,
}

impl Scene {
    pub(super) fn new() -> Self {
        let server = ApiServer::with(&Options { audit: true, ..Options::default() }).unwrap();
        let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/vestibule.yaml");
        let manifests = fs::read_to_string(manifests).unwrap();
        let kinds =
            ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
        let wanted = |document: &&str| {
            kinds.iter().any(|kind| document.lines().any(|line| line == format!("kind: {kind}")))
        };
        let rights: Vec<&str> = manifests.split("\n---").filter(wanted).collect();
        assert!(rights.len() > 8, "{rights:?}");
        server.kubectl().apply(&rights.join("\n---")).unwrap();
        let folder = TempDir::new().unwrap();
        folder.write("vestibule.json", CONFIG).unwrap();
        Self { server, folder }
    }

    pub(super) fn kubectl(&self) -> &Kubectl {
        self.server.kubectl()
    }

    /// A controller of this name, with the ServiceAccount's rights.
    pub(super) fn controller(&self, pod: &str) -> Controller {
        let account = self.kubectl().of_service_account(RELEASE, "vestibule-controller").unwrap();
        let port = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let log = self.folder.path().join(format!("{pod}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let child = Command::new(binary().unwrap())
            .args(["controller", "--log-format=json", "--config"])
            .arg(self.folder.path().join("vestibule.json"))
            .arg(format!("--metrics-port={port}"))
            .env("KUBECONFIG", account.kubeconfig())
            .envs([("POD_NAME", pod), ("POD_NAMESPACE", RELEASE), ("NODE_NAME", "nowhere")])
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Controller { child, log, port }
    }

    /// Waits until an object of the tenant is as wanted.
    pub(super) fn wait(&self, what: &str, object: [&str; 2], wanted: impl Fn(&Value) -> bool) -> Value {
        let arguments = ["-n", "tenant", object[0], object[1]];
        self.kubectl().wait_for(what, &arguments, SOON, wanted).unwrap()
    }

    /// What the controller was refused.
    pub(super) fn refusals(&self) -> Vec<String> {
        let log = fs::read_to_string(self.server.audit_log()).unwrap_or_default();
        let refused = |line: &&str| line.contains("\"authorization.k8s.io/decision\":\"forbid\"");
        log.lines().filter(refused).map(str::to_owned).collect()
    }

    /// What an agent that holds everything says of its node.
    pub(super) fn report(&self, node: &str, digests: &BTreeMap<String, String>) {
        let spec = json!({"node": node, "pod": format!("agent-{node}"), "version": "0", "digests": digests});
        let state = json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "NodeState",
                           "metadata": {"name": node}, "spec": spec});
        self.kubectl().apply(&state.to_string()).unwrap();
    }
}

/// The process. Dropping it kills it.
pub(super) struct Controller {
    child: Child,
    log: PathBuf,
    port: u16,
}

impl Controller {
    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Sends SIGTERM and waits for the end.
    pub(super) fn end(mut self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGTERM).unwrap();
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What one of its paths answers: status and text.
    pub(super) fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, self.port))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    pub(super) fn leads(&self) -> bool {
        self.ask("/metrics").is_some_and(|text| text.lines().any(|line| line == "vestibule_leader 1"))
    }

    /// How many statuses it tried to write.
    pub(super) fn writes(&self) -> u32 {
        let text = self.ask("/metrics").unwrap();
        let counts = text.lines().filter(|line| line.starts_with("vestibule_status_writes_total"));
        counts.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap()).sum()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("cannot end the controller: {error}");
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Keeps the Lease of a node's agent until it is dropped. Its clock is years off.
pub(super) struct Agent {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    pub(super) fn start(scene: &Scene, node: &str) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (rest, node, ended) = (scene.server.rest().clone(), node.to_owned(), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases");
            let name = format!("vestibule-agent-{node}");
            let mut second = 0;
            while !ended.load(Ordering::Relaxed) {
                let renewed = format!("2001-01-01T00:{:02}:{:02}.000000Z", second / 60, second % 60);
                let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 10, "renewTime": renewed});
                let labels = json!({"app.kubernetes.io/component": "agent"});
                let lease = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
                // An API server that is away is part of some stories: what fails is done again.
                if let Ok(mut api) = rest.connect()
                    && api.merge(&format!("{leases}/{name}"), &lease).is_err()
                {
                    let _ = api.create(&leases, &lease);
                }
                second += 1;
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("an agent panicked");
        }
    }
}

/// What nodes hold that have everything of [`OBJECTS`], and of a Service `lb` with `address` and port 443.
pub(super) fn digests(gateway: &str, service: Option<&str>) -> BTreeMap<String, String> {
    let address = |text: &str| text.parse().unwrap();
    let mut cluster = Cluster {
        policy: Policy {
            ranges: vec![AddressRange { first: address("192.0.2.0"), last: address("192.0.2.15") }],
            ..Policy::default()
        },
        ..Cluster::default()
    };
    cluster.classes.insert("vestibule".into(), Arc::new(ClassSpec::default()));
    let meta = |name: &ObjectName| Meta { name: name.clone(), generation: 1, ..Meta::default() };
    let name = ObjectName::new("tenant", "gw");
    let listener = GatewayListener {
        name: "tls".into(),
        hostname: None,
        port: 443,
        protocol: "TLS".into(),
        tls_mode: Some("Passthrough".into()),
        namespaces: NamespaceScope::Same,
        kinds: vec![],
    };
    let spec = GatewaySpec {
        meta: meta(&name),
        class: "vestibule".into(),
        listeners: vec![listener],
        given: vec![address(gateway)],
        ..GatewaySpec::default()
    };
    cluster.gateways.insert(name, Arc::new(spec));
    if let Some(service) = service {
        let name = ObjectName::new("tenant", "lb");
        let balancer = LoadBalancerSpec {
            addresses: vec![address(service)],
            field: "metadata.annotations[vestibule.dev/addresses]".into(),
            has_source_ranges: false,
        };
        let port = ServicePort { name: "".into(), port: 443, is_tcp: true, protocol: "TCP".into() };
        let spec = ServiceSpec {
            meta: meta(&name),
            ports: vec![port],
            load_balancer: Some(Arc::new(balancer)),
            ..ServiceSpec::default()
        };
        cluster.services.insert(name, Arc::new(spec));
    }
    let facts = Facts { cluster: Some(cluster), ..Facts::default() };
    let digests = compile(&facts, &Surroundings::default()).verdicts.digests();
    assert!(digests.contains_key(&ObjectRef { kind: Kind::Gateway, name: ObjectName::new("tenant", "gw") }));
    let text = |(object, digest): (ObjectRef, u64)| {
        (format!("{}/{}", object.kind, object.name), format!("{digest:016x}"))
    };
    digests.into_iter().map(text).collect()
}

/// A condition of an object, by type; null where it is not there.
pub(super) fn condition<'a>(conditions: &'a Value, kind: &str) -> &'a Value {
    let conditions = conditions.as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// Whether the object's condition has this status and reason.
pub(super) fn is(object: &Value, kind: &str, status: &str, reason: &str) -> bool {
    let condition = condition(&object["status"]["conditions"], kind);
    condition["status"] == status && condition["reason"] == reason
}
