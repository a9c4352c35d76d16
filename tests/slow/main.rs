//! Loads that take minutes: `cargo xtask test slow`. Any other run of the tests uses a short form of each.

mod hellos;
mod largest;
mod loads;
mod strangers;
