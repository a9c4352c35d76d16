//! The loop: file, signals and network changes in, a kernel in step out.

use std::fs;
use std::mem::take;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, error, info, warn};

use super::control::{Control, LOGGED};
use super::devices::Choice;
use super::error::StartError;
use super::notify::{State, tell};
use crate::compile::Surroundings;
use crate::config;
use crate::dataplane::pin::Pins;
use crate::dataplane::read::now_ns;
use crate::model::Problem;
use crate::net::sysctl;
use crate::net::watch::Watch;
use crate::sources::reread::FileSource;

/// What `vestibule run` is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub config: PathBuf,
    /// Devices by name; empty: by the routes.
    pub devices: Vec<String>,
    /// Where maps, programs and links are pinned.
    pub pins: PathBuf,
}

/// Serves until SIGTERM or SIGINT; what is in the kernel goes on serving after that.
pub fn run(options: &Options) -> Result<(), StartError> {
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options, begun))
}

/// What tells one state of a file from another: length, time of change, and which file it is.
fn stamp(path: &Path) -> Option<(u64, i64, i64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino()))
}

fn around() -> Surroundings {
    Surroundings { local_ports: sysctl::local_port_range(), zone: None }
}

fn log_warnings(path: &Path, problems: &[Problem]) {
    let path = path.display().to_string();
    for problem in problems.iter().take(LOGGED) {
        warn!("{}", problem.in_file(&path));
    }
    if problems.len() > LOGGED {
        warn!("and {} more; `vestibule check {path}` tells all", problems.len() - LOGGED);
    }
}

fn log_errors(path: &Path, problems: &[Problem]) {
    let path = path.display().to_string();
    for problem in problems.iter().take(LOGGED) {
        error!("{}", problem.in_file(&path));
    }
    if problems.len() > LOGGED {
        error!("and {} more; `vestibule check {path}` tells all", problems.len() - LOGGED);
    }
    error!("reload refused; the last good configuration stays in force");
}

async fn serve(options: &Options, begun: Instant) -> Result<(), StartError> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Before the first look, so that no change falls in between.
    let mut watch = Watch::open()?;
    let mut seen = stamp(&options.config);
    let mut source = FileSource::new(&options.config);
    let mut loaded = source.load(&around()).map_err(StartError::Problems)?;
    let choice =
        if options.devices.is_empty() { Choice::Routes } else { Choice::Named(options.devices.clone()) };
    let mut control = Control::start(Pins::new(&options.pins), choice, take(&mut loaded.desired))?;
    log_ready(&control, begun);
    tell(State::Ready);
    log_warnings(&options.config, &loaded.warnings());
    source.settle();
    let mut poll = interval(Duration::from_secs(1));
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = hangup.recv() => {
                seen = stamp(&options.config);
                reload(&mut control, &mut source, &options.config)?;
            }
            _ = poll.tick() => {
                let now = stamp(&options.config);
                // A file that is away for a moment is being replaced.
                if now.is_some() && now != seen {
                    seen = now;
                    reload(&mut control, &mut source, &options.config)?;
                }
            }
            changed = watch.changed() => {
                changed?;
                follow(&mut control)?;
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    tell(State::Stopping);
    info!("ends; programs and connections stay, `vestibule detach` removes them");
    Ok(())
}

fn log_ready(control: &Control, begun: Instant) {
    let desired = control.desired();
    info!(
        listeners = desired.listeners.len(),
        routes = desired.routes.len(),
        devices = control.devices(),
        took_ms = millis(begun.elapsed()),
        "ready"
    );
    if control.devices().is_empty() {
        warn!("no device yet: neither a default route nor a way to a backend");
    }
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

/// Reads the file again. Whatever is wrong with it, what is in force stays; only a failure that leaves us useless
/// comes back.
fn reload(control: &mut Control, source: &mut FileSource, path: &Path) -> Result<(), StartError> {
    let begun = Instant::now();
    tell(State::Reloading { monotonic_us: now_ns() / 1000 });
    let mut loaded = match source.load(&around()) {
        Ok(loaded) => loaded,
        Err(problems) => {
            log_errors(path, &problems);
            tell(State::Ready);
            return Ok(());
        }
    };
    debug!(elapsed = ?begun.elapsed(), "read");
    let outcome = control.reload(Arc::new(take(&mut loaded.desired)), begun);
    tell(State::Ready);
    match outcome {
        Ok(done) => {
            let (in_force_ms, took_ms) = (millis(done.in_force), millis(begun.elapsed()));
            info!(changes = done.changes, in_force_ms, took_ms, "reloaded");
            if loaded.has_warnings() {
                log_warnings(path, &loaded.warnings());
            }
            source.settle();
        }
        Err(fatal @ StartError::Keeper(_)) => return Err(fatal),
        Err(StartError::Problems(mut problems)) => {
            // These came up after the file was read; find the lines of those that have a field in it.
            if let Ok(text) = fs::read_to_string(path) {
                let in_file = problems.iter_mut().filter(|problem| !problem.field.is_empty());
                in_file.for_each(|problem| config::locate(&text, std::slice::from_mut(problem)));
            }
            log_errors(path, &problems);
        }
        Err(refused) => {
            error!("{refused}");
            error!("reload refused or incomplete; what was in force stays");
        }
    }
    Ok(())
}

/// Follows a change of the node's network.
fn follow(control: &mut Control) -> Result<(), StartError> {
    match control.network_changed() {
        Ok(done) if done.changes > 0 => {
            info!(changes = done.changes, devices = control.devices(), "the network changed");
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(fatal @ StartError::Keeper(_)) => Err(fatal),
        Err(error) => {
            error!("{error}");
            Ok(())
        }
    }
}
