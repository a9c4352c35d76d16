//! `vestibule flows`.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use anyhow::{Result, ensure};
use common::maps::address::{Address, Port};
use common::maps::flow::{
    BackendTuple, ClientTuple, Connection, FLOW_CLOSED, FLOW_ESTABLISHED, FLOW_RESET, Flow,
    PENDING_COLLECTING, PENDING_UNDELIVERED, Pending,
};
use ipnet::IpNet;
use serde_json::json;

use super::Format;
use super::ends::{End, end, network};
use super::names::{Names, socket};
use super::print::{self, Row};
use crate::dataplane::pin::Pins;
use crate::dataplane::read::{self, now_ns, now_secs};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only of these clients: 192.0.2.7, 192.0.2.0/24, 2001:db8::/64.
    #[arg(long, value_name = "CIDR", value_parser = network)]
    from: Option<IpNet>,
    /// Only to this virtual address, with or without a port.
    #[arg(long, value_name = "VIP[:PORT]", value_parser = end)]
    to: Option<End>,
    /// Only those that this backend has, with or without a port.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = end)]
    backend: Option<End>,
    /// Only those of this route, as `vestibule routes` names it.
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// Which connections are shown.
#[derive(Debug, Default)]
struct Filter {
    from: Option<IpNet>,
    to: Option<End>,
    backend: Option<End>,
    /// The ids of the route: a removed one's connections may still be there beside those of its successor.
    routes: Option<HashSet<u32>>,
}

impl Filter {
    fn new(asked: &Args, names: &Names) -> Result<Self> {
        let routes = asked.route.as_deref().map(|name| names.routes_of(name));
        if let (Some(name), Some(routes)) = (&asked.route, &routes) {
            ensure!(!routes.is_empty(), "there is no route {name}; `vestibule routes` lists them");
        }
        Ok(Self { from: asked.from, to: asked.to, backend: asked.backend, routes })
    }

    fn takes(&self, client: &ClientTuple, connection: &Connection, nat: &BackendTuple) -> bool {
        let is = |wanted: &End, address: Address, port: Port| {
            wanted.0 == IpAddr::from(address) && wanted.1.is_none_or(|wanted| wanted == port.number())
        };
        self.from.is_none_or(|net| net.contains(&IpAddr::from(client.client)))
            && self.to.is_none_or(|to| is(&to, client.vip, client.vip_port))
            && self.backend.is_none_or(|backend| is(&backend, nat.backend, nat.backend_port))
            && self.routes.as_ref().is_none_or(|routes| routes.contains(&connection.route))
    }
}

pub(super) fn show(asked: &Args, pins: &Pins) -> Result<()> {
    let format = asked.output;
    let maps = read::open(pins)?;
    let names = Names::new(&read::content(&maps)?);
    let filter = Filter::new(asked, &names)?;
    // Those that are not shown are not kept: there may be millions.
    let connections = read::connections(&maps, |client, is, nat| filter.takes(client, is, nat))?;
    let (now, now_ns) = (now_secs(), now_ns());
    let since = |started_ns: u64| (now_ns.saturating_sub(started_ns) / 1_000_000_000) as u32;
    // While bytes are undelivered, a flow's hello also exists. They are one connection, and one line.
    let mut lines: HashMap<ClientTuple, Line> = HashMap::new();
    for (client, hello) in
        connections.hellos.iter().filter(|(_, hello)| hello.connection.state != PENDING_UNDELIVERED)
    {
        let (state, nat) = hello_state(hello);
        lines.insert(
            *client,
            Line { nat, route: hello.connection.route, state, idle: since(hello.started_ns) },
        );
    }
    for (client, half_open) in &connections.half_opens {
        let idle = since(half_open.started_ns);
        let line =
            Line { nat: Some(half_open.nat), route: half_open.connection.route, state: "half-open", idle };
        lines.insert(*client, line);
    }
    for (client, flow) in &connections.flows {
        let idle = now.saturating_sub(flow.seen_secs);
        lines.insert(
            *client,
            Line { nat: Some(flow.nat), route: flow.connection.route, state: flow_state(flow), idle },
        );
    }
    let mut lines: Vec<(ClientTuple, Line)> = lines.into_iter().collect();
    lines.sort_by_key(|(client, _)| *client);
    let rows: Vec<Row> = lines.iter().map(|(client, line)| line.row(client, &names)).collect();
    print::rows(&["client", "vip", "backend", "route", "state", ">idle"], &rows, format)
}

