//! Server names, and the patterns that routes match them with.

use common::decide::server_name::{self, NameError, normalise};
use common::maps::route::NAME_BYTES_MAX;
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
        if is_plain(text) {
            return Ok(Self(text.into()));
        }
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

    fn is_below(&self, suffix: &Self) -> bool {
        self.0.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }
}

/// Whether it is a normalised server name for certain: what most names in a file are. The rest is for `normalise` to
/// judge.
fn is_plain(text: &str) -> bool {
    let mut label = 0;
    let mut letters = false;
    for byte in text.bytes() {
        match byte {
            b'.' if label == 0 => return false,
            b'.' => label = 0,
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => {
                label += 1;
                letters |= byte.is_ascii_lowercase();
            }
            _ => return false,
        }
        if label > server_name::LABEL_BYTES_MAX {
            return false;
        }
    }
    // Without a letter it may be an IPv4 address; with nothing behind the last dot the dot is to go.
    letters && label > 0 && text.len() <= NAME_BYTES_MAX
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
    /// Any name with exactly one label before this one, as Ingress means `*.` and a name.
    OneLabel(ServerName),
    /// `*.` and this name: any name with one or more labels before it, as the Gateway API means it.
    Wildcard(ServerName),
}

impl Pattern {
    /// What follows the text of a pattern of one label. Only Claims are read in this form.
    pub const ONE_LABEL: &str = " (one label)";

    /// Returns a number that is smaller for the wider of two nested patterns. Of two patterns that have a name in
    /// common, one is within the other.
    pub fn width(&self) -> usize {
        match self {
            Self::Exact(_) => usize::MAX,
            Self::OneLabel(suffix) => 2 * suffix.as_str().len() + 1,
            Self::Wildcard(suffix) => 2 * suffix.as_str().len(),
        }
    }

    /// Whether it matches every name that another one matches.
    pub fn covers(&self, narrow: &Self) -> bool {
        match (self, narrow) {
            (Self::Exact(_), Self::OneLabel(_) | Self::Wildcard(_))
            | (Self::OneLabel(_), Self::Wildcard(_)) => false,
            (Self::Exact(wide), Self::Exact(narrow)) | (Self::OneLabel(wide), Self::OneLabel(narrow)) => {
                wide == narrow
            }
            (Self::OneLabel(wide), Self::Exact(narrow)) => {
                narrow.as_str().split_once('.').is_some_and(|(_, rest)| rest == wide.as_str())
            }
            (Self::Wildcard(wide), Self::Exact(narrow)) => narrow.is_below(wide),
            (Self::Wildcard(wide), Self::OneLabel(narrow) | Self::Wildcard(narrow)) => {
                wide == narrow || narrow.is_below(wide)
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            // Not the other kind, which is what people write as `*.suffix`.
            Self::OneLabel(suffix) => write!(f, "*.{suffix}{}", Self::ONE_LABEL),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn plain_names_are_what_normalise_takes_unchanged(text in "[a-zA-Z0-9._:*-]{0,70}(\\.[a-z0-9.]{0,63}){0,4}") {
            if is_plain(&text) {
                prop_assert_eq!(normalise(text.as_bytes()).map(|name| name.as_str().to_owned()), Ok(text));
            }
        }
    }

    #[test]
    fn patterns_of_different_kinds_read_differently() {
        let name = |text| ServerName::new(text).unwrap();
        let texts =
            [Pattern::Exact, Pattern::OneLabel, Pattern::Wildcard].map(|kind| kind(name("a.b")).to_string());
        assert_eq!(texts, ["a.b", "*.a.b (one label)", "*.a.b"]);
    }

    #[test]
    fn usual_names_are_plain() {
        assert!(is_plain("tenant-a.k8s.example.com") && is_plain("a") && is_plain("xn--bcher-kva.example"));
        assert!(
            !is_plain("10.0.0.1") && !is_plain("a.") && !is_plain(".a") && !is_plain("A") && !is_plain("")
        );
        assert!(is_plain(&"a".repeat(63)) && !is_plain(&"a".repeat(64)) && !is_plain(&"a.".repeat(127)));
    }
}
