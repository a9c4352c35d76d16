//! The keys of the release: what the Secret contains, and when each key changes. Pure: time and random bytes
//! are arguments.
//!
//! Agents accept cookies made with either key and make new ones with the current key. So the spare key is
//! replaced first, and becomes current only after every agent has had time to see it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum time between two looks at the Secret.
const LOOK: Duration = Duration::from_secs(60);
/// How long to wait after a look that failed.
const FAILURE_WAIT: Duration = Duration::from_secs(5);

/// Name of the Secret, in the controller's namespace.
pub const SECRET: &str = "vestibule-keys";

/// What is stale where the keys cannot be kept or followed.
pub(crate) const KEYS: &str = "keys";

/// How often keys change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How long a key is current; it is then still accepted for as long.
    pub rotation: Duration,
    /// How long agents have to see a new spare key before it becomes current.
    pub spread: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { rotation: Duration::from_secs(24 * 3600), spread: Duration::from_secs(600) }
    }
}

impl Schedule {
    /// How long a key must be accepted after its last cookie: a cookie is valid for 68 to 137 s.
    pub const LEAST: Duration = Duration::from_secs(137);
}

/// SipHash keys for cookies.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// 16 random bytes each.
    pub cookies: [[u8; 16]; 2],
    /// Index of the key that makes new cookies: 0 or 1.
    pub current: usize,
    /// When the current key became current, in seconds since 1970 by the clock of the leader at that time.
    pub rotated_at: u64,
    /// Whether the spare key is newer than the current one, and so becomes current next.
    pub is_spare_new: bool,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys must not appear in any log.
        f.debug_struct("Keys").field("current", &self.current).field("rotated_at", &self.rotated_at).finish()
    }
}

const COOKIES: [&str; 2] = ["cookie-0", "cookie-1"];
const CURRENT: &str = "current";
const ROTATED_AT: &str = "rotated-at";
const SPARE: &str = "spare";

impl Keys {
    /// Makes new keys.
    pub(super) fn new(now: u64, mut random: impl FnMut() -> [u8; 16]) -> Self {
        Self { cookies: [random(), random()], current: 0, rotated_at: now, is_spare_new: false }
    }

    /// Reads the keys from the Secret's data, already base64-decoded; `None`: a controller did not write it.
    pub fn read<'a>(data: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Self> {
        let cookie = |name| <[u8; 16]>::try_from(data(name)?).ok();
        let text = |name| std::str::from_utf8(data(name)?).ok();
        Some(Self {
            cookies: [cookie(COOKIES[0])?, cookie(COOKIES[1])?],
            current: match text(CURRENT)? {
                "0" => 0,
                "1" => 1,
                _ => return None,
            },
            rotated_at: text(ROTATED_AT)?.parse().ok()?,
            is_spare_new: text(SPARE) == Some("new"),
        })
    }

    /// Returns the Secret's data, not base64-encoded.
    pub fn data(&self) -> BTreeMap<&'static str, Vec<u8>> {
        let spare = if self.is_spare_new { "new" } else { "old" };
        BTreeMap::from([
            (COOKIES[0], self.cookies[0].to_vec()),
            (COOKIES[1], self.cookies[1].to_vec()),
            (CURRENT, self.current.to_string().into_bytes()),
            (ROTATED_AT, self.rotated_at.to_string().into_bytes()),
            (SPARE, spare.into()),
        ])
    }

    /// Returns what the keys should be now; `None`: unchanged. `known` is how long this controller has known
    /// the spare key.
    pub(super) fn next(
        &self,
        schedule: Schedule,
        now: u64,
        known: Duration,
        random: impl FnOnce() -> [u8; 16],
    ) -> Option<Self> {
        let mut next = self.clone();
        let spare = 1 - self.current;
        if self.is_spare_new {
            if known < schedule.spread {
                return None;
            }
            next.current = spare;
            next.rotated_at = now;
            next.is_spare_new = false;
            return Some(next);
        }
        let rotation = schedule.rotation.as_secs();
        // A clock that was days ahead at the last rotation must not keep a key current for ever.
        if self.rotated_at > now.saturating_add(rotation) {
            next.rotated_at = now;
            return Some(next);
        }
        if now < self.rotated_at.saturating_add(rotation) {
            return None;
        }
        next.cookies[spare] = random();
        next.is_spare_new = true;
        Some(next)
    }
}

/// The new spare key that agents need time to see, and since when this process has known it.
pub(super) type Spare = Option<([u8; 16], Instant)>;

/// Returns the keys to write in place of those that were read, if any (`None`: there are none), and what is known of the spare key until
/// they are written. `now` is the time of day, `at` the same time.
pub(super) fn change(
    read: Option<&Keys>,
    schedule: Schedule,
    spare: Spare,
    (now, at): (u64, Instant),
    random: impl FnMut() -> [u8; 16],
) -> (Option<Keys>, Spare) {
    let Some(keys) = read else { return (Some(Keys::new(now, random)), None) };
    let key = keys.cookies[1 - keys.current];
    let known = spare.filter(|(other, _)| *other == key && keys.is_spare_new);
    let (_, since) = known.unwrap_or((key, at));
    let spare = keys.is_spare_new.then_some((key, since));
    (keys.next(schedule, now, at.saturating_duration_since(since), random), spare)
}

/// Returns what is known of the spare key of keys that were written.
pub(super) fn written(keys: &Keys, at: Instant) -> Spare {
    keys.is_spare_new.then(|| (keys.cookies[1 - keys.current], at))
}

