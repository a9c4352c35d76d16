//! Reports the problems of a static file to its author.

use super::file;
use crate::model::{NodeFacts, Problem, Settings};
use std::fmt;
use std::path::{Path, PathBuf};

/// Everything that is wrong with a file, and everything that may surprise its author on this node.
pub fn check(path: &Path, node: &NodeFacts) -> Report {
    let (usable, problems) = match file::load(path, node) {
        Ok(loaded) => {
            let (listeners, routes) = (loaded.desired.listeners.len(), loaded.desired.routes.len());
            (Some(Usable { listeners, routes, settings: loaded.desired.settings.clone() }), loaded.warnings)
        }
        Err(problems) => (None, problems),
    };
    Report { path: path.to_owned(), problems, usable }
}

/// What is wrong with a file; prints one line a problem and one for the whole.
#[derive(Clone, Debug)]
pub struct Report {
    path: PathBuf,
    problems: Vec<Problem>,
    usable: Option<Usable>,
}

/// What a file without errors asks for.
#[derive(Clone, Debug)]
struct Usable {
    listeners: usize,
    routes: usize,
    settings: Settings,
}

impl Report {
    /// Whether the file can be used; it may have warnings.
    pub fn is_usable(&self) -> bool {
        self.usable.is_some()
    }

    /// The settings of a file that can be used.
    pub fn settings(&self) -> Option<&Settings> {
        self.usable.as_ref().map(|usable| &usable.settings)
    }

    /// Errors and warnings, in the order of their lines.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        for problem in &self.problems {
            writeln!(f, "{}", problem.in_file(&path))?;
        }
        let errors = self.problems.iter().filter(|problem| problem.is_error()).count();
        let warnings = self.problems.len() - errors;
        match &self.usable {
            Some(Usable { listeners, routes, .. }) => {
                write!(f, "{path}: ok: listeners: {listeners}, routes: {routes}, warnings: {warnings}")
            }
            None => write!(f, "{path}: refused: errors: {errors}, warnings: {warnings}"),
        }
    }
}
