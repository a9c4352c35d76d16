//! What was granted before, by namespace: between namespaces, possession comes before age.

use super::claim::Grant;
use super::claim::{Claim, Granted};
use super::name::Pattern;
use foldhash::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Who has what, by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Possession {
    addresses: HashMap<IpAddr, HashSet<Arc<str>>>,
    bindings: HashMap<SocketAddr, HashSet<Arc<str>>>,
    /// `None`: what no name takes.
    names: HashMap<(SocketAddr, Option<Pattern>), HashSet<Arc<str>>>,
}

impl Possession {
    /// Returns what these claims of objects have.
    pub fn of<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> Self {
        let mut this = Self::default();
        for claim in claims {
            if let Some(object) = claim.origin.object() {
                this.add(&object.name.namespace, &claim.grants);
            }
        }
        this
    }

    /// Adds what an object of this namespace has.
    pub fn add(&mut self, namespace: &Arc<str>, grants: &[Grant]) {
        for Grant { at, what, .. } in grants {
            self.addresses.entry(at.ip()).or_default().insert(Arc::clone(namespace));
            let holders = match what {
                Granted::Binding => self.bindings.entry(*at).or_default(),
                Granted::Rest => self.names.entry((*at, None)).or_default(),
                Granted::Names(pattern) => self.names.entry((*at, Some(pattern.clone()))).or_default(),
            };
            holders.insert(Arc::clone(namespace));
        }
    }

    /// Whether an object of this namespace has anything at an address.
    pub fn has_address(&self, namespace: &str, address: IpAddr) -> bool {
        self.addresses.get(&address).is_some_and(|holders| holders.contains(namespace))
    }

    /// Whether an object of this namespace answers at an address and port.
    pub fn has_binding(&self, namespace: &str, at: SocketAddr) -> bool {
        self.bindings.get(&at).is_some_and(|holders| holders.contains(namespace))
    }

    /// Whether an object of this namespace has a pattern at an address and port; `None`: what no name takes.
    pub fn has_names(&self, namespace: &str, at: SocketAddr, pattern: Option<&Pattern>) -> bool {
        self.names.get(&(at, pattern.cloned())).is_some_and(|holders| holders.contains(namespace))
    }
}
