//! Whose turn it is: a test that measures has the machine to itself; the others share it.

use std::sync::{Condvar, Mutex, PoisonError};

/// Tests that run now, and whether one of them is alone.
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
    /// Waits while another one is alone; who wants to be alone, until nobody else runs. It may be met by others all the
    /// time, and then is the last.
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
