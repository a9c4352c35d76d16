//! The static file: from the file as written (`raw`) to checked facts.
//!
//! A valid file is read once, by serde; JSON in two steps, where the second one parses each route separately.
//! An invalid file is read a second time as a tree with lines, to report where the error is.

/// The file as written.
mod raw;
/// Checks of single values.
mod value;
/// Converts the file as written to facts.
mod checked;
/// The fields that exist, and the problems of others.
mod shape;
/// A file whose routes are still text.
mod outline;
/// The file as a tree with lines.
mod node;
/// The chart's file, for the agents and the controller of a cluster.
mod cluster;
/// What the chart's file says of announcing.
mod announcing;
/// `ingress` of the chart's file.
mod ingress;

pub use crate::origins::ingress::{AdoptedClass, IngressPolicy};
pub use cluster::{ChartFile, SAVED_MAX_AGE};
pub use outline::Outline;

/// Parses a duration such as `10m`. The error contains what is wrong and what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    value::duration(text).map_err(|wrong| format!("{}; {}", wrong.what, wrong.remedy))
}

use std::time::Duration;

use crate::model::{Facts, Problem};
use serde::Deserialize;

/// Parses a file: as JSON if its first byte (except white space) is `{`, otherwise as YAML. The facts contain
/// everything valid, so that more problems can be found; use them only if no problem is an error. Problems
/// have no line yet: see [`locate`].
pub fn parse(text: &str) -> (Facts, Vec<Problem>) {
    parse_outlined(text, Outline::read(text))
}

/// Like [`parse`], with the outline already read.
pub fn parse_outlined(text: &str, outline: Option<Outline<'_>>) -> (Facts, Vec<Problem>) {
    if let Some(parsed) = outline.and_then(Outline::whole) {
        return parsed;
    }
    let mut problems = Vec::new();
    let Some(raw) = read(text, &shape::FILE, &mut problems) else { return (Facts::default(), problems) };
    let mut more = Vec::new();
    let facts = checked::facts(raw, &mut more);
    more.retain(|problem| !explained(problem, &problems));
    problems.append(&mut more);
    (facts, problems)
}

/// Parses the chart's file like [`parse`]. Use the result only if no problem is an error.
pub fn parse_chart(text: &str) -> (ChartFile, Vec<Problem>) {
    let mut problems = Vec::new();
    let Some(raw) = read(text, &cluster::CHART, &mut problems) else {
        return (ChartFile::default(), problems);
    };
    let mut more = Vec::new();
    let file = cluster::chart(raw, &mut more);
    more.retain(|problem| !explained(problem, &problems));
    problems.append(&mut more);
    (file, problems)
}

/// Returns the file as written, or the part of it that is valid.
fn read<'t, T: Deserialize<'t>>(
    text: &'t str,
    shape: &shape::Shape,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let raw = if is_json(text) {
        serde_json::from_str(text).map_err(|error| SyntaxError::from(&error))
    } else {
        serde_saphyr::from_str_with_options(text, node::options()).map_err(|error| SyntaxError::from(&error))
    };
    raw.map_or_else(|error| reshape(text, shape, error, problems), Some)
}

/// Returns whether a field is only missing because it, or its name, is misspelled.
fn explained(problem: &Problem, by: &[Problem]) -> bool {
    let parent = |field: &str| field.rsplit_once('.').map_or(String::new(), |(parent, _)| parent.to_owned());
    problem.value.is_empty() && by.iter().any(|other| parent(&other.field) == parent(&problem.field))
}

/// Finds the line of each problem.
pub fn locate(text: &str, problems: &mut [Problem]) {
    if problems.iter().all(|problem| problem.line.is_some()) {
        return;
    }
    if let Ok(tree) = node::read(text) {
        for problem in problems.iter_mut().filter(|problem| problem.line.is_none()) {
            problem.line = Some(tree.line_of(&problem.field));
        }
    }
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Where and why a parser failed.
struct SyntaxError {
    line: u32,
    what: String,
    remedy: &'static str,
    /// The text is syntactically valid, but not what is expected.
    is_readable: bool,
}

impl From<&serde_json::Error> for SyntaxError {
    fn from(error: &serde_json::Error) -> Self {
        Self {
            line: u32::try_from(error.line()).unwrap_or(u32::MAX),
            what: format!("cannot be read as JSON: {error}"),
            remedy: "correct the JSON at or shortly before this line",
            is_readable: error.is_data(),
        }
    }
}

impl From<&serde_saphyr::Error> for SyntaxError {
    fn from(error: &serde_saphyr::Error) -> Self {
        let line = error.location().map_or(1, |location| location.line());
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        if matches!(error, serde_saphyr::Error::MultipleDocuments { .. }) {
            let (what, remedy) =
                ("there is more than one document", "keep what is before this line's \"---\"");
            return Self { line, what: what.to_owned(), remedy, is_readable: false };
        }
        let what = error.to_string().lines().next().unwrap_or_default().to_owned();
        let remedy = if what.contains("anchor") {
            "put names that begin with '*' in quotes, such as \"*.example.com\""
        } else {
            "correct the YAML at or shortly before this line"
        };
        Self { line, what: format!("cannot be read as YAML: {what}"), remedy, is_readable: true }
    }
}

/// Returns the valid part of a file that serde refused, and the problems of the rest.
fn reshape<'t, T: Deserialize<'t>>(
    text: &str,
    shape: &shape::Shape,
    error: SyntaxError,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    if !error.is_readable {
        problems.push(error.into());
        return None;
    }
    let before = problems.len();
    let fitting = match node::read(text) {
        Ok(tree) => shape::fit(&tree, shape, "", problems),
        Err(error) if !is_json(text) => {
            problems.push(SyntaxError::from(&error).into());
            return None;
        }
        Err(_) => {
            problems.push(error.into());
            return None;
        }
    };
    if fitting.is_null() && problems.len() > before {
        return None;
    }
    match T::deserialize(fitting) {
        Ok(raw) if problems.len() > before => Some(raw),
        // The shape is right after all (for example, JSON with a superfluous comma): report the parser's error.
        Ok(_) | Err(_) => {
            problems.push(error.into());
            None
        }
    }
}

impl From<SyntaxError> for Problem {
    fn from(error: SyntaxError) -> Self {
        Self { line: Some(error.line), ..Self::error("", error.what, error.remedy) }
    }
}

/// Parses a hostname pattern.
#[cfg(test)]
pub(crate) fn pattern(text: &str) -> Option<crate::model::Pattern> {
    value::pattern(text).ok()
}
