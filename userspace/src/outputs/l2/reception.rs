//! Whether anything is received from a segment: a node that is cut off must not take over addresses of nodes that only it does not
//! receive anything from. Pure.

use std::time::{Duration, Instant};

/// Without a frame for this long, a device's counter is read, and routers are asked.
const LOOK: Duration = Duration::from_millis(300);
/// Routers are asked this often.
const ASK: Duration = Duration::from_millis(250);
/// Without a frame for this long, a node is cut off.
const SILENCE: Duration = Duration::from_secs(1);

/// What a device received.
#[derive(Debug)]
pub(super) struct Reception {
    /// The device's counter, when it was read last.
    counted: Option<u64>,
    last: Instant,
    asked: Option<Instant>,
}

impl Reception {
    /// That of a device which has just received something, as far as is known.
    pub(super) fn new(now: Instant) -> Self {
        Self { counted: None, last: now, asked: None }
    }

    /// Takes a frame of another host.
    pub(super) fn received(&mut self, now: Instant) {
        self.last = now;
    }

    /// Whether the device's counter is to be read.
    pub(super) fn is_to_be_read(&self, now: Instant) -> bool {
        now.duration_since(self.last) >= LOOK
    }

    /// Takes the number of frames that the device has received; `None`: it cannot be read.
    pub(super) fn read(&mut self, counted: Option<u64>, now: Instant) {
        if let Some((before, after)) = self.counted.zip(counted)
            && after != before
        {
            self.last = now;
        }
        self.counted = counted;
    }

    /// Whether routers are to be asked now: an answer would be received.
    pub(super) fn is_asking(&mut self, now: Instant) -> bool {
        let is_due = self.is_to_be_read(now) && self.asked.is_none_or(|at| now.duration_since(at) >= ASK);
        if is_due {
            self.asked = Some(now);
        }
        is_due
    }

    /// Whether the node is cut off.
    pub(super) fn is_isolated(&self, now: Instant) -> bool {
        now.duration_since(self.last) >= SILENCE
    }
}

/// For how long a node is cut off, as far as turns on time show: one that was stopped has only not looked.
#[derive(Debug, Default)]
pub(super) struct Cut {
    turned: Option<Instant>,
    since: Option<Instant>,
    /// Whether a router has answered: otherwise its silence shows nothing.
    has_router: bool,
}

/// After a turn that comes so late, the time before it does not count.
const LATE: Duration = Duration::from_millis(250);
/// What is announced is withdrawn after so long without a frame, besides [`SILENCE`].
const CUT: Duration = Duration::from_millis(300);
/// The same without a carrier: a link that only negotiates is back before.
const NO_CARRIER: Duration = Duration::from_secs(1);

impl Cut {
    /// A router has answered.
    pub(super) fn answered(&mut self) {
        self.has_router = true;
    }

    /// Takes whether the node is cut off at this turn. Returns whether it is to give up what others may announce.
    pub(super) fn turn(&mut self, is_cut: bool, has_carrier: bool, now: Instant) -> bool {
        let is_late = self.turned.replace(now).is_none_or(|before| now.duration_since(before) > LATE);
        if !is_cut {
            self.since = None;
            return false;
        }
        if is_late {
            self.since = None;
        }
        let since = *self.since.get_or_insert(now);
        let is_shown = !has_carrier || self.has_router;
        is_shown && now.duration_since(since) >= if has_carrier { CUT } else { NO_CARRIER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise an agent that was stopped for a second gave up what its node serves well, and a router that never answered took it.
    #[test]
    fn a_node_is_cut_off_for_as_long_as_turns_on_time_show_it() {
        let start = Instant::now();
        let mut cut = Cut::default();
        let mut turns = |range: std::ops::RangeInclusive<u64>, has_carrier| {
            range
                .step_by(100)
                .map(|millis| cut.turn(true, has_carrier, after(start, millis)))
                .collect::<Vec<_>>()
        };
        assert_eq!(turns(0..=900, true), [false; 10], "no router has answered");
        assert_eq!(turns(5_000..=5_900, false), [false; 10]);
        assert_eq!(turns(6_000..=6_100, false), [true; 2], "no carrier for a second");
        let mut cut = Cut::default();
        cut.answered();
        let mut turn = |is_cut, millis| cut.turn(is_cut, true, after(start, millis));
        assert!(!turn(true, 0) && !turn(true, 200) && turn(true, 300) && turn(true, 400));
        assert!(!turn(true, 2_000), "it was stopped");
        assert!(!turn(true, 2_200) && turn(true, 2_300));
        assert!(!turn(false, 2_400) && !turn(true, 2_500), "a frame came");
    }

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn who_receives_nothing_for_a_second_is_cut_off_until_a_frame_comes() {
        let start = Instant::now();
        let mut this = Reception::new(start);
        assert!(!this.is_to_be_read(after(start, 299)) && this.is_to_be_read(after(start, 300)));
        this.read(Some(7), after(start, 300));
        this.read(Some(7), after(start, 400));
        assert!(!this.is_isolated(after(start, 999)) && this.is_isolated(after(start, 1_000)));
        this.read(Some(8), after(start, 1_100));
        assert!(!this.is_isolated(after(start, 1_100)), "the counter grew");
        assert!(this.is_isolated(after(start, 2_100)));
        this.received(after(start, 2_200));
        assert!(!this.is_isolated(after(start, 2_300)));
    }

    #[test]
    fn a_counter_that_cannot_be_read_shows_nothing() {
        let start = Instant::now();
        let mut this = Reception::new(start);
        for (millis, counted) in [(300, Some(7)), (600, None), (900, Some(8))] {
            this.read(counted, after(start, millis));
        }
        assert!(this.is_isolated(after(start, 1_000)));
    }

    #[test]
    fn routers_are_asked_only_on_a_quiet_segment_and_not_all_the_time() {
        let start = Instant::now();
        let mut this = Reception::new(start);
        let asked = [100, 299, 300, 400, 549, 550, 800].map(|millis| this.is_asking(after(start, millis)));
        assert_eq!(asked, [false, false, true, false, false, true, true]);
    }
}
