//! What every object has, and what of it is read.
//!
//! An object that is not shaped as expected must not end a watch, so its body is read separately from its metadata: a body that is
//! wrong becomes a problem of the object. Nothing is required, and null is the same as absent.

use crate::origins::reads_annotation;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// An object whose body is `B`.
#[derive(Clone, Debug)]
pub(in super::super) struct Raw<B> {
    pub(in super::super) meta: RawMeta,
    /// The fields besides `metadata` and `status`, or why they cannot be read.
    pub(in super::super) body: Result<B, String>,
    /// `status`, where it is kept; null where there is none.
    pub(in super::super) status: Value,
    /// `spec.origin`, which Claims have: whose a Claim is, can be read where the rest cannot.
    pub(in super::super) origin: Value,
}

/// `metadata`, as far as it is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct RawMeta {
    pub(in super::super) name: Option<String>,
    pub(in super::super) namespace: Option<String>,
    pub(in super::super) uid: Option<String>,
    pub(in super::super) resource_version: Option<String>,
    pub(in super::super) generation: Option<i64>,
    pub(in super::super) creation_timestamp: Option<String>,
    pub(in super::super) deletion_timestamp: Option<String>,
    pub(in super::super) finalizers: Option<Vec<String>>,
    pub(in super::super) labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "annotations_of_interest")]
    pub(in super::super) annotations: BTreeMap<String, String>,
}

/// Beginnings of the annotations that are read, besides those of origins. Others can be large: `kubectl apply` keeps whole objects in one.
const ANNOTATIONS: [&str; 5] = [
    "vestibule.dev/",
    "metallb.io/",
    "metallb.universe.tf/",
    "service.beta.kubernetes.io/load-balancer-",
    "gateway.networking.k8s.io/bundle-",
];

/// An object with (`STATUS`) or without its status.
#[derive(Clone, Debug)]
pub(in super::super) struct Object<B, const STATUS: bool>(pub(in super::super) Raw<B>);

impl<'de, B: DeserializeOwned, const STATUS: bool> Deserialize<'de> for Object<B, STATUS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields::<B, STATUS>(PhantomData)).map(Self)
    }
}

struct Fields<B, const STATUS: bool>(PhantomData<B>);

impl<'de, B: DeserializeOwned, const STATUS: bool> Visitor<'de> for Fields<B, STATUS> {
    type Value = Raw<B>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<B>, A::Error> {
        let mut meta = RawMeta::default();
        let mut status = Value::Null;
        let mut body = serde_json::Map::new();
        while let Some(field) = map.next_key::<String>()? {
            match &*field {
                "metadata" => meta = map.next_value()?,
                "status" if STATUS => status = map.next_value()?,
                "status" | "kind" | "apiVersion" => {
                    map.next_value::<IgnoredAny>()?;
                }
                _ => {
                    body.insert(field, map.next_value()?);
                }
            }
        }
        let origin = body.get("spec").and_then(|spec| spec.get("origin")).cloned().unwrap_or_default();
        let body = B::deserialize(Value::Object(body)).map_err(|error| error.to_string());
        Ok(Raw { meta, body, status, origin })
    }
}

fn annotations_of_interest<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    deserializer.deserialize_option(OfInterest)
}

struct OfInterest;

impl<'de> Visitor<'de> for OfInterest {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if ANNOTATIONS.iter().any(|prefix| name.starts_with(prefix)) || reads_annotation(&name) {
                kept.insert(name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(kept)
    }
}

/// Every body is in `spec`, except [`core::Slice`](super::core::Slice).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(bound(deserialize = "S: DeserializeOwned"))]
pub(in super::super) struct InSpec<S> {
    pub(in super::super) spec: Option<S>,
}

/// Nothing but metadata.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in super::super) struct Nothing {}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "T: DeserializeOwned"))]
pub(in super::super) struct Page<T> {
    #[serde(default)]
    pub(in super::super) metadata: PageMeta,
    #[serde(default = "Option::default")]
    pub(in super::super) items: Option<Vec<T>>,
}

/// `metadata` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct PageMeta {
    pub(in super::super) resource_version: Option<String>,
    /// More pages follow.
    pub(in super::super) r#continue: Option<String>,
}
