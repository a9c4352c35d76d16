//! Addresses that a Claim asks for.

use crate::model::claim::{AddressWish, OwnAddresses};
use crate::model::cluster::FamilyWish;
use crate::model::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most bytes of a sharing key in a Claim: each port of a Service has one, and all agents read it.
const KEY_BYTES_MAX: usize = 63;
/// The most bytes of a pool's name in Kubernetes.
const POOL_BYTES_MAX: usize = 253;

/// Returns a text that a tenant chose: its prefix and a hash of the whole, where it is long.
fn bounded(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let hash = format!("~{:016x}", digest::of(&["bounded", text]));
    format!("{}{hash}", &text[..text.floor_char_boundary(most - hash.len())])
}

/// Addresses that a claim asks for: `values`, or those of `gateway`, or any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimAddress {
    /// IP addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// What it names besides and is no IP address, as written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// The families of which it asks for any address each, `IPv4` or `IPv6`, the primary first; empty: of each that there is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<String>,
    /// Those of `families` that it can do without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spare_families: Vec<String>,
    /// The pool that it asks for them; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Services of its namespace that have the same key may have the same addresses; absent: none may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing_key: Option<String>,
    /// A Gateway that others share: `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

impl ClaimAddress {
    pub(super) fn of(wish: &AddressWish) -> Self {
        let OwnAddresses { values, unreadable, families, pool, sharing_key } = match wish {
            AddressWish::Own(own) => own,
            AddressWish::OfGateway(gateway) => {
                return Self { gateway: Some(gateway.to_string()), ..Self::default() };
            }
        };
        let family = |wish: &FamilyWish| if wish.is_v4 { "IPv4" } else { "IPv6" }.to_owned();
        Self {
            values: values.iter().map(ToString::to_string).collect(),
            unreadable: unreadable.iter().map(ToString::to_string).collect(),
            families: families.iter().map(family).collect(),
            spare_families: families.iter().filter(|wish| !wish.is_required).map(family).collect(),
            pool: pool.as_deref().map(|pool| bounded(pool, POOL_BYTES_MAX)),
            sharing_key: sharing_key.as_deref().map(|key| bounded(key, KEY_BYTES_MAX)),
            gateway: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as long as an annotation may be was in a Claim for each port of its Service.
    #[test]
    fn what_a_tenant_names_is_bounded_and_stays_distinct() {
        let of = |key: &str| {
            let own = OwnAddresses { sharing_key: Some(key.into()), ..OwnAddresses::default() };
            ClaimAddress::of(&AddressWish::Own(own)).sharing_key.unwrap()
        };
        assert_eq!(of(&"k".repeat(63)), "k".repeat(63));
        let long = "é".repeat(100_000);
        let (one, other) = (of(&long), of(&format!("{long}x")));
        assert!(one.len() <= 63 && other.len() <= 63 && one != other, "{one} {other}");
    }
}
