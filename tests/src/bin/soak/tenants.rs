//! The tenants: their names, listeners and backends, and the configuration that serves them.

use std::net::SocketAddr;

use tests::addresses::{FAMILIES, Family, TLS_PORT, host, vip};
use tests::config::{Backend, Config, SHARED, listener, route};

/// The networks of the backends: behind the injector, and connected directly.
pub(crate) const SITE_NETS: [u8; 2] = [2, 3];
/// Backends of a tenant, in each family. Backend `n` is in network `n % 2`.
pub(crate) const BACKENDS: u8 = 4;
/// All backends of a tenant, a bit for each.
pub(crate) const ALL: u8 = (1 << BACKENDS) - 1;
/// A port of the VIP without a listener.
pub(crate) const CLOSED_PORT: u16 = 9;
/// The port of the first TCP listener.
const TCP_PORT: u16 = 20_000;
/// The port of the first tenant's backends.
const BACKEND_PORT: u16 = 6000;

/// A tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) number: u32,
    /// Whether it has a TCP listener of its own instead of names.
    pub(crate) tcp: bool,
    /// Whether its route and backends change during the run.
    pub(crate) changing: bool,
}

const fn tenant(number: u32, tcp: bool, changing: bool) -> Tenant {
    Tenant { number, tcp, changing }
}

/// All tenants, by number.
pub(crate) const TENANTS: [Tenant; 8] = [
    tenant(0, false, false),
    tenant(1, false, false),
    tenant(2, false, false),
    tenant(3, false, false),
    tenant(4, false, true),
    tenant(5, false, true),
    tenant(6, true, false),
    tenant(7, true, true),
];

impl Tenant {
    /// Its exact server name.
    pub(crate) fn server_name(&self) -> String {
        format!("t{}.soak.example.com", self.number)
    }

    /// The address that its clients dial.
    pub(crate) fn address(&self, family: Family) -> SocketAddr {
        let port = if self.tcp { TCP_PORT + self.number as u16 } else { TLS_PORT };
        SocketAddr::new(vip(family), port)
    }

    /// The address of one of its backends.
    pub(crate) fn backend(&self, family: Family, index: u8) -> SocketAddr {
        let net = SITE_NETS[usize::from(index % 2)];
        SocketAddr::new(host(family, net, 10 + index), BACKEND_PORT + self.number as u16)
    }

    fn route_name(&self) -> String {
        format!("t{}", self.number)
    }
}

/// The configuration in which each tenant has these backends, a bit for each. A tenant without any has no route,
/// and no TCP listener.
pub(crate) fn config(backends: &[u8; TENANTS.len()]) -> Config {
    let mut config = Config::empty();
    config.settings.max_flows = Some(65_536);
    config.settings.max_hellos = Some(8192);
    config.settings.hello_timeout = Some("20s".into());
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    for tenant in &TENANTS {
        let active = backends[tenant.number as usize];
        if active == 0 {
            continue;
        }
        if tenant.tcp {
            config.listeners.push(listener(&tenant.route_name(), tenant.address(Family::V4).port(), "TCP"));
        }
        let backends = FAMILIES.into_iter().flat_map(|family| {
            let indexes = (0..BACKENDS).filter(move |index| active & 1 << index != 0);
            indexes.map(move |index| tenant.backend(family, index))
        });
        let backends = backends.map(|at| Backend::new(at.ip(), at.port())).collect();
        let name = tenant.route_name();
        let (server_name, wildcard) = (tenant.server_name(), format!("*.{}", tenant.server_name()));
        config.routes.push(match tenant.tcp {
            true => route(&name, &[&name], &[], backends),
            false => route(&name, &[SHARED], &[&server_name, &wildcard], backends),
        });
    }
    config
}
