//! The writer of this node's maps: this process, another one, or none yet.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::handover::{self, Gift, HandoverError, Post, Wish};
use crate::outputs::{PinError, Pins, StartError, Writer};

/// The first and the longest delay between attempts, if the last one failed.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The interval at which a process that handed the maps over checks whether they have no writer any more.
const LOOK: Duration = Duration::from_secs(5);
/// The time limit for the lock to become free after the maps were given.
const FREE: Duration = Duration::from_secs(5);

/// The role of this process with regard to the maps.
pub(super) struct Role {
    /// The pin folder, which has the lock.
    pub pins: Pins,
    /// The folder where the processes of this node that hand over the maps find each other. `None`: the
    /// process ends if it finds another writer at the start, or if the start fails for another reason.
    pub meeting: Option<PathBuf>,
    pub stage: Stage,
    /// The attempts to become the writer.
    pub reader: Reader,
    /// Waits for the maps that were requested from the writer.
    pub asked: JoinSet<Result<(Gift, Writer), TakeError>>,
    /// Waits until the next writer has taken the maps.
    pub given: JoinSet<Result<(), HandoverError>>,
}

/// The stage that this process has reached.
pub(super) enum Stage {
    /// It does not write.
    Reading,
    /// The outputs have been preparing since this time.
    Preparing(Instant),
    /// The writer was asked for the maps.
    Asking(Instant),
    /// It has the right to write. The first order is not answered yet.
    Beginning(Beginning),
    /// It is the writer.
    Writing(Writing),
    /// It no longer writes. The outputs are finishing their last write.
    Releasing(Writer, Option<Wish>),
}

/// The state of a process that does not write.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// Whether it requests the maps. A process that handed them over only waits until they are free.
    pub asks: bool,
    /// The time of the next attempt.
    pub again: Instant,
    /// The delay after an attempt that fails.
    pause: Duration,
}

/// The state of a process that has just acquired the right to write.
pub(super) struct Beginning {
    pub right: Writer,
    /// The previous writer, which waits for the message that the maps were taken.
    pub gift: Option<Gift>,
    pub since: Instant,
}

/// The state of the writer.
pub(super) struct Writing {
    pub right: Writer,
    /// Receives the request of the next writer.
    post: Option<Post>,
}

impl Reader {
    /// A process that has not written yet.
    fn new() -> Self {
        Self { asks: true, again: Instant::now(), pause: RETRY.0 }
    }

    /// A process that handed the maps over.
    pub(super) fn retired() -> Self {
        Self { asks: false, again: Instant::now() + LOOK, pause: RETRY.0 }
    }

    /// Sets the time of the next attempt after one that failed.
    pub(super) fn failed(&mut self) {
        self.again = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(RETRY.1);
    }

    /// Sets the time of the next attempt after one that found another writer.
    pub(super) fn wait(&mut self) {
        self.again = Instant::now() + LOOK;
    }
}

/// Why this process could not become the writer.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeError {
    /// An output failed, or the lock.
    #[error(transparent)]
    Output(#[from] StartError),
    /// The writer does not hand the maps over.
    #[error("who writes the maps does not hand them over: {0}")]
    Handover(#[from] HandoverError),
    /// The writer reported that it gave the maps, but did not release the lock.
    #[error(
        "the maps were given, but another process has the lock of the pin folder, which `vestibule doctor` names; it is tried again"
    )]
    NotFree,
    /// An error about the socket for the next writer.
    #[error("the socket for the next agent: {0}")]
    Post(std::io::Error),
}

/// The result of an attempt to acquire the lock.
pub(super) enum Lock {
    Ours(Writer),
    /// Another process is the writer.
    Taken(PinError),
}

impl Role {
    /// A process that has not written yet.
    pub(super) fn new(pins: Pins, meeting: Option<PathBuf>) -> Self {
        Self {
            pins,
            meeting,
            stage: Stage::Reading,
            reader: Reader::new(),
            asked: JoinSet::new(),
            given: JoinSet::new(),
        }
    }

    /// Returns whether to try to become the writer now.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.stage, Stage::Reading) && Instant::now() >= self.reader.again
    }

    /// Tries to acquire the lock.
    pub(super) fn lock(&self) -> Result<Lock, StartError> {
        match self.pins.lock() {
            Ok(writer) => Ok(Lock::Ours(writer)),
            Err(error @ PinError::Locked(_)) => Ok(Lock::Taken(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Requests the maps from the writer, in a task.
    pub(super) fn ask(&mut self, meeting: &Path) {
        let (pins, meeting) = (self.pins.clone(), meeting.to_owned());
        self.asked.spawn(async move {
            let gift = handover::ask(&meeting).await?;
            Ok((gift, lock_soon(&pins).await?))
        });
    }

    /// Becomes the writer: notifies the previous one, and listens for the next one.
    pub(super) async fn begin(&self, beginning: Beginning) -> Result<Writing, (Writer, TakeError)> {
        let post = match self.meeting.as_deref().map(Post::open).transpose() {
            Ok(post) => post,
            Err(error) => return Err((beginning.right, TakeError::Post(error))),
        };
        if let Some(gift) = beginning.gift {
            gift.taken().await;
        }
        Ok(Writing { right: beginning.right, post })
    }
}

impl Stage {
    /// Waits for a request from the next writer. Cancel safe: no request is lost.
    pub(super) async fn wish(&mut self) -> Wish {
        match self {
            Self::Writing(Writing { post: Some(post), .. }) => post.wish().await,
            _ => pending().await,
        }
    }
}

async fn lock_soon(pins: &Pins) -> Result<Writer, TakeError> {
    let begun = Instant::now();
    loop {
        match pins.lock() {
            Ok(writer) => return Ok(writer),
            Err(PinError::Locked(_)) if begun.elapsed() < FREE => sleep(Duration::from_millis(5)).await,
            Err(PinError::Locked(_)) => return Err(TakeError::NotFree),
            Err(error) => return Err(StartError::from(error).into()),
        }
    }
}
