//! An API server that answers requests for Services by a script, and knows of nothing else.

use super::super::store::Store;
use super::super::watches::{Options, Reads};
use crate::model::cluster::Policy;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One answer.
pub(super) enum Answer {
    /// A Status with this code and message.
    Refuse(u16, &'static str),
    /// A page of a list.
    Page(Value),
    /// Lines of a watch, which then stays open.
    Open(Vec<String>),
    /// Lines of a watch, which then ends.
    Ended(Vec<String>),
}

/// The server; it ends with the test's runtime.
pub(super) struct Server {
    script: Arc<Mutex<Script>>,
    pub(super) store: Store,
}

#[derive(Default)]
struct Script {
    answers: VecDeque<Answer>,
    /// What is answered when nothing else is left; by default a watch without events.
    last: Option<(u16, &'static str)>,
    /// Queries for Services, in order.
    asked: Vec<String>,
}

impl Server {
    /// A server and a store that watches it.
    pub(super) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let script = Script { answers: answers.into_iter().collect(), ..Script::default() };
        let script = Arc::new(Mutex::new(script));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(Arc::clone(&script));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = super::super::connect(kube::Config::new(url.parse().unwrap())).unwrap();
        let store = Store::start(Options { client, policy: Policy::default(), reads: Reads::Origins });
        Self { script, store }
    }

    /// From now on, Services are refused when the script is at its end.
    pub(super) fn refuse_from_now_on(&self, code: u16, message: &'static str) {
        self.script.lock().unwrap().last = Some((code, message));
    }

    /// Queries for Services so far.
    pub(super) fn asked(&self) -> Vec<String> {
        self.script.lock().unwrap().asked.clone()
    }

    /// Follows the store until it is as wanted; each state in between is checked.
    pub(super) async fn until(&mut self, wanted: impl Fn(&Store) -> bool, mut each: impl FnMut(&Store)) {
        let end = Instant::now() + Duration::from_secs(25);
        while !wanted(&self.store) {
            let left = end.saturating_duration_since(Instant::now());
            let changed = tokio::time::timeout(left, self.store.changed()).await;
            assert!(changed.is_ok(), "in vain: {:?}, asked: {:#?}", self.store.stale(), self.asked());
            each(&self.store);
        }
    }

    /// Names of Services.
    pub(super) fn services(store: &Store) -> Vec<String> {
        store.cluster().services.keys().map(|name| name.name.to_string()).collect()
    }
}

/// A line of a watch.
pub(super) fn event(kind: &str, name: &str, version: u32) -> String {
    json!({"type": kind, "object": service(name, version)}).to_string()
}

/// The end of a list that is given as a stream.
pub(super) fn listed(version: u32) -> String {
    bookmark(version, json!({"k8s.io/initial-events-end": "true"}))
}

/// A bookmark.
pub(super) fn bookmark(version: u32, annotations: Value) -> String {
    let meta = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    json!({"type": "BOOKMARK", "object": {"kind": "Service", "apiVersion": "v1", "metadata": meta}})
        .to_string()
}

pub(super) fn service(name: &str, version: u32) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "spec": {"ports": [{"port": 443}]},
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": version.to_string(), "uid": name}})
}

pub(super) fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
        "reason": "Because", "metadata": {}})
}

async fn answer(State(script): State<Arc<Mutex<Script>>>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    if request.uri().path() != "/api/v1/services" {
        // Everything else is there and empty.
        return if query.contains("watch=true") {
            lines(vec![listed(1)], true)
        } else {
            Response::new(Body::from(json!({"metadata": {}, "items": []}).to_string()))
        };
    }
    let mut script = script.lock().unwrap();
    script.asked.push(query);
    match (script.answers.pop_front(), script.last) {
        (Some(Answer::Page(page)), _) => Response::new(Body::from(page.to_string())),
        (Some(Answer::Open(events)), _) => lines(events, true),
        (Some(Answer::Ended(events)), _) => lines(events, false),
        (Some(Answer::Refuse(code, message)), _) | (None, Some((code, message))) => {
            (StatusCode::from_u16(code).unwrap(), status(code, message).to_string()).into_response()
        }
        (None, None) => lines(Vec::new(), true),
    }
}

fn lines(events: Vec<String>, stays_open: bool) -> Response {
    let events = stream::iter(events.into_iter().map(|line| Ok::<_, Infallible>(line + "\n")));
    Response::new(if stays_open {
        Body::from_stream(events.chain(stream::pending()))
    } else {
        Body::from_stream(events)
    })
}
