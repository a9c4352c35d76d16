//! The thread that writes: one task after the other, of orders that wait only the last one.

use std::mem::replace;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, warn};

use super::control::{Control, Options, Prepared};
use crate::outputs::{Done, Held, Order, StartError, Word};

/// How often the maps are asked what the command line wrote into them.
const LOOK: Duration = Duration::from_secs(1);

/// What the thread is asked for, as [`crate::outputs::Output`] says.
#[derive(Debug)]
pub(super) enum Task {
    Prepare(Box<Order>),
    Apply(Box<Order>),
    Release,
}

/// How far the thread is.
enum Stage {
    /// It has not prepared anything.
    Idle,
    /// It waits for the first order.
    Prepared(Box<Prepared>),
    /// It writes.
    Writing(Box<Control>),
}

/// What the thread has.
pub(super) struct Worker {
    options: Options,
    tasks: Receiver<Task>,
    words: UnboundedSender<Word>,
    stage: Stage,
    is_draining: bool,
}

impl Worker {
    /// With nothing done yet.
    pub(super) fn new(options: Options, tasks: Receiver<Task>, words: UnboundedSender<Word>) -> Self {
        Self { options, tasks, words, stage: Stage::Idle, is_draining: false }
    }

    /// Serves until nobody asks any more.
    pub(super) fn serve(mut self) {
        let mut next = None;
        loop {
            let task = match next.take() {
                Some(task) => task,
                None => match self.tasks.recv_timeout(LOOK) {
                    Ok(task) => task,
                    Err(RecvTimeoutError::Timeout) => {
                        self.look();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            };
            match task {
                Task::Prepare(order) => self.prepare(&order),
                Task::Apply(order) => {
                    let (last, other) = self.last(order);
                    next = other;
                    self.apply(*last);
                    self.look();
                }
                Task::Release => {
                    if let Stage::Writing(control) = replace(&mut self.stage, Stage::Idle) {
                        control.release();
                    }
                    self.say(Word::Released);
                }
            }
        }
    }

    /// The last of the orders that wait, and what waits behind it.
    fn last(&self, mut order: Box<Order>) -> (Box<Order>, Option<Task>) {
        while let Ok(task) = self.tasks.try_recv() {
            match task {
                Task::Apply(newer) => {
                    debug!(number = order.number, "gives way to a newer order");
                    order = newer;
                }
                other => return (order, Some(other)),
            }
        }
        (order, None)
    }

    fn prepare(&mut self, order: &Order) {
        let prepared = Prepared::new(&self.options, order).map(|prepared| {
            self.stage = Stage::Prepared(Box::new(prepared));
        });
        self.say(Word::Prepared(prepared));
    }

    fn apply(&mut self, order: Order) {
        let number = order.number;
        let outcome = match replace(&mut self.stage, Stage::Idle) {
            Stage::Writing(mut control) => {
                let outcome = control.follow(order);
                self.stage = Stage::Writing(control);
                outcome
            }
            Stage::Prepared(prepared) => self.begin(*prepared, order),
            Stage::Idle => {
                Prepared::new(&self.options, &order).and_then(|prepared| self.begin(prepared, order))
            }
        };
        let (problems, devices) = match &self.stage {
            Stage::Writing(control) => (control.problems().to_vec(), control.devices()),
            _ => Default::default(),
        };
        self.say(Word::Holds(Held { number, outcome, problems, devices }));
    }

    fn begin(&mut self, prepared: Prepared, order: Order) -> Result<Done, StartError> {
        let (pins, begun) = (&self.options.pins, order.begun);
        let is_fresh = !pins.holds_maps();
        match Control::begin(pins, prepared, order) {
            Ok(control) => {
                self.stage = Stage::Writing(Box::new(control));
                Ok(Done { took: begun.elapsed(), ..Default::default() })
            }
            Err(error) => {
                // A start that failed leaves nothing behind, but what was there before it is not its to remove.
                if self.options.is_strict
                    && is_fresh
                    && let Err(error) = pins.remove()
                {
                    warn!(%error, "what the failed start made is still there");
                }
                Err(error)
            }
        }
    }

    /// Reads back what the command line wrote.
    fn look(&mut self) {
        let Stage::Writing(control) = &self.stage else { return };
        match control.is_draining() {
            Ok(is_draining) if is_draining != self.is_draining => {
                self.is_draining = is_draining;
                self.say(Word::Draining(is_draining));
            }
            Ok(_) => {}
            Err(error) => debug!(%error, "whether the node drains cannot be read"),
        }
    }

    /// Nobody listens any more: then nobody asks either, and the thread ends.
    fn say(&self, word: Word) {
        drop(self.words.send(word));
    }
}
