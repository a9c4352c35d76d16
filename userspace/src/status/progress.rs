//! Which nodes hold an object, and the resulting condition `Programmed`.

use crate::model::ObjectRef;
use crate::model::verdict::{Condition, Programmable, Status};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most nodes that a message names.
pub(super) const NAMED: usize = 8;

/// Nodes may be about to hold it.
const SOON: &str = "its Claims are being written, or nodes are about to hold them";
/// Nodes cannot hold it.
const UNWRITTEN: &str = "its Claims cannot be read or written, so that no node learns of it: see the controller's log, whether it may list, \
     create, update and delete Claims, and which webhook or quota refuses them";
/// What may help where one of them is refused.
const REFUSED_REMEDY: &str =
    "see which webhook or quota refuses it, and whether the controller may create, update and delete Claims";
/// Of nodes nothing is known.
const NOT_KNOWN: &str = "it is not known which nodes hold it: the agents' Leases cannot be listed; see whether the controller may list and \
     watch them, and the API server's log";

/// The same for so long that what was known before says nothing any more.
const STILL_NOT_KNOWN: &str = "it is still not known which nodes hold it: the agents' Leases cannot be listed; see whether the controller may \
     list and watch them, and the API server's log";

/// Agents with a live Lease, by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// What each of them holds.
    pub live: BTreeMap<String, Held>,
    /// Nodes of which it is not known what they hold.
    pub unknown: BTreeMap<String, Unknown>,
    /// The live ones in their first minute, or in the first of an agent that serves what it saved.
    pub joining: BTreeSet<String>,
    /// Nodes whose agent has a Lease, whether or not it has ended.
    pub members: BTreeSet<String>,
    /// Those of them whose agent ended lately, or is not there, and reported last, as far as that can be read, that the node serves Claims.
    pub silent: BTreeSet<String>,
    /// Leases cannot be listed: of no node is it known whether its agent is alive.
    pub are_unlisted: bool,
}

/// Why it is not known what a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// As conditions say it.
    pub why: Cow<'static, str>,
    /// Whether it stays so until it is seen to.
    pub lasts: bool,
}

impl From<&'static str> for Unknown {
    fn from(why: &'static str) -> Self {
        Self { why: why.into(), lasts: false }
    }
}

/// What the maps of a node hold, as reported by its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Every Claim up to this version; 0: none is known.
    pub claims_version: u64,
    /// What it serves though no Claim is known to it, such as a state that it saved; `None`: nothing.
    pub saved: Option<String>,
    /// What the node could not do, or does not hold although it should.
    pub complaints: Vec<Complaint>,
}

/// A problem of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaint {
    /// `Gateway/namespace/name`; `None`: the node itself.
    pub object: Option<String>,
    /// Whether because of it the node does not hold the object; without an object: anything.
    pub missing: bool,
    /// Whether because of it the node's Lease names no newer Claims.
    pub holds_back: bool,
    /// What is wrong, where, and what to do about it.
    pub text: String,
}

/// Which nodes hold an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its Claims do not say yet what was settled, or nodes may be about to hold them.
    Pending,
    /// Its Claims do not say what was settled, for they cannot be written for a while; with one of its own that is refused.
    Unwritten(Option<Refused>),
    /// Every node with a live agent holds it as judged.
    Everywhere,
    /// All but a few do.
    Enough,
    /// These nodes do not hold it.
    Missing(Missing),
    /// No agent has a live Lease.
    NoAgents,
    /// It is not known which agents are alive.
    Unknown,
    /// Nor was it for a while.
    Unlisted,
}

/// A Claim that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its name.
    pub claim: Arc<str>,
    /// What the API server, or one of its webhooks, says.
    pub why: Arc<str>,
}

/// Nodes that do not hold an object. Of thousands of objects, each may lack hundreds of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// The first of them, as many as a message names; each with the reason if it reported one.
    pub named: Vec<(String, Option<String>)>,
    /// How many there are.
    pub count: usize,
    /// Whether these are all that could lead anybody anywhere: clients are served by none.
    pub is_whole: bool,
}

