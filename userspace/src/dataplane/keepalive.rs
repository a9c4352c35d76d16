//! Which flows' ends are asked by a keep-alive probe because neither has sent anything for two and a half hours (RFC 1122
//! section 4.2.3.6): the connection may be over at one of them. A RST that is lost, or that a stranger forged, ends it at one end, and the
//! record would stay until `idleTimeout`.

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, Flow};

use super::trials::is_on_trial;

/// A flow without a packet for this long has its ends asked: no less than the two hours that RFC 1122 asks for,
/// and longer than Linux takes with its own keep-alives, which begin after two hours and end after 11 minutes (`tcp_keepalive_time`,
/// `_intvl`, `_probes`): a connection that has them is not asked.
pub const SILENT_SECS: u32 = 9_000;

/// Flows that are asked for each second since the walk before: all are, in two and a half hours, of 900,000. A question takes two runs of the program, some 10 us each.
const ASKED_A_SECOND: u32 = 100;
/// The most that are asked after one walk: it takes about a tenth of a second.
const ASKED_MAX: u32 = 10_000;
/// Seconds that the first walk of a process counts for.
const FIRST_SECS: u32 = 10;

/// The flows that a walk finds silent. Those that have been so for the longest time are asked: they are never more than a quarter above
/// what is asked, and each takes 168 bytes.
#[derive(Debug, Default)]
pub(super) struct Keepalive {
    /// When the last walk began, monotonic clock in seconds.
    walked_secs: Option<u32>,
    /// The most flows that are asked after this walk.
    most: usize,
    /// Only flows whose last packet was before this are taken up: those that are already are no younger.
    before_secs: u32,
    flows: Vec<(ClientTuple, Flow)>,
}

impl Keepalive {
    /// Begins a walk over all flows. `now`: monotonic clock in seconds.
    pub(super) fn begin(&mut self, now: u32) {
        let secs = self.walked_secs.map_or(FIRST_SECS, |walked| now.saturating_sub(walked));
        self.walked_secs = Some(now);
        self.most = secs.saturating_mul(ASKED_A_SECOND).min(ASKED_MAX) as usize;
        self.before_secs = if self.most == 0 { 0 } else { (now + 1).saturating_sub(SILENT_SECS) };
        self.flows = Vec::new();
    }

    /// Takes a flow up if it has been silent for long enough.
    pub(super) fn note(&mut self, client: &ClientTuple, flow: &Flow) {
        // Nearly all flows end here, of which there may be millions.
        if flow.seen_secs >= self.before_secs {
            return;
        }
        if flow.connection.state != FLOW_ESTABLISHED || is_on_trial(flow) {
            return;
        }
        self.flows.push((*client, *flow));
        if self.flows.len() > self.most + self.most / 4 {
            self.keep_oldest();
        }
    }

    /// Ends the walk: returns the flows whose ends are to be asked.
    pub(super) fn end(&mut self) -> Vec<(ClientTuple, Flow)> {
        if self.flows.len() > self.most {
            self.keep_oldest();
        }
        std::mem::take(&mut self.flows)
    }

