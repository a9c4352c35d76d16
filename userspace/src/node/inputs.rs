//! The inputs of the loop. Each is a task that waits and sends to one common queue.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, warn};

use super::daemon_set::Membership;
use super::keys::{KeyNews, KeyWatch};
use crate::model::Node;
use crate::net::NetError;
use crate::net::watch::Watch;
use crate::outputs::CookieKeys;
use crate::sources::kubernetes::Stale;
use crate::sources::watch_file::FileWatch;

/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The delay between attempts to read the zone.
const ZONE_AGAIN: Duration = Duration::from_secs(10);
/// The delay after a failed attempt to read the node's network.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An input to the loop.
#[derive(Debug)]
pub(super) enum Input {
    /// A configuration file may have changed: it was written, or SIGHUP was received.
    File,
    /// Devices, addresses or routes of the node changed. `Err`: they can no longer be followed.
    Network(Result<Arc<Node>, NetError>),
    /// These backends fail their probes.
    Failing(BTreeSet<SocketAddr>),
    /// The cookie keys that all nodes share.
    Keys(CookieKeys),
    /// Whether these cannot be followed, and why; `None`: they can be.
    KeysStale(Option<Stale>),
    /// The node's zone.
    Zone(Option<Arc<str>>),
    /// SIGTERM or SIGINT was received.
    End,
}

/// The inputs that are followed.
#[derive(Debug)]
pub(super) struct Inputs {
    sender: UnboundedSender<Input>,
    received: UnboundedReceiver<Input>,
    /// The tasks end with the loop.
    tasks: JoinSet<()>,
    /// `None`: the process is of no DaemonSet.
    membership: Option<Membership>,
}

impl Inputs {
    /// Follows no input yet.
    pub(super) fn new() -> Self {
        let (sender, received) = unbounded_channel();
        Self { sender, received, tasks: JoinSet::new(), membership: None }
    }

    /// Returns a sender for another input.
    pub(super) fn sender(&self) -> UnboundedSender<Input> {
        self.sender.clone()
    }

    /// Waits for the next input. Cancel safe: no input is lost.
    pub(super) async fn next(&mut self) -> Input {
        match self.received.recv().await {
            Some(input) => input,
            // This object holds a sender itself.
            None => std::future::pending().await,
        }
    }

    /// Follows SIGTERM and SIGINT.
    pub(super) fn follow_end(&mut self) -> io::Result<()> {
        let signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let sender = self.sender();
        self.tasks.spawn(async move {
            let [mut terminate, mut interrupt] = signals;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            drop(sender.send(Input::End));
        });
        Ok(())
    }

    /// Sets the DaemonSet of whose pod this process is.
    pub(super) fn belong_to(&mut self, membership: Membership) {
        self.membership = Some(membership);
    }

    /// Returns whether no other agent follows on this node once this one has ended.
    pub(super) async fn is_leaving(&self) -> bool {
        match &self.membership {
            Some(membership) => membership.is_over().await,
            None => false,
        }
    }

    /// Says so to the others, once nothing is announced here any more.
    pub(super) async fn leave(&self) {
        if let Some(membership) = &self.membership {
            membership.leave().await;
        }
    }

    /// Follows the static file and SIGHUP. Must be called before the file is first read, to miss no change.
    pub(super) fn follow_file(&mut self, path: Option<&Path>) -> io::Result<()> {
        let hangup = signal(SignalKind::hangup())?;
        let watch = FileWatch::new(path.map(Path::to_path_buf));
        self.tasks.spawn(follow_file(watch, hangup, self.sender()));
        Ok(())
    }

    /// Follows the chart's file. Must be called before the file is first read, to miss no change.
    pub(super) fn follow_chart(&mut self, path: &Path) {
        let (mut watch, sender) = (FileWatch::new(Some(path.into())), self.sender());
        self.tasks.spawn(async move {
            loop {
                watch.changed().await;
                drop(sender.send(Input::File));
            }
        });
    }

    /// Follows the node's network. Returns its present state.
    pub(super) fn follow_network(&mut self) -> Result<Arc<Node>, NetError> {
        // Opened before the network is first read, so that no change is missed.
        let watch = Watch::open()?;
        let node = Arc::new(Node::look()?);
        self.tasks.spawn(follow_network(watch, self.sender()));
        Ok(node)
    }

    /// Follows the Secret with the cookie keys that all nodes share.
    pub(super) fn follow_keys(&mut self, client: &Client, namespace: &str) {
        let mut keys = KeyWatch::start(client, namespace);
        let sender = self.sender();
        self.tasks.spawn(async move {
            loop {
                drop(sender.send(match keys.next().await {
                    KeyNews::Keys(keys) => Input::Keys(keys),
                    KeyNews::Stale(stale) => Input::KeysStale(stale),
                }));
            }
        });
    }

    /// Reads the node's zone and sends it once.
    pub(super) fn learn_zone(&mut self, client: &Client, node: &str) {
        let (client, node, sender) = (client.clone(), node.to_owned(), self.sender());
        self.tasks.spawn(async move { drop(sender.send(Input::Zone(own_zone(client, &node).await))) });
    }
}

async fn follow_file(mut watch: FileWatch, mut hangup: Signal, sender: UnboundedSender<Input>) {
    loop {
        tokio::select! {
            _ = hangup.recv() => watch.mark(),
            () = watch.changed() => {}
        }
        drop(sender.send(Input::File));
    }
}

async fn follow_network(mut watch: Watch, sender: UnboundedSender<Input>) {
    loop {
        if let Err(error) = watch.changed().await {
            return drop(sender.send(Input::Network(Err(error))));
        }
        loop {
            match Node::look() {
                Ok(node) => break drop(sender.send(Input::Network(Ok(Arc::new(node))))),
                Err(error) => error!(%error, "the node's network is not followed"),
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// Returns the zone of a node; `None`: it has none, or we may not read it.
async fn own_zone(client: Client, node: &str) -> Option<Arc<str>> {
    let nodes: Api<PartialObjectMeta<v1::Node>> = Api::all(client);
    loop {
        match nodes.get_metadata(node).await {
            Ok(found) => return found.labels().get(ZONE).map(|zone| Arc::from(zone.as_str())),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                warn!(
                    error = status.message,
                    "the node's zone is not known; hints of endpoints are not looked at"
                );
                return None;
            }
            Err(_) => sleep(ZONE_AGAIN).await,
        }
    }
}
