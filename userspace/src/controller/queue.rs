//! Which status is written next, and when. Pure: time is an argument. Each object has one entry with its
//! newest status, and at most one write in flight. A failed write waits before it is retried. After a successful write,
//! nothing is sent for the same version of the object; after one that changed nothing, not the same write.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Writes per second on average.
const RATE: f64 = 400.0;
/// Writes in a burst.
const BURST: f64 = 400.0;
/// How long to wait for the newer object after a conflict.
const NEWER_WAIT: Duration = Duration::from_secs(5);
/// Wait after the first failure; doubles up to [`FAILURE_WAIT_MAX`].
const FAILURE_WAIT: Duration = Duration::from_secs(1);
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(64);

/// A token bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    filled: Option<Instant>,
}

impl Bucket {
    pub(super) fn new(rate: f64, burst: f64) -> Self {
        Self { rate, burst, tokens: burst, filled: None }
    }

    /// When the next token is available; `now` if there is one.
    pub(super) fn ready(&mut self, now: Instant) -> Instant {
        let passed = self.filled.replace(now).map_or(0.0, |then| (now - then).as_secs_f64());
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        if self.tokens >= 1.0 {
            return now;
        }
        now + Duration::from_secs_f64((1.0 - self.tokens) / self.rate)
    }

    pub(super) fn take(&mut self) {
        self.tokens -= 1.0;
    }
}

/// A write that makes an object, or deletes one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Whole {
    /// There is none: it is made with these `metadata`, and gets its status.
    Create(serde_json::Value),
    /// It is deleted, provided that it is the one with this `metadata.uid`.
    Delete(String),
}

/// A write of a status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Write {
    /// The object itself, of kinds that we make; `None`: its status alone.
    pub(super) whole: Option<Whole>,
    /// `status` of a merge patch.
    pub(super) status: serde_json::Value,
    /// `metadata.annotations` of the same patch: the status subresource of core kinds takes them.
    pub(super) annotations: Option<serde_json::Value>,
    /// The `metadata.resourceVersion` that it was computed for.
    pub(super) version: String,
    /// Sent before others: addresses, which agents wait for.
    pub(super) is_urgent: bool,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The API server accepted it.
    Written,
    /// The API server accepted it, and the object has the version it had.
    NoEffect,
    /// The API server has made the object: the watch reports it.
    Made,
    /// The object has a newer version, or is gone.
    Conflict,
    /// Any other error; the write is retried.
    Failed,
}

/// Waiting writes, by object.
#[derive(Debug)]
pub(super) struct Queue<K> {
    objects: BTreeMap<K, Object>,
    bucket: Bucket,
    /// Increases with each [`Queue::want`], so that the write that has waited longest is sent first.
    turn: u64,
}

#[derive(Debug, Default)]
struct Object {
    waiting: Option<(u64, Write)>,
    is_in_flight: bool,
    /// The write in flight is not wanted any more: if it fails, it is not sent again.
    is_withdrawn: bool,
    /// The version that was sent last, and until when no write for it is sent again; `None`: for ever.
    sent: Option<(String, Option<Instant>)>,
    /// The last write, if it changed nothing: the watch will report nothing, and another one may be sent.
    without_effect: Option<Write>,
    failures: u32,
    not_before: Option<Instant>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next<K> {
    /// Send this write.
    Send(K, Write),
    /// Call again at this time.
    At(Instant),
    /// Nothing can be sent.
    Idle,
}

impl<K: Ord + Clone> Queue<K> {
    pub(super) fn new() -> Self {
        Self { objects: BTreeMap::new(), bucket: Bucket::new(RATE, BURST), turn: 0 }
    }

    /// Sets the status to write to the object; `None`: it is up to date.
    pub(super) fn want(&mut self, key: &K, write: Option<Write>) {
        let Some(write) = write else {
            if let Some(object) = self.objects.get_mut(key) {
                object.waiting = None;
                object.is_withdrawn = true;
                object.failures = 0;
                object.not_before = None;
            }
            return;
        };
        self.turn += 1;
        let object = self.objects.entry(key.clone()).or_default();
        object.is_withdrawn = false;
        let turn = object.waiting.as_ref().map_or(self.turn, |(turn, _)| *turn);
        object.waiting = Some((turn, write));
    }

    /// Forgets objects that are gone.
    pub(super) fn forget(&mut self, gone: impl Fn(&K) -> bool) {
        self.objects.retain(|key, _| !gone(key));
    }

    /// Drops all writes.
    pub(super) fn clear(&mut self) {
        self.objects.clear();
    }

    /// The number of waiting writes.
    pub(super) fn len(&self) -> usize {
        self.objects.values().filter(|object| object.waiting.is_some()).count()
    }

