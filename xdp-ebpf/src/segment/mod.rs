//! Services that every stage may use to make and send segments. They decide nothing.

/// Our own segments, written from a description.
pub(crate) mod draft;
/// Checksums of what we make.
pub(crate) mod sums;
/// Device and link addresses towards a receiver.
pub(crate) mod next_hop;
/// Next hops that flows name by number.
pub(crate) mod hops;
/// Sends packets; no other code does.
pub(crate) mod emit;
/// Answers that XDP sends back out of the device.
pub(crate) mod back;
/// Answers to hosts of the device's own network.
pub(crate) mod reply;
/// Our own ICMP errors.
pub(crate) mod icmp_error;
