//! Bytes of waiting hellos, and how many hellos wait for each source.
//!
//! Bytes stand in places of `BUFFERS`. A place has one CPU at a time that writes to it or takes it; where none is free, the
//! oldest hello that is not whole gives way.

/// Places: taken, locked, given away.
pub(crate) mod place;
/// Bytes into places and out of them.
pub(crate) mod bytes;
/// Counts of sources.
pub(crate) mod source;

/// A place not taken in `buffers` of a pending connection.
pub(crate) const NO_BUFFER: u32 = u32::MAX;
