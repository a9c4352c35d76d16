//! `vestibule backends`.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::Result;
use common::maps::backend::{BACKEND_FAILING, BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE};
use common::maps::flow::FLOW_ESTABLISHED;
use serde_json::json;

use super::Format;
use super::names::{Names, socket};
use super::print::{self, Row};
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::model::Node;

pub(super) fn show(pins: &Pins, format: Format) -> Result<()> {
    let maps = read::open(pins)?;
    let content = read::content(&maps)?;
    let names = Names::new(&content);
    let mut flows: HashMap<u32, u32> = HashMap::new();
    maps.flows.walk(|_, flow| {
        if flow.connection.state == FLOW_ESTABLISHED {
            *flows.entry(flow.connection.backend).or_default() += 1;
        }
    })?;
    // Reads the caller's network namespace. It is the instance's, unless several instances run.
    let node = Node::look()?;
    let mut backends = content.backends;
    backends.sort_by_key(|(id, _)| *id);
    let rows: Vec<Row> = backends
        .iter()
        .map(|(id, backend)| {
            let flags = flags(backend.flags);
            let device = if backend.ifindex == 0 { String::new() } else { node.name(backend.ifindex) };
            let source = IpAddr::from(backend.source);
            let source = if source.is_unspecified() { String::new() } else { source.to_string() };
            let flows = flows.get(id).copied().unwrap_or_default();
            let route = names.route(backend.route);
            let address = socket(backend.address, backend.port);
            Row {
                json: json!({
                    "id": id, "route": route, "address": address, "weight": backend.weight, "source": source,
                    "device": device, "ifindex": backend.ifindex, "mtu": backend.mtu, "flags": flags,
                    "flows": flows,
                })
                .into(),
                cells: vec![
                    id.to_string(),
                    route,
                    address,
                    backend.weight.to_string(),
                    source,
                    device,
                    flags.join(","),
                    flows.to_string(),
                ],
            }
        })
        .collect();
    let headings = [">id", "route", "address", ">weight", "source", "device", "flags", ">flows"];
    print::rows(&headings, &rows, format)
}

fn flags(bits: u8) -> Vec<&'static str> {
    const WORDS: [(u8, &str); 4] = [
        (BACKEND_RETIRED, "retired"),
        (BACKEND_UNREACHABLE, "unreachable"),
        (BACKEND_REFUSING, "refusing"),
        (BACKEND_FAILING, "failing"),
    ];
    WORDS.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, word)| word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_words() {
        assert!(flags(0).is_empty());
        assert_eq!(flags(BACKEND_RETIRED | BACKEND_UNREACHABLE), ["retired", "unreachable"]);
        assert_eq!(flags(BACKEND_REFUSING | BACKEND_FAILING), ["refusing", "failing"]);
    }
}
