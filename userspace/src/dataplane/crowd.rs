//! which flows are evicted while the map of flows is over four fifths full: first those whose client never acknowledged
//! anything, then half-closed ones, then idle ones whose ends do not answer a probe. A connection whose ends answer is
//! never ended; where there are too many of them, new ones are refused.

use std::collections::HashSet;

use common::maps::event::Expiry;
use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, Flow};
use common::reason::Reason;

use super::held::Stuck;
use super::request::of_held;
use super::trials::is_on_trial;

/// A new connection's first acknowledgement, or the end of one that is being closed, may be in flight for so long.
const SILENT_SECS: u32 = 5;
const HALF_CLOSED_SECS: u32 = 30;
/// A flow with a packet in this time is not idle.
const IDLE_SECS: u32 = 60;

/// The most idle flows whose ends are asked after a walk: it takes about a tenth of a second. Those without progress are not asked, and as
/// many of them are ended as are too many.
pub(super) const IDLE_MAX: usize = 10_000;

/// Room beyond 125 % of what is evicted, before the surplus is dropped; as much as is evicted, where that is less.
const KEPT: usize = 1_000;
/// The least part of what a walk evicts that each of many crowds has: below that, memory is no concern.
const SHARE_MIN: usize = 16;
/// Flows that are ended at once, before orders and what is waiting have their turn: it takes less than a tenth of a second of CPU.
const PIECE: usize = 10_000;

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

/// Returns how many flows are to be evicted: a fifth of the slots at most, also where a range of ports was made smaller than what is taken of it.
fn excess(flows: u64, slots: u32) -> usize {
    flows.min(slots.into()).saturating_sub(bound(slots)) as usize
}

/// A flow without progress that may be evicted.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    stuck: Stuck,
    /// Since when, monotonic clock in seconds.
    since_secs: u32,
    /// Ends it.
    order: Expiry,
}

impl Waiting {
    fn turn(&self) -> (Stuck, u32) {
        (self.stuck, self.since_secs)
    }
}

/// An idle flow that may be evicted.
#[derive(Clone, Copy, Debug)]
struct Idle {
    seen_secs: u32,
    client: ClientTuple,
    flow: Flow,
}

impl Idle {
    fn turn(&self) -> u32 {
        self.seen_secs
    }
}

/// The flows that are evicted, in their order.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    /// Those without progress, which are ended.
    pub(super) stuck: Vec<Expiry>,
    /// Idle ones, whose ends are asked before one is ended.
    pub(super) idle: Vec<(ClientTuple, Flow)>,
}

impl Evicted {
    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.stuck.len() + self.idle.len()
    }

    /// Takes up more of them.
    pub(super) fn append(&mut self, mut more: Self) {
        self.stuck.append(&mut more.stuck);
        self.idle.append(&mut more.idle);
    }

    /// Takes those off that are in `others`, too.
    pub(super) fn leave_out(&mut self, others: &Self) {
        let others: HashSet<&ClientTuple> = others.clients().collect();
        self.stuck.retain(|order| !others.contains(&order.client));
        self.idle.retain(|(client, _)| !others.contains(client));
    }

    /// Returns their clients.
    pub(super) fn clients(&self) -> impl Iterator<Item = &ClientTuple> {
        let stuck = self.stuck.iter().map(|order| &order.client);
        stuck.chain(self.idle.iter().map(|(client, _)| client))
    }
}

/// Adds a candidate. Of many more than `most`, only the first ones are kept: so the memory is that of a quarter more, and [`KEPT`].
fn push<T, K: Ord>(kept: &mut Vec<T>, candidate: T, most: usize, turn: impl Fn(&T) -> K) {
    let room = most.saturating_add(most / 4).saturating_add(most.clamp(SHARE_MIN, KEPT));
    if kept.len() >= room {
        keep(kept, most, turn);
    }
    if kept.len() == kept.capacity() {
        kept.reserve_exact(kept.len().max(16).min(room - kept.len()));
    }
    kept.push(candidate);
}

/// Keeps the first ones only, in no order.
fn keep<T, K: Ord>(kept: &mut Vec<T>, most: usize, turn: impl Fn(&T) -> K) {
    if kept.len() > most {
        kept.select_nth_unstable_by_key(most, turn);
        kept.truncate(most);
    }
}

/// Entries are removed within this time after their lifetime, which is checked every second.
const REMOVAL_SECS: u32 = 2;

