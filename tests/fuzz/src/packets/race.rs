//! Two steps at the same moment, on two CPUs: whatever happens first, the maps keep to their laws, and each packet leaves for
//! one reason.

use std::collections::BTreeMap;

use common::maps::flow::{BackendTuple, ClientTuple};
use common::reason::Reason;
use tests::at_once::{BothDone, Given};
use tests::packet::{Segment, flag};
use tests::program::{order_frame, verdict};
use tests::tuple::backend_tuple;
use tests::world::Device;

use super::decode::Step;
use super::hosts::Ends;
use super::known::{Backend, addresses};
use super::map_laws::Held;
use super::race_laws::{self, Race};
use super::{Run, built, flow_laws, hosts, mangled, map_laws, orders, packet_laws, runs};

/// Steps of the busy loop for each unit by which one packet is later than the other: some 127 of them are a few
/// microseconds, about as long as a packet takes.
const DELAY: u32 = 20;

impl<N: FnMut(usize)> Run<'_, N> {
    /// Runs both steps at the same moment. A step that gives no packet is left out.
    pub(super) fn at_once(&mut self, both: &[Step; 2], later: i8) {
        let counted_before =
            |step: &Step| matches!(step, Step::Expire(_, order) if orders::resets_what_was_counted(*order));
        let counted_before = both.iter().any(counted_before);
        let [Some((first, one)), Some((second, other))] = [self.packet(&both[0]), self.packet(&both[1])]
        else {
            return;
        };
        let delay = u32::from(later.unsigned_abs()) * DELAY;
        let delays = if later < 0 { [0, delay] } else { [delay, 0] };
        let [first, second] =
            [(first, delays[0]), (second, delays[1])].map(|(given, delay)| Given { delay, ..given });
        let both = [first, second];
        let parties: Vec<Ends> = [one, other].into_iter().flatten().collect();
        let before = self.contents(&parties);
        let flows = Held::read(&self.bench.programs).flows;
        let mut concerned: Vec<ClientTuple> = parties.iter().copied().map(hosts::tuple).collect();
        concerned
            .extend(both.iter().filter_map(|given| flow_laws::owner(&given.frame, |t| self.bench.holder(t))));
        let done = self.bench.programs.at_once(&both);
        assert_one_reason_each(&both, &done);
        let sent = done.left.iter().filter(|(left, _)| *left == verdict::REDIRECT);
        let sent: Vec<&[u8]> =
            done.emitted.iter().chain(sent.map(|(_, packet)| packet)).map(Vec::as_slice).collect();
        if !counted_before {
            packet_laws::resets(&done.counted, sent.iter().copied());
        }
        let arrived = |given: &Given| (given.program == "ingress").then(|| given.frame.clone());
        let race = Race {
            frames: both.iter().filter_map(arrived).collect(),
            hellos: before.into_iter().zip(self.contents(&parties)).map(<[_; 2]>::from).collect(),
            parties,
        };
        for frame in &sent {
            race_laws::check(&self.known, &race, frame, |tuple| self.bench.holder(tuple));
        }
        self.learn(&race, &sent);
        let connection = addresses(&both[0].frame).filter(|(_, to)| hosts::is_vip(to.ip()));
        let held = self.look(Reason::NotOurs, connection);
        flow_laws::others_stay(&flows, &held.flows, &concerned);
        self.last = Some((both[1].device, both[1].frame.clone()));
    }

    /// Returns the packet of a step, and the connection that it belongs to or is about.
    fn packet(&mut self, step: &Step) -> Option<(Given, Option<Ends>)> {
        let ingress = |device, frame| Given { program: "ingress", device, frame, delay: 0 };
        let given = match step {
            Step::Client(connection, shape) => {
                let segment = self.known.client_sends(*connection, shape);
                ingress(Device::Client, built(&segment, shape.bad_checksum))
            }
            Step::Backend(connection, back, shape) => {
                let segment = self.known.backend_sends(*connection, *back, shape)?;
                ingress(Device::Backend, built(&segment, shape.bad_checksum))
            }
            Step::Mangle(patches, repair) => {
                let (device, frame) = self.last.clone()?;
                ingress(device, mangled(frame, patches, *repair))
            }
            Step::Raw(from_client, frame) => {
                ingress(if *from_client { Device::Client } else { Device::Backend }, frame.clone())
            }
            Step::Expire(connection, order) => {
                let order = self.ordered(*connection, *order)?;
                let frame = order_frame(&order);
                let given = Given { program: "expire", device: Device::Client, frame, delay: 0 };
                return Some((given, Some(hosts::ends(*connection))));
            }
            Step::Flag(..) | Step::AtOnce(..) => return None,
        };
        if !runs(&given.frame) {
            return None;
        }
        if let Some(ends) = addresses(&given.frame).filter(|(_, to)| hosts::is_vip(to.ip())) {
            self.known.clients.entry(ends).or_default().speaks(&given.frame);
        }
        let holder = |tuple: &_| self.bench.holder(tuple);
        let connection = packet_laws::Given::new(&self.known, &given.frame, holder).connection;
        Some((given, connection))
    }

    /// What is kept of the hellos of these connections.
    fn contents(&self, connections: &[Ends]) -> Vec<Vec<u8>> {
        let content = |ends: &Ends| map_laws::content(&self.bench.programs, hosts::tuple(*ends));
        connections.iter().map(content).collect()
    }

    /// Notes what the ends received. Which connection a SYN to a backend belongs to is what the maps say.
    fn learn(&mut self, race: &Race, packets: &[&[u8]]) {
        let mut to_backends = BTreeMap::<BackendTuple, Vec<Segment>>::new();
        for frame in packets {
            let Some((segment, (from, to))) = Segment::parse(frame).zip(addresses(frame)) else { continue };
            if hosts::is_source(from.ip()) {
                to_backends.entry(backend_tuple(to, from)).or_default().push(segment);
            } else if let Some(client) = self.known.clients.get_mut(&(to, from)) {
                client.receives(&segment);
            }
        }
        for (tuple, segments) in to_backends {
            let is_syn = |segment: &Segment| segment.flags & (flag::SYN | flag::ACK) == flag::SYN;
            let (syns, others): (Vec<_>, Vec<_>) = segments.into_iter().partition(is_syn);
            for syn in &syns {
                let holder = self.bench.holder(&tuple).or_else(|| race.parties.first().copied());
                let Some(connection) = holder else { continue };
                self.dials(tuple, connection, syn.seq);
            }
            if let Some(backend) = self.known.backends.get_mut(&tuple) {
                let mixed = !syns.is_empty() && others.iter().any(|other| !other.payload.is_empty());
                backend.doubtful |= mixed || syns.iter().any(|syn| syn.seq != syns[0].seq);
                backend.receives_at_once(others);
            }
        }
    }

    /// Notes a SYN to a backend, the first one or a repetition.
    fn dials(&mut self, tuple: BackendTuple, connection: Ends, isn: u32) {
        if let Some(backend) = self.known.backends.get_mut(&tuple).filter(|known| known.is(connection, isn)) {
            // Where it has received something already, it may be another connection with the same numbers.
            backend.doubtful |= !backend.stream.is_empty();
            backend.delta = None;
            return;
        }
        self.known.backends.insert(tuple, Backend::new(connection, isn));
        self.known.clients.entry(connection).or_default().dialled.push(tuple);
    }
}

/// Each packet is counted under one reason.
fn assert_one_reason_each(both: &[Given; 2], done: &BothDone) {
    let packets = both.iter().filter(|given| given.program == "ingress").count() as u64;
    let own = done.counted.iter().filter(|(reason, _)| !packet_laws::is_event(*reason));
    let own = own.map(|(_, by)| by).sum::<u64>();
    // The daemon's order to send a SYN again is counted as the client's repetition is.
    assert!((packets..=2).contains(&own), "{:?}", done.counted);
}
