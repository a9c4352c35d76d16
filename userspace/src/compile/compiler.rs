//! Holds the last result and updates it with changes. This is the one interface between the sources and what
//! the data plane should do. Its unit is one keyed entry, [`Change`]. Pure.

use super::claims::{self, Before, Changed, Ground, Refreshed, refresh};
use super::part::FilePart;
use crate::model::cluster::Endpoint;
use crate::model::{
    Change, Claim, ClaimSet, Delta, Desired, Facts, NodeFacts, ObjectName, Places, ProbeChange, Probes,
    Problem,
};
use std::collections::BTreeSet;
use std::mem::{replace, take};
use std::net::SocketAddr;
use std::sync::Arc;

/// Compiles file, cluster and node. Sources report changes with [`Compiler::take`], or with
/// [`Compiler::whole`] if that is not enough. [`Compiler::compile`] then returns the same result as compiling
/// everything, with less work:
///
/// * changed routes of the file are compiled alone; in a cluster, all claims are compiled again unless only
///   backends changed;
/// * for changed endpoints and failing backends, only the routes that use them are resolved again;
/// * a changed claim, and the node's zone, compile all claims, but not the file; a claim that says the same in another version,
///   only if it depends on versions which of two has something, and then changed endpoints and failing backends do so too.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// There is no cluster, only the file. A contradiction in the file refuses it.
    is_alone: bool,
    node: NodeFacts,
    /// `None`: no file was taken yet.
    file: Option<FilePart>,
    desired: Arc<Desired>,
    problems: Vec<Problem>,
    /// What was granted to objects and is not in `desired`, each with its object.
    left_out: Arc<[Problem]>,
    /// The versions of claims decide something in `desired`.
    is_of_versions: bool,
    /// The number of `problems` before the warnings about the file.
    of_objects: usize,
    probes: Probes,
    due: Due,
}

/// What changed since the last compile.
#[derive(Clone, Debug, Default)]
struct Due {
    /// Something that the other fields do not cover.
    is_whole: bool,
    /// Routes of the file whose backends changed.
    routes: BTreeSet<Arc<str>>,
    /// Claims have other versions.
    versions: bool,
    /// Services whose endpoints changed.
    services: BTreeSet<ObjectName>,
    /// Backends that started or stopped failing.
    failing: BTreeSet<SocketAddr>,
    /// The warnings about the file may have changed.
    warnings: bool,
}

impl Due {
    /// Backends of claims changed.
    fn is_of_backends(&self) -> bool {
        !self.services.is_empty() || !self.failing.is_empty()
    }
}

/// The result of a compile.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Only some entries changed; these backends are probed differently than before.
    Some(Vec<ProbeChange>),
    /// Everything was compiled. All of [`Compiler::probes`] may differ.
    Whole,
}

impl Compiler {
    /// Creates a compiler for a file without a cluster: [`Compiler::compile`] gets no cluster.
    pub fn alone() -> Self {
        Self::new(true)
    }

    /// Creates a compiler for a cluster, with or without a file.
    pub fn beside_cluster() -> Self {
        Self::new(false)
    }

    /// The same on the node of this name.
    #[must_use]
    pub fn on(mut self, node: Arc<str>) -> Self {
        self.node.name = Some(node);
        self
    }

    fn new(is_alone: bool) -> Self {
        Self {
            is_alone,
            node: NodeFacts::default(),
            file: None,
            desired: Arc::default(),
            problems: Vec::new(),
            left_out: Arc::default(),
            is_of_versions: false,
            of_objects: 0,
            probes: Probes::new(),
            due: Due { is_whole: true, ..Due::default() },
        }
    }

    /// Takes changes. Returns `false` if no change of the file's routes was taken and the whole file is
    /// required ([`Compiler::whole`]). All other changes in `delta` are taken in any case.
    #[must_use]
    pub fn take(&mut self, delta: Delta) -> bool {
        let is_route = |change: &Change| matches!(change, Change::Route(..));
        let is_of_file = delta.places != Places::default() || delta.changes.iter().any(is_route);
        let (routes, others): (Vec<Change>, Vec<Change>) = delta.changes.into_iter().partition(is_route);
        others.into_iter().for_each(|change| self.take_other(change));
        if !is_of_file {
            return true;
        }
        let delta = Delta { changes: routes, places: delta.places };
        let Some(edited) = self.file.as_mut().and_then(|file| file.change(delta)) else { return false };
        self.due.warnings = true;
        if edited.is_of_backends {
            self.due.routes.extend(edited.routes);
        } else {
            self.due.is_whole = true;
        }
        true
    }

    /// Takes any change except that of a route of the file.
    fn take_other(&mut self, change: Change) {
        let (node, due) = (&mut self.node, &mut self.due);
        match change {
            Change::Route(..) => {}
            Change::Endpoints(service) => drop(due.services.insert(service)),
            Change::Versions => due.versions = true,
            Change::Objects => due.is_whole = true,
            Change::LocalPorts(ports) => due.warnings |= replace(&mut node.local_ports, ports) != ports,
            Change::Zone(zone) => {
                due.is_whole |= node.zone != zone;
                node.zone = zone;
            }
            Change::Failing(failing) => {
                due.failing.extend(node.failing.symmetric_difference(&failing));
                node.failing = failing;
            }
            // Only outputs use these. No object's result depends on them.
            Change::Devices(devices) => node.devices = devices,
            Change::Network(network) => node.network = network,
            Change::Draining(is_draining) => node.is_draining = is_draining,
            Change::ApiServers(addresses) => node.api_servers = addresses,
            Change::Announcement(announcement) => node.announcement = announcement,
        }
    }

