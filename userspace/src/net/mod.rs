//! The node's network as rtnetlink tells it: devices, addresses, the way to each backend. Always that of the calling
//! thread's network namespace.

/// Questions to the kernel and their answers.
mod netlink;
/// Devices, own addresses, default routes.
pub mod node;
/// The way to each backend.
pub mod egress;
/// When any of it changes.
pub mod watch;
/// Programs on devices by way of classic traffic control.
pub mod filters;
/// Offloads of devices.
pub mod ethtool;
/// What `/proc/sys/net` says.
pub mod sysctl;

pub use netlink::NetError;
