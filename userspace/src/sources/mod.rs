//! The outside world, as facts.

/// The static file.
pub mod file;
/// The chart's file.
pub mod chart;

#[cfg(test)]
mod tests;
#[cfg(all(test, not(debug_assertions)))]
mod speed;
