//! What is wrong, where, and what to do about it.

use super::event_reason::EventReason;
use super::object::ObjectRef;
use std::fmt;

/// Whether a problem keeps the configuration from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration is used; something in it does not do what its author may think.
    Warning,
}

/// One thing that is wrong with a configuration or with what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Error or warning.
    pub severity: Severity,
    /// The Kubernetes object it is about; `None`: the file, or the node.
    pub object: Option<ObjectRef>,
    /// Path of the field in the source, such as `routes[3].hostnames[0]`; empty = the whole source.
    pub field: String,
    /// The offending value as written; empty = the field is missing or its value says nothing.
    pub value: String,
    /// What is wrong, naming the objects concerned.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// Line in the source, from 1; `None` = not known or not in a file.
    pub line: Option<u32>,
    /// Reason of the Event about it; `None` = the severity says it.
    pub reason: Option<EventReason>,
}

impl Problem {
    /// An error: the configuration is refused.
    pub fn error(field: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            object: None,
            field: field.into(),
            value: String::new(),
            what: what.into(),
            remedy: remedy.into(),
            line: None,
            reason: None,
        }
    }

    /// A warning: the configuration is used.
    pub fn warning(field: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(field, what, remedy) }
    }

    /// With the Kubernetes object it is about.
    #[must_use]
    pub fn object(mut self, object: ObjectRef) -> Self {
        self.object = Some(object);
        self
    }

    /// With the reason of its Event.
    #[must_use]
    pub fn reason(mut self, reason: EventReason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// With the offending value.
    #[must_use]
    pub fn value(mut self, value: impl fmt::Display) -> Self {
        self.value = value.to_string();
        self
    }

    /// Whether it keeps the configuration from being used.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// One line, as compilers print it: `FILE:LINE: error: FIELD: what (value "..."); remedy`.
    pub fn in_file<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        InFile { file, problem: self }
    }
}

struct InFile<'a> {
    file: &'a str,
    problem: &'a Problem,
}

impl fmt::Display for InFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problem.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.problem),
            None => write!(f, "{}: {}", self.file, self.problem),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        })?;
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.what)?;
        if !self.value.is_empty() {
            write!(f, " (value {:?})", self.value)?;
        }
        write!(f, "; {}", self.remedy)
    }
}

/// The candidate that `written` was most likely meant to be.
pub fn closest<'a>(written: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = written.to_ascii_lowercase();
    let likeness = |name: &str| {
        let name = name.to_ascii_lowercase();
        let slip = strsim::osa_distance(&lower, &name) <= 1;
        strsim::jaro_winkler(&lower, &name).max(if slip { 0.9 } else { 0.0 })
    };
    candidates
        .map(|name| (likeness(name), name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_names_are_suggested() {
        let names = ["addresses", "port", "protocol", "defaultRoute"];
        assert_eq!(closest("adresses", names.into_iter()), Some("addresses"));
        assert_eq!(closest("default_route", names.into_iter()), Some("defaultRoute"));
        assert_eq!(closest("tow", ["one", "two"].into_iter()), Some("two"));
        assert_eq!(closest("backend", names.into_iter()), None);
    }
}
