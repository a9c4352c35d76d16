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
    /// An error about the pin folder.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// An error about the programs.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An error about a map.
    #[error(transparent)]
    Table(#[from] TableError),
    /// An error about a device.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// An error about the node's network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The connections of removed listeners are still being ended.
    #[error(
        "a listener waits for an id: all 65,535 are in use, and those of removed listeners are free in a moment"
    )]
    ListenerIds,
    /// Source ranges of routes that changed or are gone are still being deleted.
    #[error(
        "a route waits for room for its source ranges and admits nobody: those of other routes that are gone are deleted in a moment"
    )]
    SourceRanges,
    /// The thread that ends connections is gone.
    #[error(transparent)]
    Reaper(#[from] ReaperGone),
    /// An error of the operating system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// The thread that ends connections is gone, so connections end only when a packet triggers it.
#[derive(Debug, thiserror::Error)]
#[error("the thread that ends connections is gone")]
pub struct ReaperGone;

impl StartError {
    /// Returns whether trying again is useless: without that thread, connections do not end.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::Reaper(_))
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
