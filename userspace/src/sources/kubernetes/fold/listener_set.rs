//! ListenerSet.

use super::super::api::gateway::ListenerSet;
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::listener::listeners;
use super::{findings, meta, parent};
use crate::model::cluster::ListenerSetSpec;
use crate::model::{Kind, Problem};

pub(in super::super) fn fold(
    raw: Raw<InSpec<ListenerSet>>,
    interner: &Interner,
) -> (ListenerSetSpec, Vec<Problem>) {
    let meta = meta(&raw.meta, interner);
    let mut found = findings(Kind::ListenerSet, &meta);
    let spec = found.body(raw.body).spec.unwrap_or_default();
    let parent = spec.parent_ref.and_then(|raw| parent(raw, "spec.parentRef", &mut found, interner));
    let set = ListenerSetSpec {
        parent: parent.unwrap_or_default(),
        listeners: listeners(spec.listeners, &mut found, interner),
        meta,
    };
    (set, found.into_problems())
}
