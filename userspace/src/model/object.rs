//! Names of Kubernetes objects, and what every object has.

use super::kind::Kind;
use std::fmt;
use std::sync::Arc;

/// Namespace and name. Ordered by namespace, then name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Empty: the object is cluster-scoped.
    pub namespace: Arc<str>,
    /// Unique among objects of its kind in the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// A namespaced name; an empty namespace makes it cluster-scoped.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// What it is.
    pub kind: Kind,
    /// Which one.
    pub name: ObjectName,
}

impl ObjectRef {
    /// Its name in NodeStates: `Gateway/namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// The label of a namespace that says whose it is, and of an object that says of which part.
pub const TENANT: &str = "vestibule.dev/tenant";

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.generation`; 0 where the kind has none (Service).
    pub generation: i64,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created_secs: i64,
    /// Label `vestibule.dev/tenant`: which part of its namespace's tenant it is of.
    pub tenant: Option<Arc<str>>,
}
