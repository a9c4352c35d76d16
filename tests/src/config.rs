//! Configuration files for `vestibule run`, written as JSON.

use std::net::IpAddr;

use serde::Serialize;

use crate::addresses::{
    BACKEND_PORT, BACKENDS, FAMILIES, TENANT_NETS, TLS_PORT, backend, server_name, tenant_name, vip,
    wildcard_suffix,
};

/// Name of the TLS listener of [`Config::lab`].
pub const SHARED: &str = "shared";
/// Name and port of its second TLS listener, whose default route is tenant b.
pub const FALLBACK: (&str, u16) = ("fallback", 8443);
/// Port of tenant a's TCP listener; tenants b and c have the next two ports.
pub const DIRECT_PORT: u16 = 20_001;

/// One configuration file.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub settings: Settings,
    pub listeners: Vec<Listener>,
    pub routes: Vec<Route>,
}

/// Fields that are `None` are left out of the file.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_addresses: Option<Vec<IpAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ports: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hello_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_flows: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_names: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_hellos: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows_per_route: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows_per_source: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connecting_per_source: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2: Option<L2>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xdp_devices: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_clients: Option<bool>,
}

/// Whether addresses are announced by ARP and neighbour discovery.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct L2 {
    pub enabled: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    pub protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    pub name: String,
    pub listeners: Vec<String>,
    pub hostnames: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ranges: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<&'static str>,
    pub backends: Vec<Backend>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    pub address: IpAddr,
    pub port: u16,
    pub weight: u16,
}

impl Backend {
    pub fn new(address: IpAddr, port: u16) -> Self {
        Self { address, port, weight: 1 }
    }
}

/// A listener on both VIPs.
pub fn listener(name: &str, port: u16, protocol: &'static str) -> Listener {
    Listener { name: name.into(), addresses: FAMILIES.map(vip).to_vec(), port, protocol, default_route: None }
}

/// A route on these listeners.
pub fn route(name: &str, listeners: &[&str], hostnames: &[&str], backends: Vec<Backend>) -> Route {
    let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    let (listeners, hostnames) = (strings(listeners), strings(hostnames));
    Route {
        name: name.into(),
        listeners,
        hostnames,
        source_ranges: None,
        session_affinity: None,
        external_traffic_policy: None,
        backends,
    }
}

impl Config {
    /// A configuration without listeners and routes, and with small maps.
    pub fn empty() -> Self {
        Self {
            api_version: "vestibule.dev/v1alpha1",
            kind: "StaticConfig",
            settings: Settings {
                max_flows: Some(4096),
                max_names: Some(1024),
                max_hellos: Some(1024),
                ..Settings::default()
            },
            listeners: Vec::new(),
            routes: Vec::new(),
        }
    }

    /// Three tenants, each with two backends of each family. Each tenant has a name and a wildcard on
    /// `shared`, and its own TCP listener. Tenant b is also the default route of `fallback`.
    pub fn lab() -> Self {
        Self::lab_on(BACKEND_PORT)
    }

    /// Same as [`Self::lab`], with backends on another port.
    pub fn lab_on(port: u16) -> Self {
        let mut config = Self::empty();
        config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
        let mut fallback = listener(FALLBACK.0, FALLBACK.1, "TLS");
        fallback.default_route = Some(tenant_name(1).into());
        config.listeners.push(fallback);
        for tenant in 0..TENANT_NETS.len() {
            let direct = format!("{}-direct", tenant_name(tenant));
            config.listeners.push(listener(&direct, DIRECT_PORT + tenant as u16, "TCP"));
            let mut listeners = vec![SHARED, &direct];
            if tenant == 1 {
                listeners.push(FALLBACK.0);
            }
            let hostnames = [server_name(tenant), format!("*.{}", wildcard_suffix(tenant))];
            let hostnames: Vec<&str> = hostnames.iter().map(String::as_str).collect();
            config.routes.push(route(
                tenant_name(tenant),
                &listeners,
                &hostnames,
                tenant_backends(tenant, port),
            ));
        }
        config
    }

    /// Returns the route with this name.
    pub fn route_mut(&mut self, name: &str) -> &mut Route {
        let found = self.routes.iter_mut().find(|route| route.name == name);
        found.unwrap_or_else(|| panic!("no route {name} in the configuration"))
    }

    /// Returns the JSON text of the file.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers only")
    }
}

/// A tenant's two backends of each family, all on one port.
pub fn tenant_backends(tenant: usize, port: u16) -> Vec<Backend> {
    let both = FAMILIES.into_iter().flat_map(|family| {
        (0..BACKENDS.len()).map(move |index| Backend::new(backend(family, tenant, index), port))
    });
    both.collect()
}
