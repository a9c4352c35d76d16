//! Reduces an object to what decisions need of it. Pure: what cannot be read is left out and reported.

/// Announcement.
mod announcement;
/// Claim.
mod claim;
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
/// IPAddressPool.
mod pool;
/// L2Advertisement.
mod advertisement;
/// Node.
mod node;
/// Label selectors.
mod selector;

pub(super) use advertisement::fold as advertisement;
pub(super) use announcement::fold as announcement;
pub(super) use claim::fold as claim;
pub(super) use class::fold as class;
pub(super) use endpoint_slice::fold as endpoint_slice;
pub(super) use gateway::fold as gateway;
pub(super) use grant::fold as grant;
pub(super) use listener_set::fold as listener_set;
pub(super) use namespace::fold as namespace;
pub(super) use node::fold as node;
pub(super) use pool::fold as pool;
pub(super) use route::fold as route;
pub(super) use service::{Reading, fold as service};

use super::api::gateway::Parent;
use super::api::object::RawMeta;
use super::interner::Interner;
use super::value::Findings;
use crate::model::cluster::{GroupKind, ParentRef, PoolWish};
use crate::model::{Kind, Meta, ObjectName, ObjectRef, TENANT};
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

/// What `metadata` says that matters.
pub(super) fn meta(raw: &RawMeta, interner: &Interner) -> Meta {
    let created = raw.creation_timestamp.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
    Meta {
        name: name(raw, interner),
        uid: raw.uid.as_deref().unwrap_or_default().into(),
        generation: raw.generation.unwrap_or_default(),
        created_secs: created.map_or(0, Timestamp::as_second),
        tenant: raw.labels.as_ref().and_then(|labels| labels.get(TENANT)).map(|label| interner.of(label)),
    }
}

/// Annotations that name the pool of an object's addresses, the stronger first: MetalLB's, and that of its first releases.
const POOL: [&str; 2] = ["metallb.io/address-pool", "metallb.universe.tf/address-pool"];

/// Where an object's addresses come from.
fn pool_wish(raw: &RawMeta, interner: &Interner) -> PoolWish {
    let pool = POOL.iter().find_map(|name| raw.annotations.get(*name)).filter(|pool| !pool.is_empty());
    let labels = raw.labels.iter().flatten();
    PoolWish {
        pool: pool.map(|pool| interner.of(pool)),
        labels: Arc::new(labels.map(|(key, value)| (interner.of(key), interner.of(value))).collect()),
    }
}

/// Namespace and name.
pub(super) fn name(raw: &RawMeta, interner: &Interner) -> ObjectName {
    ObjectName {
        namespace: interner.of(raw.namespace.as_deref().unwrap_or_default()),
        name: interner.of(raw.name.as_deref().unwrap_or_default()),
    }
}

fn findings(kind: Kind, meta: &Meta) -> Findings {
    Findings::of(Some(ObjectRef { kind, name: meta.name.clone() }))
}

fn parent(raw: Parent, field: &str, found: &mut Findings, interner: &Interner) -> Option<ParentRef> {
    let port = match raw.port {
        Some(port) => Some(found.check(format_args!("{field}.port"), port, super::value::port(port))?),
        None => None,
    };
    Some(ParentRef {
        group: interner.of_option(raw.group),
        kind: interner.of_option(raw.kind),
        namespace: interner.of_option(raw.namespace),
        name: interner.of(raw.name.as_deref().unwrap_or_default()),
        section: interner.of_option(raw.section_name),
        port,
    })
}

fn group_kind(
    group: Option<&str>,
    kind: Option<&str>,
    default_group: &str,
    interner: &Interner,
) -> GroupKind {
    GroupKind {
        group: interner.of(group.unwrap_or(default_group)),
        kind: interner.of(kind.unwrap_or_default()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
