//! Why an output does not hold what it should.

use crate::dataplane::attach::AttachError;
use crate::dataplane::load::LoadError;
use crate::dataplane::pin::PinError;
use crate::dataplane::table::TableError;
use crate::model::Problem;
use crate::net::NetError;
use crate::net::sysctl::ForwardingOff;

/// Why an output does not hold what it should.
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
    Reaper(#[from] ReaperGone),
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// The thread that ends connections is gone, and with it everything that is not triggered by a packet.
#[derive(Debug, thiserror::Error)]
#[error("the thread that ends connections is gone")]
pub struct ReaperGone;

impl StartError {
    /// Whether nothing can be done about it by trying again: without that thread nothing ends connections.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::Reaper(_))
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
