//! which flows are evicted while the map of flows is over four fifths full: first those whose client never acknowledged
//! anything, then half-closed ones, then idle ones whose ends do not answer a probe. A connection whose ends answer is
//! never ended; where there are too many of them, new ones are refused.

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, Flow};

use super::held::Stuck;
use super::trials::is_on_trial;

/// A new connection's first acknowledgement, or the end of one that is being closed, may be in flight for so long.
const SILENT_SECS: u32 = 5;
const HALF_CLOSED_SECS: u32 = 30;
/// A flow with a packet in this time is not idle.
const IDLE_SECS: u32 = 60;

/// The most flows that are evicted in a second: it takes about a tenth of that.
pub(super) const MOST: usize = 10_000;

/// Candidates that are kept at least before those that are not evicted are left out.
const KEPT: usize = 1_000;

/// More flows than are opened in a second: as many as ten cores open.
const OPENED_MAX: u64 = 100_000;

/// Whether a map with this number of slots, which had this number of flows when they were counted, this number of seconds ago, may be crowded
/// before the next second is over.
pub(super) fn may_be_crowded(flows: u64, secs: u32, slots: u32) -> bool {
    flows + OPENED_MAX * (u64::from(secs) + 1) > bound(slots)
}

/// Returns how many flows a map with this number of slots may have before any is evicted.
fn bound(slots: u32) -> u64 {
    u64::from(slots) * 4 / 5
}

/// Returns how many flows are to be evicted.
fn excess(flows: u64, slots: u32) -> usize {
    usize::try_from(flows.saturating_sub(bound(slots))).unwrap_or(MOST)
}

/// The order in which flows are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Ended.
    Stuck(Stuck),
    /// Asked first.
    Idle,
}

/// The first to go.
const SILENT: Rank = Rank::Stuck(Stuck::Silent);

/// A flow that may be evicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    rank: Rank,
    /// Since when, monotonic clock in seconds.
    since_secs: u32,
    pub(super) client: ClientTuple,
    pub(super) flow: Flow,
}

impl Candidate {
    /// Whether its ends are asked before it is ended.
    pub(super) fn is_idle(&self) -> bool {
        self.rank == Rank::Idle
    }
}

/// Entries are removed within this time after their lifetime, which is checked every second.
const REMOVAL_SECS: u32 = 2;

/// Flows that were ended. They are counted as flows as long as their entries linger, but nothing else is to be evicted for them.
#[derive(Debug, Default)]
pub(super) struct Lingering(Vec<(u32, u32)>);

impl Lingering {
    /// Takes up flows that were ended now, the monotonic clock in seconds. Their entries linger for this number of seconds.
    pub(super) fn add(&mut self, flows: u32, now: u32, linger_secs: u32) {
        self.0.retain(|(until, _)| now < *until);
        if flows > 0 {
            self.0.push((now.saturating_add(linger_secs + REMOVAL_SECS), flows));
        }
    }

    /// Returns how many of them may still be counted.
    pub(super) fn count(&self, now: u32) -> usize {
        self.0.iter().filter(|(until, _)| now < *until).map(|(_, flows)| *flows as usize).sum()
    }
}

/// The flows that may be evicted.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    most: usize,
    candidates: Vec<Candidate>,
    /// How many flows may have been silent for long enough, although walks have not known them for so long.
    doubtful: usize,
    /// Whether walks are known to have found every flow that has been silent for long enough.
    knows_silent: bool,
}

/// Since when walks find the map crowded without an end, monotonic clock in seconds.
#[derive(Debug, Default)]
pub(super) struct Began(Option<u32>);

impl Began {
    /// The map was found not to be crowded.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// Begins a walk, for this crowd. The walk before the first one that finds the map crowded may have been minutes ago: what became silent
    /// since then counts as silent from now on, and half-closed flows would go before it.
    pub(super) fn walk(&mut self, crowd: Crowd, now: u32) -> Crowd {
        if !crowd.is_crowded() {
            self.end();
            return crowd;
        }
        let began = *self.0.get_or_insert(now);
        Crowd { knows_silent: now.saturating_sub(began) >= SILENT_SECS, ..crowd }
    }
}

impl Crowd {
    /// For a map with this number of flows and slots. `going`: flows whose ends are being asked already, or that were ended.
    pub(super) fn new(flows: u64, slots: u32, going: usize) -> Self {
        let most = excess(flows, slots).saturating_sub(going).min(MOST);
        Self { most, knows_silent: true, ..Self::default() }
    }

    /// The same crowd where there are only this number of flows any more.
    pub(super) fn now_of(mut self, flows: u64, slots: u32) -> Self {
        self.most = self.most.min(excess(flows, slots));
        self
    }

