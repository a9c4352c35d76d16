//! What the loop hears of: each input is a task that waits, and tells by one queue.

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

use super::keys::KeyWatch;
use crate::model::Node;
use crate::net::NetError;
use crate::net::watch::Watch;
use crate::outputs::CookieKeys;
use crate::sources::watch_file::FileWatch;

/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// From one try to learn the zone to the next.
const ZONE_AGAIN: Duration = Duration::from_secs(10);
/// From one look at the node's network that failed to the next.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug)]
pub(super) enum Input {
    /// The static file may say something else: it changed, or SIGHUP came.
    File,
    /// Devices, addresses or routes of the node changed. An error: they cannot be followed any more.
    Network(Result<Arc<Node>, NetError>),
    /// These backends fail their probes.
    Failing(BTreeSet<SocketAddr>),
    /// The keys that all nodes have.
    Keys(CookieKeys),
    /// The node's zone.
    Zone(Option<Arc<str>>),
    /// SIGTERM or SIGINT.
    End,
}

/// Those inputs that there are; who is not followed says nothing.
#[derive(Debug)]
pub(super) struct Inputs {
    sender: UnboundedSender<Input>,
    received: UnboundedReceiver<Input>,
    /// They end with the loop.
    tasks: JoinSet<()>,
}

impl Inputs {
    /// Nobody yet.
    pub(super) fn new() -> Self {
        let (sender, received) = unbounded_channel();
        Self { sender, received, tasks: JoinSet::new() }
    }

    /// Where one more may tell.
    pub(super) fn sender(&self) -> UnboundedSender<Input> {
        self.sender.clone()
    }

    /// What is told next. Nothing is lost when the waiting is given up.
    pub(super) async fn next(&mut self) -> Input {
        match self.received.recv().await {
            Some(input) => input,
            // We hold a sender ourselves.
            None => std::future::pending().await,
        }
    }

    /// SIGTERM and SIGINT.
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

    /// The static file, and SIGHUP. To be called before the file is read first, so that no change falls in between.
    pub(super) fn follow_file(&mut self, path: Option<&Path>) -> io::Result<()> {
        let hangup = signal(SignalKind::hangup())?;
        let watch = FileWatch::new(path.map(Path::to_path_buf));
        self.tasks.spawn(follow_file(watch, hangup, self.sender()));
        Ok(())
    }

    /// The node's network; gives what it is now.
    pub(super) fn follow_network(&mut self) -> Result<Arc<Node>, NetError> {
        // Before the first look, so that no change falls in between.
        let watch = Watch::open()?;
        let node = Arc::new(Node::look()?);
        self.tasks.spawn(follow_network(watch, self.sender()));
        Ok(node)
    }

    /// The Secret with the keys that all nodes have.
    pub(super) fn follow_keys(&mut self, client: &Client, namespace: &str) {
        let mut keys = KeyWatch::start(client, namespace);
        let sender = self.sender();
        self.tasks.spawn(async move {
            loop {
                drop(sender.send(Input::Keys(keys.changed().await)));
            }
        });
    }

    /// The node's zone: told once.
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

/// The zone of a node; `None`: it has none, or we may not know.
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
