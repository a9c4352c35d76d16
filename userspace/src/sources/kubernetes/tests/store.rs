use super::super::source::Source;
use super::super::store::Store;
use super::super::watch_event::{Body, Entry, Message, Slice, WatchEvent};
use super::super::watches::Reads;
use crate::model::cluster::{ClusterRoute, Endpoint, EndpointState, Policy};
use crate::model::{Kind, Meta, ObjectName, Problem};
use futures_util::FutureExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, timeout};

fn store() -> (Sender<Message>, Store) {
    let (outbox, inbox): (_, Receiver<Message>) = channel(4096);
    (outbox, Store::new(inbox, Policy::default(), Reads::Origins))
}

fn tell(outbox: &Sender<Message>, source: Source, epoch: u64, news: WatchEvent) {
    outbox.try_send(Message { source, epoch, news }).unwrap();
}

fn route(name: &str, generation: i64) -> Entry {
    let name = ObjectName::new("ns", name);
    let meta = Meta { name: name.clone(), generation, ..Meta::default() };
    let body = Body::TlsRoute(Arc::new(ClusterRoute { meta, ..ClusterRoute::default() }));
    Entry { name, body, problems: Vec::new(), status: None }
}

fn slice(name: &str, last: &[u8]) -> Entry {
    let endpoint = |last: &u8| Endpoint {
        port_name: "p".into(),
        address: [10, 0, 0, *last].into(),
        port: 1,
        state: EndpointState::Ready,
        zones: Arc::new([]),
        node: None,
    };
    let slice = Slice { service: "api".into(), endpoints: last.iter().map(endpoint).collect() };
    Entry { name: ObjectName::new("ns", name), body: Body::Slice(slice), problems: Vec::new(), status: None }
}

async fn is_quiet(store: &mut Store) -> bool {
    timeout(Duration::from_millis(100), store.changed()).await.is_err()
}

fn routes(store: &Store) -> Vec<String> {
    store.cluster().tls_routes.keys().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_burst_is_one_change() {
    let (outbox, mut store) = store();
    for n in 0..1000 {
        tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Put(Box::new(route(&format!("r{n}"), 1))));
    }
    store.changed().await;
    assert_eq!(store.cluster().tls_routes.len(), 1000);
    assert!(is_quiet(&mut store).await);
}

#[tokio::test]
async fn what_says_nothing_new_is_no_change() {
    let (outbox, mut store) = store();
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Listed(vec![route("a", 1)]));
    store.changed().await;
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Put(Box::new(route("a", 1))));
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Listed(vec![route("a", 1)]));
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Gone(ObjectName::new("ns", "other")));
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Fresh);
    assert!(is_quiet(&mut store).await);
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Put(Box::new(route("a", 2))));
    store.changed().await;
}

#[tokio::test]
async fn a_new_list_replaces_the_old_one_and_keeps_what_is_the_same() {
    let (outbox, mut store) = store();
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Listed(vec![route("a", 1), route("b", 1)]));
    store.changed().await;
    let kept = Arc::clone(&store.cluster().tls_routes[&ObjectName::new("ns", "b")]);
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Listed(vec![route("b", 1), route("c", 1)]));
    store.changed().await;
    assert_eq!(routes(&store), ["ns/b", "ns/c"]);
    assert!(Arc::ptr_eq(&kept, &store.cluster().tls_routes[&ObjectName::new("ns", "b")]));
}

#[tokio::test]
async fn complete_is_when_every_source_was_listed_or_is_known_to_be_absent() {
    let (outbox, mut store) = store();
    for source in Source::of_controller(&Policy::default()) {
        assert!(!store.is_complete(), "before {source:?}");
        let news =
            if source == Source::TcpRoutes { WatchEvent::Absent } else { WatchEvent::Listed(Vec::new()) };
        tell(&outbox, source, 0, news);
        store.changed().await;
    }
    assert!(store.is_complete());
    // Stale is not incomplete, and one that appears is not known before its list.
    tell(&outbox, Source::Services, 0, WatchEvent::Stale("403".to_owned()));
    store.changed().await;
    assert!(store.is_complete());
    assert!(store.unlisted().is_empty());
    tell(&outbox, Source::TcpRoutes, 1, WatchEvent::Present("v1"));
    store.changed().await;
    assert!(!store.is_complete());
    assert_eq!(store.unlisted(), [Source::TcpRoutes].into());
    assert_eq!((store.version(Kind::TcpRoute), store.version(Kind::TlsRoute)), (Some("v1"), None));
    tell(&outbox, Source::TcpRoutes, 1, WatchEvent::Listed(Vec::new()));
    store.changed().await;
    assert!(store.is_complete());
}

#[tokio::test]
async fn stale_keeps_the_objects_and_its_first_moment() {
    let (outbox, mut store) = store();
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Listed(vec![route("a", 1)]));
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Stale("connection refused".to_owned()));
    store.changed().await;
    let since = store.stale()[0].since;
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Stale("403 Forbidden".to_owned()));
    store.changed().await;
    let stale = store.stale();
    assert_eq!(
        (stale.len(), stale[0].source, &*stale[0].why, stale[0].since),
        (1, "tlsroutes", "403 Forbidden", since)
    );
    assert_eq!(routes(&store), ["ns/a"]);
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Fresh);
    store.changed().await;
    assert!(store.stale().is_empty());
}