impl From<Vec<(String, Option<String>)>> for Missing {
    fn from(all: Vec<(String, Option<String>)>) -> Self {
        let count = all.len();
        Self { named: all.into_iter().take(NAMED).collect(), count, is_whole: false }
    }
}

/// Returns the name of an object in NodeStates.
pub fn key(object: &ObjectRef) -> String {
    object.key()
}

impl Nodes {
    /// Why nodes are behind, as they say themselves.
    pub fn held_back(&self) -> BTreeMap<String, String> {
        let why = |(node, held): (&String, &Held)| {
            let complaint = held.complaints.iter().find(|complaint| complaint.holds_back)?;
            Some((node.clone(), complaint.text.clone()))
        };
        self.live.iter().filter_map(why).collect()
    }

    /// Whether there may be nodes of which it is not known what they hold: nothing follows from that.
    pub fn knows_less(&self) -> bool {
        self.are_unlisted || !self.unknown.is_empty()
    }

    /// Returns which node may hold Claims, or serve what it held before, and why that is thought; `None`: none does.
    pub fn may_hold(&self) -> Option<String> {
        if self.are_unlisted {
            return Some("any node may hold it, for the agents' Leases cannot be listed".to_owned());
        }
        if let Some((node, unknown)) = self.unknown.first_key_value() {
            return Some(format!("node {node} may hold it: {}", unknown.why));
        }
        let holds = self.live.iter().find(|(_, held)| held.claims_version > 0);
        if let Some((node, held)) = holds {
            let version = held.claims_version;
            return Some(format!("node {node} holds Claims up to version {version}, and maybe it"));
        }
        let serves = self.live.iter().find_map(|(node, held)| Some((node, held.saved.as_ref()?)));
        if let Some((node, saved)) = serves {
            return Some(format!("node {node} serves {saved}, and maybe it"));
        }
        let node = self.silent.first()?;
        Some(format!(
            "node {node} may hold it, which served Claims when its agent was alive last; start its agent, or delete its Lease"
        ))
    }

    /// Returns the nodes that do not hold an object, named as in NodeStates, whose Claims are those up to `version`; each with the reason
    /// if it reported one.
    pub fn missing(&self, key: String, version: u64) -> impl Iterator<Item = (&str, Option<&str>)> {
        let unknown = self.unknown.iter().map(|(node, unknown)| (node.as_str(), Some(&*unknown.why)));
        let live = self.live.iter();
        live.filter_map(move |(node, held)| missing_on(node, held, &key, version)).chain(unknown)
    }
}

/// Returns the node, with the reason if it reported one, if it does not hold the object of this name in NodeStates.
fn missing_on<'a>(
    node: &'a str,
    held: &'a Held,
    key: &str,
    version: u64,
) -> Option<(&'a str, Option<&'a str>)> {
    let of_it = |complaint: &&Complaint| complaint.object.as_ref().is_none_or(|object| object == key);
    let mut complaints = held.complaints.iter().filter(of_it);
    let exception = complaints.clone().find(|complaint| complaint.missing);
    if held.claims_version >= version && exception.is_none() {
        return None;
    }
    let why = exception.or_else(|| {
        // What is said of the object itself says more.
        let first = complaints.clone().next();
        complaints.find(|complaint| complaint.object.is_some()).or(first)
    });
    Some((node, why.map(|complaint| complaint.text.as_str())))
}

