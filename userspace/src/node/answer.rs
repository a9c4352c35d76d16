//! How the API server answers a request of an agent's reports, or why it did not.

use std::time::Duration;

use tokio::time::timeout;

use crate::sources::kubernetes::api::lease_report::LeaseReport;

/// The time limit for the answer to a write.
const ANSWER: Duration = Duration::from_secs(5);

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    Refused(#[from] Box<kube::Error>),
    #[error("no answer within {ANSWER:?}")]
    Silent,
}

impl WriteError {
    /// Another client wrote, or our copy of the object is outdated: read it again.
    pub(super) fn is_outdated(&self) -> bool {
        matches!(self, Self::Refused(error)
            if matches!(&**error, kube::Error::Api(status) if matches!(status.code, 404 | 409)))
    }

    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(error) if matches!(&**error, kube::Error::Api(status) if status.code == 403))
    }

    /// Returns what is wrong, for others, as much as the Lease takes. The API server's own message is in the log: it may name versions and
    /// times, and what says something else at each attempt would be news each time.
    pub(super) fn why(&self) -> String {
        let why = match self {
            Self::Refused(error) => match &**error {
                kube::Error::Api(status) => format!("{} {}", status.code, status.reason),
                other => other.to_string(),
            },
            silent @ Self::Silent => silent.to_string(),
        };
        LeaseReport::unwritten_reason(why.trim_end())
    }

    /// The API server has not written it.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(error) if matches!(&**error, kube::Error::Api(status) if status.code < 500))
    }
}

/// Waits for the answer to a request.
pub(super) async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
    timeout(ANSWER, request).await.map_err(|_| WriteError::Silent)?.map_err(|e| Box::new(e).into())
}
