//! Words that readers stumble over, in documents, comments and strings.

use super::{File, Tree};

/// Each word with its replacements. Quotations (`> ...`, "...") and `code` may contain them.
const WORDS: &[(&str, &str)] = &[
    ("told", "report, say, show, distinguish"),
    ("tell", "report, say, show, distinguish"),
    ("tells", "report, say, show, distinguish"),
    ("telling", "report, say, show, distinguish"),
    ("way", "path, route, egress, direction, how"),
    ("ways", "path, route, egress, direction, how"),
    ("place", "slot, offset, position, where"),
    ("places", "slot, offset, position, where"),
    ("manieth", "nth"),
    ("so many", "this many, n"),
    ("shall", "must, should, will"),
    ("begun", "started"),
    ("whoever", "any client, caller or process that"),
    ("somebody", "another client, CPU or process"),
    ("anew", "again"),
    ("afresh", "again"),
    ("mend", "fix"),
    ("mends", "fix"),
    ("mended", "fix"),
    ("come to", "is, equals, results in"),
    ("comes to", "is, equals, results in"),
    ("came to", "is, equals, results in"),
    ("stand", "is, is stored, is listed"),
    ("stands", "is, is stored, is listed"),
    ("stood", "is, is stored, is listed"),
    ("standing", "is, is stored, is listed"),
    ("owe", "undelivered, still to be sent"),
    ("owes", "undelivered, still to be sent"),
    ("owed", "undelivered, still to be sent"),
    ("hear", "receive, learn"),
    ("hears", "receive, learn"),
    ("heard", "receive, learn"),
    ("merit", "precedence"),
    ("amiss", "wrong"),
    ("lest", "so that ... not"),
    ("hence", "so"),
    ("thence", "from there"),
    ("thereof", "of it"),
    ("dwell", "stay"),
];

/// Phrases that may contain a word of the list.
const PHRASES: &[&str] =
    &["in place", "take place", "takes place", "stands for", "stand for", "two-way", "three-way"];

/// This file, which lists the words, and the table of guards, which has their names.
const OTHERS: [&str; 2] = ["xtask/src/tidy/prose.rs", "tests/slow/GUARDS.md"];

/// Checks that no document, comment or string contains a word of the list.
pub(super) fn words(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for file in tree.files.iter().filter(|file| !OTHERS.contains(&file.path.as_str())) {
        for (line, text) in prose(file) {
            let text = plain(&text);
            for (word, instead) in WORDS.iter().filter(|(word, _)| has_word(&text, word)) {
                problems.push(format!("{}:{line}: \"{word}\": write {instead}", file.path));
            }
        }
    }
    problems
}

/// Returns pieces of prose with their lines: paragraphs of a document, comments and strings of a source.
fn prose(file: &File) -> Vec<(usize, String)> {
    if file.path.ends_with(".md") {
        return document(&file.text);
    }
    if file.path.ends_with(".rs") { source(&file.text) } else { Vec::new() }
}

/// Returns the lines of a document, without code blocks and quotations.
fn document(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !start.starts_with('>') {
            lines.push((index + 1, line.to_owned()));
        }
    }
    lines
}

/// Returns the comments and strings of a source. A string without a space is a name, not prose.
fn source(text: &str) -> Vec<(usize, String)> {
    let mut pieces = Vec::new();
    let mut string: Option<(usize, String)> = None;
    // Whether we are inside `r#"..."#`, which is data.
    let mut raw = false;
    for (index, line) in text.lines().enumerate() {
        let mut characters = line.char_indices().peekable();
        while let Some((at, c)) = characters.next() {
            if raw {
                raw = !line[at..].starts_with("\"#");
                continue;
            }
            match (&mut string, c) {
                (None, 'r') if line[at..].starts_with("r#\"") => {
                    raw = true;
                    characters.nth(1);
                }
                (Some(open), '\\') => {
                    open.1.push(' ');
                    characters.next();
                }
                (Some(_), '"') => pieces.extend(string.take().filter(|(_, text)| text.trim().contains(' '))),
                (Some(open), c) => open.1.push(c),
                (None, '"') => string = Some((index + 1, String::new())),
                // A quote as a character literal.
                (None, '\'') if line[at..].starts_with("'\"'") || line[at..].starts_with("'\\\"'") => {
                    while characters.next_if(|(_, c)| *c != '"').is_some() {}
                    characters.next();
                }
                (None, '/') if line[at..].starts_with("//") => {
                    pieces.push((index + 1, line[at..].to_owned()));
                    break;
                }
                (None, _) => {}
            }
        }
    }
    pieces
}

/// Returns the text without `code`, quotations, what a format string inserts, and phrases that are plain English.
fn plain(text: &str) -> String {
    let mut rest = text.to_lowercase();
    for (open, close) in [('`', '`'), ('"', '"'), ('{', '}')] {
        let mut kept = String::new();
        while let Some((before, behind)) = rest.split_once(open) {
            kept.push_str(before);
            match behind.split_once(close) {
                Some((_, behind)) => rest = format!(" {behind}"),
                None => rest = behind.to_owned(),
            }
        }
        rest = kept + &rest;
    }
    PHRASES.iter().fold(rest, |text, phrase| text.replace(phrase, " "))
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let joins = |c: Option<char>| c.is_some_and(|c| super::in_word(c) || c == '-');
        !joins(text[..at].chars().next_back()) && !joins(text[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        words(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn a_listed_word_is_found_in_documents_comments_and_strings() {
        assert_eq!(
            found("README.md", "One line.\nThe client is told so.\n"),
            ["README.md:2: \"told\": write report, say, show, distinguish"]
        );
        assert_eq!(found("a.rs", "/// Where it stands.\nfn stands() {}\n").len(), 1);
        assert_eq!(found("a.rs", "let x = 1; // comes to one\n").len(), 1);
        assert_eq!(found("a.rs", "let x = \"nobody is told,\\\n    anew\";\n").len(), 2);
    }

    #[test]
    fn code_names_quotations_and_plain_phrases_may_have_it() {
        for text in [
            "Call `tell`.",
            "> as it was told",
            "The Service says \"told\".",
            "```\ntold\n```",
            "One-way; in place.",
        ] {
            assert_eq!(found("a.md", text), Vec::<String>::new(), "{text}");
        }
        for text in [
            "let told = \"told\";",
            "format!(\"{told} {place}\")",
            "if c == '\"' { told() } // \"",
            "fn way() {}",
            "r#\"{\"told\": \"to be told\"}\"#",
        ] {
            assert_eq!(found("a.rs", text), Vec::<String>::new(), "{text}");
        }
    }
}