/// Returns the condition `Programmed`, with `kind` as its type.
pub(crate) fn programmed(kind: &'static str, programmable: &Programmable, progress: &Progress) -> Condition {
    let (status, reason, message) = match (programmable, progress) {
        (Programmable::No(refusal), _) => return Condition { kind, ..refusal.clone() },
        (Programmable::Yes, Progress::Pending) => (Status::False, "Pending", SOON.to_owned()),
        (Programmable::Yes, Progress::Unwritten(None)) => (Status::False, "Pending", UNWRITTEN.to_owned()),
        (Programmable::Yes, Progress::Unwritten(Some(Refused { claim, why }))) => {
            let what = format!("its Claim {claim} cannot be written, so that no node learns of it");
            (Status::False, "Pending", format!("{what}: {why}; {REFUSED_REMEDY}"))
        }
        // One message for both: a node more or less would rewrite the status of every object.
        (Programmable::Yes, Progress::Everywhere | Progress::Enough) => {
            let message = "all nodes with a live agent hold it, or all but a few; the agents' Leases show what each holds";
            (Status::True, "Programmed", message.to_owned())
        }
        (Programmable::Yes, Progress::Missing(missing)) => (Status::False, "Pending", waits(missing)),
        (Programmable::Yes, Progress::NoAgents) => (
            Status::False,
            "NoResources",
            "no agent has a live Lease; see whether pods with label app.kubernetes.io/component=agent run, and on \
             which nodes the chart's nodeSelector and tolerations let them"
                .to_owned(),
        ),
        (Programmable::Yes, Progress::Unknown) => (Status::False, "Pending", NOT_KNOWN.to_owned()),
        (Programmable::Yes, Progress::Unlisted) => (Status::False, "Pending", STILL_NOT_KNOWN.to_owned()),
    };
    Condition { kind, status, reason, message }
}

/// Whether a condition that is `False` already stays as it is, for this reason, where it would say this: the new text knows less. A
/// controller that has just started would rewrite the status of each object that waits.
pub(super) fn knows_less(message: &str, reason: &str, old: &str) -> bool {
    (message == SOON && reason == "Pending")
        || (message == NOT_KNOWN && old != SOON && (reason == "Pending" || reason == "NoResources"))
        || (message == STILL_NOT_KNOWN && old == NOT_KNOWN)
}

fn waits(missing: &Missing) -> String {
    let names: Vec<&str> = missing.named.iter().map(|(node, _)| node.as_str()).collect();
    let mut message = format!("waits for {}", first_names(&names, missing.count));
    for (node, why) in &missing.named {
        if let Some(why) = why {
            message.push_str(&format!("; {node}: {why}"));
        }
    }
    message
}

/// Lists nodes for people: the first few by name.
pub(crate) fn node_names(nodes: &[&str]) -> String {
    first_names(&nodes[..nodes.len().min(NAMED)], nodes.len())
}

fn first_names(first: &[&str], count: usize) -> String {
    let what = if count == 1 { "node" } else { "nodes" };
    let mut text = format!("{what} {}", first.join(", "));
    if count > first.len() {
        text.push_str(&format!(" and {} more", count - first.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what is not known it is not known that nobody loses it.
    #[test]
    fn nodes_may_hold_claims_unless_all_say_that_they_hold_none() {
        let nodes = |version: Option<u64>, members: &[&str]| {
            let held = version.map(|claims_version| Held { claims_version, ..Held::default() });
            Nodes {
                live: held.into_iter().map(|held| ("n1".to_owned(), held)).collect(),
                members: members.iter().map(|name| (*name).to_owned()).collect(),
                ..Nodes::default()
            }
        };
        assert_eq!((nodes(None, &[]).may_hold(), nodes(Some(0), &["n1"]).may_hold()), (None, None));
        // Its agent is dead, and said that it holds nothing.
        assert_eq!(nodes(Some(0), &["n1", "n2"]).may_hold(), None);
        let why = |nodes: Nodes, what: &str| {
            let why = nodes.may_hold().unwrap();
            assert!(why.contains(what), "{why}");
        };
        why(nodes(Some(1), &["n1"]), "node n1 holds Claims up to version 1");
        let silent = BTreeSet::from(["n2".to_owned()]);
        why(Nodes { silent, ..nodes(Some(0), &["n1", "n2"]) }, "node n2 may hold it, which served Claims");
        why(Nodes { are_unlisted: true, ..nodes(None, &[]) }, "Leases cannot be listed");
        let unknown = BTreeMap::from([("n3".to_owned(), "it is of another version".into())]);
        why(Nodes { unknown, ..nodes(Some(0), &["n1"]) }, "node n3 may hold it: it is of another version");
        let saved = Some("a saved state of 2026-11-21T10:00:00Z".to_owned());
        let live = BTreeMap::from([("n4".to_owned(), Held { saved, ..Held::default() })]);
        why(Nodes { live, ..Nodes::default() }, "node n4 serves a saved state of 2026-11-21T10:00:00Z, ");
    }
}
