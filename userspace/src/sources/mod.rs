//! The outside world, as facts.

/// The static file.
pub mod file;
/// The static file, read again and again.
pub mod reread;
/// What is wrong with a static file.
pub mod check;
/// The chart's file.
pub mod chart;
/// The under cluster, watched.
pub mod kubernetes;

#[cfg(test)]
mod tests;
#[cfg(all(test, not(debug_assertions)))]
mod speed;