    /// Returns what to do now. `may` says whether an object's write may be sent beside those that are in flight.
    pub(super) fn next(&mut self, now: Instant, may: impl Fn(&K) -> bool) -> Next<K> {
        let mut best: Option<(bool, u64, &K)> = None;
        let mut soonest: Option<Instant> = None;
        for (key, object) in &self.objects {
            let Some((turn, write)) = &object.waiting else { continue };
            if object.is_in_flight {
                continue;
            }
            match object.free_at(write, now) {
                None => {}
                Some(at) if at > now => soonest = Some(soonest.map_or(at, |other| other.min(at))),
                Some(_) => {
                    let rank = (!write.is_urgent, *turn, key);
                    if best.is_none_or(|best| rank < best) && may(key) {
                        best = Some(rank);
                    }
                }
            }
        }
        let Some((_, _, key)) = best else { return soonest.map_or(Next::Idle, Next::At) };
        let key = key.clone();
        let ready = self.bucket.ready(now);
        if ready > now {
            return Next::At(ready);
        }
        self.bucket.take();
        let write = self.objects.get_mut(&key).and_then(|object| {
            object.is_in_flight = true;
            object.waiting.take()
        });
        write.map_or(Next::Idle, |(_, write)| Next::Send(key, write))
    }

    /// Drops a write that [`Queue::next`] returned and that was not sent.
    pub(super) fn drop_sent(&mut self, key: &K) {
        if let Some(object) = self.objects.get_mut(key) {
            object.is_in_flight = false;
        }
    }

