//! GatewayClass.

use super::super::api::gateway::GatewayClass;
use super::super::api::object::{InSpec, Raw};
use super::super::interner::Interner;
use super::{findings, meta};
use crate::model::cluster::ClassSpec;
use crate::model::{Kind, Problem};

/// By which a GatewayClass says that it is ours.
const CONTROLLER: &str = "vestibule.dev/gateway-controller";

/// `None`: another controller's, which is nothing to us whatever it holds.
pub(in super::super) fn fold(
    raw: Raw<InSpec<GatewayClass>>,
    interner: &Interner,
) -> (Option<ClassSpec>, Vec<Problem>) {
    let meta = meta(&raw.meta, interner);
    let mut found = findings(Kind::GatewayClass, &meta);
    let spec = found.body(raw.body).spec.unwrap_or_default();
    if spec.controller_name.as_deref() != Some(CONTROLLER) {
        return (None, Vec::new());
    }
    let finalizers = raw.meta.finalizers.iter().flatten().map(|finalizer| interner.of(finalizer)).collect();
    let class = ClassSpec {
        meta,
        has_parameters: spec.parameters_ref.is_some(),
        finalizers,
        is_terminating: raw.meta.deletion_timestamp.is_some(),
    };
    (Some(class), found.into_problems())
}
