//! Precedence of claimants that want the same thing.

use crate::model::object::Meta;
use crate::model::{Kind, ObjectName, Origin};
use std::fmt;

/// A claimant of an address and port, or of a name. The lesser claimant wins: the static file, then the
/// oldest object, then the first by kind, namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claimant<'a> {
    /// A listener or route of the static file.
    File {
        /// `listener` or `route`.
        what: &'static str,
        /// Its name.
        name: &'a str,
    },
    /// An object.
    Object {
        /// `metadata.creationTimestamp`.
        created_secs: i64,
        /// Its kind.
        kind: Kind,
        /// Its namespace and name.
        name: &'a ObjectName,
    },
}

impl<'a> Claimant<'a> {
    pub(super) fn object(kind: Kind, meta: &'a Meta) -> Self {
        Self::Object { created_secs: meta.created_secs, kind, name: &meta.name }
    }

    /// Returns the namespace of the object; `None`: the static file.
    pub(super) fn namespace(&self) -> Option<&'a str> {
        match *self {
            Self::File { .. } => None,
            Self::Object { name, .. } => Some(&name.namespace),
        }
    }

    /// Returns the claimant as the origin of claims.
    pub(super) fn origin(&self) -> Origin {
        match *self {
            Self::File { what, name } => Origin::File { what, name: name.into() },
            Self::Object { created_secs, kind, name } => {
                Origin::Object { created_secs, kind, name: name.clone() }
            }
        }
    }
}

impl fmt::Display for Claimant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.origin().fmt(f)
    }
}
