//! Follows the Claims, and reports them to the loop.

use super::claim_store::{ClaimNews, Stored};
use crate::sources::kubernetes::api::claim::{Claim, WITHDRAWN};
use crate::sources::kubernetes::{Named, follow};
use kube::{Client, ResourceExt};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// After this time a list of which the API server knows nothing is not waited for: the definition of Claims is missing, and they with it.
const PATIENCE: Duration = Duration::from_secs(15);

/// The watch of all Claims.
pub(super) struct ClaimWatch {
    news: mpsc::Receiver<Named<Stored>>,
    /// Why they cannot be followed at present.
    stale: Option<String>,
    since: Instant,
    /// Aborts the watch when dropped.
    _watch: JoinSet<()>,
}

impl ClaimWatch {
    /// Starts the watch, with a list of what the API server has now. Needs a tokio runtime.
    pub(super) fn start(client: &Client) -> Self {
        let (outbox, news) = mpsc::channel(256);
        let mut watch = JoinSet::new();
        watch.spawn(follow(client.clone(), stored, outbox));
        Self { news, stale: None, since: Instant::now(), _watch: watch }
    }

    /// Returns what it reports next. Cancel-safe.
    pub(super) async fn next(&mut self) -> ClaimNews {
        while let Some(named) = self.news.recv().await {
            if let Some(news) = self.read(named) {
                return news;
            }
        }
        std::future::pending().await
    }

    /// Returns what it has reported already.
    pub(super) fn more(&mut self) -> Option<ClaimNews> {
        while let Ok(named) = self.news.try_recv() {
            if let Some(news) = self.read(named) {
                return Some(news);
            }
        }
        None
    }

    /// Why they cannot be followed at present.
    pub(super) fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }

    /// Whether its list is to be waited for, however long it takes: to judge without it is to judge as if nobody had been granted anything.
    pub(super) fn may_be_listed(&self) -> bool {
        may_be_listed(self.stale(), self.since.elapsed())
    }

    fn read(&mut self, named: Named<Stored>) -> Option<ClaimNews> {
        match named {
            Named::Listed(all, version) => Some(ClaimNews::Listed(all, version.parse().unwrap_or_default())),
            Named::Put(name, stored) => Some(ClaimNews::Put(name, Box::new(stored))),
            Named::Gone(name) => Some(ClaimNews::Gone(name)),
            Named::Stale(why) => {
                self.stale = Some(why);
                None
            }
            Named::Fresh => {
                self.stale = None;
                None
            }
        }
    }
}

/// The same of one that was asked for so long ago, and cannot be followed for this reason.
fn may_be_listed(stale: Option<&str>, asked: Duration) -> bool {
    // As `Trouble` says it.
    asked <= PATIENCE || !stale.is_some_and(|why| why.starts_with("404 "))
}

fn stored(claim: Claim) -> Stored {
    let (uid, version) = (claim.uid().unwrap_or_default(), claim.resource_version().unwrap_or_default());
    let is_withdrawn = claim.annotations().contains_key(WITHDRAWN);
    Stored { spec: claim.spec, version, uid, is_withdrawn }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new leader that went on without them took addresses from who had been granted them, in statuses, until the list came.
    #[test]
    fn only_a_list_that_nothing_is_known_of_is_not_waited_for() {
        let missing = "404 NotFound: the server could not find the requested resource";
        assert!(may_be_listed(Some(missing), PATIENCE));
        assert!(!may_be_listed(Some(missing), PATIENCE + Duration::from_millis(1)));
        for passes in
            ["503 ServiceUnavailable: x", "403 Forbidden: x", "client error (Connect)", "a list of 404 pages"]
        {
            assert!(may_be_listed(Some(passes), 100 * PATIENCE), "{passes}");
        }
        assert!(may_be_listed(None, 100 * PATIENCE), "it is slow");
    }
}
