//! Which module imports which below `userspace/src`: cycles are refused. Only a folder's `mod.rs` may contain
//! what the folder's files share and also use these files.

use super::{Tree, boundaries::split_tests, in_word, without_comment};
use std::collections::{BTreeMap, BTreeSet};

const ROOT: &str = "userspace/src/";

/// The parts of a module's path: `node::role` is `["node", "role"]`.
type Module = Vec<String>;

/// Returns the cycles of imports.
pub(super) fn circles(tree: &Tree) -> Vec<String> {
    let files: BTreeMap<Module, (&str, &str)> = tree
        .sources()
        .filter(|file| !file.path.contains("/tests"))
        .filter_map(|file| Some((module(file.path.strip_prefix(ROOT)?)?, (&*file.path, &*file.text))))
        .collect();
    let uses: BTreeMap<&Module, BTreeSet<&Module>> = files
        .iter()
        .map(|(own, (_, text))| {
            let used = paths(text, own).into_iter().filter_map(|path| {
                let named = (0..=path.len()).rev().find_map(|length| files.get_key_value(&path[..length]))?.0;
                (!own.starts_with(named)).then_some(named)
            });
            (own, used.collect())
        })
        .collect();
    let (mut problems, mut known) = (Vec::new(), BTreeSet::new());
    for (own, used) in &uses {
        for next in used.iter().filter(|next| *next > own) {
            if let Some(circle) = shortest(&uses, next, own) {
                // Each cycle is reported once, at the first of its files.
                let members: BTreeSet<&Module> = circle.iter().copied().chain([*own]).collect();
                if known.insert(members) {
                    let names: Vec<&str> = circle.iter().map(|module| files[*module].0).collect();
                    problems.push(format!("{}: imports itself by {}", files[*own].0, names.join(", ")));
                }
            }
        }
    }
    problems
}

/// Returns the modules of a shortest chain of imports, without the last one.
fn shortest<'a>(
    uses: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
    from: &'a Module,
    to: &Module,
) -> Option<Vec<&'a Module>> {
    let mut before: BTreeMap<&Module, Option<&'a Module>> = BTreeMap::from([(from, None)]);
    let mut next = vec![from];
    while !next.is_empty() {
        let mut further = Vec::new();
        for at in next {
            if uses[at].contains(to) {
                let mut chain = vec![at];
                while let Some(Some(earlier)) = chain.last().and_then(|last| before.get(last)) {
                    chain.push(earlier);
                }
                chain.reverse();
                return Some(chain);
            }
            for used in &uses[at] {
                if !before.contains_key(used) {
                    before.insert(used, Some(at));
                    further.push(*used);
                }
            }
        }
        next = further;
    }
    None
}

/// The module of a file, by its path below the root; `None` for `lib.rs` and `main.rs`.
fn module(path: &str) -> Option<Module> {
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    (!["lib", "main"].contains(&path)).then(|| path.split('/').map(str::to_owned).collect())
}

/// Returns every path in a file that starts with `crate::` or `super::`, as seen from the root.
fn paths(text: &str, own: &[String]) -> Vec<Module> {
    let code: Vec<&str> = split_tests(text).0.lines().map(without_comment).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (start, up) in [("crate::", own.len()), ("super::", 1)] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            if before.ends_with(in_word) || before.ends_with("super::") {
                continue;
            }
            let mut rest = &code[at + start.len()..];
            let mut up = up;
            while let Some(further) = rest.strip_prefix("super::") {
                (rest, up) = (further, up + 1);
            }
            branch(rest, own[..own.len().saturating_sub(up)].to_vec(), &mut found);
        }
    }
    found
}

/// Adds the paths at the start of `text`: one, or one for each branch in braces. Returns the rest of the text.
fn branch<'t>(text: &'t str, mut path: Module, found: &mut Vec<Module>) -> &'t str {
    let mut rest = text.trim_start();
    loop {
        let word = &rest[..rest.find(|c| !in_word(c)).unwrap_or(rest.len())];
        rest = &rest[word.len()..];
        if !word.is_empty() {
            path.push(word.to_owned());
        }
        match rest.strip_prefix("::") {
            Some(further) => rest = further,
            None => break,
        }
    }
    let Some(mut list) = rest.strip_prefix('{') else {
        found.push(path);
        return rest;
    };
    loop {
        list = list.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        match list.strip_prefix('}') {
            Some(rest) => return rest,
            None if list.is_empty() => return list,
            None => {}
        }
        let rest = branch(list, path.clone(), found);
        // `as name` and `*` are not paths.
        let end = rest.find([',', '}']).unwrap_or(rest.len());
        list = if rest.len() == list.len() { &rest[end.max(1).min(rest.len())..] } else { &rest[end..] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> String {
        format!("{ROOT}{path}")
    }

    #[test]
    fn a_circle_of_three_is_told_once_with_its_files() {
        let tree = Tree::of(&[
            (&file("a.rs"), "use crate::b::{self, c::{D, E as F}, *};\n"),
            (&file("b/mod.rs"), "mod c;\n"),
            (&file("b/c.rs"), "use super::super::d::X;\n"),
            (&file("d.rs"), "fn f() { crate::a::g() }\n"),
        ]);
        let wanted = "userspace/src/a.rs: imports itself by userspace/src/b/c.rs, userspace/src/d.rs";
        assert_eq!(circles(&tree), [wanted]);
    }

    #[test]
    fn what_a_folder_shares_may_stand_in_its_own_file() {
        let tree = Tree::of(&[
            (&file("b/mod.rs"), "use crate::b::c::X;\n"),
            (&file("b/c.rs"), "use super::Y;\n// use crate::e::Z;\n"),
            (&file("e.rs"), "use crate::b::c::X;\n#[cfg(test)]\nmod tests { use crate::e::Z; }\n"),
        ]);
        assert!(circles(&tree).is_empty(), "{:?}", circles(&tree));
    }
}