#[tokio::test]
async fn what_an_ended_watch_still_says_is_not_heard() {
    let (outbox, mut store) = store();
    tell(&outbox, Source::TlsRoutes, 1, WatchEvent::Present("v1alpha2"));
    tell(&outbox, Source::TlsRoutes, 1, WatchEvent::Listed(vec![route("a", 1)]));
    store.changed().await;
    // Another version: what is known stays until the new list.
    tell(&outbox, Source::TlsRoutes, 2, WatchEvent::Present("v1"));
    tell(&outbox, Source::TlsRoutes, 1, WatchEvent::Put(Box::new(route("late", 1))));
    store.changed().await;
    assert_eq!((routes(&store), store.is_complete()), (vec!["ns/a".to_owned()], false));
    tell(&outbox, Source::TlsRoutes, 3, WatchEvent::Absent);
    tell(&outbox, Source::TlsRoutes, 2, WatchEvent::Put(Box::new(route("late", 1))));
    store.changed().await;
    assert_eq!(routes(&store), Vec::<String>::new());
    assert_eq!(store.version(Kind::TlsRoute), None);
}

#[tokio::test]
async fn that_a_kind_without_objects_is_gone_is_a_change() {
    let (outbox, mut store) = store();
    tell(&outbox, Source::TlsRoutes, 1, WatchEvent::Present("v1"));
    tell(&outbox, Source::TlsRoutes, 1, WatchEvent::Listed(Vec::new()));
    store.changed().await;
    tell(&outbox, Source::TlsRoutes, 2, WatchEvent::Absent);
    timeout(Duration::from_secs(5), store.changed()).await.unwrap();
    assert_eq!(store.version(Kind::TlsRoute), None);
    tell(&outbox, Source::TlsRoutes, 3, WatchEvent::Absent);
    assert!(is_quiet(&mut store).await);
}

#[tokio::test]
async fn the_end_of_a_grace_is_a_change() {
    let (outbox, mut store) = store();
    tell(&outbox, Source::EndpointSlices, 0, WatchEvent::Listed(vec![slice("s", &[1, 2])]));
    store.changed().await;
    tell(&outbox, Source::EndpointSlices, 0, WatchEvent::Put(Box::new(slice("s", &[2]))));
    store.changed().await;
    let left = Instant::now();
    let states = |store: &Store| -> Vec<EndpointState> {
        store.cluster().endpoints[&ObjectName::new("ns", "api")]
            .iter()
            .map(|endpoint| endpoint.state)
            .collect()
    };
    assert_eq!(states(&store), [EndpointState::Departed, EndpointState::Ready]);
    store.changed().await;
    let elapsed = left.elapsed();
    assert!((900..3000).contains(&elapsed.as_millis()), "{elapsed:?}");
    assert_eq!(states(&store), [EndpointState::Ready]);
    // Also without any watch left.
    tell(&outbox, Source::EndpointSlices, 0, WatchEvent::Gone(ObjectName::new("ns", "s")));
    drop(outbox);
    store.changed().await;
    store.changed().await;
    assert!(store.cluster().endpoints.is_empty());
    assert!(is_quiet(&mut store).await);
}

#[tokio::test]
async fn problems_come_and_go_with_their_object() {
    let (outbox, mut store) = store();
    let bad = |name: &str, what: &str| {
        let mut entry = route(name, 1);
        entry.problems.push(Problem::warning("spec", what, "fix it"));
        WatchEvent::Put(Box::new(entry))
    };
    let told =
        |store: &Store| -> Vec<String> { store.cluster().problems.iter().map(|p| p.what.clone()).collect() };
    tell(&outbox, Source::TlsRoutes, 0, bad("b", "is bad"));
    tell(&outbox, Source::TlsRoutes, 0, bad("a", "is worse"));
    store.changed().await;
    assert_eq!(told(&store), ["is worse", "is bad"]);
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Put(Box::new(route("a", 1))));
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Gone(ObjectName::new("ns", "b")));
    store.changed().await;
    assert!(told(&store).is_empty());
}

#[tokio::test]
async fn a_dropped_wait_loses_nothing() {
    let (outbox, mut store) = store();
    let mut told = 0;
    for n in 0..20 {
        tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Put(Box::new(route(&format!("r{n}"), 1))));
        // Polled once and dropped, as in a `select!` that another branch wins.
        let mut wait = Box::pin(store.changed());
        told += usize::from(wait.as_mut().now_or_never().is_some());
    }
    // The last one was taken by a wait that was dropped: the next one reports it.
    tell(&outbox, Source::TlsRoutes, 0, WatchEvent::Put(Box::new(route("r20", 1))));
    assert!(store.changed().now_or_never().is_none());
    store.changed().await;
    assert_eq!((store.cluster().tls_routes.len(), told), (21, 10));
}
