//! Decides which Events are written: each once while its cause lasts, with a higher count when the cause
//! returns. Pure: time is an argument.

use super::lanes::{Bounds, Group};
use super::queue::Bucket;
use sha2::{Digest, Sha256};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events per second on average, and in a burst.
const RATE: f64 = 5.0;
const BURST: f64 = 50.0;
/// Maximum length of an Event's `note`, in bytes.
const NOTE_BYTES_MAX: usize = 1024;
/// Maximum length of the object's name in an Event's name, in bytes. A dot and digits follow it.
const NAME_BYTES_MAX: usize = 253 - 17;
/// Above this number of counts, those of causes that have ended are forgotten; and of what happened, no more waits.
const PAST_MAX: usize = 4096;
/// Wait after an Event could not be written; it doubles with each failure.
const FAILURE_WAIT: Duration = Duration::from_secs(5);
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(300);
/// The most Events in flight. Those that hang are no more while nothing else is: few are written a second, of all together.
const LANES: Bounds = Bounds { own: 16, of_namespace: 2, slow: 4, alone: None, all: 48, all_slow: 48 };

/// What an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Regarding {
    /// `gateway.networking.k8s.io/v1`
    pub(super) api_version: String,
    pub(super) kind: &'static str,
    /// Empty: cluster-scoped.
    pub(super) namespace: String,
    pub(super) name: String,
    /// Empty: not known.
    pub(super) uid: String,
}

/// Something to report. Two notes are the same whatever nodes and cause they name: these change all the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Note {
    pub(super) regarding: Regarding,
    /// Whether the type is `Warning` instead of `Normal`.
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    /// What is wrong, and what to do about it.
    pub(super) text: String,
    /// The nodes that see it, when it is written first, such as `nodes a, b`; empty: it is not about nodes.
    pub(super) nodes: String,
    /// What follows the text, as it is when it is written first: it may name nodes and versions. Empty: nothing.
    pub(super) cause: String,
    /// Written after what lasts, even if it is a warning: its object's owner makes as many as he likes.
    pub(super) goes_last: bool,
}

impl PartialEq for Note {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Note {}

impl PartialOrd for Note {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Note {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |note: &Self| (note.is_warning, note.reason);
        let by_texts = || self.regarding.cmp(&other.regarding).then_with(|| self.text.cmp(&other.text));
        key(self).cmp(&key(other)).then_with(by_texts)
    }
}

impl Note {
    /// The namespace that its Event is written to.
    pub(super) fn namespace(&self) -> &str {
        match self.regarding.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        }
    }

    /// The text, cut to the length that the API accepts.
    pub(super) fn text(&self) -> String {
        let mut text = match self.nodes.as_str() {
            "" => self.text.clone(),
            nodes => format!("on {nodes}: {}", self.text),
        };
        if !self.cause.is_empty() {
            text = format!("{text}: {}", self.cause);
        }
        crate::status::cut(&text, NOTE_BYTES_MAX).to_owned()
    }

    /// The Event's name. It depends only on the content, so that every leader uses the same, and not on nodes, so that one
    /// node more or less is no other Event.
    pub(super) fn name(&self) -> String {
        let mut hash = Sha256::new();
        for part in [self.regarding.kind, &self.regarding.uid, self.reason, &self.text] {
            hash.update(part);
            hash.update([0]);
        }
        let digits: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let name = crate::status::cut(&self.regarding.name, NAME_BYTES_MAX);
        format!("{}.{digits}", name.trim_end_matches(['.', '-']))
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Write it with this count.
    Tell(Note, u32),
    /// Call again at this time.
    At(Instant),
    /// Everything is written.
    Idle,
}

/// Where a note is on its path to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is to be written, after this many failures.
    Waiting { not_before: Option<Instant>, failures: u32 },
    /// It is being written.
    InFlight { failures: u32 },
    /// It was written, or was refused.
    Done,
}

impl State {
    const NEW: Self = Self::Waiting { not_before: None, failures: 0 };
}

