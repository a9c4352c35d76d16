//! The lab: a client, the balancer's node, and three tenants with two backends each, in namespaces connected
//! by veth.
//!
//! ```text
//! client ──(injector)── balancer ──(injector)── tenant a: backends .2 and .3, IPv4 and IPv6
//!   10.97.1.2             .1  ├──(injector)──── tenant b
//!                             └──(injector)──── tenant c
//! ```
//!
//! The balancer's default routes point at the client, which represents the Internet. Backends have no route
//! beyond their own network: they can answer only the balancer's own addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::addresses::{
    BACKEND_PORT, BACKENDS, CLIENT_NET, FAMILIES, Family, TENANT_NETS, backend, balancer, client,
    server_name, tenant_name, vip,
};
use crate::capture::Capture;
use crate::config::Config;
use crate::daemon::Daemon;
use crate::injector::{Faults, Injector};
use crate::net::{End, Namespace, veth, veth_at};
use crate::offload;
use crate::server::{Server, Speech};
use crate::tls::Authority;

/// Name of the balancer's device towards the client.
pub const CLIENT_DEVICE: &str = "client";
/// Name of the only device in the client's and the tenants' namespaces.
pub const UPLINK: &str = "uplink";

/// How a lab differs from the default lab.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of the namespaces' names; `None` generates unique ones.
    pub name: Option<String>,
    pub client_mtu: u16,
    pub backend_mtu: u16,
    /// MSS the client announces and obeys.
    pub client_mss: Option<u16>,
    /// Meant as the MSS that the backends announce and obey; nothing reads it at present.
    pub backend_mss: Option<u16>,
    /// Faults between client and balancer.
    pub client_faults: Option<Faults>,
    /// Delay between client and balancer, in each direction.
    pub client_delay: Duration,
    /// Faults between balancer and each tenant.
    pub backend_faults: Option<Faults>,
    /// GSO, GRO and checksum offload on all devices. Injectors need them off and switch them off themselves.
    pub offloads: bool,
    /// Whether to start the tenants' servers.
    pub servers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: None,
            client_mtu: 1500,
            backend_mtu: 1500,
            client_mss: None,
            backend_mss: None,
            client_faults: None,
            client_delay: Duration::ZERO,
            backend_faults: None,
            offloads: true,
            servers: true,
        }
    }
}

/// One tenant: its namespace, authority and servers.
#[derive(Debug)]
pub struct Tenant {
    pub name: &'static str,
    pub namespace: Namespace,
    pub authority: Authority,
    /// TLS servers on [`BACKEND_PORT`], by family, then by backend. A server's name is `<tenant>/<backend>`.
    pub servers: Vec<Server>,
}

/// The whole lab. Fields drop in order: what uses the namespaces first, then the namespaces.
#[derive(Debug)]
pub struct Lab {
    captures: Vec<Capture>,
    injectors: Vec<Injector>,
    pub tenants: Vec<Tenant>,
    pub client: Namespace,
    pub balancer: Namespace,
}

impl Lab {
    /// Creates the default lab.
    pub fn new() -> Result<Self> {
        Self::with(&Options::default())
    }

    /// Creates namespaces, links, routes and the tenants' servers.
    pub fn with(options: &Options) -> Result<Self> {
        let namespace = |role: &str| match &options.name {
            Some(name) => Namespace::named(format!("{name}-{role}")),
            None => Namespace::new(role),
        };
        let mut lab = Self {
            captures: Vec::new(),
            injectors: Vec::new(),
            tenants: Vec::new(),
            client: namespace("client")?,
            balancer: namespace("balancer")?,
        };
        lab.balancer.forward()?;
        lab.link_client(options).context("linking the client")?;
        lab.captures.extend(Capture::start(&lab.client, UPLINK)?);
        for tenant in 0..TENANT_NETS.len() {
            let made = namespace(tenant_name(tenant))?;
            let injector = link_tenant(&lab.balancer, tenant, &made, options)
                .with_context(|| format!("linking {}", tenant_name(tenant)))?;
            lab.injectors.extend(injector);
            lab.captures.extend(Capture::start(&made, UPLINK)?);
            let authority = Authority::new(tenant_name(tenant))?;
            let servers = if options.servers { servers(tenant, &made, &authority)? } else { Vec::new() };
            lab.tenants.push(Tenant { name: tenant_name(tenant), namespace: made, authority, servers });
        }
        Ok(lab)
    }

