//! `Announcement`: what a cluster announces to the hosts of its segments, and who. The CRD in `deploy/` is generated from these types.

use crate::model::announcement::Preferred as Weighted;
use crate::model::cluster::AddressRange;
use crate::model::pool::InvalidRange;
use crate::model::{Announcement as Model, AnnouncementRule as Rule};
use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Name of the only one.
pub const NAME: &str = "vestibule";

/// What the cluster announces, and who. Written by the controller alone; cluster-scoped; one, named `vestibule`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "vestibule.dev",
    version = "v1alpha1",
    kind = "Announcement",
    plural = "announcements",
    doc = "Which nodes announce which addresses to the hosts of their segments, by ARP and neighbour discovery.",
    printcolumn = r#"{"name":"Grace","type":"integer","jsonPath":".spec.agentGraceSeconds"}"#,
    printcolumn = r#"{"name":"Members","type":"string","jsonPath":".spec.members"}"#,
    printcolumn = r#"{"name":"Addresses","type":"string","jsonPath":".spec.rules[*].addresses"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AnnouncementSpec {
    /// For how many seconds a node whose agent is dead goes on answering, while others could.
    pub agent_grace_seconds: i64,
    /// For how many seconds the first candidate of an address has to live before its owner leaves it to that one; not set: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebalance_after_seconds: Option<i64>,
    /// What a node does with addresses that others may announce, while it is cut off from its segment; not set: `Hold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_isolation: Option<OnIsolation>,
    /// The nodes of agents, sorted. A node joins when its agent's Lease appears, and leaves when the Node or that Lease is deleted.
    #[serde(default)]
    pub members: Vec<String>,
    /// What is announced, and where: an address that a rule covers. None: nothing.
    #[serde(default)]
    pub rules: Vec<AnnouncementRule>,
}

/// What a node does while it is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnIsolation {
    /// It stops answering for them.
    Withdraw,
    /// It goes on.
    Hold,
}

impl OnIsolation {
    /// Returns what the object says of this.
    pub(crate) fn of(withdraws: bool) -> Option<Self> {
        withdraws.then_some(Self::Withdraw)
    }
}

/// Addresses, and where they are announced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnouncementRule {
    /// CIDRs, or first and last address with `-` between; empty: every address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The members that may announce them; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Names of the devices on which they do; empty: all that carry the programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Which of the members are preferred: for an address, the weights of a node are summed over all rules that cover it on the device and admit
    /// the node; the candidate with the highest sum comes first. Those that are not named have weight 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<Preferred>,
    /// What says so, for people: `addresses.l2` of the chart, or `L2Advertisement namespace/name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub origin: String,
}

/// Members that are preferred to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preferred {
    /// The higher, the earlier they come.
    pub weight: i64,
    /// Their names.
    pub nodes: Vec<String>,
}

impl Announcement {
    /// Its definition, as the API server takes it. As JSON, whose objects have their keys sorted.
    pub fn definition() -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(Self::crd())
    }
}

impl AnnouncementSpec {
    /// Returns what the object says of this.
    pub fn of(announcement: &Model) -> Self {
        let texts = |names: &[Arc<str>]| names.iter().map(|name| name.to_string()).collect();
        let preferred = |one: &Weighted| Preferred { weight: one.weight.into(), nodes: texts(&one.nodes) };
        let rule = |rule: &Rule| AnnouncementRule {
            addresses: rule.addresses.iter().map(text).collect(),
            nodes: texts(&rule.nodes),
            interfaces: texts(&rule.interfaces),
            preferred: rule.preferred.iter().map(preferred).collect(),
            origin: String::new(),
        };
        Self {
            agent_grace_seconds: seconds(announcement.grace),
            rebalance_after_seconds: announcement.rebalance.map(seconds),
            on_isolation: OnIsolation::of(announcement.withdraws),
            members: texts(&announcement.members),
            rules: announcement.rules.iter().map(rule).collect(),
        }
    }

    /// Returns what it means; `Err`: what cannot be read, and the field that has it.
    pub fn read(&self) -> Result<Model, (String, String)> {
        let grace = u64::try_from(self.agent_grace_seconds).ok().filter(|seconds| *seconds > 0);
        let grace = grace.ok_or_else(|| {
            ("spec.agentGraceSeconds".to_owned(), format!("{} is no time", self.agent_grace_seconds))
        })?;
        let arcs = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        // None is below 0: what another program wrote counts as the next one that is.
        let weight = |weight: i64| u32::try_from(weight.max(0)).unwrap_or(u32::MAX);
        let weighted = |one: &Preferred| Weighted { weight: weight(one.weight), nodes: arcs(&one.nodes) };
        let mut rules = Vec::with_capacity(self.rules.len());
        for (at, rule) in self.rules.iter().enumerate() {
            let ranges = rule.addresses.iter().enumerate().map(|(index, text)| {
                let field = || format!("spec.rules[{at}].addresses[{index}]");
                range(text).map_err(|what| (field(), format!("{text:?} {what}")))
            });
            let (nodes, interfaces) = (arcs(&rule.nodes), arcs(&rule.interfaces));
            let addresses = ranges.collect::<Result<_, _>>()?;
            let preferred = rule.preferred.iter().map(weighted).collect();
            rules.push(Rule { addresses, nodes, interfaces, preferred });
        }
        let rebalance = self.rebalance_after_seconds.map(|seconds| {
            let time = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
            time.ok_or_else(|| ("spec.rebalanceAfterSeconds".to_owned(), format!("{seconds} is no time")))
        });
        let withdraws = self.on_isolation == Some(OnIsolation::Withdraw);
        let rebalance = rebalance.transpose()?.map(Duration::from_secs);
        Ok(Model {
            grace: Duration::from_secs(grace),
            rebalance,
            withdraws,
            members: arcs(&self.members),
            rules,
        })
    }
}