/// Flows that are being ended, or were. They are counted as flows as long as their entries linger, but nothing else is to be evicted for them.
#[derive(Debug, Default)]
pub(super) struct Going {
    /// Until when entries linger, and how many.
    lingering: Vec<(u32, u32)>,
    /// What is still to be ended of what a walk evicts.
    rest: Vec<Expiry>,
}

impl Going {
    /// Takes up flows that were ended now, the monotonic clock in seconds. Their entries linger for this number of seconds.
    pub(super) fn add(&mut self, flows: u32, now: u32, linger_secs: u32) {
        self.lingering.retain(|(until, _)| now < *until);
        if flows > 0 {
            self.lingering.push((now.saturating_add(linger_secs + REMOVAL_SECS), flows));
        }
    }

    /// Takes up what a walk evicts.
    pub(super) fn evict(&mut self, orders: Vec<Expiry>) {
        self.rest = orders;
    }

    /// Returns the next flows that are to be ended, at most [`PIECE`].
    pub(super) fn next(&mut self) -> Vec<Expiry> {
        self.rest.drain(..self.rest.len().min(PIECE)).collect()
    }

    /// Whether any are still to be ended.
    pub(super) fn is_evicting(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Leaves those to the next walk that are still to be ended.
    pub(super) fn give_up(&mut self) {
        self.rest = Vec::new();
    }

    /// Returns how many of them may still be counted. No more linger than have room in the ring of closed flows, `closed`: where it is full,
    /// the oldest are removed early.
    pub(super) fn count(&self, now: u32, closed: u32) -> usize {
        let lingering = self.lingering.iter().filter(|(until, _)| now < *until);
        let lingering: u64 = lingering.map(|(_, flows)| u64::from(*flows)).sum();
        self.rest.len() + lingering.min(closed.into()) as usize
    }
}

/// Returns how many flows a walk ends at most: half of the ring of closed flows, so that one walk removes few records of other connections
/// early. Walks that follow each other in a crowded map fill it, and then each removes those of the walks before, and others, early.
pub(super) fn ended_max(closed: u32) -> usize {
    closed as usize / 2
}

/// The flows that may be evicted. Each without progress takes 64 bytes, and each idle one 172. A walk ends a sixteenth of the slots at most, or 512
/// in a small map, so those without progress take 5 for each slot of the map, and idle ones 2 MB. Where the ports of backends run short, their
/// crowds share as many among them, each at least a few, and take up to twice as much together, with the usual range of ports.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    most: usize,
    /// The most idle ones.
    idle_max: usize,
    stuck: Vec<Waiting>,
    idle: Vec<Idle>,
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
    /// For a map with this number of flows and slots. `going`: flows whose ends are being asked already, or that were ended; `closed`: slots of
    /// the ring of closed flows.
    pub(super) fn new(flows: u64, slots: u32, going: usize, closed: u32) -> Self {
        let most = excess(flows, slots).saturating_sub(going).min(ended_max(closed));
        Self { most, idle_max: IDLE_MAX, knows_silent: true, ..Self::default() }
    }

    /// The same crowd where it is one of this number, which share what a walk may evict.
    pub(super) fn one_of(mut self, crowds: usize, closed: u32) -> Self {
        let share = |all: usize| (all / crowds.max(1)).max(SHARE_MIN);
        self.most = self.most.min(share(ended_max(closed)));
        self.idle_max = share(IDLE_MAX);
        self
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
        match stuck {
            Some((Stuck::Silent, secs)) if secs < SILENT_SECS => self.doubtful += 1,
            Some((stuck, secs)) if stuck == Stuck::Silent || secs >= HALF_CLOSED_SECS => {
                let order = of_held(client, flow, Reason::ExpireCrowded);
                let waiting = Waiting { stuck, since_secs: now.saturating_sub(secs), order };
                push(&mut self.stuck, waiting, self.most, Waiting::turn);
            }
            _ if now.saturating_sub(flow.seen_secs) < IDLE_SECS || is_on_trial(flow) => {}
            _ => {
                let idle = Idle { seen_secs: flow.seen_secs, client: *client, flow: *flow };
                push(&mut self.idle, idle, self.most.min(self.idle_max), Idle::turn);
            }
        }
    }

