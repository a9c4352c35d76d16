//! Who leads: one candidate's view of the Lease. Pure: time is an argument and comes from a monotonic clock.
//! Times written by other clocks are only compared for equality, so any clock skew is harmless.
//!
//! ```text
//! leader    sends a renewal at t ──── writes until t + 10 s ─┐ 5 s without a writer
//! follower  sees it at t' >= t ─────────────────────────────┴─ takes it at t' + 15 s at the earliest
//! ```

use std::time::{Duration, Instant};

/// How long the Lease is valid after a renewal.
pub(super) const DURATION: Duration = Duration::from_secs(15);
/// How long before the Lease expires its holder stops writing.
pub(super) const MARGIN: Duration = Duration::from_secs(5);
/// Interval between two renewals, or between two looks of a follower.
pub(super) const PERIOD: Duration = Duration::from_secs(2);

/// Content of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// `holderIdentity`; empty: the Lease was released.
    pub(super) holder: String,
    /// `leaseDurationSeconds`.
    pub(super) duration: Duration,
    /// `renewTime` as written; only compared for equality.
    pub(super) renewed: String,
    /// `leaseTransitions`.
    pub(super) transitions: i32,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
}

/// What to do with the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read it: another candidate holds it, or nothing is known yet.
    Look,
    /// Create it: it does not exist.
    Create,
    /// Take or renew it, provided that it still has this version.
    Update {
        /// `metadata.resourceVersion`.
        version: String,
        /// `leaseTransitions` to write.
        transitions: i32,
        /// Whether this candidate did not hold it before.
        takes: bool,
    },
}

/// A process that competes for the Lease.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    seen: Seen,
    /// When the last successful renewal was sent.
    held: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    NoLease,
    /// The Lease, and since when it has been unchanged.
    Record(Record, Instant),
}

