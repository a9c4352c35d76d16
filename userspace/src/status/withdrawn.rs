//! What is taken out of statuses when Vestibule leaves the cluster: nothing may say that an address is served.

use super::condition::{Judged, SERVICE_PROGRAMMED, merge};
use super::{changed, elements, text};
use serde_json::{Value, json};

/// Why a Gateway is not programmed any more.
const MESSAGE: &str = "Vestibule is withdrawn from the cluster";

/// Returns what to write to a Gateway's status: no address, and `Programmed` is unknown, as before any controller looked at it.
/// `now` is RFC 3339, UTC.
pub fn gateway(current: &Value, now: &str) -> Option<Value> {
    let mut conditions = elements(current.get("conditions")).to_vec();
    let is_programmed = |condition: &&mut Value| text(condition, "type") == "Programmed";
    if let Some(programmed) = conditions.iter_mut().find(is_programmed)
        && text(programmed, "status") != "Unknown"
    {
        let fields =
            [("status", "Unknown"), ("reason", "Pending"), ("message", MESSAGE), ("lastTransitionTime", now)];
        for (name, value) in fields {
            programmed[name] = json!(value);
        }
    }
    let mut fields = Vec::new();
    if !conditions.is_empty() {
        fields.push(("conditions", Value::Array(conditions)));
    }
    if !elements(current.get("addresses")).is_empty() {
        fields.push(("addresses", json!([])));
    }
    changed(current, fields)
}

/// Returns what to write to the status of a Service that is or was of our class: no ingress, and no condition of ours. Of one that has
/// neither condition nor class of ours, the ingress may be of another implementation.
pub fn service(current: &Value, is_ours: bool) -> Option<Value> {
    let conditions = elements(current.get("conditions"));
    let has_ours = conditions.iter().any(|condition| text(condition, "type") == SERVICE_PROGRAMMED);
    if !is_ours && !has_ours {
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
            "listeners": [{"name": "l"}],
        });
        let new = gateway(&current, "now").unwrap();
        assert_eq!(new["addresses"], json!([]));
        let programmed = &new["conditions"][1];
        assert_eq!(text(programmed, "status"), "Unknown");
        assert_eq!(text(programmed, "lastTransitionTime"), "now");
        assert_eq!(new["conditions"][2], condition("example.com/X", "True"));
        for (name, value) in new.as_object().unwrap() {
            current[name] = value.clone();
        }
        assert_eq!(gateway(&current, "later"), None, "nothing is left to do");
        assert_eq!(gateway(&json!({}), "now"), None);
    }

    #[test]
    fn a_service_of_ours_has_no_ingress_afterwards_and_others_keep_theirs() {
        let ours = condition(SERVICE_PROGRAMMED, "True");
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
