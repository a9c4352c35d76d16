//! Flows that an end holds open without taking part: bytes or a FIN stay without acknowledgement, or one direction is
//! closed and the other silent.
//!
//! Packets alone keep no flow: a stranger, or a client that only sends, could hold 28,976 source ports of a backend
//! for 25 hours each. What counts is progress of the acknowledgements. The clocks are the daemon's own; while it is
//! dead they stop, and they begin again when it starts.

use std::cmp::Reverse;
use std::collections::HashMap;

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, Flow};
use common::wire::seq;

/// Lifetime of a flow whose client never acknowledged a byte of the backend, from the walk on that finds the backend's first byte.
const SILENT_SECS: u32 = 60;
/// Lifetime of a flow with one direction closed, from the walk on that finds its last progress: among millions of flows up to 230 s after it.
const HALF_CLOSED_SECS: u32 = 300;
/// After this time without progress, by walks as well, the ends of a flow with unacknowledged bytes or FIN are asked: longer than the 15
/// retransmissions of Linux (`tcp_retries2`). They are not reset at once. A reader that stops, and has its window closed, may do so
/// for hours; and the bytes may be a stranger's, that the other end did not accept.
const UNACKNOWLEDGED_SECS: u32 = 1_200;

/// The longest time from a walk to the end of the next one: the others' time is not over before.
pub const WALK_SECS: u32 = 240;

/// The flows that are being watched.
#[derive(Debug, Default)]
pub(super) struct Held {
    flows: HashMap<ClientTuple, Watched>,
    /// Those whose time may be over before the next walk, and when, the last one first.
    next: Vec<(u32, ClientTuple)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watched {
    generation: u32,
    progress: u32,
    limit_secs: u32,
    since_secs: u32,
    /// Found by the current walk.
    found: bool,
}

/// What a flow waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stuck {
    /// The client's first acknowledgement of a byte of the backend.
    Silent,
    /// The FIN of the other end, which has acknowledged all.
    HalfClosed,
}

/// What follows for a flow that was held for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Both ends are reset.
    End,
    /// Both ends are asked whether they still have the connection.
    Ask,
}

impl Held {
    /// Begins a walk over all flows.
    pub(super) fn begin(&mut self) {
        for watched in self.flows.values_mut() {
            watched.found = false;
        }
    }

    /// Takes a flow up as it is now, and says what follows if it was held for too long. `now`: monotonic clock in seconds.
    pub(super) fn over(&mut self, client: &ClientTuple, flow: &Flow, now: u32) -> Option<Over> {
        let (limit_secs, progress) = limit(flow)?;
        let generation = flow.connection.generation;
        let new = Watched { generation, progress, limit_secs, since_secs: now, found: true };
        let watched = self.flows.entry(*client).or_insert(new);
        if (watched.generation, watched.progress, watched.limit_secs) != (generation, progress, limit_secs) {
            *watched = new;
        }
        watched.found = true;
        if now.saturating_sub(watched.since_secs) < limit_secs {
            return None;
        }
        if limit_secs == UNACKNOWLEDGED_SECS {
            // Again after as long, if they answer.
            watched.since_secs = now;
            return Some(Over::Ask);
        }
        Some(Over::End)
    }

    /// Returns for how many seconds a flow that [`Self::over`] took up has been as it is, and what it waits for.
    pub(super) fn stuck(&self, client: &ClientTuple, flow: &Flow, now: u32) -> Option<(Stuck, u32)> {
        let watched =
            self.flows.get(client).filter(|watched| watched.generation == flow.connection.generation)?;
        let secs = now.saturating_sub(watched.since_secs);
        match watched.limit_secs {
            SILENT_SECS => Some((Stuck::Silent, secs)),
            HALF_CLOSED_SECS => Some((Stuck::HalfClosed, secs)),
            // A FIN that nobody acknowledges may be a stranger's, behind a gap: the ends are asked.
            _ => None,
        }
    }

    /// Ends a walk: forgets the flows that it did not find, or that are not held any more.
    pub(super) fn end(&mut self, now: u32) {
        self.flows.retain(|_, watched| watched.found);
        let is_ended = |watched: &&Watched| watched.limit_secs != UNACKNOWLEDGED_SECS;
        let over = |watched: &Watched| watched.since_secs + watched.limit_secs;
        let watched = self.flows.iter().filter(|(_, watched)| is_ended(watched));
        self.next = watched.map(|(client, watched)| (over(watched), *client)).collect();
        self.next.retain(|(over, _)| *over <= now + WALK_SECS);
        self.next.sort_unstable_by_key(|(over, _)| Reverse(*over));
    }

