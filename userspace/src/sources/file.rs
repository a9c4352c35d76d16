//! The static file: what it says, and of a file that is read again what is different. Routes whose text is known are
//! neither parsed nor compiled again.
//!
//! [`FileSource::read`] offers a [`Compiler`] the difference; only where that is not taken, and where there is none (the
//! first time, other settings or listeners, more than an eighth of all routes), is the whole file parsed for it. Who
//! wants what the file says, and no compiler that follows it, asks [`facts`].

use super::difference::{Difference, Number};
use crate::compile::{Compiler, compile};
use crate::config::{self, Outline};
use crate::model::{Change, Delta, Desired, Facts, ListenerSpec, NodeFacts, Problem, Settings};
use foldhash::quality::RandomState;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tracing::debug;

/// Largest file that is read: 1,000,000 routes take some 300 MiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// At most one route in this many may have changed; otherwise the whole file is compiled.
const SHARE: usize = 8;
/// This many routes may have changed in any file.
const FEW: usize = 64;

/// The static file, and what it said when it was good last.
#[derive(Debug)]
pub struct FileSource {
    path: Option<PathBuf>,
    /// What is said beside the file, whose settings count then.
    beside: Option<Facts>,
    keys: [RandomState; 2],
    known: Option<Known>,
    /// As it was read last, where warnings may need it.
    text: String,
}

/// What a file said, route by route in the order of the file.
#[derive(Debug)]
struct Known {
    /// Of the routes' texts.
    numbers: Vec<Number>,
    names: Vec<Arc<str>>,
    settings: Settings,
    listeners: Vec<ListenerSpec>,
}

impl FileSource {
    /// The file at this path, not read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let (path, keys) = (Some(path.into()), Default::default());
        Self { path, beside: None, keys, known: None, text: String::new() }
    }

    /// The file at this path, if there is one, beside what the chart's says: settings are the chart's, listeners and
    /// routes are both.
    pub fn beside(chart: Facts, path: Option<PathBuf>) -> Self {
        Self { path, beside: Some(chart), keys: Default::default(), known: None, text: String::new() }
    }

    /// Replaces what is said beside the file, and returns what was. To be read again then.
    pub fn set_beside(&mut self, beside: Option<Facts>) -> Option<Facts> {
        self.known = None;
        std::mem::replace(&mut self.beside, beside)
    }

    /// Reads the file and gives the compiler the difference. A file with any error is refused as a whole; the
    /// compiler then knows what it knew, and the problems are all there are, with lines.
    pub fn read(&mut self, compiler: &mut Compiler) -> Result<(), Vec<Problem>> {
        let begun = Instant::now();
        let Some(path) = &self.path else { return self.without(compiler) };
        let text = read(path).map_err(|error| vec![unreadable(&error)])?;
        self.judge(text, compiler, begun)
    }

    /// Gives the compiler an empty file: for a start with a file that is refused.
    pub fn without(&mut self, compiler: &mut Compiler) -> Result<(), Vec<Problem>> {
        self.known = None;
        compiler.whole(self.beside.as_ref().unwrap_or(&Facts::default()))
    }

    /// What of this the file says may surprise its author, with lines. Reads the text once more, for the last time: for
    /// when the configuration is in force.
    pub fn located(&mut self, problems: &[Problem]) -> Vec<Problem> {
        let mut problems = problems.to_vec();
        config::locate(&std::mem::take(&mut self.text), &mut problems);
        problems
    }

    pub(super) fn judge(
        &mut self,
        text: String,
        compiler: &mut Compiler,
        begun: Instant,
    ) -> Result<(), Vec<Problem>> {
        self.text = String::new();
        let outline = Outline::read(&text);
        let number = |text| [0, 1].map(|half: usize| self.keys[half].hash_one(text));
        let numbers: Option<Vec<Number>> =
            outline.as_ref().map(|outline| outline.texts().map(number).collect());
        let mut numbers =
            numbers.filter(|_| self.beside.as_ref().is_none_or(|chart| chart.routes.is_empty()));
        let followed = match (&mut self.known, &outline, &mut numbers) {
            (Some(known), Some(outline), Some(numbers)) => known.follow(outline, numbers, compiler, begun),
            _ => false,
        };
        if followed {
            drop(outline);
        } else {
            self.tell(&text, outline, numbers, compiler, begun)?;
        }
        // Only warnings need lines; without them the text, which may be long, is done with.
        if self.beside.is_none() && compiler.has_warnings() {
            self.text = text;
        }
        Ok(())
    }

    /// Parses everything and gives it to the compiler.
    fn tell(
        &mut self,
        text: &str,
        outline: Option<Outline<'_>>,
        numbers: Option<Vec<Number>>,
        compiler: &mut Compiler,
        begun: Instant,
    ) -> Result<(), Vec<Problem>> {
        let (mut facts, problems) = config::parse_outlined(text, outline);
        debug!(parsed_ms = millis(begun), "parsed");
        if problems.iter().any(Problem::is_error) {
            facts.node = compiler.node().clone();
            return Err(located(text, with_conflicts(&facts, problems)));
        }
        let names = facts.routes.iter().map(|route| Arc::clone(&route.name)).collect();
        let (settings, listeners) = (facts.settings.clone(), facts.listeners.clone());
        if let Some(chart) = &self.beside {
            facts.settings.clone_from(&chart.settings);
            facts.listeners.splice(0..0, chart.listeners.iter().cloned());
            facts.routes.splice(0..0, chart.routes.iter().cloned());
        }
        compiler.whole(&facts).map_err(|problems| located(text, problems))?;
        self.known = numbers.map(|numbers| Known { numbers, names, settings, listeners });
        Ok(())
    }
}

