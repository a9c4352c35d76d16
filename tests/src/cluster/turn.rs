//! Turns between tests: a test that measures has the machine to itself; other tests share it.

use std::sync::{Condvar, Mutex, PoisonError};

/// The tests that run now, and whether one of them is alone.
struct Users {
    sharing: usize,
    alone: bool,
}

static USERS: Mutex<Users> = Mutex::new(Users { sharing: 0, alone: false });
static CHANGED: Condvar = Condvar::new();

/// Held while a test runs.
#[derive(Debug)]
pub(super) struct Turn {
    alone: bool,
}

impl Turn {
    /// Waits while another test is alone. A test that wants to be alone also waits until no other test runs.
    /// Others may start before it, so it may be the last to run.
    pub(super) fn take(alone: bool) -> Self {
        let users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut users = CHANGED
            .wait_while(users, |users| users.alone || alone && users.sharing > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if alone {
            users.alone = true;
        } else {
            users.sharing += 1;
        }
        Self { alone }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        if self.alone {
            users.alone = false;
        } else {
            users.sharing -= 1;
        }
        CHANGED.notify_all();
    }
}
