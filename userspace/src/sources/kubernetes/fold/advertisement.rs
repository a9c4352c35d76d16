//! L2Advertisement.

use super::super::api::metallb::L2Advertisement;
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value::{Findings, wrong};
use super::selector::selectors;
use super::{findings, meta};
use crate::model::advertisement::AdvertisementSpec;
use crate::model::{Kind, Problem};

/// What to do about a selector that cannot be read.
const UNREADABLE: &str = "write In, NotIn, Exists or DoesNotExist; until then it selects nothing";

pub(in super::super) fn fold(
    raw: Raw<InSpec<L2Advertisement>>,
    interner: &Interner,
) -> (AdvertisementSpec, Vec<Problem>) {
    let meta = meta(&raw.meta, interner);
    let mut found = findings(Kind::L2Advertisement, &meta);
    // Without what it says it would cover all pools.
    let is_unreadable = raw.body.is_err();
    let spec = match raw.body {
        Ok(body) => body.spec.unwrap_or_default(),
        Err(error) => {
            let what = format!("does not have the shape of its kind: {error}");
            let remedy = "write it as its CRD says; until then nothing is announced because of it";
            found.tell("spec", "", wrong(what, remedy));
            L2Advertisement::default()
        }
    };
    let is_narrower = tell_unhonoured(&spec, &mut found);
    let selected = |all, field, found: &mut Findings| selectors(all, field, UNREADABLE, found, interner);
    let pools = spec.ip_address_pool_selectors.iter().flatten();
    let nodes = spec.node_selectors.iter().flatten();
    let advertisement = AdvertisementSpec {
        pools: spec.ip_address_pools.iter().flatten().map(|name| interner.of(name)).collect(),
        pool_selectors: selected(pools, "spec.ipAddressPoolSelectors", &mut found),
        node_selectors: selected(nodes, "spec.nodeSelectors", &mut found),
        interfaces: spec.interfaces.iter().flatten().map(|name| interner.of(name)).collect(),
        is_refused: is_unreadable || is_narrower,
        meta,
    };
    (advertisement, found.into_problems())
}

/// Reports fields that are not honoured. Whether more would be announced without them than is asked for.
fn tell_unhonoured(spec: &L2Advertisement, found: &mut Findings) -> bool {
    let is_narrower = spec.service_selectors.iter().flatten().next().is_some();
    if is_narrower {
        let remedy = "leave it out, and give the Services a pool of their own; until then nothing is announced because of it";
        found.tell("spec.serviceSelectors", "", wrong("is not honoured", remedy));
    }
    if spec.preferred_node_selectors.iter().flatten().next().is_some() {
        let remedy = "leave it out, or name the nodes in spec.nodeSelectors; all that may announce are equal";
        found.tell("spec.preferredNodeSelectors", "", wrong("is not honoured", remedy));
    }
    is_narrower
}
