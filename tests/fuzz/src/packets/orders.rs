//! Orders of the daemon, and their laws: one about what is no longer so changes nothing and sends nothing.

use common::maps::event::{Expiry, PROBE_BOTH, PROBE_FAR, PROBE_HELD};
use common::maps::flow::{
    ClientTuple, FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ESTABLISHED, FLOW_PROBED, FLOW_RESET,
};
use common::reason::Reason;
use tests::packet::{Segment, flag};
use tests::program::{Outcome, verdict};

use super::Run;
use super::decode::{Order, Seen};
use super::flow_laws;
use super::hosts;
use super::map_laws::{self, Held};
use super::packet_laws::{self, Given};

/// What may be ordered, with [`Expiry::seq`] of a probe. The first seven have steps of their own.
const KINDS: [(Reason, u32); 14] = [
    (Reason::ExpireIdle, 0),
    (Reason::ExpireRemoved, 0),
    (Reason::ExpireClosed, 0),
    (Reason::ExpireHello, 0),
    (Reason::HelloEvicted, 0),
    (Reason::ExpireHalfOpen, 0),
    (Reason::ConnectAgain, 0),
    (Reason::ExpireProbe, 0),
    (Reason::ExpireProbe, PROBE_BOTH),
    (Reason::ExpireProbe, PROBE_FAR),
    (Reason::ExpireTrial, 0),
    (Reason::ExpireHeld, 0),
    (Reason::ExpireCrowded, 0),
    (Reason::ExpireProbe, PROBE_HELD),
];

const ON_TRIAL: u8 = FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL;

/// An order that does not say what the daemon saw.
fn about(client: ClientTuple, reason: Reason) -> Expiry {
    // With 1, it would be about all flows that are over.
    let seq = u32::from(reason != Reason::ExpireClosed);
    Expiry { client, seq, reason: reason as u32, generation: 0, seen_secs: 0 }
}

/// Whether it resets what was counted before: the program that evicts a hello counts it, and leaves its client to the daemon.
pub fn resets_what_was_counted(order: Order) -> bool {
    KINDS.get(order.kind).is_some_and(|(reason, _)| *reason == Reason::HelloEvicted)
}

/// Whether the order is one of these.
fn is(order: &Expiry, reasons: &[Reason]) -> bool {
    reasons.iter().any(|reason| order.reason == *reason as u32)
}

impl Held {
    /// Returns the order about the connection as it is.
    pub fn order_now(&self, client: ClientTuple, reason: Reason) -> Option<Expiry> {
        self.order(client, (reason, 0), Seen::Now)
    }

    /// Returns the order as the daemon gives it; `None`: it knows no such connection.
    fn order(&self, client: ClientTuple, (reason, seq): (Reason, u32), seen: Seen) -> Option<Expiry> {
        let order = about(client, reason);
        let flow = self.flows.get(&client);
        let generation = match reason {
            _ if seen == Seen::Nothing => return Some(order),
            Reason::ExpireHello | Reason::HelloEvicted | Reason::ConnectAgain => {
                self.hellos.get(&client)?.connection.generation
            }
            Reason::ExpireHalfOpen => self.half_opens.get(&client)?.connection.generation,
            _ => flow?.connection.generation,
        };
        let before = u32::from(seen == Seen::Before);
        let held = is(&order, &[Reason::ExpireHeld, Reason::ExpireCrowded]);
        let seq = match flow.filter(|_| held) {
            Some(flow) => {
                flow.client.acked.number.wrapping_add(flow.backend.acked.number).wrapping_sub(before)
            }
            None => seq,
        };
        let seen_secs = flow.map_or(0, |flow| flow.seen_secs.wrapping_sub(before));
        let generation = if seen == Seen::Another { generation.wrapping_add(9) } else { generation };
        Some(Expiry { seq, generation, seen_secs, ..order })
    }

