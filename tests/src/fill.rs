//! Fills the maps of loaded programs, in terms of the configuration.

use std::net::IpAddr;

use common::decide::route_key;
use common::decide::source_port::strides;
use common::maps::address::{Address, Port};
use common::maps::backend::{Backend, DELIVERY_NAT};
use common::maps::event::RouteCounters;
use common::maps::listener::{
    AddressRole, Listener, ListenerKey, PROTOCOL_TCP, PROTOCOL_TLS, ROLE_SOURCE, ROLE_VIP,
};
use common::maps::name;
use common::maps::policy::{ADMIT, FAMILY_V4, FAMILY_V6, PolicyKey, PolicyRange};
use common::maps::route::{
    MemberKey, NAME_BYTES_MAX, NameKey, NameRoute, PAGE_SLOTS, Page, PageKey, Route, Table,
};
use common::maps::settings::{CookieKey, Settings};
use zerocopy::IntoBytes;

use crate::addresses::{
    BACKEND_PORT, FAMILIES, TENANT_NETS, TLS_PORT, backend, balancer, server_name, vip, wildcard_suffix,
};
use crate::net::unique;
use crate::program::{Programs, Sizes};
use crate::world::Device;

/// The cookie keys of every test; the first one signs.
pub const COOKIE_KEYS: [CookieKey; 2] = [
    CookieKey { k0: 0x0123_4567_89ab_cdef, k1: 0x1122_3344_5566_7788 },
    CookieKey { k0: 0x99aa_bbcc_ddee_ff00, k1: 0xfeed_f00d_dead_beef },
];

/// Returns the settings that the daemon writes for a configuration without settings, with these map sizes.
pub fn default_settings(sizes: Sizes) -> Settings {
    Settings {
        hello_timeout_ns: 10_000_000_000,
        idle_timeout_secs: 25 * 3600,
        closed_timeout_secs: 5,
        source_port_first: 1024,
        source_port_last: 29_999,
        buffers: sizes.hellos,
        half_opens: sizes.hellos,
        closed: sizes.closed,
        source_hellos_max: 64,
        cookie_key: 0,
        deliveries: 0,
        source_port_strides: strides(1024, 29_999),
        // No bound: the table is full first.
        route_flows_max: u32::MAX,
        share_flows_max: 65_536,
        share_connecting_max: u32::MAX,
        reserved: 0,
    }
}

impl Programs {
    /// Writes the default settings and the cookie keys.
    pub(crate) fn fill_settings(&mut self, sizes: Sizes) {
        self.settings(default_settings(sizes));
        for (index, key) in (0..).zip(COOKIE_KEYS) {
            self.cookie_key(index, key);
        }
    }

    pub fn settings(&mut self, settings: Settings) {
        self.set(name::SETTINGS, 0, settings);
    }

    pub fn cookie_key(&mut self, index: u32, key: CookieKey) {
        self.set(name::COOKIE_KEYS, index, key);
    }

    /// Sets the roles of an address: bits `ROLE_*` of `common::maps::listener`.
    pub fn address(&mut self, address: IpAddr, flags: u32) {
        self.insert(name::ADDRESSES, Address::from(address), AddressRole { flags });
    }

    pub fn listener(&mut self, address: IpAddr, port: u16, listener: Listener) {
        let key = ListenerKey { address: address.into(), port: Port::new(port), reserved: [0; 2] };
        self.insert(name::LISTENERS, key, listener);
    }

    /// Routes an exact, normalised server name.
    pub fn name(&mut self, listener: u32, server_name: &str, route: u32) {
        let (buffer, length) = route_key::buffer(server_name.as_bytes())
            .unwrap_or_else(|| panic!("not a name of 1 to {NAME_BYTES_MAX} bytes: {server_name}"));
        let mut key = NameKey::zeroed();
        route_key::exact(&mut key, listener, &buffer, length);
        self.name_key(key, route);
    }

    /// Routes every name of one label before the suffix.
    pub fn one_label(&mut self, listener: u32, suffix: &str, route: u32) {
        let key = route_key::one_label(listener, suffix.as_bytes()).expect("a suffix of at most 251 bytes");
        self.name_key(key, route);
    }

    fn name_key(&mut self, key: NameKey, route: u32) {
        if route_key::is_short(key.short.length) {
            self.insert(name::ROUTES_EXACT, key.short, NameRoute { route });
        } else {
            self.insert(name::ROUTES_LONG, key, NameRoute { route });
        }
    }

    /// Routes every name below the suffix: `*.<suffix>`.
    pub fn wildcard(&mut self, listener: u32, suffix: &str, route: u32) {
        let key = route_key::wildcard(listener, suffix.as_bytes()).expect("a suffix of at most 251 bytes");
        let mut data = [0u8; 256];
        data.copy_from_slice(&key.as_bytes()[4..]);
        self.insert_prefix(name::ROUTES_WILDCARD, key.prefix_bits, data, NameRoute { route });
    }

