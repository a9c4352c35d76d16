//! Flows with a RST on trial: the end that may have accepted it is asked by keep-alive probes. So are both ends of silent ones.
//!
//! An end that aborts sends a RST at the end of its data, which may be ahead of what the other end acknowledged. The
//! other end accepts it only if it has all the data before it, and says nothing when it does. Anybody may send such a
//! RST. So the other end is asked: it answers with a RST if the connection is gone, which ends the flow, and with an
//! acknowledgement if not, which ends the trial.

use std::collections::HashMap;

use common::maps::event::PROBE_FAR;
use common::maps::flow::{
    ClientTuple, Connection, FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ESTABLISHED, FLOW_PROBED, Flow,
};
use common::reason::Reason;

/// Probes without an answer before the flow is ended, one a second, or one in [`PAUSE`].
const PROBES: u32 = 3;

/// Probes that could not be sent and count for nothing: a device or a route may be away for as many seconds.
const UNSENT: u32 = 20;

/// Seconds between the questions to the ends of a flow that was silent for hours: it may last as long again, so an end that cannot be
/// reached for a minute or two loses nothing.
const PAUSE: u32 = 60;

/// Why both ends of a flow are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Bytes or a FIN stay without acknowledgement, whatever packets there were.
    Held,
    /// It is to make room, if it had no packet since it was seen.
    Room,
    /// It has been silent for hours, and had no packet since it was seen.
    Silent,
}

/// The trials known so far.
#[derive(Debug, Default)]
pub(super) struct Trials(HashMap<ClientTuple, Trial>);

/// A flow on trial.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    generation: u32,
    /// Probes sent.
    probes: u32,
    /// Probes that could not be sent.
    unsent: u32,
    /// Whether it is asked because the map is crowded.
    crowded: bool,
    /// Whether it is asked because it was silent for hours, and nothing is pressing.
    unhurried: bool,
    /// Seconds, beyond the one that is due, until the next probe.
    rest: u32,
    /// Whether a second has passed since the RST was seen: what an end sent before it had the RST is no answer.
    due: bool,
}

impl Trial {
    /// Returns it as it is when a probe was sent.
    const fn rested(self) -> Self {
        Self { rest: if self.unhurried { PAUSE - 1 } else { 0 }, ..self }
    }

    /// Returns it as it is a second later.
    const fn later(self) -> Self {
        Self { rest: self.rest.saturating_sub(1), ..self }
    }

    /// Whether the flow may have been answered for, or is asked next. In between nobody looks it up: there may be thousands.
    const fn is_looked_at(&self) -> bool {
        self.rest == 0 || self.rest == PAUSE - 1
    }
}

impl Trials {
    /// Takes a flow up if it is on trial.
    pub(super) fn note(&mut self, client: &ClientTuple, flow: &Flow) {
        if is_on_trial(flow) {
            let generation = flow.connection.generation;
            self.0.entry(*client).or_insert(Trial { generation, ..Trial::default() });
        }
    }

    /// Takes a flow up that was put on trial by a RST just now. One that was asked about hours of silence may rest until its next probe,
    /// though its ends answered, or another connection has its client's port by now: this trial begins at once.
    pub(super) fn reported(&mut self, client: &ClientTuple, flow: &Flow) {
        let Connection { generation, flags, .. } = flow.connection;
        let is_over =
            |trial: &Trial| trial.generation != generation || (trial.unhurried && flags & FLOW_PROBED == 0);
        if self.0.get(client).is_some_and(is_over) {
            self.0.remove(client);
        }
        self.note(client, flow);
    }

    /// Takes up a flow whose ends are being asked for the first time.
    pub(super) fn asked(&mut self, client: &ClientTuple, generation: u32, why: Why) {
        let (crowded, unhurried) = (why == Why::Room, why == Why::Silent);
        let trial = Trial { generation, probes: 1, crowded, unhurried, due: true, ..Trial::default() };
        self.0.insert(*client, trial.rested());
    }

    /// The last probe was not sent: no silence may be counted for it, within limits.
    pub(super) fn not_asked(&mut self, client: &ClientTuple) {
        if let Some(trial) = self.0.get_mut(client).filter(|trial| trial.unsent < UNSENT) {
            trial.unsent += 1;
            trial.rest = 0;
            trial.probes = trial.probes.saturating_sub(1);
        }
    }

    /// Returns the number of flows that were taken up because they may have to make room.
    pub(super) fn crowded(&self) -> usize {
        self.0.values().filter(|trial| trial.crowded).count()
    }

