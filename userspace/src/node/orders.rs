//! The orders to the outputs, and their answers, as the loop uses them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem::take;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use crate::model::{Desired, NodeFacts, Problem};
use crate::outputs::{CookieKeys, Done, Exception, Held, OnDevices, Order, Output, StartError, Word, Writer};

/// What all outputs should hold.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The state that clients should find.
    pub desired: Arc<Desired>,
    /// Every Claim up to this version is in it.
    pub claims_version: u64,
    /// What of these Claims is not in it, each with its object.
    pub left_out: Arc<[Problem]>,
    /// The node where they should find it.
    pub node: NodeFacts,
    /// Keys for signing cookies.
    pub keys: Option<CookieKeys>,
    /// Whether new connections are to be refused: Vestibule is withdrawn from the cluster or from this node.
    pub is_withdrawn: bool,
}

/// The causes of an order, other than cluster objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cause {
    /// The static file was read, starting at this time.
    pub file: Option<Instant>,
    /// The node's network changed.
    pub network: bool,
}

impl Cause {
    fn join(self, other: Self) -> Self {
        Self { file: self.file.or(other.file), network: self.network || other.network }
    }
}

/// An order that not all outputs have answered yet.
#[derive(Debug)]
struct Waiting {
    number: u64,
    cause: Cause,
    ordered: Instant,
    desired: Arc<Desired>,
    claims_version: u64,
    left_out: Arc<[Problem]>,
}

/// The result of an order, or of several that were answered together.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Their causes.
    pub cause: Cause,
    /// When the first of them was sent.
    pub ordered: Instant,
    /// The combined result of all outputs.
    pub result: Result<Done, StartError>,
    /// The failure, or its absence, differs from the last time.
    pub is_news: bool,
}

/// What all outputs hold.
#[derive(Clone, Debug)]
pub(super) struct InForce {
    /// The state that clients find.
    pub desired: Arc<Desired>,
    /// Every Claim up to this version is in it.
    pub claims_version: u64,
    /// What of these Claims is not in it, each with its object.
    pub left_out: Arc<[Problem]>,
}

/// What one output has answered.
#[derive(Debug, Default)]
struct Said {
    /// The last order that it answered.
    number: u64,
    /// Answers to orders that others have not answered yet.
    answers: VecDeque<(u64, Result<Done, StartError>)>,
    problems: Vec<Problem>,
    exceptions: Vec<Exception>,
    devices: String,
}

/// The outputs.
pub(super) struct Orders {
    outputs: Vec<(Box<dyn Output>, Said)>,
    /// The number of the last order.
    last: u64,
    waiting: VecDeque<Waiting>,
    in_force: Option<InForce>,
    /// The configuration that was refused, and why. The state in effect stays until there is another one.
    refused: Option<(Arc<Desired>, String)>,
    /// Why the last order failed. It is to be tried again.
    failed: Option<String>,
    /// The number of outputs that have not answered `prepare` or `release` yet.
    silent: usize,
    /// The first error of `prepare`.
    unprepared: Option<StartError>,
    /// What the node answers for on its segments.
    announced: OnDevices,
}

/// A message from the outputs that concerns the loop.
pub(super) enum News {
    /// All outputs have prepared.
    Prepared(Result<(), StartError>),
    /// All outputs have answered an order.
    Outcome(Outcome),
    /// No output writes any more.
    Released,
    /// The command line switched draining on or off.
    Draining(bool),
    /// An output found something that it did not hold, and repaired this many.
    Drifted(usize),
    /// The node answers for something else on its segments.
    Announces,
}

impl Orders {
    /// For these outputs, without any order yet.
    pub(super) fn new(outputs: Vec<Box<dyn Output>>) -> Self {
        Self {
            outputs: outputs.into_iter().map(|output| (output, Said::default())).collect(),
            last: 0,
            waiting: VecDeque::new(),
            in_force: None,
            refused: None,
            failed: None,
            silent: 0,
            unprepared: None,
            announced: OnDevices::new(),
        }
    }

