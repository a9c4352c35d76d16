//! The end of threads that a test starts.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when dropped, so that the threads of a scope end even if the test panics; the scope waits for them.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
