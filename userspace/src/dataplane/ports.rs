//! Which flows are evicted to a backend whose source ports run short: idle ones whose ends do not answer a probe, and those
//! without progress, as in a crowded map of flows. Otherwise one client that opens as many connections as there are ports, and
//! vanishes, would keep all others from that backend until the time limit.

use std::collections::HashMap;

use common::maps::address::Port;
use common::maps::backend::DELIVERY_DNAT;
use common::maps::flow::{BackendTuple, FLOW_ESTABLISHED, Flow};
use common::maps::settings::Settings;
use foldhash::fast::RandomState;

use super::crowd::{Crowd, Evicted, IDLE_MAX, ended_max};

/// The flows by the address and port of their backend, and our address: these share a range of source ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Source ports towards each.
    ports: u32,
    /// Slots of the ring of closed flows.
    closed: u32,
    /// Flows that keep their ports, as this walk finds them.
    flows: HashMap<BackendTuple, u64, RandomState>,
    /// The flows that may be evicted where the last walk found few ports left.
    crowds: HashMap<BackendTuple, Crowd>,
}

impl Ports {
    /// Begins a walk over all flows.
    pub(super) fn begin(&mut self, settings: &Settings) {
        let last = u32::from(settings.source_port_last);
        self.ports = (last + 1).saturating_sub(settings.source_port_first.into());
        self.closed = settings.closed;
        let crowd = |flows| Crowd::new(flows, self.ports, 0, settings.closed);
        let crowds = self.flows.drain().map(|(backend, flows)| (backend, crowd(flows)));
        let crowds: Vec<_> = crowds.filter(|(_, crowd)| crowd.is_crowded()).collect();
        let count = crowds.len();
        let share = |(backend, crowd): (_, Crowd)| (backend, crowd.one_of(count, settings.closed));
        self.crowds = crowds.into_iter().map(share).collect();
    }

    /// Whether the last walk found few ports left towards a backend: the next one evicts.
    pub(super) fn are_short(&self) -> bool {
        self.flows.values().any(|flows| Crowd::new(*flows, self.ports, 0, self.closed).is_crowded())
    }

    /// Takes a flow up. `is_going`: its ends are being asked, to make room. Returns the crowd that it is to be noted in.
    pub(super) fn note(&mut self, flow: &Flow, is_going: bool) -> Option<&mut Crowd> {
        // What is over keeps its port for some seconds only.
        if flow.connection.state != FLOW_ESTABLISHED || flow.connection.delivery == DELIVERY_DNAT {
            return None;
        }
        let backend = backend(flow);
        *self.flows.entry(backend).or_default() += u64::from(!is_going);
        self.crowds.get_mut(&backend)
    }

    /// Ends a walk: returns the flows that are evicted, without those in `others`. Where this walk found ports again, nobody is evicted.
    pub(super) fn end(&mut self, others: &Evicted) -> Evicted {
        let mut evicted = Evicted::default();
        let stuck_max = ended_max(self.closed).saturating_sub(others.stuck.len());
        for (backend, crowd) in self.crowds.drain() {
            let Some(flows) = self.flows.get_mut(&backend) else { continue };
            let mut first = crowd.now_of(*flows, self.ports).into_first();
            first.stuck.truncate(stuck_max.saturating_sub(evicted.stuck.len()));
            first.idle.truncate(IDLE_MAX.saturating_sub(evicted.idle.len()));
            // From now on they are going, or others would be evicted for them.
            *flows = flows.saturating_sub(first.count() as u64);
            evicted.append(first);
        }
        if evicted.count() > 0 {
            evicted.leave_out(others);
        }
        evicted
    }
}

