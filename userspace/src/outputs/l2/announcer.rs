//! The thread that announces. What it wrote to the map, and which groups devices let pass, stays when it ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use super::announcements::{Announcements, Brought, Target};
use super::foreign::Foreign;
use super::shown::Survey;
use super::task::{Served, Task};
use crate::dataplane::pin::Pins;
use crate::dataplane::table::TableError;
use crate::model::{Node, Problem, Segments};
use crate::outputs::{Done, Held, OnDevices, OnSegment, Order, Word, now_ns};

/// The longest wait for a task.
const LOOK: Duration = Duration::from_secs(60);
/// After this time what could not be done is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The most tasks that are carried out before what is due.
const TASKS: usize = 8_192;

/// The state of the thread.
pub(super) struct Announcer {
    tasks: Receiver<Task>,
    words: UnboundedSender<Word>,
    /// The last order, and the last answer of the maps' output, until both are there.
    order: Option<Box<Order>>,
    served: Option<Served>,
    /// Devices that had no carrier since their addresses were announced: what was sent there reached nobody.
    cut_off: BTreeSet<u32>,
    /// The number of the order that was answered last; 0: none was.
    number: u64,
    target: Target,
    announcements: Announcements,
    /// Why the kernel does not hold all of the target, and when to try again.
    failed: Option<(String, Instant)>,
    /// What no further try changes, as reported, and when it was looked for.
    problems: (Vec<Problem>, Instant),
    /// [`Announcements::changes`] and what the node announces, as reported last; `None`: not yet.
    said: Option<(u64, OnDevices)>,
    seen: Seen,
}

/// What was found at the last look at everything, and where others read of it.
struct Seen {
    survey: Survey,
    counts: Segments,
    foreign: Foreign,
}

impl Seen {
    fn set(&mut self, mut survey: Survey) {
        self.counts.set(std::mem::take(&mut survey.counts));
        self.foreign.set(survey.foreign());
        self.survey = survey;
    }
}

impl Announcer {
    /// One that has done nothing yet. `node` is the node's name in its cluster; `sender` sends it tasks.
    pub(super) fn new(
        pins: Pins,
        node: Option<Arc<str>>,
        (sender, tasks): (Sender<Task>, Receiver<Task>),
        words: UnboundedSender<Word>,
        (counts, foreign): (Segments, Foreign),
    ) -> Self {
        Self {
            tasks,
            words,
            order: None,
            served: None,
            cut_off: BTreeSet::new(),
            number: 0,
            target: Target::default(),
            announcements: Announcements::new(pins, node, sender),
            failed: None,
            problems: (Vec::new(), Instant::now()),
            said: None,
            seen: Seen { survey: Survey::default(), counts, foreign },
        }
    }

