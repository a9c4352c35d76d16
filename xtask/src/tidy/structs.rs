//! How many fields a struct of the loop may have.

use super::{Tree, boundaries::split_tests, without_comment};

/// The folders of the loop and of what it drives.
const FOLDERS: &[&str] = &["userspace/src/node/", "userspace/src/outputs/"];

/// A struct with more fields must be split into parts by subject.
const FIELDS_MAX: usize = 12;

/// Returns the structs with too many fields.
pub(super) fn sizes(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for file in tree.sources().filter(|file| FOLDERS.iter().any(|folder| file.path.starts_with(folder))) {
        let mut open: Option<(&str, usize)> = None;
        for line in split_tests(&file.text).0.lines().map(without_comment) {
            if line.starts_with('}') {
                if let Some((name, fields)) = open.take().filter(|(_, fields)| *fields > FIELDS_MAX) {
                    let path = &file.path;
                    problems.push(format!("{path}: `{name}` has {fields} fields, at most {FIELDS_MAX}"));
                }
            } else if let Some((_, fields)) = &mut open {
                // A field starts at the first indent, and nothing else there has a colon after its name.
                let is_field = line.strip_prefix("    ").is_some_and(|field| {
                    field.starts_with(|c: char| c.is_alphabetic()) && field.contains(": ")
                });
                *fields += usize::from(is_field);
            } else if line.trim_end().ends_with('{')
                && let Some((_, name)) = line.split_once("struct ")
            {
                open = Some((name.trim_end_matches([' ', '{']), 0));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_of_thirteen_is_refused_and_one_of_twelve_is_not() {
        let of = |fields: usize| {
            let lines: Vec<String> =
                (0..fields).map(|n| format!("    /// x: y\n    pub f{n}: u8,\n")).collect();
            format!("pub(super) struct Loop {{\n{}}}\n", lines.concat())
        };
        let path = "userspace/src/node/a.rs";
        assert!(sizes(&Tree::of(&[(path, &of(12)), ("userspace/src/plan/a.rs", &of(13))])).is_empty());
        assert_eq!(
            sizes(&Tree::of(&[(path, &of(13))])),
            [format!("{path}: `Loop` has 13 fields, at most 12")]
        );
    }
}
