//! One turn: what objects say now, compiled, put into the maps, and told.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::handover::{HandoverError, Wish};
use super::keys;
use super::report::Reporter;
use super::role::{Reader, Role, Taking};
use super::serve::Agent;
use super::state::{Saying, State, by_kind};
use super::{AgentError, saved};
use crate::admin;
use crate::compile::cluster::refresh;
use crate::compile::compile;
use crate::daemon::{Done, StartError};
use crate::dataplane::maps::CookieKeys;
use crate::metrics::{observe, set_all};
use crate::model::Problem;
use crate::sources::kubernetes::Changes;

/// The state is saved at most this often.
const SAVE_EVERY: Duration = Duration::from_secs(5);

impl Agent<'_> {
    /// Compiles what is known and brings the maps in step. Before every source had its full list nothing is touched.
    pub(super) fn turn(&mut self) -> Result<(), AgentError> {
        self.note_stale();
        if !self.store.is_complete() {
            return Ok(());
        }
        let begun = std::time::Instant::now();
        if !self.refresh() {
            let compiled = self.store.judged(&mut self.facts, |facts| compile(facts, &self.around));
            self.prober.set(&compiled.probes);
            self.state = Some(State::of(compiled));
        }
        observe(&self.metrics.compile_seconds, begun.elapsed());
        debug!(elapsed = ?begun.elapsed(), "compiled");
        self.apply(begun)?;
        self.tell();
        Ok(())
    }

    /// Follows changes of endpoints alone; false: everything is to be compiled.
    fn refresh(&mut self) -> bool {
        let changes = self.store.changes();
        let is_partial = std::mem::replace(&mut self.is_partial, true);
        let (Changes::Endpoints(changed), Some(state)) = (changes, &self.state) else { return false };
        if !is_partial {
            return false;
        }
        let refreshed = self.store.judged(&mut self.facts, |facts| {
            refresh(&state.desired, &state.probes, &state.problems, facts, &self.around, &changed)
        });
        let Some(refreshed) = refreshed else { return false };
        self.prober.change(&refreshed.probes);
        if let Some(state) = &mut self.state {
            state.follow(refreshed);
        }
        true
    }

    /// Puts what was compiled last into the maps, where it is not there yet.
    fn apply(&mut self, begun: std::time::Instant) -> Result<(), AgentError> {
        let (Some(state), Some(writing)) = (&self.state, self.role.writing()) else { return Ok(()) };
        if *writing.control.desired() == *state.desired && writing.failed.is_none() {
            writing.digests.clone_from(&state.digests);
            return Ok(());
        }
        let applying = std::time::Instant::now();
        match writing.control.reload(Arc::clone(&state.desired), begun) {
            Ok(done) => {
                writing.failed = None;
                writing.digests.clone_from(&state.digests);
                self.is_unsaved = self.store.is_complete();
                let took = begun.elapsed();
                debug!(changes = done.changes, in_force = ?done.in_force, ?took, "programmed");
                observe(&self.metrics.apply_seconds, applying.elapsed());
                self.count(&done);
            }
            Err(fatal @ StartError::Keeper(_)) => return Err(fatal.into()),
            Err(error) => {
                let failed = error.to_string();
                if writing.failed.as_ref() != Some(&failed) {
                    error!(%error, "the maps do not hold all that they should; what was in force stays");
                }
                writing.failed = Some(failed);
            }
        }
        Ok(())
    }

    /// What could not be written is tried again.
    pub(super) fn retry(&mut self) -> Result<(), AgentError> {
        if self.role.writing().is_some_and(|writing| writing.failed.is_some()) {
            self.apply(std::time::Instant::now())?;
            self.tell();
        }
        Ok(())
    }

    /// Devices, addresses or routes of the node changed.
    pub(super) fn network_changed(&mut self) -> Result<(), AgentError> {
        let Some(writing) = self.role.writing() else { return Ok(()) };
        match writing.control.network_changed() {
            Ok(done) => {
                if done.changes > 0 {
                    info!(changes = done.changes, devices = writing.control.devices(), "the network changed");
                }
                self.count(&done);
                self.tell();
                Ok(())
            }
            Err(fatal @ StartError::Keeper(_)) => Err(fatal.into()),
            Err(error) => {
                error!(%error, "the node's network is not followed");
                writing.failed = Some(error.to_string());
                Ok(())
            }
        }
    }

    fn count(&self, done: &Done) {
        for (map, writes) in &done.writes {
            self.metrics.map_writes.get_or_create(&[("map", (*map).to_owned())]).inc_by(*writes);
        }
    }

    /// What cannot be followed: told to probes and to metrics.
    fn note_stale(&mut self) {
        let stale = self.store.stale();
        let lines: Vec<String> =
            stale.iter().map(|stale| format!("{}: {}", stale.source, stale.why)).collect();
        for stale in &stale {
            if !self.gauges[0].iter().any(|source| source == stale.source) {
                self.gauges[0].push(stale.source.to_owned());
            }
        }
        for source in &self.gauges[0] {
            let label = [("source", source.clone())];
            let is_stale = stale.iter().any(|stale| stale.source == source);
            let before = self.metrics.stale.get_or_create_owned(&label).set(i64::from(is_stale));
            if is_stale && before == 0 {
                self.metrics.watch_errors.get_or_create(&[("source", source.clone())]).inc();
            }
        }
        let is_synced = self.store.is_complete();
        self.told.update(|view| {
            view.stale = lines;
            view.is_synced = is_synced;
        });
    }

    /// Tells the API server, probes and metrics what is in force.
    pub(super) fn tell(&mut self) {
        let failing = self.state.as_ref().map(State::failing_by_route).unwrap_or_default();
        set_all(&self.metrics.failing, "route", &failing, &mut self.gauges[1]);
        let stale = self.store.stale();
        let is_complete = self.store.is_complete();
        let Role::Writer(writing) = &mut self.role else { return };
        let failed = writing.failed.as_ref().map(|what| {
            Problem::error(
                "",
                what.clone(),
                "see the agent's log; it tries again and what was in force stays",
            )
        });
        let of_objects = self.state.iter().flat_map(|state| &state.problems);
        let of_node = self.own_problems.iter().chain(writing.control.problems()).chain(&failed);
        // What is wrong with objects the controller sees by itself; what is the file's it does not.
        let own: Vec<&Problem> =
            of_node.clone().chain(of_objects.clone().filter(|problem| problem.object.is_none())).collect();
        set_all(&self.metrics.problems, "kind", &by_kind(of_node.chain(of_objects)), &mut self.gauges[2]);
        self.told.update(|view| view.trouble.clone_from(&writing.failed));
        if !is_complete && writing.reporter.is_none() {
            return;
        }
        let reporter =
            writing.reporter.get_or_insert_with(|| Reporter::start(&self.client, &self.options.identity));
        let saying = Saying {
            identity: &self.options.identity,
            digests: &writing.digests,
            stale: stale.iter().map(|stale| format!("{}: {}", stale.source, stale.why)).collect(),
            failing: &self.store.cluster().failing,
            problems: &own,
        };
        reporter.tell(saying.spec());
    }

    /// Becomes the writer, once there is something to write.
    pub(super) async fn take_over(&mut self) {
        let (Role::Reader(reader), Some(state)) = (&mut self.role, &self.state) else { return };
        if std::time::Instant::now() < reader.again {
            return;
        }
        let taking = Taking {
            pins: &self.pins,
            run: &self.options.run,
            choice: &self.choice,
            desired: &state.desired,
            keys: self.keys.as_ref(),
            asks: reader.asks,
        };
        match taking.take().await {
            Ok(Some(mut writing)) => {
                writing.digests.clone_from(&state.digests);
                if self.options.metrics_port != 0 {
                    let asked = Arc::clone(&self.told);
                    let port = self.options.metrics_port;
                    writing.port.spawn(async move {
                        if let Err(error) = admin::serve_port(port, asked).await {
                            warn!(%error, port, "/metrics is not served");
                        }
                    });
                }
                self.is_unsaved = self.store.is_complete();
                self.role = Role::Writer(Box::new(writing));
                self.metrics.writer.set(1);
                self.told.update(|view| view.could_write = true);
                self.tell();
            }
            Ok(None) => reader.wait(),
            Err(error) => {
                reader.failed();
                warn!(%error, "the maps cannot be taken over yet");
                self.told.update(|view| view.trouble = Some(error.to_string()));
            }
        }
    }

    /// Hands the maps over to the next agent.
    pub(super) async fn give(&mut self, wish: Wish) {
        let Role::Writer(writing) = std::mem::replace(&mut self.role, Role::Reader(Reader::retired())) else {
            return;
        };
        // The next one saves what it puts into force.
        self.is_unsaved = false;
        writing.give_up().await;
        self.metrics.writer.set(0);
        info!("hands the maps over to the next agent");
        self.wait_for(wish);
    }

    /// What became of it.
    pub(super) fn given(&mut self, outcome: Result<(), HandoverError>) {
        match outcome {
            Ok(()) => info!("the next agent writes the maps"),
            Err(error) => {
                warn!(%error, "the next agent did not take the maps; they are taken back");
                if let Role::Reader(reader) = &mut self.role {
                    reader.again = std::time::Instant::now();
                }
            }
        }
    }

    /// Other keys for all nodes.
    pub(super) fn new_keys(&mut self, keys: CookieKeys) {
        if let Some(writing) = self.role.writing()
            && let Err(error) = writing.control.set_cookie_keys(&keys)
        {
            warn!(%error, "the new cookie keys are not in the maps");
        }
        if let Err(error) = keys::save(&self.options.state, &keys) {
            warn!(%error, "the cookie keys are not kept for the next boot");
        }
        self.keys = Some(keys);
    }

    /// Saves the state in force, not too often, without waiting for the disk.
    pub(super) fn save_some_time(&mut self) {
        if !self.is_unsaved || self.saved.elapsed() < SAVE_EVERY {
            return;
        }
        let Some(state) = &self.state else { return };
        self.is_unsaved = false;
        self.saved = Instant::now();
        let (folder, desired) = (self.options.state.clone(), Arc::clone(&state.desired));
        self.chores.spawn_blocking(move || save(&folder, &desired));
    }

    /// Saves it at once, where it is not saved.
    pub(super) fn save_now(&mut self) {
        if let Some(state) = self.state.as_ref().filter(|_| std::mem::take(&mut self.is_unsaved)) {
            save(&self.options.state, &state.desired);
        }
    }
}

fn save(folder: &std::path::Path, desired: &crate::model::Desired) {
    if let Err(error) = saved::write(folder, desired) {
        warn!(%error, "the state is not kept for the next boot");
    }
}
