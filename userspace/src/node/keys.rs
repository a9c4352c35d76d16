//! The cookie keys that all nodes share: a Secret, watched by name, and a copy for boots without the API server.

use std::path::Path;
use std::time::Duration;

use common::maps::settings::CookieKey;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::disk::{self, DiskError};
use crate::controller::keys::{KEYS, Keys, SECRET};
use crate::outputs::CookieKeys;
use crate::sources::kubernetes::{Event, Sink, Stale, Target, Watch};

/// The name of the copy in the state folder.
const FILE: &str = "keys";

/// The first line of the copy.
const HEADING: &str = "vestibule keys 1";

/// After this time without the Secret, which the first leader makes, its absence is reported.
const ABSENT: Duration = Duration::from_secs(60);

/// Follows the Secret until it is dropped.
#[derive(Debug)]
pub(super) struct KeyWatch {
    seen: watch::Receiver<Seen>,
    /// What was returned last.
    returned: (Option<CookieKeys>, Option<Stale>),
    _task: JoinSet<()>,
}

/// A change of the keys, or of whether they can be followed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyNews {
    /// Keys that differ from the previous ones.
    Keys(CookieKeys),
    /// Whether they can be followed; those before stay. `None`: they can.
    Stale(Option<Stale>),
}

impl KeyWatch {
    /// Starts the watch.
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let (reader, mut this) = Self::new();
        let secret = Target::all::<Secret>(Some(namespace)).named(SECRET);
        this._task.spawn(Watch::new(client.clone(), secret, reader).run());
        this
    }

    fn new() -> (Reader, Self) {
        let (sender, seen) = watch::channel(Seen::new(Instant::now()));
        let reader = Reader { seen: sender, is_listed: false };
        (reader, Self { seen, returned: (None, None), _task: JoinSet::new() })
    }

    /// Waits for news. Cancel safe: no change is lost.
    pub(super) async fn next(&mut self) -> KeyNews {
        loop {
            let Seen { keys, unwatched, unread } = self.seen.borrow_and_update().clone();
            if let Some(keys) = keys.filter(|keys| self.returned.0.as_ref() != Some(keys)) {
                self.returned.0 = Some(keys.clone());
                return KeyNews::Keys(keys);
            }
            let (stale, due) = stale(unwatched, unread, Instant::now());
            if stale != self.returned.1 {
                self.returned.1.clone_from(&stale);
                return KeyNews::Stale(stale);
            }
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() {
                    // The task ends only with this object.
                    std::future::pending::<()>().await;
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }
}

/// What the watch reported so far.
#[derive(Clone, Debug)]
struct Seen {
    keys: Option<CookieKeys>,
    /// Since when the Secret cannot be watched, and why.
    unwatched: Option<(Instant, String)>,
    /// Since when no keys can be read from it, and why.
    unread: Option<(Instant, Unread)>,
}

/// Why no keys can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// There is no Secret, or it has not been listed yet.
    Absent,
    /// No controller wrote its content.
    Foreign,
}

impl Seen {
    fn new(now: Instant) -> Self {
        Self { keys: None, unwatched: None, unread: Some((now, Unread::Absent)) }
    }

    fn cannot_read(&mut self, why: Unread) {
        if self.unread.is_none_or(|(_, before)| before != why) {
            self.unread = Some((Instant::now(), why));
        }
    }
}

/// Returns whether and why the keys cannot be followed; if that may change by time alone, when.
fn stale(
    unwatched: Option<(Instant, String)>,
    unread: Option<(Instant, Unread)>,
    now: Instant,
) -> (Option<Stale>, Option<Instant>) {
    let of = |since: Instant, why| Some(Stale { source: KEYS, since: since.into_std(), why });
    match (unwatched, unread) {
        (Some((since, why)), _) => (of(since, why), None),
        (None, Some((since, Unread::Foreign))) => {
            (of(since, format!("Secret {SECRET} holds no keys that a controller wrote")), None)
        }
        (None, Some((since, Unread::Absent))) => match since + ABSENT {
            due if now < due => (None, Some(due)),
            _ => {
                (of(since, format!("there is no Secret {SECRET}, which the leading controller makes")), None)
            }
        },
        (None, None) => (None, None),
    }
}

/// Passes on what the watch reports.
struct Reader {
    seen: watch::Sender<Seen>,
    /// The full list in progress holds the Secret.
    is_listed: bool,
}

