//! What was compiled last, and how it follows what changed: the one seam between sources and what the data plane shall
//! do. Its unit is one keyed entry, [`Change`]. Pure.

use super::cluster::{self, Refreshed, refresh};
use super::part::FilePart;
use crate::model::cluster::Endpoint;
use crate::model::{
    Change, Cluster, Delta, Desired, Facts, NodeFacts, ObjectName, ObjectRef, Places, ProbeChange, Probes,
    Problem, Verdicts,
};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{replace, take};
use std::net::SocketAddr;
use std::sync::Arc;

/// Compiles file, cluster and node. Sources tell it what changed ([`Compiler::take`], or [`Compiler::whole`] where that
/// is not enough); [`Compiler::compile`] then comes to what compiling everything comes to, and does less for it:
///
/// * changed routes of the file are compiled alone; beside a cluster the objects' rules follow whole, unless only
///   backends changed;
/// * changed endpoints and failing backends resolve the routes that use them again;
/// * any other object of the cluster, and the node's zone, compile all objects, but not the file.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// There is no cluster: the file is all there is, and a contradiction in it refuses it.
    is_alone: bool,
    node: NodeFacts,
    /// `None`: nothing was said yet.
    file: Option<FilePart>,
    desired: Arc<Desired>,
    digests: BTreeMap<ObjectRef, u64>,
    problems: Vec<Problem>,
    /// So many of the problems are no warnings about the file.
    of_objects: usize,
    probes: Probes,
    due: Due,
}

/// What changed since it was compiled.
#[derive(Clone, Debug, Default)]
struct Due {
    /// More than the rest says.
    is_whole: bool,
    /// Routes of the file with other backends.
    routes: BTreeSet<Arc<str>>,
    /// Services with other endpoints.
    services: BTreeSet<ObjectName>,
    /// Backends that fail, or do not any more.
    failing: BTreeSet<SocketAddr>,
    /// What is told of the file.
    warnings: bool,
}

/// What was compiled.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Some entries: these backends are probed in another way than before. Digests stay as they are.
    Some(Vec<ProbeChange>),
    /// Everything: what becomes of each object, which is kept nowhere; all of [`Compiler::probes`] may be another.
    Whole(Verdicts),
}

impl Compiler {
    /// Of a file that is all there is: [`Compiler::compile`] gets no cluster.
    pub fn alone() -> Self {
        Self::new(true)
    }

    /// Of a cluster, with or without a file.
    pub fn beside_cluster() -> Self {
        Self::new(false)
    }

    fn new(is_alone: bool) -> Self {
        Self {
            is_alone,
            node: NodeFacts::default(),
            file: None,
            desired: Arc::default(),
            digests: BTreeMap::new(),
            problems: Vec::new(),
            of_objects: 0,
            probes: Probes::new(),
            due: Due { is_whole: true, ..Due::default() },
        }
    }

    /// Takes what changed. `false`: of the file's routes nothing was taken; the whole file is asked for
    /// ([`Compiler::whole`]). Everything else in `delta` is taken in any case.
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

    /// Any change but that of a route of the file.
    fn take_other(&mut self, change: Change) {
        let (node, due) = (&mut self.node, &mut self.due);
        match change {
            Change::Route(..) => {}
            Change::Endpoints(service) => drop(due.services.insert(service)),
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
            // Outputs look at these; no object's meaning hangs on them.
            Change::Devices(devices) => node.devices = devices,
            Change::Network(network) => node.network = network,
            Change::Draining(is_draining) => node.is_draining = is_draining,
        }
    }

    /// Takes all that the file says: settings, listeners, routes; what else `facts` hold is not looked at. Where there is
    /// no cluster a file with a contradiction, or one that the maps have no room for, is refused: nothing changes, and
    /// the problems are all there are, warnings included.
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

    /// Compiles what changed. Without a word of the file yet ([`Compiler::is_ready`]) nothing is compiled. `cluster` is
    /// what its objects say now.
    pub fn compile(&mut self, cluster: Option<&Cluster>) -> Step {
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
        let compiled = cluster::compile(file, cluster, &self.node);
        self.desired = Arc::new(compiled.desired);
        self.digests = compiled.verdicts.digests();
        self.of_objects = compiled.problems.len();
        self.problems = compiled.problems;
        self.probes = compiled.probes;
        self.warn(true);
        Step::Whole(compiled.verdicts)
    }

    /// What some entries come to, where these tell it. `None`: compile everything.
    fn some(&self, file: &FilePart, cluster: &Cluster, due: &Due) -> Option<Refreshed> {
        let mut services = due.services.clone();
        if !due.failing.is_empty() {
            let fails = |one: &Endpoint| due.failing.contains(&SocketAddr::new(one.address, one.port));
            let of_failing = cluster.endpoints.iter().filter(|(_, all)| all.iter().any(fails));
            services.extend(of_failing.map(|(service, _)| service.clone()));
        }
        let with_file = match due.routes.is_empty() {
            true => None,
            false => Some(cluster::refresh_file(&self.desired, &self.problems, &file.desired, &due.routes)?),
        };
        let before = with_file.as_ref().unwrap_or(&self.desired);
        if services.is_empty() {
            return Some(Refreshed { desired: before.clone(), probes: Vec::new() });
        }
        let before = cluster::Before { desired: before, probes: &self.probes, problems: &self.problems };
        refresh(before, &file.desired, cluster, &self.node, &services)
    }

    /// Tells anew what may surprise the file's author.
    fn warn(&mut self, is_due: bool) {
        if let Some(file) = self.file.as_ref().filter(|_| is_due) {
            self.problems.truncate(self.of_objects);
            file.warn(&self.node, self.is_alone, &mut self.problems);
        }
    }

    /// Makes ready for the next change; for when nobody waits.
    pub fn settle(&mut self) {
        if let Some(file) = &mut self.file {
            file.settle();
        }
    }

    /// Whether there was a word of the file.
    pub fn is_ready(&self) -> bool {
        self.file.is_some()
    }

    /// Whether something of the file may surprise its author. Cheap; true as soon as the file was taken.
    pub fn has_warnings(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.has_warnings(&self.node, self.is_alone))
    }

    /// What the node says of itself.
    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// What the data plane shall do.
    pub fn desired(&self) -> &Arc<Desired> {
        &self.desired
    }

    /// What the maps shall hold of each object, as a number.
    pub fn digests(&self) -> &BTreeMap<ObjectRef, u64> {
        &self.digests
    }

    /// What is wrong and what may surprise, in the order of the sources; without lines.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Backends to be probed.
    pub fn probes(&self) -> &Probes {
        &self.probes
    }
}
