//! Only `path/` calls stages. A stage may use types and constants of another, but not its functions.

use super::{Tree, boundaries::split_tests, in_word, without_comment};

const KERNEL: &str = "xdp-ebpf/src/";
const STAGES: &str = "xdp-ebpf/src/stage/";
const PATHS: &str = "xdp-ebpf/src/path/";

/// Returns uses of a stage's functions where they are not allowed.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let concerned = |path: &str| path.starts_with(KERNEL) && !path.starts_with(PATHS);
    let mut problems = Vec::new();
    for file in tree.sources().filter(|file| concerned(&file.path)) {
        let stage = file.path.strip_prefix(STAGES).and_then(|name| name.strip_suffix(".rs"));
        let prefixes: &[&str] = if stage.is_some() { &["stage::", "super::"] } else { &["stage::"] };
        for (index, line) in split_tests(&file.text).0.lines().map(without_comment).enumerate() {
            let uses = prefixes.iter().flat_map(|prefix| line.split(prefix).skip(1)).flat_map(paths);
            for used in uses.filter(|used| !is_type(used)) {
                let number = index + 1;
                problems.push(format!("{}:{number}: uses `{used}`; only path/ calls stages", file.path));
            }
        }
    }
    problems
}

/// Whether `used`, a path below `stage`, is a type or a constant.
fn is_type(used: &str) -> bool {
    used.rsplit("::").next().unwrap_or(used).starts_with(char::is_uppercase)
}

/// The paths at the start of `text`: one, or one for each name in braces.
fn paths(text: &str) -> Vec<String> {
    let plain = text.find(|c: char| !in_word(c) && c != ':').unwrap_or(text.len());
    match text[plain..].strip_prefix('{') {
        Some(list) => {
            let names = list[..list.find('}').unwrap_or(list.len())].split(',').map(str::trim);
            names.filter(|name| !name.is_empty()).map(|name| format!("{}{name}", &text[..plain])).collect()
        }
        // `stage::parse::*` also imports the functions.
        None if text[plain..].starts_with('*') => vec![format!("{}*", &text[..plain])],
        None => vec![text[..plain].to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(file: &str, text: &str) -> usize {
        check(&Tree::of(&[(&format!("xdp-ebpf/src/{file}.rs"), text)])).len()
    }

    #[test]
    fn a_stage_that_calls_a_stage_is_found() {
        assert_eq!(problems("stage/syn", "crate::stage::route::run(packet);\n"), 1);
        assert_eq!(problems("stage/syn", "use super::{pick, route::Found};\n"), 1);
        assert_eq!(problems("stage/syn", "use crate::stage::hello::*;\n"), 1);
        assert_eq!(problems("stage/syn", "use crate::stage::hello::{self, LIMIT};\n"), 1);
        assert_eq!(problems("exit", "crate::stage::hello::run(packet);\n"), 1);
    }

    #[test]
    fn types_pass_and_a_path_may_call() {
        assert_eq!(
            problems("stage/syn", "use crate::stage::parse::Segment;\nuse super::parse::{Segment, Flags};\n"),
            0
        );
        assert_eq!(problems("path/mod", "crate::stage::hello::run(s);\n"), 0);
        assert_eq!(problems("connection/end", "crate::stage::forward::finish(s);\n"), 1);
    }
}
