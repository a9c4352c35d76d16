//! When addresses are announced: three times once this node answers for them, and from time to time after that. Pure: the time is an
//! argument.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::wanted::OnDevice;
use crate::model::L2;

/// When an address is announced, counted from the time at which this node began to answer for it. Once may be lost, and some
/// switches forward nothing for a moment after a link came up.
const TIMES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3)];
/// An address is announced again after this long, unless [`L2::refresh_rate`] allows it only later: hosts and switches forget.
const REFRESH: Duration = Duration::from_secs(60);

/// The announcements of all devices.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    rates: L2,
    devices: BTreeMap<u32, Device>,
}

/// The announcements of one device, whose segment they share.
#[derive(Debug, Default)]
struct Device {
    addresses: BTreeMap<IpAddr, Due>,
    /// The first announcements, by the time at which they are due; the number makes keys unique.
    first: BTreeMap<Key, IpAddr>,
    /// What is announced from time to time, by the time of the next one.
    rest: BTreeMap<Key, IpAddr>,
    /// No frame before this time.
    not_before: Option<Instant>,
    /// No frame of those that refresh before this time.
    refresh_not_before: Option<Instant>,
    /// Number of the next key.
    next: u64,
}

type Key = (Instant, u64);

/// The keys of an address.
#[derive(Debug, Default)]
struct Due {
    first: Vec<Key>,
    rest: Option<Key>,
}

/// Frames of one announcement: ARP has two forms, and some hosts believe only one of them.
pub(super) fn frames(address: IpAddr) -> u32 {
    if address.is_ipv4() { 2 } else { 1 }
}

/// Returns how long a number of frames lasts at this rate, rounded up.
fn lasts(frames: u32, rate: u32) -> Duration {
    let nanoseconds = u64::from(frames) * 1_000_000_000;
    Duration::from_nanos(nanoseconds.div_ceil(rate.max(1).into()))
}

impl Schedule {
    /// Sets how many frames are sent.
    pub(super) fn limit(&mut self, rates: L2) {
        self.rates = rates;
    }

    /// Begins to announce an address.
    pub(super) fn begin(&mut self, (device, address): OnDevice, now: Instant) {
        let device = self.devices.entry(device).or_default();
        device.end(address);
        for after in TIMES {
            let key = device.key(now + after);
            device.first.insert(key, address);
            device.addresses.entry(address).or_default().first.push(key);
        }
        device.refresh(address, now + REFRESH);
    }

    /// Begins to refresh an address that is announced already, with one announcement at once: the last ones may have been lost.
    pub(super) fn adopt(&mut self, (device, address): OnDevice, now: Instant) {
        let device = self.devices.entry(device).or_default();
        device.end(address);
        device.refresh(address, now);
    }

    /// Ends the announcements of an address.
    pub(super) fn end(&mut self, (device, address): OnDevice) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.end(address);
        }
    }

    /// Returns the next announcement that is due, which counts as sent.
    pub(super) fn take(&mut self, now: Instant) -> Option<OnDevice> {
        let rates = self.rates;
        self.devices.retain(|_, device| !device.is_over(now));
        self.devices.iter_mut().find_map(|(index, device)| Some((*index, device.take(rates, now)?)))
    }

    /// Returns when to ask for the next announcement; `None`: there is none.
    pub(super) fn due(&self) -> Option<Instant> {
        self.devices.values().filter_map(Device::due).min()
    }
}

impl Device {
    fn key(&mut self, time: Instant) -> Key {
        self.next += 1;
        (time, self.next)
    }

    fn end(&mut self, address: IpAddr) {
        let Some(due) = self.addresses.remove(&address) else { return };
        due.first.iter().for_each(|key| _ = self.first.remove(key));
        due.rest.iter().for_each(|key| _ = self.rest.remove(key));
    }

    /// Has an address announced at this time, instead of the time before.
    fn refresh(&mut self, address: IpAddr, time: Instant) {
        let key = self.key(time);
        let due = self.addresses.entry(address).or_default();
        if let Some(before) = due.rest.replace(key) {
            self.rest.remove(&before);
        }
        self.rest.insert(key, address);
    }

    fn take(&mut self, rates: L2, now: Instant) -> Option<IpAddr> {
        if self.not_before.is_some_and(|time| now < time) {
            return None;
        }
        if let Some(entry) = self.first.first_entry().filter(|entry| entry.key().0 <= now) {
            let (key, address) = entry.remove_entry();
            if let Some(due) = self.addresses.get_mut(&address) {
                due.first.retain(|other| *other != key);
            }
            self.not_before = Some(now + lasts(frames(address), rates.announce_rate));
            return Some(address);
        }
        if self.refresh_not_before.is_some_and(|time| now < time) {
            return None;
        }
        let (_, address) = self.rest.first_key_value().filter(|((time, _), _)| *time <= now)?;
        let address = *address;
        self.refresh(address, now + REFRESH);
        self.not_before = Some(now + lasts(frames(address), rates.announce_rate));
        self.refresh_not_before = Some(now + lasts(frames(address), rates.refresh_rate));
        Some(address)
    }

