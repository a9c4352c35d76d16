//! Whether a controller leads: only then new and changed routes are settled.

use super::{Finding, Verdict, finding};
use crate::controller::leader::{self, Leader};
use std::time::Duration;

/// The time limit for the API server's answer.
const LIMIT: Duration = Duration::from_secs(4);
/// A leader that has not renewed its Lease for this many seconds is none.
const RENEWED_SECS: i64 = 30;

/// Reads the leader's Lease, if this is the pod of an agent.
pub(super) fn look() -> Option<Vec<Finding>> {
    let namespace = std::env::var("POD_NAMESPACE").ok()?;
    Some(match leader::read(&namespace, LIMIT) {
        Ok(leader) => judged(leader),
        Err(error) => vec![finding(
            Verdict::Note,
            "controller",
            format!("its Lease cannot be read: {error}"),
            "see whether the API server answers; what the node holds serves on",
        )],
    })
}

fn judged(leader: Option<Leader>) -> Vec<Finding> {
    let found = match leader {
        Some(Leader { holder, renewed_secs, unmarked }) if renewed_secs <= RENEWED_SECS => {
            let leads = finding(Verdict::Ok, "controller", format!("{holder} leads"), "");
            let waits = unmarked.map(|why| {
                let remedy = "until then agents that start serve what they saved, and new and changed routes wait; all else goes on";
                finding(Verdict::Note, "claims", format!("not all are written {why}"), remedy)
            });
            return [leads].into_iter().chain(waits).collect();
        }
        Some(Leader { holder, renewed_secs, .. }) => {
            format!("{holder} led, and has not renewed its Lease for {renewed_secs} s")
        }
        None => "none leads".to_owned(),
    };
    let remedy = "see the pods of the Deployment vestibule-controller; until one leads, routes that are new or changed wait, and all \
                  else goes on";
    vec![finding(Verdict::Note, "controller", found, remedy)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_renews_its_lease() {
        let found = |leader: Option<(&str, i64)>| {
            let leader = leader.map(|(holder, renewed_secs)| Leader {
                holder: holder.into(),
                renewed_secs,
                unmarked: None,
            });
            let all = judged(leader);
            let [Finding { verdict, found, .. }] = all.as_slice() else { panic!("{} findings", all.len()) };
            (*verdict, found.clone())
        };
        assert_eq!(found(Some(("c_1", 30))), (Verdict::Ok, "c_1 leads".into()));
        assert_eq!(found(Some(("c_1", -9))).0, Verdict::Ok, "its clock is ahead");
        let silent = found(Some(("c_1", 31)));
        assert_eq!(silent, (Verdict::Note, "c_1 led, and has not renewed its Lease for 31 s".into()));
        assert_eq!(found(None), (Verdict::Note, "none leads".into()));
    }

    #[test]
    fn what_the_leader_waits_for_is_a_note() {
        let unmarked = Some("since 2026-11-21T10:00:00Z: Claim x cannot be written: 403".to_owned());
        let all = judged(Some(Leader { holder: "c_1".into(), renewed_secs: 3, unmarked }));
        let [_, waits] = all.as_slice() else { panic!("{} findings", all.len()) };
        assert_eq!((waits.verdict, waits.what.as_str()), (Verdict::Note, "claims"));
        let what = "not all are written since 2026-11-21T10:00:00Z: Claim x cannot be written: 403";
        assert_eq!(waits.found, what);
    }
}
