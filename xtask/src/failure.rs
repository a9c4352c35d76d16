//! What went wrong, why, and what to try.

use std::fmt;

/// A step that did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What was being done.
    step: String,
    /// Why it did not work.
    reason: String,
    /// What the reader can do about it.
    remedy: String,
    /// Whether it has already been printed.
    told: bool,
}

/// The result of a step.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Names the step, the reason and what to try.
    pub(crate) fn new(step: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { step: step.into(), reason: reason.into(), remedy: remedy.into(), told: false }
    }

    /// Prints the failure, once.
    pub(crate) fn tell(&mut self) {
        if !std::mem::replace(&mut self.told, true) {
            eprintln!("\n{self}");
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "failed: {}", self.step)?;
        writeln!(f, "reason: {}", self.reason)?;
        write!(f, "try:    {}", self.remedy)
    }
}
