//! What documents say about the tree must be true.

use super::{Tree, words};
use std::collections::BTreeSet;

const DOCUMENTS: &[&str] = &["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"];

/// Checks that every path in a document exists. A path starts with a folder of the root, or ends like a source.
pub(super) fn paths(tree: &Tree) -> Vec<String> {
    let folders: BTreeSet<&str> =
        tree.files.iter().filter_map(|file| Some(file.path.split_once('/')?.0)).collect();
    let mut problems = Vec::new();
    for document in DOCUMENTS {
        let Some(text) = tree.text(document) else {
            problems.push(format!("{document} is missing"));
            continue;
        };
        for (index, line) in text.lines().enumerate() {
            let apart = |c: char| c.is_whitespace() || "`()[]<>|\"';,".contains(c);
            for word in line.replace(", ", " ").split(|c| apart(c) && c != ',').flat_map(spelled_out) {
                // A test is named behind its file.
                let word =
                    word.split("::").next().unwrap_or(&word).trim_end_matches(['.', ':', ',', '/', '*']);
                let below_root = word.split_once('/').is_some_and(|(first, _)| folders.contains(first));
                let source = [".rs", ".toml"].iter().any(|end| word.ends_with(end) && word.len() > end.len());
                let plain =
                    !word.contains(['*', '$', '<', '=', '{']) && !word.starts_with(['/', '~', '.', '-']);
                // A document may say that a path does not exist.
                let denied = line.contains(&format!("no `{word}`"));
                if plain && (below_root || source) && !denied && !exists(tree, word) {
                    problems.push(format!("{document}:{}: there is no {word}", index + 1));
                }
            }
        }
    }
    problems
}

/// Checks that every test which a document names as `file.rs::test` is one.
pub(super) fn tests_named(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for document in DOCUMENTS {
        let lines = tree.text(document).into_iter().flat_map(str::lines).enumerate();
        for (index, word) in lines.flat_map(|(index, line)| line.split('`').map(move |word| (index, word))) {
            let Some((file, test)) = word.split_once(".rs::") else { continue };
            if !is_test(tree, &format!("{file}.rs"), test) {
                problems.push(format!("{document}:{}: {file}.rs has no test {test}", index + 1));
            }
        }
    }
    problems
}

/// Whether the file whose path ends like this has a function of this name, with an attribute that makes it a test, or in a macro
/// that does.
fn is_test(tree: &Tree, path: &str, test: &str) -> bool {
    let end = format!("/{path}");
    let declared = format!("fn {test}(");
    tree.files.iter().filter(|file| file.path == path || file.path.ends_with(&end)).any(|file| {
        let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
        let at = lines.iter().position(|line| line.trim_start_matches("async ").starts_with(&declared));
        at.is_some_and(|at| {
            let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
            attributes.into_iter().any(|line| line.contains("test"))
        })
    })
}

/// Expands `a/{b,c}.rs` to two paths.
fn spelled_out(word: &str) -> Vec<String> {
    let braces = word.find('{').and_then(|open| Some((open, open + word[open..].find('}')?)));
    match braces {
        None => vec![word.to_owned()],
        Some((open, close)) => {
            let names = word[open + 1..close].split(',');
            names.map(|name| format!("{}{}{}", &word[..open], name.trim(), &word[close + 1..])).collect()
        }
    }
}

/// Whether `path` is a file, a folder, or the end of a path.
fn exists(tree: &Tree, path: &str) -> bool {
    let (folder, end) = (format!("{path}/"), format!("/{path}"));
    tree.files
        .iter()
        .any(|file| file.path == path || file.path.starts_with(&folder) || file.path.ends_with(&end))
}

const MAPS: &str = "common/src/maps/mod.rs";

/// Checks that every map has a row in the map table.
pub(super) fn maps(tree: &Tree) -> Vec<String> {
    let (Some(maps), Some(document)) = (tree.text(MAPS), tree.text("ARCHITECTURE.md")) else {
        return vec![format!("the map table: {MAPS} or ARCHITECTURE.md is missing")];
    };
    let names: Vec<&str> = maps.lines().filter_map(name).collect();
    if names.is_empty() {
        return vec![format!("{MAPS}: no map name found")];
    }
    let cells: Vec<&str> =
        document.lines().filter_map(|line| line.trim().strip_prefix('|')?.split('|').next()).collect();
    let listed = |name: &&str| cells.iter().any(|cell| words(cell, name).next().is_some());
    let missing = names.into_iter().filter(|name| !listed(name));
    missing.map(|name| format!("ARCHITECTURE.md: map {name} has no row in the map table")).collect()
}

/// The name in a line like `pub const FLOWS: &str = "FLOWS";`.
fn name(line: &str) -> Option<&str> {
    let value = line.trim().strip_prefix("pub const ")?.split_once(": &str = \"")?.1;
    value.strip_suffix("\";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(architecture: &'static str) -> Tree {
        Tree::of(&[
            ("ARCHITECTURE.md", architecture),
            ("README.md", "Run `cargo xtask demo`; see https://a.example/common/x."),
            ("CONTRIBUTING.md", ""),
            ("common/src/lib.rs", ""),
            ("userspace/src/plan/order.rs", ""),
            (MAPS, "pub const FLOWS: &str = \"FLOWS\";\npub const NATS: &str = \"NATS\";\n"),
        ])
    }

    #[test]
    fn a_path_that_does_not_exist_is_found() {
        assert_eq!(
            paths(&documents("`common/src/`, (plan/order.rs), common/src/{lib,maps/mod}.rs.")),
            [""; 0]
        );
        assert_eq!(paths(&documents("`common/sources/`, {plan,order}.rs")).len(), 2);
    }

    #[test]
    fn a_name_that_is_no_test_is_found() {
        let files = [
            (
                "ARCHITECTURE.md",
                "| a rule | `plan/order.rs::it_holds`, `order.rs::it_waits` |\n`order.rs::helper`",
            ),
            (
                "userspace/src/plan/order.rs",
                "    #[test]\n    fn it_holds() {\n    fn helper() {\n#[tokio::test]\nasync fn it_waits() {",
            ),
        ];
        assert_eq!(tests_named(&Tree::of(&files)), ["ARCHITECTURE.md:2: order.rs has no test helper"]);
    }

    #[test]
    fn a_map_without_a_row_is_found() {
        assert_eq!(maps(&documents("| `FLOWS` | key |\n| `NATS` | key |")), [""; 0]);
        assert_eq!(maps(&documents("| `FLOWS` | as NATS |\nNATS")).len(), 1);
    }
}
