//! Why a node's process ends.

use std::path::PathBuf;

use crate::model::Problem;
use crate::net::NetError;
use crate::outputs::StartError;

/// Why a node's process ends.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A file is refused.
    #[error("{}: {}", file.display(), lines(problems))]
    File {
        /// Which one.
        file: PathBuf,
        /// Why.
        problems: Vec<Problem>,
    },
    /// It does not know where the API server is.
    #[error(transparent)]
    Infer(#[from] kube::config::InferConfigError),
    /// It cannot be asked as we were told.
    #[error(transparent)]
    Connect(#[from] kube::Error),
    /// The kernel's side.
    #[error(transparent)]
    Kernel(#[from] StartError),
    /// The node's network cannot be followed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A folder or socket.
    #[error("{}: {source}", path.display())]
    Path {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