    /// Records the outcome of a write that [`Queue::next`] returned.
    pub(super) fn done(&mut self, key: &K, write: Write, outcome: Outcome, now: Instant) {
        let object = self.objects.entry(key.clone()).or_default();
        object.is_in_flight = false;
        match outcome {
            Outcome::Written | Outcome::NoEffect => {
                let has_effect = outcome == Outcome::Written;
                object.sent = has_effect.then(|| (write.version.clone(), None));
                object.without_effect = (!has_effect).then_some(write);
                object.failures = 0;
                object.not_before = None;
            }
            Outcome::Made => {
                // Another object of this name has the same write, once this one is gone.
                object.sent = Some((write.version, Some(now + NEWER_WAIT)));
                object.failures = 0;
                object.not_before = None;
            }
            Outcome::Conflict => object.sent = Some((write.version, Some(now + NEWER_WAIT))),
            Outcome::Failed => {
                let wait = FAILURE_WAIT.saturating_mul(1 << object.failures.min(10)).min(FAILURE_WAIT_MAX);
                object.failures += 1;
                object.not_before = Some(now + wait);
                if !object.is_withdrawn {
                    object.waiting.get_or_insert((self.turn, write));
                }
            }
        }
    }
}

impl Object {
    /// When the write may be sent; `None`: never for this version of the object.
    fn free_at(&self, write: &Write, now: Instant) -> Option<Instant> {
        let mut at = self.not_before.unwrap_or(now);
        if let Some((version, until)) = &self.sent
            && *version == write.version
        {
            at = at.max((*until)?);
        }
        if self.without_effect.as_ref() == Some(write) {
            return None;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn write(version: &str, content: u32) -> Write {
        Write { status: json!({ "x": content }), version: version.to_owned(), ..Write::default() }
    }

    fn any(_: &u32) -> bool {
        true
    }

    fn sent(next: Next<u32>) -> (u32, Write) {
        match next {
            Next::Send(key, write) => (key, write),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_newest_of_each_object_is_sent_and_urgent_ones_first() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("a", 1)));
        queue.want(&2, Some(write("a", 2)));
        queue.want(&1, Some(write("b", 3)));
        queue.want(&3, Some(Write { is_urgent: true, ..write("a", 4) }));
        queue.want(&4, Some(write("a", 5)));
        queue.want(&4, None);
        assert_eq!(queue.len(), 3);
        let order: Vec<_> = (0..3).map(|_| sent(queue.next(now, any))).collect();
        assert_eq!(order.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [3, 1, 2]);
        assert_eq!(order[1].1, write("b", 3));
        assert_eq!(queue.next(now, any), Next::Idle);
    }

    #[test]
    fn what_was_written_is_not_written_again_before_the_object_comes_back() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("5", 1)));
        let (key, first) = sent(queue.next(now, any));
        queue.done(&key, first, Outcome::Written, now);
        // The watch has not reported the new version yet, or the server drops a field that we write.
        queue.want(&1, Some(write("5", 1)));
        assert_eq!(queue.next(now + Duration::from_secs(3600), any), Next::Idle);
        queue.want(&1, Some(write("6", 1)));
        assert_eq!(sent(queue.next(now, any)).1.version, "6");
    }

    /// Without a newer version that the watch would report, the object would never be written again.
    #[test]
    fn a_write_without_effect_stops_only_itself() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("5", 1)));
        let (key, first) = sent(queue.next(now, any));
        queue.done(&key, first, Outcome::NoEffect, now);
        queue.want(&1, Some(write("5", 1)));
        assert_eq!(queue.next(now + Duration::from_secs(3600), any), Next::Idle);
        queue.want(&1, Some(write("5", 2)));
        assert_eq!(sent(queue.next(now, any)).1, write("5", 2));
    }

    /// Another client may delete what was made, and so it has the version again that it had before.
    #[test]
    fn what_was_made_is_made_again_once_it_is_gone_but_not_before_the_watch_may_have_reported_it() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        let make = Write { whole: Some(Whole::Create(json!({}))), ..write("", 1) };
        queue.want(&1, Some(make.clone()));
        let (key, first) = sent(queue.next(now, any));
        queue.done(&key, first, Outcome::Made, now);
        queue.want(&1, Some(make.clone()));
        assert_eq!(queue.next(now, any), Next::At(now + NEWER_WAIT));
        queue.want(&1, None);
        queue.want(&1, Some(make.clone()));
        assert_eq!(sent(queue.next(now + NEWER_WAIT, any)).1, make);
        // It is deleted, and wanted again before that is reported.
        queue.done(&1, make.clone(), Outcome::Made, now);
        let delete =
            Write { whole: Some(Whole::Delete("u".to_owned())), version: "u".to_owned(), ..Write::default() };
        queue.want(&1, Some(delete));
        let (key, delete) = sent(queue.next(now, any));
        queue.done(&key, delete, Outcome::Written, now);
        queue.want(&1, None);
        queue.want(&1, Some(make.clone()));
        assert_eq!(sent(queue.next(now, any)).1, make);
    }

    #[test]
    fn a_conflict_waits_for_the_newer_object_but_not_for_ever() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("5", 1)));
        let (key, first) = sent(queue.next(now, any));
        queue.done(&key, first, Outcome::Conflict, now);
        queue.want(&1, Some(write("5", 1)));
        assert_eq!(queue.next(now, any), Next::At(now + NEWER_WAIT));
        let (key, again) = sent(queue.next(now + NEWER_WAIT, any));
        queue.done(&key, again, Outcome::Conflict, now + NEWER_WAIT);
        queue.want(&1, Some(write("6", 2)));
        assert_eq!(sent(queue.next(now, any)).1, write("6", 2));
    }

    #[test]
    fn failures_wait_longer_and_longer_and_hold_up_nobody_else() {
        let (mut queue, mut now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("5", 1)));
        for (turn, seconds) in [1, 2, 4, 8, 16, 32, 64, 64].into_iter().enumerate() {
            let (key, failed) = sent(queue.next(now, any));
            queue.done(&key, failed, Outcome::Failed, now);
            queue.want(&2, Some(write(&turn.to_string(), 1)));
            let (other, done) = sent(queue.next(now, any));
            assert_eq!(other, 2);
            queue.done(&other, done, Outcome::Written, now);
            let again = now + Duration::from_secs(seconds);
            assert_eq!(queue.next(now, any), Next::At(again));
            now = again;
        }
        queue.want(&1, None);
        assert_eq!(queue.next(now, any), Next::Idle);
    }

    #[test]
    fn writes_come_at_a_rate() {
        let (mut queue, start) = (Queue::new(), Instant::now());
        for key in 0..10_000 {
            queue.want(&key, Some(write("1", key)));
        }
        let (mut now, mut count) = (start, 0);
        while now < start + Duration::from_secs(4) {
            match queue.next(now, any) {
                Next::Send(..) => count += 1,
                Next::At(at) => now = at,
                Next::Idle => break,
            }
        }
        assert!((1_990..=2_001).contains(&count), "400 at once and 400 a second, but {count}");
    }

    /// Two writes of one object beside each other would end in a conflict of our own making.
    #[test]
    fn an_object_has_one_write_in_flight_and_the_next_waits_for_it() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("5", 1)));
        let (key, first) = sent(queue.next(now, any));
        queue.want(&1, Some(write("6", 2)));
        assert_eq!(queue.next(now, any), Next::Idle);
        queue.done(&key, first, Outcome::Written, now);
        assert_eq!(sent(queue.next(now, any)).1, write("6", 2));
        queue.drop_sent(&1);
        queue.want(&1, Some(write("7", 3)));
        assert_eq!(sent(queue.next(now, any)).1, write("7", 3));
    }

    #[test]
    fn a_write_that_is_withdrawn_while_it_is_in_flight_is_not_sent_again() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("5", 1)));
        let (key, first) = sent(queue.next(now, any));
        queue.want(&1, None);
        queue.done(&key, first, Outcome::Failed, now);
        assert_eq!((queue.next(now + FAILURE_WAIT_MAX, any), queue.len()), (Next::Idle, 0));
        queue.want(&1, Some(write("5", 2)));
        assert_eq!(sent(queue.next(now + FAILURE_WAIT_MAX, any)).1, write("5", 2));
    }

    #[test]
    fn who_may_not_be_written_now_holds_up_nobody_else() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(Write { is_urgent: true, ..write("5", 1) }));
        queue.want(&2, Some(write("5", 2)));
        assert_eq!(sent(queue.next(now, |key| *key != 1)).0, 2);
        assert_eq!(queue.next(now, |key| *key != 1), Next::Idle);
        assert_eq!(sent(queue.next(now, any)).0, 1);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        queue.want(&1, Some(write("1", 1)));
        queue.want(&2, Some(write("1", 1)));
        queue.forget(|key| *key == 1);
        assert_eq!(sent(queue.next(now, any)).0, 2);
        queue.want(&3, Some(write("1", 1)));
        queue.clear();
        assert_eq!((queue.next(now, any), queue.len()), (Next::Idle, 0));
    }
}
