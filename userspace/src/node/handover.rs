//! Hands the maps over from one agent to the next. They use a socket that both find in the run folder.
//!
//! ```text
//! next ── "give" ─────────► writer      the next one has compiled its state and loaded its programs
//!      ◄───────── "given" ──            the writer has finished its last write and released the lock
//! next ── "taken" ────────► reader      the next one has the lock and has written
//! ```
//!
//! If the connection ends before `taken`, the previous writer takes the maps back.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use crate::admin::bind_socket;

/// The name of the socket in the run folder.
const SOCKET: &str = "writer.sock";

/// The time limit for a writer to finish its last write.
const GIVE: Duration = Duration::from_secs(15);

/// The time limit for the next writer from the lock to its first write. After that the previous writer may
/// take the maps back.
const TAKE: Duration = Duration::from_secs(30);

/// Why the maps were not handed over.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandoverError {
    /// No agent listens, or the connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// There was no answer in time.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// An unexpected answer.
    #[error("an answer of another version: {0:?}")]
    Unknown(String),
}

/// One end of a connection.
struct Line {
    stream: BufReader<UnixStream>,
}

impl Line {
    async fn say(&mut self, word: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(format!("{word}\n").as_bytes()).await
    }

    async fn expect(&mut self, word: &str, limit: Duration) -> Result<(), HandoverError> {
        let mut line = String::new();
        let read = timeout(limit, self.stream.read_line(&mut line)).await;
        match read.map_err(|_| HandoverError::Silent(limit))?? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ if line.trim_end() == word => Ok(()),
            _ => Err(HandoverError::Unknown(line)),
        }
    }
}

/// A request for the maps from another agent. The writer answers with [`Wish::given`].
pub(super) struct Wish {
    line: Line,
}

impl Wish {
    /// Reports that the lock is free, and waits until the other agent has taken it. `Err`: it has not, and
    /// will not.
    pub(super) async fn given(mut self) -> Result<(), HandoverError> {
        self.line.say("given").await?;
        self.line.expect("taken", TAKE).await
    }
}

/// The writer's end. Listens for requests until it is dropped.
#[derive(Debug)]
pub(super) struct Post {
    wishes: mpsc::Receiver<Wish>,
    _task: JoinSet<()>,
}

impl Post {
    /// Listens on the socket, replacing the previous listener.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let listener = bind_socket(&path(folder))?;
        let (sender, wishes) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        // One at a time; a second one waits in the socket's queue.
                        if let Err(error) = hear(stream, &sender).await {
                            warn!(%error, "a request for the maps cannot be received");
                        }
                    }
                    Err(error) => {
                        warn!(%error, "nobody can ask for the maps");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        });
        Ok(Self { wishes, _task: task })
    }

    /// Waits for the next request. Cancel safe: no request is lost.
    pub(super) async fn wish(&mut self) -> Wish {
        match self.wishes.recv().await {
            Some(wish) => wish,
            // The task ends only with this object.
            None => std::future::pending().await,
        }
    }
}

async fn hear(stream: UnixStream, wishes: &mpsc::Sender<Wish>) -> Result<(), HandoverError> {
    let uid = stream.peer_cred()?.uid();
    if uid != own_uid()? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {uid} asks")).into());
    }
    let mut line = Line { stream: BufReader::new(stream) };
    line.expect("give", Duration::from_secs(1)).await?;
    // The channel is full: another agent is already being given the maps.
    wishes.try_send(Wish { line }).map_err(|_| io::Error::from(io::ErrorKind::WouldBlock).into())
}

/// Returns the user id of this process: root, except in tests.
fn own_uid() -> io::Result<u32> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata("/proc/self")?.uid())
}

/// The answer that the maps were given to us: the lock is free.
pub(super) struct Gift {
    line: Line,
}

impl Gift {
    /// Notifies the agent that gave the maps: this process is the writer now.
    pub(super) async fn taken(mut self) {
        if let Err(error) = self.line.say("taken").await {
            // It has ended, so it does not wait for this message.
            tracing::debug!(%error, "who gave the maps is gone");
        }
    }
}

/// Requests the maps from the writer.
pub(super) async fn ask(folder: &Path) -> Result<Gift, HandoverError> {
    let stream = UnixStream::connect(path(folder)).await?;
    let mut line = Line { stream: BufReader::new(stream) };
    line.say("give").await?;
    line.expect("given", GIVE).await?;
    Ok(Gift { line })
}

fn path(folder: &Path) -> PathBuf {
    folder.join(SOCKET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::{PinError, Pins};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vestibule-handover-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn block_on(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn the_lock_changes_hands_and_is_never_held_by_two() {
        let folder = folder("hands");
        block_on(async {
            let pins = Pins::new(&folder);
            let writer = pins.lock().unwrap();
            let mut post = Post::open(&folder).unwrap();
            let given = async {
                let wish = post.wish().await;
                drop(writer);
                wish.given().await.unwrap();
            };
            let taken = async {
                assert!(matches!(pins.lock(), Err(PinError::Locked(_))));
                let gift = ask(&folder).await.unwrap();
                let writer = pins.lock().unwrap();
                // The next one listens before the previous one is gone.
                let post = Post::open(&folder).unwrap();
                gift.taken().await;
                (writer, post)
            };
            let ((), (writer, mut second)) = tokio::join!(given, taken);
            drop(post);
            // The new writer can be asked in turn.
            let gift = tokio::spawn({
                let folder = folder.clone();
                async move { ask(&folder).await }
            });
            let wish = second.wish().await;
            drop(writer);
            let answered = tokio::spawn(wish.given());
            gift.await.unwrap().unwrap().taken().await;
            answered.await.unwrap().unwrap();
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn who_gave_learns_that_the_next_one_died() {
        let folder = folder("died");
        block_on(async {
            let mut post = Post::open(&folder).unwrap();
            let gone = async {
                drop(ask(&folder).await.unwrap());
            };
            let (wish, ()) = tokio::join!(async { post.wish().await.given().await }, gone);
            assert!(matches!(wish, Err(HandoverError::Io(_))));
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nobody_there_and_strange_words_are_errors() {
        let folder = folder("nobody");
        block_on(async {
            assert!(matches!(ask(&folder).await, Err(HandoverError::Io(_))));
            let post = Post::open(&folder).unwrap();
            let mut stream = UnixStream::connect(path(&folder)).await.unwrap();
            stream.write_all(b"hello\n").await.unwrap();
            // The connection is closed, and the next one is accepted.
            let mut stream = BufReader::new(stream);
            assert_eq!(stream.read_line(&mut String::new()).await.unwrap(), 0);
            drop(post);
            // The socket file is left over.
            assert!(matches!(ask(&folder).await, Err(HandoverError::Io(_))));
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
