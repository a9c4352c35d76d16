//! Who announces which addresses to the hosts of its segments: what the controller decided for the whole cluster.

use super::pool::{AddressRange, Ranges};
use std::sync::Arc;
use std::time::Duration;

/// What all agents of a cluster know of announcing. Without it, nothing is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// For how long a node whose agent is dead goes on answering, while others could.
    pub grace: Duration,
    /// How long the first candidate of an address has to live before its owner leaves it to that one; `None`: for ever.
    pub rebalance: Option<Duration>,
    /// Whether a node that is cut off stops answering for what others may announce.
    pub withdraws: bool,
    /// The nodes that run an agent, sorted.
    pub members: Vec<Arc<str>>,
    /// An address is announced where one of them covers it.
    pub rules: Vec<AnnouncementRule>,
}

/// Addresses, and where they are announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementRule {
    /// What it covers; empty: every address.
    pub addresses: Vec<AddressRange>,
    /// The members that may announce them; empty: all.
    pub nodes: Vec<Arc<str>>,
    /// The devices on which they do; empty: all that carry the programs.
    pub interfaces: Vec<Arc<str>>,
    /// Which of them are preferred; the others have weight 0.
    pub preferred: Vec<Preferred>,
}

/// Nodes that are preferred to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferred {
    /// The higher, the earlier they come.
    pub weight: u32,
    /// Their names.
    pub nodes: Vec<Arc<str>>,
}

impl AnnouncementRule {
    /// Returns what it covers, for many questions; `None`: every address.
    pub fn covered(&self) -> Option<Ranges> {
        (!self.addresses.is_empty()).then(|| self.addresses.iter().copied().collect())
    }

    /// Whether this member may announce what it covers.
    pub fn admits(&self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|name| **name == *node)
    }

    /// Returns the weight of this member for what it covers: 0 for those that it does not admit.
    pub fn weight(&self, node: &str) -> u32 {
        let is_named = |preferred: &&Preferred| preferred.nodes.iter().any(|name| **name == *node);
        let weights = self.preferred.iter().filter(is_named).map(|preferred| preferred.weight);
        if self.admits(node) { weights.fold(0, u32::saturating_add) } else { 0 }
    }

    /// Whether what it covers is announced on the device of this name.
    pub fn is_for(&self, device: &str) -> bool {
        self.interfaces.is_empty() || self.interfaces.iter().any(|name| **name == *device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_names_all() {
        let (first, last) = ("192.0.2.1".parse().unwrap(), "192.0.2.9".parse().unwrap());
        let all = AnnouncementRule::default();
        let some = AnnouncementRule {
            addresses: vec![AddressRange { first, last }],
            nodes: vec!["a".into()],
            interfaces: vec!["eth0".into()],
            preferred: Vec::new(),
        };
        let says = |rule: &AnnouncementRule, address: &str, node, device| {
            let covers = rule.covered().is_none_or(|covered| covered.holds(address.parse().unwrap()));
            (covers, rule.admits(node), rule.is_for(device))
        };
        assert_eq!(says(&all, "2001:db8::1", "x", "eth9"), (true, true, true));
        assert_eq!(says(&some, "192.0.2.9", "a", "eth0"), (true, true, true));
        assert_eq!(says(&some, "192.0.2.10", "b", "eth1"), (false, false, false));
    }

    #[test]
    fn weights_of_a_node_add_up_and_one_that_is_not_admitted_has_none() {
        let preferred = |weight, nodes: &[&str]| Preferred {
            weight,
            nodes: nodes.iter().map(|name| Arc::from(*name)).collect(),
        };
        let rule = AnnouncementRule {
            nodes: vec!["a".into(), "b".into()],
            preferred: vec![preferred(60, &["a", "c"]), preferred(50, &["a", "b"])],
            ..AnnouncementRule::default()
        };
        assert_eq!(["a", "b", "c", "d"].map(|node| rule.weight(node)), [110, 50, 0, 0]);
        let most = AnnouncementRule { preferred: vec![preferred(u32::MAX, &["a"]); 2], ..rule };
        assert_eq!(most.weight("a"), u32::MAX);
    }
}