    /// Whether any flow has to be evicted.
    pub(super) fn is_crowded(&self) -> bool {
        self.most > 0
    }

    /// Takes a flow up as it is now. `stuck`: what it waits for, and for how many seconds; `now`: monotonic clock in
    /// seconds.
    pub(super) fn note(&mut self, client: &ClientTuple, flow: &Flow, stuck: Option<(Stuck, u32)>, now: u32) {
        if flow.connection.state != FLOW_ESTABLISHED {
            return;
        }
        let (rank, secs) = match stuck {
            Some((stuck @ Stuck::Silent, secs)) if secs >= SILENT_SECS => (Rank::Stuck(stuck), secs),
            Some((stuck @ Stuck::HalfClosed, secs)) if secs >= HALF_CLOSED_SECS => (Rank::Stuck(stuck), secs),
            Some((Stuck::Silent, _)) => {
                self.doubtful += 1;
                return;
            }
            _ => (Rank::Idle, now.saturating_sub(flow.seen_secs)),
        };
        if rank == Rank::Idle && (secs < IDLE_SECS || is_on_trial(flow)) {
            return;
        }
        let since_secs = now.saturating_sub(secs);
        self.candidates.push(Candidate { rank, since_secs, client: *client, flow: *flow });
        if self.candidates.len() >= (2 * self.most).max(KEPT) {
            self.keep();
        }
    }

    /// Returns the flows that are evicted.
    pub(super) fn into_first(mut self) -> Vec<Candidate> {
        self.keep();
        if !self.knows_silent {
            // Their turn is before that of all others: the next walk, which comes soon, knows.
            let silent = self.candidates.partition_point(|candidate| candidate.rank == SILENT);
            self.candidates.truncate(silent.max(self.most.saturating_sub(self.doubtful)));
        }
        self.candidates
    }

