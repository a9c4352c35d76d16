//! Which addresses origins ask for.

use crate::model::claim::{AddressWish, OwnAddresses, Refusal, Wishes};
use crate::model::cluster::{GatewaySpec, ServiceSpec};
use std::net::IpAddr;
use std::sync::Arc;

/// Returns which addresses a Gateway asks for.
pub(super) fn gateway(gateway: Option<&GatewaySpec>) -> AddressWish {
    let Some(gateway) = gateway else { return AddressWish::default() };
    let mut own = OwnAddresses { pool: gateway.from.pool.clone(), ..OwnAddresses::default() };
    for value in gateway.addresses.iter().filter_map(|request| request.value.as_ref()) {
        match value.parse() {
            Ok(address) => own.values.push(address),
            Err(_) => own.unreadable.push(Arc::clone(value)),
        }
    }
    AddressWish::Own(own)
}

/// Returns what a Service of our class asks for; these were refused.
pub(super) fn of_service(service: &ServiceSpec, refusals: Vec<Refusal>) -> Wishes {
    let (uid, address) = (Arc::clone(&service.meta.uid), addresses(service));
    Wishes { uid, address, matches: Vec::new(), refusals }
}

/// Returns which addresses a Service of our class asks for. Where it names some, it asks for no others.
fn addresses(service: &ServiceSpec) -> AddressWish {
    let Some(balancer) = service.load_balancer.as_deref() else { return AddressWish::default() };
    let names_some = !balancer.addresses.is_empty() || !balancer.unreadable.is_empty();
    AddressWish::Own(OwnAddresses {
        values: balancer.addresses.clone(),
        unreadable: balancer.unreadable.clone(),
        families: if names_some { Vec::new() } else { balancer.families.clone() },
        pool: balancer.from.pool.clone(),
        sharing_key: balancer.sharing_key.clone(),
    })
}

/// Returns that the addresses of a listener of the static file are asked for.
pub(super) fn listener(addresses: &[IpAddr]) -> AddressWish {
    AddressWish::Own(OwnAddresses { values: addresses.to_vec(), ..OwnAddresses::default() })
}
