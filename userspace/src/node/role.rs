//! Who writes the maps of this node: this process, another one, or nobody yet.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::handover::{self, Gift, HandoverError, Post, Wish};
use crate::outputs::{PinError, Pins, StartError, Writer};

/// From one try to the next, where the last one failed: first and longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often one who gave the maps away looks whether nobody has them any more.
const LOOK: Duration = Duration::from_secs(5);
/// How long the lock may take to be free once it was given.
const FREE: Duration = Duration::from_secs(5);

/// What this process is to the maps.
pub(super) struct Role {
    /// Where the lock is.
    pub pins: Pins,
    /// Where the processes of this node meet that hand over the maps; `None`: a start that finds another writer, or fails
    /// in any other way, is the end.
    pub meeting: Option<PathBuf>,
    pub stage: Stage,
    /// How it goes about becoming the writer.
    pub reader: Reader,
    /// Waits for the maps that somebody was asked for.
    pub asked: JoinSet<Result<(Gift, Writer), TakeError>>,
    /// Waits until the next one has what it was given.
    pub given: JoinSet<Result<(), HandoverError>>,
}

/// How far it is.
pub(super) enum Stage {
    /// It reads.
    Reading,
    /// Outputs prepare, since then.
    Preparing(Instant),
    /// Who writes was asked for the maps.
    Asking(Instant),
    /// It has the right to write; the first order is not answered.
    Beginning(Beginning),
    /// It writes.
    Writing(Writing),
    /// It writes no more; outputs are ending their last write.
    Releasing(Writer, Option<Wish>),
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

/// One who has just got the right to write.
pub(super) struct Beginning {
    pub right: Writer,
    /// Who gave it waits to hear that it was taken.
    pub gift: Option<Gift>,
    pub since: Instant,
}

/// One who writes.
pub(super) struct Writing {
    pub right: Writer,
    /// Where the next one asks.
    post: Option<Post>,
}

impl Reader {
    /// One that has not written yet.
    fn new() -> Self {
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

/// Why the maps are not ours.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeError {
    /// An output, or the lock.
    #[error(transparent)]
    Output(#[from] StartError),
    /// Who writes does not give.
    #[error("who writes the maps does not hand them over: {0}")]
    Handover(#[from] HandoverError),
    /// It said that it gave, and did not.
    #[error("the maps were given, but the lock is not free")]
    NotFree,
    /// The socket where the next one asks.
    #[error("the socket for the next agent: {0}")]
    Post(std::io::Error),
}

/// What became of a try to get the lock.
pub(super) enum Lock {
    Ours(Writer),
    /// Somebody else writes.
    Taken(PinError),
}

impl Role {
    /// One that has not written yet.
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

    /// Whether it shall try to become the writer now.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.stage, Stage::Reading) && Instant::now() >= self.reader.again
    }

    /// Tries to get the lock.
    pub(super) fn lock(&self) -> Result<Lock, StartError> {
        match self.pins.lock() {
            Ok(writer) => Ok(Lock::Ours(writer)),
            Err(error @ PinError::Locked(_)) => Ok(Lock::Taken(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks who writes for the maps, beside the loop.
    pub(super) fn ask(&mut self, meeting: &Path) {
        let (pins, meeting) = (self.pins.clone(), meeting.to_owned());
        self.asked.spawn(async move {
            let gift = handover::ask(&meeting).await?;
            Ok((gift, lock_soon(&pins).await?))
        });
    }

    /// Writes from now on; tells who gave the maps, and listens for who wants them next.
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
    /// The next one's wish. Nothing is lost when the waiting is given up.
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
