//! When a controller competes for the leader's Lease. One whose files have never been right writes nothing but keys, so it comes after
//! others, and only for a minute at a time: one whose files were right before gets the Lease, even if it was not first.

use crate::controller::election::Election;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Without right files: before each turn, the Lease is left to others.
const DEFERS: Duration = Duration::from_secs(30);
/// Without right files: the Lease is given back.
const TURN: Duration = Duration::from_secs(60);

/// Competes until `stop`. The end of a turn, unlike that of the process, does not wait for a write of the keys in flight, the only one that such
/// a controller sends: it replaces the Secret in the version that it was made from, or creates it where there is none, so that it has no effect
/// once the next leader has written. Before that, the next leader reads it like any other. `is_known`: whether the files were right once.
pub(super) async fn campaign(
    mut election: Election,
    mut stop: oneshot::Receiver<()>,
    is_known: watch::Receiver<bool>,
) {
    let mut is_stopped = false;
    while !is_stopped {
        tokio::select! {
            () = begin(is_known.clone()) => {}
            _ = &mut stop => return,
        }
        let end = async {
            tokio::select! {
                () = end(is_known.clone()) => {}
                _ = &mut stop => is_stopped = true,
            }
        };
        election.run(end).await;
    }
}

/// Waits until a turn may begin.
async fn begin(is_known: watch::Receiver<bool>) {
    tokio::select! {
        () = known(is_known) => {}
        () = tokio::time::sleep(DEFERS) => {}
    }
}

/// Waits until a turn has to end: never, once the files are right.
async fn end(is_known: watch::Receiver<bool>) {
    tokio::select! {
        () = known(is_known) => {}
        () = tokio::time::sleep(TURN) => return,
    }
    std::future::pending().await
}

/// Waits until the files are right.
async fn known(mut is_known: watch::Receiver<bool>) {
    let waited = is_known.wait_for(|is_known| *is_known).await;
    drop(waited);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    const DAY: Duration = Duration::from_secs(86_400);

    fn run<T>(test: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(test)
    }

    async fn seconds(wait: impl Future<Output = ()>) -> Option<u64> {
        let begun = Instant::now();
        timeout(DAY, wait).await.ok().map(|()| begun.elapsed().as_secs())
    }

    /// A replica that restarted with a bad file took the Lease from one that had a good one, and kept it.
    #[test]
    fn without_right_files_turns_are_short_and_come_after_others() {
        run(async {
            let (_known, is_known) = watch::channel(false);
            assert_eq!(seconds(begin(is_known.clone())).await, Some(30));
            assert_eq!(seconds(end(is_known)).await, Some(60));
            let (_known, is_known) = watch::channel(true);
            assert_eq!(seconds(begin(is_known.clone())).await, Some(0));
            assert_eq!(seconds(end(is_known)).await, None);
        });
    }

    #[test]
    fn a_turn_begins_or_goes_on_once_the_files_are_right() {
        run(async {
            let (known, is_known) = watch::channel(false);
            let rights = async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                known.send_replace(true);
            };
            let (took, ()) = tokio::join!(seconds(begin(is_known.clone())), rights);
            assert_eq!(took, Some(10));
            known.send_replace(false);
            let rights = async {
                tokio::time::sleep(Duration::from_secs(59)).await;
                known.send_replace(true);
            };
            let (took, ()) = tokio::join!(seconds(end(is_known)), rights);
            assert_eq!(took, None, "the turn that it is on does not end");
        });
    }
}
