//! Readable names for ids, addresses and keys.

use std::collections::{HashMap, HashSet};

use common::maps::address::{Address, Port};
use common::maps::route::{LABEL_LISTENER, LABEL_ROUTE, Label, NameKey, SuffixKey};
use std::net::{IpAddr, SocketAddr};

use crate::model::{Pattern, ServerName};
use crate::plan::MapsContent;
use crate::plan::change::label;

/// Names of routes and listeners by id.
#[derive(Debug, Default)]
pub(super) struct Names {
    labels: HashMap<(u32, u32), String>,
}

impl Names {
    pub(super) fn new(content: &MapsContent) -> Self {
        let labels = content.labels.iter().map(|(key, label)| ((key.kind, key.id), text(label)));
        Self { labels: labels.collect() }
    }

    pub(super) fn route(&self, id: u32) -> String {
        self.of(LABEL_ROUTE, id)
    }

    /// Returns the ids of the routes with this name. Of a long one, the maps have the beginning only.
    pub(super) fn routes_of(&self, name: &str) -> HashSet<u32> {
        let name = text(&label(name));
        let ids = self.labels.iter().filter(|((kind, _), label)| *kind == LABEL_ROUTE && **label == name);
        ids.map(|((_, id), _)| *id).collect()
    }

    pub(super) fn listener(&self, id: u32) -> String {
        self.of(LABEL_LISTENER, id)
    }

    /// Returns the name. An id without a name belongs to something that was just removed.
    fn of(&self, kind: u32, id: u32) -> String {
        self.labels.get(&(kind, id)).cloned().unwrap_or_else(|| format!("#{id}"))
    }
}

fn text(label: &Label) -> String {
    let text = label.text.get(..usize::from(label.length)).unwrap_or(&label.text);
    String::from_utf8_lossy(text).into_owned()
}

/// Formats an address and port in the usual notation.
pub(super) fn socket(address: Address, port: Port) -> String {
    SocketAddr::new(IpAddr::from(address), port.number()).to_string()
}

/// Returns the listener's id and the pattern of an entry of `ROUTES_EXACT` or `ROUTES_LONG`.
pub(super) fn exact(key: &NameKey) -> (u32, String) {
    let text = String::from_utf8_lossy(key.name()).into_owned();
    let suffix = text.strip_prefix("*.").and_then(|suffix| ServerName::new(suffix).ok());
    (key.listener(), suffix.map_or(text, |suffix| Pattern::OneLabel(suffix).to_string()))
}

/// Returns the listener's id and the pattern of an entry of `ROUTES_WILDCARD`.
pub(super) fn wildcard(key: &SuffixKey) -> (u32, String) {
    let bytes = (key.prefix_bits.saturating_sub(16) / 8) as usize;
    let mut suffix = key.reversed.get(..bytes).unwrap_or(&key.reversed).to_vec();
    suffix.reverse();
    (u32::from(u16::from_be_bytes(key.listener)), format!("*{}", String::from_utf8_lossy(&suffix)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::decide::route_key;
    use common::maps::route::LabelKey;

    #[test]
    fn keys_read_as_the_patterns_they_were_made_from() {
        let (bytes, length) = route_key::buffer(b"api.example.com").unwrap();
        let mut key = NameKey::zeroed();
        route_key::exact(&mut key, 300, &bytes, length);
        assert_eq!(exact(&key), (300, "api.example.com".into()));
        let key = route_key::one_label(300, b"example.com").unwrap();
        assert_eq!(exact(&key), (300, "*.example.com (one label)".into()));
        let key = route_key::wildcard(301, b"example.com").unwrap();
        assert_eq!(wildcard(&key), (301, "*.example.com".into()));
    }

    #[test]
    fn an_id_without_a_label_is_shown_as_a_number() {
        let mut label = Label { length: 2, ..Label::zeroed() };
        label.text[..3].copy_from_slice(b"t1x");
        let content = MapsContent {
            labels: vec![(LabelKey { kind: LABEL_ROUTE, id: 5 }, label)],
            ..MapsContent::default()
        };
        let names = Names::new(&content);
        assert_eq!((names.route(5), names.listener(5)), ("t1".into(), "#5".into()));
        assert_eq!((names.routes_of("t1"), names.routes_of("#5")), ([5].into(), HashSet::new()));
        // A name of which the maps have the beginning.
        let long = "n".repeat(200);
        let labels = vec![(LabelKey { kind: LABEL_ROUTE, id: 6 }, crate::plan::change::label(&long))];
        let names = Names::new(&MapsContent { labels, ..MapsContent::default() });
        assert_eq!(names.routes_of(&long), [6].into());
    }
}
