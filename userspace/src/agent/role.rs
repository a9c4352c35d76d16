//! Who writes the maps: this agent, another one, or nobody yet.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::info;

use super::handover::{self, HandoverError, Post, Wish};
use super::report::Reporter;
use crate::daemon::{Choice, Control, Prepared, StartError};
use crate::dataplane::maps::CookieKeys;
use crate::dataplane::pin::{PinError, Pins, Writer};
use crate::model::{Desired, ObjectRef};

/// From one try to the next, where the last one failed: first and longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often one who gave the maps away looks whether nobody has them any more.
const LOOK: Duration = Duration::from_secs(5);
/// How long the lock may take to be free once it was given.
const FREE: Duration = Duration::from_secs(5);

/// What this agent is to the maps.
pub(super) enum Role {
    /// It reads.
    Reader(Reader),
    /// It writes.
    Writer(Box<Writing>),
}

/// One who does not write.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// Not one who gave the maps away: it asks for them, and does not only wait until they are free.
    pub asks: bool,
    /// When to try next.
    pub again: Instant,
    /// What to wait after a try that fails.
    pause: Duration,
}

impl Reader {
    /// One that has not written yet.
    pub(super) fn new() -> Self {
        Self { asks: true, again: Instant::now(), pause: RETRY.0 }
    }

    /// One that gave the maps away.
    pub(super) fn retired() -> Self {
        Self { asks: false, again: Instant::now() + LOOK, pause: RETRY.0 }
    }

    /// After a try that failed.
    pub(super) fn failed(&mut self) {
        self.again = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(RETRY.1);
    }

    /// After a look that found another writer.
    pub(super) fn wait(&mut self) {
        self.again = Instant::now() + LOOK;
    }
}

/// What a writer has.
pub(super) struct Writing {
    /// The kernel's side.
    pub control: Control,
    /// Where the next agent asks.
    pub post: Post,
    /// Tells the API server; from the first state on that came from there.
    pub reporter: Option<Reporter>,
    /// By object, of what the maps hold.
    pub digests: BTreeMap<ObjectRef, u64>,
    /// Why the maps do not hold what was compiled last.
    pub failed: Option<String>,
    /// Serves the port of `/metrics`.
    pub port: JoinSet<()>,
}

impl Role {
    /// Whether it writes.
    pub(super) fn writing(&mut self) -> Option<&mut Writing> {
        match self {
            Self::Writer(writing) => Some(writing),
            Self::Reader(_) => None,
        }
    }

    /// Another agent's wish. Nothing is lost when the waiting is given up.
    pub(super) async fn wish(&mut self) -> Wish {
        match self {
            Self::Writer(writing) => writing.post.wish().await,
            Self::Reader(_) => std::future::pending().await,
        }
    }
}

impl Writing {
    /// Ends everything that writes; the lock is free when this comes back.
    pub(super) async fn give_up(self) {
        if let Some(reporter) = self.reporter {
            reporter.stop().await;
        }
        let mut port = self.port;
        port.shutdown().await;
        drop(self.control.release());
    }
}

/// Why the maps are not ours.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeError {
    /// The kernel's side.
    #[error(transparent)]
    Kernel(#[from] StartError),
    /// Who writes does not give.
    #[error("who writes the maps does not hand them over: {0}")]
    Handover(#[from] HandoverError),
    /// It said that it gave, and did not.
    #[error("the maps were given, but the lock is not free")]
    NotFree,
    /// The socket where the next agent asks.
    #[error("the socket for the next agent: {0}")]
    Post(std::io::Error),
    /// A thread died.
    #[error("{0}")]
    Died(#[from] tokio::task::JoinError),
}

/// What is needed to take over.
pub(super) struct Taking<'a> {
    /// The maps.
    pub pins: &'a Pins,
    /// Where agents of the node meet.
    pub run: &'a Path,
    /// Devices to serve on.
    pub choice: &'a Choice,
    /// What the maps shall hold at once.
    pub desired: &'a Arc<Desired>,
    /// Keys to sign cookies with; `None`: those in the maps.
    pub keys: Option<&'a CookieKeys>,
    /// Ask the writer, where there is one.
    pub asks: bool,
}

impl Taking<'_> {
    /// Becomes the writer; `None`: somebody else is, and was not to be asked. What takes long is done before anybody is
    /// asked, so that the maps are without a writer for a moment only.
    pub(super) async fn take(self) -> Result<Option<Writing>, TakeError> {
        if !self.asks && matches!(self.pins.lock(), Err(PinError::Locked(_))) {
            return Ok(None);
        }
        let begun = Instant::now();
        let (pins, choice, desired) = (self.pins.clone(), self.choice.clone(), Arc::clone(self.desired));
        let prepared = tokio::task::spawn_blocking(move || Prepared::new(&pins, choice, &desired)).await??;
        let (writer, gift) = match self.pins.lock() {
            Ok(writer) => (writer, None),
            Err(PinError::Locked(_)) if !self.asks => return Ok(None),
            Err(PinError::Locked(_)) => {
                let gift = handover::ask(self.run).await?;
                (self.lock_soon().await?, Some(gift))
            }
            Err(error) => return Err(StartError::from(error).into()),
        };
        let (pins, desired, keys) = (self.pins.clone(), Arc::clone(self.desired), self.keys.cloned());
        let control = tokio::task::spawn_blocking(move || -> Result<Control, StartError> {
            let mut control = Control::begin(&pins, writer, prepared, desired)?;
            if let Some(keys) = keys {
                control.set_cookie_keys(&keys)?;
            }
            Ok(control)
        })
        .await??;
        let post = Post::open(self.run).map_err(TakeError::Post)?;
        let handed_over = gift.is_some();
        if let Some(gift) = gift {
            gift.taken().await;
        }
        info!(handed_over, devices = control.devices(), took = ?begun.elapsed(), "writes the maps of this node");
        Ok(Some(Writing {
            control,
            post,
            reporter: None,
            digests: BTreeMap::new(),
            failed: None,
            port: JoinSet::new(),
        }))
    }

    async fn lock_soon(&self) -> Result<Writer, TakeError> {
        let begun = Instant::now();
        loop {
            match self.pins.lock() {
                Ok(writer) => return Ok(writer),
                Err(PinError::Locked(_)) if begun.elapsed() < FREE => sleep(Duration::from_millis(5)).await,
                Err(PinError::Locked(_)) => return Err(TakeError::NotFree),
                Err(error) => return Err(StartError::from(error).into()),
            }
        }
    }
}
