//! ReferenceGrant.

use super::super::api::gateway::{Grant, Granted};
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::super::value::Findings;
use super::group_kind;
use crate::model::Problem;
use crate::model::cluster::GrantSpec;

/// A problem of a grant has no object: nothing of ours is written to grants.
pub(in super::super) fn fold(raw: Raw<InSpec<Grant>>, interner: &Interner) -> (GrantSpec, Vec<Problem>) {
    let mut found = Findings::of(None);
    let spec = found.body(raw.body).spec.unwrap_or_default();
    let kind =
        |granted: &Granted| group_kind(granted.group.as_deref(), granted.kind.as_deref(), "", interner);
    let from = spec.from.into_iter().flatten();
    let to = spec.to.into_iter().flatten();
    let grant = GrantSpec {
        from: from
            .map(|raw| (kind(&raw), interner.of(raw.namespace.as_deref().unwrap_or_default())))
            .collect(),
        to: to
            .map(|raw| (kind(&raw), interner.of_option(raw.name.filter(|name| !name.is_empty()))))
            .collect(),
    };
    (grant, found.into_problems())
}
