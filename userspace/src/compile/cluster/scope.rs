//! Which parent a reference means, and whose objects a scope takes.

use super::GATEWAY_GROUP;
use crate::model::Kind;
use crate::model::cluster::{Labels, NamespaceScope, ParentRef};
use std::sync::Arc;

/// The kind of parent that a reference means; `None`: none of ours.
pub(super) fn parent_kind(reference: &ParentRef) -> Option<Kind> {
    if reference.group.as_deref().is_some_and(|group| group != GATEWAY_GROUP) {
        return None;
    }
    match reference.kind.as_deref() {
        None | Some("Gateway") => Some(Kind::Gateway),
        Some("ListenerSet") => Some(Kind::ListenerSet),
        Some(_) => None,
    }
}

/// Whether a scope that is written in namespace `own` takes objects of namespace `other`.
pub(super) fn allows(scope: &NamespaceScope, own: &str, other: &str, labels: Option<&Arc<Labels>>) -> bool {
    match scope {
        NamespaceScope::All => true,
        NamespaceScope::Same => own == other,
        NamespaceScope::Selector(selector) => labels.is_some_and(|labels| selector.matches(labels)),
        NamespaceScope::None => false,
    }
}
