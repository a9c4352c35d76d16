//! The participants: three clients, two tenants with two backends of each family, five ports of the VIP.

use std::net::{IpAddr, SocketAddr};

use common::maps::flow::{BackendTuple, ClientTuple};
use tests::addresses::{
    BACKEND_PORT, CLIENT, CLIENT_NET, FAMILIES, Family, TENANT_NETS, balancer, host, server_name, vip,
};
use tests::tuple::client_tuple;

use super::super::oracle::{self, Verdict};

/// Clients by family and host number.
pub const CLIENTS: [(Family, u8); 3] =
    [(FAMILIES[0], CLIENT), (FAMILIES[0], CLIENT + 1), (FAMILIES[1], CLIENT)];
/// Source ports of each client.
const CLIENT_PORTS: [u16; 2] = [40_000, 40_001];

/// TLS without default route; TLS with default route to tenant b; TCP to tenant a; TCP to tenant b; nothing.
pub const VIP_PORTS: [u16; 5] = [443, 8443, 20_001, 20_002, 9];

/// One more than the highest id of a listener.
pub const LISTENERS: u32 = VIP_PORTS.len() as u32;

/// Number of possible connections.
pub const CONNECTIONS: usize = CLIENTS.len() * CLIENT_PORTS.len() * VIP_PORTS.len();

/// Host numbers of the backends of tenants a and b.
pub const TENANT_HOSTS: [[u8; 2]; 2] = [[2, 3], [12, 13]];
/// Number of backends, of both tenants and families.
pub const BACKENDS: usize = 8;

/// A connection as the client sees it: client and VIP.
pub type Ends = (SocketAddr, SocketAddr);

/// Both ends of a connection.
pub fn ends(connection: usize) -> Ends {
    let (family, number) = CLIENTS[connection / (CLIENT_PORTS.len() * VIP_PORTS.len())];
    let port = CLIENT_PORTS[connection / VIP_PORTS.len() % CLIENT_PORTS.len()];
    let client = SocketAddr::new(host(family, CLIENT_NET, number), port);
    (client, SocketAddr::new(vip(family), VIP_PORTS[connection % VIP_PORTS.len()]))
}

/// The key of a connection in the maps.
pub fn tuple((client, vip): Ends) -> ClientTuple {
    client_tuple(client, vip)
}

/// Returns the client and the VIP of a connection in the maps.
pub fn ends_of_client(tuple: &ClientTuple) -> Ends {
    let client = SocketAddr::new(tuple.client.into(), tuple.client_port.number());
    (client, SocketAddr::new(tuple.vip.into(), tuple.vip_port.number()))
}

/// The ends of a connection to a backend: the backend, and our address.
pub fn ends_of(nat: &BackendTuple) -> (SocketAddr, SocketAddr) {
    let backend = SocketAddr::new(nat.backend.into(), nat.backend_port.number());
    (backend, SocketAddr::new(nat.source.into(), nat.source_port.number()))
}

/// Tenant, family and address of backend `index`, whose id is `index + 1`.
pub fn backend(index: usize) -> (usize, Family, IpAddr) {
    let (tenant, family) = (index / 4 % 2, FAMILIES[index / 2 % 2]);
    (tenant, family, host(family, TENANT_NETS[0], TENANT_HOSTS[tenant][index % 2]))
}

/// The tenant whose backend listens at this address.
pub fn tenant_of(address: SocketAddr) -> Option<usize> {
    let found = (0..BACKENDS).map(backend).find(|(_, _, backend)| *backend == address.ip());
    found.filter(|_| address.port() == BACKEND_PORT).map(|(tenant, _, _)| tenant)
}

/// Whether we connect to backends from this address.
pub fn is_source(address: IpAddr) -> bool {
    FAMILIES.iter().any(|family| balancer(*family, TENANT_NETS[0]) == address)
}

/// Whether clients connect to this address.
pub fn is_vip(address: IpAddr) -> bool {
    FAMILIES.iter().any(|family| vip(*family) == address)
}

/// The tenant that the start of a connection belongs to, by the reference parser; `None`: no tenant.
pub fn owner(vip_port: u16, stream: &[u8]) -> Option<usize> {
    let default = match vip_port {
        8443 => Some(1),
        20_001 => return Some(0),
        20_002 => return Some(1),
        _ => None,
    };
    match oracle::stream(stream) {
        Verdict::Name(name) | Verdict::LikeIpv4(name) => {
            let reserved = common::decide::server_name::RESERVED.contains(&name.as_str());
            // Tenant a has its suffix at any depth, b has one label before it.
            let below =
                |tenant| name.strip_suffix(&format!(".{}", tests::addresses::wildcard_suffix(tenant)));
            let named = |tenant: &usize| {
                let above = below(*tenant);
                name == server_name(*tenant)
                    || above.is_some_and(|above| *tenant == 0 || !above.contains('.'))
            };
            if reserved { None } else { (0..2).find(named).or(default) }
        }
        Verdict::NoName | Verdict::LikeIpv6 => default,
        Verdict::Incomplete | Verdict::Broken | Verdict::InvalidName => None,
    }
}