    fn keep_oldest(&mut self) {
        let (_, youngest, _) =
            self.flows.select_nth_unstable_by_key(self.most - 1, |(_, flow)| flow.seen_secs);
        self.before_secs = youngest.1.seen_secs;
        self.flows.truncate(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};
    use common::maps::flow::{Connection, FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_CLOSED};

    const NOW: u32 = 1_000_000;

    fn client(number: u32) -> ClientTuple {
        let address = Address::v4(number.to_be_bytes());
        ClientTuple::tcp(address, Address::default(), Port::new(1), Port::new(443))
    }

    /// A flow without a packet since this number of seconds before `NOW`.
    fn flow(silent_secs: u32) -> Flow {
        let connection = Connection { state: FLOW_ESTABLISHED, ..Connection::zeroed() };
        Flow { connection, seen_secs: NOW - silent_secs, ..Flow::zeroed() }
    }

    /// Walks at `now` over flows that have been silent for these seconds at `NOW`; returns those that are asked, the longest silent first.
    fn walk(keepalive: &mut Keepalive, now: u32, silent: impl IntoIterator<Item = u32>) -> Vec<u32> {
        keepalive.begin(now);
        for (number, secs) in (0..).zip(silent) {
            keepalive.note(&client(number), &flow(secs));
            assert!(keepalive.flows.len() <= keepalive.most + keepalive.most / 4);
        }
        let mut asked: Vec<_> = keepalive.end().iter().map(|(_, flow)| NOW - flow.seen_secs).collect();
        asked.sort_unstable_by_key(|secs| u32::MAX - secs);
        asked
    }

    #[test]
    fn ends_are_asked_after_two_and_a_half_hours_of_silence() {
        let silent = [0, 60, 8_999, 9_000, 9_001, 90_000];
        assert_eq!(walk(&mut Keepalive::default(), NOW, silent), [90_000, 9_001, 9_000]);
        assert_eq!(walk(&mut Keepalive::default(), NOW + 1, silent), [90_000, 9_001, 9_000, 8_999]);
        // Soon after the machine started.
        let mut keepalive = Keepalive::default();
        keepalive.begin(8_999);
        keepalive.note(&client(1), &Flow { seen_secs: 0, ..flow(0) });
        assert!(keepalive.end().is_empty());
        keepalive.begin(9_000);
        keepalive.note(&client(1), &Flow { seen_secs: 0, ..flow(0) });
        assert_eq!(keepalive.end().len(), 1);
    }

    #[test]
    fn flows_that_are_over_or_being_asked_are_not_asked() {
        let mut keepalive = Keepalive::default();
        keepalive.begin(NOW);
        for flags in [FLOW_CLIENT_ON_TRIAL, FLOW_BACKEND_ON_TRIAL] {
            let mut on_trial = flow(10_000);
            on_trial.connection.flags = flags;
            keepalive.note(&client(1), &on_trial);
        }
        let mut over = flow(10_000);
        over.connection.state = FLOW_CLOSED;
        keepalive.note(&client(2), &over);
        assert!(keepalive.end().is_empty());
    }

    /// A hundred a second are asked, however far apart walks are, and no more at once than takes a tenth of a second.
    #[test]
    fn of_many_silent_flows_those_silent_for_the_longest_time_are_asked() {
        let mut keepalive = Keepalive::default();
        let silent = || (0..60_000).map(|number| 9_000 + number * 7_919 % 60_000);
        let mut rest = 60_000;
        // The first walk; three that follow each other after 10, 61 and 220 s; one in the same second.
        for (since, most) in [(0, 1_000), (10, 1_000), (71, 6_100), (291, 10_000), (291, 0)] {
            let asked = walk(&mut keepalive, NOW + since, silent().filter(|secs| *secs < 9_000 + rest));
            assert!(asked.iter().copied().eq((0..most).map(|nth| 9_000 + rest - 1 - nth)), "{since}");
            rest -= most;
        }
    }

    /// Ten million flows may all be silent: the walk over them takes two seconds as it is.
    #[test]
    fn of_many_silent_flows_few_are_more_than_compared() {
        for is_oldest_first in [true, false] {
            let mut keepalive = Keepalive::default();
            keepalive.begin(NOW);
            let taken_up = (0..1_000_000).filter(|number: &u32| {
                let scattered = number.wrapping_mul(2_654_435_761) % 500_000;
                let secs = if is_oldest_first { 900_000 - number / 2 } else { 9_000 + scattered };
                let is_taken_up = NOW - secs < keepalive.before_secs;
                keepalive.note(&client(*number), &flow(secs));
                is_taken_up
            });
            let taken_up = taken_up.count();
            assert!((1_000..30_000).contains(&taken_up), "{taken_up}");
        }
    }

    /// In the order in which walks find them, those at the end would never be asked.
    #[test]
    fn each_of_more_silent_flows_than_are_asked_at_once_has_its_turn() {
        let (mut keepalive, mut seen) = (Keepalive::default(), vec![NOW - 10_000; 5_000]);
        for walk in 0..5 {
            let now = NOW + 10 * walk;
            keepalive.begin(now);
            for (number, seen_secs) in (0..).zip(&seen) {
                keepalive.note(&client(number), &Flow { seen_secs: *seen_secs, ..flow(0) });
            }
            // They answer.
            for (asked, _) in keepalive.end() {
                seen[(0..5_000).find(|number| client(*number) == asked).unwrap() as usize] = now;
            }
        }
        assert!(seen.iter().all(|seen_secs| *seen_secs >= NOW), "each within five walks");
    }
}