/// What was written and what is still to be written. Events that the API server does not answer, as where admission webhooks of
/// namespaces hang, delay those of other namespaces by no more than it takes to see that.
#[derive(Debug)]
pub(super) struct Teller {
    /// Notes whose cause lasts.
    lasting: BTreeMap<Note, State>,
    /// Notes about one-time occurrences that are not written yet.
    happened: Vec<(Note, State)>,
    /// How often each Event was written, by its name.
    counts: BTreeMap<String, u32>,
    in_flight: Group<Note>,
    bucket: Bucket,
}

impl Teller {
    pub(super) fn new() -> Self {
        Self {
            lasting: BTreeMap::new(),
            happened: Vec::new(),
            counts: BTreeMap::new(),
            in_flight: Group::new(LANES),
            bucket: Bucket::new(RATE, BURST),
        }
    }

    /// Sets the notes whose cause lasts now. New ones will be written.
    pub(super) fn lasts(&mut self, notes: BTreeSet<Note>) {
        let mut before = std::mem::take(&mut self.lasting);
        self.lasting = notes
            .into_iter()
            .map(|note| {
                let state = before.remove(&note).unwrap_or(State::NEW);
                (note, state)
            })
            .collect();
        if self.counts.len() > PAST_MAX {
            let named: BTreeSet<String> = self.lasting.keys().map(Note::name).collect();
            self.counts.retain(|name, _| named.contains(name));
        }
    }

    /// Adds a note about something that happened once. The same that waits already says it.
    pub(super) fn happened(&mut self, note: Note) {
        let waits = |(other, state): &(Note, State)| matches!(state, State::Waiting { .. }) && *other == note;
        if self.happened.len() >= PAST_MAX || self.happened.iter().any(waits) {
            return;
        }
        self.happened.push((note, State::NEW));
    }

    /// The same, unless this many notes with its reason wait already. Returns whether they do not.
    pub(super) fn happened_among(&mut self, note: Note, most: usize) -> bool {
        let is_like = |(other, _): &&(Note, State)| other.reason == note.reason;
        let has_room = self.happened.iter().filter(is_like).take(most).count() < most;
        if has_room {
            self.happened(note);
        }
        has_room
    }

