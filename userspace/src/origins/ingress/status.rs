//! The status of an Ingress: the addresses at which it is served. It has no conditions.

use crate::model::verdict::OriginVerdict;
use crate::status::progress::Progress;
use crate::status::{balancer, changed, elements, text};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// What the status needs besides the rest of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether we write it; otherwise another controller does.
    pub(super) is_written: bool,
}

/// Whether a status has all addresses of a verdict.
pub(super) fn shows(current: &Value, verdict: &OriginVerdict) -> bool {
    let entries = elements(current.pointer("/loadBalancer/ingress"));
    verdict
        .addresses
        .iter()
        .all(|address| entries.iter().any(|entry| text(entry, "ip") == address.to_string()))
}

/// Returns what to write to the status. As those of a Service, addresses appear once it is programmed.
pub(super) fn desired_status(
    current: &Value,
    verdict: &OriginVerdict,
    progress: &Progress,
    ours: &BTreeSet<SocketAddr>,
) -> Option<Value> {
    if !verdict.says.get().is_some_and(|manner: &Manner| manner.is_written) {
        // It may have been until now.
        return left(current, ours);
    }
    let shown = balancer::shown(current, &verdict.addresses, &verdict.programmable, progress);
    let ports: Vec<Value> =
        verdict.ports.iter().map(|port| json!({ "port": port, "protocol": "TCP" })).collect();
    let entries: Vec<Value> = shown.iter().map(|address| json!({ "ip": address, "ports": ports })).collect();
    write(current, entries)
}

/// Returns what to write to the status of an Ingress that is not ours to write: we wrote it where all entries have addresses of our
/// listeners, and ports of them alone. A controller behind an address of ours may publish the same one, with its own ports or none.
pub(super) fn left(current: &Value, ours: &BTreeSet<SocketAddr>) -> Option<Value> {
    let entries = elements(current.pointer("/loadBalancer/ingress"));
    let is_port = |port: &Value| {
        ours.iter().any(|at| port.get("port").and_then(Value::as_u64) == Some(at.port().into()))
    };
    let is_ours = |entry: &Value| {
        let address = text(entry, "ip").parse::<IpAddr>();
        let ports = elements(entry.get("ports"));
        address.is_ok_and(|address| ours.iter().any(|at| at.ip() == address))
            && !ports.is_empty()
            && ports.iter().all(is_port)
    };
    if entries.is_empty() || !entries.iter().all(is_ours) {
        return None;
    }
    write(current, Vec::new())
}

fn write(current: &Value, entries: Vec<Value>) -> Option<Value> {
    let balancer = match entries.is_empty() {
        true if elements(current.pointer("/loadBalancer/ingress")).is_empty() => return None,
        true => json!({ "ingress": null }),
        false => json!({ "ingress": entries }),
    };
    changed(current, [("loadBalancer", balancer)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Opaque;
    use crate::model::verdict::{Condition, Programmable, Status};

    fn ours() -> BTreeSet<SocketAddr> {
        ["192.0.2.1:443", "[2001:db8::1]:443"].map(|at| at.parse().unwrap()).into()
    }

    fn verdict(is_written: bool, programmable: Programmable) -> OriginVerdict {
        OriginVerdict {
            generation: 0,
            addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            ports: vec![443],
            programmable,
            says: Opaque::new(Manner { is_written }),
        }
    }

    #[test]
    fn addresses_appear_once_nodes_serve_them_and_stay_while_one_joins() {
        let yes = verdict(true, Programmable::Yes);
        let missing = Progress::Missing(vec![("n1".to_owned(), None)].into());
        assert_eq!(desired_status(&json!({}), &yes, &missing, &ours()), None);
        let new = desired_status(&json!({}), &yes, &Progress::Everywhere, &ours()).unwrap();
        let ports = json!([{"port": 443, "protocol": "TCP"}]);
        let entries = json!([{"ip": "192.0.2.1", "ports": ports}, {"ip": "2001:db8::1", "ports": ports}]);
        assert_eq!(new, json!({"loadBalancer": {"ingress": entries}}));
        assert!(shows(&new, &yes));
        assert_eq!(desired_status(&new, &yes, &missing, &ours()), None);
        let condition = Condition {
            kind: "Programmed",
            status: Status::False,
            reason: "Invalid",
            message: String::new(),
        };
        let no = verdict(true, Programmable::No(condition));
        assert_eq!(
            desired_status(&new, &no, &missing, &ours()),
            Some(json!({"loadBalancer": {"ingress": null}}))
        );
        assert_eq!(
            desired_status(&json!({}), &verdict(false, Programmable::Yes), &Progress::Everywhere, &ours()),
            None
        );
    }

    #[test]
    fn what_others_wrote_stays() {
        let ours = ours();
        let status = |entries: Value| json!({"loadBalancer": {"ingress": entries}});
        let ports = json!([{"port": 443, "protocol": "TCP"}]);
        let own = json!([{"ip": "192.0.2.1", "ports": ports}]);
        let gone = Some(status(Value::Null));
        assert_eq!(left(&status(own.clone()), &ours), gone);
        // A controller behind our listener publishes its address, too: cleared, it would write it again, and so on for ever.
        assert_eq!(left(&status(json!([{"ip": "192.0.2.1"}])), &ours), None);
        let plain = json!([{"ip": "192.0.2.1", "ports": [{"port": 80, "protocol": "TCP"}]}]);
        assert_eq!(left(&status(plain), &ours), None);
        let others = json!([{"ip": "192.0.2.1", "ports": ports}, {"ip": "192.0.2.9", "ports": ports}]);
        assert_eq!(left(&status(others), &ours), None);
        assert_eq!(left(&status(json!([{"hostname": "a.example"}])), &ours), None);
        assert_eq!(left(&json!({}), &ours), None);
        // `writeStatus: true` was turned to false.
        let mut not_written = verdict(false, Programmable::Yes);
        assert_eq!(desired_status(&status(own.clone()), &not_written, &Progress::Everywhere, &ours), gone);
        let others = status(json!([{"ip": "192.0.2.1"}]));
        assert_eq!(desired_status(&others, &not_written, &Progress::Everywhere, &ours), None);
        // It has nothing left, as when its annotation cannot be read any more.
        not_written.addresses.clear();
        assert_eq!(desired_status(&status(own), &not_written, &Progress::Everywhere, &ours), gone);
    }
}
