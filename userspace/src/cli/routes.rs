//! `vestibule routes`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use serde_json::json;

use super::Format;
use super::names::{self, Names};
use super::print::{self, Row};
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::plan::MapsContent;

/// The number of patterns shown in a table. JSON contains all.
const SHOWN: usize = 2;

pub(super) fn show(pins: &Pins, format: Format) -> Result<()> {
    let maps = read::open(pins)?;
    let content = read::content(&maps)?;
    let counters: HashMap<_, _> = read::route_counters(&maps)?.into_iter().collect();
    let names = Names::new(&content);
    let mut lines: Vec<(String, Row)> = Vec::new();
    let places = places(&content);
    for (id, route) in &content.routes {
        let count = counters.get(id).copied().unwrap_or_default();
        let (listeners, patterns) = places.get(id).cloned().unwrap_or_default();
        let listeners: Vec<String> = listeners.iter().map(|id| names.listener(*id)).collect();
        let name = names.route(*id);
        let row = Row {
            cells: vec![
                name.clone(),
                listeners.join(","),
                few(&patterns),
                route.backends.to_string(),
                count.connected.to_string(),
                count.refused.to_string(),
                count.retried.to_string(),
            ],
            json: json!({
                "route": name, "id": id, "listeners": listeners, "hostnames": patterns,
                "backends": route.backends, "connected": count.connected, "refused": count.refused,
                "retried": count.retried,
            })
            .into(),
        };
        lines.push((name, row));
    }
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    let rows: Vec<Row> = lines.into_iter().map(|(_, row)| row).collect();
    let headings = ["route", "listeners", "hostnames", ">backends", ">connected", ">refused", ">retried"];
    print::rows(&headings, &rows, format)
}

/// Returns, for each route, the listeners that lead to it, and its patterns.
fn places(content: &MapsContent) -> BTreeMap<u32, (BTreeSet<u32>, BTreeSet<String>)> {
    let mut places: BTreeMap<u32, (BTreeSet<u32>, BTreeSet<String>)> = BTreeMap::new();
    for (_, listener) in content.listeners.iter().filter(|(_, listener)| listener.route != 0) {
        places.entry(listener.route).or_default().0.insert(listener.id);
    }
    let exact = content.names.iter().map(|(key, found)| (names::exact(key), found.route));
    let wildcard = content.wildcards.iter().map(|(key, found)| (names::wildcard(key), found.route));
    for ((listener, pattern), route) in exact.chain(wildcard) {
        let (listeners, patterns) = places.entry(route).or_default();
        listeners.insert(listener);
        patterns.insert(pattern);
    }
    places
}

fn few(patterns: &BTreeSet<String>) -> String {
    let mut text = patterns.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(",");
    if patterns.len() > SHOWN {
        text.push_str(&format!(" +{}", patterns.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_the_first_patterns_and_how_many_more() {
        let patterns = |n: usize| (0..n).map(|i| format!("n{i}")).collect();
        assert_eq!(few(&patterns(0)), "");
        assert_eq!(few(&patterns(2)), "n0,n1");
        assert_eq!(few(&patterns(5)), "n0,n1 +3");
    }
}
