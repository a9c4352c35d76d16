//! Invariants for any bytes as a configured host name.

use super::oracle::{self, Verdict};
use common::decide::server_name::{NameError, RESERVED, normalise};

/// Input: the name.
pub fn check(text: &[u8]) {
    let found = normalise(text);
    let verdict = oracle::name(text);
    let fits = match (&verdict, &found) {
        (Verdict::Name(expected), Ok(name)) | (Verdict::LikeIpv4(expected), Ok(name)) => {
            expected == name.as_str()
        }
        (Verdict::NoName | Verdict::LikeIpv4(_) | Verdict::LikeIpv6, Err(NameError::Address)) => true,
        (Verdict::LikeIpv6 | Verdict::InvalidName, Err(_)) => true,
        _ => false,
    };
    assert!(fits, "{found:?}, the reference says {verdict:?}");
    if let Ok(name) = found {
        assert!(name.bytes.iter().skip(usize::from(name.length)).all(|byte| *byte == 0));
        assert_eq!(normalise(name.as_bytes()), Ok(name), "normalising twice changes it");
        assert_eq!(name.is_reserved(), RESERVED.contains(&name.as_str()));
    }
}