    fn link_client(&mut self, options: &Options) -> Result<()> {
        let ours = FAMILIES.map(|family| with_prefix(family, balancer(family, CLIENT_NET)));
        let theirs = FAMILIES.map(|family| with_prefix(family, client(family)));
        let (ours, theirs) = (ours.each_ref().map(String::as_str), theirs.each_ref().map(String::as_str));
        let near = End { namespace: &self.balancer, device: CLIENT_DEVICE, addresses: &ours };
        let far = End { namespace: &self.client, device: UPLINK, addresses: &theirs };
        let faults = match options.client_delay.is_zero() {
            true => options.client_faults,
            false => Some(options.client_faults.unwrap_or(Faults::NONE)),
        };
        let delay = options.client_delay;
        self.injectors.extend(link(near, far, options.client_mtu, faults, delay, options.offloads)?);
        self.route_client(options.client_mss)
    }

    /// Gives client and balancer default routes to each other.
    fn route_client(&self, mss: Option<u16>) -> Result<()> {
        let mss = mss.map(|mss| format!(" advmss {mss}")).unwrap_or_default();
        for family in FAMILIES {
            let gateway = balancer(family, CLIENT_NET);
            self.client.ip(&format!("route add default via {gateway}{mss}\n"))?;
            self.balancer.ip(&format!("route add default via {}\n", client(family)))?;
        }
        Ok(())
    }

    /// Creates the client's link again, without offloads; the balancer's device has this index.
    pub fn relink_client(&self, index: u32) -> Result<()> {
        let ours = FAMILIES.map(|family| with_prefix(family, balancer(family, CLIENT_NET)));
        let theirs = FAMILIES.map(|family| with_prefix(family, client(family)));
        let (ours, theirs) = (ours.each_ref().map(String::as_str), theirs.each_ref().map(String::as_str));
        let near = End { namespace: &self.balancer, device: CLIENT_DEVICE, addresses: &ours };
        let far = End { namespace: &self.client, device: UPLINK, addresses: &theirs };
        veth_at(Some(index), near, far, 1500)?;
        offload::set(&self.balancer, CLIENT_DEVICE, false)?;
        offload::set(&self.client, UPLINK, false)?;
        self.route_client(None)
    }

    /// Removes a tenant's link, both ends with their addresses.
    pub fn unlink_tenant(&self, tenant: usize) -> Result<()> {
        self.balancer.ip(&format!("link del {}\n", tenant_name(tenant)))
    }

    /// Creates a tenant's link again, as in the default lab.
    pub fn relink_tenant(&self, tenant: usize) -> Result<()> {
        link_tenant(&self.balancer, tenant, &self.tenants[tenant].namespace, &Options::default()).map(drop)
    }

    /// Starts servers that send their name and echo, on this port of every backend of every tenant.
    pub fn echo_servers(&self, port: u16) -> Result<Vec<Server>> {
        let all =
            (0..TENANT_NETS.len()).flat_map(|tenant| backends(tenant).map(move |backend| (tenant, backend)));
        all.map(|(tenant, (_, index, address))| {
            let name = format!("{}/{index}", tenant_name(tenant));
            self.serve(tenant, (address, port).into(), &name, Speech::Echo)
        })
        .collect()
    }

    /// Starts Vestibule on the balancer; it finds the devices itself.
    pub fn vestibule(&self, config: &Config) -> Result<Daemon> {
        Daemon::start(&self.balancer, config, &[])
    }

    /// Starts an additional server of a tenant.
    pub fn serve(&self, tenant: usize, at: SocketAddr, name: &str, speech: Speech) -> Result<Server> {
        Server::start(&self.tenants[tenant].namespace, at, name, speech)
    }

