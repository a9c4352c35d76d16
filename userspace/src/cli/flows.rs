//! `vestibule flows`.

use std::collections::HashMap;

use anyhow::Result;
use common::maps::flow::{
    BackendTuple, ClientTuple, FLOW_CLOSED, FLOW_ESTABLISHED, FLOW_RESET, Flow, PENDING_COLLECTING,
    PENDING_UNDELIVERED, Pending,
};
use serde_json::json;

use super::Format;
use super::names::{Names, socket};
use super::print::{self, Row};
use crate::dataplane::pin::Pins;
use crate::dataplane::read::{self, now_ns, now_secs};

pub(super) fn show(pins: &Pins, format: Format) -> Result<()> {
    let maps = read::open(pins)?;
    let names = Names::new(&read::content(&maps)?);
    let connections = read::connections(&maps)?;
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
    use common::maps::flow::Connection;

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
