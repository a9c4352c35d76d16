//! What is taken out of statuses when Vestibule leaves the cluster: nothing may say that an address is served.

use super::condition::{Judged, merge};
use super::{CONTROLLER_NAME, changed, elements, text};
use crate::model::kind::OUR_PROGRAMMED;
use serde_json::{Value, json};

/// Why nothing is programmed any more.
const MESSAGE: &str = "Vestibule is withdrawn from the cluster";

/// Returns what to write to the status of a Gateway or ListenerSet: no address, and `Programmed` is unknown, of its listeners too, as
/// before any controller looked at it. `now` is RFC 3339, UTC.
pub fn gateway(current: &Value, now: &str) -> Option<Value> {
    let mut fields = Vec::new();
    if let Some(mut conditions) = current.get("conditions").cloned() {
        forget(&mut conditions, "Programmed", now);
        fields.push(("conditions", conditions));
    }
    if let Some(listeners) = with_each(current.get("listeners"), |listener| {
        listener.get_mut("conditions").into_iter().for_each(|those| forget(those, "Programmed", now));
    }) {
        fields.push(("listeners", listeners));
    }
    if !elements(current.get("addresses")).is_empty() {
        fields.push(("addresses", json!([])));
    }
    changed(current, fields)
}

/// Returns what to write to the status of a route: at our parents it is unknown whether it is programmed. `now` is RFC 3339, UTC.
pub fn route(current: &Value, now: &str) -> Option<Value> {
    let parents = with_each(current.get("parents"), |parent| {
        if text(parent, "controllerName") == CONTROLLER_NAME {
            parent.get_mut("conditions").into_iter().for_each(|those| forget(those, OUR_PROGRAMMED, now));
        }
    })?;
    changed(current, [("parents", parents)])
}

/// Returns a list with each element changed; `None`: there is none.
fn with_each(list: Option<&Value>, change: impl FnMut(&mut Value)) -> Option<Value> {
    let mut list = list?.as_array()?.clone();
    list.iter_mut().for_each(change);
    Some(Value::Array(list))
}

/// Makes a condition unknown, if it is there.
fn forget(conditions: &mut Value, kind: &str, now: &str) {
    let mut conditions = conditions.as_array_mut().into_iter().flatten();
    let Some(condition) = conditions.find(|condition| text(condition, "type") == kind) else { return };
    if text(condition, "status") == "Unknown" {
        return;
    }
    let fields =
        [("status", "Unknown"), ("reason", "Pending"), ("message", MESSAGE), ("lastTransitionTime", now)];
    for (name, value) in fields {
        condition[name] = json!(value);
    }
}

/// Whether a status has our condition: we have written it.
pub fn has_ours(current: &Value) -> bool {
    elements(current.get("conditions")).iter().any(|condition| text(condition, "type") == OUR_PROGRAMMED)
}

/// Returns what to write to the status of a Service: no condition of ours, and no ingress if it is of our class. Otherwise the ingress may
/// be of another implementation.
pub fn service(current: &Value, is_ours: bool) -> Option<Value> {
    if !is_ours && !has_ours(current) {
        return None;
    }
    let others = merge(current.get("conditions"), [], Judged { generation: 0, now: "" });
    let others = Some(others).filter(|others| *others != json!([])).unwrap_or(Value::Null);
    let balancer = match is_ours && !elements(current.pointer("/loadBalancer/ingress")).is_empty() {
        true => json!({ "ingress": null }),
        false => current.get("loadBalancer").cloned().unwrap_or(Value::Null),
    };
    changed(current, [("loadBalancer", balancer), ("conditions", others)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "then"})
    }

    #[test]
    fn a_gateway_has_no_address_and_is_not_programmed_afterwards() {
        let mut current = json!({
            "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}],
            "conditions": [condition("Accepted", "True"), condition("Programmed", "True"), condition("example.com/X", "True")],
            "listeners": [{"name": "l", "conditions": [condition("Programmed", "True"), condition("Accepted", "True")]},
                          {"name": "m"}],
        });
        let new = gateway(&current, "now").unwrap();
        assert_eq!(new["addresses"], json!([]));
        let programmed = &new["conditions"][1];
        assert_eq!(text(programmed, "status"), "Unknown");
        assert_eq!(text(programmed, "lastTransitionTime"), "now");
        assert_eq!(new["conditions"][2], condition("example.com/X", "True"));
        let of_listener = &new["listeners"][0]["conditions"];
        assert_eq!(text(&of_listener[0], "status"), "Unknown");
        assert_eq!(of_listener[1], condition("Accepted", "True"));
        for (name, value) in new.as_object().unwrap() {
            current[name] = value.clone();
        }
        assert_eq!(gateway(&current, "later"), None, "nothing is left to do");
        assert_eq!(gateway(&json!({}), "now"), None);
    }

    #[test]
    fn a_route_is_not_programmed_afterwards_at_parents_of_ours() {
        let parent = |controller: &str| json!({"controllerName": controller, "conditions": [condition(OUR_PROGRAMMED, "True")]});
        let mut current = json!({"parents": [parent("example.com/x"), parent(CONTROLLER_NAME)]});
        let new = route(&current, "now").unwrap();
        assert_eq!(new["parents"][0], parent("example.com/x"));
        assert_eq!(text(&new["parents"][1]["conditions"][0], "status"), "Unknown");
        current["parents"] = new["parents"].clone();
        assert_eq!(route(&current, "later"), None, "nothing is left to do");
        assert_eq!(route(&json!({}), "now"), None);
    }

    #[test]
    fn a_service_of_ours_has_no_ingress_afterwards_and_others_keep_theirs() {
        let ours = condition(OUR_PROGRAMMED, "True");
        let ingress = json!({"ingress": [{"ip": "192.0.2.1"}]});
        let current =
            json!({"loadBalancer": ingress, "conditions": [ours, condition("example.com/X", "True")]});
        assert_eq!(
            service(&current, true),
            Some(
                json!({"loadBalancer": {"ingress": null}, "conditions": [condition("example.com/X", "True")]})
            )
        );
        // It is of another class by now.
        assert_eq!(
            service(&current, false),
            Some(json!({"conditions": [condition("example.com/X", "True")]}))
        );
        let theirs = json!({"loadBalancer": ingress, "conditions": [condition("example.com/X", "True")]});
        assert_eq!(service(&theirs, false), None);
        assert_eq!(
            service(&theirs, true),
            Some(json!({"loadBalancer": {"ingress": null}})),
            "one of our class without our condition"
        );
        assert_eq!(service(&json!({}), true), None);
    }
}
