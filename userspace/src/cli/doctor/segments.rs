//! What is wrong on the segments where this node may announce addresses, as its agent says.

use super::{Finding, Verdict, finding};
use crate::admin;
use crate::cli::probe::SOCKET;
use crate::outputs::l2::{CandidateShown, Picture, VipShown};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The time limit for each part of the agent's answer.
const LIMIT: Duration = Duration::from_secs(4);
/// The most names of a finding.
const NAMED: usize = 8;
/// A candidate that has just fallen silent may be judged in a moment.
const SILENT_SECONDS: u64 = 2;

/// Asks the agent, if one answers here.
pub(super) fn look() -> Vec<Finding> {
    let answer = admin::vips_of(Path::new(SOCKET), LIMIT);
    let picture: Option<Picture> = answer.and_then(|text| serde_json::from_str(&text).ok());
    picture.map(|picture| findings(&picture)).unwrap_or_default()
}

fn findings(picture: &Picture) -> Vec<Finding> {
    if picture.vips.is_empty() {
        return Vec::new();
    }
    let conflicts = picture.vips.iter().filter_map(|vip| {
        let found =
            format!("the host with link address {} answers for {}", vip.foreign.as_ref()?, vip.address);
        Some(finding(
            Verdict::Note,
            "address conflict",
            found,
            "take the address from that host, or out of the pool",
        ))
    });
    let mut findings: Vec<Finding> = conflicts.take(NAMED).collect();
    let is_left = |vip: &&VipShown| vip.node.is_none() && vip.foreign.is_none() && vip.candidates > 0;
    let left: Vec<&str> = picture.vips.iter().filter(is_left).map(|vip| vip.address.as_str()).collect();
    if !left.is_empty() {
        let remedy = "run it again: a node takes what is free within some seconds; if it stays so, `vestibule vips` on each node shows what \
                      it waits for";
        findings.push(finding(Verdict::Note, "announced by nobody", some(&left), remedy));
    }
    let mut silent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let is_silent = |one: &&CandidateShown| one.silent_seconds >= SILENT_SECONDS;
    for one in picture.candidates.iter().filter(is_silent) {
        silent.entry(&one.device).or_default().push(&one.node);
    }
    for (device, nodes) in silent {
        let remedy = "a node that is off is named, too, until its Lease is gone. If it runs: see whether its device is on this segment, and \
                      whether the switch between both passes EtherType 88b5 and multicast; until something is received of it, nothing moves to it, and if \
                      it receives nothing of this node either, both may answer for one address";
        findings.push(finding(Verdict::Note, format!("silent candidates on {device}"), some(&nodes), remedy));
    }
    if findings.is_empty() {
        let found = format!("{} addresses on its segments have one owner each", picture.vips.len());
        findings.push(finding(Verdict::Ok, "announced addresses", found, ""));
    }
    findings
}

/// Returns the first of these, and how many there are.
fn some(names: &[&str]) -> String {
    let named = names[..names.len().min(NAMED)].join(", ");
    match names.len() {
        0..=NAMED => named,
        all => format!("{named} and {} more", all - NAMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_addresses_of_nobody_and_silent_candidates_are_notes() {
        assert!(findings(&Picture::default()).is_empty(), "nothing is settled with other nodes");
        let vip = |address: &str, node: Option<&str>| VipShown {
            address: address.to_owned(),
            node: node.map(str::to_owned),
            candidates: 2,
            ..VipShown::default()
        };
        let candidate = |node: &str, silent_seconds| CandidateShown {
            node: node.to_owned(),
            device: "eth0".to_owned(),
            silent_seconds,
            ..CandidateShown::default()
        };
        let mut picture = Picture {
            vips: vec![vip("192.0.2.1", Some("a")), vip("192.0.2.2", Some("b"))],
            candidates: vec![candidate("b", 0), candidate("c", 1)],
        };
        let found = findings(&picture);
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Ok));
        picture.vips[0].foreign = Some("02:00:00:00:00:0a".to_owned());
        picture.vips[1].node = None;
        picture.vips.push(VipShown { candidates: 0, ..vip("192.0.2.3", None) });
        picture.candidates[1].silent_seconds = 70;
        let found = findings(&picture);
        let found: Vec<_> =
            found.iter().map(|one| (one.what.as_str(), one.found.as_str(), one.verdict)).collect();
        let expected = [
            (
                "address conflict",
                "the host with link address 02:00:00:00:00:0a answers for 192.0.2.1",
                Verdict::Note,
            ),
            ("announced by nobody", "192.0.2.2", Verdict::Note),
            ("silent candidates on eth0", "c", Verdict::Note),
        ];
        assert_eq!(found, expected);
        picture.vips = (0..20).map(|at| vip(&format!("192.0.2.{at}"), None)).collect();
        assert!(
            findings(&picture)[0].found.ends_with("192.0.2.7 and 12 more"),
            "{}",
            findings(&picture)[0].found
        );
    }
}
