use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::maps::announced::{Announced, AnnouncedKey, OWNER_ONLY};
use common::maps::name;
use common::wire::arp;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl, Options};
use tests::daemon::binary;
use tests::net::{End, Namespace, Pins, veth};
use tests::pinned::pinned_entries;
use tests::relay::Relay;
use tests::server::{Server, Speech};
use tests::tap::Tap;
use tests::temp::TempDir;
use userspace::net::frames::claim;

use crate::agent::scene::{Agent, Host, slice};
use crate::controller::announcement::{node, rights, wait};
use crate::process::{Controller, RELEASE, SOON, server};

/// The VIPs of both families, on the segment of the nodes.
pub(super) const VIPS: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
const BACKENDS: [&str; 2] = ["10.99.1.1", "fd99::1"];
pub(super) const PORT: u16 = 6443;

/// How long the first answer may take, and how often it is looked for.
const FIRST: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// The age of a stamp, in seconds, at which a kernel leaves its addresses to others.
pub(super) const CONFIG: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28", "2001:db8::/120"], "l2": true, "rebalanceAfter": "REBALANCE", "onIsolation": "ISOLATION"},
    "agentGraceSeconds": GRACE,
    "settings": {"maxFlows": 10000, "maxNames": 1024, "maxHellos": 1024}}"#;

const NAMESPACE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: tenant}
";

const SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: tenant, annotations: {vestibule.dev/addresses: "ADDRESSES"}}
spec:
  type: LoadBalancer
  loadBalancerClass: vestibule.dev/lb
  ipFamilyPolicy: PreferDualStack
  allocateLoadBalancerNodePorts: false
  ports: [{name: tls, port: 6443, protocol: TCP}]
"#;

/// Creates a Service of the backends, with an address of each family.
pub(super) fn serve(kubectl: &Kubectl, name: &str, addresses: [&str; 2]) {
    let service = SERVICE.replace("NAME", name).replace("ADDRESSES", &addresses.join(","));
    kubectl.apply(&service).unwrap();
    for (family, backend) in ["IPv4", "IPv6"].iter().zip(BACKENDS) {
        let mut slice = slice(name, backend);
        slice["metadata"]["name"] = json!(format!("{name}-{}", family.to_lowercase()));
        slice["addressType"] = json!(family);
        kubectl.apply(&slice.to_string()).unwrap();
    }
}

/// A node on the segment.
pub(super) struct Node {
    /// Ends before its namespace.
    agent: Option<Agent>,
    relay: Option<Relay>,
    pub(super) name: String,
    pub(super) link: [u8; 6],
    pub(super) pins: Pins,
    folder: TempDir,
    pub(super) namespace: Namespace,
    kubeconfig: PathBuf,
}

/// Nodes with agents, and a host that is their client, their backend and their router, all on one bridge.
pub(super) struct Segment {
    pub(super) nodes: Vec<Node>,
    _backends: [Server; 2],
    _controller: Controller,
    api: ApiServer,
    _folder: TempDir,
    port: u16,
    pub(super) host: Namespace,
    pub(super) bridge: Namespace,
}

impl Segment {
    /// Starts all of it, and waits until one node announces the VIPs. Kernels leave their addresses to others after two seconds.
    pub(super) fn new(nodes: usize) -> Self {
        Self::with_grace(nodes, 2)
    }

    /// The same after this many seconds.
    pub(super) fn with_grace(nodes: usize, grace: u32) -> Self {
        let config = CONFIG.replace("GRACE", &grace.to_string()).replace("REBALANCE", "never");
        Self::of(nodes, nodes, &config.replace("ISOLATION", "Hold"), |_, _| ())
    }

    /// The same where only the first node has an agent, and planned moves are made after this time.
    pub(super) fn of_first(nodes: usize, rebalance: &str) -> Self {
        let config = CONFIG.replace("GRACE", "2").replace("REBALANCE", rebalance);
        Self::of(nodes, 1, &config.replace("ISOLATION", "Hold"), |_, _| ())
    }

