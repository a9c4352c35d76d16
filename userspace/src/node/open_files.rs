//! The limit of open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// The most files that the process asks for. Each port for health checks, each connection and each map takes one.
const WANTED: u64 = 65_536;

/// Raises the limit of open files as far as the process may: the one that it is started with is often 1,024, for programs that use
/// `select`, which has no room for more.
pub(super) fn raise() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = WANTED.min(hard);
        if soft < wanted { setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        warn!(%error, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_is_allowed() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // Lower than any test needs it to be would disturb the others.
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(WANTED - 1), hard).unwrap();
        raise();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard.min(WANTED), hard));
    }
}
