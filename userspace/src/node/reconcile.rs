//! The loop: waits for the next event and handles it. It has no modes: a missing input simply has no events.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::chart::ChartSource;
use super::error::NodeError;
use super::facts::{ProbeNews, Sources};
use super::handover::{Gift, HandoverError, Wish};
use super::inputs::{Input, Inputs};
use super::notify::{self, tell};
use super::orders::{Cause, News, Orders, Outcome, Wanted};
use super::pace::Pace;
use super::role::{Role, Stage, TakeError};
use super::saving::Saving;
use super::state::State;
use super::telemetry::{Known, Telemetry};
use crate::health::Prober;
use crate::model::{Change, Problem};
use crate::outputs::{CookieKeys, StartError, Word, Writer, give_back_memory, now_ns};
use crate::sources::kubernetes::Stale;

/// The time limit for outputs to finish their last write when the process ends, and what goes with it.
const END: Duration = Duration::from_secs(5);
/// The most problems logged at once.
const LOGGED: usize = 20;

/// An event.
enum Event {
    /// It is time for a turn.
    Turn,
    Tick,
    Input(Input),
    /// Something changed in the cluster.
    Changed,
    Word(usize, Word),
    Wish(Wish),
    Asked(Result<(Gift, Writer), TakeError>),
    Given(Result<(), HandoverError>),
}

/// The state of the loop.
pub(super) struct Node {
    pub(super) inputs: Inputs,
    pub(super) sources: Sources,
    /// The chart's file; `None`: there is none.
    pub(super) chart: Option<ChartSource>,
    pub(super) prober: Option<Prober>,
    pub(super) orders: Orders,
    pub(super) role: Role,
    /// The last compiled state.
    pub(super) state: Option<State>,
    /// The causes that no order follows from yet.
    pub(super) cause: Cause,
    /// Keys for signing cookies; `None`: the outputs' own.
    pub(super) keys: Option<CookieKeys>,
    pub(super) telemetry: Telemetry,
    pub(super) saving: Saving,
    pub(super) pace: Pace,
}

/// Serves until an input ends it. What the outputs hold keeps serving after that.
pub(super) async fn reconcile(mut node: Node) -> Result<(), NodeError> {
    node.recall_announcement();
    loop {
        match node.next().await {
            Event::Turn => node.turn()?,
            Event::Tick => node.look_around()?,
            Event::Input(Input::End) => break,
            Event::Input(input) => node.take(input)?,
            Event::Changed => node.pace.is_dirty = true,
            Event::Word(at, word) => node.hear(at, word).await?,
            Event::Wish(wish) => node.give(wish).await,
            Event::Asked(outcome) => node.asked(outcome)?,
            Event::Given(outcome) => node.given(outcome),
        }
    }
    node.end().await;
    Ok(())
}

impl Node {
    async fn next(&mut self) -> Event {
        let Role { stage, asked, given, .. } = &mut self.role;
        // Earlier branches have priority, so that a stream of changes cannot starve them.
        tokio::select! {
            biased;
            wish = stage.wish() => Event::Wish(wish),
            Some(Ok(outcome)) = given.join_next() => Event::Given(outcome),
            Some(Ok(outcome)) = asked.join_next() => Event::Asked(outcome),
            (at, word) = self.orders.word() => Event::Word(at, word),
            () = sleep_until(self.pace.due), if self.pace.is_dirty => Event::Turn,
            _ = self.pace.tick.tick() => Event::Tick,
            input = self.inputs.next() => Event::Input(input),
            failing = failing(&mut self.prober) => Event::Input(Input::Failing(failing)),
            () = self.sources.changed() => Event::Changed,
        }
    }

    /// Handles an input.
    fn take(&mut self, input: Input) -> Result<(), NodeError> {
        match input {
            Input::File => self.read_file(),
            Input::Network(network) => {
                self.sources.change(Change::Network(network?));
                self.cause.network = true;
                self.order(Instant::now());
            }
            Input::Failing(failing) => {
                self.sources.change(Change::Failing(failing));
                self.pace.is_dirty = true;
            }
            Input::Keys(keys) => {
                self.saving.save_keys(&keys);
                self.keys = Some(keys);
                self.order(Instant::now());
            }
            Input::KeysStale(stale) => {
                match &stale {
                    Some(Stale { why, .. }) => {
                        warn!(why, "the cookie keys cannot be followed; those before stay")
                    }
                    None => info!("the cookie keys are followed again"),
                }
                self.sources.note_keys(stale);
                self.telemetry.note_sources(&self.sources);
                self.tell();
            }
            Input::Zone(zone) => {
                self.sources.change(Change::Zone(zone));
                self.pace.is_dirty = true;
            }
            // Handled by the loop itself.
            Input::End => {}
        }
        Ok(())
    }

