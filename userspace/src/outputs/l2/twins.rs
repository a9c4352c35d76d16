//! Devices of this node that are on one segment: both would announce the same addresses, by different link addresses. Pure.
//!
//! A node with several devices sends frames to itself, which no other node takes for anything. If one that was sent on a device is received on
//! another, the device with the lower index announces, and the other one is silent until nothing has arrived for some time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::decide::maglev::mix;

/// Between two frames of a device.
const EVERY: Duration = Duration::from_millis(500);
/// Devices are on one segment for this long after a frame.
const LASTS: Duration = Duration::from_secs(2);

/// What is known of them.
#[derive(Debug)]
pub(super) struct Twins {
    seed: u64,
    /// The number that each device sent last. One that comes later than the next one was copied.
    sent: BTreeMap<u32, u64>,
    next: Option<Instant>,
    /// Silent devices, each with the one that announces, and when that was shown last.
    silent: BTreeMap<u32, (u32, Instant)>,
}

impl Twins {
    /// `seed` makes numbers that nobody guesses.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, sent: BTreeMap::new(), next: None, silent: BTreeMap::new() }
    }

    /// Returns the numbers that these devices are to send now.
    pub(super) fn sends(
        &mut self,
        devices: impl ExactSizeIterator<Item = u32>,
        now: Instant,
    ) -> Vec<(u32, u64)> {
        if devices.len() < 2 {
            (self.next, self.sent) = (None, BTreeMap::new());
            return Vec::new();
        }
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next = Some(now + EVERY);
        let mut number = || {
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(self.seed)
        };
        self.sent = devices.map(|device| (device, number())).collect();
        self.sent.iter().map(|(device, number)| (*device, *number)).collect()
    }

    /// When [`Self::sends`] is to be called, once there are two devices.
    pub(super) fn due(&self) -> Option<Instant> {
        let ends = self.silent.values().map(|(_, shown)| *shown + LASTS);
        self.next.into_iter().chain(ends).min()
    }

    /// A device received a number.
    pub(super) fn received(&mut self, on: u32, number: u64, now: Instant) {
        let sender = self.sent.iter().find(|(device, sent)| **sent == number && **device != on);
        let Some((sender, _)) = sender else { return };
        let (first, second) = (on.min(*sender), on.max(*sender));
        let known = self.silent.get(&second).filter(|(other, shown)| *other < first && now < *shown + LASTS);
        if known.is_none() {
            self.silent.insert(second, (first, now));
        }
    }

    /// Returns the silent devices, each with the one that announces.
    pub(super) fn silent(&mut self, now: Instant) -> BTreeMap<u32, u32> {
        self.silent.retain(|_, (_, shown)| now < *shown + LASTS);
        self.shown()
    }

    /// The same, as of the last call of it.
    pub(super) fn shown(&self) -> BTreeMap<u32, u32> {
        self.silent.iter().map(|(device, (first, _))| (*device, *first)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn of_two_devices_on_one_segment_the_one_with_the_higher_index_is_silent_until_nothing_arrives() {
        for (sender, receiver) in [(0, 7), (1, 3)] {
            let start = Instant::now();
            let mut this = Twins::new(9);
            let sent = this.sends([3, 7].into_iter(), start);
            assert!(sent[0].0 == 3 && sent[1].0 == 7 && sent[0].1 != sent[1].1);
            assert!(this.silent(start).is_empty());
            this.received(receiver, sent[sender].1, start);
            assert_eq!(this.silent(start), [(7, 3)].into());
            assert_eq!(this.silent(after(start, 1_999)), [(7, 3)].into());
            assert!(this.silent(after(start, 2_000)).is_empty());
        }
    }

    #[test]
    fn of_three_the_lowest_announces() {
        let start = Instant::now();
        let mut this = Twins::new(9);
        let sent = this.sends([3, 5, 7].into_iter(), start);
        for (sender, number) in sent {
            [3, 5, 7].into_iter().filter(|on| *on != sender).for_each(|on| this.received(on, number, start));
        }
        assert_eq!(this.silent(start), [(5, 3), (7, 3)].into());
    }

    #[test]
    fn what_comes_back_to_its_device_or_was_copied_shows_nothing() {
        let start = Instant::now();
        let mut this = Twins::new(9);
        let sent = this.sends([3, 7].into_iter(), start);
        this.received(3, sent[0].1, start);
        this.received(7, 12, start);
        assert!(this.sends([3, 7].into_iter(), after(start, 499)).is_empty());
        assert_eq!(this.sends([3, 7].into_iter(), after(start, 500)).len(), 2);
        this.received(7, sent[0].1, after(start, 501));
        assert!(this.silent(after(start, 501)).is_empty());
    }

    #[test]
    fn a_node_with_one_device_sends_nothing() {
        let mut this = Twins::new(9);
        assert!(this.sends([3].into_iter(), Instant::now()).is_empty());
        assert_eq!(this.due(), None);
    }
}
