//! The node's network according to rtnetlink: devices, addresses, the next hop to each backend. Always in the
//! network namespace of the calling thread.

/// Requests to the kernel and their answers.
mod netlink;
/// Devices, own addresses, default routes.
pub mod node;
/// The next hop to each backend.
pub mod egress;
/// Link addresses of next hops.
pub mod neighbour;
/// The devices by which clients on the node itself reach VIPs.
pub mod pair;
/// Notices changes of these.
pub mod watch;
/// Programs on devices, attached by classic traffic control.
pub mod filters;
/// Membership of devices in multicast groups.
pub mod groups;
/// Frames sent and received as they are.
pub mod frames;
/// How many frames devices received.
pub mod received;
/// Offloads of devices.
pub mod ethtool;
/// Forwarding and port ranges from `/proc/sys/net`.
pub mod sysctl;

pub use netlink::NetError;