    /// Waits for the next message of an output. Cancel safe: no message is lost.
    pub(super) async fn word(&mut self) -> (usize, Word) {
        poll_fn(|context| {
            let mut words = self.outputs.iter_mut().enumerate();
            let said = words.find_map(|(at, (output, _))| match output.holds(context) {
                Poll::Ready(word) => Some((at, word)),
                Poll::Pending => None,
            });
            said.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn order(&mut self, wanted: &Wanted, begun: Instant) -> Order {
        self.last += 1;
        let Wanted { desired, node, keys, is_withdrawn, .. } = wanted.clone();
        Order { number: self.last, desired, node, keys, is_withdrawn, begun }
    }

    /// Lets the outputs do everything that does not need the right to write.
    pub(super) fn prepare(&mut self, wanted: &Wanted) {
        let order = self.order(wanted, Instant::now());
        (self.silent, self.unprepared) = (self.outputs.len(), None);
        self.outputs.iter_mut().for_each(|(output, _)| output.prepare(order.clone()));
    }

    /// Orders all outputs to hold this. A refused configuration is not tried again.
    pub(super) fn apply(&mut self, right: &Writer, mut wanted: Wanted, cause: Cause, begun: Instant) {
        match (&self.refused, &self.in_force) {
            (Some((refused, _)), Some(in_force)) if Arc::ptr_eq(refused, &wanted.desired) => {
                wanted.desired = Arc::clone(&in_force.desired);
                wanted.claims_version = in_force.claims_version;
                wanted.left_out = Arc::clone(&in_force.left_out);
            }
            _ => self.refused = None,
        }
        let order = self.order(&wanted, begun);
        self.waiting.push_back(Waiting {
            number: order.number,
            cause,
            ordered: Instant::now(),
            desired: wanted.desired,
            claims_version: wanted.claims_version,
            left_out: wanted.left_out,
        });
        self.outputs.iter_mut().for_each(|(output, _)| output.apply(right, order.clone()));
    }

    /// Stops writing.
    pub(super) fn release(&mut self) {
        self.waiting.clear();
        (self.failed, self.refused, self.in_force) = (None, None, None);
        self.silent = self.outputs.len();
        self.outputs.iter_mut().for_each(|(output, _)| output.release());
    }

    /// Handles an output's message. `None`: other outputs must report the same first. `Err`: the output ended.
    pub(super) fn hear(&mut self, at: usize, word: Word) -> Result<Option<News>, StartError> {
        Ok(match word {
            Word::Prepared(outcome) => {
                self.silent = self.silent.saturating_sub(1);
                self.unprepared = take(&mut self.unprepared).or(outcome.err());
                (self.silent == 0).then(|| News::Prepared(take(&mut self.unprepared).map_or(Ok(()), Err)))
            }
            Word::Released => {
                self.silent = self.silent.saturating_sub(1);
                (self.silent == 0).then_some(News::Released)
            }
            Word::Holds(held) => {
                let is_news = self.outputs.get_mut(at).is_some_and(|(_, said)| said.hear(held));
                // Of an order that is over, an output may say that it holds more by now, or less.
                self.answered().map(News::Outcome).or(is_news.then_some(News::Drifted(0)))
            }
            Word::Drifted(drifted) => {
                if let Some((_, said)) = self.outputs.get_mut(at) {
                    (said.problems, said.exceptions) = (drifted.problems, drifted.exceptions);
                }
                Some(News::Drifted(drifted.repaired))
            }
            Word::Announces(announced) => {
                self.announced = announced;
                Some(News::Announces)
            }
            Word::Draining(is_draining) => Some(News::Draining(is_draining)),
            Word::Gone(error) => return Err(error),
        })
    }

    /// Returns the result of the orders that every output has answered.
    fn answered(&mut self) -> Option<Outcome> {
        let number = self.outputs.iter().map(|(_, said)| said.number).min()?;
        // One that passed over this order, for a later one, says nothing of it: the others will answer that one, too.
        if self.outputs.iter().any(|(_, said)| said.has_passed_over(number)) {
            return None;
        }
        let mut cause = Cause::default();
        let (mut first, mut last) = (None, None);
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.number <= number) {
            cause = cause.join(waiting.cause);
            first.get_or_insert(waiting.ordered);
            last = Some(waiting);
        }
        let (ordered, Waiting { desired, claims_version, left_out, .. }) = (first?, last?);
        let mut result = Ok(Done::default());
        for (_, said) in &mut self.outputs {
            result = match (result, said.take(number)) {
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
                (Ok(done), Ok(other)) => Ok(done.join(other)),
            };
        }
        let before = self.failed.take();
        match &result {
            Ok(_) => {
                self.in_force = Some(InForce { desired, claims_version, left_out });
            }
            Err(error @ StartError::Problems(_)) => self.refused = Some((desired, error.to_string())),
            Err(error) => self.failed = Some(error.to_string()),
        }
        let is_news = self.failed != before;
        Some(Outcome { cause, ordered, result, is_news })
    }

    /// What all outputs hold; `None`: unknown.
    pub(super) fn in_force(&self) -> Option<&InForce> {
        self.in_force.as_ref()
    }

    /// Returns whether to try again: an order failed, and none is waiting for answers.
    pub(super) fn is_to_be_repeated(&self) -> bool {
        self.failed.is_some() && self.waiting.is_empty()
    }

    /// Returns whether an output has not answered an order yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns why outputs do not hold what they should.
    pub(super) fn trouble(&self) -> Option<&String> {
        self.failed.as_ref().or(self.refused.as_ref().map(|(_, why)| why))
    }

    /// Returns what the node cannot do of the state in effect.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> + Clone {
        self.outputs.iter().flat_map(|(_, said)| &said.problems)
    }

    /// Returns what the outputs do not hold of the state in effect.
    pub(super) fn exceptions(&self) -> impl Iterator<Item = &Exception> + Clone {
        self.outputs.iter().flat_map(|(_, said)| &said.exceptions)
    }

    /// Returns what the node answers for on its segments, as far as it is known.
    pub(super) fn announced(&self) -> &OnDevices {
        &self.announced
    }

    /// Returns the names of the devices that are served.
    pub(super) fn devices(&self) -> &str {
        self.outputs.iter().map(|(_, said)| &*said.devices).find(|devices| !devices.is_empty()).unwrap_or("")
    }
}

impl Said {
    /// Notes an answer. Returns whether it is about an order that was answered before, and reports other problems.
    fn hear(&mut self, held: Held) -> bool {
        let Held { number, outcome, problems, exceptions, devices } = held;
        let is_again = number == self.number;
        let is_news = is_again && (&self.problems, &self.exceptions) != (&problems, &exceptions);
        if !is_again {
            self.answers.push_back((number, outcome));
        }
        (self.number, self.problems, self.exceptions, self.devices) = (number, problems, exceptions, devices);
        is_news
    }