    /// Whether this flow was taken up because it may have to make room, and is still being asked.
    pub(super) fn makes_room(&self, client: &ClientTuple, flow: &Flow) -> bool {
        is_on_trial(flow) && self.0.get(client).is_some_and(|trial| trial.crowded)
    }

    /// Whether this flow is noted.
    pub(super) fn is_noted(&self, client: &ClientTuple, flow: &Flow) -> bool {
        self.0.get(client).is_some_and(|trial| trial.generation == flow.connection.generation)
    }

    /// Returns the clients of the flows noted that [`Trials::next`] looks at.
    pub(super) fn clients(&self) -> Vec<ClientTuple> {
        self.0.iter().filter(|(_, trial)| trial.is_looked_at()).map(|(client, _)| *client).collect()
    }

    /// Returns what is to be done with the flows noted, as they are now: send a probe, or end the flow. Those that are no
    /// longer on trial are forgotten, and those that are here for the first time wait for the next call, a second later. The
    /// number is [`PROBE_FAR`] for the second of three probes.
    pub(super) fn next(&mut self, flows: &[(ClientTuple, Flow)]) -> Vec<(ClientTuple, Flow, Reason, u32)> {
        let before = std::mem::take(&mut self.0);
        let resting = before.iter().filter(|(_, trial)| !trial.is_looked_at());
        self.0.extend(resting.map(|(client, trial)| (*client, trial.later())));
        let mut orders = Vec::with_capacity(flows.len());
        for (client, flow) in flows.iter().filter(|(_, flow)| is_on_trial(flow)) {
            let generation = flow.connection.generation;
            let probed = flow.connection.flags & FLOW_PROBED != 0;
            // A flow without the flag was acquitted since, and is on trial for another RST.
            let same = |trial: &&Trial| probed || trial.probes == 0;
            let known = before.get(client).filter(|trial| trial.generation == generation);
            // One end has answered, and the other one has as much time.
            let unhurried = known.is_some_and(|trial| trial.unhurried);
            let trial = known.filter(same).copied();
            let mut trial = trial.unwrap_or(Trial { generation, unhurried, due: probed, ..Trial::default() });
            if trial.rest > 0 {
                self.0.insert(*client, trial.later());
                continue;
            }
            if !trial.due {
                self.0.insert(*client, Trial { due: true, ..trial });
                continue;
            }
            if trial.probes == PROBES {
                orders.push((*client, *flow, Reason::ExpireTrial, 0));
                continue;
            }
            trial.probes += 1;
            self.0.insert(*client, trial.rested());
            orders.push((*client, *flow, Reason::ExpireProbe, if trial.probes == 2 { PROBE_FAR } else { 0 }));
        }
        orders
    }
}

