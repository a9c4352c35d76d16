//! Why a node's process ends.

use std::path::PathBuf;

use crate::model::Problem;
use crate::net::NetError;
use crate::outputs::StartError;

/// Why a node's process ends.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A file was refused.
    #[error("{}: {}", file.display(), lines(problems))]
    File {
        /// Its path.
        file: PathBuf,
        /// Its problems.
        problems: Vec<Problem>,
    },
    /// The address of the API server is unknown.
    #[error(transparent)]
    Infer(#[from] kube::config::InferConfigError),
    /// The client for the API server cannot be created from the configuration.
    #[error(transparent)]
    Connect(#[from] kube::Error),
    /// An error of the kernel side.
    #[error(transparent)]
    Kernel(#[from] StartError),
    /// The node's network cannot be followed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// An error about a folder or socket.
    #[error("{}: {source}", path.display())]
    Path {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An error of the operating system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
