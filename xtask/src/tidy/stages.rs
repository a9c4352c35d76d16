//! Only `path/` calls stages. Between stages types and constants may pass, functions not, with a few exceptions.

use super::{Tree, boundaries::split_tests, in_word, without_comment};

const KERNEL: &str = "xdp-ebpf/src/";
const STAGES: &str = "xdp-ebpf/src/stage/";
const PATHS: &str = "xdp-ebpf/src/path/";

/// Which file may use functions of which stage nevertheless: always further down the page.
const CALLS: &[(&str, &str, &str)] = &[
    ("*", "emit", "it alone sends; who answers a packet drafts the answer there"),
    ("hello", "stash", "where the bytes of a hello are kept; it decides nothing"),
    ("connect", "stash", "a connection that opens waits no longer: it is counted down where it opens"),
    ("forward", "close", "a flow ends where its last segment is seen"),
    ("expire", "*", "the daemon's orders take a connection down from whichever stage it is in"),
];

/// Functions of a stage that are used where they may not.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let concerned = |path: &str| path.starts_with(KERNEL) && !path.starts_with(PATHS);
    let mut problems = Vec::new();
    for file in tree.sources().filter(|file| concerned(&file.path)) {
        let stage = file.path.strip_prefix(STAGES).and_then(|name| name.strip_suffix(".rs"));
        let prefixes: &[&str] = if stage.is_some() { &["stage::", "super::"] } else { &["stage::"] };
        for (index, line) in split_tests(&file.text).0.lines().map(without_comment).enumerate() {
            let uses = prefixes.iter().flat_map(|prefix| line.split(prefix).skip(1)).flat_map(paths);
            for used in uses.filter(|used| !allowed(stage.unwrap_or_default(), used)) {
                let number = index + 1;
                problems.push(format!("{}:{number}: uses `{used}`; only path/ calls stages", file.path));
            }
        }
    }
    problems
}

/// Whether a file may use `used`, a path below `stage`.
fn allowed(from: &str, used: &str) -> bool {
    let (stage, name) = (used.split("::").next().unwrap_or(used), used.rsplit("::").next().unwrap_or(used));
    let fits = |pattern: &str, word: &str| pattern == word || (pattern == "*" && !word.is_empty());
    name.starts_with(char::is_uppercase)
        || CALLS.iter().any(|(file, to, _)| fits(file, from) && fits(to, stage))
}

/// The paths at the beginning of `text`: one, or one for each name in braces.
fn paths(text: &str) -> Vec<String> {
    let plain = text.find(|c: char| !in_word(c) && c != ':').unwrap_or(text.len());
    match text[plain..].strip_prefix('{') {
        Some(list) => {
            let names = list[..list.find('}').unwrap_or(list.len())].split(',').map(str::trim);
            names.filter(|name| !name.is_empty()).map(|name| format!("{}{name}", &text[..plain])).collect()
        }
        // `stage::parse::*` brings the functions, too.
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
        assert_eq!(problems("stage/syn", "use crate::stage::stash::{self, NO_CHUNK};\n"), 1);
        assert_eq!(problems("exit", "crate::stage::emit::run(packet);\n"), 1);
    }

    #[test]
    fn types_and_the_named_exceptions_pass() {
        assert_eq!(
            problems("stage/syn", "use crate::stage::parse::Segment;\nuse super::parse::{Segment, Flags};\n"),
            0
        );
        assert_eq!(problems("stage/syn", "use crate::stage::emit;\n"), 0);
        assert_eq!(problems("stage/hello", "use crate::stage::stash::{self, NO_CHUNK};\n"), 0);
        assert_eq!(problems("stage/expire", "crate::stage::connect::draft_client_reset(s);\n"), 0);
        assert_eq!(problems("path/mod", "crate::stage::hello::run(s);\n"), 0);
    }
}
