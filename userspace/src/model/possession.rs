//! What was granted before, by namespace: between namespaces, possession comes before age.

use super::Protocol;
use super::name::Pattern;
use super::object::ObjectRef;
use foldhash::{HashMap, HashSet};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Who has what, by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Possession {
    addresses: HashMap<IpAddr, HashSet<Arc<str>>>,
    /// Addresses of each Gateway and Service, in order.
    objects: HashMap<ObjectRef, BTreeSet<IpAddr>>,
    /// The pool that each of them asked for when it was granted them.
    pools: HashMap<ObjectRef, Arc<str>>,
    bindings: HashMap<(SocketAddr, Protocol), HashSet<Arc<str>>>,
    /// `None`: what no name takes.
    names: HashMap<(SocketAddr, Option<Pattern>), HashSet<Arc<str>>>,
}

impl Possession {
    /// A Gateway or Service has an address.
    pub fn add_address(&mut self, object: &ObjectRef, address: IpAddr) {
        self.addresses.entry(address).or_default().insert(Arc::clone(&object.name.namespace));
        self.objects.entry(object.clone()).or_default().insert(address);
    }

    /// Returns the addresses that a Gateway or Service has, in order.
    pub fn of_object(&self, object: &ObjectRef) -> impl Iterator<Item = IpAddr> {
        self.objects.get(object).into_iter().flatten().copied()
    }

    /// A Gateway or Service was granted what it has while it asked for this pool.
    pub fn note_pool(&mut self, object: ObjectRef, pool: &str) {
        self.pools.insert(object, pool.into());
    }

    /// Returns the pool that a Gateway or Service asked for when it was granted what it has.
    pub fn pool_of(&self, object: &ObjectRef) -> Option<&str> {
        self.pools.get(object).map(|pool| &**pool)
    }

    /// An object of this namespace answers at an address and port with a protocol. The address may be that of a Gateway of another
    /// namespace.
    pub fn add_binding(&mut self, namespace: &Arc<str>, at: SocketAddr, protocol: Protocol) {
        self.bindings.entry((at, protocol)).or_default().insert(Arc::clone(namespace));
    }

    /// An object of this namespace has a pattern at an address and port; `None`: what no name takes.
    pub fn add_names(&mut self, namespace: &Arc<str>, at: SocketAddr, pattern: Option<Pattern>) {
        self.names.entry((at, pattern)).or_default().insert(Arc::clone(namespace));
    }

    /// Whether a Gateway or Service of this namespace has an address.
    pub fn has_address(&self, namespace: &str, address: IpAddr) -> bool {
        self.addresses.get(&address).is_some_and(|holders| holders.contains(namespace))
    }

    /// Whether any Gateway or Service has an address.
    pub fn is_had(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Whether an object of this namespace answers at an address and port with this protocol: who shares it on TLS does not have it
    /// alone, on TCP.
    pub fn has_binding(&self, namespace: &str, at: SocketAddr, protocol: Protocol) -> bool {
        self.bindings.get(&(at, protocol)).is_some_and(|holders| holders.contains(namespace))
    }

    /// Whether an object of this namespace has a pattern at an address and port; `None`: what no name takes.
    pub fn has_names(&self, namespace: &str, at: SocketAddr, pattern: Option<&Pattern>) -> bool {
        self.names.get(&(at, pattern.cloned())).is_some_and(|holders| holders.contains(namespace))
    }
}
