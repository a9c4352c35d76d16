//! Loads that take minutes: `cargo xtask test slow`. Whatever else runs the tests gets a short form of each.

mod hellos;