    /// Takes back what [`Self::due`] returned and could not be ended.
    pub(super) fn put_back(&mut self, clients: Vec<ClientTuple>, now: u32) {
        self.next.extend(clients.into_iter().map(|client| (now, client)));
    }

    /// Returns the flows whose time is over by now unless there was progress, each once: [`Self::over`] says so.
    pub(super) fn due(&mut self, now: u32) -> Vec<ClientTuple> {
        let first = self.next.partition_point(|(over, _)| *over > now);
        self.next.drain(first..).map(|(_, client)| client).collect()
    }
}

/// Returns the time for which a flow may stay as it is, in seconds, and what has to change meanwhile. `None`: nobody
/// has to answer anything.
fn limit(flow: &Flow) -> Option<(u32, u32)> {
    if flow.connection.state != FLOW_ESTABLISHED {
        return None;
    }
    let (client, backend) = (&flow.client, &flow.backend);
    let to_client = seq::before(client.acked.number, backend.sent.next);
    let to_backend = seq::before(backend.acked.number, client.sent.next);
    if is_silent(flow) {
        return Some((SILENT_SECS, progress(flow)));
    }
    if to_client || to_backend {
        return Some((UNACKNOWLEDGED_SECS, progress(flow)));
    }
    // Every byte is acknowledged, so bytes of either direction show as progress.
    (client.sent.fin != backend.sent.fin).then_some((HALF_CLOSED_SECS, progress(flow)))
}

/// Whether the client never acknowledged anything, although there are bytes of the backend, from its first one on. Bytes behind a gap
/// are acknowledged by nobody, and anybody may have sent them.
fn is_silent(flow: &Flow) -> bool {
    let acked = flow.client.acked.number;
    let sent = flow.backend.sent;
    sent.has_first() && acked == flow.first_byte() && seq::before(acked, sent.next)
}

