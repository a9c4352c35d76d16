use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use common::wire::heartbeat::{self, Heartbeat};
use common::wire::{arp, ndp};
use tests::net::Namespace;
use tests::ports::{Passed, Ports, mark, marked};
use tests::tap::Tap;
use userspace::net::frames::claim;

/// How often hosts ask for each address.
const EVERY: Duration = Duration::from_millis(25);
/// How long a frame may take to where it is captured.
const PATIENCE: Duration = Duration::from_secs(20);

/// What happened on the segment.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Of [`Record::mark`].
    Mark(u32),
    /// A host said by its port that it has an address.
    Claim { at: Instant, port: String, address: IpAddr, link: [u8; 6] },
    /// A heartbeat came from the host at a port (`is_out`: went to it).
    Beat { port: String, is_out: bool, link: [u8; 6], beat: Heartbeat },
}

/// A host that asks for addresses all the time.
pub(super) type Asker<'a> = &'a Namespace;

/// A capture of all ports of the segment, in order, while hosts ask for addresses.
pub(super) struct Record {
    events: Arc<Mutex<Vec<Event>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<u32>>,
    marks: AtomicU32,
    marker: (Tap, [u8; 6]),
}

impl Record {
    /// Captures at the ports of these names of the bridge's namespace. Each host asks by its device `uplink`.
    pub(super) fn start(
        bridge: &Namespace,
        ports: &[String],
        askers: &[Asker<'_>],
        addresses: &[IpAddr],
    ) -> Self {
        let open = |host: &Asker<'_>| (Tap::open(host, "uplink").unwrap(), host.mac("uplink").unwrap());
        let names = ports.iter().map(|port| (bridge.ifindex(port).unwrap(), port.clone())).collect();
        let capture = Ports::open(bridge).unwrap();
        let questions: Vec<(Tap, Vec<Vec<u8>>)> =
            askers.iter().map(open).map(|(tap, from)| (tap, questions(addresses, from))).collect();
        let (events, ends) = (Arc::<Mutex<Vec<Event>>>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (events, ends) = (Arc::clone(&events), Arc::clone(&ends));
            spawn(move || run(&capture, &names, &questions, &events, &ends))
        };
        let (thread, marker) = (Some(thread), open(&askers[0]));
        Self { events, ends, thread, marks: AtomicU32::new(0), marker }
    }

    /// Marks this moment: what passed before is before it in the capture, and what is done from now on has its effect after it.
    pub(super) fn mark(&self) -> u32 {
        let number = self.marks.fetch_add(1, Ordering::Relaxed);
        self.marker.0.send(&mark(self.marker.1, number)).unwrap();
        let begun = Instant::now();
        while !self.so_far().iter().any(|event| matches!(event, Event::Mark(seen) if *seen == number)) {
            assert!(begun.elapsed() < PATIENCE, "the mark is not captured");
            sleep(Duration::from_millis(5));
        }
        number
    }

    /// What was captured so far.
    pub(super) fn so_far(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Ends the capture, of which no frame may be missing.
    pub(super) fn end(mut self) -> Events {
        // What was sent so far is captured, too.
        self.mark();
        self.ends.store(true, Ordering::Relaxed);
        let lost = self.thread.take().unwrap().join().unwrap();
        assert_eq!(lost, 0, "the capture dropped frames");
        Events(self.so_far())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The frames by which a host that knows nothing asks for addresses.
fn questions(addresses: &[IpAddr], from: [u8; 6]) -> Vec<Vec<u8>> {
    let question = |address: &IpAddr| match address {
        IpAddr::V4(address) => arp::probe(*address, from).to_vec(),
        IpAddr::V6(address) => ndp::probe(*address, from).to_vec(),
    };
    addresses.iter().map(question).collect()
}

/// Asks and captures until the end. Returns how many frames were lost.
fn run(
    capture: &Ports,
    names: &BTreeMap<u32, String>,
    askers: &[(Tap, Vec<Vec<u8>>)],
    events: &Mutex<Vec<Event>>,
    ends: &AtomicBool,
) -> u32 {
    loop {
        // Read before the last frames are taken.
        let is_last = ends.load(Ordering::Relaxed);
        for (tap, questions) in askers {
            // The answers are in the capture.
            tap.drain().unwrap();
            questions.iter().for_each(|question| tap.send(question).unwrap());
        }
        let passed = capture.drain().unwrap();
        let seen = passed.iter().filter_map(|passed| event(passed, names));
        events.lock().unwrap().extend(seen);
        if is_last {
            return capture.lost().unwrap();
        }
        sleep(EVERY);
    }
}

fn event(passed: &Passed, names: &BTreeMap<u32, String>) -> Option<Event> {
    // Others are the bridge itself, whatever joins two bridges, and loopback.
    let port = names.get(&passed.device)?.clone();
    let (frame, is_out) = (&passed.bytes, passed.is_out);
    let link = *frame.get(6..12)?.first_chunk()?;
    if let Some(number) = marked(frame) {
        return (!is_out).then_some(Event::Mark(number));
    }
    if frame.get(12..14)? == heartbeat::ETHER_TYPE.to_be_bytes() {
        let beat = Heartbeat::read(frame.get(14..)?.first_chunk()?)?;
        return Some(Event::Beat { port, is_out, link, beat });
    }
    let (address, link) = claim(frame).filter(|_| !is_out)?;
    Some(Event::Claim { at: Instant::now(), port, address, link })
}

/// What a capture shows, in order.
#[derive(Debug)]
pub(super) struct Events(Vec<Event>);

impl Events {
    /// What came after a mark.
    pub(super) fn after(&self, mark: u32) -> Self {
        let is_it = |event: &Event| matches!(event, Event::Mark(number) if *number == mark);
        let at = self.0.iter().position(is_it).unwrap();
        Self(self.0[at..].to_vec())
    }

    /// What came before a mark.
    pub(super) fn before(&self, mark: u32) -> Self {
        let is_it = |event: &Event| matches!(event, Event::Mark(number) if *number == mark);
        let at = self.0.iter().position(is_it).unwrap();
        Self(self.0[..at].to_vec())
    }

    /// What passed these ports.
    pub(super) fn at(&self, ports: &[&str]) -> Self {
        let is_there = |event: &&Event| match event {
            Event::Claim { port, .. } | Event::Beat { port, .. } => ports.contains(&&**port),
            Event::Mark(_) => true,
        };
        Self(self.0.iter().filter(is_there).cloned().collect())
    }

    /// Who said to have an address, one after the other: who comes back is listed again.
    pub(super) fn turns(&self, address: IpAddr) -> Vec<[u8; 6]> {
        let mut links: Vec<_> = self.claims(address).map(|(_, link, _)| link).collect();
        links.dedup();
        links
    }

    /// How long nobody answered while an address moved from the one that answered first; nothing if it did not move.
    pub(super) fn silence(&self, address: IpAddr) -> Option<Duration> {
        let claims: Vec<_> = self.claims(address).map(|(_, link, at)| (link, at)).collect();
        let moved = claims.windows(2).find(|pair| pair[0].0 != pair[1].0)?;
        Some(moved[1].1.duration_since(moved[0].1))
    }

    /// The greatest age of an agent's stamp that its node's answers show.
    pub(super) fn age(&self, of: [u8; 6]) -> Duration {
        let answers = self.0.iter().filter_map(|event| match event {
            Event::Beat { is_out: false, link, beat, .. } if *link == of => Some(beat),
            Event::Beat { .. } | Event::Claim { .. } | Event::Mark(_) => None,
        });
        let ages = answers.filter(|beat| beat.kind == heartbeat::ANSWER).map(|beat| beat.stamp_age_ms);
        Duration::from_millis(ages.max().unwrap_or_default().into())
    }

    /// How often a node said that it has an address after an answer of its kernel had shown a stamp of this age, and no younger one since.
    pub(super) fn claims_at_age(&self, of: [u8; 6], age: Duration) -> usize {
        let mut is_old = false;
        let mut is_late = |event: &&Event| match event {
            Event::Beat { is_out: false, link, beat, .. }
                if *link == of && beat.kind == heartbeat::ANSWER =>
            {
                is_old = Duration::from_millis(beat.stamp_age_ms.into()) > age;
                false
            }
            Event::Claim { link, .. } => is_old && *link == of,
            Event::Beat { .. } | Event::Mark(_) => false,
        };
        self.0.iter().filter(|event| is_late(event)).count()
    }

    /// The number of heartbeats that went to a port, of this host.
    pub(super) fn received(&self, at: &str, from: [u8; 6]) -> usize {
        let is_it = |event: &&Event| matches!(event, Event::Beat { port, is_out: true, link, .. } if port == at && *link == from);
        self.0.iter().filter(is_it).count()
    }

    /// How many questions both of two nodes had sent when `one` of them said for the last time that it has an address.
    pub(super) fn beats_until_silent(&self, address: IpAddr, one: [u8; 6], other: [u8; 6]) -> usize {
        let is_claim = |event: &Event| matches!(event, Event::Claim { address: of, link, .. } if (*of, *link) == (address, one));
        let Some(last) = self.0.iter().rposition(is_claim) else { return 0 };
        let asked = |node: [u8; 6]| {
            let is_question = |event: &&Event| {
                matches!(event, Event::Beat { is_out: false, link, beat, .. }
                    if *link == node && beat.kind == heartbeat::ASK)
            };
            self.0[..last].iter().filter(is_question).count()
        };
        asked(one).min(asked(other))
    }

    fn claims(&self, of: IpAddr) -> impl Iterator<Item = (String, [u8; 6], Instant)> + '_ {
        self.0.iter().filter_map(move |event| match event {
            Event::Claim { port, address, link, at } if *address == of => Some((port.clone(), *link, *at)),
            Event::Claim { .. } | Event::Beat { .. } | Event::Mark(_) => None,
        })
    }
}
