//! Objects in, specs and problems out.

/// Objects of the Gateway API's own samples.
mod samples;
/// Services and EndpointSlices.
mod endpoints;
/// What Services ask of the delivery of connections.
mod delivery;
/// Gateways, routes and what is wrong with them.
mod gateways;
/// Claims.
mod claims;
/// IPAddressPools, and who asks for one.
mod pools;
/// Garbage.
pub(crate) mod garbage;

use super::super::api::object::{Object, Raw};
use super::super::interner::Interner;
use super::super::watch_event::Body;
use super::super::watches;
use super::Reading;
use crate::model::{OriginObject, Problem};
use crate::origins::WatchRow;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Objects of a YAML text, as JSON, each as the API server sends it.
pub(crate) fn yaml(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    all.into_iter().filter(|object| !object.is_null()).collect()
}

fn raw<B: DeserializeOwned>(text: &str) -> Raw<B> {
    raw_of(yaml(text).remove(0))
}

fn raw_of<B: DeserializeOwned>(object: Value) -> Raw<B> {
    serde_json::from_value::<Object<B, true>>(object).unwrap().0
}

/// Problems as people read them.
pub(crate) fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(Problem::to_string).collect()
}

fn interner() -> Interner {
    Interner::default()
}

fn defaults() -> Reading {
    Reading::default()
}

/// Folds an object that is read for an origin, as a watch does.
pub(crate) fn fold_origin(row: &WatchRow, object: &Value) -> (Option<OriginObject>, Vec<Problem>) {
    match watches::origin(row, raw_of(object.clone()), &interner()) {
        (Body::Origin(object), problems) => (object, problems),
        (other, _) => panic!("{other:?}"),
    }
}
