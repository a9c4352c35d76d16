//! Keep-alive probes: asks both ends of a flow, and then again those that did not answer, or ends the flow.

use std::net::IpAddr;

use common::maps::event::{EXPIRE_DONE, EXPIRE_UNRESOLVED, Expiry, PROBE_BOTH, PROBE_HELD};
use common::maps::flow::{ClientTuple, Flow};
use common::reason::Reason;

use super::keepalive::Keepalive;
use super::maps::Maps;
use super::request::{ends, of_flow};
use super::runner::{ExpireError, Runner};
use super::trials::{Trials, Why};

/// Hops that the kernel is to ask for at once. The rest is for the next sweep.
const HOPS_MAX: usize = 256;

/// The flows whose ends are asked.
#[derive(Debug, Default)]
pub(super) struct Probes {
    pub(super) trials: Trials,
    keepalive: Keepalive,
    /// Hosts that were sent nothing, because their link address is not known.
    unresolved: Vec<IpAddr>,
}

impl Probes {
    /// Begins a walk over all flows. `now`: monotonic clock in seconds.
    pub(super) fn begin(&mut self, now: u32) {
        self.keepalive.begin(now);
    }

    /// Takes a flow up that the walk found, if its ends are to be asked.
    pub(super) fn note(&mut self, client: &ClientTuple, flow: &Flow) {
        self.trials.note(client, flow);
        self.keepalive.note(client, flow);
    }

    /// Ends the walk: asks both ends of flows that have been silent.
    pub(super) fn end(&mut self, runner: &Runner) -> Result<(), ExpireError> {
        for (client, flow) in self.silent() {
            self.ask_both(runner, &client, &flow, Why::Silent)?;
        }
        Ok(())
    }

    /// Returns flows that have been silent, but for those that are asked for another reason since they were found.
    fn silent(&mut self) -> Vec<(ClientTuple, Flow)> {
        let mut flows = self.keepalive.end();
        flows.retain(|(client, flow)| !self.trials.is_noted(client, flow));
        flows
    }

    /// Asks both ends of a flow for the first time.
    pub(super) fn ask_both(
        &mut self,
        runner: &Runner,
        client: &ClientTuple,
        flow: &Flow,
        why: Why,
    ) -> Result<(), ExpireError> {
        let seq = if why == Why::Held { PROBE_HELD } else { PROBE_BOTH };
        let generation = flow.connection.generation;
        match runner.request(&Expiry { seq, ..of_flow(client, flow, Reason::ExpireProbe) })? {
            EXPIRE_DONE => self.trials.asked(client, generation, why),
            EXPIRE_UNRESOLVED => {
                // It is marked: it is asked again.
                self.trials.asked(client, generation, why);
                self.trials.not_asked(client);
                self.unresolved.extend(ends(client, flow));
            }
            _ => {}
        }
        Ok(())
    }

    /// Asks the ends of flows on trial, or ends these flows. Run every second. Returns how many were ended.
    pub(super) fn sweep(&mut self, maps: &Maps, runner: &Runner) -> Result<u32, ExpireError> {
        let mut flows = Vec::new();
        for client in self.trials.clients() {
            flows.extend(maps.flows.look_up(&client)?.map(|flow| (client, flow)));
        }
        let mut ended = 0;
        for (client, flow, reason, seq) in self.trials.next(&flows) {
            match runner.request(&Expiry { seq, ..of_flow(&client, &flow, reason) })? {
                EXPIRE_DONE => ended += u32::from(reason == Reason::ExpireTrial),
                EXPIRE_UNRESOLVED => {
                    self.trials.not_asked(&client);
                    self.unresolved.extend(ends(&client, &flow));
                }
                _ => {}
            }
        }
        Ok(ended)
    }

    /// Notes hosts that were sent nothing for the same reason, though it was no probe.
    pub(super) fn note_unresolved(&mut self, host: Option<IpAddr>) {
        self.unresolved.extend(host);
    }

    /// Returns the hosts whose link address the last sweeps missed, and forgets them.
    pub(super) fn take_unresolved(&mut self) -> Vec<IpAddr> {
        let mut addresses = std::mem::take(&mut self.unresolved);
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(HOPS_MAX);
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::flow::{Connection, FLOW_ESTABLISHED};

    /// In a crowded map the longest silent are asked, too. A second question would begin its three probes again, and it would make no room.
    #[test]
    fn a_silent_flow_that_is_asked_to_make_room_is_asked_once() {
        let connection = Connection { state: FLOW_ESTABLISHED, generation: 7, ..Connection::zeroed() };
        let (client, flow) = (ClientTuple::zeroed(), Flow { connection, ..Flow::zeroed() });
        for (generation, silent) in [(7, 0), (6, 1)] {
            let mut probes = Probes::default();
            probes.begin(100_000);
            probes.note(&client, &flow);
            probes.trials.asked(&client, generation, Why::Room);
            assert_eq!(probes.silent().len(), silent, "of connection 7, {generation} is asked");
        }
    }
}
