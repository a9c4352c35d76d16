//! Where tests run.

use std::fs;

/// Whether this is CI: a test that is skipped would look like one that passed.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// Returns the kernel's version, without the builder's suffix.
pub fn kernel() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().split('-').next().unwrap_or_default().to_owned()
}

/// Returns major and minor number of a kernel's version.
pub fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(numbers("6.18.44") >= Some((6, 3)) && numbers("6.2.16") < Some((6, 3)));
        assert_eq!([numbers("7.0"), numbers(""), numbers("6")], [Some((7, 0)), None, None]);
        assert!(numbers(&kernel()) >= Some((5, 0)), "{}", kernel());
    }
}
