//! Listener isolation: within a Gateway and a port, a name belongs to its most specific listener, and only to
//! routes of that listener.

use super::listener::{Listener, Parents};
use super::pattern::{Key, above, key};
use crate::model::{Pattern, Protocol};
use foldhash::HashMap;

/// A listener's hostname on one of its bindings, if the Gateway has other listeners on the port.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    /// Index of the Gateway.
    pub(super) gateway: usize,
    /// Index of the listener.
    pub(super) listener: usize,
    /// Index of the binding.
    pub(super) binding: usize,
    pub(super) hostname: &'a Pattern,
}

/// The listeners that names belong to, for each Gateway.
pub(super) struct Isolation<'a> {
    /// By Gateway and port: the listener of each hostname. Only ports with several listeners have an entry.
    listeners: HashMap<(usize, u16), HashMap<Key<'a>, usize>>,
}

impl<'a> Isolation<'a> {
    pub(super) fn new(parents: &Parents<'a>) -> Self {
        let mut listeners: HashMap<(usize, u16), HashMap<Key<'a>, usize>> = HashMap::default();
        for parent in parents.all.iter().filter(|parent| parent.refusal.is_none()) {
            for at in parent.listeners.clone().filter(|at| is_tls(&parents.listeners[*at])) {
                let spec = parents.listeners[at].spec;
                let own = listeners.entry((parent.gateway, spec.port)).or_default();
                own.insert(key(spec.hostname.as_ref()), at);
            }
        }
        listeners.retain(|_, own| own.len() > 1);
        Self { listeners }
    }

    /// Whether the names of a pattern that a listener matches belong to it, and not to a more specific
    /// listener of the same Gateway.
    pub(super) fn belongs(&self, parents: &Parents<'a>, pattern: Option<&Pattern>, listener: usize) -> bool {
        let port = parents.listeners[listener].spec.port;
        let Some(others) = self.listeners.get(&(parents.gateway_of(listener), port)) else { return true };
        let wider = pattern.into_iter().flat_map(above);
        let most_specific = std::iter::once(key(pattern)).chain(wider).find_map(|key| others.get(&key));
        most_specific.is_none_or(|most_specific| *most_specific == listener)
    }

    /// Returns the hostnames, by binding, that must be kept from the routes of less specific listeners, the
    /// widest first.
    pub(super) fn sites(&self, parents: &Parents<'a>) -> Vec<Site<'a>> {
        let mut sites = Vec::new();
        for (at, listener) in parents.listeners.iter().enumerate() {
            let gateway = parents.gateway_of(at);
            let Some(hostname) = &listener.spec.hostname else { continue };
            if self.listeners.contains_key(&(gateway, listener.spec.port)) {
                sites.extend(listener.bindings.iter().map(|binding| Site {
                    gateway,
                    listener: at,
                    binding: *binding,
                    hostname,
                }));
            }
        }
        sites.sort_by_key(|site| site.hostname.width());
        sites
    }
}

fn is_tls(listener: &Listener<'_>) -> bool {
    listener.is_accepted() && listener.protocol == Some(Protocol::Tls)
}
