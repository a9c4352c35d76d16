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
}

/// How a step ends.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Names the step, the reason and what to try.
    pub(crate) fn new(step: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { step: step.into(), reason: reason.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "failed: {}", self.step)?;
        writeln!(f, "reason: {}", self.reason)?;
        write!(f, "try:    {}", self.remedy)
    }
}