    /// Keeps the first ones only.
    fn keep(&mut self) {
        self.candidates.sort_unstable_by_key(|candidate| (candidate.rank, candidate.since_secs));
        self.candidates.truncate(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};
    use common::maps::flow::{Connection, FLOW_CLIENT_ON_TRIAL, FLOW_CLOSED};

    const NOW: u32 = 10_000;

    fn client(number: u32) -> ClientTuple {
        let address = Address::v4(number.to_be_bytes());
        ClientTuple::tcp(address, Address::default(), Port::new(1), Port::new(443))
    }

    fn flow(idle_secs: u32) -> Flow {
        let connection = Connection { state: FLOW_ESTABLISHED, ..Connection::zeroed() };
        Flow { connection, seen_secs: NOW - idle_secs, ..Flow::zeroed() }
    }

    /// Numbers of the clients that are evicted.
    fn first(crowd: Crowd) -> Vec<u32> {
        let number = |candidate: Candidate| (1..100).find(|n| client(*n) == candidate.client);
        crowd.into_first().into_iter().filter_map(number).collect()
    }

    #[test]
    fn flows_are_evicted_by_rank_and_then_by_age() {
        let noted = |most| {
            let mut crowd = Crowd { most, knows_silent: true, ..Crowd::default() };
            crowd.note(&client(1), &flow(100), None, NOW);
            crowd.note(&client(2), &flow(500), None, NOW);
            crowd.note(&client(3), &flow(0), Some((Stuck::HalfClosed, 30)), NOW);
            crowd.note(&client(4), &flow(0), Some((Stuck::HalfClosed, 40)), NOW);
            crowd.note(&client(5), &flow(0), Some((Stuck::Silent, 5)), NOW);
            crowd.note(&client(6), &flow(0), Some((Stuck::Silent, 6)), NOW);
            crowd
        };
        assert_eq!(first(noted(9)), [6, 5, 4, 3, 2, 1]);
        assert_eq!(first(noted(3)), [6, 5, 4]);
        assert_eq!(first(noted(0)), [0; 0]);
    }

    #[test]
    fn young_busy_and_closed_flows_stay() {
        let mut crowd = Crowd { most: 100, knows_silent: true, ..Crowd::default() };
        crowd.note(&client(1), &flow(59), None, NOW);
        crowd.note(&client(2), &flow(0), Some((Stuck::Silent, 4)), NOW);
        crowd.note(&client(3), &flow(0), Some((Stuck::HalfClosed, 29)), NOW);
        let mut closed = flow(900);
        closed.connection.state = FLOW_CLOSED;
        crowd.note(&client(4), &closed, Some((Stuck::Silent, 99)), NOW);
        let mut asked = flow(900);
        asked.connection.flags = FLOW_CLIENT_ON_TRIAL;
        crowd.note(&client(5), &asked, None, NOW);
        assert_eq!(first(crowd), [0; 0]);
    }

    /// Small maps went from under half to full between two checks, and nothing was evicted.
    #[test]
    fn a_small_map_may_be_crowded_at_once_and_any_after_a_time() {
        assert!(may_be_crowded(0, 0, 10_000));
        assert!(!may_be_crowded(700_000, 0, 1_000_000) && may_be_crowded(700_001, 0, 1_000_000));
        assert!(!may_be_crowded(7_000_000, 9, 10_000_000) && may_be_crowded(7_000_000, 10, 10_000_000));
        assert!(may_be_crowded(u64::from(u32::MAX), u32::MAX, u32::MAX));
    }

    #[test]
    fn a_map_is_crowded_over_four_fifths() {
        assert!(!Crowd::new(800_000, 1_000_000, 0).is_crowded());
        assert_eq!(Crowd::new(800_007, 1_000_000, 0).most, 7);
        assert_eq!(Crowd::new(800_007, 1_000_000, 5).most, 2, "some are being asked");
        assert!(!Crowd::new(800_007, 1_000_000, 9).is_crowded());
        assert_eq!(Crowd::new(1_000_000, 1_000_000, 0).most, MOST);
    }

    /// An evicted flow's entry lingers for ten seconds, and as many others were evicted in each of them.
    #[test]
    fn flows_that_were_ended_are_counted_until_their_entries_are_removed() {
        let mut lingering = Lingering::default();
        lingering.add(15, NOW, 10);
        lingering.add(0, NOW + 1, 10);
        lingering.add(7, NOW + 2, 10);
        assert_eq!([2, 11, 12, 13, 14].map(|secs| lingering.count(NOW + secs)), [22, 22, 7, 7, 0]);
        lingering.add(1, NOW + 20, 10);
        assert_eq!(lingering.0.len(), 1, "what is over is forgotten");
    }

    /// Among millions of flows, the last walk may have been minutes ago.
    #[test]
    fn what_became_silent_since_the_last_walk_goes_before_half_closed_flows() {
        let mut began = Began::default();
        // `silent` were found silent first by the walk at `NOW`; two flows are too many.
        let mut walk = |secs, silent| {
            let now = NOW + secs;
            let mut crowd = began.walk(Crowd::new(802, 1_000, 0), now);
            for number in 1..=silent {
                crowd.note(&client(number), &flow(0), Some((Stuck::Silent, secs)), now);
            }
            crowd.note(&client(8), &flow(0), Some((Stuck::HalfClosed, 40 + secs)), now);
            crowd.note(&client(9), &flow(90), None, now);
            first(crowd)
        };
        assert_eq!([walk(0, 3), walk(4, 2)], [[0; 0]; 2]);
        assert_eq!(walk(4, 1), [8], "no more wait than may be silent");
        assert_eq!(walk(5, 1), [1, 8]);
        // A client that goes on opening such connections does not keep the others here.
        let mut later = began.walk(Crowd::new(802, 1_000, 0), NOW + 6);
        later.note(&client(1), &flow(0), Some((Stuck::Silent, 1)), NOW + 6);
        later.note(&client(2), &flow(0), Some((Stuck::Silent, 1)), NOW + 6);
        later.note(&client(8), &flow(0), Some((Stuck::HalfClosed, 40)), NOW + 6);
        assert_eq!(first(later), [8]);
    }

    /// Between two crowds, walks may be minutes apart again.
    #[test]
    fn another_crowd_begins_after_one_has_ended() {
        let mut began = Began::default();
        let crowd = || Crowd::new(802, 1_000, 0);
        assert!(!began.walk(crowd(), NOW).knows_silent && began.walk(crowd(), NOW + 90).knows_silent);
        began.end();
        assert!(!began.walk(crowd(), NOW + 180).knows_silent);
        assert!(began.walk(Crowd::new(800, 1_000, 0), NOW + 190).knows_silent);
        assert!(!began.walk(crowd(), NOW + 200).knows_silent);
    }

    /// However many flows there are, those noted first are not favoured.
    #[test]
    fn the_oldest_of_very_many_are_evicted() {
        let mut crowd = Crowd::new(1_000_000, 1_000_000, 0);
        for number in 1..=50_000 {
            crowd.note(&client(number), &flow(60 + number / 10), None, NOW);
        }
        let oldest = crowd.into_first();
        assert_eq!(oldest.len(), MOST);
        assert!(oldest.iter().all(|candidate| candidate.flow.seen_secs <= NOW - 60 - 4_000));
    }
}
