//! Listeners, of Gateways and ListenerSets.

use super::super::api::gateway::{Listener, Namespaces};
use super::super::interner::Interner;
use super::super::value::{self, Findings, wrong};
use super::group_kind;
use super::selector::selector;
use crate::model::cluster::{GatewayListener, NamespaceScope};
use crate::model::kind::GATEWAY_GROUP;

/// `spec.listeners`; one that cannot be read is left out.
pub(super) fn listeners(
    raw: Option<Vec<Listener>>,
    found: &mut Findings,
    interner: &Interner,
) -> Vec<GatewayListener> {
    let listeners = raw.into_iter().flatten().enumerate();
    listeners.filter_map(|(place, raw)| listener(raw, place, found, interner)).collect()
}

fn listener(
    raw: Listener,
    place: usize,
    found: &mut Findings,
    interner: &Interner,
) -> Option<GatewayListener> {
    let field = |name: &str| format!("spec.listeners[{place}].{name}");
    let number = raw.port.unwrap_or_default();
    let port = found.check(field("port"), number, value::port(number));
    let hostname = match raw.hostname.as_deref() {
        None | Some("") => Some(None),
        // Without it the listener would match every name: none at all is what its author can be surer of.
        Some(text) => found.check(field("hostname"), text, value::pattern(text)).map(Some),
    };
    let allowed = raw.allowed_routes.unwrap_or_default();
    let namespaces = scope(
        allowed.namespaces.as_ref(),
        NamespaceScope::Same,
        &field("allowedRoutes.namespaces"),
        found,
        interner,
    );
    let kinds = allowed.kinds.into_iter().flatten();
    let mode = raw.tls.map(|tls| interner.of(tls.mode.as_deref().unwrap_or("Terminate")));
    Some(GatewayListener {
        name: interner.of(raw.name.as_deref().unwrap_or_default()),
        hostname: hostname?,
        port: port?,
        protocol: interner.of(raw.protocol.as_deref().unwrap_or_default()),
        tls_mode: mode,
        namespaces,
        kinds: kinds
            .map(|kind| group_kind(kind.group.as_deref(), kind.kind.as_deref(), GATEWAY_GROUP, interner))
            .collect(),
    })
}

/// Which namespaces may attach. What cannot be read lets nobody in.
pub(super) fn scope(
    raw: Option<&Namespaces>,
    default: NamespaceScope,
    field: &str,
    found: &mut Findings,
    interner: &Interner,
) -> NamespaceScope {
    let Some(raw) = raw else { return default };
    match raw.from.as_deref() {
        None => default,
        Some("All") => NamespaceScope::All,
        Some("Same") => NamespaceScope::Same,
        Some("None") => NamespaceScope::None,
        Some("Selector") => {
            let Some(raw) = &raw.selector else {
                let remedy = "write which labels the namespaces have; until then no namespace may attach";
                found.tell(format_args!("{field}.selector"), "", wrong("is missing", remedy));
                return NamespaceScope::None;
            };
            let remedy = "write In, NotIn, Exists or DoesNotExist; until then no namespace may attach";
            let selector = selector(raw, &format!("{field}.selector"), remedy, found, interner);
            selector.map_or(NamespaceScope::None, NamespaceScope::Selector)
        }
        Some(other) => {
            let remedy = "write All, Same, Selector or None; until then no namespace may attach";
            found.tell(format_args!("{field}.from"), other, wrong("is not known", remedy));
            NamespaceScope::None
        }
    }
}
