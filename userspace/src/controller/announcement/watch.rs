//! Follows the object that says what the cluster announces.

use super::Stored;
use crate::sources::kubernetes::api::announcement::{Announcement, NAME};
use crate::sources::kubernetes::{Named, Target, follow_some};
use kube::{Client, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The watch of it.
pub(in crate::controller) struct AnnouncementWatch {
    news: mpsc::Receiver<Named<Stored>>,
    /// Why it cannot be followed at present.
    stale: Option<String>,
    /// Aborts the watch when dropped.
    _watch: JoinSet<()>,
}

impl AnnouncementWatch {
    /// Starts the watch. Needs a tokio runtime.
    pub(in crate::controller) fn start(client: &Client) -> Self {
        let (outbox, news) = mpsc::channel(16);
        let mut watch = JoinSet::new();
        let target = Target::all::<Announcement>(None).named(NAME);
        watch.spawn(follow_some(client.clone(), target, stored, outbox));
        Self { news, stale: None, _watch: watch }
    }

    /// Returns what it reports next. Cancel-safe.
    pub(in crate::controller) async fn next(&mut self) -> Named<Stored> {
        while let Some(named) = self.news.recv().await {
            match named {
                Named::Stale(why) => self.stale = Some(why),
                Named::Fresh => self.stale = None,
                news => return news,
            }
        }
        std::future::pending().await
    }

    /// Why it cannot be followed at present.
    pub(in crate::controller) fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }
}

fn stored(announcement: Announcement) -> Stored {
    let uid = announcement.uid().unwrap_or_default();
    let version = announcement.resource_version().unwrap_or_default();
    Stored { spec: announcement.spec, version, uid }
}
