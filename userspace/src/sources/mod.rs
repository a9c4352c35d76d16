//! The outside world, as facts.

/// The static file.
pub mod file;
/// Where two readings of a file differ.
mod difference;
/// Notices that a file changed.
pub mod watch_file;
/// What is wrong with a static file.
pub mod check;
/// The chart's file.
pub mod chart;
/// The under cluster, watched.
pub mod kubernetes;

#[cfg(test)]
mod reading;
#[cfg(test)]
mod tests;
#[cfg(all(test, not(debug_assertions)))]
mod speed;
