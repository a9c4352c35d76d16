//! An API server that answers requests for one kind by a script, and has no object of any other. It is in this process, so that a
//! test's clock may be virtual.

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
use kube::Client;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

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
    /// Lines of a watch, each after this many seconds more. It stays open.
    Slow(Vec<(u64, String)>),
}

/// Where Services are served.
pub(super) const SERVICES: &str = "/api/v1/services";

/// The answers of a server.
#[derive(Clone)]
pub(super) struct Api(Arc<Mutex<Script>>);

struct Script {
    path: &'static str,
    answers: VecDeque<Answer>,
    /// The version that it says it is at; `None`: it knows none that is lower than any other.
    version: Option<u64>,
    /// What is answered when nothing else is left; by default a watch without events.
    last: Option<(u16, &'static str)>,
    /// Queries for the kind, in order, and when they came.
    asked: Vec<(Instant, String)>,
}

impl Api {
    /// A server that answers requests for this path like this, and a client for it.
    pub(super) fn serve(path: &'static str, answers: impl IntoIterator<Item = Answer>) -> (Self, Client) {
        let answers = answers.into_iter().collect();
        let script = Script { path, answers, version: None, last: None, asked: Vec::new() };
        let this = Self(Arc::new(Mutex::new(script)));
        let router = Router::new().fallback(answer).with_state(this.clone());
        (this, Client::new(router, "default"))
    }

    /// From now on, requests are refused when the script is at its end.
    pub(super) fn refuse_from_now_on(&self, code: u16, message: &'static str) {
        self.0.lock().unwrap().last = Some((code, message));
    }

    /// Its objects, and the version that it is at, are those of a backup from now on.
    pub(super) fn is_at(&self, version: u64) {
        self.0.lock().unwrap().version = Some(version);
    }

    /// Queries for the kind so far, and when they came, besides those for the version alone.
    pub(super) fn asked(&self) -> Vec<(Instant, String)> {
        self.0.lock().unwrap().asked.clone()
    }
}

/// A server of Services, and a store that watches it.
pub(super) struct Server {
    api: Api,
    pub(super) store: Store,
}

impl Server {
    /// Starts to watch a server that answers like this.
    pub(super) fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let (api, client) = Api::serve(SERVICES, answers);
        let store = Store::start(Options { client, policy: Policy::default(), reads: Reads::Origins });
        Self { api, store }
    }

    /// From now on, Services are refused when the script is at its end.
    pub(super) fn refuse_from_now_on(&self, code: u16, message: &'static str) {
        self.api.refuse_from_now_on(code, message);
    }

    /// From now on it is at this version.
    pub(super) fn is_at(&self, version: u64) {
        self.api.is_at(version);
    }

    /// Queries for Services so far.
    pub(super) fn asked(&self) -> Vec<String> {
        self.api.asked().into_iter().map(|(_, query)| query).collect()
    }

    /// Follows the store until it is as wanted; each state in between is checked.
    pub(super) async fn until(&mut self, wanted: impl Fn(&Store) -> bool, mut each: impl FnMut(&Store)) {
        let end = Instant::now() + Duration::from_secs(120);
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

/// The value of a parameter of a query.
pub(super) fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = query.split('&').filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).map(|(_, value)| value)
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

async fn answer(State(Api(script)): State<Api>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let mut script = script.lock().unwrap();
    if request.uri().path() != script.path {
        // Everything else is there and empty.
        return if query.contains("watch=true") {
            lines(vec![listed(1)], true)
        } else {
            Response::new(Body::from(json!({"metadata": {}, "items": []}).to_string()))
        };
    }
    if parameter(&query, "limit") == Some("1") {
        let version = script.version.unwrap_or(u64::MAX).to_string();
        let page = json!({"metadata": {"resourceVersion": version}, "items": [service("any", 1)]});
        return Response::new(Body::from(page.to_string()));
    }
    script.asked.push((Instant::now(), query));
    match (script.answers.pop_front(), script.last) {
        (Some(Answer::Page(page)), _) => Response::new(Body::from(page.to_string())),
        (Some(Answer::Open(events)), _) => lines(events, true),
        (Some(Answer::Ended(events)), _) => lines(events, false),
        (Some(Answer::Slow(events)), _) => slow(events),
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

fn slow(events: Vec<(u64, String)>) -> Response {
    let events = stream::iter(events).then(|(wait, line)| async move {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        Ok::<_, Infallible>(line + "\n")
    });
    Response::new(Body::from_stream(events.chain(stream::pending())))
}
