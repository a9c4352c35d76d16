//! The orders to the outputs, and their answers, as the loop uses them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem::take;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use crate::model::{Desired, NodeFacts, Problem};
use crate::outputs::{CookieKeys, Done, Exception, Held, Order, Output, StartError, Word, Writer};

/// What all outputs should hold.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The state that clients should find.
    pub desired: Arc<Desired>,
    /// Every Claim up to this version is in it.
    pub claims_version: u64,
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
}

/// The last answer of one output.
#[derive(Debug, Default)]
struct Said {
    /// The last order that it answered.
    number: u64,
    error: Option<StartError>,
    done: Done,
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
                if let Some((_, said)) = self.outputs.get_mut(at) {
                    *said = Said::of(held);
                }
                self.answered().map(News::Outcome)
            }
            Word::Drifted(drifted) => {
                if let Some((_, said)) = self.outputs.get_mut(at) {
                    said.exceptions = drifted.exceptions;
                }
                Some(News::Drifted(drifted.repaired))
            }
            Word::Draining(is_draining) => Some(News::Draining(is_draining)),
            Word::Gone(error) => return Err(error),
        })
    }

    /// Returns the result of the orders that every output has answered.
    fn answered(&mut self) -> Option<Outcome> {
        let number = self.outputs.iter().map(|(_, said)| said.number).min()?;
        let mut cause = Cause::default();
        let (mut first, mut last) = (None, None);
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.number <= number) {
            cause = cause.join(waiting.cause);
            first.get_or_insert(waiting.ordered);
            last = Some(waiting);
        }
        let (ordered, Waiting { desired, claims_version, .. }) = (first?, last?);
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
                self.in_force = Some(InForce { desired, claims_version });
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

    /// Returns the names of the devices that are served.
    pub(super) fn devices(&self) -> &str {
        self.outputs.iter().map(|(_, said)| &*said.devices).find(|devices| !devices.is_empty()).unwrap_or("")
    }
}

impl Said {
    fn of(held: Held) -> Self {
        let Held { number, outcome, problems, exceptions, devices } = held;
        let (done, error) = match outcome {
            Ok(done) => (done, None),
            Err(error) => (Done::default(), Some(error)),
        };
        Self { number, error, done, problems, exceptions, devices }
    }
}
