//! Turns what sources report into facts, and compiles these. The only module of the loop that knows how a
//! source is read and compiled.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::api_servers;
use super::state::State;
use crate::compile::{Compiler, Step};
use crate::config::{self, ChartFile, SAVED_MAX_AGE};
use crate::model::{Change, Claim, Delta, NodeFacts, ObjectRef, ProbeChange, Probes, Problem, Settings};
use crate::net::sysctl;
use crate::sources::file::FileSource;
use crate::sources::kubernetes::{Stale, Store};

/// What is known from all sources that exist.
pub(super) struct Sources {
    /// The path of the static file.
    path: Option<PathBuf>,
    /// The static file, in addition to the chart's file if there is one.
    file: FileSource,
    store: Option<Store>,
    /// Compiles the facts of files, cluster and node.
    compiler: Compiler,
    /// The chart's settings, for a start without any data from the cluster.
    settings: Settings,
    /// How old a saved state may be, for a start without any data from the cluster.
    saved_max_age: Duration,
    /// The hash of the chart's file that is in effect; empty: there is none.
    chart_hash: String,
    /// The cookie keys cannot be followed.
    keys: Option<Stale>,
    /// The problems of the node's own files: the chart's file, then the static one.
    problems: [Vec<Problem>; 2],
    /// No other agent follows on this node.
    is_leaving: bool,
    /// Addresses of API servers that are known without asking one.
    api_servers: BTreeSet<IpAddr>,
}

/// Backends whose probing changed.
pub(super) enum ProbeNews {
    /// All: exactly the state's backends are to be probed.
    All,
    /// Only these.
    Some(Vec<ProbeChange>),
}

impl Sources {
    /// The static file only.
    pub(super) fn of_file(path: &Path) -> Self {
        Self {
            path: Some(path.into()),
            file: FileSource::new(path),
            store: None,
            compiler: Compiler::alone(),
            settings: Settings::default(),
            saved_max_age: SAVED_MAX_AGE,
            chart_hash: String::new(),
            keys: None,
            problems: Default::default(),
            is_leaving: false,
            api_servers: BTreeSet::new(),
        }
    }

    /// A cluster with the chart's file, and optionally a static file, on the node of this name.
    pub(super) fn of_cluster(store: Store, chart: ChartFile, file: Option<PathBuf>, node: &str) -> Self {
        let ChartFile { facts, devices, saved_max_age, .. } = chart;
        let mut this = Self {
            path: file.clone(),
            settings: facts.settings.clone(),
            file: FileSource::beside(facts, file),
            store: Some(store),
            compiler: Compiler::beside_cluster().on(node.into()),
            saved_max_age,
            chart_hash: String::new(),
            keys: None,
            problems: Default::default(),
            is_leaving: false,
            api_servers: BTreeSet::new(),
        };
        this.change(Change::Devices(devices));
        this
    }

    /// Replaces what the chart's file says. `false`: nothing is changed, because the static file is refused, and both are
    /// compiled together.
    #[must_use]
    pub(super) fn set_chart(&mut self, chart: ChartFile) -> bool {
        let ChartFile { facts, policy, devices, saved_max_age } = chart;
        let settings = facts.settings.clone();
        let before = self.file.set_beside(Some(facts));
        if self.read_file().is_err() {
            self.file.set_beside(before);
            return false;
        }
        self.settings = settings;
        self.saved_max_age = saved_max_age;
        self.change(Change::Devices(devices));
        if let Some(store) = &mut self.store {
            store.set_policy(policy);
        }
        true
    }

    /// Notes the hash of the chart's file that is in effect, and the problems that the code that read it found.
    pub(super) fn note_chart(&mut self, hash: String, problems: Vec<Problem>) {
        self.chart_hash = hash;
        self.problems[0] = problems;
    }

    /// The hash of the chart's file that is in effect; empty: there is none.
    pub(super) fn chart_hash(&self) -> &str {
        &self.chart_hash
    }

