//! The thread that writes. Carries out one task after the other; of several waiting orders only the last.

use std::mem::replace;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, warn};

use super::control::Control;
use super::prepared::{Options, Prepared};
use crate::dataplane::front;
use crate::outputs::l2::Served;
use crate::outputs::{Done, Held, Order, StartError, Word};

/// The interval for looking at what other programs wrote into the maps.
const LOOK: Duration = Duration::from_secs(1);

/// A task for the thread, as described in [`crate::outputs::Output`].
#[derive(Debug)]
pub(super) enum Task {
    Prepare(Box<Order>),
    Apply(Box<Order>),
    Release,
}

/// The stage that the thread has reached.
enum Stage {
    /// Nothing is prepared.
    Idle,
    /// Prepared; waits for the first order.
    Prepared(Box<Prepared>),
    /// Writes the maps.
    Writing(Box<Control>),
}

/// The state of the thread.
pub(super) struct Worker {
    options: Options,
    tasks: Receiver<Task>,
    words: UnboundedSender<Word>,
    stage: Stage,
    is_draining: bool,
    /// What the last order says.
    is_withdrawn: bool,
    /// When it last looked for drift.
    looked: Instant,
}

impl Worker {
    /// A worker that has done nothing yet.
    pub(super) fn new(options: Options, tasks: Receiver<Task>, words: UnboundedSender<Word>) -> Self {
        Self {
            options,
            tasks,
            words,
            stage: Stage::Idle,
            is_draining: false,
            is_withdrawn: false,
            looked: Instant::now(),
        }
    }

    /// Serves until the other end of the channel is closed.
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

    /// Returns the last of the waiting orders, and the task behind it.
    fn last(&self, mut order: Box<Order>) -> (Box<Order>, Option<Task>) {
        while let Ok(task) = self.tasks.try_recv() {
            match task {
                Task::Apply(newer) => {
                    debug!(number = order.number, "superseded by a newer order");
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
        self.is_withdrawn = order.is_withdrawn;
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
        self.report(number, outcome.is_ok());
        let (problems, exceptions, devices) = match &self.stage {
            Stage::Writing(control) => (control.problems(), control.exceptions(), control.devices()),
            _ => Default::default(),
        };
        self.say(Word::Holds(Held { number, outcome, problems, exceptions, devices }));
    }

    /// Reports to other outputs what the maps lead to after an order.
    fn report(&self, number: u64, is_whole: bool) {
        let control = match &self.stage {
            Stage::Writing(control) => Some(control),
            _ => None,
        };
        let held = control.map(|control| control.held());
        if let Some(served) = &self.options.served {
            let devices = control.map(|control| control.attached().clone());
            let leading = held.map(|(applied, desired)| applied.leading(desired)).unwrap_or_default();
            served.send(Served { number, is_whole, devices, leading });
        }
        if let Some(health) = &self.options.health {
            // After a start, nobody knows yet what the command line wrote before.
            let is_draining = control.and_then(|control| control.withdraw(self.is_withdrawn).ok());
            let is_refusing = self.is_withdrawn || is_draining.unwrap_or(self.is_draining);
            health.send(
                held.map(|(applied, desired)| applied.health(desired)).unwrap_or_default(),
                is_refusing,
            );
        }
    }

    fn begin(&mut self, prepared: Prepared, order: Order) -> Result<Done, StartError> {
        let (pins, begun) = (&self.options.pins, order.begun);
        let is_fresh = !pins.holds_maps();
        match Control::begin(&self.options, prepared, order) {
            Ok(control) => {
                self.stage = Stage::Writing(Box::new(control));
                Ok(Done { took: begun.elapsed(), ..Default::default() })
            }
            Err(error) => {
                // A failed start removes what it created, but not what existed before.
                if self.options.is_strict
                    && is_fresh
                    && let Err(error) = front::detach_all(pins).and_then(|()| pins.remove())
                {
                    warn!(%error, "what the failed start made is still there");
                }
                Err(error)
            }
        }
    }

    /// Finishes removals, reads what the command line wrote, and looks for what other programs changed.
    fn look(&mut self) {
        let Stage::Writing(control) = &mut self.stage else { return };
        if let Err(error) = control.finish_removals() {
            warn!(%error, "not all that is gone is forgotten");
        }
        // Not more often, however many orders there are.
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            if let Some(drifted) = control.look_for_drift() {
                drop(self.words.send(Word::Drifted(drifted)));
            }
        }
        match control.withdraw(self.is_withdrawn) {
            Ok(is_draining) if is_draining != self.is_draining => {
                self.is_draining = is_draining;
                self.say(Word::Draining(is_draining));
            }
            Ok(_) => {}
            Err(error) => debug!(%error, "whether the node drains cannot be read"),
        }
    }

    /// Sends a message. If the receiver is gone, no tasks arrive either, and the thread ends.
    fn say(&self, word: Word) {
        drop(self.words.send(word));
    }
}
