//! The static file: from a path to what the data plane shall do.

use crate::compile::{Compiled, Surroundings, compile};
use crate::config;
use crate::model::{Desired, Facts, Problem};
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

/// Largest file that is read: 1,000,000 routes take some 300 MiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// A file that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What the data plane shall do.
    pub desired: Desired,
    /// Warnings; they have no line until [`Loaded::warnings`] is called.
    problems: Vec<Problem>,
    text: String,
}

impl Loaded {
    pub(super) fn new(desired: Desired, problems: Vec<Problem>, text: String) -> Self {
        // Only warnings need lines; without them the text, which may be long, is done with.
        let text = if problems.is_empty() { String::new() } else { text };
        Self { desired, problems, text }
    }

    /// Warnings without lines.
    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether there are warnings. Cheap, unlike [`Loaded::warnings`].
    pub fn has_warnings(&self) -> bool {
        !self.problems.is_empty()
    }

    /// What may surprise the file's author, with lines. Reads the text once more: call it when the configuration is
    /// in force.
    pub fn warnings(mut self) -> Vec<Problem> {
        config::locate(&self.text, &mut self.problems);
        self.problems
    }
}

/// Compiles what was parsed of a text, and refuses it with any error.
pub(super) fn usable(
    parsed: (Facts, Vec<Problem>),
    text: String,
    surroundings: &Surroundings,
) -> Result<Loaded, Vec<Problem>> {
    let (desired, mut problems) = judged(parsed, surroundings);
    if problems.iter().any(Problem::is_error) {
        config::locate(&text, &mut problems);
        problems.sort_by_key(|problem| problem.line);
        return Err(problems);
    }
    Ok(Loaded::new(desired, problems, text))
}

/// Reads and checks a file by itself: what it says, for those who compile it together with more. A file with any error
/// is refused as a whole; the problems then have lines.
pub fn facts(path: &Path) -> Result<Facts, Vec<Problem>> {
    let text = read(path).map_err(|error| vec![unreadable(&error)])?;
    let (facts, mut problems) = config::parse(&text);
    if problems.iter().any(Problem::is_error) {
        config::locate(&text, &mut problems);
        return Err(problems);
    }
    Ok(facts)
}

/// What is wrong with a file that cannot be read.
pub(super) fn unreadable(error: &std::io::Error) -> Problem {
    Problem::error("", format!("cannot be read: {error}"), "check the path and who may read it")
}

pub(super) fn read(path: &Path) -> std::io::Result<String> {
    let file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    if length > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    // One byte more than is expected, so that its end is found without more room.
    let mut text = String::with_capacity(length as usize + 1);
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Parses and compiles. Pure.
#[cfg(test)]
pub(crate) fn judge(text: &str, surroundings: &Surroundings) -> (Desired, Vec<Problem>) {
    judged(config::parse(text), surroundings)
}

/// Compiles what was parsed. Pure.
fn judged((facts, problems): (Facts, Vec<Problem>), surroundings: &Surroundings) -> (Desired, Vec<Problem>) {
    if problems.iter().any(Problem::is_error) {
        let problems = with_conflicts(&facts, problems, surroundings);
        return (Desired::default(), problems);
    }
    let Compiled { desired, problems: mut more, .. } = compile(&facts, surroundings);
    more.splice(0..0, problems);
    (desired, more)
}

/// Adds the contradictions of what is good in a bad file. What is missing there may only be missing because it is bad,
/// so only problems with a value that is really written are told.
fn with_conflicts(facts: &Facts, mut problems: Vec<Problem>, surroundings: &Surroundings) -> Vec<Problem> {
    let whole = ["", "listeners", "routes"];
    if problems.iter().any(|problem| whole.contains(&&*problem.field)) {
        return problems;
    }
    let told: HashSet<String> = problems.iter().map(|problem| problem.field.clone()).collect();
    let more = compile(facts, surroundings).problems;
    problems.extend(
        more.into_iter().filter(|problem| {
            problem.is_error() && !problem.value.is_empty() && !told.contains(&problem.field)
        }),
    );
    problems
}
