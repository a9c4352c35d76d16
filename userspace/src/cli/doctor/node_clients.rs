//! How clients on the node itself reach addresses of listeners, if they do, and which of them they do not.

use std::collections::BTreeSet;
use std::net::IpAddr;

use common::maps::listener::ROLE_VIP;

use super::{Finding, Verdict, finding};
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::model::Node;
use crate::net::pair::{self, FAR, NEAR, Routes};
use crate::net::sysctl;
use crate::outputs::maps::{Left, named};

const WHAT: &str = "clients on the node";

/// Says how clients on the node itself reach addresses of listeners; `None`: they are not led to them.
pub(super) fn look(pins: &Pins, node: &Node) -> Option<Finding> {
    let pair = match pair::find() {
        Ok(None) => return None,
        Ok(Some(pair)) => pair,
        Err(error) => {
            return Some(finding(Verdict::Note, WHAT, error.to_string(), "rename that device, or remove it"));
        }
    };
    if !pins.linked_devices().is_ok_and(|linked| linked.contains(&pair.far)) {
        return Some(finding(
            Verdict::Note,
            WHAT,
            format!(
                "{NEAR} and {FAR} are not of these pins: another instance, or one that is gone, made them"
            ),
            "switch settings.nodeClients off in one of the two, or `ip link del vestibule-n0` if the other one is gone",
        ));
    }
    let vips = vips(pins);
    let [v4, v6] = [true, false].map(|is_v4| vips.iter().any(|vip| vip.is_ipv4() == is_v4));
    if let Err(error) = sysctl::forwarding(FAR, v4, v6) {
        return Some(finding(Verdict::Bad, WHAT, error.to_string(), "set it for this device"));
    }
    let routes = match pair::routes(pair) {
        Ok(routes) => routes,
        Err(error) => return Some(finding(Verdict::Note, WHAT, error.to_string(), "try again")),
    };
    let found = format!(
        "{} routes lead into {NEAR}, and the programs are on {}",
        routes.ours.len(),
        node.name(pair.far)
    );
    Some(judged(found, &vips, &routes, node))
}

fn judged(mut found: String, vips: &BTreeSet<IpAddr>, routes: &Routes, node: &Node) -> Finding {
    let mut remedy = "";
    let mut verdict = Verdict::Ok;
    for (why, addresses) in not_led(vips, routes, node) {
        if why != OWN {
            verdict = Verdict::Note;
            remedy = "give the listener another address, and take this one out of pools, or away from the other host";
        }
        found.push_str(&format!("; none to {}: {why}", named(&addresses)));
    }
    finding(verdict, WHAT, found, remedy)
}

/// Usual: what listens on the node itself has it.
const OWN: &str = "the node's own";

/// Returns the addresses of listeners to which no route leads, by the reason.
fn not_led(vips: &BTreeSet<IpAddr>, routes: &Routes, node: &Node) -> Vec<(&'static str, Vec<IpAddr>)> {
    let mut by_reason: Vec<(&'static str, Vec<IpAddr>)> = Vec::new();
    for vip in vips.iter().filter(|vip| !routes.ours.contains_key(*vip)) {
        let why = match Left::by_network(vip, node) {
            Some(Left::Own) => OWN,
            Some(Left::NextHop) => "a route leads over it",
            Some(Left::Tunnelled) => "a tunnel leads there",
            Some(Left::ApiServer | Left::Foreign(_)) | None if routes.others.contains(vip) => {
                "another program's route leads there"
            }
            Some(Left::ApiServer | Left::Foreign(_)) | None => {
                "other nodes have its backends, or the daemon's log and NodeState say why"
            }
        };
        match by_reason.iter_mut().find(|(other, _)| *other == why) {
            Some((_, addresses)) => addresses.push(*vip),
            None => by_reason.push((why, vec![*vip])),
        }
    }
    by_reason
}

/// Returns the addresses of listeners, as the maps have them.
fn vips(pins: &Pins) -> BTreeSet<IpAddr> {
    let mut vips = BTreeSet::new();
    if let Ok(maps) = read::open(pins) {
        // Of a walk that fails, what it found is better than nothing.
        let _ = maps.addresses.walk(|address, role| {
            if role.flags & ROLE_VIP != 0 {
                vips.insert(IpAddr::from(*address));
            }
        });
    }
    vips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_clients_on_the_node_are_not_led_to_are_named_with_the_reason() {
        let at = |last: u8| IpAddr::from([192, 0, 2, last]);
        let vips = (1..=5).map(at).collect();
        let routes = Routes { ours: [(at(1), None)].into(), others: [at(4)].into() };
        let node = Node { own: [at(2)].into(), next_hops: [at(3)].into(), ..Node::default() };
        let told = judged("1 route".into(), &vips, &routes, &node);
        assert_eq!(told.verdict, Verdict::Note);
        let parts: Vec<&str> = told.found.split("; ").collect();
        assert_eq!(parts.len(), 5, "{}", told.found);
        assert_eq!(parts[1], "none to 192.0.2.2: the node's own");
        assert_eq!(parts[2], "none to 192.0.2.3: a route leads over it");
        assert_eq!(parts[3], "none to 192.0.2.4: another program's route leads there");
        let own = judged("1 route".into(), &[at(1), at(2)].into(), &routes, &node);
        assert_eq!((own.verdict, own.remedy.as_str()), (Verdict::Ok, ""));
    }
}
