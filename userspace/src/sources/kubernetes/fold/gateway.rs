//! Gateway.

use super::super::api::gateway::{Address, Allowed, Gateway, GatewayStatus};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value;
use super::listener::{listeners, scope};
use super::{findings, meta, pool_wish};
use crate::model::cluster::{AddressRequest, GatewaySpec, NamespaceScope};
use crate::model::{Kind, Problem};
use serde::Deserialize;
use std::net::IpAddr;

/// Type of an address where it is not written.
const IP_ADDRESS: &str = "IPAddress";

pub(in super::super) fn fold(raw: Raw<InSpec<Gateway>>, interner: &Interner) -> (GatewaySpec, Vec<Problem>) {
    let meta = meta(&raw.meta, interner);
    let mut found = findings(Kind::Gateway, &meta);
    let spec = found.body(raw.body).spec.unwrap_or_default();
    let allowed = spec.allowed_listeners.as_ref().and_then(|allowed: &Allowed| allowed.namespaces.as_ref());
    let gateway = GatewaySpec {
        class: interner.of(spec.gateway_class_name.as_deref().unwrap_or_default()),
        addresses: spec.addresses.into_iter().flatten().map(|address| request(address, interner)).collect(),
        has_parameters: spec
            .infrastructure
            .is_some_and(|infrastructure| infrastructure.parameters_ref.is_some()),
        allowed_listeners: scope(
            allowed,
            NamespaceScope::None,
            "spec.allowedListeners.namespaces",
            &mut found,
            interner,
        ),
        listeners: listeners(spec.listeners, &mut found, interner),
        given: given(&raw.status),
        from: pool_wish(&raw.meta, interner),
        meta,
    };
    (gateway, found.into_problems())
}

fn request(raw: Address, interner: &Interner) -> AddressRequest {
    AddressRequest {
        kind: interner.of(raw.r#type.as_deref().unwrap_or(IP_ADDRESS)),
        value: raw.value.filter(|value| !value.is_empty()).map(Into::into),
    }
}

/// Addresses that its status gives it. What cannot be read there, no one of ours has written.
fn given(status: &serde_json::Value) -> Vec<IpAddr> {
    let status = GatewayStatus::deserialize(status).unwrap_or_default();
    let addresses = status.addresses.into_iter().flatten();
    let of_type = addresses.filter(|address| address.r#type.as_deref().is_none_or(|kind| kind == IP_ADDRESS));
    of_type.filter_map(|address| value::address(address.value.as_deref()?).ok()).collect()
}