    /// Reads the chart's file and the static one. If one is refused, its previous content stays in effect.
    pub(super) fn read_file(&mut self) {
        let begun = Instant::now();
        tell(notify::State::Reloading { monotonic_us: now_ns() / 1000 });
        self.pace.is_dirty = true;
        if let Some(chart) = &mut self.chart {
            self.cause.network |= chart.follow(&self.role.pins, &mut self.sources);
        }
        match self.sources.read_file() {
            Ok(()) => {
                debug!(elapsed = ?begun.elapsed(), "read");
                self.cause.file.get_or_insert(begun);
            }
            Err(problems) => {
                self.log_refused(&problems);
                tell(notify::State::Ready);
            }
        }
    }

    /// Compiles what is known, and orders it. Until every source had its full list, nothing is changed.
    fn turn(&mut self) -> Result<(), NodeError> {
        self.pace.turn();
        self.telemetry.note_sources(&self.sources);
        if self.sources.is_complete() {
            let begun = Instant::now();
            let probes = self.sources.compile(&mut self.state);
            match (&self.prober, probes) {
                (Some(prober), ProbeNews::All) => prober.set(self.sources.probes()),
                (Some(prober), ProbeNews::Some(changes)) => prober.change(&changes),
                (None, _) => {}
            }
            self.telemetry.compiled(begun);
            debug!(elapsed = ?begun.elapsed(), "compiled");
            self.telemetry.note_failing(known(&self.sources, &self.state, &self.orders));
            self.order(begun);
        }
        self.take_over()
    }

    /// Does what no event triggers.
    fn look_around(&mut self) -> Result<(), NodeError> {
        self.telemetry.turned();
        self.telemetry.note_unwritten(&self.sources);
        if self.orders.is_to_be_repeated() {
            self.order(Instant::now());
        }
        self.use_saved();
        self.tell_kept();
        self.take_over()?;
        self.confirm_saved();
        self.saving.save_some_time();
        // Compiling a cluster needs about ten times the memory that is kept.
        if self.pace.is_quiet() && self.sources.has_cluster() {
            self.sources.pack();
            give_back_memory();
        }
        Ok(())
    }

