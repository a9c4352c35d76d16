//! Why the kernel is not in step.

use super::keeper::KeeperGone;
use crate::dataplane::attach::AttachError;
use crate::dataplane::load::LoadError;
use crate::dataplane::pin::PinError;
use crate::dataplane::table::TableError;
use crate::model::Problem;
use crate::net::NetError;
use crate::net::sysctl::ForwardingOff;

/// Why the kernel is not in step.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be used on this node.
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
    /// The devices cannot be used.
    #[error("{}", .0.join("\n"))]
    Devices(Vec<String>),
    /// The kernel does not forward.
    #[error(transparent)]
    Forwarding(#[from] ForwardingOff),
    /// The pin folder.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The programs.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A device.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The node's network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The thread that ends connections.
    #[error(transparent)]
    Keeper(#[from] KeeperGone),
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
