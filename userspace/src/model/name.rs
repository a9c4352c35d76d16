//! Server names, and the patterns that routes match them with.

use std::fmt;
use std::sync::Arc;

/// What a TLS client asks for, normalised: lower case, A-labels, no trailing dot, 1 to 253 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName(Arc<str>);

impl ServerName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a route matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// This one name.
    Exact(ServerName),
    /// `*.` and this name: any name with one or more labels before it.
    Wildcard(ServerName),
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
        }
    }
}
