//! Why the mark is missing, for people: what it waits for may be one webhook, or one node.

use super::{Claims, PRUNED, SETTLED};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The most Claims that are named.
const NAMED: usize = 3;
/// What may help.
const REMEDY: &str = "see which webhook or quota refuses it, or does not answer";

/// What the mark waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::controller) struct Waits {
    /// Since when it is missing though Claims are settled.
    pub(in crate::controller) since: Instant,
    /// What it waits for: the first Claims, and what they wait for.
    pub(in crate::controller) why: String,
    /// The same for an Event, if it has lasted.
    pub(in crate::controller) event: Option<String>,
}

impl Waits {
    /// While the mark is missing, judging is repeated this often: what it waits for may end by time alone.
    pub(in crate::controller) const LOOK: Duration = Duration::from_secs(10);
}

impl Claims {
    /// Returns what the mark waits for; `None`: it is there, or it is not known yet what all Claims should say.
    pub(in crate::controller) fn waits(&mut self, now: Instant) -> Option<Waits> {
        if self.mark.is_there() || self.stored.is_none() || !self.is_settled {
            self.mark.rest();
            return None;
        }
        let why = self.why_unmarked(now);
        let (since, event) = self.mark.waits(&why, now);
        Some(Waits { since, why, event })
    }

    fn why_unmarked(&self, now: Instant) -> String {
        // One may be in both.
        let open: BTreeSet<&String> = self.due.iter().chain(&self.losses).collect();
        let open = open.into_iter().filter(|name| self.differs(name) && !self.is_done(name));
        let (failing, others): (Vec<&String>, Vec<&String>) = open.partition(|name| self.flights.fails(name));
        let mut all: Vec<String> = failing.iter().take(NAMED).map(|name| self.why_waited_for(name)).collect();
        let more = failing.len().saturating_sub(NAMED);
        if more > 0 {
            all.push(format!("and {more} more Claims"));
        }
        match others.len() {
            0 => {}
            1 => all.push("1 Claim is not written yet".to_owned()),
            count => all.push(format!("{count} Claims are not written yet")),
        }
        if all.is_empty() {
            all.push(match (self.flights.why(SETTLED), self.mark.quiet_until(now)) {
                (Some(why), _) => {
                    format!("Claim {SETTLED}, the last one, cannot be written: {why}; {REMEDY}")
                }
                (None, Some(_)) => "another client has just deleted Claims, and may go on".to_owned(),
                (None, None) => format!("Claim {SETTLED}, the last one, is being written"),
            });
        }
        all.join("; ")
    }

    /// Says of one whose write fails why it is waited for.
    fn why_waited_for(&self, name: &String) -> String {
        let is_stored = self.is_stored(name);
        let (whose, what) = match self.wanted.get(name) {
            None => (", which nobody asks for any more,".to_owned(), "deleted"),
            Some((claim, _)) => {
                let whose = claim.origin.object().map(|object| format!(" of {object}")).unwrap_or_default();
                (whose, if is_stored { "changed" } else { "written" })
            }
        };
        let why = self.flights.why(name);
        let why = why.as_deref().unwrap_or(if self.flights.is_pruned(name) { PRUNED } else { "no answer" });
        let waited_for = match (is_stored, &self.served.on_nodes, &self.served.in_statuses) {
            _ if !self.flights.is_given_up(name) => {
                return format!("Claim {name}{whose} cannot be {what}: {why}; {REMEDY}");
            }
            (true, ..) => "nodes would serve what it says, which others may have by now",
            (false, Some(why), _) | (false, None, Some(why)) => why,
            (false, None, None) => "no other Claim can be written either",
        };
        format!("Claim {name}{whose} cannot be {what}: {why}, and it is waited for: {waited_for}; {REMEDY}")
    }
}
