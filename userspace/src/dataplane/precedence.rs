//! Which of two threads looks at the flows: the one that ends what was removed goes first, and a walk over millions of others waits for it.
//! Both at once, on few CPUs, the removal of 100,000 connections takes three times as long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// A walk that has waited for longer in all goes on beside whatever goes first: the thread of a walk has other duties, and removals may
/// follow one another without an end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shared by both threads. Nothing is behind the lock: a thread that panicked leaves nothing half done.
#[derive(Clone, Debug, Default)]
pub struct Precedence(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lock: RwLock<()>,
    /// For how long steps of the current walk waited, nanoseconds.
    waited: AtomicU64,
}

impl Precedence {
    /// Keeps walks from their next step until this is dropped.
    pub fn first(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a walk.
    pub fn begin(&self) {
        self.0.waited.store(0, Ordering::Relaxed);
    }

    /// Waits until a walk may take its next step, which lasts as long as this. `None`: it has waited for long enough.
    pub fn step(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let waited = &self.0.waited;
        if u128::from(waited.load(Ordering::Relaxed)) >= PATIENCE.as_nanos() {
            return None;
        }
        let begun = Instant::now();
        let step = self.0.lock.read().unwrap_or_else(PoisonError::into_inner);
        waited.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Some(step)
    }
}

#[cfg(test)]
impl Precedence {
    /// Whether a step would not have to wait.
    pub fn allows_step(&self) -> bool {
        self.0.lock.try_read().is_ok()
    }

    /// Lets a walk have waited for so long that it waits no more.
    pub fn exhaust(&self) {
        self.0.waited.store(PATIENCE.as_nanos() as u64, Ordering::Relaxed);
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

    /// A roll-out removes backends one after the other: hellos would reach no time limit, and no flow be asked.
    #[test]
    fn a_walk_that_has_waited_for_a_second_goes_on() {
        let precedence = Precedence::default();
        precedence.exhaust();
        let first = precedence.first();
        assert!(precedence.step().is_none());
        drop(first);
        precedence.begin();
        assert!(precedence.step().is_some(), "the next one waits again");
    }
}
