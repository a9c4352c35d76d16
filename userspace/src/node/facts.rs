//! What sources say, as Facts, and what these come to: the only place of the loop that knows how a source is read and
//! compiled.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::state::State;
use crate::compile::{Compiler, Step};
use crate::config;
use crate::model::{Change, Delta, Facts, NodeFacts, ProbeChange, Probes, Problem, Settings};
use crate::net::sysctl;
use crate::sources::file::FileSource;
use crate::sources::kubernetes::{Stale, Store};

/// What is known, from whichever sources there are.
pub(super) struct Sources {
    /// The static file's path.
    path: Option<PathBuf>,
    /// The static file, beside the chart's where there is one.
    file: FileSource,
    store: Option<Store>,
    /// What files, cluster and node come to.
    compiler: Compiler,
    /// The chart's, for a start without a word of the cluster.
    settings: Settings,
    /// What is wrong with the node's own files: the chart's, then the static one.
    problems: [Vec<Problem>; 2],
}

/// Which backends are to be probed in another way than before.
pub(super) enum ProbeNews {
    /// All of the state's, and no other.
    All,
    /// These.
    Some(Vec<ProbeChange>),
}

impl Sources {
    /// The static file alone.
    pub(super) fn of_file(path: &Path) -> Self {
        Self {
            path: Some(path.into()),
            file: FileSource::new(path),
            store: None,
            compiler: Compiler::alone(),
            settings: Settings::default(),
            problems: Default::default(),
        }
    }

    /// A cluster with the chart's file, and a static file beside it.
    pub(super) fn of_cluster(store: Store, chart: Facts, file: Option<PathBuf>) -> Self {
        Self {
            path: file.clone(),
            settings: chart.settings.clone(),
            file: FileSource::beside(chart, file),
            store: Some(store),
            compiler: Compiler::beside_cluster(),
            problems: Default::default(),
        }
    }

    /// What is wrong with the chart's file, found by who read it.
    pub(super) fn blame_chart(&mut self, problems: Vec<Problem>) {
        self.problems[0] = problems;
    }

    /// What is wrong with the node's own files.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> + Clone {
        self.problems.iter().flatten()
    }

    /// The chart's settings.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the node says.
    pub(super) fn node(&self) -> &NodeFacts {
        self.compiler.node()
    }

    /// Takes what changed of the node.
    pub(super) fn change(&mut self, change: Change) {
        // No route of the file: it is taken.
        let _ = self.compiler.take(Delta::of(change));
    }

    /// The backends that the node's probes find down.
    pub(super) fn failing(&self) -> Option<&BTreeSet<SocketAddr>> {
        self.store.as_ref().map(|_| &self.compiler.node().failing)
    }

    /// All backends that are to be probed.
    pub(super) fn probes(&self) -> &Probes {
        self.compiler.probes()
    }

    /// Whether every source had its first full list: until then nobody removes anything.
    pub(super) fn is_complete(&self) -> bool {
        self.store.as_ref().is_none_or(Store::is_complete)
    }

    /// Whether it follows a cluster.
    pub(super) fn has_cluster(&self) -> bool {
        self.store.is_some()
    }

    /// Sources that cannot be followed at present.
    pub(super) fn stale(&self) -> Vec<Stale> {
        self.store.as_ref().map(Store::stale).unwrap_or_default()
    }

    /// Comes back when the cluster says something else. Nothing is lost when the waiting is given up.
    pub(super) async fn changed(&mut self) {
        match &mut self.store {
            Some(store) => store.changed().await,
            None => pending().await,
        }
    }

    /// Where the static file is.
    pub(super) fn file(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Reads the static file. One that is refused leaves what it said before in force; the problems then have lines.
    pub(super) fn read_file(&mut self) -> Result<(), Vec<Problem>> {
        self.change(Change::LocalPorts(sysctl::local_port_range()));
        let mut read = self.file.read(&mut self.compiler);
        if read.is_err() && self.store.is_some() && !self.compiler.is_ready() {
            // Beside a cluster nothing refuses what is said without it.
            read = read.or_else(|problems| self.file.without(&mut self.compiler).and(Err(problems)));
        }
        self.problems[1] = read.as_ref().err().cloned().unwrap_or_default();
        read
    }

    /// Finds the lines in the static file of problems that came up after it was read.
    pub(super) fn locate(&self, problems: &mut [Problem]) {
        if let Some(path) = self.file()
            && let Ok(text) = std::fs::read_to_string(path)
        {
            let in_file = problems.iter_mut().filter(|problem| !problem.field.is_empty());
            in_file.for_each(|problem| config::locate(&text, std::slice::from_mut(problem)));
        }
    }

    /// What was read is in force, and nobody waits: makes ready for the next time. Gives what may surprise the static
    /// file's author.
    pub(super) fn settle(&mut self) -> Vec<Problem> {
        if self.store.is_some() {
            return Vec::new();
        }
        let warnings = match self.compiler.has_warnings() {
            true => self.file.located(self.compiler.problems()),
            false => Vec::new(),
        };
        self.compiler.settle();
        warnings
    }

    /// Brings the state in step with what is known; what did not change is not compiled again. For complete sources.
    pub(super) fn compile(&mut self, state: &mut Option<State>) -> ProbeNews {
        if let Some(store) = &mut self.store {
            // No route of the file: it is taken.
            let _ = self.compiler.take(store.changes().into());
        }
        if !self.compiler.is_ready() {
            return ProbeNews::Some(Vec::new());
        }
        match self.compiler.compile(self.store.as_ref().map(Store::cluster)) {
            Step::Some(probes) => {
                match state {
                    Some(state) => state.follow(&self.compiler),
                    None => *state = Some(State::of(&self.compiler)),
                }
                ProbeNews::Some(probes)
            }
            Step::Whole(_) => {
                *state = Some(State::of(&self.compiler));
                ProbeNews::All
            }
        }
    }
}
