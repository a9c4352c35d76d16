//! Names, lengths and contents of files.

use super::{Tree, boundaries::split_tests};
use std::path::Path;

/// Catch-all names, which say nothing about what is inside.
const DRAWERS: &[&str] =
    &["utils", "util", "helpers", "misc", "types", "consts", "traits", "manager", "handler", "info", "data"];

const LINES_MAX: usize = 400;

/// Folders and files that may be longer, with the reason.
const LONGER: &[(&str, &str)] = &[
    ("tests/packet/", "one case after the other, each read alone"),
    ("tests/path/", "one story after the other, each read alone"),
];

/// Words in a sense that no reader expects, each with the usual term; refused as names of files, types and maps.
const RETIRED: &[(&str, &str)] = &[
    ("stash", "buffer"),
    ("chunk", "buffer"),
    ("tell", "icmp_error"),
    ("sum", "sums"),
    ("hop", "next_hop"),
    ("turn", "reconcile"),
    ("keeper", "reaper"),
    ("ways", "egress"),
    ("doors", "bindings"),
    ("words", "interner"),
    ("news", "watch_event"),
    ("notes", "kube_events"),
    ("telling", "kube_event"),
    ("rank", "precedence"),
    ("World", "MapsImage"),
    ("Door", "Binding"),
    ("Question", "Query"),
    ("Asked", "Query"),
    ("Ground", "a name by its subject"),
    ("HELLOS", "PENDING"),
    ("CHUNKS", "BUFFERS"),
];

/// Where retired words are refused. Elsewhere they may mean something else: the network around a test, what a
/// test asks.
const RETIRED_WITHIN: &[&str] = &["userspace/src/", "xdp-ebpf/src/", "common/src/maps/"];

/// Checks that retired names are not used again.
pub(super) fn retired(tree: &Tree) -> Vec<String> {
    let concerned = |file: &&super::File| RETIRED_WITHIN.iter().any(|place| file.path.starts_with(place));
    let mut problems = Vec::new();
    for file in tree.sources().filter(concerned) {
        let parts = file.path.split(['/', '.']);
        let code = split_tests(&file.text).0;
        for (old, new) in RETIRED {
            let defines = |kind: &str| {
                code.lines().any(|line| {
                    let rest = line.split_once(kind).map(|(_, rest)| rest);
                    rest.and_then(|rest| rest.strip_prefix(old))
                        .is_some_and(|rest| !rest.starts_with(super::in_word))
                })
            };
            if parts.clone().any(|part| part == *old)
                || ["struct ", "enum ", "static "].into_iter().any(defines)
            {
                problems.push(format!("{}: `{old}` was retired: {new}", file.path));
            }
        }
    }
    problems
}

/// Checks that names of folders and files say what is inside.
pub(super) fn names(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for file in &tree.files {
        let drawer = Path::new(&file.path).components().find_map(|part| {
            let name = part.as_os_str().to_str()?;
            let stem = name.split('.').next()?;
            DRAWERS.contains(&stem).then_some(stem)
        });
        if let Some(drawer) = drawer {
            problems.push(format!("{}: `{drawer}` says nothing about what is inside", file.path));
        }
    }
    problems
}

/// Checks the length of files. Tests at the end of a file do not count.
pub(super) fn lengths(tree: &Tree) -> Vec<String> {
    let may_be_longer = |path: &str| LONGER.iter().any(|(prefix, _)| path.starts_with(prefix));
    let mut problems = Vec::new();
    for file in tree.sources().filter(|file| !may_be_longer(&file.path)) {
        let lines = split_tests(&file.text).0.lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{}: {lines} lines, at most {LINES_MAX}", file.path));
        }
    }
    problems
}

/// Folders that exist on one machine only.
const PLACES: &[&str] = &[concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/")];

/// Checks that nothing committed depends on the machine it was written on.
pub(super) fn places(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            let stands = |place: &&&str| {
                line.match_indices(**place).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    !before.is_some_and(|c| c.is_alphanumeric() || "._-}/~".contains(c))
                })
            };
            for place in PLACES.iter().filter(stands) {
                problems.push(format!("{}:{}: `{place}` is a folder of one machine", file.path, index + 1));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_name_is_found_as_a_file_a_type_and_a_map() {
        let tree = Tree::of(&[
            ("xdp-ebpf/src/stage/stash.rs", "fn x() {}\n"),
            ("userspace/src/plan/image.rs", "pub struct World;\npub struct Worldly;\n"),
            ("xdp-ebpf/src/maps/mod.rs", "pub(crate) static HELLOS: X = X;\n"),
            ("tests/src/world.rs", "pub struct World;\n"),
        ]);
        assert_eq!(retired(&tree).len(), 3, "{:?}", retired(&tree));
    }

    #[test]
    fn drawers_are_refused_as_files_and_as_folders() {
        let tree = Tree::of(&[("a/src/utils.rs", ""), ("tests/data/x.rs", ""), ("a/src/database.rs", "")]);
        assert_eq!(names(&tree).len(), 2, "{:?}", names(&tree));
    }

    #[test]
    fn a_long_file_is_refused_but_its_tests_do_not_count() {
        let long = "fn a() {}\n".repeat(LINES_MAX + 1);
        let tested = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let tree =
            Tree::of(&[("a/src/a.rs", &long), ("a/src/b.rs", &tested), ("tests/packet/syn.rs", &long)]);
        assert_eq!(lengths(&tree), [format!("a/src/a.rs: {} lines, at most {LINES_MAX}", LINES_MAX + 1)]);
    }

    #[test]
    fn a_folder_of_one_machine_is_refused() {
        let text = format!("see {}x\nhttps://a.example{}x\n", PLACES[1], PLACES[1]);
        assert_eq!(places(&Tree::of(&[("README.md", &text)])).len(), 1);
    }
}
