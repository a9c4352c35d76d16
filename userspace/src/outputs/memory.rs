//! An image of the maps in memory: what clients would find, without a kernel. The loop's tests run on it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{CookieKeys, Done, Held, Order, Output, StartError, Word, Writer};
use crate::model::{Desired, NodeFacts};
use crate::plan::{Applied, Hop, Hops, MapsImage, plan};

/// The output; what it holds is looked at by [`Memory::image`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Image>>);

/// What it holds, and how it shall behave.
#[derive(Debug, Default)]
pub(crate) struct Image {
    /// The maps.
    pub world: MapsImage,
    /// What clients find.
    pub desired: Arc<Desired>,
    /// As the last order that was carried out said.
    pub node: NodeFacts,
    /// As the last order that was carried out said.
    pub keys: Option<CookieKeys>,
    /// It has been prepared, and not released since.
    pub is_prepared: bool,
    /// How many orders were answered.
    pub answered: usize,
    /// How often it was released.
    pub released: usize,
    /// Fails with this until it is taken away.
    pub failure: Option<fn() -> StartError>,
    /// Orders wait until this is taken away.
    pub is_slow: bool,
    applied: Applied,
    waiting: Option<Order>,
    said: Said,
}

/// What it says, and who listens.
#[derive(Debug, Default)]
struct Said {
    words: VecDeque<Word>,
    waker: Option<Waker>,
}

impl Memory {
    /// What it holds.
    pub(crate) fn image(&self) -> MutexGuard<'_, Image> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something, as if it had come to its notice.
    pub(crate) fn say(&self, word: Word) {
        let mut image = self.image();
        image.said.words.push_back(word);
        if let Some(waker) = image.said.waker.take() {
            waker.wake();
        }
    }

    /// The order that waits.
    pub(crate) fn ordered(&self) -> Option<Order> {
        self.image().waiting.clone()
    }

    /// From now on orders do not wait; what waits is carried out.
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
        self.answered += 1;
        let (problems, devices) = (Vec::new(), "memory".to_owned());
        if let Some(failure) = self.failure {
            return Held { number: order.number, outcome: Err(failure()), problems, devices };
        }
        let source = [192, 0, 2, 1].into();
        let hop = |address| (address, Hop { source, ifindex: 1, mtu: 1500 });
        let towards = order.desired.backend_addresses().into_iter().map(hop).collect();
        let plan = plan(&self.applied, &order.desired, &Hops { towards, ..Hops::default() });
        plan.changes.iter().chain(&plan.later).for_each(|change| self.world.apply(change));
        self.applied = plan.applied;
        (self.desired, self.node, self.keys) = (order.desired, order.node, order.keys);
        let done = Done { changes: plan.changes.len(), ..Done::default() };
        Held { number: order.number, outcome: Ok(done), problems, devices }
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
        image.released += 1;
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
