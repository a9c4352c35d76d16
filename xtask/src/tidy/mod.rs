//! Rules of the tree that no compiler checks: which files may use what, how long a file may be, what
//! documents promise.

use crate::failure::{Failure, Outcome};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};

/// Which folder may use what.
mod boundaries;
/// Calls between stages of the eBPF programs.
mod stages;
/// Imports between modules of user space.
mod imports;
/// Which files name an origin.
mod origins;
/// Names and lengths of files.
mod files;
/// How many fields a struct of the loop may have.
mod structs;
/// What documents say about the tree.
mod documents;
/// Words that readers stumble over.
mod prose;
/// Reasons and the tests that reach them.
mod reasons;
/// Manifests: licences, and versions that must agree.
mod manifests;

/// All files of the tree that would be committed.
pub(crate) struct Tree {
    files: Vec<File>,
}

/// A text file.
struct File {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

/// Checks every rule; prints what violates one.
pub(crate) fn run() -> Outcome {
    let problems = check(&Tree::read(&process::root())?);
    for problem in &problems {
        println!("tidy: {problem}");
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Failure::new(
            "tidy",
            format!("{count} breaches of the tree's rules, listed above"),
            "fix them; the rules and their exceptions are in xtask/src/tidy",
        )),
    }
}

fn check(tree: &Tree) -> Vec<String> {
    let rules = [
        boundaries::check,
        stages::check,
        imports::circles,
        origins::named,
        structs::sizes,
        files::names,
        files::retired,
        files::lengths,
        files::places,
        documents::paths,
        documents::maps,
        documents::tests_named,
        prose::words,
        reasons::reached,
        manifests::licences,
        manifests::versions,
    ];
    rules.iter().flat_map(|rule| rule(tree)).collect()
}

impl Tree {
    fn read(root: &Path) -> Outcome<Self> {
        let failure = |reason: String| Failure::new("reading the tree", reason, "run it inside the checkout");
        let mut list = process::command("git");
        list.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let paths = match process::answer(&mut list) {
            Some(list) => list.lines().map(PathBuf::from).collect(),
            // A source archive has no git history.
            None => {
                let mut paths = Vec::new();
                walk(root, Path::new(""), &mut paths).map_err(|error| failure(error.to_string()))?;
                paths
            }
        };
        // Skips files that git still lists but that are gone, and binary files.
        let file = |path: PathBuf| {
            let text = fs::read_to_string(root.join(&path)).ok()?;
            Some(File { path: path.to_string_lossy().into_owned(), text })
        };
        let files: Vec<File> = paths.into_iter().filter_map(file).collect();
        match files.iter().any(|file| file.path == "Cargo.toml") {
            true => Ok(Self { files }),
            false => Err(failure(format!("no Cargo.toml in {}", root.display()))),
        }
    }

    /// The text of a file, by its path.
    fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }

    /// Every Rust source.
    fn sources(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        Self { files: files.iter().map(file).collect() }
    }
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        let skipped = ["target", ".git", "artifacts"].iter().any(|name| path.ends_with(name));
        match entry.file_type()?.is_dir() {
            true if skipped => {}
            true => walk(root, &path, paths)?,
            false => paths.push(path),
        }
    }
    Ok(())
}

impl File {
    /// Lines with their numbers, from 1, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, without_comment(line)))
    }
}

/// A line up to its `//`, unless that belongs to an address like `https://`.
fn without_comment(line: &str) -> &str {
    let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// Whether a character can be part of an identifier.
fn in_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The offsets of `word` in `line` as a whole word.
fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    line.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let (before, after) = (&line[..*at], &line[at + word.len()..]);
        !before.ends_with(in_word) && !after.starts_with(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_keeps_its_rules() {
        let problems = check(&Tree::read(&process::root()).expect("the checkout can be read"));
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn words_are_whole_and_comments_are_not_code() {
        assert_eq!(words("aya_ebpf::x; aya::y", "aya").collect::<Vec<_>>(), [13]);
        assert_eq!(without_comment("let a = 1; // aya::Bpf"), "let a = 1; ");
        assert_eq!(without_comment("see https://x.example"), "see https://x.example");
    }
}