impl Candidate {
    pub(super) fn new(identity: String) -> Self {
        Self { identity, seen: Seen::Nothing, held: None }
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns what to do now.
    pub(super) fn step(&self, now: Instant) -> Step {
        let (record, since) = match &self.seen {
            Seen::Nothing => return Step::Look,
            Seen::NoLease => return Step::Create,
            Seen::Record(record, since) => (record, *since),
        };
        let keeps = record.holder == self.identity;
        let free = record.holder.is_empty() || now.saturating_duration_since(since) >= good_for(record);
        if !keeps && !free {
            return Step::Look;
        }
        let transitions = record.transitions.saturating_add(i32::from(!keeps));
        Step::Update { version: record.version.clone(), transitions, takes: !keeps }
    }

    /// Records the Lease as it was read; `None`: there is none.
    pub(super) fn looked(&mut self, record: Option<Record>, now: Instant) {
        let ours = record.as_ref().is_some_and(|record| record.holder == self.identity);
        if !ours {
            self.held = None;
        }
        self.seen = match (record, std::mem::replace(&mut self.seen, Seen::Nothing)) {
            (None, _) => Seen::NoLease,
            (Some(record), Seen::Record(old, since)) if old == record => Seen::Record(record, since),
            (Some(record), _) => Seen::Record(record, now),
        };
    }

    /// Records the Lease as it is after a successful update that was sent at `sent`.
    pub(super) fn wrote(&mut self, record: Record, sent: Instant) {
        self.held = (record.holder == self.identity).then_some(sent);
        self.seen = Seen::Record(record, sent);
    }

    /// Records that an update was refused: another process wrote the Lease, or it is gone. It must be read again.
    pub(super) fn refused(&mut self) {
        self.seen = Seen::Nothing;
    }

    /// Does not lead any more, though it may hold the Lease.
    pub(super) fn rest(&mut self) {
        self.held = None;
    }

    /// Until when this candidate may write; `None`: it does not lead.
    pub(super) fn leads_until(&self) -> Option<Instant> {
        self.held.map(|sent| sent + (DURATION - MARGIN))
    }

    /// The version and `leaseTransitions` to release the Lease with; `None`: this candidate does not hold it.
    pub(super) fn to_give_back(&self) -> Option<(&str, i32)> {
        match &self.seen {
            Seen::Record(record, _) if record.holder == self.identity => {
                Some((&record.version, record.transitions))
            }
            _ => None,
        }
    }
}

/// How long a Lease is valid: as long as ours if it does not say, and at most four times as long.
fn good_for(record: &Record) -> Duration {
    match record.duration {
        Duration::ZERO => DURATION,
        duration => duration.min(4 * DURATION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An API server with one Lease. Each client has its own wall clock.
    #[derive(Default)]
    struct Server {
        lease: Option<Record>,
        versions: u32,
        is_away: bool,
    }

    struct Client {
        candidate: Candidate,
        /// Error of its wall clock, in seconds.
        skew: i64,
    }

    impl Client {
        fn new(identity: &str, skew: i64) -> Self {
            Self { candidate: Candidate::new(identity.to_owned()), skew }
        }

        /// Runs one round, as `election` does.
        fn round(&mut self, server: &mut Server, start: Instant, now: Instant) {
            if server.is_away {
                return;
            }
            if self.candidate.step(now) == Step::Look {
                self.candidate.looked(server.lease.clone(), now);
            }
            let (version, transitions) = match self.candidate.step(now) {
                Step::Look => return,
                Step::Create => (None, 0),
                Step::Update { version, transitions, .. } => (Some(version), transitions),
            };
            if server.lease.as_ref().map(|lease| lease.version.clone()) != version {
                self.candidate.refused();
                return;
            }
            server.versions += 1;
            let wall = i64::try_from((now - start).as_millis()).unwrap() + 1000 * self.skew;
            let record = Record {
                holder: self.candidate.identity().to_owned(),
                duration: DURATION,
                renewed: wall.to_string(),
                transitions,
                version: server.versions.to_string(),
            };
            server.lease = Some(record.clone());
            self.candidate.wrote(record, now);
        }

        fn may_write(&self, now: Instant) -> bool {
            self.candidate.leads_until().is_some_and(|until| now < until)
        }
    }

    const STEP: Duration = Duration::from_millis(100);

    /// Runs clients against a server. `story` may change the server and stop clients before each tenth of a
    /// second. Returns which clients may write at each tick.
    fn run(
        clients: &mut [Client],
        seconds: u32,
        mut story: impl FnMut(u32, &mut Server, &mut [bool]),
    ) -> Vec<Vec<usize>> {
        let start = Instant::now();
        let mut server = Server::default();
        let mut runs = vec![true; clients.len()];
        let mut log = Vec::new();
        for tick in 0..seconds * 10 {
            let now = start + tick * STEP;
            story(tick, &mut server, &mut runs);
            for (index, client) in clients.iter_mut().enumerate() {
                // Each client has its own phase.
                if runs[index] && (tick + 7 * u32::try_from(index).unwrap()) % 20 == 0 {
                    client.round(&mut server, start, now);
                }
            }
            log.push((0..clients.len()).filter(|index| clients[*index].may_write(now)).collect());
        }
        log
    }

    /// Asserts that there are never two writers.
    fn assert_one_writer(log: &[Vec<usize>]) {
        for (tick, writers) in log.iter().enumerate() {
            assert!(writers.len() <= 1, "two write at {tick}: {writers:?}");
        }
    }

    fn writer_at(log: &[Vec<usize>], second: usize) -> Option<usize> {
        log[second * 10 + 9].first().copied()
    }

    #[test]
    fn one_leads_and_keeps_it_whatever_the_clocks_say() {
        let mut clients = [Client::new("a", 7 * 3600), Client::new("b", -9 * 3600), Client::new("c", 0)];
        let log = run(&mut clients, 300, |_, _, _| {});
        assert_one_writer(&log);
        let first = writer_at(&log, 0).unwrap();
        for second in 0..300 {
            assert_eq!(writer_at(&log, second), Some(first), "at {second}");
        }
    }

    #[test]
    fn one_that_dies_is_followed_after_the_lease_ended() {
        let mut clients = [Client::new("a", -5 * 3600), Client::new("b", 5 * 3600)];
        let log = run(&mut clients, 60, |tick, _, runs| runs[0] = tick < 100);
        assert_one_writer(&log);
        assert_eq!(writer_at(&log, 5), Some(0));
        // Its last renewal was at 8 s. It writes until 18 s at most; the other starts between 23 s and 27 s.
        assert_eq!(writer_at(&log, 18), None);
        assert_eq!(writer_at(&log, 22), None);
        assert_eq!(writer_at(&log, 27), Some(1));
    }

    #[test]
    fn without_the_server_nobody_writes_and_after_it_the_holder_goes_on() {
        let mut clients = [Client::new("a", 0), Client::new("b", 3 * 3600)];
        let log = run(&mut clients, 120, |tick, server, _| server.is_away = (100..112).contains(&tick));
        assert_one_writer(&log);
        assert!((0..120).all(|second| writer_at(&log, second) == Some(0)), "a short absence changes nothing");
        let mut clients = [Client::new("a", 0), Client::new("b", 3 * 3600)];
        let log = run(&mut clients, 120, |tick, server, _| server.is_away = (100..700).contains(&tick));
        assert_one_writer(&log);
        assert_eq!(writer_at(&log, 20), None);
        assert_eq!(writer_at(&log, 69), None);
        assert!(writer_at(&log, 73).is_some());
    }

    #[test]
    fn one_that_slept_does_not_write_before_it_looked() {
        let mut clients = [Client::new("a", 0), Client::new("b", 0)];
        // The first sleeps from 10 s to 60 s; the second takes over; then the first wakes up.
        let log = run(&mut clients, 100, |tick, _, runs| runs[0] = !(100..600).contains(&tick));
        assert_one_writer(&log);
        assert_eq!(writer_at(&log, 50), Some(1));
        assert_eq!(writer_at(&log, 99), Some(1));
    }

    #[test]
    fn a_lease_that_was_given_back_is_taken_at_once() {
        let mut clients = [Client::new("a", 0), Client::new("b", 0)];
        let log = run(&mut clients, 30, |tick, server, runs| {
            if tick == 100 {
                runs[0] = false;
                let lease = server.lease.as_mut().unwrap();
                lease.holder.clear();
                lease.version = "given back".to_owned();
            }
        });
        // The one that released the Lease has ended, so what it could have written is not checked.
        assert!(log[125].contains(&1), "{:?}", &log[90..130]);
    }

    #[test]
    fn garbage_in_the_lease_locks_nobody_out() {
        let now = Instant::now();
        let mut candidate = Candidate::new("a".to_owned());
        let garbage = |seconds| Record {
            holder: "x".to_owned(),
            duration: Duration::from_secs(seconds),
            transitions: i32::MAX,
            ..Record::default()
        };
        candidate.looked(Some(garbage(0)), now);
        assert_eq!(candidate.step(now + Duration::from_secs(14)), Step::Look);
        assert!(matches!(candidate.step(now + DURATION), Step::Update { transitions: i32::MAX, .. }));
        candidate.looked(Some(garbage(2_000_000_000)), now);
        assert!(matches!(candidate.step(now + 4 * DURATION), Step::Update { takes: true, .. }));
    }

    #[test]
    fn a_holder_that_finds_another_stops_at_once() {
        let now = Instant::now();
        let mut candidate = Candidate::new("a".to_owned());
        assert_eq!(candidate.step(now), Step::Look);
        candidate.looked(None, now);
        assert_eq!(candidate.step(now), Step::Create);
        candidate.wrote(Record { holder: "a".to_owned(), ..Record::default() }, now);
        assert_eq!(candidate.leads_until(), Some(now + Duration::from_secs(10)));
        assert!(candidate.to_give_back().is_some());
        candidate.refused();
        assert_eq!(candidate.step(now), Step::Look);
        candidate.looked(Some(Record { holder: "b".to_owned(), ..Record::default() }), now);
        assert_eq!(candidate.leads_until(), None);
        assert_eq!(candidate.to_give_back(), None);
    }
}
