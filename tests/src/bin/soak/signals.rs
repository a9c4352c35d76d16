//! SIGINT and SIGTERM end the soak in order: what ran is written to the table.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static CAME: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: i32) {
    CAME.store(true, Ordering::Relaxed);
}

/// Takes both signals from now on.
pub(crate) fn take() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { sigaction(signal, &action) }.context("handling signals")?;
    }
    Ok(())
}

/// Whether one of them came.
pub(crate) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}
