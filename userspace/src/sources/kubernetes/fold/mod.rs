//! From an object as it came to what decisions need of it. Pure: what cannot be read is left out and told.

/// GatewayClass.
mod class;
/// Gateway.
mod gateway;
/// Listeners, of Gateways and ListenerSets.
mod listener;
/// ListenerSet.
mod listener_set;
/// TLSRoute and TCPRoute.
mod route;
/// ReferenceGrant.
mod grant;
/// Namespace.
mod namespace;
/// Service.
mod service;
/// EndpointSlice.
mod endpoint_slice;

pub(super) use class::fold as class;
pub(super) use endpoint_slice::fold as endpoint_slice;
pub(super) use gateway::fold as gateway;
pub(super) use grant::fold as grant;
pub(super) use listener_set::fold as listener_set;
pub(super) use namespace::fold as namespace;
pub(super) use route::fold as route;
pub(super) use service::fold as service;

use super::api::gateway::Parent;
use super::api::object::RawMeta;
use super::value::Findings;
use super::words::Words;
use crate::model::cluster::{GroupKind, ParentRef};
use crate::model::{Kind, Meta, ObjectName, ObjectRef};
use k8s_openapi::jiff::Timestamp;

/// What `metadata` says that matters.
pub(super) fn meta(raw: &RawMeta, words: &Words) -> Meta {
    let created = raw.creation_timestamp.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
    Meta {
        name: name(raw, words),
        uid: raw.uid.as_deref().unwrap_or_default().into(),
        generation: raw.generation.unwrap_or_default(),
        created_secs: created.map_or(0, Timestamp::as_second),
    }
}

/// Namespace and name.
pub(super) fn name(raw: &RawMeta, words: &Words) -> ObjectName {
    ObjectName {
        namespace: words.of(raw.namespace.as_deref().unwrap_or_default()),
        name: words.of(raw.name.as_deref().unwrap_or_default()),
    }
}

fn findings(kind: Kind, meta: &Meta) -> Findings {
    Findings::of(Some(ObjectRef { kind, name: meta.name.clone() }))
}

fn parent(raw: Parent, field: &str, found: &mut Findings, words: &Words) -> Option<ParentRef> {
    let port = match raw.port {
        Some(port) => Some(found.check(format_args!("{field}.port"), port, super::value::port(port))?),
        None => None,
    };
    Some(ParentRef {
        group: words.of_option(raw.group),
        kind: words.of_option(raw.kind),
        namespace: words.of_option(raw.namespace),
        name: words.of(raw.name.as_deref().unwrap_or_default()),
        section: words.of_option(raw.section_name),
        port,
    })
}

fn group_kind(group: Option<&str>, kind: Option<&str>, default_group: &str, words: &Words) -> GroupKind {
    GroupKind { group: words.of(group.unwrap_or(default_group)), kind: words.of(kind.unwrap_or_default()) }
}

#[cfg(test)]
mod tests;
