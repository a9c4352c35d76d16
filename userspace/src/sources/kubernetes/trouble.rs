//! Why a watch ended, and what follows from that.

use kube::core::Status;
use std::fmt;
use std::time::Duration;

/// Why a watch ended before its time.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The version we know is too old to go on from: a full list is needed. Nothing is stale, the first time.
    Expired,
    /// The server gives no lists as streams: pages it is.
    NoStreaming,
    /// The server does not know the kind; its CRD may just be coming or going.
    NotFound(String),
    /// The version we know is of another history (etcd was restored, a server lags behind).
    OtherHistory(String),
    /// The server sent nothing for this long, where something was due.
    Silent(Duration),
    /// Anything else: refused, broken, unreachable.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("the version to go on from is too old"),
            Self::NoStreaming => f.write_str("lists are not given as streams"),
            Self::Silent(waited) => write!(f, "the API server sent nothing for {} s", waited.as_secs()),
            Self::NotFound(why) | Self::OtherHistory(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<kube::Error> for Trouble {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => (*status).into(),
            other => Self::Failed(chain(&other)),
        }
    }
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        let Status { code, message, reason, .. } = status;
        // Servers that do not know the former (before 1.27) refuse the latter, which belongs to it.
        let names_streams =
            ["sendInitialEvents", "resourceVersionMatch"].iter().any(|name| message.contains(name));
        let refused = matches!(code, 400 | 403 | 422) && names_streams;
        let told = format!("{code} {reason}: {message}");
        match code {
            _ if refused => Self::NoStreaming,
            410 => Self::Expired,
            404 => Self::NotFound(told),
            _ if message.contains("Too large resource version") => Self::OtherHistory(told),
            _ => Self::Failed(told),
        }
    }
}

/// An error with its causes: what kube says first is often only which step failed.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