    /// Serves until it is to end.
    pub(super) fn serve(mut self) {
        loop {
            let wait = self.due().map_or(LOOK, |due| due.saturating_duration_since(Instant::now()));
            match self.tasks.recv_timeout(wait) {
                Ok(Task::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(task) => self.take(task),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Also where tasks come faster than they are carried out.
            if self.due().is_none_or(|due| due > Instant::now()) {
                continue;
            }
            // What arrived before counts before.
            for task in self.tasks.try_iter().take(TASKS).collect::<Vec<_>>() {
                match task {
                    Task::End => return,
                    task => self.take(task),
                }
            }
            self.turn();
        }
    }

    fn due(&self) -> Option<Instant> {
        let again = self.failed.as_ref().map(|(_, time)| *time);
        [self.announcements.due(), again].into_iter().flatten().min()
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Prepare => self.say(Word::Prepared(Ok(()))),
            Task::Apply(order) => {
                // Also of orders that are passed over.
                let links = order.node.network.links.iter();
                self.cut_off.extend(links.filter(|(_, link)| !link.has_carrier).map(|(device, _)| *device));
                self.order = Some(order);
                self.settle();
            }
            Task::Served(served) => {
                self.served = Some(served);
                self.settle();
            }
            Task::Received(received) => self.announcements.received(&received),
            // Who asked may have gone.
            Task::Show { from, answer } => {
                drop(answer.send(self.announcements.page(from, &self.target, Instant::now())));
            }
            Task::Release => {
                (self.order, self.served, self.failed) = (None, None, None);
                self.target = Target::default();
                self.problems.0.clear();
                self.announcements.leave(Instant::now());
                self.said = None;
                self.seen.set(Survey::default());
                self.say(Word::Released);
            }
            Task::End => {}
        }
    }

    /// Carries out the last order once the maps' output has answered it: either of both may come first. Of an order that failed
    /// there, only the network is followed.
    fn settle(&mut self) {
        let (Some(order), Some(served)) = (&self.order, &self.served) else { return };
        if order.number != served.number {
            return;
        }
        let (Some(order), Some(served)) = (self.order.take(), self.served.take()) else { return };
        let Order { number, desired, node, keys, is_withdrawn, begun } = *order;
        self.number = number;
        let mut changes = 0;
        if let Some(devices) = served.devices {
            if served.is_whole {
                self.target.desired = desired;
            }
            let before = std::mem::take(&mut self.target);
            self.target = Target {
                desired: before.desired,
                network: node.network,
                devices,
                announcement: node.announcement,
                keys,
                is_withdrawn,
                is_draining: node.is_draining,
                leading: served.leading,
            };
            changes = self.bring();
        }
        // Before the answer: what is reported of the node once it holds its first order says it, too.
        self.say_announced(false);
        self.hold(Done { changes, took: begun.elapsed(), ..Done::default() });
        self.turn();
    }

    /// Does what is due.
    fn turn(&mut self) {
        if self.failed.as_ref().is_some_and(|(_, time)| *time <= Instant::now()) {
            let changes = self.bring();
            self.hold(Done { changes, ..Done::default() });
        }
        // In this order: a process that is stopped in between is late, and its stamp is none of later.
        let now_ns = now_ns();
        let now = Instant::now();
        let mut is_news = match self.announcements.turn(now, now_ns) {
            Ok(()) => false,
            Err(error) => self.note(Some(error.to_string())),
        };
        if now.duration_since(self.problems.1) >= AGAIN {
            self.seen.set(self.announcements.survey(&self.target, now));
            let problems = self.announcements.problems(&self.seen.survey, &self.target.network);
            is_news |= problems != self.problems.0;
            self.problems = (problems, now);
            self.say_announced(true);
        }
        if is_news {
            self.hold(Done::default());
        }
    }

    /// Reports what is held. What is missing is a problem, and no failure: what the maps serve is in force without it.
    fn hold(&self, done: Done) {
        let problem = |(why, _): &(String, Instant)| {
            Problem::warning(
                "announced addresses",
                why.clone(),
                "fix what it names; it is tried again every second",
            )
        };
        let problems = self.failed.iter().map(problem).chain(self.problems.0.iter().cloned()).collect();
        let (exceptions, devices) = (Vec::new(), String::new());
        self.say(Word::Holds(Held { number: self.number, outcome: Ok(done), problems, exceptions, devices }));
    }

    /// Brings the kernel in step with the target. Returns the number of map writes.
    fn bring(&mut self) -> usize {
        let now = Instant::now();
        let brought = self.announcements.bring(&self.target, now);
        let Brought { changes, failed } = brought
            .unwrap_or_else(|error: TableError| Brought { changes: 0, failed: Some(error.to_string()) });
        self.note(failed);
        let returned = returned(&mut self.cut_off, &self.target.network);
        self.announcements.again(&returned, now);
        changes
    }

    /// Notes what failed, for another try. Returns whether it is something else than before.
    fn note(&mut self, failed: Option<String>) -> bool {
        let is_news = failed.as_ref() != self.failed.as_ref().map(|(why, _)| why);
        if let Some(why) = failed.as_ref().filter(|_| is_news) {
            warn!(why, "not all addresses are announced; tried again every second");
        }
        // What fails again and again does not put the next try off.
        let now = Instant::now();
        let before = self.failed.as_ref().map(|(_, again)| *again).filter(|again| *again > now);
        self.failed = failed.map(|why| (why, before.unwrap_or(now + AGAIN)));
        is_news
    }

    /// Reports what the node announces, if that is something else than before. `is_surveyed`: all was looked at just now.
    fn say_announced(&mut self, is_surveyed: bool) {
        let Some(changes) = self.announcements.changes() else { return };
        let before = self.said.as_ref();
        let is_same = |(number, said): &(u64, OnDevices)| {
            let is_quiet = |on: &OnSegment| on.conflicts.is_empty() && on.unheard.is_empty();
            // Walking through all addresses each second is not needed for what changes rarely.
            let is_surveyed_same =
                !is_surveyed || (self.seen.survey.is_quiet() && said.values().all(is_quiet));
            *number == changes && is_surveyed_same
        };
        if before.is_some_and(is_same) {
            return;
        }
        let now = self.announcements.on_devices(&self.seen.survey, &self.target.network);
        if self.said.as_ref().is_none_or(|(_, before)| *before != now) {
            self.say(Word::Announces(now.clone()));
        }
        self.said = Some((changes, now));
    }

    /// Sends a message. If the receiver is gone, no tasks arrive either, and the thread ends.
    fn say(&self, word: Word) {
        drop(self.words.send(word));
    }
}

/// Returns the devices that have a carrier again, which are not cut off any more.
fn returned(cut_off: &mut BTreeSet<u32>, network: &Node) -> BTreeSet<u32> {
    let has_carrier = |device: &u32| network.links.get(device).is_some_and(|link| link.has_carrier);
    cut_off.retain(|device| network.links.contains_key(device));
    cut_off.extract_if(.., |device| has_carrier(device)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Desired, Link, NodeFacts};
    use std::path::Path;
    use std::sync::mpsc;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn announcer() -> (Announcer, UnboundedReceiver<Word>) {
        let (words, said) = unbounded_channel();
        let counts = Segments::default();
        (
            Announcer::new(
                Pins::new(Path::new("/nowhere")),
                None,
                mpsc::channel(),
                words,
                (counts, Foreign::default()),
            ),
            said,
        )
    }

    fn order(number: u64, desired: &Arc<Desired>) -> Task {
        let (desired, node, begun) = (Arc::clone(desired), NodeFacts::default(), Instant::now());
        Task::Apply(Box::new(Order { number, desired, node, keys: None, is_withdrawn: false, begun }))
    }

    fn served(number: u64, is_whole: bool) -> Task {
        Task::Served(Served { number, is_whole, devices: Some([2].into()), leading: [].into() })
    }

    /// The numbers that were answered.
    fn answered(said: &mut UnboundedReceiver<Word>) -> Vec<u64> {
        let words = std::iter::from_fn(|| said.try_recv().ok());
        words.map(|word| if let Word::Holds(held) = word { held.number } else { 0 }).collect()
    }

    #[test]
    fn an_order_waits_for_its_own_answer_of_the_maps() {
        let desired = Arc::new(Desired::default());
        for tasks in [[order(7, &desired), served(7, true)], [served(7, true), order(7, &desired)]] {
            let (mut this, mut said) = announcer();
            this.take(served(6, true));
            tasks.into_iter().for_each(|task| this.take(task));
            assert_eq!(answered(&mut said), [7]);
            assert!(Arc::ptr_eq(&this.target.desired, &desired));
        }
        // One that the maps passed over for the next is not carried out.
        let (mut this, mut said) = announcer();
        this.take(order(4, &desired));
        this.take(served(5, true));
        assert_eq!(answered(&mut said), [0; 0]);
        this.take(order(5, &desired));
        assert_eq!(answered(&mut said), [5]);
    }

    #[test]
    fn what_the_maps_refused_is_not_announced_and_the_network_is_followed() {
        let (good, bad) = (Arc::new(Desired::default()), Arc::new(Desired::default()));
        for tasks in [[order(2, &bad), served(2, false)], [served(2, false), order(2, &bad)]] {
            let (mut this, mut said) = announcer();
            [order(1, &good), served(1, true)].into_iter().for_each(|task| this.take(task));
            this.target.devices.clear();
            tasks.into_iter().for_each(|task| this.take(task));
            assert_eq!(answered(&mut said), [1, 2]);
            assert!(Arc::ptr_eq(&this.target.desired, &good));
            assert_eq!(this.target.devices, [2].into());
        }
    }

    #[test]
    fn a_failure_is_a_problem_and_is_tried_again() {
        let (mut this, mut said) = announcer();
        let desired = Arc::new(Desired::default());
        [order(1, &desired), served(1, true)].into_iter().for_each(|task| this.take(task));
        let Ok(Word::Holds(held)) = said.try_recv() else { panic!("no answer") };
        assert!(held.outcome.is_ok() && held.problems[0].to_string().contains("no map SEGMENTS"), "{held:?}");
        let (_, again) = this.failed.clone().unwrap();
        this.failed = this.failed.map(|(why, _)| (why, Instant::now()));
        this.turn();
        assert_eq!(answered(&mut said), [1]);
        assert!(this.failed.unwrap().1 > again - AGAIN);
    }

    /// Also where it was without one only in orders that the maps passed over.
    #[test]
    fn a_device_that_has_a_carrier_again_announces_its_addresses() {
        let node = |has_carrier| Node {
            links: [(2, Link { has_carrier, ..Link::default() })].into(),
            ..Node::default()
        };
        let (mut this, _said) = announcer();
        let desired = Arc::new(Desired::default());
        for (number, has_carrier) in [(1, true), (2, false), (3, true)] {
            let Task::Apply(mut order) = order(number, &desired) else { panic!("another task") };
            order.node.network = Arc::new(node(has_carrier));
            this.take(Task::Apply(order));
        }
        assert_eq!(this.cut_off, [2].into());
        assert_eq!(returned(&mut this.cut_off, &node(false)), [].into());
        assert_eq!(returned(&mut this.cut_off, &node(true)), [2].into());
        assert_eq!(returned(&mut this.cut_off, &node(true)), [].into());
        this.cut_off.insert(3);
        assert_eq!((returned(&mut this.cut_off, &node(true)), this.cut_off), ([].into(), [].into()), "gone");
    }
}
