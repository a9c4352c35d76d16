//! What this node's agent cannot follow, as it says itself.

use super::{Finding, Verdict, finding};
use crate::admin;
use crate::cli::probe::SOCKET;
use crate::controller::keys::KEYS;
use crate::node::NODE_STATE;
use std::path::Path;
use std::time::Duration;

/// The time limit for the agent's answer.
const LIMIT: Duration = Duration::from_secs(4);

/// Asks the agent, if one answers here.
pub(super) fn look() -> Vec<Finding> {
    let answer = admin::ask(Path::new(SOCKET), "/readyz", LIMIT);
    answer.map(|answer| findings(&answer.text)).unwrap_or_default()
}

fn findings(text: &str) -> Vec<Finding> {
    let saved = text.lines().filter_map(|line| line.strip_prefix("serves: "));
    let saved = saved.map(|what| {
        let remedy = "what is new or changed waits until the agent has read all Claims: see whether it may list and watch them, and what \
                      the finding `controller` says";
        finding(Verdict::Note, "claims", format!("the node serves {what}"), remedy)
    });
    saved.chain(of_sources(text)).collect()
}

fn of_sources(text: &str) -> Vec<Finding> {
    let stale: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("stale: ")).collect();
    if stale.is_empty() {
        return vec![finding(Verdict::Ok, "sources", "all that the agent reads is up to date", "")];
    }
    let note = |source: &str| {
        let remedy = match source.split(':').next() {
            Some(KEYS) => {
                "other nodes may not accept this node's cookies, and a connection that a router moves as it begins is refused: see \
                 whether the agent may list and watch Secret vestibule-keys, and the log of the leading controller, which writes it"
            }
            Some(NODE_STATE) => {
                "what this node does not hold cannot be published, and conditions wait for it: see whether the agent may create and \
                 update NodeStates, and which webhook or quota refuses it"
            }
            _ => "see whether the API server answers and whether the agent may list and watch it",
        };
        finding(Verdict::Note, "stale", source, remedy)
    };
    stale.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_cannot_follow_is_a_note() {
        let found = findings("ok\nstale: services: 403 Forbidden; the last state serves on\n");
        let [finding] = found.as_slice() else { panic!("{} findings", found.len()) };
        assert_eq!((finding.verdict, finding.what.as_str()), (Verdict::Note, "stale"));
        assert!(finding.found.starts_with("services: 403"), "{}", finding.found);
        let found = findings("ok\nstale: nodestate: 403 Forbidden; the last state serves on\n");
        assert!(found[0].remedy.contains("may create and update NodeStates"), "{}", found[0].remedy);
        let found = findings("ok\nstale: keys: 403 Forbidden; the last state serves on\n");
        assert!(found[0].remedy.contains("list and watch Secret vestibule-keys"), "{}", found[0].remedy);
        assert_eq!(findings("ok\n")[0].verdict, Verdict::Ok);
        let found = findings("not ok\nnot synced\nserves: a saved state of unknown age\n");
        assert_eq!((found[0].verdict, found[0].what.as_str()), (Verdict::Note, "claims"));
        assert_eq!(found[0].found, "the node serves a saved state of unknown age");
        assert_eq!(findings("not ok\nnot synced\n").len(), 1);
    }
}
