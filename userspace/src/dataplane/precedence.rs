//! Which of two threads looks at the flows: the one that ends what was removed goes first, and a walk over millions of others waits for it.
//! Both at once, on few CPUs, the removal of 100,000 connections takes three times as long.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Shared by both threads. Nothing is behind the lock: a thread that panicked leaves nothing half done.
#[derive(Clone, Debug, Default)]
pub struct Precedence(Arc<RwLock<()>>);

impl Precedence {
    /// Keeps walks from their next step until this is dropped.
    pub fn first(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a walk may take its next step, which lasts as long as this.
    pub fn step(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Precedence {
    /// Whether a step would not have to wait.
    pub fn allows_step(&self) -> bool {
        self.0.try_read().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

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
}
