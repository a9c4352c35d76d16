//! An open connection, and the expected translation of its segments.

use common::maps::flow::Flow;
use common::maps::name;
use common::maps::word::SYN_AGAIN;
use common::reason::Reason;
use tests::addresses::Family;
use tests::packet::{Segment, flag};
use tests::program::Programs;
use tests::tcp_option::TcpOption;
use tests::world::Device;

use crate::check::assert_sent;
use crate::scene::{BACKEND_ISN, BACKEND_TIME, Backend, Client, Dial, Offer, behind, dial, usual_hello};

/// A connection through listener and route of `Programs::tls_with_one_route`. Sequence numbers of both sides
/// count from after their SYNs. The client has sent its hello of 517 bytes, the backend nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) client: Client,
    pub(crate) backend: Backend,
    /// What the backend offered.
    pub(crate) offer: Offer,
    /// The backend's clock minus the one we show the client.
    pub(crate) clock: u32,
}

/// Bytes of the hello that opened the connection.
pub(crate) const HELLO: u32 = 517;

/// Opens a connection with Linux's options on both sides.
#[track_caller]
pub(crate) fn open(programs: &mut Programs, family: Family) -> Open {
    open_with(programs, dial(family), Offer::linux(1460, 9))
}

/// Dials, sends the hello in one segment, and lets the backend accept with this offer.
#[track_caller]
pub(crate) fn open_with(programs: &mut Programs, dial: Dial, offer: Offer) -> Open {
    let client = dial.shake(programs);
    let mut backend = client.ask(programs, &usual_hello());
    let outcome = backend.give(programs, &backend.syn_ack_with(offer));
    let granted = dial.offer;
    let declined = granted.sack && !offer.sack
        || granted.timestamps && !offer.timestamps
        || granted.scale.is_some() && offer.scale.is_none();
    let mut counted = vec![(Reason::ConnectHello, 1)];
    counted.extend(declined.then_some((Reason::ConnectDeclined, 1)));
    assert_eq!(outcome.counted, counted);
    backend.timestamps = dial.offer.timestamps && offer.timestamps;
    let clock = if backend.timestamps {
        let clock = client.flow(programs).expect("the flow is there").ts_delta;
        let ours = BACKEND_TIME.wrapping_sub(clock);
        assert!(ours.wrapping_sub(client.time) < 60_000, "our clock goes on from the SYN-ACK's");
        clock
    } else {
        0
    };
    Open { client, backend, offer, clock }
}

impl Open {
    /// Returns a segment of the client.
    pub(crate) fn client_segment(self, seq: u32, ack: u32) -> Segment {
        self.client.at(seq).ack(behind(self.client.cookie, ack))
    }

    /// Returns a segment of the backend.
    pub(crate) fn backend_segment(self, seq: u32, ack: u32) -> Segment {
        self.backend.at(seq, ack)
    }

    /// Returns how far the backend's numbers are ahead of those we show the client.
    fn delta(self) -> u32 {
        BACKEND_ISN.wrapping_sub(self.client.cookie)
    }

    /// Returns a client's segment as it reaches the backend.
    pub(crate) fn at_backend(self, segment: &Segment) -> Segment {
        let mut s = segment.clone();
        s.ethernet = (Device::Backend.far_mac(), Device::Backend.near_mac());
        (s.from, s.to) = (self.backend.source, self.backend.address);
        s.hop_limit -= 1;
        let acks = s.flags & flag::ACK != 0;
        if acks {
            s.ack = s.ack.wrapping_add(self.delta());
        }
        for option in &mut s.options {
            match option {
                TcpOption::Timestamps(_, echo) if acks => *echo = echo.wrapping_add(self.clock),
                TcpOption::Sack(blocks) => {
                    for (left, right) in blocks {
                        *left = left.wrapping_add(self.delta());
                        *right = right.wrapping_add(self.delta());
                    }
                }
                _ => {}
            }
        }
        // Options that the backend declined are replaced by padding.
        let granted = self.client.dial.offer;
        s.options = s
            .options
            .into_iter()
            .flat_map(|option| match option {
                TcpOption::Timestamps(..) if granted.timestamps && !self.offer.timestamps => {
                    vec![TcpOption::Nop; 10]
                }
                TcpOption::Sack(blocks) if granted.sack && !self.offer.sack => {
                    vec![TcpOption::Nop; 2 + 8 * blocks.len()]
                }
                option => vec![option],
            })
            .collect();
        if let (Some(scale), None) = (granted.scale, self.offer.scale) {
            s.window = (u32::from(s.window) << scale).min(65_535) as u16;
        }
        s
    }

    /// Returns a backend's segment as it reaches the client.
    pub(crate) fn at_client(self, segment: &Segment) -> Segment {
        let mut s = segment.clone();
        s.ethernet = (Device::Client.far_mac(), Device::Client.near_mac());
        (s.from, s.to) = (self.client.dial.vip(), self.client.dial.client());
        s.hop_limit -= 1;
        s.seq = s.seq.wrapping_sub(self.delta());
        for option in &mut s.options {
            if let TcpOption::Timestamps(value, _) = option {
                *value = value.wrapping_sub(self.clock);
            }
        }
        if self.client.dial.offer.scale.is_some() {
            let window = (u32::from(s.window) << self.offer.scale.unwrap_or(0)) >> 7;
            s.window = if window == 0 && s.window > 0 { 1 } else { window.min(65_535) as u16 };
        }
        s
    }

    /// Sends a client's segment and asserts that the backend gets exactly its translation.
    #[track_caller]
    pub(crate) fn pass_to_backend(self, programs: &mut Programs, segment: &Segment) {
        let outcome = self.client.give(programs, segment);
        assert_sent(&outcome, Reason::ForwardBackend, &self.at_backend(segment));
    }

    /// Sends a backend's segment and asserts that the client gets exactly its translation.
    #[track_caller]
    pub(crate) fn pass_to_client(self, programs: &mut Programs, segment: &Segment) {
        let outcome = self.backend.give(programs, segment);
        assert_sent(&outcome, Reason::ForwardClient, &self.at_client(segment));
    }

    /// Returns the flow's entry.
    #[track_caller]
    pub(crate) fn flow(self, programs: &Programs) -> Flow {
        self.client.flow(programs).expect("the flow is there")
    }

    /// Lets the SYN noted on the flow be so old that it is believed when it comes again.
    pub(crate) fn age_syn(self, programs: &mut Programs) {
        let mut flow = self.flow(programs);
        flow.syn.time = flow.syn.time.wrapping_sub(SYN_AGAIN);
        programs.insert(name::FLOWS, self.client.dial.tuple(), flow);
    }

    /// Resets from the client's side, at what the backend acknowledged, so that the flow lingers.
    #[track_caller]
    pub(crate) fn reset(self, programs: &mut Programs) {
        self.pass_to_client(programs, &self.backend_segment(0, HELLO));
        let rst = self.client_segment(HELLO, 0).rst();
        let outcome = self.client.give(programs, &rst);
        assert_sent(&outcome, Reason::ForwardReset, &self.at_backend(&rst));
    }

    /// Closes both sides in order, the client first.
    #[track_caller]
    pub(crate) fn close(self, programs: &mut Programs) {
        self.pass_to_backend(programs, &self.client_segment(HELLO, 0).fin());
        self.pass_to_client(programs, &self.backend_segment(0, HELLO + 1).fin());
        self.pass_to_backend(programs, &self.client_segment(HELLO + 1, 1));
    }
}