/// Whether a RST of either end is on trial.
pub(super) fn is_on_trial(flow: &Flow) -> bool {
    let connection = &flow.connection;
    connection.state == FLOW_ESTABLISHED
        && connection.flags & (FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::{Address, Port};

    fn client(port: u16) -> ClientTuple {
        ClientTuple::tcp(Address::v4([192, 0, 2, 1]), Address::default(), Port::new(port), Port::new(443))
    }

    fn flow(generation: u32, flags: u8) -> Flow {
        let connection = Connection { generation, state: FLOW_ESTABLISHED, flags, ..Connection::zeroed() };
        Flow { connection, ..Flow::zeroed() }
    }

    fn reasons(trials: &mut Trials, flows: &[(ClientTuple, Flow)]) -> Vec<Reason> {
        trials.next(flows).into_iter().map(|(_, _, reason, _)| reason).collect()
    }

    #[test]
    fn three_silences_end_a_flow() {
        let mut trials = Trials::default();
        let new = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL))];
        let asked = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_PROBED))];
        assert_eq!(reasons(&mut trials, &new), []);
        assert_eq!(reasons(&mut trials, &new), [Reason::ExpireProbe]);
        assert_eq!(reasons(&mut trials, &asked), [Reason::ExpireProbe]);
        assert_eq!(reasons(&mut trials, &asked), [Reason::ExpireProbe]);
        assert_eq!(reasons(&mut trials, &asked), [Reason::ExpireTrial]);
    }

    /// The first probe went out at once: an acknowledgement that the other end had sent before it received the RST came after
    /// it, and was taken for the answer.
    #[test]
    fn what_was_under_way_when_the_rst_came_is_no_answer() {
        let mut trials = Trials::default();
        let new = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL))];
        trials.note(&client(1), &new[0].1);
        assert_eq!(reasons(&mut trials, &new), [], "noted in the same second");
        assert_eq!(trials.clients(), [client(1)]);
        assert_eq!(reasons(&mut trials, &new), [Reason::ExpireProbe]);
        // A daemon that starts finds one that was asked.
        let asked = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_PROBED))];
        assert_eq!(reasons(&mut Trials::default(), &asked), [Reason::ExpireProbe]);
    }

    #[test]
    fn a_probe_that_was_not_sent_is_no_silence() {
        let mut trials = Trials::default();
        let asked = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_PROBED))];
        for _ in 0..UNSENT {
            assert_eq!(reasons(&mut trials, &asked), [Reason::ExpireProbe]);
            trials.not_asked(&client(1));
        }
        // But not for ever: the host may be gone.
        for _ in 0..3 {
            assert_eq!(reasons(&mut trials, &asked), [Reason::ExpireProbe]);
            trials.not_asked(&client(1));
        }
        assert_eq!(reasons(&mut trials, &asked), [Reason::ExpireTrial]);
    }

    /// One in the middle reaches an end whose numbers are not what we learned; the others pass firewalls that track numbers.
    #[test]
    fn the_second_probe_is_far_behind() {
        let mut trials = Trials::default();
        let asked = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_PROBED))];
        let far = |trials: &mut Trials| trials.next(&asked)[0].3;
        assert_eq!([far(&mut trials), far(&mut trials), far(&mut trials)], [0, PROBE_FAR, 0]);
    }

    /// Three silences in three seconds are those of a link that was cut for a moment: all silent connections behind it would end.
    #[test]
    fn a_flow_that_was_silent_for_hours_is_ended_after_three_minutes() {
        let asked = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL | FLOW_PROBED))];
        // The other end alone is asked, and has as much time, once one has answered.
        let left = [(client(1), flow(7, FLOW_BACKEND_ON_TRIAL))];
        let asked_again = [(client(1), flow(7, FLOW_BACKEND_ON_TRIAL | FLOW_PROBED))];
        for has_answered in [false, true] {
            let mut trials = Trials::default();
            trials.asked(&client(1), 7, Why::Silent);
            let (mut orders, mut looks) = (Vec::new(), 0);
            for second in 1..300 {
                let is_looked_at = !trials.clients().is_empty();
                looks += u32::from(is_looked_at);
                let flows = match (has_answered, second) {
                    (true, 1..=2) => &left,
                    (true, _) => &asked_again,
                    (false, _) => &asked,
                };
                let flows = if is_looked_at { &flows[..] } else { &[] };
                orders.extend(reasons(&mut trials, flows).into_iter().map(|reason| (second, reason)));
                if orders.last().is_some_and(|(_, reason)| *reason == Reason::ExpireTrial) {
                    break;
                }
            }
            let (begun, probes) = if has_answered { (2, 3) } else { (0, 2) };
            let at = |probe: u32| begun + PAUSE * (3 - probes + probe);
            let mut wanted: Vec<_> = (0..probes).map(|probe| (at(probe), Reason::ExpireProbe)).collect();
            wanted.push((at(probes), Reason::ExpireTrial));
            assert_eq!(orders, wanted, "{has_answered}");
            assert!(looks < 10, "{looks}");
        }
    }

    /// A client that aborts is forgotten within a minute.
    #[test]
    fn a_rst_is_asked_about_at_once_though_the_flow_rests_after_another_question() {
        let rst = |generation, flags| [(client(1), flow(generation, FLOW_CLIENT_ON_TRIAL | flags))];
        for generation in [7, 8] {
            let mut trials = Trials::default();
            trials.asked(&client(1), 7, Why::Silent);
            let silent = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL | FLOW_PROBED))];
            assert_eq!(reasons(&mut trials, &silent), []);
            assert_eq!(trials.clients(), [], "it rests");
            // Both ends answer after that, and one sends a RST then, or opens another connection, which it aborts.
            trials.reported(&client(1), &rst(generation, 0)[0].1);
            assert_eq!(trials.clients(), [client(1)]);
            assert_eq!(reasons(&mut trials, &rst(generation, 0)), []);
            for flags in [0, FLOW_PROBED, FLOW_PROBED] {
                assert_eq!(reasons(&mut trials, &rst(generation, flags)), [Reason::ExpireProbe]);
            }
            assert_eq!(reasons(&mut trials, &rst(generation, FLOW_PROBED)), [Reason::ExpireTrial]);
        }
        // It rests on while nobody answers: a RST may put an end on trial that is already.
        let mut trials = Trials::default();
        trials.asked(&client(1), 7, Why::Silent);
        assert_eq!(reasons(&mut trials, &rst(7, FLOW_PROBED)), []);
        trials.reported(&client(1), &rst(7, FLOW_PROBED)[0].1);
        assert_eq!(trials.clients(), []);
    }

    /// The kernel is asked for the link address meanwhile, and has it for less than a minute.
    #[test]
    fn a_question_that_was_not_sent_is_sent_a_second_later() {
        let mut trials = Trials::default();
        trials.asked(&client(1), 7, Why::Silent);
        trials.not_asked(&client(1));
        let asked = [(client(1), flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_PROBED))];
        assert_eq!(reasons(&mut trials, &asked), [Reason::ExpireProbe]);
        assert_eq!(reasons(&mut trials, &asked), []);
    }

    /// A second RST after an answer, or a new connection of the client, is a trial of its own.
    #[test]
    fn each_trial_has_its_own_probes() {
        let mut trials = Trials::default();
        let flows = |generation, flags| [(client(1), flow(generation, FLOW_BACKEND_ON_TRIAL | flags))];
        for _ in 0..3 {
            assert_eq!(reasons(&mut trials, &flows(7, FLOW_PROBED)), [Reason::ExpireProbe]);
        }
        assert_eq!(reasons(&mut trials, &flows(7, 0)), []);
        assert_eq!(reasons(&mut trials, &flows(7, 0)), [Reason::ExpireProbe]);
        for _ in 0..2 {
            assert_eq!(reasons(&mut trials, &flows(7, FLOW_PROBED)), [Reason::ExpireProbe]);
        }
        assert_eq!(reasons(&mut trials, &flows(8, FLOW_PROBED)), [Reason::ExpireProbe]);
        assert_eq!(reasons(&mut trials, &[]), []);
        assert_eq!(reasons(&mut trials, &flows(8, FLOW_PROBED)), [Reason::ExpireProbe]);
    }

    /// A client puts its flow on trial by a RST whenever it likes. Counted as one that goes, none else was evicted for it.
    #[test]
    fn a_flow_on_trial_for_a_rst_makes_no_room() {
        let mut trials = Trials::default();
        trials.note(&client(1), &flow(7, FLOW_CLIENT_ON_TRIAL));
        trials.asked(&client(2), 8, Why::Room);
        trials.asked(&client(3), 9, Why::Held);
        assert_eq!(trials.crowded(), 1);
        let makes_room =
            |port| trials.makes_room(&client(port), &flow(7, FLOW_CLIENT_ON_TRIAL | FLOW_PROBED));
        assert_eq!([1, 2, 3].map(makes_room), [false, true, false]);
        assert!(!trials.makes_room(&client(2), &flow(8, 0)), "it answered");
        let asked = |port, generation| (client(port), flow(generation, FLOW_CLIENT_ON_TRIAL | FLOW_PROBED));
        trials.next(&[asked(1, 7), asked(2, 8), asked(3, 9)]);
        assert_eq!(trials.crowded(), 1, "as long as it is asked");
        trials.next(&[asked(1, 7)]);
        assert_eq!(trials.crowded(), 0);
    }

    #[test]
    fn a_flow_is_noted_until_it_is_acquitted() {
        let mut trials = Trials::default();
        trials.note(&client(1), &flow(7, 0));
        assert_eq!(trials.clients(), []);
        trials.note(&client(1), &flow(7, FLOW_CLIENT_ON_TRIAL));
        assert_eq!(trials.clients(), [client(1)]);
        assert_eq!(reasons(&mut trials, &[(client(1), flow(7, 0))]), []);
        assert_eq!(trials.clients(), []);
    }

    #[test]
    fn only_open_flows_are_on_trial() {
        assert!(is_on_trial(&flow(1, FLOW_CLIENT_ON_TRIAL)));
        assert!(!is_on_trial(&flow(1, FLOW_PROBED)));
        let mut over = flow(1, FLOW_BACKEND_ON_TRIAL);
        over.connection.state = common::maps::flow::FLOW_RESET;
        assert!(!is_on_trial(&over));
    }
}
