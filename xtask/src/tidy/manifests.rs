//! Manifests: a licence in each, and the same version wherever several files name one.

use super::Tree;
use crate::process::CHANNEL;
use crate::setup::tools::BPF_LINKER;

/// Checks that every package states its licence, and that the licence's text exists.
pub(super) fn licences(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    if tree.text("LICENSE").is_none() {
        problems.push("LICENSE is missing".to_owned());
    }
    for file in tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        let says =
            |line: &str| line.starts_with("license = ") || line.starts_with("license.workspace = true");
        if !file.text.lines().any(says) {
            problems.push(format!("{}: no licence", file.path));
        }
    }
    problems
}

/// Checks that versions named in several files agree.
pub(super) fn versions(tree: &Tree) -> Vec<String> {
    let minor = CHANNEL.rsplit_once('.').map_or(CHANNEL, |(minor, _)| minor);
    let agree = [
        ("Cargo.toml", format!("rust-version = \"{minor}\"")),
        ("userspace/build.rs", format!("bpf-linker-{BPF_LINKER}-{CHANNEL}")),
    ];
    let differs =
        |(path, text): &&(&str, String)| !tree.text(path).is_some_and(|file| file.contains(text.as_str()));
    agree
        .iter()
        .filter(differs)
        .map(|(path, text)| format!("{path}: must say `{text}`, as xtask does"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_licence_is_found() {
        let tree = Tree::of(&[
            ("LICENSE", ""),
            ("a/Cargo.toml", "[package]\nlicense.workspace = true\n"),
            ("b/Cargo.toml", ""),
        ]);
        assert_eq!(licences(&tree), ["b/Cargo.toml: no licence"]);
    }

    #[test]
    fn a_version_that_disagrees_is_found() {
        let tree = Tree::of(&[("Cargo.toml", "rust-version = \"1.2\"\n"), ("userspace/build.rs", "")]);
        assert_eq!(versions(&tree).len(), 2);
    }
}