    /// Whether it has answered a later order than this one, and not this one itself.
    fn has_passed_over(&self, number: u64) -> bool {
        let first = self.answers.front().map(|(first, _)| *first);
        first.is_some_and(|first| first > number)
    }

    /// Returns what it answered to the orders up to this one: the last answer, with what was done for those before.
    fn take(&mut self, number: u64) -> Result<Done, StartError> {
        let mut all = Done::default();
        let mut last = Ok(());
        while let Some((_, answer)) = self.answers.pop_front_if(|(other, _)| *other <= number) {
            last = answer.map(|done| all = take(&mut all).join(done));
        }
        last.map(|()| all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::memory::Memory;
    use crate::outputs::{Drifted, Pins, Word};

    /// Two outputs with orders 1 and 2, which they have not answered yet.
    fn ordered() -> (Orders, [Arc<Desired>; 2]) {
        let outputs = [Memory::default(), Memory::default()];
        outputs.iter().for_each(|output| output.image().is_slow = true);
        let mut orders = Orders::new(outputs.map(|output| Box::new(output) as Box<dyn Output>).into());
        let folder = std::env::temp_dir().join(format!("vestibule-orders-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pins = Pins::new(&folder);
        let desired = [Arc::new(Desired::default()), Arc::new(Desired::default())];
        for (claims_version, desired) in (1..).zip(&desired) {
            // Another test may have the lock for a moment.
            let right = std::iter::repeat_with(|| pins.lock()).find_map(Result::ok).unwrap();
            let (desired, node) = (Arc::clone(desired), NodeFacts::default());
            let left_out = Arc::default();
            let wanted = Wanted { desired, claims_version, left_out, node, keys: None, is_withdrawn: false };
            orders.apply(&right, wanted, Cause::default(), Instant::now());
        }
        (orders, desired)
    }

    fn holds(number: u64, outcome: Result<Done, StartError>) -> Word {
        let (problems, exceptions, devices) = (Vec::new(), Vec::new(), String::new());
        Word::Holds(Held { number, outcome, problems, exceptions, devices })
    }

    fn fails() -> Result<Done, StartError> {
        Err(StartError::ListenerIds)
    }

    /// What the loop receives: whether an order was carried out.
    fn heard(orders: &mut Orders, at: usize, word: Word) -> Option<bool> {
        match orders.hear(at, word).unwrap() {
            Some(News::Outcome(outcome)) => Some(outcome.result.is_ok()),
            Some(_) => panic!("other news"),
            None => None,
        }
    }

    /// The failure of the later order was taken for one of the earlier, and the later one for carried out.
    #[test]
    fn an_answer_counts_for_its_own_order_however_far_one_output_is_ahead() {
        let (mut orders, desired) = ordered();
        assert_eq!(heard(&mut orders, 0, holds(1, Ok(Done::default()))), None);
        assert_eq!(heard(&mut orders, 0, holds(2, fails())), None);
        assert_eq!(heard(&mut orders, 1, holds(1, Ok(Done::default()))), Some(true));
        assert!(Arc::ptr_eq(&orders.in_force().unwrap().desired, &desired[0]));
        assert_eq!(heard(&mut orders, 1, holds(2, Ok(Done::default()))), Some(false));
        assert!(orders.is_to_be_repeated() && orders.in_force().unwrap().claims_version == 1);
        let (mut orders, _) = ordered();
        for (at, number, outcome, expected) in [
            (0, 1, fails(), None),
            (0, 2, Ok(Done::default()), None),
            (1, 1, Ok(Done::default()), Some(false)),
            (1, 2, Ok(Done::default()), Some(true)),
        ] {
            assert_eq!(heard(&mut orders, at, holds(number, outcome)), expected, "{at} answers {number}");
        }
        assert!(!orders.is_to_be_repeated() && orders.in_force().unwrap().claims_version == 2);
    }

    #[test]
    fn an_order_that_one_output_passed_over_is_answered_with_the_next() {
        let (mut orders, desired) = ordered();
        assert_eq!(heard(&mut orders, 0, holds(2, Ok(Done { changes: 3, ..Done::default() }))), None);
        assert_eq!(heard(&mut orders, 1, holds(1, Ok(Done { changes: 4, ..Done::default() }))), None);
        let News::Outcome(outcome) =
            orders.hear(1, holds(2, Ok(Done { changes: 5, ..Done::default() }))).unwrap().unwrap()
        else {
            panic!("no outcome");
        };
        assert_eq!(outcome.result.unwrap().changes, 12, "what was done for both");
        assert!(Arc::ptr_eq(&orders.in_force().unwrap().desired, &desired[1]) && !orders.is_waiting());
    }

    #[test]
    fn an_output_may_report_other_problems_of_an_order_that_is_over() {
        let (mut orders, _) = ordered();
        for at in [0, 1] {
            heard(&mut orders, at, holds(2, Ok(Done::default())));
        }
        let problem = Problem::warning("settings.l2", "is not held", "wait");
        let again = |problems: Vec<Problem>| {
            let (exceptions, devices) = (Vec::new(), String::new());
            Word::Holds(Held { number: 2, outcome: Ok(Done::default()), problems, exceptions, devices })
        };
        assert!(matches!(orders.hear(1, again(vec![problem])), Ok(Some(News::Drifted(0)))));
        assert_eq!(orders.problems().count(), 1);
        assert!(matches!(orders.hear(1, again(Vec::new())), Ok(Some(News::Drifted(0)))));
        assert!(matches!(orders.hear(1, again(Vec::new())), Ok(None)));
    }

    #[test]
    fn what_an_output_finds_later_is_among_its_problems() {
        let (mut orders, _) = ordered();
        for at in [0, 1] {
            heard(&mut orders, at, holds(2, Ok(Done::default())));
        }
        for problems in [vec![Problem::warning("settings.xdpDevices", "is not used", "look")], Vec::new()] {
            let count = problems.len();
            let word = Word::Drifted(Drifted { problems, exceptions: Vec::new(), repaired: 0 });
            assert!(matches!(orders.hear(1, word), Ok(Some(News::Drifted(0)))));
            assert_eq!(orders.problems().count(), count);
        }
    }
}
