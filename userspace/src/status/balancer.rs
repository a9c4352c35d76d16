//! `status.loadBalancer`, of Services and of what has one like theirs.

use super::progress::Progress;
use super::{elements, text};
use crate::model::verdict::Programmable;
use serde_json::Value;
use std::net::IpAddr;

/// Returns which addresses the ingress has: all once the object is programmed, before that those that it has already.
pub(crate) fn shown(
    current: &Value,
    addresses: &[IpAddr],
    programmable: &Programmable,
    progress: &Progress,
) -> Vec<String> {
    let old = elements(current.pointer("/loadBalancer/ingress"));
    let is_there = |address: &str| old.iter().any(|entry| text(entry, "ip") == address);
    let addresses = addresses.iter().map(ToString::to_string);
    match (programmable, progress) {
        (Programmable::No(_), _) => Vec::new(),
        (Programmable::Yes, Progress::Everywhere | Progress::Enough) => addresses.collect(),
        (
            Programmable::Yes,
            Progress::Pending
            | Progress::Unwritten(_)
            | Progress::Missing(_)
            | Progress::NoAgents
            | Progress::Unknown
            | Progress::Unlisted,
        ) => addresses.filter(|address| is_there(address)).collect(),
    }
}