    /// Returns the problems of the node's own files.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> + Clone {
        self.problems.iter().flatten()
    }

    /// How old a saved state may be whose endpoints get new connections.
    pub(super) fn saved_max_age(&self) -> Duration {
        self.saved_max_age
    }

    /// The chart's settings.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the node's own files have a route of this name.
    pub(super) fn is_of_file(&self, route: &str) -> bool {
        self.compiler.is_of_file(route)
    }

    /// Returns the objects that need one of these listeners or routes of the outputs, by name. None needs what is of the node's own
    /// files. Looks at each Claim once, however many are asked for.
    pub(super) fn objects_of<T: Copy>(
        &self,
        listeners: &HashMap<SocketAddr, T>,
        routes: &HashMap<&str, T>,
    ) -> BTreeMap<ObjectRef, T> {
        let mut objects = BTreeMap::new();
        for stored in self.store.iter().flat_map(|store| store.claim_set().claims.values()) {
            let Claim { grants, route, origin, .. } = &*stored.claim;
            let of_listener = || grants.iter().find_map(|grant| listeners.get(&grant.at()));
            let found = route.as_deref().and_then(|route| routes.get(route)).or_else(of_listener);
            if let (Some(found), Some(object)) = (found, origin.object()) {
                objects.entry(object).or_insert(*found);
            }
        }
        objects
    }

    /// Returns whose Claims are not served as they were written, as NodeStates name it, and why.
    pub(super) fn unread(&self) -> impl Iterator<Item = (Cow<'_, str>, &Problem)> {
        self.store.iter().flat_map(Store::unread)
    }

    /// The facts about the node.
    pub(super) fn node(&self) -> &NodeFacts {
        self.compiler.node()
    }

    /// Applies a change of the node's facts.
    pub(super) fn change(&mut self, change: Change) {
        // It contains no route of the file, so it cannot be refused.
        let _ = self.compiler.take(Delta::of(change));
    }

    /// The backends that fail the node's probes.
    pub(super) fn failing(&self) -> Option<&BTreeSet<SocketAddr>> {
        self.store.as_ref().map(|_| &self.compiler.node().failing)
    }

    /// All backends to be probed.
    pub(super) fn probes(&self) -> &Probes {
        self.compiler.probes()
    }

    /// Returns whether every source had its first full list. Until then nothing is removed.
    pub(super) fn is_complete(&self) -> bool {
        self.store.as_ref().is_none_or(Store::is_complete)
    }

    /// Returns whether it follows a cluster.
    pub(super) fn has_cluster(&self) -> bool {
        self.store.is_some()
    }

    /// Returns the sources that cannot be followed at present.
    pub(super) fn stale(&self) -> Vec<Stale> {
        self.store.iter().flat_map(Store::stale).chain(self.keys.clone()).collect()
    }

    /// Notes whether the cookie keys can be followed; `None`: they can be.
    pub(super) fn note_keys(&mut self, stale: Option<Stale>) {
        self.keys = stale;
    }

    /// Returns whether all that is compiled is known and up to date: what the API server confirms.
    pub(super) fn is_confirmed(&self) -> bool {
        self.store.as_ref().is_none_or(Store::is_confirmed)
    }

    /// Waits for a change in the cluster. Cancel safe: no change is lost.
    pub(super) async fn changed(&mut self) {
        match &mut self.store {
            Some(store) => store.changed().await,
            None => pending().await,
        }
    }

    /// Notes that no other agent follows on this node.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Returns whether new connections are to be refused: Vestibule is withdrawn from the cluster or from this node.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.is_leaving || self.store.as_ref().is_some_and(Store::is_withdrawn)
    }

    /// Notes addresses of API servers: those that the agent is configured with, and what was `saved` before any says more.
    pub(super) fn know_api_servers(&mut self, configured: BTreeSet<IpAddr>, saved: &BTreeSet<IpAddr>) {
        self.change(Change::ApiServers(Arc::new(&configured | saved)));
        self.api_servers = configured;
    }

    /// The path of the static file.
    pub(super) fn file(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Reads the static file. If refused, its previous content stays in effect, and the problems have lines.
    pub(super) fn read_file(&mut self) -> Result<(), Vec<Problem>> {
        self.change(Change::LocalPorts(sysctl::local_port_range()));
        let mut read = self.file.read(&mut self.compiler);
        if read.is_err() && self.store.is_some() && !self.compiler.is_ready() {
            // With a cluster, a refused file at the start does not stop the node: compile without the file.
            read = read.or_else(|problems| self.file.without(&mut self.compiler).and(Err(problems)));
        }
        self.problems[1] = read.as_ref().err().cloned().unwrap_or_default();
        read
    }

    /// Finds the lines in the static file for problems that were found after it was read.
    pub(super) fn locate(&self, problems: &mut [Problem]) {
        if let Some(path) = self.file()
            && let Ok(text) = std::fs::read_to_string(path)
        {
            let in_file = problems.iter_mut().filter(|problem| !problem.field.is_empty());
            in_file.for_each(|problem| config::locate(&text, std::slice::from_mut(problem)));
        }
    }

    /// Called when what was read is in effect: prepares for the next time, now that no client waits. Returns
    /// warnings for the author of the static file.
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

    /// Takes the room out of what is known of the cluster. To be called when idle.
    pub(super) fn pack(&mut self) {
        self.store.iter_mut().for_each(Store::pack);
    }

    /// Updates the state from what is known. Compiles only what changed. Requires complete sources.
    pub(super) fn compile(&mut self, state: &mut Option<State>) -> ProbeNews {
        if let Some(store) = &mut self.store {
            // It contains no route of the file, so it cannot be refused.
            let _ = self.compiler.take(store.changes().into());
            // Before it is known, what was saved is announced.
            let announcement = store.announcement().cloned();
            if announcement.is_some() && announcement != self.compiler.node().announcement {
                self.change(Change::Announcement(announcement));
            }
        }
        if let Some(store) = &self.store {
            let found = api_servers::endpoints(store.claim_set().endpoints);
            let known = &self.api_servers | &found;
            // An API server without any is none that answers: what was known stays.
            if !found.is_empty() && known != *self.compiler.node().api_servers {
                self.change(Change::ApiServers(Arc::new(known)));
            }
        }
        if !self.compiler.is_ready() {
            return ProbeNews::Some(Vec::new());
        }
        let version = self.store.as_ref().map_or(0, Store::claims_version);
        match self.compiler.compile(self.store.as_ref().map(Store::claim_set)) {
            Step::Some(probes) => {
                match state {
                    Some(state) => state.follow(&self.compiler, version),
                    None => *state = Some(State::of(&self.compiler, version)),
                }
                ProbeNews::Some(probes)
            }
            Step::Whole => {
                *state = Some(State::of(&self.compiler, version));
                ProbeNews::All
            }
        }
    }
}
