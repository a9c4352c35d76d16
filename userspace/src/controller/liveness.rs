//! Which agents are alive: those whose Lease changes. Pure. A Lease is judged by the local time between
//! successful looks, so neither clock skew nor an unreachable API server makes an agent look dead.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval between two looks.
pub(super) const PERIOD: Duration = Duration::from_secs(2);
/// Validity of a Lease that does not state any.
const DURATION: Duration = Duration::from_secs(10);
/// Upper bound of the time that counts between two looks.
const LOOK_MAX: Duration = Duration::from_secs(4);
/// How long a deleted Lease is remembered.
const GONE_MAX: Duration = Duration::from_secs(3600);

/// An agent's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AgentLease {
    pub(super) node: String,
    /// `holderIdentity`; empty: the agent released it.
    pub(super) holder: String,
    /// `renewTime` as written.
    pub(super) renewed: String,
    /// `leaseDurationSeconds`.
    pub(super) duration: Duration,
}

/// What was seen of all agents' Leases.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    seen: BTreeMap<String, Seen>,
    looked: Option<Instant>,
    /// Total time covered by looks.
    watched: Duration,
}

#[derive(Debug)]
struct Seen {
    lease: AgentLease,
    /// How long it has not changed, counting only time covered by looks.
    silent: Duration,
}

impl Liveness {
    /// Takes the list of all agents' Leases. Returns whether the set of live agents changed; always true the
    /// first time.
    pub(super) fn looked(&mut self, leases: impl IntoIterator<Item = AgentLease>, now: Instant) -> bool {
        let passed = self.looked.map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        let passed = passed.min(LOOK_MAX);
        self.watched += passed;
        let before: Vec<String> = self.live().map(str::to_owned).collect();
        let is_first = self.looked.replace(now).is_none();
        let mut old = std::mem::take(&mut self.seen);
        for lease in leases {
            let silent = match old.remove(&lease.node) {
                Some(seen) if seen.lease == lease => seen.silent + passed,
                _ => Duration::ZERO,
            };
            self.seen.insert(lease.node.clone(), Seen { lease, silent });
        }
        for (node, Seen { mut lease, silent }) in old {
            let silent = if lease.holder.is_empty() { silent + passed } else { Duration::ZERO };
            lease.holder.clear();
            if silent < GONE_MAX {
                self.seen.insert(node, Seen { lease, silent });
            }
        }
        is_first || !self.live().eq(before.iter().map(String::as_str))
    }

    /// Whether Leases have been listed at all.
    pub(super) fn is_known(&self) -> bool {
        self.looked.is_some()
    }

    /// Nodes whose agents are alive.
    pub(super) fn live(&self) -> impl Iterator<Item = &str> {
        let lives = |seen: &&Seen| !seen.lease.holder.is_empty() && seen.silent < good_for(&seen.lease);
        self.seen.values().filter(lives).map(|seen| seen.lease.node.as_str())
    }

    /// Whether the node's agent has been silent, or without a Lease, for at least this long.
    pub(super) fn is_silent_for(&self, node: &str, least: Duration) -> bool {
        self.seen.get(node).map_or(self.watched, |seen| seen.silent) >= least
    }
}

fn good_for(lease: &AgentLease) -> Duration {
    match lease.duration {
        Duration::ZERO => DURATION,
        duration => duration.min(6 * DURATION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(node: &str, renewed: u32) -> AgentLease {
        AgentLease {
            node: node.to_owned(),
            holder: format!("agent-of-{node}"),
            renewed: renewed.to_string(),
            duration: DURATION,
        }
    }

    fn live(liveness: &Liveness) -> Vec<&str> {
        liveness.live().collect()
    }

    #[test]
    fn one_that_stops_is_dead_after_its_lease_ended() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        assert!(!liveness.is_known());
        for second in (0..40).step_by(2) {
            // The node's clock is years off; all that matters is that it advances.
            let now = start + Duration::from_secs(second);
            let second = u32::try_from(second).unwrap();
            let changed = liveness.looked([lease("a", second), lease("b", second.min(10))], now);
            let expected: &[&str] = if second < 20 { &["a", "b"] } else { &["a"] };
            assert_eq!(live(&liveness), expected, "at {second}");
            assert_eq!(changed, second == 0 || second == 20, "at {second}");
        }
        assert!(liveness.is_silent_for("b", Duration::from_secs(25)));
        assert!(!liveness.is_silent_for("a", Duration::from_secs(1)));
        assert!(!liveness.is_silent_for("c", Duration::from_secs(39)), "nobody looked for so long");
        assert!(liveness.is_silent_for("c", Duration::from_secs(38)), "no Lease at all");
    }

    #[test]
    fn an_api_server_that_was_away_kills_nobody() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        liveness.looked([lease("a", 1)], start);
        // Ten minutes later, after an outage of the API server: the agent could not renew its Lease either.
        let back = start + Duration::from_secs(600);
        assert!(!liveness.looked([lease("a", 1)], back));
        assert_eq!(live(&liveness), ["a"]);
        assert!(!liveness.looked([lease("a", 2)], back + PERIOD));
    }

    #[test]
    fn a_lease_given_back_or_gone_is_no_agent() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        liveness.looked([lease("a", 1), lease("b", 1)], start);
        let given_back = AgentLease { holder: String::new(), ..lease("a", 2) };
        assert!(liveness.looked([given_back.clone()], start + PERIOD));
        assert_eq!(live(&liveness), [""; 0]);
        for look in 2..=7 {
            liveness.looked([given_back.clone()], start + look * PERIOD);
        }
        assert!(liveness.is_silent_for("a", 5 * PERIOD) && liveness.is_silent_for("b", 5 * PERIOD));
        assert!(!liveness.is_silent_for("a", 8 * PERIOD) && !liveness.is_silent_for("b", 8 * PERIOD));
        liveness.looked([lease("b", 9)], start + 8 * PERIOD);
        assert_eq!(live(&liveness), ["b"]);
    }
}
