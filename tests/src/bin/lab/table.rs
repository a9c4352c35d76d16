//! The table of steps, printed row by row.

use std::time::Instant;

use anyhow::Result;

const WHAT: usize = 58;
const RESULT: usize = 52;

/// Counts steps and prints one row each.
#[derive(Debug, Default)]
pub(crate) struct Table {
    steps: u32,
    /// The current step, for messages.
    pub(crate) what: String,
}

impl Table {
    /// Creates the table and prints its header.
    pub(crate) fn new() -> Self {
        row("step", "what", "result", "ms");
        row(&"-".repeat(4), &"-".repeat(WHAT), &"-".repeat(RESULT), &"-".repeat(8));
        Self::default()
    }

    /// Runs a step, prints its result and how long it took.
    pub(crate) fn step<T>(&mut self, what: &str, work: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        self.steps += 1;
        what.clone_into(&mut self.what);
        let start = Instant::now();
        let (value, result) = work()?;
        let ms = format!("{:.1}", start.elapsed().as_secs_f64() * 1000.0);
        row(&self.steps.to_string(), what, &result, &ms);
        Ok(value)
    }

    /// The number of the current step.
    pub(crate) fn number(&self) -> u32 {
        self.steps
    }
}

fn row(step: &str, what: &str, result: &str, ms: &str) {
    println!("{step:>4}  {what:WHAT$}  {result:RESULT$}  {ms:>8}");
}