/// A number that changes when either end acknowledges more; if the client never acknowledged anything, when it does.
pub(super) fn progress(flow: &Flow) -> u32 {
    if is_silent(flow) {
        return flow.client.acked.number;
    }
    flow.client.acked.number.wrapping_add(flow.backend.acked.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};
    use common::maps::flow::{Connection, FLOW_CLOSED};

    const ISN: u32 = u32::MAX - 5;
    const DELTA: u32 = 77;

    fn client() -> ClientTuple {
        ClientTuple::tcp(Address::v4([192, 0, 2, 1]), Address::default(), Port::new(1), Port::new(443))
    }

    /// A flow whose client sent 500 bytes, which are acknowledged. `sent` and `acked` count the backend's bytes.
    fn flow(generation: u32, sent: u32, acked: u32) -> Flow {
        let connection = Connection { generation, state: FLOW_ESTABLISHED, ..Connection::zeroed() };
        let mut flow = Flow { connection, vip_isn: ISN, seq_delta: DELTA, ..Flow::zeroed() };
        let first = ISN.wrapping_add(1).wrapping_add(DELTA);
        (flow.client.sent.next, flow.backend.acked.number) = (500, 500);
        (flow.backend.sent.next, flow.client.acked.number) =
            (first.wrapping_add(sent), first.wrapping_add(acked));
        flow.backend.sent = flow.backend.sent.began(true);
        flow
    }

    /// Looks at a flow as the walk at this time does.
    fn look(held: &mut Held, flow: &Flow, now: u32) -> bool {
        over(held, flow, now).is_some()
    }

    fn over(held: &mut Held, flow: &Flow, now: u32) -> Option<Over> {
        held.begin();
        let over = held.over(&client(), flow, now);
        held.end(now);
        over
    }

    #[test]
    fn a_client_that_never_acknowledges_has_a_minute_whatever_it_sends() {
        let mut held = Held::default();
        let mut silent = flow(1, 100, 0);
        for now in 0..60 {
            // Both ends go on sending.
            silent.client.sent.next += 1;
            silent.backend.acked.number += 1;
            silent.backend.sent.next = silent.backend.sent.next.wrapping_add(1);
            silent.seen_secs = now;
            assert!(!look(&mut held, &silent, 1_000 + now));
        }
        assert_eq!(over(&mut held, &silent, 1_060), Some(Over::End));
        // Nothing to acknowledge yet: the backend is silent, too.
        assert!(!look(&mut held, &flow(1, 0, 0), 5_000));
        assert!(held.flows.is_empty());
    }

    /// A walk begins the minute, and a walk ends it: ten seconds more at most, twice that where the second is cut off by rounding.
    #[test]
    fn the_minute_of_a_client_that_never_acknowledges_is_one_walk_longer_at_most() {
        const WALK: u32 = 10;
        // How long after the backend's first byte the first walk comes, and whether the clock shows a second less at the others.
        for (first, less) in (0..=WALK).flat_map(|first| [(first, 0), (first, 1)]) {
            let mut held = Held::default();
            let mut walks = (0..20).map(|nth| first + WALK * nth - if nth == 0 { 0 } else { less });
            let ended = walks.find(|at| look(&mut held, &flow(1, 100, 0), 1_000 + at));
            let most = if less == 0 { 60 + WALK } else { 60 + 2 * WALK };
            assert!(ended.is_some_and(|at| (60..=most).contains(&at)), "{first}, {less}: {ended:?}");
        }
    }

    /// Among ten million flows it was ended by the walk after the next, minutes later.
    #[test]
    fn what_is_over_before_the_end_of_the_next_walk_is_ended_in_time() {
        let mut held = Held::default();
        let mut half = flow(2, 5, 5);
        half.client.sent.fin = 1;
        for now in [1_000, 1_000 + WALK_SECS - 1] {
            assert!(!look(&mut held, &half, now));
        }
        assert_eq!(held.due(1_000 + HALF_CLOSED_SECS - 1), []);
        assert_eq!(held.due(1_000 + HALF_CLOSED_SECS), [client()]);
        held.put_back(vec![client()], 1_301);
        assert_eq!(held.due(1_302), [client()], "it could not be ended");
    }

    /// Among millions of flows a walk begins up to 230 s after the last one ended, and the five minutes begin with it.
    #[test]
    fn a_flow_that_is_half_closed_just_after_a_walk_lives_for_as_much_longer_as_the_next_is_away() {
        const WALK: u32 = 230;
        let mut held = Held::default();
        let mut half = flow(1, 5, 5);
        assert!(!look(&mut held, &half, 1_000), "no FIN yet");
        half.client.sent.fin = 1;
        for nth in 1..3 {
            assert_eq!(held.due(1_000 + nth * WALK - 1), []);
            assert!(!look(&mut held, &half, 1_000 + nth * WALK));
        }
        let over = 1_000 + WALK + HALF_CLOSED_SECS;
        assert_eq!((held.due(over - 1), held.due(over)), (vec![], vec![client()]));
        assert_eq!(held.over(&client(), &half, over), Some(Over::End));
    }

    /// Where walks take long, and others follow late.
    #[test]
    fn the_minute_ends_between_two_walks_too() {
        let mut held = Held::default();
        let tuple = |port| ClientTuple { client_port: Port::new(port), ..client() };
        let silent = flow(1, 100, 0);
        let (mut half, unacknowledged) = (flow(2, 5, 5), flow(3, 100, 1));
        half.client.sent.fin = 1;
        for now in [1_000, 1_030] {
            held.begin();
            for (port, first, flow) in
                [(1, 1_000, &silent), (2, 1_000, &half), (3, 1_000, &unacknowledged), (4, 1_030, &silent)]
            {
                assert!(now < first || held.over(&tuple(port), flow, now).is_none());
            }
            held.end(now);
        }
        assert_eq!(held.due(1_059), []);
        assert_eq!(held.due(1_060), [tuple(1)]);
        assert_eq!(held.over(&tuple(1), &silent, 1_060), Some(Over::End));
        assert_eq!(held.due(1_061), [], "once");
        // That one's client acknowledged something meanwhile.
        assert_eq!(held.due(1_090), [tuple(4)]);
        assert_eq!(held.over(&tuple(4), &flow(1, 100, 50), 1_090), None);
        assert_eq!(held.due(9_999), [], "the others' time is over long after the next walk");
        held.begin();
        assert_eq!(held.over(&tuple(2), &half, 1_240), None);
        held.end(1_240);
        assert_eq!((held.due(1_299), held.due(1_300)), (vec![], vec![tuple(2)]));
    }

    /// A stranger sends a byte in the name of a backend that says nothing. The client's host keeps it, and waits for what comes before.
    #[test]
    fn a_byte_behind_a_gap_is_asked_about_and_does_not_end_a_silent_connection() {
        let mut held = Held::default();
        let mut gap = flow(1, 1_001, 0);
        gap.backend.sent.agreed = 0;
        assert_eq!([0, 60, 1_199].map(|now| over(&mut held, &gap, now)), [None; 3]);
        assert_eq!(over(&mut held, &gap, 1_200), Some(Over::Ask));
        // The backend's own bytes: from now on, its client has a minute.
        gap.backend.sent = gap.backend.sent.began(true);
        assert_eq!([1_201, 1_260].map(|now| over(&mut held, &gap, now)), [None; 2]);
        assert_eq!(over(&mut held, &gap, 1_261), Some(Over::End));
    }

    /// Both may be a stranger's: neither end knows of them.
    #[test]
    fn ends_with_a_fin_each_that_nobody_acknowledges_are_asked() {
        let mut held = Held::default();
        let mut closing = flow(1, 5, 1);
        (closing.client.sent.next, closing.client.sent.fin) = (501, 1);
        closing.backend.sent.fin = 1;
        assert_eq!([0, 1_199].map(|now| over(&mut held, &closing, now)), [None; 2]);
        assert_eq!(over(&mut held, &closing, 1_200), Some(Over::Ask));
    }

    #[test]
    fn ends_with_unacknowledged_bytes_are_asked_twenty_minutes_after_the_last_progress() {
        let mut held = Held::default();
        assert!(!look(&mut held, &flow(1, 100, 1), 0));
        assert!(!look(&mut held, &flow(1, 100, 1), 1_199));
        assert_eq!(over(&mut held, &flow(1, 100, 1), 1_200), Some(Over::Ask));
        assert!(!look(&mut held, &flow(1, 100, 1), 1_210), "asked once, by a walk of all flows");
        assert!(!look(&mut held, &flow(1, 100, 1), 2_399));
        assert_eq!(over(&mut held, &flow(1, 100, 1), 2_400), Some(Over::Ask), "and again if they answered");
        assert!(!look(&mut held, &flow(1, 100, 2), 2_401), "progress");
        assert_eq!(over(&mut held, &flow(1, 100, 2), 3_601), Some(Over::Ask));
        // The same of the client's bytes, and of a FIN.
        let mut fin = flow(2, 5, 5);
        (fin.client.sent.next, fin.client.sent.fin) = (501, 1);
        assert!(!look(&mut held, &fin, 4_000));
        assert_eq!(over(&mut held, &fin, 5_200), Some(Over::Ask));
    }

    #[test]
    fn a_half_closed_flow_lives_five_minutes_after_the_last_progress() {
        let mut held = Held::default();
        let mut half = flow(1, 5, 5);
        half.client.sent.fin = 1;
        assert!(!look(&mut held, &half, 0));
        assert!(!look(&mut held, &half, 299));
        assert_eq!(over(&mut held, &half, 300), Some(Over::End));
        half.backend.sent.next = half.backend.sent.next.wrapping_add(9);
        half.client.acked.number = half.client.acked.number.wrapping_add(9);
        assert!(!look(&mut held, &half, 301));
    }

    #[test]
    fn each_connection_has_its_own_clock() {
        let mut held = Held::default();
        assert!(!look(&mut held, &flow(1, 100, 0), 0));
        assert!(!look(&mut held, &flow(2, 100, 0), 59), "a new connection of the same client");
        assert!(!look(&mut held, &flow(2, 100, 0), 118));
        held.begin();
        held.end(118);
        assert!(!look(&mut held, &flow(2, 100, 0), 119), "it was gone meanwhile");
        let mut closed = flow(2, 100, 0);
        closed.connection.state = FLOW_CLOSED;
        assert!(!look(&mut held, &closed, 9_999));
        assert!(!look(&mut held, &flow(3, 100, 100), 9_999), "an idle connection");
    }
}
