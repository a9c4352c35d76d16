//! An image of the maps in memory: what clients would find, without a kernel. The tests of the loop use it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{CookieKeys, Done, Held, Order, Output, StartError, Word, Writer};
use crate::model::{Desired, NodeFacts};
use crate::plan::{Applied, Hop, Hops, MapsImage, plan};

/// The output. [`Memory::image`] shows what it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Image>>);

/// What it holds, and how it should behave.
#[derive(Debug, Default)]
pub(crate) struct Image {
    /// The maps.
    pub world: MapsImage,
    /// The state that clients find.
    pub desired: Arc<Desired>,
    /// The node of the last order that was carried out.
    pub node: NodeFacts,
    /// The keys of the last order that was carried out.
    pub keys: Option<CookieKeys>,
    /// Whether new connections are refused.
    pub is_withdrawn: bool,
    /// It has been prepared, and not released since.
    pub is_prepared: bool,
    /// What was asked of it.
    pub counts: Counts,
    /// While set, every order fails with this error.
    pub failure: Option<fn() -> StartError>,
    /// While set, orders wait.
    pub is_slow: bool,
    applied: Applied,
    waiting: Option<Order>,
    said: Said,
}

/// Counts of what was asked.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The number of orders that were answered.
    pub answered: usize,
    /// The number of times it was released.
    pub released: usize,
}

/// Its messages, and the waker of their receiver.
#[derive(Debug, Default)]
struct Said {
    words: VecDeque<Word>,
    waker: Option<Waker>,
}

impl Memory {
    /// Returns what it holds.
    pub(crate) fn image(&self) -> MutexGuard<'_, Image> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, as if something had happened in the kernel.
    pub(crate) fn say(&self, word: Word) {
        let mut image = self.image();
        image.said.words.push_back(word);
        if let Some(waker) = image.said.waker.take() {
            waker.wake();
        }
    }

    /// Returns the order that waits.
    pub(crate) fn ordered(&self) -> Option<Order> {
        self.image().waiting.clone()
    }

    /// Carries out the waiting order. Later orders do not wait.
    pub(crate) fn hurry(&self) {
        self.image().is_slow = false;
        let waiting = self.image().waiting.take();
        if let Some(order) = waiting {
            self.carry_out(order);
        }
    }

    fn carry_out(&self, order: Order) {
        let held = self.image().hold(order);
        self.say(Word::Holds(held));
    }
}

impl Image {
    fn hold(&mut self, order: Order) -> Held {
        self.counts.answered += 1;
        let (problems, exceptions, devices) = (Vec::new(), Vec::new(), "memory".to_owned());
        if let Some(failure) = self.failure {
            return Held { number: order.number, outcome: Err(failure()), problems, exceptions, devices };
        }
        let source = [192, 0, 2, 1].into();
        let hop = |address| (address, Hop { source, ifindex: 1, mtu: 1500, is_on_link: true });
        let towards = order.desired.backend_addresses().into_iter().map(hop).collect();
        self.is_withdrawn = order.is_withdrawn;
        let plan = plan(&self.applied, &order.desired, &Hops { towards, ..Hops::default() });
        plan.changes.iter().chain(&plan.later).for_each(|change| self.world.apply(change));
        self.applied = plan.applied;
        (self.desired, self.node, self.keys) = (order.desired, order.node, order.keys);
        let done = Done { changes: plan.changes.len(), ..Done::default() };
        Held { number: order.number, outcome: Ok(done), problems, exceptions, devices }
    }
}

impl Output for Memory {
    fn prepare(&mut self, _: Order) {
        let failure = self.image().failure;
        self.image().is_prepared = failure.is_none();
        self.say(Word::Prepared(failure.map_or(Ok(()), |failure| Err(failure()))));
    }

    fn apply(&mut self, _: &Writer, order: Order) {
        let is_slow = self.image().is_slow;
        match is_slow {
            true => self.image().waiting = Some(order),
            false => self.carry_out(order),
        }
    }

    fn release(&mut self) {
        let mut image = self.image();
        image.is_prepared = false;
        image.counts.released += 1;
        drop(image);
        self.say(Word::Released);
    }

    fn holds(&mut self, context: &mut Context<'_>) -> Poll<Word> {
        let mut image = self.image();
        match image.said.words.pop_front() {
            Some(word) => Poll::Ready(word),
            None => {
                image.said.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
