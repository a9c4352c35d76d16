//! Whether a controller leads: only then new and changed routes are settled.

use super::{Finding, Verdict, finding};
use crate::controller::leader::{self, Leader};
use std::time::Duration;

/// The time limit for the API server's answer.
const LIMIT: Duration = Duration::from_secs(4);
/// A leader that has not renewed its Lease for this many seconds is none.
const RENEWED_SECS: i64 = 30;

/// Reads the leader's Lease, if this is the pod of an agent.
pub(super) fn look() -> Option<Finding> {
    let namespace = std::env::var("POD_NAMESPACE").ok()?;
    Some(match leader::read(&namespace, LIMIT) {
        Ok(leader) => judged(leader),
        Err(error) => finding(
            Verdict::Note,
            "controller",
            format!("its Lease cannot be read: {error}"),
            "see whether the API server answers; what the node holds serves on",
        ),
    })
}

fn judged(leader: Option<Leader>) -> Finding {
    let found = match leader {
        Some(Leader { holder, renewed_secs }) if renewed_secs <= RENEWED_SECS => {
            return finding(Verdict::Ok, "controller", format!("{holder} leads"), "");
        }
        Some(Leader { holder, renewed_secs }) => {
            format!("{holder} led, and has not renewed its Lease for {renewed_secs} s")
        }
        None => "none leads".to_owned(),
    };
    let remedy = "see the pods of the Deployment vestibule-controller; until one leads, routes that are new or changed wait, and all \
                  else goes on";
    finding(Verdict::Note, "controller", found, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_renews_its_lease() {
        let found = |leader: Option<(&str, i64)>| {
            let leader = leader.map(|(holder, renewed_secs)| Leader { holder: holder.into(), renewed_secs });
            let Finding { verdict, found, .. } = judged(leader);
            (verdict, found)
        };
        assert_eq!(found(Some(("c_1", 30))), (Verdict::Ok, "c_1 leads".into()));
        assert_eq!(found(Some(("c_1", -9))).0, Verdict::Ok, "its clock is ahead");
        let silent = found(Some(("c_1", 31)));
        assert_eq!(silent, (Verdict::Note, "c_1 led, and has not renewed its Lease for 31 s".into()));
        assert_eq!(found(None), (Verdict::Note, "none leads".into()));
    }
}
