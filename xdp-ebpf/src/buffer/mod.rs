//! Bytes of waiting hellos, and the number of waiting hellos of each source.
//!
//! The bytes are stored in slots of `BUFFERS`. Only one CPU at a time writes to a slot or takes it. When none
//! is free, the oldest hello is evicted; complete ones count as younger.

/// Slots: taken, locked, evicted.
pub(crate) mod place;
/// Copies bytes into buffers and back.
pub(crate) mod bytes;
/// Loads payload into the window.
pub(crate) mod window;
/// Counts the waiting hellos of sources.
pub(crate) mod source;

/// In `buffers` of a pending connection: no slot is taken.
pub(crate) const NO_BUFFER: u32 = u32::MAX;