    /// Takes the whole file: settings, listeners, routes. Other parts of `facts` are ignored. Without a
    /// cluster, a file with a contradiction, or one that the maps have no room for, is refused: nothing
    /// changes, and the error lists all problems, warnings included.
    pub fn whole(&mut self, facts: &Facts) -> Result<(), Vec<Problem>> {
        let file = FilePart::new(facts);
        if self.is_alone {
            let mut errors = file.errors();
            if !errors.is_empty() {
                file.warn(&self.node, true, &mut errors);
                return Err(errors);
            }
        }
        self.file = Some(file);
        self.due.is_whole = true;
        self.due.warnings = true;
        Ok(())
    }

    /// Whether the file has a route of this name.
    pub fn is_of_file(&self, route: &str) -> bool {
        self.file.as_ref().is_some_and(|file| file.desired.routes.find(route).is_some())
    }

    /// Compiles what changed. Compiles nothing before a file was taken ([`Compiler::is_ready`]). `cluster`
    /// has the current claims.
    pub fn compile(&mut self, cluster: Option<ClaimSet<'_>>) -> Step {
        let nothing = Step::Some(Vec::new());
        let Some(file) = &self.file else { return nothing };
        let due = take(&mut self.due);
        let Some(cluster) = cluster else {
            if due.is_whole || !due.routes.is_empty() {
                self.desired = Arc::new(file.desired.clone());
            }
            self.warn(due.warnings);
            return nothing;
        };
        if !due.is_whole
            && !(due.versions && self.is_of_versions)
            && !(due.is_of_backends() && self.is_of_versions)
            && let Some(refreshed) = self.some(file, cluster, &due)
        {
            self.desired = Arc::new(refreshed.desired);
            for (address, probe) in &refreshed.probes {
                match probe {
                    Some(probe) => self.probes.insert(*address, probe.clone()),
                    None => self.probes.remove(address),
                };
            }
            self.warn(due.warnings);
            return Step::Some(refreshed.probes);
        }
        let built = claims::compile_set(file, cluster, &self.node);
        // Most routes are as before, and outputs hold what was before: they find the few that are not, and no route is kept twice.
        let routes = built.desired.routes.sharing(&self.desired.routes);
        self.desired = Arc::new(Desired { routes, ..built.desired });
        self.of_objects = built.problems.len();
        self.problems = built.problems;
        self.left_out = built.unserved.into();
        self.is_of_versions = built.is_of_order;
        self.probes = built.probes;
        self.warn(true);
        Step::Whole
    }

    /// Returns the result for changes of single entries, where it follows from these alone. `None`: compile
    /// everything.
    fn some(&self, file: &FilePart, cluster: ClaimSet<'_>, due: &Due) -> Option<Refreshed> {
        let mut services = due.services.clone();
        if !due.failing.is_empty() {
            let fails = |one: &Endpoint| due.failing.contains(&SocketAddr::new(one.address, one.port));
            let of_failing = cluster.endpoints.iter().filter(|(_, all)| all.iter().any(fails));
            services.extend(of_failing.map(|(service, _)| service.clone()));
        }
        let with_file = match due.routes.is_empty() {
            true => None,
            false => Some(claims::refresh_file(&self.desired, &self.problems, &file.desired, &due.routes)?),
        };
        let before = with_file.as_ref().unwrap_or(&self.desired);
        if services.is_empty() && due.failing.is_empty() {
            return Some(Refreshed { desired: before.clone(), probes: Vec::new() });
        }
        let before = Before { desired: before, probes: &self.probes, problems: &self.problems };
        let changed = Changed { services: &services, failing: &due.failing };
        // The file's route has the name, whatever leads to it besides.
        let is_of_file = |claim: &&Claim| {
            claim.route.as_deref().is_some_and(|route| file.desired.routes.find(route).is_some())
        };
        let claims = claims::of_set(cluster).filter(|claim| !is_of_file(claim));
        refresh(before, claims, Ground::of_set(cluster, &self.node), changed)
    }

    /// Renews the warnings about the file.
    fn warn(&mut self, is_due: bool) {
        if let Some(file) = self.file.as_ref().filter(|_| is_due) {
            self.problems.truncate(self.of_objects);
            file.warn(&self.node, self.is_alone, &mut self.problems);
        }
    }

    /// Prepares for the next change. To be called when idle.
    pub fn settle(&mut self) {
        if let Some(file) = &mut self.file {
            file.settle();
        }
    }

    /// Whether a file was taken.
    pub fn is_ready(&self) -> bool {
        self.file.is_some()
    }

    /// Whether there are warnings about the file. Cheap; correct as soon as the file was taken.
    pub fn has_warnings(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.has_warnings(&self.node, self.is_alone))
    }

    /// Returns the facts about the node.
    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// Returns what the data plane should do.
    pub fn desired(&self) -> &Arc<Desired> {
        &self.desired
    }

    /// Returns errors and warnings, in the order of the sources; without line numbers.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns what was granted to objects and is not in [`Compiler::desired`], each with its object: the maps have no room for it, or
    /// others have it on this node.
    pub fn left_out(&self) -> &Arc<[Problem]> {
        &self.left_out
    }

    /// Returns the backends to be probed.
    pub fn probes(&self) -> &Probes {
        &self.probes
    }
}
