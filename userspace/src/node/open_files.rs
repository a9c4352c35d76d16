//! The limit of open files.

use std::io;

/// The most files that the process asks for. Each port for health checks, each connection and each map takes one.
const WANTED: libc::rlim_t = 65_536;

/// Raises the limit of open files as far as the process may: the one that it is started with is often 1,024, for programs that use
/// `select`, which has no room for more.
pub(super) fn raise() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for what the kernel writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = WANTED.min(limit.rlim_max);
    if limit.rlim_cur >= wanted {
        return Ok(());
    }
    limit.rlim_cur = wanted;
    // SAFETY: the kernel reads `limit`.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_is_allowed() {
        raise().unwrap();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place for what the kernel writes.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        assert!(limit.rlim_cur >= WANTED.min(limit.rlim_max), "{} of {}", limit.rlim_cur, limit.rlim_max);
    }
}
