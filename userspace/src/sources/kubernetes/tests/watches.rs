use super::super::store::Store;
use super::server::Answer::{Ended, Open, Page, Refuse};
use super::server::{Server, bookmark, event, listed, service, status};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

fn is_fresh(store: &Store) -> bool {
    store.stale().is_empty()
}

fn services(names: &'static [&'static str]) -> impl Fn(&Store) -> bool {
    move |store| Server::services(store) == names && is_fresh(store)
}

/// It never was stale, and never without Services.
fn never_less(store: &Store) {
    assert!(is_fresh(store), "{:?}", store.stale());
}

/// The value of a parameter in each query.
fn parameter(asked: &[String], name: &str) -> Vec<Option<String>> {
    asked.iter().map(|query| super::server::parameter(query, name).map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_as_a_stream_is_followed_and_a_watch_that_ends_goes_on_where_it_was() {
    let mut server = Server::start([
        Ended(vec![event("ADDED", "a", 5), event("ADDED", "b", 3), listed(7), event("ADDED", "c", 8)]),
        Ended(vec![event("DELETED", "b", 9), bookmark(12, json!({}))]),
        Open(vec![event("MODIFIED", "d", 13)]),
    ]);
    server.until(services(&["a", "c", "d"]), never_less).await;
    assert!(server.store.is_complete());
    let asked = server.asked();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(parameter(&asked, "resourceVersion"), [text(""), text("8"), text("12")]);
    assert_eq!(parameter(&asked, "sendInitialEvents"), [text("true"), None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_streams_is_asked_for_pages() {
    let page = |items: &[&str], more: &str| {
        let items: Vec<_> = items.iter().map(|name| service(name, 2)).collect();
        Page(json!({"kind": "ServiceList", "apiVersion": "v1", "items": items,
            "metadata": {"resourceVersion": "20", "continue": more}}))
    };
    let mut server = Server::start([
        Refuse(400, "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
        page(&["a", "b"], "next"),
        page(&["c"], ""),
        Open(vec![event("ADDED", "d", 21)]),
    ]);
    let begun = Instant::now();
    server.until(services(&["a", "b", "c", "d"]), never_less).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "it waited {:?}", begun.elapsed());
    let asked = server.asked();
    assert_eq!(parameter(&asked, "limit")[1..], [Some("500".to_owned()), Some("500".to_owned()), None]);
    assert_eq!(parameter(&asked, "continue")[2].as_deref(), Some("next"));
    assert_eq!(parameter(&asked, "resourceVersion")[3].as_deref(), Some("20"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_no_streams_is_found_out() {
    // From 1.19 to 1.26 one of the two parameters is refused; others may ignore both, and have nothing to say.
    let refused = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch";
    for (answer, wait) in [(Refuse(422, refused), 0), (Open(Vec::new()), 10)] {
        let items = json!({"metadata": {"resourceVersion": "6"}, "items": [service("a", 5)]});
        let mut server = Server::start([answer, Page(items)]);
        let begun = Instant::now();
        server.until(services(&["a"]), never_less).await;
        assert!(server.store.is_complete());
        assert_eq!(begun.elapsed().as_secs(), wait);
        assert_eq!(parameter(&server.asked(), "sendInitialEvents")[..2], [Some("true".to_owned()), None]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_costs_one_list_and_no_flap() {
    let gone = json!({"type": "ERROR", "object": status(410, "too old resource version")}).to_string();
    for expired in [Ended(vec![gone]), Refuse(410, "The resourceVersion for the provided watch is too old.")]
    {
        let mut server = Server::start([
            Ended(vec![event("ADDED", "a", 5), event("ADDED", "b", 5), listed(7)]),
            expired,
            Open(vec![event("ADDED", "a", 5), event("ADDED", "c", 9), listed(11)]),
        ]);
        server.until(services(&["a", "b"]), never_less).await;
        let keeps = |store: &Store| {
            never_less(store);
            assert!(Server::services(store).contains(&"a".to_owned()), "{:?}", Server::services(store));
        };
        server.until(services(&["a", "c"]), keeps).await;
        // The list is at least as new as what is known: a server that lags takes nobody back.
        let versions = parameter(&server.asked(), "resourceVersion");
        assert_eq!(versions.last().unwrap().as_deref(), Some("7"));
        assert_eq!(versions.len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_every_version_is_too_old_is_not_asked_without_end_and_not_believed() {
    let mut server = Server::start([Ended(vec![event("ADDED", "a", 5), listed(7)])]);
    server.refuse_from_now_on(410, "too old resource version");
    server.until(|store| !is_fresh(store), |_| {}).await;
    assert!(server.store.stale()[0].why.contains("too old"), "{:?}", server.store.stale());
    assert_eq!(Server::services(&server.store), ["a"]);
    let _ = tokio::time::timeout(Duration::from_secs(60), server.until(|_| false, |_| {})).await;
    assert!(server.asked().len() < 40, "{:#?}", server.asked());
}

#[tokio::test(start_paused = true)]
async fn a_server_of_another_history_is_asked_for_everything() {
    let mut server = Server::start([
        Ended(vec![event("ADDED", "a", 500), listed(700)]),
        Refuse(504, "Too large resource version: 700, current: 20"),
        Open(vec![event("ADDED", "b", 20), listed(21)]),
    ]);
    server.until(services(&["b"]), |_| {}).await;
    assert_eq!(parameter(&server.asked(), "resourceVersion").last().unwrap().as_deref(), Some(""));
}

/// It follows from a version that it has not reached, and leaves out all that comes before.
#[tokio::test(start_paused = true)]
async fn a_server_that_went_back_is_asked_for_everything_although_it_follows() {
    let back = [
        Ended(vec![event("ADDED", "a", 500), listed(700)]),
        Refuse(503, "away"),
        Open(vec![event("ADDED", "b", 20), listed(21)]),
    ];
    let mut server = Server::start(back);
    server.is_at(20);
    server.until(services(&["b"]), |_| {}).await;
    assert_eq!(parameter(&server.asked(), "resourceVersion").last().unwrap().as_deref(), Some(""));
    // One that was only away goes on.
    for at in [700, 701] {
        let away = [
            Ended(vec![event("ADDED", "a", 500), listed(700)]),
            Refuse(503, "away"),
            Open(vec![event("ADDED", "b", 701)]),
        ];
        let mut server = Server::start(away);
        server.is_at(at);
        server.until(services(&["a", "b"]), |_| {}).await;
        assert_eq!(parameter(&server.asked(), "resourceVersion").last().unwrap().as_deref(), Some("700"));
    }
}

/// It was started again while packets went nowhere, or ended its watches as if their time was over.
#[tokio::test(start_paused = true)]
async fn a_server_that_went_back_behind_a_watch_that_did_not_fail_is_asked_for_everything() {
    let first = || vec![event("ADDED", "a", 500), listed(700)];
    for ends in [Ended(first()), Open(first())] {
        let mut server = Server::start([ends, Open(vec![event("ADDED", "b", 20), listed(21)])]);
        server.is_at(20);
        server.until(services(&["b"]), |_| {}).await;
        assert_eq!(parameter(&server.asked(), "resourceVersion").last().unwrap().as_deref(), Some(""));
    }
    // One that did not go back goes on, and is never stale.
    for ends in [Ended(first()), Open(first())] {
        let mut server = Server::start([ends, Open(vec![event("ADDED", "b", 701)])]);
        server.is_at(700);
        server.until(services(&["a", "b"]), never_less).await;
        assert_eq!(parameter(&server.asked(), "resourceVersion").last().unwrap().as_deref(), Some("700"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_makes_stale_and_is_not_stormed() {
    let mut server = Server::start([Ended(vec![event("ADDED", "a", 5), listed(7)])]);
    server.refuse_from_now_on(503, "etcd is gone");
    server.until(|store| !is_fresh(store), |_| {}).await;
    let stale = server.store.stale();
    assert_eq!((stale.len(), stale[0].source), (1, "services"));
    assert!(stale[0].why.contains("503") && stale[0].why.contains("etcd is gone"), "{}", stale[0].why);
    assert_eq!(Server::services(&server.store), ["a"]);
    let before = server.asked().len();
    let _ = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            server.store.changed().await;
        }
    })
    .await;
    let more = server.asked().len() - before;
    assert!((2..=7).contains(&more), "asked {more} times in 5 s");
    assert_eq!(Server::services(&server.store), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_each_time_is_not_stormed() {
    let ends = (0..100).map(|_| Ended(Vec::new()));
    let first = Ended(vec![event("ADDED", "a", 5), listed(7)]);
    let mut server = Server::start(std::iter::once(first).chain(ends));
    server.until(|store| Server::services(store) == ["a"], |_| {}).await;
    let _ = tokio::time::timeout(Duration::from_secs(2), server.until(|_| false, |_| {})).await;
    let asked = server.asked().len();
    assert!((3..=8).contains(&asked), "asked {asked} times in 2 s");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_no_event_does_not_end_the_watch_for_good() {
    let mut server = Server::start([
        Open(vec![event("ADDED", "a", 5), listed(7), "{\"type\":\"ADDED\",\"object\":[]}".to_owned()]),
        Open(vec![event("ADDED", "b", 8)]),
    ]);
    let mut was_stale = false;
    server.until(services(&["a", "b"]), |store| was_stale |= !is_fresh(store)).await;
    assert!(was_stale);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_shape_is_told_and_the_others_stay() {
    let mut odd = service("odd", 6);
    odd["spec"] = json!({"ports": "none"});
    let odd = json!({"type": "ADDED", "object": odd}).to_string();
    let mut server = Server::start([Open(vec![event("ADDED", "a", 5), odd, listed(7)])]);
    server.until(services(&["a", "odd"]), never_less).await;
    let problems = &server.store.cluster().problems;
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].to_string().contains("Service ns/odd: spec: does not have the shape"),
        "{}",
        problems[0]
    );
}
