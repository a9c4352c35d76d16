//! Addresses and names of the test networks, shared by the packet tests and the path tests.
//!
//! Network 1 is the client's. Networks 2, 3 and 4 belong to tenants a, b and c. The balancer is host 1 in
//! each.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const fn is_v4(self) -> bool {
        matches!(self, Self::V4)
    }
}

/// Both families.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The client's network.
pub const CLIENT_NET: u8 = 1;
/// Networks of tenants a, b and c.
pub const TENANT_NETS: [u8; 3] = [2, 3, 4];
/// The balancer's host number in every network.
pub const BALANCER: u8 = 1;
/// The client's host number in its network.
pub const CLIENT: u8 = 2;
/// Host numbers of a tenant's two backends.
pub const BACKENDS: [u8; 2] = [2, 3];
/// Port of the backends.
pub const BACKEND_PORT: u16 = 6443;
/// Port of the TLS listener.
pub const TLS_PORT: u16 = 443;

/// Host `host` of network `net`: `10.97.net.host` or `fd97:net::host`.
pub fn host(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 97, net, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd97, net.into(), 0, 0, 0, 0, 0, host.into()).into(),
    }
}

/// The address clients dial. It is assigned to no device.
pub fn vip(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 97, 0, 10).into(),
        Family::V6 => Ipv6Addr::new(0xfd97, 0, 0, 0, 0, 0, 0, 0x10).into(),
    }
}

/// The client.
pub fn client(family: Family) -> IpAddr {
    host(family, CLIENT_NET, CLIENT)
}

/// The balancer's address in a network.
pub fn balancer(family: Family, net: u8) -> IpAddr {
    host(family, net, BALANCER)
}

/// Backend `index` (0 or 1) of tenant `tenant` (0 to 2).
pub fn backend(family: Family, tenant: usize, index: usize) -> IpAddr {
    host(family, TENANT_NETS[tenant], BACKENDS[index])
}

/// The name of tenant `tenant`'s route: `tenant-a`, `tenant-b`, `tenant-c`.
pub fn tenant_name(tenant: usize) -> &'static str {
    ["tenant-a", "tenant-b", "tenant-c"][tenant]
}

/// The exact server name of a tenant.
pub fn server_name(tenant: usize) -> String {
    format!("{}.k8s.example.com", tenant_name(tenant))
}

/// The suffix of a tenant's wildcard `*.<suffix>`.
pub fn wildcard_suffix(tenant: usize) -> String {
    format!("{}.example.com", tenant_name(tenant))
}