    /// Whether nothing is left of it, nor of the rates that it has to keep to.
    fn is_over(&self, now: Instant) -> bool {
        let is_past = |time: Option<Instant>| time.is_none_or(|time| time <= now);
        self.addresses.is_empty() && is_past(self.not_before) && is_past(self.refresh_not_before)
    }

    fn due(&self) -> Option<Instant> {
        let first = self.first.first_key_value().map(|((time, _), _)| *time);
        let rest = self.rest.first_key_value().map(|((time, _), _)| *time);
        let rest = rest.map(|time| self.refresh_not_before.map_or(time, |least| least.max(time)));
        let next = [first, rest].into_iter().flatten().min()?;
        Some(self.not_before.map_or(next, |least| least.max(next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(number: u8) -> IpAddr {
        match number % 2 {
            0 => [192, 0, 2, number].into(),
            _ => [0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()].into(),
        }
    }

    /// Lets time pass until `until`; returns what was announced, and when.
    fn play(schedule: &mut Schedule, now: &mut Instant, until: Instant) -> Vec<(Instant, OnDevice)> {
        let mut sent = Vec::new();
        loop {
            while let Some(on_device) = schedule.take(*now) {
                sent.push((*now, on_device));
            }
            match schedule.due().filter(|due| *due < until) {
                Some(due) => {
                    assert!(due > *now, "what is due now was given");
                    *now = due;
                }
                None => break,
            }
        }
        *now = until;
        sent
    }

    #[test]
    fn an_address_is_announced_at_once_after_one_second_and_after_three() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let mut now = start;
        schedule.begin((2, address(1)), now);
        let sent = play(&mut schedule, &mut now, start + Duration::from_secs(140));
        let seconds: Vec<u64> = sent.iter().map(|(time, _)| (*time - start).as_secs()).collect();
        assert_eq!(seconds, [0, 1, 3, 60, 120]);
    }

    #[test]
    fn what_was_announced_before_is_announced_once_at_the_rate_of_refreshing() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let mut now = start;
        (0..40).for_each(|number| schedule.adopt((2, address(number)), now));
        let sent = play(&mut schedule, &mut now, start + Duration::from_secs(59));
        assert_eq!(sent.len(), 40);
        let last = sent.last().unwrap().0 - start;
        // 60 frames, 10 a second.
        assert!((5_700..6_000).contains(&last.as_millis()), "{last:?}");
    }

    #[test]
    fn a_thousand_addresses_keep_to_both_rates() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let mut now = start;
        for number in 0..=u8::MAX {
            for device in 2..6 {
                schedule.begin((device, address(number)), now);
            }
        }
        let sent = play(&mut schedule, &mut now, start + Duration::from_secs(100));
        let within = |from: u64, to: u64| {
            let times = start + Duration::from_secs(from)..start + Duration::from_secs(to);
            let of_two = sent.iter().filter(|(time, (device, _))| *device == 2 && times.contains(time));
            of_two.map(|(_, (_, address))| frames(*address)).sum::<u32>()
        };
        assert_eq!((0..4).map(|from| within(from, from + 1)).collect::<Vec<_>>(), [384, 384, 0, 384]);
        // 384 frames, 10 a second.
        assert_eq!((within(60, 98), within(98, 99)), (380, 4));
    }

    proptest! {
        /// Whatever begins and ends, no device sends more frames than its rate in any second, nothing is announced that has
        /// ended, and everything else is announced three times.
        #[test]
        fn rates_hold_and_nothing_is_left_out(
            steps in prop::collection::vec((0u8..12, any::<bool>(), 0u64..2_000), 1..60),
            announce_rate in 2u32..20,
        ) {
            let (mut schedule, start) = (Schedule::default(), Instant::now());
            schedule.limit(L2 { announce_rate, refresh_rate: 1 });
            let (mut now, mut begun, mut all) = (start, BTreeMap::new(), Vec::new());
            for (number, begins, pause) in steps {
                let on_device = (u32::from(number) % 3, address(number));
                if begins {
                    schedule.begin(on_device, now);
                    begun.insert(on_device, now);
                } else {
                    schedule.end(on_device);
                    begun.remove(&on_device);
                }
                let until = now + Duration::from_millis(pause);
                let sent = play(&mut schedule, &mut now, until);
                prop_assert!(sent.iter().all(|(_, on_device)| begun.contains_key(on_device)));
                all.extend(sent);
            }
            let until = now + Duration::from_secs(100);
            all.extend(play(&mut schedule, &mut now, until));
            for (on_device, since) in begun {
                let times = all.iter().filter(|(time, other)| *other == on_device && *time >= since);
                prop_assert!(times.count() >= 3, "{on_device:?}");
            }
            for device in 0..3 {
                let sent = all.iter().filter(|(_, (index, _))| *index == device);
                let sent: Vec<_> = sent.map(|(time, (_, address))| (*time, frames(*address))).collect();
                for (time, _) in &sent {
                    let window = sent.iter().filter(|(other, _)| (*time..*time + Duration::from_secs(1)).contains(other));
                    // The last announcement of a second may end in the next one.
                    prop_assert!(window.map(|(_, frames)| frames).sum::<u32>() <= announce_rate + 1);
                }
            }
        }
    }
}
