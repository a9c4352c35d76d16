//! A source of claims is one module and one line of the table: nothing else names it.

use super::{File, Tree, in_word};
use std::collections::BTreeSet;

/// The folder with a module for each origin.
const ROOT: &str = "userspace/src/origins/";
/// The file with the table.
const TABLE: &str = "userspace/src/origins/mod.rs";

/// What else may name an origin, with the reason.
const EXCEPT: &[(&str, &str)] = &[
    ("userspace/src/config/", "what the chart says to an origin is read with the rest of the chart's file"),
    ("userspace/src/origins/tests/mod.rs", "property tests of settle ask for names by objects of an origin"),
    ("userspace/src/dataplane/", "programs at the TCX hook of this name"),
    ("userspace/src/cli/doctor/", "programs at the TCX hook of this name"),
];

/// Returns where an origin is named outside its module, its line of the table and the exceptions.
pub(super) fn named(tree: &Tree) -> Vec<String> {
    let modules = tree.files.iter().filter_map(|file| file.path.strip_prefix(ROOT)?.split_once('/'));
    let names: BTreeSet<&str> = modules.map(|(name, _)| name).filter(|name| *name != "tests").collect();
    names.into_iter().flat_map(|name| named_elsewhere(tree, name)).collect()
}

fn named_elsewhere(tree: &Tree, name: &str) -> Vec<String> {
    let own = format!("{ROOT}{name}/");
    let concerned = |file: &&File| {
        let is_excepted = EXCEPT.iter().any(|(path, _)| file.path.starts_with(path));
        file.path.starts_with("userspace/src/") && !file.path.starts_with(&own) && !is_excepted
    };
    let mut problems = Vec::new();
    for file in tree.sources().filter(concerned) {
        let lines = file.code().filter(|(_, line)| names(line, name));
        if file.path == TABLE {
            let count = lines.count();
            if count != 1 {
                problems.push(format!("{TABLE}: {count} lines name origin `{name}` besides `mod`, not one"));
            }
        } else {
            problems.extend(lines.map(|(number, _)| {
                format!("{}:{number}: names origin `{name}`: what is particular to it is in {own}", file.path)
            }));
        }
    }
    problems
}

/// Whether a line has a path into the module of this name, a field or method of its name, or a type whose name starts with it.
fn names(line: &str, name: &str) -> bool {
    let kind: String = name.split('_').map(capitalised).collect();
    let starts = |word: &str| {
        let before = |at: usize| line[..at].chars().next_back();
        line.match_indices(word).any(|(at, _)| !before(at).is_some_and(in_word))
    };
    let member = format!(".{name}");
    // `status.loadBalancer.ingress` is a field of Services.
    let is_member = line.match_indices(&member).any(|(at, _)| {
        !line[at + member.len()..].starts_with(in_word) && !line[..at].ends_with("loadBalancer")
    });
    is_member || starts(&kind) || starts(&format!("{name}::")) || starts(&format!("{name}es"))
}

fn capitalised(part: &str) -> String {
    let mut letters = part.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(table: &str, elsewhere: &str) -> Vec<String> {
        named(&Tree::of(&[
            (TABLE, table),
            ("userspace/src/origins/ingress/mod.rs", "struct Ingress;\n"),
            ("userspace/src/origins/tests/sample.rs", "struct Sample;\n"),
            ("userspace/src/config/ingress.rs", "use crate::origins::ingress::IngressPolicy;\n"),
            ("userspace/src/dataplane/attach.rs", "TcAttachType::Ingress, programs.ingress()\n"),
            ("userspace/src/settle/mod.rs", elsewhere),
        ]))
    }

    const LINE: &str = "/// Ingress.\nmod ingress;\nstatic TABLE: &[&dyn Origin] = &[&ingress::Ingress];\n";

    #[test]
    fn an_origin_that_is_named_elsewhere_is_found() {
        let others = "// Ingress\nlet ingress = status.pointer(\"/loadBalancer/ingress\"); left(\"status.loadBalancer.ingress\");\n";
        assert_eq!(tree(LINE, others), [] as [String; 0]);
        for wrong in [
            "Kind::Ingress => 1,",
            "use crate::origins::ingress::fold;",
            "fn f(spec: &IngressSpec) {}",
            "for one in &cluster.ingress {}",
            "let ingresses = 1;",
        ] {
            let wanted = "userspace/src/settle/mod.rs:1: names origin `ingress`: what is particular to it is in \
                          userspace/src/origins/ingress/";
            assert_eq!(tree(LINE, wrong), [wanted], "{wrong}");
        }
    }

    #[test]
    fn an_origin_has_one_line_of_the_table() {
        let wanted = |count| format!("{TABLE}: {count} lines name origin `ingress` besides `mod`, not one");
        assert_eq!(tree("mod ingress;\n", ""), [wanted(0)]);
        assert_eq!(tree(&format!("{LINE}use ingress::IngressPolicy;\n"), ""), [wanted(2)]);
    }
}