impl Known {
    /// Goes on to a file that differs in a few routes. `false`: the whole file is needed; nothing is changed here.
    fn follow(
        &mut self,
        outline: &Outline<'_>,
        numbers: &mut Vec<Number>,
        compiler: &mut Compiler,
        begun: Instant,
    ) -> bool {
        if !outline.problems.is_empty()
            || self.settings != outline.settings
            || self.listeners != outline.listeners
        {
            return false;
        }
        let Difference { places, gone, new } = Difference::of(&self.numbers, numbers);
        if gone.len().max(new.len()) > FEW.max(numbers.len() / SHARE) {
            return false;
        }
        let Some((new, problems)) = outline.routes(&new) else { return false };
        debug!(parsed_ms = millis(begun), changed = new.len(), "parsed");
        if !problems.is_empty() {
            return false;
        }
        let added = new.iter().map(|route| (route.place, Arc::clone(&route.name))).collect();
        let gone = gone.iter().map(|place| Change::Route(Arc::clone(&self.names[*place]), None));
        let new = new.into_iter().map(|route| Change::Route(Arc::clone(&route.name), Some(route)));
        let changes = gone.chain(new).collect();
        if !compiler.take(Delta { changes, places: places.clone() }) {
            return false;
        }
        Difference::rename(&places, &mut self.names, added);
        std::mem::swap(&mut self.numbers, numbers);
        true
    }
}

/// Milliseconds since then.
fn millis(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// A file that can be used, as check and explain want it.
#[derive(Debug)]
pub struct Loaded {
    /// What the data plane would do.
    pub desired: Arc<Desired>,
    /// What may surprise the file's author, with lines.
    pub warnings: Vec<Problem>,
}

/// Reads, checks and compiles a file by itself, for a node. One with any error is refused as a whole; the problems are
/// then all there are, warnings included, with lines.
pub fn load(path: &Path, node: &NodeFacts) -> Result<Loaded, Vec<Problem>> {
    let (mut source, mut compiler) = (FileSource::new(path), Compiler::alone());
    // No route: it is taken.
    let _ = compiler.take(Delta::of(Change::LocalPorts(node.local_ports)));
    source.read(&mut compiler)?;
    compiler.compile(None);
    let warnings = source.located(compiler.problems());
    Ok(Loaded { desired: Arc::clone(compiler.desired()), warnings })
}

/// Reads and checks a file by itself: what it says, for those who judge it together with more. A file with any error
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

/// With lines, in their order.
fn located(text: &str, mut problems: Vec<Problem>) -> Vec<Problem> {
    config::locate(text, &mut problems);
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// Parses and compiles everything. Pure.
#[cfg(test)]
pub(crate) fn judge(text: &str, node: &NodeFacts) -> (Desired, Vec<Problem>) {
    let (mut facts, problems) = config::parse(text);
    facts.node = node.clone();
    if problems.iter().any(Problem::is_error) {
        return (Desired::default(), with_conflicts(&facts, problems));
    }
    let compiled = compile(&facts);
    (compiled.desired, compiled.problems)
}

/// Adds the contradictions of what is good in a bad file. What is missing there may only be missing because it is bad,
/// so only problems with a value that is really written are reported.
fn with_conflicts(facts: &Facts, mut problems: Vec<Problem>) -> Vec<Problem> {
    let whole = ["", "listeners", "routes"];
    if problems.iter().any(|problem| whole.contains(&&*problem.field)) {
        return problems;
    }
    let told: HashSet<String> = problems.iter().map(|problem| problem.field.clone()).collect();
    let more = compile(facts).problems;
    problems.extend(
        more.into_iter().filter(|problem| {
            problem.is_error() && !problem.value.is_empty() && !told.contains(&problem.field)
        }),
    );
    problems
}
