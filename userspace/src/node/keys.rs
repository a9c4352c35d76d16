//! The cookie keys that all nodes share: a Secret, watched by name, and a copy for boots without the API server.

use std::path::Path;
use std::time::Duration;

use common::maps::settings::CookieKey;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::disk::{self, DiskError};
use crate::controller::keys::{Keys, SECRET};
use crate::outputs::CookieKeys;
use crate::sources::kubernetes::{Event, Sink, Target, Watch};

/// The name of the copy in the state folder.
const FILE: &str = "keys";

/// The first line of the copy.
const HEADING: &str = "vestibule keys 1";

/// The minimum interval between warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Follows the Secret until it is dropped.
#[derive(Debug)]
pub(super) struct KeyWatch {
    keys: watch::Receiver<Option<CookieKeys>>,
    _task: JoinSet<()>,
}

impl KeyWatch {
    /// Starts the watch.
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let (sender, keys) = watch::channel(None);
        let mut task = JoinSet::new();
        let secret = Target::all::<Secret>(Some(namespace)).named(SECRET);
        task.spawn(Watch::new(client.clone(), secret, Reader { keys: sender, warned: None }).run());
        Self { keys, _task: task }
    }

    /// Waits for keys that differ from the previous ones. Cancel safe: no change is lost.
    pub(super) async fn changed(&mut self) -> CookieKeys {
        loop {
            if self.keys.changed().await.is_err() {
                // The task ends only with this object.
                std::future::pending::<()>().await;
            }
            if let Some(keys) = self.keys.borrow_and_update().clone() {
                return keys;
            }
        }
    }
}

/// Passes on the keys that the watch reports.
struct Reader {
    keys: watch::Sender<Option<CookieKeys>>,
    warned: Option<Instant>,
}

impl Sink<Secret> for Reader {
    async fn take(&mut self, event: Event<Secret>) {
        match event {
            Event::Listed(secret) | Event::Put(secret) => match read(&secret) {
                Some(new) => {
                    self.keys.send_if_modified(|before| {
                        let is_new = before.as_ref() != Some(&new);
                        *before = Some(new);
                        is_new
                    });
                }
                None => warn!(secret = SECRET, "holds no keys that a controller wrote; those before stay"),
            },
            // If the Secret is deleted, the keys stay, so that no connection is lost.
            Event::Gone(_) | Event::Unlisted(_) | Event::Begin | Event::Done(_) | Event::Fresh => {}
            Event::Stale(why) => {
                if self.warned.is_none_or(|at| at.elapsed() > WARN_EVERY) {
                    warn!(why, secret = SECRET, "cannot be watched; the keys before stay");
                    self.warned = Some(Instant::now());
                }
            }
        }
    }
}

fn read(secret: &Secret) -> Option<CookieKeys> {
    let data = secret.data.as_ref()?;
    Keys::read(|name| data.get(name).map(|bytes| bytes.0.as_slice())).map(|keys| cookie_keys(&keys))
}

/// Every node reads the bytes in the same order: little-endian.
fn cookie_keys(keys: &Keys) -> CookieKeys {
    CookieKeys { keys: keys.cookies.map(|bytes| cookie_key(&bytes)), current: u32::from(keys.current == 1) }
}

fn cookie_key(bytes: &[u8; 16]) -> CookieKey {
    let whole = u128::from_le_bytes(*bytes);
    CookieKey { k0: whole as u64, k1: (whole >> 64) as u64 }
}

/// Saves a copy.
pub(super) fn save(folder: &Path, keys: &CookieKeys) -> std::io::Result<()> {
    let [first, second] = &keys.keys;
    let content =
        format!("{:016x}{:016x} {:016x}{:016x} {}", first.k1, first.k0, second.k1, second.k0, keys.current);
    disk::write(&folder.join(FILE), HEADING, content.as_bytes())
}

/// Loads the copy.
pub(super) fn load(folder: &Path) -> Result<CookieKeys, DiskError> {
    let content = disk::read(&folder.join(FILE), HEADING)?;
    parse(&content).ok_or(DiskError::Damaged("it holds no keys"))
}

fn parse(content: &[u8]) -> Option<CookieKeys> {
    let text = std::str::from_utf8(content).ok()?;
    let words: Vec<&str> = text.split(' ').collect();
    let [first, second, current] = words[..] else { return None };
    let key = |word: &str| {
        let whole = u128::from_str_radix(word, 16).ok()?;
        (word.len() == 32).then_some(CookieKey { k0: whole as u64, k1: (whole >> 64) as u64 })
    };
    let current = current.parse().ok().filter(|current| *current < 2)?;
    Some(CookieKeys { keys: [key(first)?, key(second)?], current })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn secret(current: &str) -> Secret {
        let entry = |name: &str, bytes: Vec<u8>| (name.to_owned(), ByteString(bytes));
        let data = [
            entry("cookie-0", (0..16).collect()),
            entry("cookie-1", vec![0xff; 16]),
            entry("current", current.into()),
            entry("rotated-at", b"1000".to_vec()),
        ];
        Secret { data: Some(data.into()), ..Secret::default() }
    }

    #[test]
    fn a_secret_gives_both_keys_and_which_one_signs() {
        let keys = read(&secret("1")).unwrap();
        assert_eq!((keys.keys[0].k0, keys.keys[0].k1), (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908));
        assert_eq!((keys.keys[1].k0, keys.current), (u64::MAX, 1));
        assert_eq!(read(&secret("2")), None);
        assert_eq!(read(&Secret::default()), None);
        assert!(!format!("{keys:?}").contains("706"), "keys are in no log: {keys:?}");
    }

    #[test]
    fn the_copy_is_what_was_kept() {
        let folder = std::env::temp_dir().join(format!("vestibule-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(matches!(load(&folder), Err(DiskError::Missing)));
        let keys = read(&secret("1")).unwrap();
        save(&folder, &keys).unwrap();
        assert_eq!(load(&folder).unwrap(), keys);
        for wrong in ["", "1 2 0", &format!("{} {} 2", "0".repeat(32), "0".repeat(32))] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
