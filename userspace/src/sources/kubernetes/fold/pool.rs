//! IPAddressPool.

use super::super::api::metallb::{AddressPool, Allocation};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value::{self, Findings, Wrong, wrong};
use super::selector::selectors;
use super::{findings, meta};
use crate::model::cluster::{AddressRange, PoolScope, PoolSpec};
use crate::model::pool::InvalidRange;
use crate::model::{Kind, Problem};
use ipnet::IpNet;
use std::collections::BTreeMap;

/// Whether Services of several namespaces may share addresses of the pool by a key.
const SHARE_ACROSS: &str = "vestibule.dev/share-across-namespaces";
/// What to do about a selector that cannot be read.
const UNREADABLE: &str = "write In, NotIn, Exists or DoesNotExist; until then it selects nothing";

pub(in super::super) fn fold(raw: Raw<InSpec<AddressPool>>, interner: &Interner) -> (PoolSpec, Vec<Problem>) {
    let meta = meta(&raw.meta, interner);
    let mut found = findings(Kind::IpAddressPool, &meta);
    let spec = found.body(raw.body).spec.unwrap_or_default();
    let mut ranges: Vec<AddressRange> = Vec::new();
    for (at, text) in spec.addresses.iter().flatten().enumerate() {
        let field = format!("spec.addresses[{at}]");
        let Some(range) = found.check(&field, text, range(text)) else { continue };
        if ranges.iter().any(|other| other.overlaps(&range)) {
            let remedy = "list each address in one entry only";
            found.tell(&field, text, wrong("has addresses of an entry before it", remedy));
            continue;
        }
        ranges.push(range);
    }
    let allocation = spec.service_allocation.unwrap_or_default();
    let labels = raw.meta.labels.iter().flatten();
    let pool = PoolSpec {
        labels: labels.map(|(key, value)| (interner.of(key), interner.of(value))).collect(),
        ranges,
        is_automatic: spec.auto_assign.unwrap_or(true),
        leaves_out_ends: spec.avoid_buggy_ips.unwrap_or(false),
        priority: priority(allocation.priority, &mut found),
        scope: scope(&allocation, &mut found, interner),
        shares_across_namespaces: shares_across(&raw.meta.annotations, &mut found),
        meta,
    };
    (pool, found.into_problems())
}

/// What cannot be read lets nobody share more than MetalLB's own pools do without it.
fn shares_across(annotations: &BTreeMap<String, String>, found: &mut Findings) -> bool {
    let Some(text) = annotations.get(SHARE_ACROSS) else { return false };
    let read = text.parse().map_err(|_| wrong("is neither true nor false", "write \"true\" or \"false\""));
    let field = format!("metadata.annotations[{SHARE_ACROSS}]");
    found.check(&field, text, read).unwrap_or(false)
}

/// MetalLB takes 0 for the last.
fn priority(raw: Option<i64>, found: &mut Findings) -> u32 {
    let number = raw.unwrap_or(0);
    let checked = u32::try_from(number).map_err(|_| {
        wrong("is no priority", "write a number from 1, which comes first, or 0, which comes last")
    });
    match found.check("spec.serviceAllocation.priority", number, checked) {
        None | Some(0) => u32::MAX,
        Some(priority) => priority,
    }
}

fn scope(raw: &Allocation, found: &mut Findings, interner: &Interner) -> PoolScope {
    let field = |name: &str| format!("spec.serviceAllocation.{name}");
    PoolScope {
        namespaces: raw.namespaces.iter().flatten().map(|name| interner.of(name)).collect(),
        namespace_selectors: selectors(
            raw.namespace_selectors.iter().flatten(),
            &field("namespaceSelectors"),
            UNREADABLE,
            found,
            interner,
        ),
        object_selectors: selectors(
            raw.service_selectors.iter().flatten(),
            &field("serviceSelectors"),
            UNREADABLE,
            found,
            interner,
        ),
    }
}

/// Parses a CIDR, which may name any address of its network, or `first-last`.
fn range(text: &str) -> Result<AddressRange, Wrong> {
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (value::address(first.trim())?, value::address(last.trim())?),
        None => {
            let remedy = "write a network and its prefix length, such as \"192.0.2.0/24\", or both ends with '-' between";
            let net: IpNet = text.trim().parse().map_err(|_| wrong("is no range", remedy))?;
            (net.network(), net.broadcast())
        }
    };
    AddressRange::new(first, last).map_err(|InvalidRange { what, remedy }| wrong(what, remedy))
}