    /// Whether the order is about something that is no longer so.
    fn is_over(&self, order: &Expiry, seen: Seen) -> bool {
        use Reason::{ExpireClosed, ExpireCrowded, ExpireHeld, ExpireIdle};
        use Reason::{ExpireProbe, ExpireRemoved, ExpireTrial};
        let Some(flow) = self.flows.get(&order.client) else { return seen == Seen::Another };
        let (state, on_trial) = (flow.connection.state, flow.connection.flags & ON_TRIAL != 0);
        let progressed = seen == Seen::Before && flow.client.acked.number != order.seq;
        let used = seen == Seen::Before;
        let of_flows = [ExpireIdle, ExpireRemoved, ExpireTrial, ExpireHeld, ExpireCrowded, ExpireProbe];
        if seen == Seen::Nothing {
            return is(order, &of_flows) || is(order, &[ExpireClosed]);
        }
        seen == Seen::Another
            || is(order, &[ExpireIdle, ExpireRemoved, ExpireTrial, ExpireHeld, ExpireCrowded])
                && state == FLOW_RESET
            || is(order, &[ExpireIdle]) && used
            || is(order, &[ExpireTrial]) && !on_trial
            || is(order, &[ExpireHeld, ExpireCrowded]) && progressed
            || is(order, &[ExpireProbe])
                && (state != FLOW_ESTABLISHED
                    || !on_trial && order.seq != PROBE_HELD && (used || order.seq != PROBE_BOTH))
            || is(order, &[ExpireClosed]) && state == FLOW_ESTABLISHED
    }

    /// Whether the other has the same connections.
    fn has_as(&self, other: &Self) -> bool {
        self.flows == other.flows && self.hellos == other.hellos && self.half_opens == other.half_opens
    }
}

impl<N: FnMut(usize)> Run<'_, N> {
    /// Returns the order of a step; `None`: the daemon does not know the connection.
    pub(super) fn ordered(&self, connection: usize, order: Order) -> Option<Expiry> {
        let ends = hosts::ends(connection);
        // The daemon learns of connections from the maps, so each was started by a client.
        let spoke = self.known.clients.get(&ends).is_some_and(|client| client.spoke);
        let kind = *KINDS.get(order.kind).filter(|_| spoke)?;
        Held::read(&self.bench.programs).order(hosts::tuple(ends), kind, order.seen)
    }

    /// Gives an order, of which the daemon saw this.
    pub(super) fn give_order(&mut self, order: &Expiry, seen: Seen) {
        let before = Held::read(&self.bench.programs);
        let outcome = self.expire(order);
        let after = Held::read(&self.bench.programs);
        flow_laws::others_stay(&before.flows, &after.flows, &[order.client]);
        flow_laws::taught_nothing(&before.flows, &after.flows, &order.client);
        if before.is_over(order, seen) {
            assert_eq!((outcome.verdict, outcome.emitted.len()), (1, 0), "it is over: {order:?}");
        }
        if outcome.verdict == 1 {
            assert!(before.has_as(&after), "nothing was done, but something changed: {order:?}");
        }
        if is(order, &[Reason::ExpireProbe]) && outcome.verdict == 0 {
            let connection = after.flows[&order.client].connection;
            assert_eq!(connection.state, FLOW_ESTABLISHED, "a probe ends nothing");
            assert!(connection.flags & FLOW_PROBED != 0 && connection.flags & ON_TRIAL != 0);
            for (_, probe) in &outcome.emitted {
                let probe = Segment::parse(probe).expect("a TCP segment");
                assert_eq!((probe.flags, probe.payload.len()), (flag::ACK, 0), "{probe:?}");
            }
        }
    }

    /// The daemon ends a connection, or asks its ends.
    pub(super) fn expire(&mut self, order: &Expiry) -> Outcome {
        let ends = hosts::ends_of_client(&order.client);
        let reason =
            KINDS.iter().find(|(reason, _)| *reason as u32 == order.reason).expect("a kind of order").0;
        let outcome = self.bench.programs.expire(order);
        let moved = outcome.counted.iter().find(|(counted, _)| *counted == reason).map_or(0, |(_, by)| *by);
        match outcome.verdict {
            // A SYN that is sent again is counted as what it turns out to be.
            0 if reason == Reason::ConnectAgain => {}
            0 => assert!(moved > 0 || reason == Reason::HelloEvicted, "{reason:?} is not counted"),
            1 => assert_eq!(outcome.counted, [], "{reason:?}"),
            other => panic!("expire: {other}"),
        }
        assert!(
            reason == Reason::ConnectAgain
                || outcome.counted.iter().all(|(counted, _)| packet_laws::is_event(*counted)),
            "{:?}",
            outcome.counted
        );
        assert_ne!(outcome.verdict, verdict::REDIRECT);
        if reason != Reason::HelloEvicted {
            packet_laws::resets(&outcome.counted, packet_laws::packets(&outcome));
        }
        let given = Given { frame: &[], ends: None, connection: Some(ends) };
        let programs = &self.bench.programs;
        let content = |connection| map_laws::content(programs, hosts::tuple(connection));
        for (_, packet) in &outcome.emitted {
            packet_laws::check(&mut self.known, &given, reason, packet, &content);
        }
        self.look(reason, Some(ends));
        outcome
    }
}
