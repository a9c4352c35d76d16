//! Names of agents' Leases: each is that of its node behind a prefix. Where that would be longer than a name of an object may be, it is cut off
//! and has a hash, and the Lease says in an annotation whose it is.

use k8s_openapi::api::coordination::v1::Lease;
use sha2::{Digest, Sha256};

/// The node's name follows.
const PREFIX: &str = "vestibule-agent-";
/// The longest name of an object.
const BYTES_MAX: usize = 253;
/// How much of a longer node's name its Lease's name has at most.
const READABLE: usize = 200;
/// Bytes of the hash, each two digits.
const HASH_BYTES: usize = 12;
/// The name of the node, where the Lease's name does not have all of it. The chart's policy `vestibule-own-node-only` asks for it.
const NODE: &str = "vestibule.dev/node";

/// Returns the name of a node's Lease.
pub fn lease_name(node: &str) -> String {
    if is_whole(node) {
        return format!("{PREFIX}{node}");
    }
    let hash: String =
        Sha256::digest(node).iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    // Neither may be before the hyphen.
    let readable = node[..node.floor_char_boundary(READABLE)].trim_end_matches(['.', '-']);
    format!("{PREFIX}{readable}-{hash}")
}

/// Names a Lease after its node.
pub fn name_lease(lease: &mut Lease, node: &str) {
    lease.metadata.name = Some(lease_name(node));
    let annotations = &mut lease.metadata.annotations;
    if !is_whole(node) {
        annotations.get_or_insert_default().insert(NODE.to_owned(), node.to_owned());
    } else if let Some(annotations) = annotations {
        // With it, the Lease would be nobody's.
        annotations.remove(NODE);
    }
}

/// Returns the node that a Lease says it is of; `None`: it says nothing, as those whose name has all of it.
pub fn said_node(lease: &Lease) -> Option<&str> {
    lease.metadata.annotations.as_ref()?.get(NODE).map(String::as_str)
}

/// Returns the node of a Lease with this name that says this of its node; `None`: it is no agent's.
pub fn node_of(name: &str, said: Option<&str>) -> Option<String> {
    match said {
        // By itself it proves nothing: an agent that may write it could speak for any node.
        Some(node) => (!is_whole(node) && lease_name(node) == name).then(|| node.to_owned()),
        None => name.strip_prefix(PREFIX).map(str::to_owned),
    }
}

fn is_whole(node: &str) -> bool {
    PREFIX.len() + node.len() <= BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(node: &str) -> Lease {
        let mut lease = Lease::default();
        name_lease(&mut lease, node);
        lease
    }

    fn whose(lease: &Lease) -> Option<String> {
        node_of(lease.metadata.name.as_deref()?, said_node(lease))
    }

    #[test]
    fn a_lease_has_a_name_that_the_api_server_takes_and_is_of_its_node_alone() {
        let label = "n".repeat(49);
        let long = |last: &str| format!("{}{last}", format!("{label}.").repeat(5));
        // The longest that fits and the first that does not; and two that differ behind what is readable, which ends with a dot.
        let nodes = ["n1".to_owned(), "n".repeat(237), "n".repeat(238), long("aa"), long("bb")];
        let mut names: Vec<String> = nodes.iter().map(|node| lease_name(node)).collect();
        for (node, name) in nodes.iter().zip(&names) {
            let is_label =
                |label: &str| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
            assert!(name.len() <= BYTES_MAX && name.split('.').all(is_label), "{name}");
            assert_eq!(whose(&named(node)).as_ref(), Some(node));
        }
        assert_eq!(names[0], "vestibule-agent-n1");
        assert!(named(&nodes[1]).metadata.annotations.is_none(), "as former agents write it");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), nodes.len());
    }

    #[test]
    fn a_lease_speaks_for_no_other_node() {
        for said in ["n2".to_owned(), "n".repeat(238)] {
            let mut lease = named("n1");
            assert_eq!(whose(&lease).as_deref(), Some("n1"));
            lease.metadata.annotations = Some([(NODE.to_owned(), said)].into());
            assert_eq!(whose(&lease), None);
            // Its own agent repairs it.
            name_lease(&mut lease, "n1");
            assert_eq!(whose(&lease).as_deref(), Some("n1"));
        }
        let mut lease = named("n1");
        lease.metadata.name = Some("other".to_owned());
        assert_eq!(whose(&lease), None);
    }
}