/// What shares a range of source ports with this flow.
fn backend(flow: &Flow) -> BackendTuple {
    BackendTuple { source_port: Port::default(), ..flow.nat }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::maps::address::Address;
    use common::maps::flow::{ClientTuple, Connection, FLOW_RESET};

    use common::reason::Reason;

    use super::super::held::Stuck;
    use super::super::request::expiry;

    const NOW: u32 = 10_000;
    const SETTINGS: Settings =
        Settings { source_port_first: 1024, source_port_last: 1123, closed: 1_000_000, ..Settings::zeroed() };

    fn client(number: u16) -> ClientTuple {
        ClientTuple::tcp(Address::default(), Address::default(), Port::new(number), Port::new(443))
    }

    /// A flow of a client to this backend.
    fn flow(number: u16, backend: u8, idle_secs: u32) -> (ClientTuple, Flow) {
        let connection = Connection { state: FLOW_ESTABLISHED, ..Connection::zeroed() };
        let (backend, source) = (Address::v4([192, 0, 2, backend]), Address::v4([192, 0, 2, 1]));
        let nat = BackendTuple::tcp(backend, source, Port::new(6443), Port::new(1024 + number));
        (client(number), Flow { connection, nat, seen_secs: NOW - idle_secs, ..Flow::zeroed() })
    }

    /// Walks over the flows; returns the numbers of the clients that are evicted.
    fn walk(ports: &mut Ports, flows: &[(ClientTuple, Flow)], going: &[u16], others: &Evicted) -> Vec<u16> {
        ports.begin(&SETTINGS);
        for (client, flow) in flows {
            if let Some(crowd) = ports.note(flow, going.contains(&client.client_port.number())) {
                crowd.note(client, flow, None, NOW);
            }
        }
        ports.end(others).clients().map(|client| client.client_port.number()).collect()
    }

    #[test]
    fn the_longest_idle_flows_are_evicted_where_a_backend_has_few_ports_left() {
        // Numbers 0 to 9 are busy, the others idle, the later the longer.
        let mut flows: Vec<_> = (0..85)
            .map(|number| flow(number, 10, if number < 10 { 0 } else { 100 + u32::from(number) }))
            .collect();
        flows.extend((200..280).map(|number| flow(number, 11, 1_000)));
        let mut ports = Ports::default();
        assert_eq!(walk(&mut ports, &flows, &[], &Evicted::default()), [0; 0], "the first walk counts");
        assert_eq!(walk(&mut ports, &flows, &[], &Evicted::default()), [84, 83, 82, 81, 80]);
        // Nobody else is evicted while those are being asked.
        assert_eq!(walk(&mut ports, &flows, &[84, 83, 82, 81, 80], &Evicted::default()), [0; 0]);
        assert_eq!(walk(&mut ports, &flows, &[], &Evicted::default()), [0; 0]);
        assert_eq!(walk(&mut ports, &flows, &[], &Evicted::default()).len(), 5, "they answered");
    }

    #[test]
    fn nobody_gives_way_for_those_that_have_gone_since_the_last_walk() {
        let flows: Vec<_> = (0..85).map(|number| flow(number, 10, 100)).collect();
        let mut ports = Ports::default();
        assert_eq!(walk(&mut ports, &flows, &[], &Evicted::default()), [0; 0]);
        assert_eq!(walk(&mut ports, &flows[..40], &[], &Evicted::default()), [0; 0]);
        assert_eq!(walk(&mut ports, &flows[..82], &[], &Evicted::default()), [0; 0]);
        assert_eq!(
            walk(&mut ports, &flows[..81], &[], &Evicted::default()).len(),
            1,
            "two were too many, and one is"
        );
    }

    #[test]
    fn flows_that_are_over_or_use_the_clients_own_port_count_for_nothing() {
        let mut flows: Vec<_> = (0..85).map(|number| flow(number, 10, 1_000)).collect();
        flows[0].1.connection.state = FLOW_RESET;
        for (_, flow) in &mut flows[1..5] {
            flow.connection.delivery = DELIVERY_DNAT;
        }
        let mut ports = Ports::default();
        for _ in 0..3 {
            assert_eq!(walk(&mut ports, &flows, &[], &Evicted::default()), [0; 0]);
        }
    }

    #[test]
    fn a_flow_that_is_evicted_anyway_is_not_evicted_twice() {
        let flows: Vec<_> = (0..81).map(|number| flow(number, 10, 100 + u32::from(number))).collect();
        let mut crowd = Crowd::new(81, 100, 0, SETTINGS.closed);
        crowd.note(&flows[80].0, &flows[80].1, None, NOW);
        let others = crowd.into_first();
        let mut ports = Ports::default();
        walk(&mut ports, &flows, &[], &Evicted::default());
        assert_eq!(walk(&mut ports, &flows, &[], &others), [0; 0]);
        walk(&mut ports, &flows, &[], &Evicted::default());
        assert_eq!(walk(&mut ports, &flows, &[], &Evicted::default()), [80]);
    }

    /// A client that holds the ports of some backends had to be asked about nothing, and yet no more than 10,000 went with a walk.
    #[test]
    fn all_that_are_too_many_are_ended_at_once_where_nobody_has_to_be_asked() {
        const PORTS: u16 = 28_976;
        let mut settings = Settings { source_port_first: 1024, source_port_last: 1023 + PORTS, ..SETTINGS };
        let walk = |ports: &mut Ports, settings: &Settings, stuck, others: &Evicted| {
            ports.begin(settings);
            for (backend, number) in (10..13).flat_map(|backend| (0..PORTS).map(move |n| (backend, n))) {
                let (client, flow) = flow(number, backend, 100);
                if let Some(crowd) = ports.note(&flow, false) {
                    crowd.note(&client, &flow, stuck, NOW);
                }
            }
            let evicted = ports.end(others);
            (evicted.stuck.len(), evicted.idle.len())
        };
        let excess = 3 * (usize::from(PORTS) - usize::from(PORTS) * 4 / 5);
        let (mut ports, none) = (Ports::default(), Evicted::default());
        let silent = Some((Stuck::Silent, 5));
        assert_eq!(walk(&mut ports, &settings, None, &none), (0, 0), "the first walk counts");
        assert_eq!(walk(&mut ports, &settings, silent, &none), (excess, 0));
        walk(&mut ports, &settings, None, &none);
        let idle = IDLE_MAX / 3 * 3;
        assert_eq!(walk(&mut ports, &settings, None, &none), (0, idle), "each costs a probe to both ends");
        // The records of other connections that are closed stay.
        settings.closed = 1_800;
        walk(&mut ports, &settings, None, &none);
        assert_eq!(walk(&mut ports, &settings, silent, &none), (900, 0), "half of the ring");
        walk(&mut ports, &settings, None, &none);
        let others =
            Evicted { stuck: vec![expiry(&client(0), Reason::ExpireCrowded); 800], idle: Vec::new() };
        assert_eq!(walk(&mut ports, &settings, silent, &others).0, 100, "with what the map evicts");
    }
}
