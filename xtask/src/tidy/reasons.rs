//! Every reason must be reached, by name, in a test below `tests/`.

use super::{Tree, words};

const REASONS: &str = "common/src/reason.rs";

/// Returns the reasons that no test names.
pub(super) fn reached(tree: &Tree) -> Vec<String> {
    let names: Vec<&str> = tree.text(REASONS).into_iter().flat_map(str::lines).filter_map(name).collect();
    if names.is_empty() {
        return vec![format!("{REASONS}: no reason found")];
    }
    let tests: Vec<_> = tree.sources().filter(|file| file.path.starts_with("tests/")).collect();
    let named = |name: &&str| {
        tests.iter().any(|file| file.code().any(|(_, line)| words(line, name).next().is_some()))
    };
    let missing = names.into_iter().filter(|name| !named(name));
    missing.map(|name| format!("{REASONS}: no test below tests/ reaches Reason::{name}")).collect()
}

/// The name in a line like `5 ParseTcpHeader "parse" "tcp_header" "text";`.
fn name(line: &str) -> Option<&str> {
    let mut parts = line.split_whitespace();
    parts.next()?.parse::<u32>().ok()?;
    let name = parts.next()?;
    parts.next()?.starts_with('"').then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_no_test_names_is_found() {
        let list = "reasons! {\n    0 NotOurs \"classify\" \"not_ours\" \"handed on\";\n    1 ParseNotIp \"parse\" \"x\" \"y\";\n}\n";
        let tree = Tree::of(&[
            (REASONS, list),
            ("tests/packet/parse.rs", "count(Reason::NotOurs); // ParseNotIp\n"),
        ]);
        assert_eq!(reached(&tree), [format!("{REASONS}: no test below tests/ reaches Reason::ParseNotIp")]);
    }
}
