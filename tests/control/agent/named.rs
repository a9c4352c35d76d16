//! The content of maps, with names instead of ids.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use common::maps::address::{Address, Port};
use common::maps::route::{LABEL_LISTENER, LABEL_ROUTE, Table};
use userspace::plan::MapsContent;

struct Names<'a> {
    content: &'a MapsContent,
    labels: BTreeMap<(u32, u32), String>,
}

impl Names<'_> {
    fn route(&self, id: u32) -> &str {
        if id == 0 { "nobody" } else { self.labels.get(&(LABEL_ROUTE, id)).map_or("unnamed", |name| name) }
    }

    fn listener(&self, id: u32) -> &str {
        self.labels.get(&(LABEL_LISTENER, id)).map_or("unnamed", |name| name)
    }

    fn backend(&self, id: u32) -> String {
        let found = self.content.backends.iter().find(|(other, _)| *other == id);
        found.map_or("none".into(), |(_, backend)| {
            format!("{} {}", self.route(backend.route), at(backend.address, backend.port))
        })
    }

    /// Returns the members and slots of a route's table.
    fn table(&self, table: Table) -> String {
        if table.is_single() {
            return format!("{}, alone", self.backend(table.id));
        }
        let mut members: Vec<_> =
            self.content.members.iter().filter(|(key, _)| key.table == table.id).collect();
        members.sort_by_key(|(key, _)| key.member);
        let members: Vec<String> = members.iter().map(|(_, id)| self.backend(*id)).collect();
        let mut pages: Vec<_> = self.content.pages.iter().filter(|(key, _)| key.table == table.id).collect();
        pages.sort_by_key(|(key, _)| key.page);
        let slots: Vec<u8> = pages.iter().flat_map(|(_, page)| page.slots).collect();
        format!("{} slots of {} members {members:?} {slots:?}", table.slots, table.members)
    }
}

fn at(address: Address, port: Port) -> SocketAddr {
    SocketAddr::new(IpAddr::from(address), port.number())
}

/// Returns the sorted content of each map, including entries that belong to no named object.
pub(super) fn named(content: &MapsContent) -> BTreeMap<&'static str, Vec<String>> {
    let labels = content.labels.iter().map(|(key, label)| {
        ((key.kind, key.id), String::from_utf8_lossy(&label.text[..usize::from(label.length)]).into_owned())
    });
    let names = Names { content, labels: labels.collect() };
    let tables = content.routes.iter().flat_map(|(_, route)| [route.v4, route.v6]);
    let tables: Vec<u32> = tables.filter(|table| !table.is_single()).map(|table| table.id).collect();
    let stray = content.pages.iter().map(|(key, _)| key.table);
    let stray = stray.chain(content.members.iter().map(|(key, _)| key.table));
    let stray = stray.filter(|table| !tables.contains(table));
    let mut named = BTreeMap::from([
        ("addresses", content.addresses.iter().map(|one| format!("{one:?}")).collect()),
        ("listeners", {
            let listeners = content.listeners.iter().map(|(key, listener)| {
                let mut listener = *listener;
                let to = (names.listener(listener.id), names.route(listener.route));
                (listener.id, listener.route) = (0, 0);
                format!("{} {to:?} {listener:?}", at(key.address, key.port))
            });
            listeners.collect::<Vec<_>>()
        }),
        ("names", {
            let exact = content.names.iter().map(|(key, to)| {
                let name = String::from_utf8_lossy(key.name()).into_owned();
                let listener = names.listener(key.listener());
                format!("{listener} {name} {}", names.route(to.route))
            });
            exact.collect()
        }),
        ("routes", {
            let routes = content.routes.iter().map(|(id, route)| {
                let tables = [names.table(route.v4), names.table(route.v6)];
                format!("{} {} backends {tables:?}", names.route(*id), route.backends)
            });
            routes.collect()
        }),
        ("backends", {
            let backends = content.backends.iter().map(|(id, backend)| {
                let name = names.backend(*id);
                let backend = common::maps::backend::Backend { route: 0, ..*backend };
                format!("{name} {backend:?}")
            });
            backends.collect()
        }),
        ("labels", names.labels.iter().map(|((kind, _), text)| format!("{kind} {text}")).collect()),
        ("counters", content.counters.iter().map(|id| names.route(*id).to_owned()).collect()),
        ("stray tables", stray.map(|table| format!("table {table}")).collect()),
        ("wildcards", content.wildcards.iter().map(|(key, _)| format!("{:?}", key.reversed)).collect()),
    ]);
    named.values_mut().for_each(|lines| lines.sort());
    named
}