/// When the Secret is looked at: one look at a time, and no other request delays it.
#[derive(Debug)]
pub(super) struct Looks {
    pause: Duration,
    is_in_flight: bool,
    /// `None`: at once.
    due: Option<Instant>,
    spare: Spare,
    /// Why the last look failed.
    trouble: Option<String>,
}

impl Looks {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self {
            pause: LOOK.min(schedule.spread / 2),
            is_in_flight: false,
            due: None,
            spare: None,
            trouble: None,
        }
    }

    /// Begins or ceases to lead: another controller may have changed the keys.
    pub(super) fn lead(&mut self) {
        (self.due, self.spare, self.trouble) = (None, None, None);
    }

    /// Begins a look if one is due, with what is known of the spare key; otherwise, when to ask again.
    pub(super) fn next(&mut self, now: Instant) -> Result<Spare, Option<Instant>> {
        match self.due {
            _ if self.is_in_flight => Err(None),
            Some(due) if now < due => Err(Some(due)),
            _ => {
                (self.is_in_flight, self.due) = (true, Some(now + self.pause));
                Ok(self.spare)
            }
        }
    }

    /// A look has ended; `Err`: it failed, and why.
    pub(super) fn ended(&mut self, kept: Result<Spare, String>, now: Instant) {
        self.is_in_flight = false;
        match kept {
            Ok(spare) => (self.spare, self.trouble) = (spare, None),
            Err(why) => (self.due, self.trouble) = (Some(now + FAILURE_WAIT), Some(why)),
        }
    }

    /// Why the keys cannot be kept.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Schedule =
        Schedule { rotation: Duration::from_secs(24 * 3600), spread: Duration::from_secs(600) };

    fn keys() -> Keys {
        let mut byte = 0;
        Keys::new(1000, || {
            byte += 1;
            [byte; 16]
        })
    }

    fn read(data: &BTreeMap<&'static str, Vec<u8>>) -> Option<Keys> {
        Keys::read(|name| data.get(name).map(Vec::as_slice))
    }

    #[test]
    fn what_is_written_is_read() {
        let keys = keys();
        assert_ne!(keys.cookies[0], keys.cookies[1]);
        assert_eq!(read(&keys.data()), Some(keys.clone()));
        for name in ["cookie-0", "cookie-1", "current", "rotated-at"] {
            for garbage in [None, Some(b"garbage".to_vec()), Some(vec![0xff; 16])] {
                let mut data = keys.data();
                data.remove(name);
                data.extend(garbage.map(|garbage| (name, garbage)));
                let is_key = name.starts_with("cookie") && data.get(name).is_some_and(|v| v.len() == 16);
                assert_eq!(read(&data).is_some(), is_key, "{name}: {data:?}");
            }
        }
    }

    #[test]
    fn the_spare_key_is_replaced_and_only_later_made_current() {
        let first = keys();
        let day = EVERY.rotation.as_secs();
        let never = || panic!("no key is made");
        assert_eq!(first.next(EVERY, 1000 + day - 1, Duration::MAX, never), None);
        let second = first.next(EVERY, 1000 + day, Duration::MAX, || [9; 16]).unwrap();
        assert_eq!((second.current, second.cookies), (0, [first.cookies[0], [9; 16]]));
        assert_eq!(read(&second.data()), Some(second.clone()), "a new leader knows it too");
        assert_eq!(second.next(EVERY, 1000 + 2 * day, Duration::from_secs(599), never), None);
        let third = second.next(EVERY, 2000 + day, EVERY.spread, never).unwrap();
        assert_eq!((third.current, third.cookies, third.rotated_at), (1, second.cookies, 2000 + day));
        // The old key is accepted until the next rotation starts.
        assert_eq!(third.next(EVERY, 2000 + day, Duration::MAX, never), None);
        let fourth = third.next(EVERY, 2000 + 2 * day, EVERY.spread, || [8; 16]).unwrap();
        assert_eq!(fourth.cookies, [[8; 16], [9; 16]]);
    }

    #[test]
    fn a_clock_from_the_future_delays_by_a_day_at_most() {
        let ahead = Keys { rotated_at: u64::MAX - 1, ..keys() };
        let corrected = ahead.next(EVERY, 1000, Duration::MAX, || [7; 16]).unwrap();
        assert_eq!(corrected, keys());
        // A clock that was only hours ahead delays the next rotation.
        let hours = Keys { rotated_at: 1000 + 20 * 3600, ..keys() };
        assert_eq!(hours.next(EVERY, 1000, Duration::MAX, || [7; 16]), None);
        let late = Keys { rotated_at: 1000, ..keys() };
        assert!(late.next(EVERY, u64::MAX, Duration::MAX, || [7; 16]).is_some());
    }

    #[test]
    fn a_look_that_failed_is_known_until_one_succeeds_or_another_leads() {
        let (mut looks, now) = (Looks::new(EVERY), Instant::now());
        for ends in [|looks: &mut Looks, now| looks.ended(Ok(None), now), |looks: &mut Looks, _| looks.lead()]
        {
            assert_eq!(looks.trouble(), None);
            looks.ended(Err("403 Forbidden".to_owned()), now);
            assert_eq!(looks.trouble(), Some("403 Forbidden"));
            assert_eq!(looks.next(now), Err(Some(now + FAILURE_WAIT)));
            assert_eq!(looks.next(now + FAILURE_WAIT), Ok(None));
            assert_eq!(looks.trouble(), Some("403 Forbidden"), "until there is an answer");
            ends(&mut looks, now);
        }
        assert_eq!(looks.trouble(), None);
    }

    #[test]
    fn keys_are_in_no_log() {
        let shown = format!("{:?}", keys());
        assert!(!shown.contains("1, 1"), "{shown}");
    }
}
