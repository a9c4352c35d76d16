//! The network of one system: client - node - backends. Each is a namespace with its processes, and they are
//! connected by veth.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use load::order::{Order, Report};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tests::net::{End, Namespace, veth};
use tests::offload;

use crate::congestion;

/// The node's device towards the client, and towards the backends.
pub(crate) const DEVICES: [&str; 2] = ["client", "backends"];
/// The only device of the client and of the backends.
const UPLINK: &str = "uplink";

/// The clients' addresses: the first one, and how many there are.
pub(crate) const CLIENTS: (Ipv4Addr, u32) = (Ipv4Addr::new(10, 97, 1, 2), 16);
/// The first server; each server has its own port.
pub(crate) const SERVERS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 97, 2, 2), 20_000);
/// The address shared by all tenants; it is assigned to no device.
pub(crate) const VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 97, 0, 10), 443);
/// The first of the addresses that belong to one tenant each; they are assigned to no device.
pub(crate) const OWN_VIPS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, 1), 443);

/// The number of client processes, and of server processes.
const PROCESSES: usize = 2;

/// The packet sizes of the devices, and the windows of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    /// TSO and GSO: packets of up to 64 KiB.
    large: bool,
    /// Windows so small that the node's queue does not overflow.
    capped: bool,
}

/// Super-packets, as between pods of one node.
pub(crate) const DEFAULT: Profile = Profile { name: "default", large: true, capped: false };
/// Packets of at most the MTU, as on the wire.
pub(crate) const WIRE: Profile = Profile { name: "wire", large: false, capped: false };
/// Same as [`WIRE`] with capped windows; for client and backends on separate cores.
pub(crate) const WIRECAP: Profile = Profile { name: "wirecap-pin", large: false, capped: true };

/// Fields drop in order: processes before their namespaces.
#[derive(Debug)]
pub(crate) struct Rig {
    clients: Vec<Worker>,
    servers: Vec<Worker>,
    pub(crate) client: Namespace,
    pub(crate) node: Namespace,
    backends: Namespace,
    /// Number of servers.
    pub(crate) count: u32,
}

impl Rig {
    /// Creates the network and starts clients and `count` servers.
    pub(crate) fn new(profile: Profile, count: u32) -> Result<Self> {
        let mut rig = Self {
            clients: Vec::new(),
            servers: Vec::new(),
            client: Namespace::new("client")?,
            node: Namespace::new("node")?,
            backends: Namespace::new("backends")?,
            count,
        };
        rig.link(profile)?;
        for namespace in [&rig.client, &rig.node, &rig.backends] {
            congestion::set(namespace)?;
        }
        for namespace in [&rig.client, &rig.backends] {
            // Losses of one round must not affect the next.
            namespace.sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
            if profile.capped {
                namespace.sysctl("net/ipv4/tcp_rmem", "4096 131072 262144")?;
            }
        }
        // Closed connections stay in TIME_WAIT for a minute: allow many ports, and enough room for all.
        rig.client.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
        rig.client.sysctl("net/ipv4/tcp_max_tw_buckets", "2000000")?;
        for _ in 0..PROCESSES {
            let arguments = ["serve".to_owned(), SERVERS.to_string(), count.to_string()];
            rig.servers.push(Worker::start(&rig.backends, &arguments)?);
            rig.clients.push(Worker::start(&rig.client, &["dial".to_owned()])?);
        }
        Ok(rig)
    }

    fn link(&self, profile: Profile) -> Result<()> {
        self.node.forward()?;
        let clients: Vec<String> =
            (0..CLIENTS.1).map(|n| format!("{}/24", Ipv4Addr::from(u32::from(CLIENTS.0) + n))).collect();
        let clients: Vec<&str> = clients.iter().map(String::as_str).collect();
        let servers = format!("{}/24", SERVERS.ip());
        for (device, ours, far, theirs) in [
            (DEVICES[0], "10.97.1.1/24", &self.client, clients.as_slice()),
            (DEVICES[1], "10.97.2.1/24", &self.backends, &[servers.as_str()]),
        ] {
            let near = End { namespace: &self.node, device, addresses: &[ours] };
            let far = End { namespace: far, device: UPLINK, addresses: theirs };
            veth(near, far, 1500)?;
            for end in [near, far] {
                offload::set_large_packets(end.namespace, end.device, profile.large)?;
            }
        }
        self.client.ip("route add default via 10.97.1.1\n")?;
        // The client represents the Internet.
        self.node.ip(&format!("route add default via {}\n", CLIENTS.0))?;
        self.backends.ip("route add default via 10.97.2.1\n")
    }

    /// Fails if a connection has another congestion control than required. Must be called while connections
    /// are open.
    pub(crate) fn check_congestion_control(&self) -> Result<()> {
        for (namespace, some) in [(&self.client, true), (&self.backends, true), (&self.node, false)] {
            congestion::check(namespace, some)?;
        }
        Ok(())
    }

    /// The process IDs of clients and servers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.clients.iter().chain(&self.servers).map(|worker| worker.child.id()).collect()
    }

    /// Sends an order to one client.
    pub(crate) fn tell(&mut self, client: usize, order: &Order) -> Result<()> {
        self.clients[client].tell(order)
    }

    /// Waits for the report of one client.
    pub(crate) fn hear(&mut self, client: usize) -> Result<Report> {
        self.clients[client].hear()
    }

    /// Sends orders to as many clients at once, and adds up their reports.
    pub(crate) fn order(&mut self, orders: &[Order]) -> Result<Report> {
        ensure!(orders.len() <= self.clients.len(), "there are {} clients", self.clients.len());
        for (client, order) in self.clients.iter_mut().zip(orders) {
            client.tell(order)?;
        }
        let mut sum = Report::default();
        for (client, _) in self.clients.iter_mut().zip(orders) {
            sum.add(client.hear()?);
        }
        Ok(sum)
    }

    /// Pins clients to the first core and servers to the second.
    pub(crate) fn pin(&self) -> Result<()> {
        for (core, workers) in [(0, &self.clients), (1, &self.servers)] {
            let mut set = CpuSet::new();
            set.set(core)?;
            for worker in workers {
                let pid = Pid::from_raw(worker.child.id().cast_signed());
                sched_setaffinity(pid, &set).context("pinning to a core")?;
            }
        }
        Ok(())
    }
}

/// Returns the path of `load`: `LOAD_BIN`, else the optimised one below this program's target folder.
fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("LOAD_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("own path")?;
    let mut built = own.ancestors().map(|folder| folder.join("release/load"));
    built.find(|path| path.is_file()).context("`load` is not built; run `cargo xtask bench` or set LOAD_BIN")
}

/// A `load` process.
#[derive(Debug)]
struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    fn start(namespace: &Namespace, arguments: &[String]) -> Result<Self> {
        let mut child = namespace
            .command(binary()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a load")?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("stdout of the load is piped")?);
        let mut worker = Self { child, stdin, stdout };
        let line = worker.line()?;
        ensure!(line.trim() == "ready", "the load {arguments:?} says {line:?}");
        Ok(worker)
    }

    fn tell(&mut self, order: &Order) -> Result<()> {
        let stdin = self.stdin.as_mut().context("stdin of the load is piped")?;
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        stdin.write_all(line.as_bytes()).context("giving an order")
    }

    fn hear(&mut self) -> Result<Report> {
        let line = self.line()?;
        serde_json::from_str(&line).context("reading a report")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let length = self.stdout.read_line(&mut line).context("hearing a load")?;
        ensure!(length > 0, "a load ended; see its output above");
        Ok(line)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends when its standard input is closed; a busy one is killed instead.
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