    /// Summaries of what the injectors have done so far.
    pub fn injected(&self) -> Vec<String> {
        self.injectors.iter().map(Injector::summary).collect()
    }

    /// The address that clients dial: a port of the VIP.
    pub fn vip(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(vip(family), port)
    }
}

/// Connects the balancer and a tenant's namespace.
fn link_tenant(
    balancer_namespace: &Namespace,
    tenant: usize,
    namespace: &Namespace,
    options: &Options,
) -> Result<Option<Injector>> {
    let net = TENANT_NETS[tenant];
    let ours = FAMILIES.map(|family| with_prefix(family, balancer(family, net)));
    let ours = ours.each_ref().map(String::as_str);
    let theirs: Vec<String> =
        backends(tenant).map(|(family, _, address)| with_prefix(family, address)).collect();
    let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
    let near = End { namespace: balancer_namespace, device: tenant_name(tenant), addresses: &ours };
    let far = End { namespace, device: UPLINK, addresses: &theirs };
    let injector =
        link(near, far, options.backend_mtu, options.backend_faults, Duration::ZERO, options.offloads)?;
    if let Some(mss) = options.backend_mss {
        for family in FAMILIES {
            namespace.ip(&format!("route add {} dev {UPLINK} advmss {mss}\n", balancer(family, net)))?;
        }
    }
    Ok(injector)
}

/// Connects two ends, through an injector if there are faults.
fn link(
    near: End<'_>,
    far: End<'_>,
    mtu: u16,
    faults: Option<Faults>,
    delay: Duration,
    offloads: bool,
) -> Result<Option<Injector>> {
    let injector = match faults {
        Some(faults) => Some(Injector::delaying(near, far, mtu, faults, delay)?),
        None => {
            veth(near, far, mtu)?;
            None
        }
    };
    if injector.is_some() || !offloads {
        offload::set(near.namespace, near.device, false)?;
        offload::set(far.namespace, far.device, false)?;
    }
    Ok(injector)
}

/// A tenant's backends: family, index, address.
fn backends(tenant: usize) -> impl Iterator<Item = (Family, usize, IpAddr)> {
    FAMILIES.into_iter().flat_map(move |family| {
        (0..BACKENDS.len()).map(move |index| (family, index, backend(family, tenant, index)))
    })
}

fn servers(tenant: usize, namespace: &Namespace, authority: &Authority) -> Result<Vec<Server>> {
    let wildcard = format!("*.{}.example.com", tenant_name(tenant));
    let two_labels = format!("*.two.{}.example.com", tenant_name(tenant));
    let identity = authority.server(&[&server_name(tenant), &wildcard, &two_labels, "any.example.org"])?;
    let config = authority.server_config(&identity)?;
    backends(tenant)
        .map(|(_, index, address)| {
            let name = format!("{}/{index}", tenant_name(tenant));
            Server::start(namespace, (address, BACKEND_PORT).into(), &name, Speech::Tls(Arc::clone(&config)))
        })
        .collect()
}

fn with_prefix(family: Family, address: IpAddr) -> String {
    format!("{address}/{}", if family.is_v4() { 24 } else { 64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{KINDS, User};

    #[test]
    fn every_kind_of_client_talks_to_a_backend_directly() {
        crate::skip_without_root!();
        let lab = Lab::new().unwrap();
        let user = User::new(&lab.tenants[1].authority, "alice").unwrap();
        let stranger = User::new(&lab.tenants[0].authority, "mallory").unwrap();
        for family in FAMILIES {
            let to = SocketAddr::new(backend(family, 1, 1), BACKEND_PORT);
            for kind in KINDS {
                let ask = |user: &User, certificate| {
                    user.ask(kind, &lab.balancer, to, &server_name(1), certificate)
                };
                assert_eq!(ask(&user, false).unwrap(), "tenant-b/1 -", "{kind:?}");
                assert_eq!(ask(&user, true).unwrap(), "tenant-b/1 alice", "{kind:?}");
                assert!(ask(&stranger, false).is_err(), "{kind:?} must trust tenant a only");
            }
        }
    }
}