    /// Lets a policy admit clients of this range.
    pub fn policy(&mut self, policy: u16, network: IpAddr, bits: u32) {
        let (family, before) = if network.is_ipv4() { (FAMILY_V4, 96) } else { (FAMILY_V6, 0) };
        let key = PolicyKey::of_range(policy, family, network.into(), before + bits);
        let mut data = [0u8; 20];
        data.copy_from_slice(&key.as_bytes()[4..]);
        self.insert_prefix(name::POLICIES, key.prefix_bits, data, PolicyRange { action: ADMIT });
    }

    /// Writes the backends under their ids, the tables of both families (slots assigned round robin), the
    /// counters, and the route.
    pub fn route(&mut self, route: u32, backends: &[(u32, Backend)]) {
        for (id, backend) in backends {
            self.insert(name::BACKENDS, *id, *backend);
        }
        let mut value = Route::zeroed();
        value.backends = backends.len() as u32;
        for v4 in [true, false] {
            let members: Vec<u32> = backends
                .iter()
                .filter(|(_, backend)| backend.address.is_v4() == v4 && backend.weight > 0)
                .map(|(id, _)| *id)
                .collect();
            let table = self.table(&members);
            *(if v4 { &mut value.v4 } else { &mut value.v6 }) = table;
        }
        self.insert(name::ROUTE_COUNTERS, route, RouteCounters::zeroed());
        self.insert(name::ROUTES, route, value);
    }

    fn table(&mut self, members: &[u32]) -> Table {
        /// A prime, as Maglev requires.
        const SLOTS: u32 = 251;
        if members.is_empty() {
            return Table::zeroed();
        }
        if let [backend] = members {
            return Table { id: *backend, slots: 1, members: 1 };
        }
        let id = unique() + 1;
        for (member, backend) in (0..).zip(members) {
            self.insert(name::MEMBERS, MemberKey { table: id, member }, *backend);
        }
        for page in 0..SLOTS.div_ceil(PAGE_SLOTS as u32) {
            let mut value = Page::zeroed();
            for (slot, member) in (page as usize * PAGE_SLOTS..).zip(&mut value.slots) {
                *member = (slot % members.len()) as u8;
            }
            self.insert(name::MAGLEV, PageKey { table: id, page }, value);
        }
        Table { id, slots: SLOTS, members: members.len() as u32 }
    }

    /// A backend of the test network as the daemon would write it, reached through [`Device::Backend`].
    pub fn backend(&self, route: u32, address: IpAddr) -> Backend {
        let family = if address.is_ipv4() { FAMILIES[0] } else { FAMILIES[1] };
        Backend {
            address: address.into(),
            source: balancer(family, TENANT_NETS[0]).into(),
            port: Port::new(BACKEND_PORT),
            weight: 1,
            mtu: 1500,
            flags: 0,
            delivery: DELIVERY_NAT,
            route,
            ifindex: self.world.ifindex(Device::Backend),
        }
    }

    /// Fills the usual set-up: TLS listener 1 on both VIPs, port 443, and route 1 = tenant a by name and
    /// wildcard, with one backend of each family (ids 1 and 2). There is no default route.
    pub fn tls_with_one_route(&mut self) {
        for family in FAMILIES {
            self.address(vip(family), ROLE_VIP);
            self.address(balancer(family, TENANT_NETS[0]), ROLE_SOURCE);
            self.listener(
                vip(family),
                TLS_PORT,
                Listener { protocol: PROTOCOL_TLS, ..listener(1, 0, family.is_v4()) },
            );
        }
        self.name(1, &server_name(0), 1);
        self.wildcard(1, &wildcard_suffix(0), 1);
        let backends = [(1, FAMILIES[0]), (2, FAMILIES[1])];
        let backends = backends.map(|(id, family)| (id, self.backend(1, backend(family, 0, 0))));
        self.route(1, &backends);
    }

    /// Adds TCP listener 2 on both VIPs and this port; it leads to route 1 (see
    /// [`Self::tls_with_one_route`]).
    pub fn tcp_listener(&mut self, port: u16) {
        for family in FAMILIES {
            self.listener(
                vip(family),
                port,
                Listener { protocol: PROTOCOL_TCP, ..listener(2, 1, family.is_v4()) },
            );
        }
    }
}

fn listener(id: u32, route: u32, v4: bool) -> Listener {
    let mss = if v4 { 1460 } else { 1440 };
    Listener { id, route, mss, policy: 0, protocol: 0, reserved: [0; 3] }
}