    /// Returns the flows that are evicted.
    pub(super) fn into_first(mut self) -> Evicted {
        keep(&mut self.stuck, self.most, Waiting::turn);
        self.stuck.sort_unstable_by_key(Waiting::turn);
        let mut most = self.most;
        if !self.knows_silent {
            // Their turn is before that of all others: the next walk, which comes soon, knows.
            let silent = self.stuck.partition_point(|waiting| waiting.stuck == Stuck::Silent);
            most = silent.max(self.most.saturating_sub(self.doubtful));
        }
        self.stuck.truncate(most);
        let idle_max = (most - self.stuck.len()).min(self.idle_max);
        keep(&mut self.idle, idle_max, Idle::turn);
        self.idle.sort_unstable_by_key(Idle::turn);
        Evicted {
            stuck: self.stuck.into_iter().map(|waiting| waiting.order).collect(),
            idle: self.idle.into_iter().map(|idle| (idle.client, idle.flow)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};
    use common::maps::flow::{Connection, FLOW_CLIENT_ON_TRIAL, FLOW_CLOSED};

    const NOW: u32 = 10_000;
    /// A ring of closed flows that bounds nothing.
    const ALL: u32 = u32::MAX;

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
        let number = |found: &ClientTuple| (1..100).find(|n| client(*n) == *found);
        crowd.into_first().clients().filter_map(number).collect()
    }

    #[test]
    fn flows_are_evicted_by_rank_and_then_by_age() {
        let noted = |most| {
            let mut crowd = Crowd { most, idle_max: IDLE_MAX, knows_silent: true, ..Crowd::default() };
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
        let mut crowd = Crowd { most: 100, idle_max: IDLE_MAX, knows_silent: true, ..Crowd::default() };
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
        assert!(!Crowd::new(800_000, 1_000_000, 0, ALL).is_crowded());
        assert_eq!(Crowd::new(800_007, 1_000_000, 0, ALL).most, 7);
        assert_eq!(Crowd::new(800_007, 1_000_000, 5, ALL).most, 2, "some are being asked");
        assert!(!Crowd::new(800_007, 1_000_000, 9, ALL).is_crowded());
        assert_eq!(
            [1_000_000, u64::MAX].map(|flows| Crowd::new(flows, 1_000_000, 0, ALL).most),
            [200_000; 2]
        );
    }

    /// They went through the ring of closed flows in one walk, and pushed the records of everybody else out.
    #[test]
    fn a_walk_ends_half_of_what_the_ring_of_closed_flows_has_room_for() {
        assert_eq!(Crowd::new(1_000_000, 1_000_000, 0, 125_000).most, 62_500);
        assert_eq!(Crowd::new(1_000_000, 1_000_000, 199_000, 125_000).most, 1_000);
        assert_eq!(Crowd::new(1_000_000, 1_000_000, 0, 125_000).one_of(5, 125_000).most, 12_500);
    }

    /// Each of them kept as many as the map's, which is for all.
    #[test]
    fn crowds_share_the_memory_of_one() {
        for (crowds, asked, kept) in [(1, 10_000, 13_500), (20, 500, 1_125), (100_000, SHARE_MIN, 36)] {
            let mut crowd = Crowd::new(1_000_000, 1_000_000, 0, 125_000).one_of(crowds, 125_000);
            for number in 0..20_000 {
                crowd.note(&client(number), &flow(900), None, NOW);
            }
            assert_eq!(crowd.idle.capacity(), kept);
            assert_eq!(crowd.into_first().idle.len(), asked);
        }
    }

    /// An evicted flow's entry lingers for ten seconds, and as many others were evicted in each of them.
    #[test]
    fn flows_that_were_ended_are_counted_until_their_entries_are_removed() {
        let mut going = Going::default();
        going.add(15, NOW, 10);
        going.add(0, NOW + 1, 10);
        going.add(7, NOW + 2, 10);
        let count = |going: &Going| [2, 11, 12, 13, 14].map(|secs| going.count(NOW + secs, ALL));
        assert_eq!(count(&going), [22, 22, 7, 7, 0]);
        assert_eq!(going.count(NOW + 2, 20), 20, "the ring has removed two early");
        going.add(1, NOW + 20, 10);
        assert_eq!(going.lingering.len(), 1, "what is over is forgotten");
    }

    /// Nothing else was done for seconds.
    #[test]
    fn very_many_are_ended_in_pieces() {
        let mut going = Going::default();
        let order = |number| of_held(&client(number), &flow(0), Reason::ExpireCrowded);
        going.evict((0..25_000).map(order).collect());
        let mut clients = Vec::new();
        for (ended, left) in [(10_000, 15_000), (10_000, 5_000), (5_000, 0), (0, 0)] {
            let piece = going.next();
            assert_eq!((piece.len(), going.count(NOW, 0)), (ended, left), "no others go for them");
            assert_eq!(going.is_evicting(), left > 0);
            clients.extend(piece.into_iter().map(|order| order.client));
        }
        assert!(clients.into_iter().eq((0..25_000).map(client)), "each once, the oldest first");
    }

    /// Among millions of flows, the last walk may have been minutes ago.
    #[test]
    fn what_became_silent_since_the_last_walk_goes_before_half_closed_flows() {
        let mut began = Began::default();
        // `silent` were found silent first by the walk at `NOW`; two flows are too many.
        let mut walk = |secs, silent| {
            let now = NOW + secs;
            let mut crowd = began.walk(Crowd::new(802, 1_000, 0, ALL), now);
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
        let mut later = began.walk(Crowd::new(802, 1_000, 0, ALL), NOW + 6);
        later.note(&client(1), &flow(0), Some((Stuck::Silent, 1)), NOW + 6);
        later.note(&client(2), &flow(0), Some((Stuck::Silent, 1)), NOW + 6);
        later.note(&client(8), &flow(0), Some((Stuck::HalfClosed, 40)), NOW + 6);
        assert_eq!(first(later), [8]);
    }

    /// Between two crowds, walks may be minutes apart again.
    #[test]
    fn another_crowd_begins_after_one_has_ended() {
        let mut began = Began::default();
        let crowd = || Crowd::new(802, 1_000, 0, ALL);
        assert!(!began.walk(crowd(), NOW).knows_silent && began.walk(crowd(), NOW + 90).knows_silent);
        began.end();
        assert!(!began.walk(crowd(), NOW + 180).knows_silent);
        assert!(began.walk(Crowd::new(800, 1_000, 0, ALL), NOW + 190).knows_silent);
        assert!(!began.walk(crowd(), NOW + 200).knows_silent);
    }

    /// However many flows there are, those noted first are not favoured.
    #[test]
    fn the_longest_idle_of_very_many_are_asked() {
        let mut crowd = Crowd::new(1_000_000, 1_000_000, 0, ALL);
        for number in 1..=50_000 {
            crowd.note(&client(number), &flow(60 + number / 10), None, NOW);
            assert!(crowd.idle.capacity() <= IDLE_MAX * 5 / 4 + KEPT);
        }
        let first = crowd.into_first();
        assert_eq!((first.stuck.len(), first.idle.len()), (0, IDLE_MAX), "each costs a probe to both ends");
        assert!(first.idle.iter().all(|(_, flow)| flow.seen_secs <= NOW - 60 - 4_000));
    }

    /// No more than 10,000 went with a walk, so 14,000 a second from four sources filled the map.
    #[test]
    fn all_that_are_too_many_are_ended_at_once_where_their_clients_never_acknowledged_anything() {
        let mut crowd = Crowd::new(1_000_000, 1_000_000, 0, ALL);
        for number in 0..400_000 {
            // The later, the longer; and those that are idle go after them.
            crowd.note(&client(number), &flow(0), Some((Stuck::Silent, 5 + number / 100)), NOW);
            crowd.note(&client(number), &flow(900), None, NOW);
        }
        assert_eq!([size_of::<Waiting>(), size_of::<Idle>()], [64, 172]);
        assert!(crowd.stuck.capacity() <= 250_000 + KEPT);
        let first = crowd.into_first();
        assert_eq!((first.stuck.len(), first.idle.len()), (200_000, 0));
        let mut ended: Vec<_> = first.stuck.iter().map(|order| order.client).collect();
        ended.sort_unstable();
        assert!(ended.into_iter().eq((200_000..400_000).map(client)), "the oldest, each once");
        assert!(first.stuck.iter().all(|order| order.reason == Reason::ExpireCrowded as u32));
    }

    /// Half-closed flows need no probe either, and the rest is made up of idle ones.
    #[test]
    fn half_closed_flows_are_ended_with_them_and_some_of_the_idle_ones_asked() {
        let mut crowd = Crowd::new(1_000_000, 1_000_000, 0, ALL);
        for number in 0..60_000 {
            crowd.note(&client(number), &flow(900), None, NOW);
            crowd.note(&client(number), &flow(0), Some((Stuck::HalfClosed, 30)), NOW);
            crowd.note(&client(number), &flow(0), Some((Stuck::Silent, 5)), NOW);
        }
        let first = crowd.into_first();
        assert_eq!((first.stuck.len(), first.idle.len(), first.count()), (120_000, IDLE_MAX, 130_000));
    }
}
