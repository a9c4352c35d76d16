//! The schedule of probes, and the evaluation of their results. Times are relative to any fixed time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::model::cluster::ProbeSpec;
use crate::model::{Probe, Probes, ServerName};

/// A probe to run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probing {
    /// The backend.
    pub address: SocketAddr,
    /// The kind of probe and its limits.
    pub spec: ProbeSpec,
    /// The server name in a TLS ClientHello.
    pub name: Option<ServerName>,
}

/// All backends that are probed.
#[derive(Clone, Debug)]
pub struct Targets {
    by_address: BTreeMap<SocketAddr, Target>,
    /// Backends without a probe in progress, by the time of the next one.
    queue: BTreeSet<(Duration, SocketAddr)>,
    failing: BTreeSet<SocketAddr>,
    /// State of a xorshift generator. It is only used to spread probes over time.
    random: u64,
}

#[derive(Clone, Debug)]
struct Target {
    spec: ProbeSpec,
    name: Option<ServerName>,
    /// The number of consecutive results that contradict the present state.
    against: u8,
    /// The time of the next probe; `None`: one is in progress.
    due: Option<Duration>,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            by_address: BTreeMap::new(),
            queue: BTreeSet::new(),
            failing: BTreeSet::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Targets {
    /// Sets the backends to probe. New ones are first probed at random times within one interval. Removed
    /// ones are no longer failing.
    pub fn set(&mut self, probes: &Probes, now: Duration) {
        let gone: Vec<SocketAddr> =
            self.by_address.keys().filter(|address| !probes.contains_key(address)).copied().collect();
        for address in gone {
            self.remove(address);
        }
        for (address, probe) in probes {
            self.put(*address, probe, now);
        }
    }

    /// Changes one backend like [`Targets::set`]; `None`: it is no longer probed.
    pub fn change(&mut self, address: SocketAddr, probe: Option<&Probe>, now: Duration) {
        match probe {
            Some(probe) => self.put(address, probe, now),
            None => self.remove(address),
        }
    }

    fn put(&mut self, address: SocketAddr, (spec, name): &Probe, now: Duration) {
        match self.by_address.get_mut(&address) {
            Some(target) if target.spec.kind == spec.kind => {
                target.spec = *spec;
                target.name.clone_from(name);
            }
            Some(_) | None => {
                self.remove(address);
                let due = now + interval(spec).mul_f64(self.share());
                let target = Target { spec: *spec, name: name.clone(), against: 0, due: Some(due) };
                self.by_address.insert(address, target);
                self.queue.insert((due, address));
            }
        }
    }

    fn remove(&mut self, address: SocketAddr) {
        if let Some(due) = self.by_address.remove(&address).and_then(|target| target.due) {
            self.queue.remove(&(due, address));
        }
        self.failing.remove(&address);
    }

    /// Returns a random number from 0 to 1.
    fn share(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Takes at most `most` probes whose time has come. Each is in progress until [`Targets::answered`].
    pub fn take_due(&mut self, now: Duration, most: usize) -> Vec<Probing> {
        let mut probings = Vec::new();
        while probings.len() < most
            && let Some((due, address)) = self.queue.first().copied()
            && due <= now
        {
            self.queue.remove(&(due, address));
            if let Some(target) = self.by_address.get_mut(&address) {
                target.due = None;
                probings.push(Probing { address, spec: target.spec, name: target.name.clone() });
            }
        }
        probings
    }

    /// Returns the time of the next probe.
    pub fn next_due(&self) -> Option<Duration> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Records the result of a probe. `Some(true)`: the backend now fails; `Some(false)`: it no longer does.
    pub fn answered(&mut self, address: SocketAddr, well: bool, now: Duration) -> Option<bool> {
        // The interval, plus or minus a tenth, so that probes do not synchronize.
        let spread = 0.9 + 0.2 * self.share();
        let target = self.by_address.get_mut(&address)?;
        if target.due.is_some() {
            // The result of a probe from before the backend was removed and added again.
            return None;
        }
        let due = now + interval(&target.spec).mul_f64(spread);
        target.due = Some(due);
        self.queue.insert((due, address));
        let fails = self.failing.contains(&address);
        if well != fails {
            target.against = 0;
            return None;
        }
        target.against = target.against.saturating_add(1);
        let needed = if fails { target.spec.successes } else { target.spec.failures };
        if target.against < needed {
            return None;
        }
        target.against = 0;
        if fails {
            self.failing.remove(&address);
        } else {
            self.failing.insert(address);
        }
        Some(!fails)
    }

    /// The failing backends.
    pub fn failing(&self) -> &BTreeSet<SocketAddr> {
        &self.failing
    }
}

fn interval(spec: &ProbeSpec) -> Duration {
    Duration::from_millis(u64::from(spec.interval_ms.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::ProbeKind;

    const SPEC: ProbeSpec =
        ProbeSpec { kind: ProbeKind::Tcp, interval_ms: 1000, timeout_ms: 500, failures: 3, successes: 2 };

    fn address(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 6443))
    }

    fn probes(hosts: &[u8]) -> Probes {
        hosts.iter().map(|host| (address(*host), (SPEC, None))).collect()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Probes the only target and answers. Returns the time of the probe, and the result.
    fn round(targets: &mut Targets, well: bool) -> (Duration, Option<bool>) {
        let due = targets.next_due().unwrap();
        assert_eq!(targets.take_due(due, 9).len(), 1);
        (due, targets.answered(address(1), well, due))
    }

    #[test]
    fn thresholds_count_answers_in_a_row() {
        let mut targets = Targets::default();
        targets.set(&probes(&[1]), ms(0));
        let outcomes: Vec<Option<bool>> = [false, false, true, false, false, false, true, false, true, true]
            .into_iter()
            .map(|well| round(&mut targets, well).1)
            .collect();
        let mut wanted = [None; 10];
        wanted[5] = Some(true);
        wanted[9] = Some(false);
        assert_eq!(outcomes, wanted);
    }

    #[test]
    fn questions_are_spread_and_keep_their_interval() {
        let mut targets = Targets::default();
        targets.set(&probes(&(0..100).collect::<Vec<_>>()), ms(5000));
        let begun: BTreeSet<Duration> = targets.queue.iter().map(|(due, _)| *due).collect();
        assert!(begun.len() > 90, "only {} different times", begun.len());
        assert!(begun.iter().all(|due| (ms(5000)..=ms(6000)).contains(due)));
        targets.set(&probes(&[1]), ms(5000));
        let (first, _) = round(&mut targets, true);
        let next = targets.next_due().unwrap() - first;
        assert!((ms(900)..=ms(1100)).contains(&next), "{next:?}");
    }

    #[test]
    fn no_more_than_asked_for_and_nobody_twice() {
        let mut targets = Targets::default();
        targets.set(&probes(&[1, 2, 3, 4, 5]), ms(0));
        assert_eq!(targets.take_due(ms(0), 9).len(), 0, "not yet");
        let first = targets.take_due(ms(1000), 3);
        let rest = targets.take_due(ms(1000), 9);
        assert_eq!((first.len(), rest.len()), (3, 2));
        assert!(first.iter().all(|probing| !rest.contains(probing)));
        assert_eq!(targets.next_due(), None, "all are being asked");
    }

    #[test]
    fn what_goes_is_forgotten_and_what_stays_is_not() {
        let mut targets = Targets::default();
        targets.set(&probes(&[1]), ms(0));
        for _ in 0..3 {
            round(&mut targets, false);
        }
        assert_eq!(targets.failing(), &[address(1)].into());
        targets.set(&probes(&[1, 2]), ms(9000));
        assert_eq!(targets.failing(), &[address(1)].into());
        targets.change(address(1), None, ms(9000));
        assert!(targets.failing().is_empty());
        targets.change(address(2), Some(&(SPEC, None)), ms(9000));
        assert_eq!(targets.by_address.len(), 1);
        // Its result arrives late.
        assert_eq!(targets.answered(address(1), false, ms(9000)), None);
        assert_eq!(targets.queue.len(), 1);
    }

    #[test]
    fn another_kind_of_probe_begins_anew() {
        let mut targets = Targets::default();
        targets.set(&probes(&[1]), ms(0));
        for _ in 0..3 {
            round(&mut targets, false);
        }
        let tls = ProbeSpec { kind: ProbeKind::Tls, ..SPEC };
        targets.set(&[(address(1), (tls, None))].into(), ms(9000));
        assert!(targets.failing().is_empty());
        let patient = ProbeSpec { failures: 1, ..tls };
        targets.set(&[(address(1), (patient, None))].into(), ms(9000));
        assert_eq!(round(&mut targets, false).1, Some(true), "the new threshold holds at once");
    }
}