    /// Returns what the outputs should hold, from the last compiled state.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        let state = self.state.as_ref()?;
        Some(Wanted {
            desired: Arc::clone(&state.desired),
            claims_version: state.claims_version,
            left_out: Arc::clone(&state.left_out),
            node: self.sources.node().clone(),
            keys: self.keys.clone(),
            is_withdrawn: self.sources.is_withdrawn(),
        })
    }

    /// Sends the order to the outputs, if this process is the writer.
    pub(super) fn order(&mut self, begun: Instant) {
        let cause = std::mem::take(&mut self.cause);
        let wanted = self.wanted();
        match (wanted, &self.role.stage) {
            (Some(wanted), Stage::Writing(writing)) => {
                self.orders.apply(&writing.right, wanted, cause, cause.file.unwrap_or(begun));
            }
            (_, Stage::Reading) if cause.file.is_some() => tell(notify::State::Ready),
            _ => {}
        }
    }

    /// Handles a message from an output.
    async fn hear(&mut self, at: usize, word: Word) -> Result<(), NodeError> {
        match self.orders.hear(at, word)? {
            None => Ok(()),
            Some(News::Prepared(outcome)) => self.prepared(outcome),
            Some(News::Outcome(outcome)) => {
                self.telemetry.applied(&outcome);
                match &self.role.stage {
                    Stage::Beginning(_) => self.begun(outcome).await,
                    _ => self.applied(outcome),
                }
            }
            Some(News::Released) => {
                self.released();
                Ok(())
            }
            Some(News::Announces) => {
                self.tell();
                Ok(())
            }
            Some(News::Drifted(repaired)) => {
                self.telemetry.repaired(repaired);
                self.tell();
                Ok(())
            }
            Some(News::Draining(is_draining)) => {
                match is_draining {
                    true => info!("new connections are refused, by `vestibule drain`"),
                    false => info!("new connections are taken again"),
                }
                self.sources.change(Change::Draining(is_draining));
                self.order(Instant::now());
                Ok(())
            }
        }
    }

    /// Handles that all outputs have answered an order.
    fn applied(&mut self, outcome: Outcome) -> Result<(), NodeError> {
        let Outcome { cause, result, is_news, .. } = outcome;
        match result {
            Ok(done) => {
                let took = cause.file.map_or(done.took, |begun| begun.elapsed());
                debug!(changes = done.changes, in_force = ?done.in_force, ?took, "programmed");
                if cause.network && done.changes > 0 {
                    info!(changes = done.changes, devices = self.orders.devices(), "the network changed");
                }
                if cause.file.is_some() {
                    tell(notify::State::Ready);
                    let (in_force_ms, took_ms) = (millis(done.in_force), millis(took));
                    info!(changes = done.changes, in_force_ms, took_ms, "reloaded");
                    self.settle();
                }
                if let Some(in_force) = self.orders.in_force().filter(|_| self.sources.is_complete()) {
                    self.saving.put(&in_force.desired);
                    self.saving.save_announcement(self.sources.node().announcement.as_ref());
                    self.saving.save_api_servers(&self.sources.node().api_servers);
                }
            }
            Err(error) => {
                if cause.file.is_some() {
                    tell(notify::State::Ready);
                }
                match error {
                    fatal if fatal.is_fatal() => return Err(fatal.into()),
                    StartError::Problems(mut problems) => {
                        // These were found after the file was read.
                        self.sources.locate(&mut problems);
                        self.log_refused(&problems);
                    }
                    error if is_news => {
                        error!(%error, "the maps do not hold all that they should; what was in force stays");
                    }
                    _ => {}
                }
            }
        }
        self.tell();
        Ok(())
    }

    /// Called when what was read is in effect.
    pub(super) fn settle(&mut self) {
        let warnings = self.sources.settle();
        self.log(&warnings, |line| warn!("{line}"));
    }

    fn log_refused(&self, problems: &[Problem]) {
        self.log(problems, |line| error!("{line}"));
        error!("the reload is refused; the last good configuration stays in force");
    }

    fn log(&self, problems: &[Problem], log: impl Fn(String)) {
        let Some(path) = self.sources.file().map(|path| path.display().to_string()) else { return };
        problems.iter().take(LOGGED).for_each(|problem| log(problem.in_file(&path).to_string()));
        if problems.len() > LOGGED {
            log(format!("and {} more; `vestibule check {path}` lists all", problems.len() - LOGGED));
        }
    }

    /// Reports the state in effect, if this process is the writer.
    pub(super) fn tell(&mut self) {
        if matches!(self.role.stage, Stage::Writing(_)) {
            self.telemetry.tell(known(&self.sources, &self.state, &self.orders));
        }
    }

    async fn end(&mut self) {
        tell(notify::State::Stopping);
        self.saving.save_now();
        if matches!(self.role.stage, Stage::Writing(_))
            && self.inputs.is_leaving().await
            && self.withdraw().await
        {
            self.inputs.leave().await;
        }
        if matches!(self.role.stage, Stage::Beginning(_) | Stage::Writing(_)) {
            self.orders.release();
            let released = async {
                loop {
                    let (at, word) = self.orders.word().await;
                    let news = self.orders.hear(at, word);
                    if !matches!(news, Ok(None | Some(News::Outcome(_) | News::Announces))) {
                        return;
                    }
                }
            };
            if timeout(END, released).await.is_err() {
                debug!("an output is still writing");
            }
        }
        info!("ends; programs and connections stay, `vestibule detach` removes them");
    }

    /// Refuses new connections from now on, and announces nothing. Returns whether that is carried out.
    async fn withdraw(&mut self) -> bool {
        self.sources.leave();
        self.order(Instant::now());
        let carried_out = async {
            while self.orders.is_waiting() {
                let (at, word) = self.orders.word().await;
                if self.orders.hear(at, word).is_err() {
                    return false;
                }
            }
            true
        };
        timeout(END, carried_out).await.unwrap_or_else(|_| {
            warn!("an output has not refused new connections within {END:?}");
            false
        })
    }
}

/// Waits for the result of probes, if there are any.
async fn failing(prober: &mut Option<Prober>) -> BTreeSet<SocketAddr> {
    match prober {
        Some(prober) => prober.changed().await,
        None => pending().await,
    }
}

fn known<'a>(sources: &'a Sources, state: &'a Option<State>, orders: &'a Orders) -> Known<'a> {
    Known { sources, state: state.as_ref(), orders, kept: None }
}

/// Converts to milliseconds, rounded to a tenth.
pub(super) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
