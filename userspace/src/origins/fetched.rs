//! An object as an origin gets it.

use crate::model::{Kind, Meta, ObjectRef};
use crate::sources::kubernetes::value::Findings;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// An object whose metadata was read. Nothing in it is required, and it may have any shape.
#[derive(Debug)]
pub(crate) struct Fetched<'a> {
    /// Name, age, generation.
    pub(crate) meta: &'a Meta,
    /// Those that [`Origin::annotations`](super::Origin::annotations) names, and ours.
    pub(crate) annotations: &'a BTreeMap<String, String>,
    /// The fields besides `metadata` and `status`.
    pub(crate) body: Value,
}

/// Most bodies are in `spec`.
#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "S: DeserializeOwned"))]
struct InSpec<S> {
    spec: Option<S>,
}

impl Fetched<'_> {
    /// Collects what is wrong with it.
    pub(crate) fn findings(&self, kind: Kind) -> Findings {
        Findings::of(Some(ObjectRef { kind, name: self.meta.name.clone() }))
    }

    /// Returns `spec`. If it does not have this shape, that is a problem, and it is taken as empty.
    pub(crate) fn spec<S: DeserializeOwned + Default>(&mut self, found: &mut Findings) -> S {
        let body = InSpec::<S>::deserialize(self.body.take()).map_err(|error| error.to_string());
        found.body(body).spec.unwrap_or_default()
    }
}
