//! Active probes of backends: when ([`state`], pure) and how ([`probe`]). Each node decides on its own.

/// The schedule of probes, and the evaluation of their results. Pure.
pub mod state;
/// One probe of one backend.
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::model::{Probe, ProbeChange, Probes};
use state::Targets;

/// The most probes in progress at once. A probe uses a socket but no thread.
const AT_ONCE: usize = 256;

/// Requested changes that are not applied yet: first a new complete set, then changes of it.
#[derive(Debug, Default)]
struct Wanted {
    all: Option<Probes>,
    some: BTreeMap<SocketAddr, Option<Probe>>,
}

/// Where requested changes wait. For each backend only the last one is kept.
#[derive(Debug, Default)]
struct Inbox {
    wanted: Mutex<Wanted>,
    news: Notify,
}

impl Inbox {
    fn tell(&self, change: impl FnOnce(&mut Wanted)) {
        // No code panics while writing, so the value is consistent.
        change(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        self.news.notify_one();
    }

    fn take(&self) -> Wanted {
        std::mem::take(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Probes backends until it is dropped.
#[derive(Debug)]
pub struct Prober {
    wanted: Arc<Inbox>,
    failing: watch::Receiver<BTreeSet<SocketAddr>>,
    /// Stops the probes when the prober is dropped.
    _task: JoinSet<()>,
}

impl Prober {
    /// Starts without backends. Needs a tokio runtime.
    pub fn start() -> Self {
        let wanted = Arc::new(Inbox::default());
        let (told, failing) = watch::channel(BTreeSet::new());
        let mut task = JoinSet::new();
        task.spawn(ask_all(Arc::clone(&wanted), told));
        Self { wanted, failing, _task: task }
    }

    /// Sets the backends to probe. Those already probed keep their state.
    pub fn set(&self, probes: &Probes) {
        self.wanted.tell(|wanted| *wanted = Wanted { all: Some(probes.clone()), some: BTreeMap::new() });
    }

    /// Changes how some backends are probed, or stops probing them.
    pub fn change(&self, changes: &[ProbeChange]) {
        if !changes.is_empty() {
            self.wanted.tell(|wanted| wanted.some.extend(changes.iter().cloned()));
        }
    }

    /// Waits until the set of failing backends changes. Cancel safe: no change is lost.
    pub async fn changed(&mut self) -> BTreeSet<SocketAddr> {
        if self.failing.changed().await.is_err() {
            // The task ends only with the prober.
            std::future::pending::<()>().await;
        }
        self.failing.borrow_and_update().clone()
    }
}

async fn ask_all(inbox: Arc<Inbox>, told: watch::Sender<BTreeSet<SocketAddr>>) {
    let begun = Instant::now();
    let mut targets = Targets::default();
    let mut asked: JoinSet<(SocketAddr, Result<(), probe::Failure>)> = JoinSet::new();
    loop {
        let free = AT_ONCE.saturating_sub(asked.len());
        for probing in targets.take_due(begun.elapsed(), free) {
            asked.spawn(async move {
                let limit = Duration::from_millis(u64::from(probing.spec.timeout_ms));
                let answer = probe::ask(probing.address, probing.spec.kind, probing.name.as_ref(), limit);
                (probing.address, answer.await)
            });
        }
        let next = targets.next_due().filter(|_| asked.len() < AT_ONCE);
        tokio::select! {
            () = inbox.news.notified() => {
                let Wanted { all, some } = inbox.take();
                if let Some(probes) = all {
                    targets.set(&probes, begun.elapsed());
                }
                for (address, probe) in some {
                    targets.change(address, probe.as_ref(), begun.elapsed());
                }
            }
            () = sleep_until(begun + next.unwrap_or_default()), if next.is_some() => {}
            Some(answered) = asked.join_next() => match answered {
                Ok((address, answer)) => judge(&mut targets, address, &answer, begun.elapsed()),
                Err(error) => warn!(%error, "a probe died"),
            },
        }
        told.send_if_modified(|before| {
            let is_new = before != targets.failing();
            if is_new {
                before.clone_from(targets.failing());
            }
            is_new
        });
    }
}

fn judge(targets: &mut Targets, address: SocketAddr, answer: &Result<(), probe::Failure>, now: Duration) {
    match (targets.answered(address, answer.is_ok(), now), answer) {
        (Some(true), Err(why)) => warn!(backend = %address, %why, "the backend fails its probe"),
        (Some(false), _) => info!(backend = %address, "the backend answers its probe again"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::{ProbeKind, ProbeSpec};
    use tokio::net::TcpListener;

    #[test]
    fn a_backend_that_stops_answering_is_told_and_so_is_its_return() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = server.local_addr().unwrap();
            let spec = ProbeSpec {
                kind: ProbeKind::Tcp,
                interval_ms: 10,
                timeout_ms: 1000,
                failures: 2,
                successes: 2,
            };
            let mut prober = Prober::start();
            prober.set(&[(address, (spec, None))].into());
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(server);
            let wait = Duration::from_secs(10);
            let failing = tokio::time::timeout(wait, prober.changed()).await.unwrap();
            assert_eq!(failing, [address].into());
            let _server = TcpListener::bind(address).await.unwrap();
            let failing = tokio::time::timeout(wait, prober.changed()).await.unwrap();
            assert!(failing.is_empty());
        });
    }
}
