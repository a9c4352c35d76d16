use super::super::api::object::{Nothing, Object};
use super::super::named::{Named, follow};
use super::super::source::Source;
use super::super::store::Store;
use super::super::watch::{Event, Sink, Watch};
use super::super::watches::{Options, Reads};
use super::server::Answer::{self, Ended, Open, Page, Refuse, Slow};
use super::server::{Api, SERVICES, Server, bookmark, event, listed, parameter, service, status};
use crate::model::cluster::{Policy, PoolPolicy};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout};

type Bare = Object<Nothing, false>;

/// Writes down what a watch reports.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Sink<Bare> for Notes {
    async fn take(&mut self, event: Event<Bare>) {
        let name = |object: Bare| object.0.meta.name.unwrap();
        let note = match event {
            Event::Begin => "begin".to_owned(),
            Event::Listed(object) => format!("listed {}", name(object)),
            Event::Unlisted(object) => format!("unlisted {}", name(object)),
            Event::Done(_) => "done".to_owned(),
            Event::Put(object) => format!("put {}", name(object)),
            Event::Gone(object) => format!("gone {}", name(object)),
            Event::Stale(why) => format!("stale: {why}"),
            Event::Fresh => "fresh".to_owned(),
        };
        self.0.lock().unwrap().push(note);
    }
}

/// What a watch did.
struct Watched {
    /// Queries, each with the milliseconds from the beginning.
    asked: Vec<(u128, String)>,
    notes: Vec<String>,
}

impl Watched {
    /// Milliseconds between the questions.
    fn waits(&self) -> Vec<u128> {
        self.asked.windows(2).map(|two| two[1].0 - two[0].0).collect()
    }

    fn parameters(&self, name: &str) -> Vec<Option<&str>> {
        self.asked.iter().map(|(_, query)| parameter(query, name)).collect()
    }
}

const LOW: fn() -> u64 = || 0;
const HIGH: fn() -> u64 = || u64::MAX;

/// Watches a server that answers like this for some seconds.
async fn watch(chance: fn() -> u64, seconds: u64, answers: impl IntoIterator<Item = Answer>) -> Watched {
    let (api, client) = Api::serve(SERVICES, answers);
    let (notes, begun) = (Notes::default(), Instant::now());
    let watch = Watch::new(client, Source::Services.target("v1"), notes.clone()).by_chance(chance);
    let _ = timeout(Duration::from_secs(seconds), watch.run()).await;
    let asked = api.asked().into_iter().map(|(at, query)| ((at - begun).as_millis(), query)).collect();
    let notes = notes.0.lock().unwrap().clone();
    Watched { asked, notes }
}

fn list() -> Answer {
    Ended(vec![event("ADDED", "a", 5), listed(7)])
}

fn expired() -> String {
    json!({"type": "ERROR", "object": status(410, "too old resource version")}).to_string()
}

/// Lines after which the server says that the version is too old: a bookmark a minute until then.
fn expires_after(minutes: u64) -> Answer {
    let lines = (0..minutes).map(|_| (60, bookmark(8, json!({}))));
    Slow(lines.chain([(0, expired())]).collect())
}

