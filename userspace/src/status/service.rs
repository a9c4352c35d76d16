//! The status of a Service of our class: its ingress, and why there is none.

use super::condition::{Judged, merge};
use super::progress::{Progress, programmed};
use super::{balancer, changed, elements, text};
use crate::model::cluster::PoolNote;
use crate::model::kind::OUR_PROGRAMMED;
use crate::model::verdict::ServiceVerdict;
use serde_json::{Value, json};

/// Returns what to write to the status of a Service that is not of our class any more: our condition goes. The API
/// server itself removes the ingress where the type is another.
pub fn left(current: &Value) -> Option<Value> {
    let judged = Judged { generation: 0, now: "" };
    let others = Some(merge(current.get("conditions"), [], judged)).filter(|others| *others != json!([]));
    changed(current, [("conditions", others.unwrap_or(Value::Null))])
}

/// Returns what to write to the annotations of a Service whose addresses are of this pool, or of none; `None`: nothing.
pub fn annotations(current: &PoolNote, pool: Option<&str>) -> Option<Value> {
    let mut changes = serde_json::Map::new();
    if current.pool.as_deref() != pool {
        changes.insert(PoolNote::KEY.to_owned(), json!(pool));
    }
    if current.has_old {
        changes.insert(PoolNote::OLD_KEY.to_owned(), Value::Null);
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Whether a status has all addresses of a verdict in its ingress, with its ports.
pub fn shows(current: &Value, verdict: &ServiceVerdict) -> bool {
    let entries = elements(current.pointer("/loadBalancer/ingress"));
    let has = |entry: &Value, port: &u16| {
        elements(entry.get("ports"))
            .iter()
            .any(|shown| shown.get("port").and_then(Value::as_u64) == Some((*port).into()))
    };
    verdict.addresses.iter().all(|address| {
        let of_it = |entry: &&Value| text(entry, "ip") == address.to_string();
        entries.iter().find(of_it).is_some_and(|entry| verdict.ports.iter().all(|port| has(entry, port)))
    })
}

/// Returns what to write to the status; `now` is RFC 3339, UTC.
///
/// An address appears once the Service is programmed. It disappears at once when the Service
/// should no longer have it. It does not disappear because a new node, or one that is applying a change, does
/// not hold it yet: clients that resolve a name to the address would see it disappear and reappear.
pub fn desired_status(
    current: &Value,
    verdict: &ServiceVerdict,
    progress: &Progress,
    now: &str,
) -> Option<Value> {
    let judged = Judged { generation: 0, now };
    let programmed = programmed(OUR_PROGRAMMED, &verdict.programmable, progress);
    let old = elements(current.pointer("/loadBalancer/ingress"));
    let shown = balancer::shown(current, &verdict.addresses, &verdict.programmable, progress);
    let ports: Vec<Value> =
        verdict.ports.iter().map(|port| json!({ "port": port, "protocol": "TCP" })).collect();
    let ingress: Vec<Value> = shown
        .iter()
        // With `VIP`, kube-proxy would handle the address inside the cluster and bypass our rules.
        .map(|address| json!({ "ip": address, "ipMode": "Proxy", "ports": ports }))
        .collect();
    let balancer = match ingress.is_empty() {
        // In a merge patch, null removes a field; an absent field needs none.
        true if old.is_empty() => current.get("loadBalancer").cloned().unwrap_or(Value::Null),
        true => json!({ "ingress": null }),
        false => json!({ "ingress": ingress }),
    };
    let conditions = merge(current.get("conditions"), [&programmed], judged);
    changed(current, [("loadBalancer", balancer), ("conditions", conditions)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_noted_and_the_old_note_goes() {
        let note = |pool: Option<&str>, has_old| PoolNote { pool: pool.map(Into::into), has_old };
        let (new, old) = (PoolNote::KEY, PoolNote::OLD_KEY);
        assert_eq!(annotations(&note(None, false), None), None);
        assert_eq!(annotations(&note(Some("p"), false), Some("p")), None);
        assert_eq!(annotations(&note(None, false), Some("p")), Some(json!({new: "p"})));
        assert_eq!(annotations(&note(Some("p"), true), Some("q")), Some(json!({new: "q", old: null})));
        assert_eq!(annotations(&note(Some("p"), false), None), Some(json!({new: null})));
    }
}