/// A connection from any of the maps.
struct Line {
    nat: Option<BackendTuple>,
    route: u32,
    state: &'static str,
    /// Seconds since the last packet, or since the first one if it is not established.
    idle: u32,
}

impl Line {
    fn row(&self, tuple: &ClientTuple, names: &Names) -> Row {
        let client = socket(tuple.client, tuple.client_port);
        let vip = socket(tuple.vip, tuple.vip_port);
        let backend = self.nat.map(|nat| socket(nat.backend, nat.backend_port));
        let source = self.nat.map(|nat| socket(nat.source, nat.source_port));
        let route = (self.route != 0).then(|| names.route(self.route));
        Row {
            json: json!({
                "client": client, "vip": vip, "backend": backend, "source": source, "route": route,
                "state": self.state, "idle_secs": self.idle,
            })
            .into(),
            cells: vec![
                client,
                vip,
                backend.unwrap_or_default(),
                route.unwrap_or_default(),
                self.state.into(),
                format!("{}s", self.idle),
            ],
        }
    }
}

fn hello_state(hello: &Pending) -> (&'static str, Option<BackendTuple>) {
    if hello.connection.state == PENDING_COLLECTING {
        ("hello", None)
    } else {
        ("connecting", Some(hello.nat))
    }
}

fn flow_state(flow: &Flow) -> &'static str {
    let connection = &flow.connection;
    match connection.state {
        FLOW_ESTABLISHED if flow.client.sent.fin | flow.backend.sent.fin != 0 => "closing",
        FLOW_ESTABLISHED => "established",
        FLOW_CLOSED => "closed",
        FLOW_RESET => "reset",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_leaves_out_what_it_does_not_apply_to() {
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let client =
            ClientTuple::tcp(address("192.0.2.7"), address("10.97.0.10"), Port::new(4000), Port::new(443));
        let nat = BackendTuple::tcp(
            address("2001:db8::1"),
            address("2001:db8::2"),
            Port::new(8443),
            Port::new(5000),
        );
        let connection = Connection { route: 7, ..Connection::zeroed() };
        let takes = |filter: Filter| filter.takes(&client, &connection, &nat);
        assert!(takes(Filter::default()));
        for (net, taken) in [("192.0.2.0/24", true), ("192.0.3.0/24", false), ("::/0", false)] {
            assert_eq!(
                takes(Filter { from: Some(network(net).unwrap()), ..Filter::default() }),
                taken,
                "{net}"
            );
        }
        for (to, taken) in
            [("10.97.0.10", true), ("10.97.0.10:443", true), ("10.97.0.10:444", false), ("10.97.0.9", false)]
        {
            assert_eq!(takes(Filter { to: Some(end(to).unwrap()), ..Filter::default() }), taken, "{to}");
        }
        for (backend, taken) in
            [("2001:db8::1", true), ("[2001:db8::1]:8443", true), ("[2001:db8::1]:443", false)]
        {
            assert_eq!(
                takes(Filter { backend: Some(end(backend).unwrap()), ..Filter::default() }),
                taken,
                "{backend}"
            );
        }
        for (routes, taken) in [([7, 9], true), ([8, 9], false)] {
            assert_eq!(takes(Filter { routes: Some(routes.into()), ..Filter::default() }), taken);
        }
        // All of them at once.
        let from = Some(network("192.0.2.7").unwrap());
        assert!(takes(Filter { from, to: Some(end("10.97.0.10").unwrap()), ..Filter::default() }));
        assert!(!takes(Filter { from, to: Some(end("10.97.0.9").unwrap()), ..Filter::default() }));
    }

    #[test]
    fn each_state_has_its_word() {
        let connection = |state| Connection { state, ..Connection::zeroed() };
        let state = |state, fin| {
            let mut flow = Flow { connection: connection(state), ..Flow::zeroed() };
            flow.client.sent.fin = fin;
            flow_state(&flow)
        };
        assert_eq!(state(FLOW_ESTABLISHED, 0), "established");
        assert_eq!(state(FLOW_ESTABLISHED, 1), "closing");
        assert_eq!(state(FLOW_CLOSED, 0), "closed");
        assert_eq!(state(FLOW_RESET, 0), "reset");
        let waiting = Pending { connection: connection(PENDING_COLLECTING), ..Pending::zeroed() };
        assert_eq!(hello_state(&waiting), ("hello", None));
    }
}
