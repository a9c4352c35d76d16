//! What every stage may use to make and send segments. Decides nothing.

/// Segments of ours, written from their meaning.
pub(crate) mod draft;
/// Checksums of what we make.
pub(crate) mod sums;
/// Device, source and link addresses towards a receiver.
pub(crate) mod next_hop;
/// Puts packets on their way; the only place that sends.
pub(crate) mod emit;
/// ICMP errors of ours.
pub(crate) mod icmp_error;
