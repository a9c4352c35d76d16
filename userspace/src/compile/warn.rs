//! Warnings: the configuration is valid, but does not work for every client.

use crate::model::{ListenerSpec, NodeFacts, Problem, Protocol, RouteSpec, Settings};
use foldhash::{HashMap, HashMapExt};

/// Warns about a file that serves nothing.
pub(super) fn no_listener(listeners: &[ListenerSpec], problems: &mut Vec<Problem>) {
    if listeners.is_empty() {
        problems.push(Problem::warning("listeners", "there is no listener", "add one: nothing is served"));
    }
}

/// The listeners that lead to each route.
pub(super) struct Attachments<'a> {
    by_name: HashMap<&'a str, &'a ListenerSpec>,
    /// By the name of the default route: its listeners.
    defaults: HashMap<&'a str, Vec<&'a ListenerSpec>>,
}

impl<'a> Attachments<'a> {
    pub(super) fn new(listeners: &'a [ListenerSpec]) -> Self {
        let by_name = listeners.iter().map(|listener| (&*listener.name, listener)).collect();
        let mut defaults: HashMap<&str, Vec<&ListenerSpec>> = HashMap::new();
        for listener in listeners {
            if let Some(route) = &listener.default_route {
                defaults.entry(route).or_default().push(listener);
            }
        }
        Self { by_name, defaults }
    }

    /// Adds the warnings about one route.
    pub(super) fn check(&self, route: &RouteSpec, problems: &mut Vec<Problem>) {
        let named = route.listeners.iter().filter_map(|name| self.by_name.get(&**name).copied());
        let default = self.defaults.get(&*route.name).into_iter().flatten().copied();
        let attached: Vec<&ListenerSpec> = named.chain(default).collect();
        attachment(route, &attached, problems);
        families(route, &attached, problems);
    }
}

/// Warns about source ports that the kernel also uses.
pub(super) fn source_ports(settings: &Settings, node: &NodeFacts, problems: &mut Vec<Problem>) {
    let (first, last) = settings.source_ports;
    let Some((local_first, local_last)) = node.local_ports else { return };
    if first <= local_last && local_first <= last {
        problems.push(
            Problem::warning(
                "settings.sourcePorts",
                format!(
                    "overlaps the ports this node's kernel hands out (net.ipv4.ip_local_port_range \
                     {local_first}-{local_last})"
                ),
                "choose ports outside it: ports in both can run out earlier",
            )
            .value(format_args!("{first}-{last}")),
        );
    }
}

fn attachment(route: &RouteSpec, attached: &[&ListenerSpec], problems: &mut Vec<Problem>) {
    let at = || format!("routes[{}]", route.place);
    if attached.is_empty() {
        problems.push(Problem::warning(
            format!("{}.listeners", at()),
            format!("route {} is on no listener", route.name),
            "name a listener: nobody can reach it",
        ));
    } else if !route.patterns.is_empty() && attached.iter().all(|l| l.protocol == Protocol::Tcp) {
        problems.push(
            Problem::warning(
                format!("{}.hostnames", at()),
                format!("route {} is on no TLS listener: its names match nothing", route.name),
                "name a TLS listener, or remove the hostnames",
            )
            .value(&route.patterns[0]),
        );
    }
}

fn families(route: &RouteSpec, attached: &[&ListenerSpec], problems: &mut Vec<Problem>) {
    let at = || format!("routes[{}].backends", route.place);
    if route.backends.is_empty() {
        problems.push(Problem::warning(
            at(),
            format!("route {} has no backends", route.name),
            "add one: its clients are refused",
        ));
        return;
    }
    for (is_v4, family) in [(true, "IPv4"), (false, "IPv6")] {
        if route.backends.iter().any(|b| b.address.is_ipv4() == is_v4 && b.weight > 0) {
            continue;
        }
        let Some(listener) = attached.iter().find(|l| l.addresses.iter().any(|a| a.is_ipv4() == is_v4))
        else {
            continue;
        };
        problems.push(Problem::warning(
            at(),
            format!(
                "route {} has no {family} backend that takes new connections, but listener {} has {family} addresses",
                route.name, listener.name
            ),
            format!("add one: clients that come over {family} are refused"),
        ));
    }
}
