//! L2Advertisement.

use super::super::api::gateway::Selector;
use super::super::api::metallb::{L2Advertisement, PreferredNodes};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value::{Findings, wrong};
use super::selector::{selector, selectors};
use super::{findings, meta};
use crate::model::advertisement::AdvertisementSpec;
use crate::model::labels::LabelSelector;
use crate::model::{Kind, Problem};

/// What to do about a selector that cannot be read.
const UNREADABLE: &str = "write In, NotIn, Exists or DoesNotExist; until then it selects nothing";

/// The highest weight of a preference.
const HEAVIEST: u32 = 100;

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
    let selected = |all, field, found: &mut Findings| selectors(all, field, UNREADABLE, found, interner);
    let pools = spec.ip_address_pool_selectors.iter().flatten();
    let nodes = spec.node_selectors.iter().flatten();
    let services = spec.service_selectors.iter().flatten();
    let advertisement = AdvertisementSpec {
        pools: spec.ip_address_pools.iter().flatten().map(|name| interner.of(name)).collect(),
        pool_selectors: selected(pools, "spec.ipAddressPoolSelectors", &mut found),
        node_selectors: selected(nodes, "spec.nodeSelectors", &mut found),
        interfaces: spec.interfaces.iter().flatten().map(|name| interner.of(name)).collect(),
        service_selectors: selected(services, "spec.serviceSelectors", &mut found),
        preferred: preferred(spec.preferred_node_selectors.iter().flatten(), &mut found, interner),
        is_refused: is_unreadable,
        meta,
    };
    (advertisement, found.into_problems())
}

/// Folds which nodes are preferred; what cannot be read prefers nothing.
fn preferred<'a>(
    raw: impl Iterator<Item = &'a PreferredNodes>,
    found: &mut Findings,
    interner: &Interner,
) -> Vec<(u32, LabelSelector)> {
    let every = Selector::default();
    let mut all = Vec::new();
    for (at, PreferredNodes { weight, preference }) in raw.enumerate() {
        let field = format!("spec.preferredNodeSelectors[{at}]");
        let preference = preference.as_ref().unwrap_or(&every);
        let selector = selector(preference, &format!("{field}.preference"), UNREADABLE, found, interner);
        let number = u32::try_from(*weight).ok().filter(|weight| (1..=HEAVIEST).contains(weight));
        if number.is_none() {
            let remedy = "write 1 to 100; until then it prefers nothing";
            found.tell(format!("{field}.weight"), weight, wrong("is no weight", remedy));
        }
        all.extend(number.zip(selector));
    }
    all
}
