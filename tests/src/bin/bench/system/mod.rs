//! The systems between clients and backends.

/// nftables: destination NAT of one address per tenant.
mod nft;
/// haproxy and nginx: processes that pass TLS through by name.
mod proxy;
/// Vestibule.
pub(crate) mod vestibule;

use std::path::Path;
use std::process::Child;

use anyhow::{Context, Result, ensure};
use load::content::host_name;
use load::order::{Aim, Door, Order, Task};
use tests::daemon::Daemon;
use tests::temp::TempDir;

use crate::greeting;
use crate::rig::{CLIENTS, OWN_VIPS, Profile, Rig, SERVERS, VIP};

/// The most servers that a rig has; more tenants than this share them.
pub(crate) const SERVERS_MOST: u32 = 1000;

/// The systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum System {
    /// The client dials the backend; the node only forwards.
    Direct,
    Vestibule,
    Nft,
    Haproxy,
    Nginx,
}

/// All systems: first the one that all are compared with, then ours.
pub(crate) const SYSTEMS: [System; 5] =
    [System::Direct, System::Vestibule, System::Nft, System::Haproxy, System::Nginx];

/// The name of an old build of ours in tables.
pub(crate) const OLD: &str = "old";

impl System {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Vestibule => "vestibule",
            Self::Nft => "nft",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }
}

/// A running system in its own rig. Fields drop in order: the system before its network.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) system: System,
    pub(crate) tenants: u32,
    /// Its name in tables, if it differs from the system's name.
    pub(crate) title: Option<String>,
    balancer: Balancer,
    pub(crate) rig: Rig,
}

#[derive(Debug)]
enum Balancer {
    /// The kernel alone.
    Kernel,
    Vestibule(Box<Daemon>),
    /// A master process with its workers, and its files.
    Proxy(Proxy),
}

#[derive(Debug)]
struct Proxy {
    child: Child,
    _files: TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both proxies end their workers when the master ends.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id().cast_signed()),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.child.wait();
    }
}

impl Bench {
    /// Creates a rig and starts the system in it.
    pub(crate) fn new(system: System, profile: Profile, tenants: u32) -> Result<Self> {
        Self::with_servers(system, profile, tenants, tenants.min(SERVERS_MOST))
    }

    /// Creates a bench with an old build of ours, `binary`. Like every system it has its own pins and
    /// network, because its maps may differ.
    pub(crate) fn old(binary: &Path, profile: Profile, tenants: u32) -> Result<Self> {
        let servers = tenants.min(SERVERS_MOST);
        let mut bench = Self::made(System::Vestibule, profile, tenants, servers, Some(binary))
            .with_context(|| format!("the old build is {}", binary.display()))?;
        bench.title = Some(OLD.to_owned());
        Ok(bench)
    }

    /// Same as [`Self::new`], with this many servers.
    pub(crate) fn with_servers(system: System, profile: Profile, tenants: u32, servers: u32) -> Result<Self> {
        Self::made(system, profile, tenants, servers, None)
    }

    /// A bench of ours with this file in place of the usual one.
    pub(crate) fn with_text(profile: Profile, tenants: u32, servers: u32, text: &str) -> Result<Self> {
        let rig = Rig::new(profile, servers)?;
        let daemon = vestibule::start_with(&rig.node, text).context("starting vestibule")?;
        let balancer = Balancer::Vestibule(Box::new(daemon));
        Ok(Self { system: System::Vestibule, tenants, title: None, balancer, rig })
    }

    /// `build` is the old binary, if the system is ours and is not the build under test.
    fn made(
        system: System,
        profile: Profile,
        tenants: u32,
        servers: u32,
        build: Option<&Path>,
    ) -> Result<Self> {
        let rig = Rig::new(profile, servers)?;
        let balancer = match system {
            System::Direct => Ok(Balancer::Kernel),
            System::Nft => nft::start(&rig, tenants).map(|()| Balancer::Kernel),
            System::Haproxy => proxy::haproxy(&rig, tenants).map(Balancer::Proxy),
            System::Nginx => proxy::nginx(&rig, tenants).map(Balancer::Proxy),
            System::Vestibule => {
                vestibule::start(&rig, tenants, build).map(|daemon| Balancer::Vestibule(Box::new(daemon)))
            }
        };
        let balancer = balancer.with_context(|| format!("starting {}", system.name()))?;
        Ok(Self { system, tenants, title: None, balancer, rig })
    }

    /// Its name in tables.
    pub(crate) fn name(&self) -> String {
        self.title.clone().unwrap_or_else(|| self.system.name().to_owned())
    }

    /// Where clients dial, and from where.
    pub(crate) fn aim(&self, seed: u32) -> Aim {
        let door = match self.system {
            System::Direct => Door::Ports(SERVERS),
            System::Nft => Door::Addresses(OWN_VIPS),
            _ => Door::Shared(VIP),
        };
        Aim { door, tenants: self.tenants, servers: self.rig.count, from: CLIENTS, seed }
    }

    /// Fails unless the sockets of both ends have the congestion control that all systems must have.
    pub(crate) fn check_congestion_control(&mut self) -> Result<()> {
        let order = |task| Order { template: greeting::usual(), aim: self.aim(0), task };
        let [hold, release] = [Task::Hold { connections: 4 }, Task::Release].map(order);
        let held = self.rig.order(&[hold])?;
        ensure!(held.done == 4, "{} holds {} of 4 connections: {:?}", self.name(), held.done, held.errors);
        self.rig.check_congestion_control().with_context(|| format!("the rig of {}", self.name()))?;
        self.rig.order(&[release]).map(drop)
    }

    /// All processes of this system: clients, servers, balancer.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut pids = self.rig.pids();
        match &self.balancer {
            Balancer::Kernel => {}
            Balancer::Vestibule(daemon) => pids.extend(daemon.pid()),
            Balancer::Proxy(proxy) => {
                pids.push(proxy.child.id());
                pids.extend(children(proxy.child.id()));
            }
        }
        pids
    }

    /// Starts the daemon again after its end.
    pub(crate) fn relaunch(&mut self) -> Result<()> {
        match &mut self.balancer {
            Balancer::Vestibule(daemon) => daemon.launch(&self.rig.node),
            _ => Ok(()),
        }
    }

    /// The daemon, if the system is ours.
    pub(crate) fn daemon(&mut self) -> Option<&mut Daemon> {
        match &mut self.balancer {
            Balancer::Vestibule(daemon) => Some(daemon),
            _ => None,
        }
    }
}

/// The processes that a process started.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The port of the server that answers a tenant's connections.
fn server_port(rig: &Rig, tenant: u32) -> u16 {
    SERVERS.port() + (tenant % rig.count) as u16
}

/// Each tenant's host name and the port of its server.
fn tenants(rig: &Rig, count: u32) -> impl Iterator<Item = (String, u16)> {
    (0..count).map(|tenant| (host_name(tenant), server_port(rig, tenant)))
}
