//! Names of routes as in maps, metrics and messages.

use crate::model::{Desired, Kind, ObjectName, Pattern, digest};
use common::maps::route::LABEL_BYTES_MAX;
use std::sync::Arc;

/// Bytes of a hash in a name: `~` and 16 hexadecimal digits.
const HASH_BYTES: usize = 17;

/// `tlsroute/ns/name`, `tcproute/ns/name`, `gateway/ns/name`.
pub(super) fn object(buffer: &mut String, kind: Kind, name: &ObjectName) -> Arc<str> {
    object_name(buffer, kind, name);
    fitting(buffer)
}

fn object_name(buffer: &mut String, kind: Kind, name: &ObjectName) {
    buffer.clear();
    buffer.extend(kind.text().chars().map(|character| character.to_ascii_lowercase()));
    for part in ["/", &name.namespace, "/", &name.name] {
        buffer.push_str(part);
    }
}

/// `service/ns/name:port`.
pub(super) fn service(buffer: &mut String, name: &ObjectName, port: u16) -> Arc<str> {
    buffer.clear();
    for part in ["service/", &name.namespace, "/", &name.name, ":", &port.to_string()] {
        buffer.push_str(part);
    }
    fitting(buffer)
}

/// `kind/ns/name:part`.
pub(super) fn ask(buffer: &mut String, kind: Kind, name: &ObjectName, part: &str) -> Arc<str> {
    // Names of one label are written as in the object.
    let part = part.strip_suffix(Pattern::ONE_LABEL).unwrap_or(part);
    object_name(buffer, kind, name);
    buffer.push(':');
    buffer.push_str(part);
    fitting(buffer)
}

/// Returns the name if it fits into the maps, otherwise its prefix and a hash of the whole.
fn fitting(name: &str) -> Arc<str> {
    if name.len() <= LABEL_BYTES_MAX { name.into() } else { hashed(name) }
}

/// Returns a name that no route of the static file has.
pub(super) fn unique(file: &Desired, name: Arc<str>) -> Arc<str> {
    match file.routes.find(&name) {
        Some(_) => hashed(&name),
        None => name,
    }
}

/// Returns the prefix of a name and a hash of the whole.
fn hashed(name: &str) -> Arc<str> {
    let keep = name.floor_char_boundary(LABEL_BYTES_MAX - HASH_BYTES);
    format!("{}~{:016x}", &name[..keep], digest::of(&["name", name])).into()
}
