//! Requests of the command line to the API server, with the rights of this pod.

use crate::sources::kubernetes;
use kube::Client;
use std::time::Duration;

/// Why the API server gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The address of the API server is unknown.
    #[error(transparent)]
    Infer(#[from] kube::config::InferConfigError),
    /// The API server refused.
    #[error(transparent)]
    Refused(#[from] Box<kube::Error>),
    /// It did not answer in time.
    #[error("the API server does not answer")]
    Silent,
    /// An error of the operating system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Asks, and waits for the answer up to this time.
pub(super) fn ask<T, Answer>(limit: Duration, question: impl FnOnce(Client) -> Answer) -> Result<T, AskError>
where
    Answer: Future<Output = kube::Result<T>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = async {
        let client = kubernetes::connect(kube::Config::infer().await?, "command line").map_err(Box::new)?;
        Ok::<_, AskError>(question(client).await.map_err(Box::new)?)
    };
    let answer = runtime.block_on(async { tokio::time::timeout(limit, answer).await });
    answer.map_err(|_| AskError::Silent)?
}
