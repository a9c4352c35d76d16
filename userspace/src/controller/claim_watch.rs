//! Follows the Claims, and reports them to the loop.

use super::agents::watching;
use super::claims::{ClaimNews, Stored};
use crate::sources::kubernetes::api::claim::Claim;
use futures_util::StreamExt;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

/// Maximum duration of a watch, in seconds; it is then restarted, so that a silent one does not last.
const WATCH_SECS: u32 = 290;

/// The watch of all Claims.
pub(super) struct ClaimWatch {
    news: mpsc::Receiver<ClaimNews>,
    /// Aborts the watch when dropped.
    _watch: JoinSet<()>,
}

impl ClaimWatch {
    /// Starts the watch. Needs a tokio runtime.
    pub(super) fn start(client: &Client) -> Self {
        let (outbox, news) = mpsc::channel(256);
        let mut watch = JoinSet::new();
        watch.spawn(follow(Api::all(client.clone()), outbox));
        Self { news, _watch: watch }
    }

    /// Returns what it reports next. Cancel-safe.
    pub(super) async fn next(&mut self) -> ClaimNews {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Returns what it has reported already.
    pub(super) fn more(&mut self) -> Option<ClaimNews> {
        self.news.try_recv().ok()
    }
}

async fn follow(api: Api<Claim>, outbox: mpsc::Sender<ClaimNews>) {
    let config = watcher::Config::default().timeout(WATCH_SECS);
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let (mut listed, mut trouble) = (BTreeMap::new(), None);
    while let Some(event) = events.next().await {
        let is_good = event.is_ok();
        let news = match event {
            Ok(watcher::Event::Init) => {
                listed = BTreeMap::new();
                None
            }
            Ok(watcher::Event::InitApply(claim)) => {
                listed.insert(claim.name_any(), stored(claim));
                None
            }
            Ok(watcher::Event::InitDone) => Some(ClaimNews::Listed(std::mem::take(&mut listed))),
            Ok(watcher::Event::Apply(claim)) => {
                Some(ClaimNews::Put(claim.name_any(), Box::new(stored(claim))))
            }
            Ok(watcher::Event::Delete(claim)) => Some(ClaimNews::Gone(claim.name_any())),
            Err(error) => {
                let error = watching(&error);
                if trouble.as_ref() != Some(&error) {
                    warn!("Claims cannot be watched, and none is written: {error}");
                }
                trouble = Some(error);
                None
            }
        };
        if is_good {
            trouble = None;
        }
        if let Some(news) = news
            && outbox.send(news).await.is_err()
        {
            return;
        }
    }
}

fn stored(claim: Claim) -> Stored {
    let (uid, version) = (claim.uid().unwrap_or_default(), claim.resource_version().unwrap_or_default());
    Stored { spec: claim.spec, version, uid }
}