impl Sink<Secret> for Reader {
    async fn take(&mut self, event: Event<Secret>) {
        let is_listed = matches!(event, Event::Listed(_))
            || self.is_listed && !matches!(event, Event::Begin | Event::Unlisted(_));
        self.is_listed = is_listed;
        self.seen.send_modify(|seen| match event {
            Event::Listed(secret) | Event::Put(secret) => match read(&secret) {
                Some(new) => (seen.keys, seen.unread) = (Some(new), None),
                None => seen.cannot_read(Unread::Foreign),
            },
            // If the Secret is deleted, the keys stay, so that no connection is lost.
            Event::Gone(_) => seen.cannot_read(Unread::Absent),
            Event::Done(_) if !is_listed => seen.cannot_read(Unread::Absent),
            Event::Begin | Event::Unlisted(_) | Event::Done(_) => {}
            Event::Fresh => seen.unwatched = None,
            Event::Stale(why) => {
                let since = seen.unwatched.take().map_or_else(Instant::now, |(since, _)| since);
                seen.unwatched = Some((since, why));
            }
        });
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

    async fn news(watch: &mut KeyWatch) -> KeyNews {
        tokio::time::timeout(10 * ABSENT, watch.next()).await.expect("news")
    }

    /// Returns what is said next of whether the keys can be followed, and after how many seconds.
    async fn said(watch: &mut KeyWatch) -> (Option<String>, u64) {
        let begun = Instant::now();
        match news(watch).await {
            KeyNews::Stale(stale) => (stale.map(|stale| stale.why), begun.elapsed().as_secs()),
            KeyNews::Keys(keys) => panic!("{keys:?}"),
        }
    }

    async fn is_quiet(watch: &mut KeyWatch) -> bool {
        tokio::time::timeout(10 * ABSENT, watch.next()).await.is_err()
    }

    const NONE: &str = "there is no Secret vestibule-keys, which the leading controller makes";

    #[tokio::test(start_paused = true)]
    async fn keys_that_were_never_seen_are_stale_after_a_minute() {
        let (mut reader, mut watch) = KeyWatch::new();
        assert_eq!(said(&mut watch).await, (Some(NONE.to_owned()), 60));
        // A list without it says no more.
        reader.take(Event::Begin).await;
        reader.take(Event::Done("7".to_owned())).await;
        assert!(is_quiet(&mut watch).await);
        reader.take(Event::Put(secret("1"))).await;
        assert_eq!(news(&mut watch).await, KeyNews::Keys(read(&secret("1")).unwrap()));
        assert_eq!(said(&mut watch).await, (None, 0));
        // The leader makes it again when it looks next.
        reader.take(Event::Gone(secret("1"))).await;
        assert_eq!(said(&mut watch).await, (Some(NONE.to_owned()), 60));
        reader.take(Event::Put(secret("1"))).await;
        assert_eq!(said(&mut watch).await, (None, 0), "the keys are those of before");
        assert!(is_quiet(&mut watch).await);
        for event in [
            Event::Begin,
            Event::Listed(secret("1")),
            Event::Unlisted(secret("1")),
            Event::Done("9".to_owned()),
        ] {
            reader.take(event).await;
        }
        assert_eq!(said(&mut watch).await, (Some(NONE.to_owned()), 60), "it was deleted while it was listed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_cannot_be_watched_or_read_is_stale_until_it_can_be() {
        let (mut reader, mut watch) = KeyWatch::new();
        for event in [Event::Begin, Event::Listed(secret("1")), Event::Done("7".to_owned())] {
            reader.take(event).await;
        }
        assert!(matches!(news(&mut watch).await, KeyNews::Keys(_)));
        assert!(is_quiet(&mut watch).await);
        reader.take(Event::Stale("403 Forbidden".to_owned())).await;
        let KeyNews::Stale(Some(first)) = news(&mut watch).await else { panic!("it says why") };
        assert_eq!((first.source, &*first.why), ("keys", "403 Forbidden"));
        tokio::time::advance(ABSENT).await;
        reader.take(Event::Stale("timeout".to_owned())).await;
        let KeyNews::Stale(Some(second)) = news(&mut watch).await else { panic!("it says why") };
        assert_eq!((second.since, &*second.why), (first.since, "timeout"));
        reader.take(Event::Fresh).await;
        assert_eq!(said(&mut watch).await, (None, 0));
        reader.take(Event::Put(secret("2"))).await;
        let foreign = "Secret vestibule-keys holds no keys that a controller wrote";
        assert_eq!(said(&mut watch).await, (Some(foreign.to_owned()), 0));
        reader.take(Event::Put(secret("0"))).await;
        assert!(matches!(news(&mut watch).await, KeyNews::Keys(_)));
        assert_eq!(said(&mut watch).await, (None, 0));
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
