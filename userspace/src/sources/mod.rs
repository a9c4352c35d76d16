//! The outside world, as facts.

/// The static file.
pub mod file;

#[cfg(test)]
mod tests;
#[cfg(all(test, not(debug_assertions)))]
mod speed;
