//! Two steps at the same moment, on two CPUs: whatever happens first, the maps keep to their laws, and each packet leaves for
//! one reason.

use common::maps::flow::Reply;
use common::maps::name;
use common::reason::Reason;
use tests::at_once::{BothDone, Given};
use tests::packet::{Segment, flag};
use tests::program::{order_frame, verdict};
use tests::tuple::backend_tuple;
use tests::world::Device;

use super::decode::Step;
use super::known::{Backend, addresses};
use super::{Run, built, hosts, mangled, packet_laws, runs};

/// Steps of the busy loop for each unit by which one packet is later than the other: some 127 of them are a few
/// microseconds, about as long as a packet takes.
const DELAY: u32 = 20;

impl<N: FnMut(usize)> Run<'_, N> {
    /// Runs both steps at the same moment. A step that gives no packet is left out.
    pub(super) fn at_once(&mut self, both: &[Step; 2], later: i8) {
        let [Some(first), Some(second)] = [self.packet(&both[0]), self.packet(&both[1])] else { return };
        self.raced = true;
        let delay = u32::from(later.unsigned_abs()) * DELAY;
        let delays = if later < 0 { [0, delay] } else { [delay, 0] };
        let [first, second] =
            [(first, delays[0]), (second, delays[1])].map(|(given, delay)| Given { delay, ..given });
        let both = [first, second];
        let done = self.bench.programs.at_once(&both);
        assert_one_reason_each(&both, &done);
        let sent = done.left.iter().filter(|(left, _)| *left == verdict::REDIRECT);
        let sent: Vec<Vec<u8>> = done.emitted.iter().chain(sent.map(|(_, packet)| packet)).cloned().collect();
        self.learn(sent.iter().map(Vec::as_slice));
        let connection = addresses(&both[0].frame).filter(|(_, to)| hosts::is_vip(to.ip()));
        self.look(Reason::NotOurs, connection);
        self.last = Some((both[1].device, both[1].frame.clone()));
    }

    /// Returns the packet of a step.
    fn packet(&mut self, step: &Step) -> Option<Given> {
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
                Given { program: "expire", device: Device::Client, frame: order_frame(&order), delay: 0 }
            }
            Step::Flag(..) | Step::AtOnce(..) => return None,
        };
        if given.program == "ingress" {
            if !runs(&given.frame) {
                return None;
            }
            if let Some(ends) = addresses(&given.frame).filter(|(_, to)| hosts::is_vip(to.ip())) {
                self.known.clients.entry(ends).or_default().speaks(&given.frame);
            }
        }
        Some(given)
    }

    /// Notes what the ends received. Which connection a SYN to a backend belongs to is what the maps say.
    pub(super) fn learn<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>) {
        for frame in packets {
            let Some((segment, (from, to))) = Segment::parse(frame).zip(addresses(frame)) else { continue };
            if !hosts::is_source(from.ip()) {
                if let Some(client) = self.known.clients.get_mut(&(to, from)) {
                    client.receives(&segment);
                }
                continue;
            }
            let tuple = backend_tuple(to, from);
            if segment.flags & (flag::SYN | flag::ACK) == flag::SYN {
                let Some(reply) = self.bench.programs.entry::<_, Reply>(name::NATS, tuple) else { continue };
                let connection = hosts::ends_of_client(&reply.tuple());
                self.known.backends.insert(tuple, Backend::new(connection, segment.seq));
                self.known.clients.entry(connection).or_default().dialled.push(tuple);
            } else if let Some(backend) = self.known.backends.get_mut(&tuple) {
                backend.receives(&segment);
            }
        }
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