    /// The same of two nodes, each of which withdraws what the other may announce while it is cut off.
    pub(super) fn of_two_that_withdraw() -> Self {
        let config = CONFIG.replace("GRACE", "2").replace("REBALANCE", "never");
        Self::of(2, 2, &config.replace("ISOLATION", "Withdraw"), |_, _| ())
    }

    /// The same of one node with two devices on the segment.
    pub(super) fn of_two_devices() -> Self {
        let config = CONFIG.replace("GRACE", "2").replace("REBALANCE", "never").replace("ISOLATION", "Hold");
        let config = config.replacen('{', r#"{"devices": ["uplink", "second"], "#, 1);
        Self::of(1, 1, &config, |bridge, node| {
            join(bridge, &node.namespace, ("second", "second"), "10.98.0.99/24", "fd98::99/64");
        })
    }

    /// The same where the first `running` nodes have agents.
    pub(super) fn of(nodes: usize, running: usize, config: &str, also: impl Fn(&Namespace, &Node)) -> Self {
        let (bridge, host) = (Namespace::new("bridge").unwrap(), Namespace::new("host").unwrap());
        bridge.ip("link add br0 type bridge\nlink set br0 up\n").unwrap();
        join(&bridge, &host, ("uplink", "host"), "10.98.0.1/24", "fd98::1/64");
        host.ip(
            "route add local 10.99.0.0/16 dev lo\naddr add fd99::1/128 dev lo\nroute add 192.0.2.0/28 dev uplink\n\
             route add 2001:db8::/120 dev uplink\n",
        )
        .unwrap();
        let server = server(&Options { namespace: Some(&bridge), ..Options::default() });
        rights(server.kubectl());
        (0..nodes).for_each(|number| node(server.kubectl(), &format!("node{number}")));
        server.kubectl().apply(NAMESPACE).unwrap();
        serve(server.kubectl(), "lb", VIPS);
        let folder = TempDir::new().unwrap();
        folder.write("vestibule.json", config).unwrap();
        let command = bridge.command(binary().unwrap());
        let controller = Controller::start(command, &server, &folder, "leader", &[]);
        let account = server.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
        let port = port(&account);
        let nodes: Vec<Node> = (0..nodes)
            .map(|number| Node::new(number, &bridge, account.kubeconfig().into(), config))
            .collect();
        nodes.iter().for_each(|node| also(&bridge, node));
        let at = |backend: &str| SocketAddr::new(backend.parse().unwrap(), PORT);
        let backends =
            BACKENDS.map(|backend| Server::start(&host, at(backend), "backend", Speech::Echo).unwrap());
        let mut this = Self {
            nodes,
            _backends: backends,
            _controller: controller,
            api: server,
            _folder: folder,
            port,
            host,
            bridge,
        };
        for number in 0..running {
            this.reconnect(number);
            this.start(number);
        }
        this.members(running);
        this.until("one node announces each VIP", |this| {
            VIPS.iter().all(|vip| this.owners(vip).len() == 1) && (running == 1 || this.is_shared())
        });
        this.until("the VIPs are served", |this| VIPS.iter().all(|vip| this.dial(vip).is_ok()));
        this
    }

    pub(super) fn kubectl(&self) -> &Kubectl {
        self.api.kubectl()
    }

    /// Waits until the first nodes are members: they join one by one.
    pub(super) fn members(&self, count: usize) {
        let members: Vec<String> = (0..count).map(|number| format!("node{number}")).collect();
        wait(self.api.kubectl(), "all nodes are members", |object| {
            object["spec"]["members"] == json!(members)
        });
    }

    /// Lets a node reach the API server.
    pub(super) fn reconnect(&mut self, number: usize) {
        let relay = Relay::start(&self.nodes[number].namespace, &self.bridge, self.port).unwrap();
        self.nodes[number].relay = Some(relay);
    }

    /// Ends a node's connections to the API server.
    pub(super) fn disconnect(&mut self, number: usize) {
        self.nodes[number].relay = None;
    }

    /// Starts a node's agent.
    pub(super) fn start(&mut self, number: usize) {
        self.start_as(number, "agent");
    }

    fn start_as(&mut self, number: usize, pod: &str) {
        let node = &mut self.nodes[number];
        let host =
            Host { name: &node.name, namespace: &node.namespace, pins: &node.pins, folder: &node.folder };
        node.agent = Some(Agent::start(&host, &binary().unwrap(), pod, &node.kubeconfig, &[]));
    }

    /// Asks a node's agent for the maps as the next one does, and is given them. The agent waits until they are taken.
    pub(super) fn given(&self, number: usize) -> UnixStream {
        let socket = self.nodes[number].folder.path().join("run/writer.sock");
        let mut line = UnixStream::connect(socket).unwrap();
        let mut answer = [0; 6];
        line.write_all(b"give\n").and_then(|()| line.read_exact(&mut answer)).unwrap();
        assert_eq!(answer, *b"given\n");
        line
    }

    /// Starts the next agent of a node, and ends the one before once that has handed over.
    pub(super) fn replace(&mut self, number: usize) {
        let before = self.nodes[number].agent.take().unwrap();
        self.start_as(number, "next");
        self.until("the next agent writes", |this| this.is_writer(number));
        before.end();
    }

    /// Whether a node's agent writes its maps.
    pub(super) fn is_writer(&self, number: usize) -> bool {
        self.nodes[number].agent.as_ref().unwrap().metric("vestibule_writer") == Some(1.0)
    }

    /// Kills all agents at once.
    pub(super) fn crash_all(&mut self) {
        for number in 0..self.nodes.len() {
            self.signal(number, Signal::SIGKILL);
        }
        (0..self.nodes.len()).for_each(|number| self.crash(number));
    }

    /// Kills a node's agent, as a crash does.
    pub(super) fn crash(&mut self, number: usize) {
        drop(self.nodes[number].agent.take());
    }

    /// Sends a signal to a node's agent.
    pub(super) fn signal(&self, number: usize, signal: Signal) {
        self.nodes[number].agent.as_ref().unwrap().signal(signal);
    }

    /// Takes a node off the segment, or puts it back.
    pub(super) fn link(&self, number: usize, state: &str) {
        self.bridge.ip(&format!("link set node{number} {state}\n")).unwrap();
    }

    /// The nodes whose programs answer for a VIP, as far as their maps say.
    pub(super) fn owners(&self, vip: &str) -> Vec<usize> {
        let vip: IpAddr = vip.parse().unwrap();
        let is_owner = |node: &Node| {
            let map = node.pins.path().join(name::ANNOUNCED);
            let entries = pinned_entries::<AnnouncedKey, Announced>(&map).unwrap_or_default();
            entries.iter().any(|(key, value)| IpAddr::from(key.address) == vip && value.is_here())
        };
        (0..self.nodes.len()).filter(|number| is_owner(&self.nodes[*number])).collect()
    }

    /// The one node that announces a VIP.
    pub(super) fn owner(&self, vip: &str) -> usize {
        let owners = self.owners(vip);
        assert_eq!(owners.len(), 1, "{vip} is announced by {owners:?}\n{}", self.logs());
        owners[0]
    }

    /// What `vestibule vips` prints on a node.
    pub(super) fn shown(&self, number: usize) -> String {
        let node = &self.nodes[number];
        let mut command: Command = node.namespace.command(binary().unwrap());
        // Without an agent, nobody answers there.
        let socket = node
            .agent
            .as_ref()
            .map_or_else(|| node.folder.path().join("none"), |agent| agent.socket().into());
        let command = command.arg("--pins").arg(node.pins.path()).args(["vips", "--socket"]).arg(socket);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether other nodes may announce the VIPs, too, as far as the owners' maps say.
    fn is_shared(&self) -> bool {
        let is_shared = |node: &Node| {
            let map = node.pins.path().join(name::ANNOUNCED);
            let entries = pinned_entries::<AnnouncedKey, Announced>(&map).unwrap_or_default();
            entries.iter().all(|(_, value)| value.owner != OWNER_ONLY)
        };
        self.nodes.iter().all(is_shared)
    }

    /// Asks for a VIP as a host does that has forgotten it. Returns the link addresses that answer: those that do so within `wait` after the
    /// first one, which may take two seconds on a busy machine.
    pub(super) fn ask(&self, vip: &str, wait: Duration) -> BTreeSet<[u8; 6]> {
        let tap = Tap::open(&self.host, "uplink").unwrap();
        let vip: IpAddr = vip.parse().unwrap();
        let from = self.host.mac("uplink").unwrap();
        match vip {
            IpAddr::V4(address) => tap.send(&arp::probe(address, from)).unwrap(),
            IpAddr::V6(address) => tap.send(&common::wire::ndp::probe(address, from)).unwrap(),
        }
        let mut links = BTreeSet::new();
        let mut end = Instant::now() + FIRST;
        while Instant::now() < end {
            std::thread::sleep(LOOK);
            let frames = tap.drain().unwrap();
            let claims =
                frames.iter().filter_map(|frame| claim(frame)).filter(|(address, _)| *address == vip);
            let before = links.len();
            links.extend(claims.map(|(_, link)| link));
            if before == 0 && !links.is_empty() {
                end = Instant::now() + wait;
            }
        }
        links
    }

    /// Connects to a VIP by name resolution on the segment, and exchanges bytes with the backend.
    pub(super) fn dial(&self, vip: &str) -> std::io::Result<TcpStream> {
        let vip = vip.parse().map_err(std::io::Error::other)?;
        self.host.run(|| tests::tls::dial(SocketAddr::new(vip, PORT)))
    }

    /// Has the client forget link addresses.
    pub(super) fn forget(&self) {
        self.host.ip("neigh flush dev uplink\n").unwrap();
    }

    pub(super) fn logs(&self) -> String {
        let logs = self.nodes.iter().map(|node| match &node.agent {
            Some(agent) => format!("== {}\n{}", node.name, agent.log()),
            None => format!("== {}: no agent", node.name),
        });
        logs.collect::<Vec<_>>().join("\n")
    }

    pub(super) fn until(&self, what: &str, mut wanted: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !wanted(self) {
            assert!(begun.elapsed() < SOON, "not within {SOON:?}: {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Node {
    fn new(number: usize, bridge: &Namespace, kubeconfig: PathBuf, config: &str) -> Self {
        let namespace = Namespace::new(&format!("node{number}")).unwrap();
        namespace.forward().unwrap();
        let (v4, v6) = (format!("10.98.0.{}/24", 10 + number), format!("fd98::{:x}/64", 0x10 + number));
        join(bridge, &namespace, ("uplink", &format!("node{number}")), &v4, &v6);
        namespace.ip("route add default via 10.98.0.1\nroute add default via fd98::1\n").unwrap();
        let (pins, folder) = (Pins::new().unwrap(), TempDir::new().unwrap());
        folder.write("vestibule.json", config).unwrap();
        let link = namespace.mac("uplink").unwrap();
        let name = format!("node{number}");
        Self { agent: None, relay: None, name, link, pins, folder, namespace, kubeconfig }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.agent.take());
        let mut command: Command = self.namespace.command(binary().unwrap());
        let _ = command.arg("--pins").arg(self.pins.path()).arg("detach").output();
    }
}

/// Connects a namespace to the bridge.
pub(super) fn join(bridge: &Namespace, host: &Namespace, (device, port): (&str, &str), v4: &str, v6: &str) {
    veth(
        End { namespace: host, device, addresses: &[v4, v6] },
        End { namespace: bridge, device: port, addresses: &[] },
        1500,
    )
    .unwrap();
    bridge.ip(&format!("link set {port} master br0\n")).unwrap();
}

/// Returns the port of the API server that a kubeconfig names.
fn port(account: &Kubectl) -> u16 {
    let text: Value = serde_json::from_str(&account.run(&["config", "view", "-o", "json"]).unwrap())
        .unwrap_or_else(|error| {
            panic!("{error}: {}", fs::read_to_string(account.kubeconfig()).unwrap());
        });
    let server = text["clusters"][0]["cluster"]["server"].as_str().unwrap();
    server.rsplit_once(':').unwrap().1.trim_end_matches('/').parse().unwrap()
}
