//! Which of two threads looks at the flows: the one that ends what was removed goes first, and a walk over millions of others waits for it.
//! Both at once, on few CPUs, the removal of 100,000 connections takes three times as long.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A walk that has waited for so long in all goes on beside whatever goes first: the thread of a walk has other duties, and one removal may
/// take ten seconds, or another follow it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shared by both threads. A thread that panicked leaves nothing half done.
#[derive(Clone, Debug, Default)]
pub struct Precedence(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A thread that waits is woken when a step or a [`First`] is dropped.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many go first.
    first: u32,
    /// Steps that are being taken.
    steps: u32,
    /// For how long steps of the current walk waited.
    waited: Duration,
}

/// Keeps walks from their next step until it is dropped.
#[derive(Debug)]
pub struct First<'a>(&'a Shared);

/// A step of a walk, until it is dropped.
#[derive(Debug)]
pub struct Step<'a>(&'a Shared);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        self.0.state().first -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.state().steps -= 1;
        self.0.changed.notify_all();
    }
}

impl Precedence {
    /// Keeps walks from their next step until this is dropped. Waits for the steps that are being taken.
    pub fn first(&self) -> First<'_> {
        let mut state = self.0.state();
        state.first += 1;
        let taken = self.0.changed.wait_while(state, |state| state.steps > 0);
        drop(taken.unwrap_or_else(PoisonError::into_inner));
        First(&self.0)
    }

    /// Begins a walk.
    pub fn begin(&self) {
        self.0.state().waited = Duration::ZERO;
    }

    /// Waits until a walk may take its next step, which lasts as long as this. `None`: it has waited for long enough.
    pub fn step(&self) -> Option<Step<'_>> {
        let state = self.0.state();
        if state.first > 0 && state.waited >= PATIENCE {
            return None;
        }
        let (begun, rest) = (Instant::now(), PATIENCE.saturating_sub(state.waited));
        let waited = self.0.changed.wait_timeout_while(state, rest, |state| state.first > 0);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waited += begun.elapsed();
        if state.first > 0 {
            return None;
        }
        state.steps += 1;
        Some(Step(&self.0))
    }
}

#[cfg(test)]
impl Precedence {
    /// Whether a step would not have to wait.
    pub fn allows_step(&self) -> bool {
        self.0.state().first == 0
    }

    /// Lets a walk have waited for so long that it waits no more.
    pub fn exhaust(&self) {
        self.0.state().waited = PATIENCE;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_walk_takes_no_step_while_something_else_goes_first() {
        let (precedence, (sender, steps)) = (Precedence::default(), mpsc::channel());
        let first = precedence.first();
        let walk = precedence.clone();
        let walk = thread::spawn(move || {
            for step in 0..3 {
                drop(walk.step());
                sender.send(step).unwrap();
            }
        });
        assert!(steps.recv_timeout(Duration::from_millis(100)).is_err());
        drop(first);
        assert!(steps.iter().eq(0..3));
        walk.join().unwrap();
        // Parts of a walk are read at once.
        let (_one, _other) = (precedence.step(), precedence.step());
    }

    /// The thread of a walk has hellos to reset at their time limits, too, and among millions of flows it takes ten seconds to end those
    /// of a route.
    #[test]
    fn a_walk_waits_for_no_more_than_a_second_for_one_that_goes_first_for_longer() {
        let (precedence, (sender, waited)) = (Precedence::default(), mpsc::channel());
        let _first = precedence.first();
        let walk = precedence.clone();
        // Not joined: it would wait as long as this holds the walks.
        let _walk = thread::spawn(move || {
            walk.begin();
            let begun = Instant::now();
            let goes_beside = walk.step().is_none();
            sender.send((goes_beside, begun.elapsed())).unwrap();
        });
        let (goes_beside, waited) = waited.recv_timeout(60 * PATIENCE).expect("it waits on");
        assert!(goes_beside && waited >= PATIENCE, "{waited:?}");
    }

    /// A roll-out removes backends one after the other: hellos would reach no time limit, and no flow be asked.
    #[test]
    fn a_walk_that_was_kept_waiting_by_one_removal_after_the_other_goes_on() {
        const EACH: Duration = Duration::from_millis(400);
        let precedence = Precedence::default();
        precedence.begin();
        let goes_beside = (0..6).any(|_| {
            let (first, walk) = (precedence.first(), precedence.clone());
            let walk = thread::spawn(move || walk.step().is_none());
            thread::sleep(EACH);
            drop(first);
            walk.join().unwrap()
        });
        assert!(goes_beside, "it waited for six in succession");
        precedence.begin();
        assert!(precedence.step().is_some(), "the next one waits again");
    }
}