impl AnnouncementRule {
    /// Returns its ranges; `None`: it names none, which means every address, or one that cannot be read.
    pub(crate) fn ranges(&self) -> Option<Vec<AddressRange>> {
        let ranges = self.addresses.iter().map(|text| range(text).ok()).collect::<Option<Vec<_>>>();
        ranges.filter(|ranges| !ranges.is_empty())
    }
}

/// Returns a time as the object has it.
pub(crate) fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Returns a range as its network, or as its ends.
pub(crate) fn text(range: &AddressRange) -> String {
    let ends = format!("{}-{}", range.first, range.last);
    let mut nets: Box<dyn Iterator<Item = IpNet>> = match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Box::new(Ipv4Subnets::new(first, last, 0).map(IpNet::V4)),
        (IpAddr::V6(first), IpAddr::V6(last)) => Box::new(Ipv6Subnets::new(first, last, 0).map(IpNet::V6)),
        _ => return ends,
    };
    match (nets.next(), nets.next()) {
        (Some(net), None) => net.to_string(),
        _ => ends,
    }
}

/// Parses a CIDR or `first-last`.
fn range(text: &str) -> Result<AddressRange, String> {
    let ends = match text.split_once('-') {
        Some((first, last)) => first.trim().parse().ok().zip(last.trim().parse().ok()),
        None => text.parse::<IpNet>().ok().map(|net| (net.network(), net.broadcast())),
    };
    let (first, last) = ends.ok_or("is no range of addresses")?;
    AddressRange::new(first, last).map_err(|InvalidRange { what, .. }| what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_it_was_meant() {
        let ends = |first: &str, last: &str| AddressRange {
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
        };
        let some = Rule {
            addresses: vec![
                ends("192.0.2.0", "192.0.2.15"),
                ends("192.0.2.17", "192.0.2.17"),
                ends("192.0.2.1", "192.0.2.15"),
                ends("2001:db8::", "2001:db8::ff"),
                ends("2001:db8::101", "2001:db8::1ff"),
            ],
            nodes: vec!["a".into()],
            interfaces: vec!["eth0".into()],
            preferred: vec![Weighted { weight: 60, nodes: vec!["a".into(), "b".into()] }],
        };
        let meant = Model {
            grace: Duration::from_secs(15),
            rebalance: Some(Duration::from_secs(600)),
            withdraws: true,
            members: vec!["a".into(), "b".into()],
            rules: vec![some, Rule::default()],
        };
        let spec = AnnouncementSpec::of(&meant);
        assert_eq!(
            spec.rules[0].addresses,
            [
                "192.0.2.0/28",
                "192.0.2.17/32",
                "192.0.2.1-192.0.2.15",
                "2001:db8::/120",
                "2001:db8::101-2001:db8::1ff"
            ]
        );
        assert_eq!(spec.read().unwrap(), meant);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<AnnouncementSpec>(&text).unwrap(), spec);
    }

    /// A rule without what could not be read in it would cover every address.
    #[test]
    fn what_cannot_be_read_is_named_and_makes_no_rule() {
        let spec = |grace, address: &str| AnnouncementSpec {
            agent_grace_seconds: grace,
            rules: vec![AnnouncementRule {
                addresses: vec![address.to_owned()],
                ..AnnouncementRule::default()
            }],
            ..AnnouncementSpec::default()
        };
        assert!(spec(1, "192.0.2.0/28").read().is_ok());
        let field = |spec: AnnouncementSpec| spec.read().unwrap_err().0;
        assert_eq!(field(spec(0, "192.0.2.0/28")), "spec.agentGraceSeconds");
        let at_once = AnnouncementSpec { rebalance_after_seconds: Some(0), ..spec(1, "192.0.2.0/28") };
        assert_eq!(field(at_once), "spec.rebalanceAfterSeconds");
        assert_eq!(
            spec(1, "192.0.2.0/28").read().unwrap().rebalance,
            None,
            "as a controller wrote it that knows no such time"
        );
        for address in ["", "192.0.2.1", "192.0.2.9-192.0.2.1", "192.0.2.1-2001:db8::1", "127.0.0.0/8"] {
            assert_eq!(field(spec(1, address)), "spec.rules[0].addresses[0]", "{address}");
        }
    }
}
