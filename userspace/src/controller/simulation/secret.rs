//! The Secret with the keys, and when they change.

use crate::controller::keys::{self, Keys, Schedule, Spare};
use crate::dice::Dice;
use std::time::{Duration, Instant};

/// How often keys change here: several times in each story.
pub(super) const SCHEDULE: Schedule =
    Schedule { rotation: Duration::from_secs(6), spread: Duration::from_secs(2) };
/// The time of day when the cluster begins, in seconds.
const EPOCH: u64 = 1_000_000;

/// The Secret, as the API server has it.
pub(super) struct Secret {
    begun: Instant,
    keys: Keys,
    /// When another key became current.
    pub(super) rotated: Vec<Instant>,
}

impl Secret {
    /// Its keys are made at this time.
    pub(super) fn new(begun: Instant) -> Self {
        Self { begun, keys: Keys::new(EPOCH, || [0; 16]), rotated: vec![begun] }
    }

    /// A controller looks at it, and changes what is to be changed.
    pub(super) fn keep(&mut self, spare: Spare, now: Instant, dice: &mut Dice) -> Spare {
        let clock = EPOCH + (now - self.begun).as_secs();
        let random = || [dice.next().to_le_bytes(), dice.next().to_le_bytes()].concat().try_into().unwrap();
        let (next, spare) = keys::change(Some(&self.keys), SCHEDULE, spare, (clock, now), random);
        let Some(next) = next else { return spare };
        if next.current != self.keys.current {
            self.rotated.push(now);
        }
        self.keys = next;
        keys::written(&self.keys, now)
    }
}
