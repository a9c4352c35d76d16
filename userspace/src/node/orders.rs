//! The outputs as the loop sees them: what they were told to hold, and what they said since.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem::take;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use super::state::Digests;
use crate::model::{Desired, NodeFacts, Problem};
use crate::outputs::{CookieKeys, Done, Held, Order, Output, StartError, Word, Writer};

/// What all outputs shall hold.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// What clients shall find.
    pub desired: Arc<Desired>,
    /// The same by object.
    pub digests: Arc<Digests>,
    /// The node on which they shall find it.
    pub node: NodeFacts,
    /// Keys that cookies are signed with.
    pub keys: Option<CookieKeys>,
}

/// What an order follows from, besides objects of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cause {
    /// The static file was read; when that began.
    pub file: Option<Instant>,
    /// The node's network changed.
    pub network: bool,
}

impl Cause {
    fn join(self, other: Self) -> Self {
        Self { file: self.file.or(other.file), network: self.network || other.network }
    }
}

/// An order that not every output has answered.
#[derive(Debug)]
struct Waiting {
    number: u64,
    cause: Cause,
    ordered: Instant,
    desired: Arc<Desired>,
    digests: Arc<Digests>,
}

/// What became of one order, or of several that waited at once.
#[derive(Debug)]
pub(super) struct Outcome {
    /// What they followed from.
    pub cause: Cause,
    /// Since when the first of them waited.
    pub ordered: Instant,
    /// What all outputs together did.
    pub result: Result<Done, StartError>,
    /// An error: not the one of the last time.
    pub is_news: bool,
}

/// What all outputs hold.
#[derive(Clone, Debug)]
pub(super) struct InForce {
    /// What clients find.
    pub desired: Arc<Desired>,
    /// The same by object.
    pub digests: Arc<Digests>,
}

/// What one output said last of what it holds.
#[derive(Debug, Default)]
struct Said {
    /// The last order that it answered.
    number: u64,
    error: Option<StartError>,
    done: Done,
    problems: Vec<Problem>,
    devices: String,
}

/// The outputs.
pub(super) struct Orders {
    outputs: Vec<(Box<dyn Output>, Said)>,
    /// Number of the last order.
    last: u64,
    waiting: VecDeque<Waiting>,
    in_force: Option<InForce>,
    /// The configuration that was refused, and why: what is in force stays until there is another one.
    refused: Option<(Arc<Desired>, String)>,
    /// Why not all of what was ordered last is held: to be tried again.
    failed: Option<String>,
    /// Outputs whose answer to `prepare` or `release` is awaited.
    silent: usize,
    /// The first error of those that have prepared.
    unprepared: Option<StartError>,
}

/// What an output said, as far as it concerns the loop.
pub(super) enum News {
    /// All have prepared.
    Prepared(Result<(), StartError>),
    /// All have answered an order.
    Outcome(Outcome),
    /// None writes any more.
    Released,
    /// The command line said whether new connections are taken.
    Draining(bool),
}

impl Orders {
    /// These outputs; nothing is ordered yet.
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
        }
    }

    /// What an output says next. Nothing is lost when the waiting is given up.
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
        let Wanted { desired, node, keys, .. } = wanted.clone();
        Order { number: self.last, desired, node, keys, begun }
    }

    /// Does what needs no right to write.
    pub(super) fn prepare(&mut self, wanted: &Wanted) {
        let order = self.order(wanted, Instant::now());
        (self.silent, self.unprepared) = (self.outputs.len(), None);
        self.outputs.iter_mut().for_each(|(output, _)| output.prepare(order.clone()));
    }

    /// Makes all outputs hold this; what was refused is not tried again.
    pub(super) fn apply(&mut self, right: &Writer, mut wanted: Wanted, cause: Cause, begun: Instant) {
        match (&self.refused, &self.in_force) {
            (Some((refused, _)), Some(in_force)) if Arc::ptr_eq(refused, &wanted.desired) => {
                wanted.desired = Arc::clone(&in_force.desired);
                wanted.digests = Arc::clone(&in_force.digests);
            }
            _ => self.refused = None,
        }
        let order = self.order(&wanted, begun);
        self.waiting.push_back(Waiting {
            number: order.number,
            cause,
            ordered: Instant::now(),
            desired: wanted.desired,
            digests: wanted.digests,
        });
        self.outputs.iter_mut().for_each(|(output, _)| output.apply(right, order.clone()));
    }

    /// Ends writing.
    pub(super) fn release(&mut self) {
        self.waiting.clear();
        (self.failed, self.refused, self.in_force) = (None, None, None);
        self.silent = self.outputs.len();
        self.outputs.iter_mut().for_each(|(output, _)| output.release());
    }

    /// Takes up what an output said. `None`: others are to say the same. An error: it is of no use any more.
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
                if let Some((_, said)) = self.outputs.get_mut(at) {
                    *said = Said::of(held);
                }
                self.answered().map(News::Outcome)
            }
            Word::Draining(is_draining) => Some(News::Draining(is_draining)),
            Word::Gone(error) => return Err(error),
        })
    }

    /// What became of the orders that every output has answered by now.
    fn answered(&mut self) -> Option<Outcome> {
        let number = self.outputs.iter().map(|(_, said)| said.number).min()?;
        let mut cause = Cause::default();
        let (mut first, mut last) = (None, None);
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.number <= number) {
            cause = cause.join(waiting.cause);
            first.get_or_insert(waiting.ordered);
            last = Some(waiting);
        }
        let (ordered, Waiting { desired, digests, .. }) = (first?, last?);
        let mut result = Ok(Done::default());
        for (_, said) in &mut self.outputs {
            result = match (result, said.error.take()) {
                (Err(error), _) | (Ok(_), Some(error)) => Err(error),
                (Ok(done), None) => Ok(done.join(take(&mut said.done))),
            };
        }
        let before = self.failed.take();
        match &result {
            Ok(_) => {
                self.in_force = Some(InForce { desired, digests });
            }
            Err(error @ StartError::Problems(_)) => self.refused = Some((desired, error.to_string())),
            Err(error) => self.failed = Some(error.to_string()),
        }
        let is_news = self.failed != before;
        Some(Outcome { cause, ordered, result, is_news })
    }

    /// What all outputs hold; `None`: nobody knows.
    pub(super) fn in_force(&self) -> Option<&InForce> {
        self.in_force.as_ref()
    }

    /// Whether what failed is to be tried again: something did, and nothing is under way.
    pub(super) fn is_to_be_repeated(&self) -> bool {
        self.failed.is_some() && self.waiting.is_empty()
    }

    /// Why outputs do not hold what they should.
    pub(super) fn trouble(&self) -> Option<&String> {
        self.failed.as_ref().or(self.refused.as_ref().map(|(_, why)| why))
    }

    /// What the node cannot do of what is in force.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> + Clone {
        self.outputs.iter().flat_map(|(_, said)| &said.problems)
    }

    /// Names of the devices that are served.
    pub(super) fn devices(&self) -> &str {
        self.outputs.iter().map(|(_, said)| &*said.devices).find(|devices| !devices.is_empty()).unwrap_or("")
    }
}

impl Said {
    fn of(held: Held) -> Self {
        let Held { number, outcome, problems, devices } = held;
        let (done, error) = match outcome {
            Ok(done) => (done, None),
            Err(error) => (Done::default(), Some(error)),
        };
        Self { number, error, done, problems, devices }
    }
}
