//! The objects of one kind by name, for a receiver that keeps them itself.

use super::target::Target;
use super::watch::{Event, Sink, Watch, Watched};
use kube::{Client, Resource, ResourceExt as _};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// A report of a watch.
#[derive(Debug)]
pub(crate) enum Named<V> {
    /// All there are, at this version.
    Listed(BTreeMap<String, V>, String),
    /// New or changed.
    Put(String, V),
    /// Gone.
    Gone(String),
    /// They cannot be followed, and why: what was said last is what is known.
    Stale(String),
    /// They can be followed again.
    Fresh,
}

/// Watches for ever, and sends what `read` makes of each object.
pub(crate) async fn follow<K, V, N>(client: Client, read: fn(K) -> V, outbox: mpsc::Sender<N>)
where
    K: Watched + Resource<DynamicType = ()>,
    V: Send + 'static,
    N: From<Named<V>> + Send + 'static,
{
    follow_some(client, Target::all::<K>(None), read, outbox).await;
}

/// The same for some objects of the kind.
pub(crate) async fn follow_some<K, V, N>(
    client: Client,
    target: Target,
    read: fn(K) -> V,
    outbox: mpsc::Sender<N>,
) where
    K: Watched + Resource<DynamicType = ()>,
    V: Send + 'static,
    N: From<Named<V>> + Send + 'static,
{
    let sink = Gathering { read, listed: BTreeMap::new(), outbox };
    Watch::new(client, target, sink).run().await;
}

/// Passes a full list as a whole.
struct Gathering<K, V, N> {
    read: fn(K) -> V,
    listed: BTreeMap<String, V>,
    outbox: mpsc::Sender<N>,
}

impl<K, V, N> Sink<K> for Gathering<K, V, N>
where
    K: Resource<DynamicType = ()> + Send,
    V: Send,
    N: From<Named<V>> + Send,
{
    async fn take(&mut self, event: Event<K>) {
        let news = match event {
            Event::Begin => {
                self.listed.clear();
                return;
            }
            Event::Listed(object) => {
                self.listed.insert(object.name_any(), (self.read)(object));
                return;
            }
            Event::Unlisted(object) => {
                self.listed.remove(&object.name_any());
                return;
            }
            Event::Done(version) => Named::Listed(std::mem::take(&mut self.listed), version),
            Event::Put(object) => Named::Put(object.name_any(), (self.read)(object)),
            Event::Gone(object) => Named::Gone(object.name_any()),
            Event::Stale(why) => {
                tracing::warn!(
                    source = &*K::plural(&()),
                    why,
                    "cannot be followed; what it said last is what is known"
                );
                Named::Stale(why)
            }
            Event::Fresh => {
                tracing::info!(source = &*K::plural(&()), "can be followed again");
                Named::Fresh
            }
        };
        // Nobody listens any more only when the receiver is gone, and then this task ends too.
        let _ = self.outbox.send(news.into()).await;
    }
}
