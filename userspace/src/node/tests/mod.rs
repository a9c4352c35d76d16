//! The loop that `vestibule run` and `vestibule agent` share, on an image of the maps in memory and inputs by hand.

/// A loop, its inputs, and what it is to hold.
mod scene;
/// What a file says.
mod file;
/// What a cluster says.
mod cluster;
/// What outputs say.
mod outputs;
/// Who writes.
mod hands;