    /// Returns what to do now.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        self.in_flight.look(now);
        let happened = self.happened.iter_mut().map(|(note, state)| (&*note, state));
        // A thousand Services that got their addresses delay no warning.
        let (warnings, normal): (Vec<_>, Vec<_>) =
            happened.partition(|(note, _)| note.is_warning && !note.goes_last);
        let (mut found, mut later, mut is_full) = (None, None::<Instant>, false);
        for (note, state) in warnings.into_iter().chain(&mut self.lasting).chain(normal) {
            let State::Waiting { not_before, failures } = *state else { continue };
            match not_before.filter(|at| *at > now) {
                Some(at) => later = later.into_iter().chain([at]).min(),
                None if !self.in_flight.has_room(note.namespace(), true, false) => is_full = true,
                None => {
                    found = Some((note, state, failures));
                    break;
                }
            }
        }
        let Some((note, state, failures)) = found else {
            let slow = self.in_flight.next_slow().filter(|_| is_full);
            return later.into_iter().chain(slow).min().map_or(Next::Idle, Next::At);
        };
        let ready = self.bucket.ready(now);
        if ready > now {
            return Next::At(ready);
        }
        self.bucket.take();
        *state = State::InFlight { failures };
        self.in_flight.take(note.clone(), &Arc::from(note.namespace()), now);
        let count = self.counts.get(&note.name()).copied().unwrap_or_default();
        Next::Tell(note.clone(), count.saturating_add(1))
    }

    /// Records that the note returned by [`Teller::next`] was written, or already existed.
    pub(super) fn told(&mut self, note: &Note, now: Instant) {
        *self.counts.entry(note.name()).or_default() += 1;
        self.land(note, now, |_| State::Done);
    }

    /// Records that the note could not be written; `again`: it may work later.
    pub(super) fn failed(&mut self, note: &Note, again: bool, now: Instant) {
        self.land(note, now, |failures| match again {
            true => {
                let wait = FAILURE_WAIT.saturating_mul(1 << failures.min(8)).min(FAILURE_WAIT_MAX);
                State::Waiting { not_before: Some(now + wait), failures: failures.saturating_add(1) }
            }
            false => State::Done,
        });
    }

    fn land(&mut self, note: &Note, now: Instant, then: impl FnOnce(u32) -> State) {
        self.in_flight.give_back(note, Some(now));
        let happened = self.happened.iter_mut().map(|(note, state)| (&*note, state));
        let is_it =
            |(other, state): &(&Note, &mut State)| *other == note && matches!(state, State::InFlight { .. });
        // It may last no more.
        if let Some((_, state)) = happened.chain(&mut self.lasting).find(is_it)
            && let State::InFlight { failures } = *state
        {
            *state = then(failures);
        }
        self.happened.retain(|(_, state)| *state != State::Done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &str, text: &str) -> Note {
        Note {
            regarding: Regarding {
                kind: "Gateway",
                name: name.to_owned(),
                namespace: "ns".to_owned(),
                ..Regarding::default()
            },
            is_warning: true,
            reason: "Refused",
            text: text.to_owned(),
            ..Note::default()
        }
    }

    /// Everything that is written until nothing is left.
    fn told(teller: &mut Teller, now: &mut Instant) -> Vec<(String, u32)> {
        let mut log = Vec::new();
        loop {
            match teller.next(*now) {
                Next::Tell(note, count) => {
                    teller.told(&note, *now);
                    log.push((note.text.clone(), count));
                }
                Next::At(at) => *now = at,
                Next::Idle => return log,
            }
        }
    }

    #[test]
    fn what_lasts_is_told_once_and_counted_on_when_it_comes_again() {
        let (mut teller, mut now) = (Teller::new(), Instant::now());
        let both = BTreeSet::from([note("a", "x"), note("b", "y")]);
        teller.lasts(both.clone());
        let log = told(&mut teller, &mut now);
        assert_eq!(log, [("x".to_owned(), 1), ("y".to_owned(), 1)]);
        teller.lasts(both.clone());
        assert_eq!(told(&mut teller, &mut now), []);
        teller.lasts(BTreeSet::from([note("b", "y")]));
        teller.lasts(both);
        assert_eq!(told(&mut teller, &mut now), [("x".to_owned(), 2)]);
    }

    #[test]
    fn other_nodes_are_no_other_event() {
        let (mut teller, mut now) = (Teller::new(), Instant::now());
        let on = |nodes: &str| Note { nodes: nodes.to_owned(), ..note("a", "full") };
        assert_eq!(on("node n1").name(), on("nodes n1, n2").name());
        assert_eq!(on("nodes n1, n2").text(), "on nodes n1, n2: full");
        teller.lasts(BTreeSet::from([on("node n1")]));
        assert_eq!(told(&mut teller, &mut now), [("full".to_owned(), 1)]);
        teller.lasts(BTreeSet::from([on("nodes n1, n2")]));
        assert_eq!(told(&mut teller, &mut now), []);
        // No node sees it for a while: it is the same one again.
        teller.lasts(BTreeSet::new());
        teller.lasts(BTreeSet::from([on("node n2")]));
        assert_eq!(told(&mut teller, &mut now), [("full".to_owned(), 2)]);
    }

    #[test]
    fn what_ended_before_it_was_told_is_not_told() {
        let (mut teller, mut now) = (Teller::new(), Instant::now());
        teller.lasts(BTreeSet::from([note("a", "x")]));
        teller.lasts(BTreeSet::new());
        assert_eq!(told(&mut teller, &mut now), []);
        teller.happened(note("a", "won"));
        teller.lasts(BTreeSet::new());
        assert_eq!(told(&mut teller, &mut now), [("won".to_owned(), 1)]);
    }

    #[test]
    fn a_failure_waits_and_a_refusal_is_left() {
        let (mut teller, now) = (Teller::new(), Instant::now());
        teller.lasts(BTreeSet::from([note("a", "x")]));
        let Next::Tell(first, 1) = teller.next(now) else { panic!("nothing to report") };
        teller.failed(&first, true, now);
        assert_eq!(teller.next(now), Next::At(now + FAILURE_WAIT));
        let Next::Tell(first, 1) = teller.next(now + FAILURE_WAIT) else { panic!("nothing to report") };
        teller.failed(&first, false, now);
        assert_eq!(teller.next(now + FAILURE_WAIT), Next::Idle);
    }

    /// A webhook of a namespace that hangs held all Events, and the one that failed was tried again before all others.
    #[test]
    fn a_namespace_whose_events_hang_delays_no_other() {
        let (mut teller, now) = (Teller::new(), Instant::now());
        let of = |namespace: &str, text: &str| {
            let mut note = note("a", text);
            note.regarding.namespace = namespace.to_owned();
            note
        };
        teller.lasts(
            (0..30).map(|number| of("hangs", &number.to_string())).chain([of("other", "x")]).collect(),
        );
        teller.happened(of("hangs", "won"));
        let sent = |teller: &mut Teller, now| {
            let mut sent = Vec::new();
            while let Next::Tell(note, 1) = teller.next(now) {
                sent.push(note);
            }
            sent
        };
        let first = sent(&mut teller, now);
        let texts: Vec<&str> = first.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(texts, ["won", "0", "x"], "two of a namespace at once");
        teller.told(&first[2], now);
        teller.failed(&first[0], true, now);
        teller.failed(&first[1], true, now);
        let second = sent(&mut teller, now);
        assert_eq!(second.len(), 2, "others of the namespace have their turn");
        assert!(second.iter().all(|note| !first.contains(note)));
        second.iter().for_each(|note| teller.told(note, now));
        // What failed again and again waits longer and longer.
        let mut now = now + FAILURE_WAIT;
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            let again = loop {
                let sent = sent(&mut teller, now);
                sent.iter().filter(|note| **note != first[0]).for_each(|note| teller.told(note, now));
                if sent.contains(&first[0]) {
                    break now;
                }
                now += Duration::from_millis(100);
            };
            teller.failed(&first[0], true, again);
            now = again + Duration::from_secs(seconds) - Duration::from_millis(100);
            let sent = sent(&mut teller, now);
            assert!(!sent.contains(&first[0]), "after {seconds} s");
            sent.iter().for_each(|note| teller.told(note, now));
            now += Duration::from_millis(100);
        }
    }

    #[test]
    fn at_most_so_many_are_in_flight() {
        let (mut teller, now) = (Teller::new(), Instant::now());
        let of = |number: usize| {
            let mut note = note("a", "x");
            note.regarding.namespace = number.to_string();
            note
        };
        teller.lasts((0..2 * LANES.own).map(of).collect());
        let sent: Vec<Next> = (0..LANES.own).map(|_| teller.next(now)).collect();
        assert!(sent.iter().all(|next| matches!(next, Next::Tell(..))));
        assert_eq!(teller.next(now), Next::At(now + Duration::from_secs(1)), "they may hang");
        // It lasts no more when its answer comes.
        teller.lasts((1..2 * LANES.own).map(of).collect());
        let Next::Tell(first, _) = &sent[0] else { panic!("nothing was sent") };
        teller.told(first, now);
        assert!(matches!(teller.next(now), Next::Tell(..)));
    }

    /// Eight tenants' webhooks that hang held all Events.
    #[test]
    fn many_namespaces_whose_events_hang_delay_no_other() {
        let (mut teller, begun) = (Teller::new(), Instant::now());
        let of = |namespace: &str, number: usize| {
            let mut note = note("a", &number.to_string());
            note.regarding.namespace = namespace.to_owned();
            note
        };
        let hang = |note: &Note| note.regarding.namespace.starts_with("hangs");
        let hanging = (0..3 * LANES.own).map(|number| of(&format!("hangs{}", number % LANES.own), number));
        teller.lasts(hanging.chain((0..100).map(|number| of("other", 100 + number))).collect());
        let (mut now, mut ends, mut others, mut in_flight_most) = (begun, Vec::new(), 0, 0);
        while others < 100 {
            match teller.next(now) {
                Next::Tell(note, _) if hang(&note) => ends.push((now + Duration::from_secs(4), note)),
                Next::Tell(note, _) => {
                    teller.told(&note, now);
                    others += 1;
                }
                Next::At(at) => {
                    let at = ends.first().map_or(at, |(end, _)| at.min(*end));
                    now = at.max(now + Duration::from_millis(1));
                }
                Next::Idle => now = ends[0].0,
            }
            // Without those that hang it takes ten seconds, and they take one of five a second.
            assert!(now - begun < Duration::from_secs(20), "{others} of 100 after {:?}", now - begun);
            while ends.first().is_some_and(|(end, _)| *end <= now) {
                teller.failed(&ends.remove(0).1, true, now);
            }
            if now >= begun + Duration::from_secs(6) {
                in_flight_most = in_flight_most.max(ends.len());
            }
        }
        assert_eq!(in_flight_most, LANES.slow);
    }

    /// Events about nodes are written to the namespace `default`, as are those of its own objects.
    #[test]
    fn events_about_cluster_scoped_objects_share_the_lanes_of_their_namespace() {
        let (mut teller, now) = (Teller::new(), Instant::now());
        let of = |namespace: &str, text: &str| {
            let mut note = note("a", text);
            note.regarding.namespace = namespace.to_owned();
            note
        };
        teller.lasts([of("", "1"), of("", "2"), of("default", "3"), of("other", "4")].into());
        let sent = |teller: &mut Teller| match teller.next(now) {
            Next::Tell(note, _) => note.text,
            other => panic!("{other:?}"),
        };
        assert_eq!([(); 3].map(|()| sent(&mut teller)), ["1", "2", "4"]);
        assert!(matches!(teller.next(now), Next::At(_)));
    }

    #[test]
    fn names_are_names_and_tell_things_apart() {
        let long = note(&format!("{}.b", "a".repeat(235)), &"ü".repeat(600));
        assert!(long.name().len() <= 253 && long.text().len() <= 1024, "{}", long.name());
        assert!(long.name().chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.'));
        assert!(!long.name().contains(".."), "{}", long.name());
        assert_ne!(note("a", "x").name(), note("a", "y").name());
        assert_eq!(note("a", "x").name(), note("a", "x").name());
    }

    #[test]
    fn many_come_at_a_rate() {
        let (mut teller, start) = (Teller::new(), Instant::now());
        teller.lasts((0..100).map(|number| note("a", &number.to_string())).collect());
        let mut now = start;
        assert_eq!(told(&mut teller, &mut now).len(), 100);
        let took = now - start;
        assert!(took > Duration::from_secs(9) && took < Duration::from_secs(11), "{took:?}");
    }

    /// All Claims were deleted by mistake, and put back.
    #[test]
    fn thousands_that_were_put_back_delay_no_warning_that_lasts() {
        let (mut teller, mut now) = (Teller::new(), Instant::now());
        let put_back =
            |number: usize| Note { goes_last: true, ..note(&format!("claim-{number}"), "put back") };
        let taken = (0..10_000).filter(|number| teller.happened_among(put_back(*number), 20)).count();
        assert_eq!((taken, teller.happened.len()), (20, 20));
        teller.lasts([note("b", "wrong")].into());
        let all = told(&mut teller, &mut now);
        assert_eq!((all.len(), all[0].0.as_str()), (21, "wrong"));
        assert!(teller.happened_among(put_back(0), 20), "none waits any more");
        assert!(teller.happened_among(Note { reason: "Other", ..put_back(0) }, 1), "others are not counted");
    }

    #[test]
    fn what_is_only_good_to_know_delays_no_warning() {
        let (mut teller, mut now) = (Teller::new(), Instant::now());
        teller.happened(Note { is_warning: false, ..note("a", "assigned") });
        teller.happened(Note { goes_last: true, ..note("d", "deprecated") });
        teller.lasts([note("b", "wrong")].into());
        teller.happened(note("c", "edited"));
        let names: Vec<String> = (0..2)
            .map(|_| match teller.next(now) {
                Next::Tell(note, _) => {
                    teller.told(&note, now);
                    note.regarding.name
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, ["c", "b"]);
        assert_eq!(told(&mut teller, &mut now), [("assigned".to_owned(), 1), ("deprecated".to_owned(), 1)]);
    }
}
