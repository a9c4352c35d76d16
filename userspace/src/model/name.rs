//! Server names, and the patterns that routes match them with.

use common::decide::server_name::{self, NameError, normalise};
use std::fmt;
use std::sync::Arc;

/// Why a text is no server name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It breaks a rule that the kernel holds names to.
    #[error(transparent)]
    Rule(#[from] NameError),
    /// It holds characters that no A-label stands for.
    #[error("holds characters that internationalised domain names (RFC 5890) do not allow")]
    NotIdna,
}

/// What a TLS client asks for, normalised: lower case, A-labels, no trailing dot, 1 to 253 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName(Arc<str>);

impl ServerName {
    /// Judges and normalises a name as configured: by the kernel's own rules, after converting U-labels (RFC 5890) to
    /// A-labels.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        if text.is_ascii() {
            return Ok(normalise(text.as_bytes())?.into());
        }
        let ascii = idna::domain_to_ascii(text).map_err(|_| InvalidName::NotIdna)?;
        Ok(normalise(ascii.as_bytes())?.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<server_name::ServerName> for ServerName {
    fn from(name: server_name::ServerName) -> Self {
        Self(name.as_str().into())
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