#[tokio::test(start_paused = true)]
async fn a_watch_asks_for_five_to_ten_minutes() {
    for (chance, seconds) in [(LOW, "300"), (HIGH, "600")] {
        let watched = watch(chance, 5, [list()]).await;
        assert_eq!(watched.parameters("timeoutSeconds"), [Some(seconds), Some(seconds)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_the_server_does_not_end_is_ended() {
    let lines = (0..60).map(|_| (60, bookmark(8, json!({})))).collect();
    let watched = watch(LOW, 400, [list(), Slow(lines)]).await;
    assert_eq!(watched.waits()[1], 305_000);
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_a_byte_for_ninety_seconds_is_asked_for_again_from_its_last_version() {
    let lines = vec![(60, event("ADDED", "b", 8)), (89, bookmark(12, json!({})))];
    let watched = watch(HIGH, 300, [list(), Slow(lines)]).await;
    assert_eq!(watched.waits()[1..], [(60 + 89 + 90) * 1000]);
    assert_eq!(watched.parameters("resourceVersion"), [Some(""), Some("7"), Some("12")]);
    assert_eq!(watched.parameters("sendInitialEvents"), [Some("true"), None, None]);
    assert_eq!(
        watched.notes,
        ["begin", "listed a", "done", "put b"],
        "nothing is stale, and nothing is listed again"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_list_does_not_wait_for_others() {
    let watched = watch(HIGH, 60, [Refuse(503, "away"), Refuse(503, "away"), list()]).await;
    assert_eq!(watched.asked[0].0, 0);
    assert_eq!(watched.waits()[..2], [200, 400]);
}

/// All nodes ask when a definition is deleted: ten times a second each, at the same moments.
#[tokio::test(start_paused = true)]
async fn a_kind_that_the_server_does_not_know_is_asked_for_again_after_a_time_by_chance() {
    for (chance, wait) in [(LOW, 100), (HIGH, 1000)] {
        let unknown = || Refuse(404, "the server could not find the requested resource");
        let watched = watch(chance, 60, [unknown(), unknown(), list()]).await;
        assert_eq!(watched.waits()[..2], [wait, wait]);
        assert_eq!(watched.notes, ["begin", "listed a", "done"], "a moment is not worth a report");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_goes_on_without_waiting_for_others() {
    let watched = watch(HIGH, 60, [list(), Refuse(503, "away"), Open(Vec::new())]).await;
    assert_eq!(watched.waits(), [0, 200]);
    assert_eq!(watched.parameters("resourceVersion"), [Some(""), Some("7"), Some("7")]);
}

#[tokio::test(start_paused = true)]
async fn a_list_after_a_version_that_is_too_old_waits_up_to_thirty_seconds() {
    for (chance, wait) in [(LOW, 0), (HIGH, 30_000)] {
        for gone in [Ended(vec![expired()]), Refuse(410, "too old")] {
            let watched = watch(chance, 60, [list(), gone, list()]).await;
            assert_eq!(watched.waits()[1], wait);
            assert_eq!(watched.parameters("sendInitialEvents")[2], Some("true"));
            assert!(!watched.notes.iter().any(|note| note.starts_with("stale")), "{:?}", watched.notes);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_or_is_of_another_history_waits_up_to_thirty_seconds() {
    let away = || Refuse(503, "away");
    let other = Refuse(504, "Too large resource version: 700, current: 20");
    let watched = watch(HIGH, 120, [list(), other, away(), list()]).await;
    assert_eq!(watched.waits()[1..3], [30_000, 30_000]);
    // By chance at once: no sooner than after any failure.
    let other = Refuse(504, "Too large resource version: 700, current: 20");
    let watched = watch(LOW, 120, [list(), other, away(), list()]).await;
    assert_eq!(watched.waits()[1..3], [100, 200]);
}

/// With the wait that the failures before had grown to, the watch would be called fresh and receive nothing until then.
#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_after_failures_is_given_up_at_once_and_not_called_fresh() {
    let away = || Refuse(503, "away");
    let gone = Ended(vec![expired()]);
    let watched = watch(LOW, 60, [list(), away(), away(), away(), away(), gone, list()]).await;
    assert_eq!(watched.waits()[5], 0);
    let notes = &watched.notes[3..];
    assert!(notes[0].contains("away"), "{notes:?}");
    assert_eq!(notes[1..], ["begin", "listed a", "done", "fresh"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_goes_on_is_called_fresh_after_a_second_or_with_its_first_event() {
    let begun = Instant::now();
    let mut server = Server::start([list(), Refuse(503, "away"), Open(Vec::new())]);
    server.until(|store| !store.stale().is_empty(), |_| {}).await;
    server.until(|store| store.stale().is_empty(), |_| {}).await;
    assert!((1100..=1200).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    let begun = Instant::now();
    let mut server = Server::start([list(), Refuse(503, "away"), Open(vec![bookmark(8, json!({}))])]);
    server.until(|store| !store.stale().is_empty(), |_| {}).await;
    server.until(|store| store.stale().is_empty(), |_| {}).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn streams_that_were_refused_are_tried_again_after_ten_minutes() {
    let page = || Page(json!({"metadata": {"resourceVersion": "20"}, "items": [service("a", 5)]}));
    let refused = Refuse(400, "sendInitialEvents is forbidden");
    // The next lists are those after 4, 9 and 11 minutes.
    let answers =
        [refused, page(), expires_after(4), page(), expires_after(5), page(), expires_after(2), list()];
    let watched = watch(LOW, 665, answers).await;
    let form = |(_, query): &(u128, String)| match parameter(query, "watch") {
        Some(_) if query.contains("sendInitialEvents") => "stream",
        Some(_) => "watch",
        None => "pages",
    };
    // Pages in place of a stream are the same list: nothing waits twice.
    let away = || Refuse(400, "sendInitialEvents is forbidden");
    let late = watch(HIGH, 60, [list(), Ended(vec![expired()]), away(), page()]).await;
    assert_eq!(late.waits()[1..3], [30_000, 0]);
    let forms: Vec<_> = watched.asked.iter().map(form).collect();
    assert_eq!(forms.join(" "), "stream pages watch pages watch pages watch stream watch");
}

/// A server under load goes on after a while. Pages, all nodes' at the same time, would be more load.
#[tokio::test(start_paused = true)]
async fn a_streamed_list_that_falls_silent_is_asked_for_again_as_a_stream_and_waits_like_any_list() {
    let stalls = || Slow(vec![(0, event("ADDED", "a", 5)), (11, listed(9))]);
    let gone = Ended(vec![expired()]);
    let watched = watch(HIGH, 150, [list(), gone, stalls(), stalls(), list()]).await;
    assert_eq!(watched.waits()[1..4], [30_000, 40_000, 40_000]);
    assert_eq!(watched.parameters("sendInitialEvents")[2..5], [Some("true"); 3]);
    assert!(watched.parameters("limit").iter().all(Option::is_none), "no pages: {:?}", watched.asked);
    let silence = "stale: the API server sent nothing for 10 s";
    let lists = ["begin", "listed a", silence, "begin", "listed a", "begin", "listed a", "done", "fresh"];
    assert_eq!(watched.notes[3..], lists);
    // The first list does not wait for others, and the silence was no good time.
    let first = watch(HIGH, 60, [stalls(), stalls(), list()]).await;
    assert_eq!(first.waits()[..2], [10_200, 10_400]);
    assert_eq!(first.parameters("sendInitialEvents")[..3], [Some("true"); 3]);
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_within_a_streamed_list_stays_deleted() {
    let lines = || {
        let events = [("ADDED", "a", 5), ("ADDED", "b", 6), ("MODIFIED", "a", 8), ("DELETED", "b", 9)];
        let events = events.map(|(kind, name, version)| event(kind, name, version));
        Open(events.into_iter().chain([listed(9)]).collect())
    };
    let watched = watch(LOW, 1, [lines()]).await;
    assert_eq!(watched.notes, ["begin", "listed a", "listed b", "listed a", "unlisted b", "done"]);
    // In the store.
    let mut server = Server::start([lines()]);
    server.until(|store| !Server::services(store).is_empty(), |_| {}).await;
    assert_eq!(Server::services(&server.store), ["a"]);
    // In what is kept by name.
    let (_, client) = Api::serve(SERVICES, [lines()]);
    let (outbox, mut reports) = tokio::sync::mpsc::channel::<Named<()>>(1);
    let followed = tokio::spawn(follow::<Service, _, _>(client, |_| (), outbox));
    let Some(Named::Listed(all, _)) = reports.recv().await else { panic!("no list") };
    assert_eq!(all.keys().collect::<Vec<_>>(), ["a"]);
    followed.abort();
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_is_deleted_within_a_streamed_list_is_not_asked_for() {
    let name = "tlsroutes.gateway.networking.k8s.io";
    let lines = vec![event("ADDED", name, 5), event("DELETED", name, 9), listed(9)];
    let (api, client) = Api::serve("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", [Open(lines)]);
    let mut store = Store::start(Options { client, policy: Policy::default(), reads: Reads::Origins });
    let _ = timeout(Duration::from_secs(5), async {
        while !store.is_complete() {
            store.changed().await;
        }
    })
    .await;
    assert_eq!(api.asked().len(), 1, "{:?}", api.asked());
}

/// The chart grants no right to read it then.
#[tokio::test(start_paused = true)]
async fn a_kind_that_the_chart_does_not_name_is_not_read_because_its_definition_is_there() {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for (namespaces, questions) in [(vec![], 1), (vec!["metallb-system".into()], 2)] {
        let lines = vec![event("ADDED", "ipaddresspools.metallb.io", 5), listed(9)];
        let (api, client) = Api::serve(definitions, [Open(lines)]);
        let policy = Policy { pools: PoolPolicy { namespaces }, ..Policy::default() };
        let mut store = Store::start(Options { client, policy, reads: Reads::Origins });
        let _ = timeout(Duration::from_secs(5), async {
            while !store.is_complete() {
                store.changed().await;
            }
        })
        .await;
        assert_eq!(api.asked().len().min(2), questions, "{:?}", api.asked());
    }
}
