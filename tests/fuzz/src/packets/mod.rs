//! Invariants for any packets of three clients and two tenants' backends, run through the loaded programs.

/// Decodes bytes into steps.
mod decode;
/// The participants.
mod hosts;
/// What the ends know of their connections.
mod known;
/// Invariants of every packet that leaves.
mod packet_laws;
/// Invariants of the maps.
mod map_laws;
/// What a frame says to a connection.
mod said;
/// Invariants of flows.
mod flow_laws;
/// What the daemon orders.
mod orders;
/// Two steps at the same moment, on two CPUs.
mod race;
/// Invariants of the packets that leave in them.
mod race_laws;

use anyhow::Result;
use common::decide::source_port::{self, position};
use common::maps::address::Port;
use common::maps::backend::Backend;
use common::maps::flow::{BackendTuple, Reply, Slot};
use common::maps::listener::{Listener, PROTOCOL_TCP, PROTOCOL_TLS, ROLE_OWN, ROLE_SOURCE, ROLE_VIP};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::maps::source::{Share, Source};
use common::reason::Reason;
use tests::addresses::{
    CLIENT_NET, FAMILIES, TENANT_NETS, balancer, host, server_name, vip, wildcard_suffix,
};
use tests::fill::default_settings;
use tests::packet::Segment;
use tests::program::{Programs, Sizes};
use tests::world::Device;

use self::decode::{Setting, Step};
use self::flow_laws::Before;
use self::hosts::Ends;
use self::known::Known;
use self::map_laws::Held;
use self::packet_laws::Given;

/// Sizes of the maps, small enough to fill.
const SIZES: Sizes = Sizes { flows: 5, hellos: 6, names: 256, closed: 4, shares: 64, dnat_flows: 5 };
/// Payload bytes of a segment in a super-packet.
const GSO_BYTES: u32 = 100;

/// The loaded programs with both tenants' routes, for any number of inputs.
#[derive(Debug)]
pub struct Bench {
    programs: Programs,
    backends: Vec<Backend>,
}

impl Bench {
    /// Needs root.
    pub fn new() -> Result<Self> {
        let mut programs = Programs::with_sizes(SIZES)?;
        let mut backends = Vec::new();
        for index in 0..hosts::BACKENDS {
            let (tenant, _, address) = hosts::backend(index);
            backends.push(programs.backend(tenant as u32 + 1, address));
            neighbour(&programs, Device::Backend, &address.to_string())?;
        }
        for (family, number) in hosts::CLIENTS {
            neighbour(&programs, Device::Client, &host(family, CLIENT_NET, number).to_string())?;
        }
        for family in FAMILIES {
            programs.address(balancer(family, TENANT_NETS[0]), ROLE_SOURCE);
            for (id, port) in (1..).zip(&hosts::VIP_PORTS[..4]) {
                let (protocol, route) =
                    [(PROTOCOL_TLS, 0), (PROTOCOL_TLS, 2), (PROTOCOL_TCP, 1), (PROTOCOL_TCP, 2)]
                        [id as usize - 1];
                let mss = if family.is_v4() { 1460 } else { 1440 };
                programs.listener(
                    vip(family),
                    *port,
                    Listener { id, route, mss, policy: 0, protocol, reserved: [0; 3] },
                );
            }
        }
        for listener in [1, 2] {
            for tenant in [0, 1] {
                programs.name(listener, &server_name(tenant), tenant as u32 + 1);
            }
            programs.wildcard(listener, &wildcard_suffix(0), 1);
            programs.one_label(listener, &wildcard_suffix(1), 2);
        }
        let ids: Vec<(u32, Backend)> = (1..).zip(backends.iter().copied()).collect();
        programs.route(1, &ids[..4]);
        programs.route(2, &ids[4..]);
        Ok(Self { programs, backends })
    }

    /// Runs an input; a violated invariant panics. `note` is called with a number for each state of a
    /// connection and the transition to it, which a fuzzer may use as coverage.
    pub fn check(&mut self, input: &[u8], note: impl FnMut(usize)) {
        let (setting, steps) = decode::input(input);
        self.begin(setting);
        let mut run = Run { bench: self, setting, known: Known::new(), last: None, note };
        for step in &steps {
            run.step(step);
        }
        run.end();
    }

    /// Restores the state before the first packet, with these settings.
    fn begin(&mut self, setting: Setting) {
        let default = default_settings(SIZES);
        let (first, last) =
            (default.source_port_first, if setting.few_ports { 1027 } else { default.source_port_last });
        self.programs.settings(Settings {
            buffers: setting.buffers,
            closed_timeout_secs: setting.closed_timeout_secs,
            source_hellos_max: setting.source_hellos_max,
            hello_timeout_ns: if setting.impatient { 0 } else { default.hello_timeout_ns },
            source_port_last: last,
            source_port_strides: source_port::strides(first, last),
            ..default
        });
        self.programs.set(name::CURSORS, 0, Cursors::zeroed());
        // Generations begin again, and these have those of other inputs.
        for place in 0..SIZES.closed {
            self.programs.set(name::CLOSED_RING, place, Slot::zeroed());
        }
        for place in 0..SIZES.hellos {
            self.programs.set(name::HALF_OPEN_RING, place, Slot::zeroed());
        }
        for listener in 0..hosts::LISTENERS {
            self.programs.set(name::HALF_OPEN_COUNT, listener, 0u32);
        }
        for backend in &self.backends {
            let nat = BackendTuple::tcp(backend.address, backend.source, backend.port, Port::default());
            self.programs.set(name::PORT_CURSORS, position(&nat).cursor, 0u64);
        }
        for family in FAMILIES {
            self.programs.address(vip(family), ROLE_VIP | if setting.own { ROLE_OWN } else { 0 });
        }
        for index in 0..hosts::BACKENDS {
            self.flag(index, 0);
        }
    }

    /// The connection that has this port to this backend, by the maps.
    fn holder(&self, tuple: &BackendTuple) -> Option<Ends> {
        holder(&self.programs, tuple)
    }

    fn flag(&mut self, index: usize, flags: u8) {
        let backend = Backend { flags, ..self.backends[index] };
        self.programs.insert(name::BACKENDS, index as u32 + 1, backend);
    }
}

/// The connection that has this port to this backend, by the maps.
fn holder(programs: &Programs, tuple: &BackendTuple) -> Option<Ends> {
    let reply = programs.entry::<_, Reply>(name::NATS, *tuple)?;
    Some(hosts::ends_of_client(&reply.tuple()))
}

fn neighbour(programs: &Programs, device: Device, address: &str) -> Result<()> {
    let mac = device.far_mac().map(|byte| format!("{byte:02x}")).join(":");
    programs
        .world
        .node
        .ip(&format!("neigh replace {address} lladdr {mac} dev {} nud permanent\n", device.name()))
}

/// One input in progress.
struct Run<'a, N> {
    bench: &'a mut Bench,
    setting: Setting,
    known: Known,
    last: Option<(Device, Vec<u8>)>,
    note: N,
}

impl<N: FnMut(usize)> Run<'_, N> {
    fn step(&mut self, step: &Step) {
        match step {
            Step::AtOnce(both, later) => self.at_once(both, *later),
            Step::Client(connection, shape) => {
                let segment = self.known.client_sends(*connection, shape);
                self.give(Device::Client, built(&segment, shape.bad_checksum), shape.gso);
            }
            Step::Backend(connection, back, shape) => {
                if let Some(segment) = self.known.backend_sends(*connection, *back, shape) {
                    self.give(Device::Backend, built(&segment, shape.bad_checksum), shape.gso);
                }
            }
            Step::Mangle(patches, repair) => {
                if let Some((device, frame)) = self.last.clone() {
                    self.give(device, mangled(frame, patches, *repair), false);
                }
            }
            Step::Raw(from_client, frame) if runs(frame) => {
                let device = if *from_client { Device::Client } else { Device::Backend };
                self.give(device, frame.clone(), false);
            }
            Step::Raw(..) => {}
            Step::Expire(connection, order) => {
                if let Some(expiry) = self.ordered(*connection, *order) {
                    self.give_order(&expiry, order.seen);
                }
            }
            Step::Flag(backend, flags) => self.bench.flag(*backend, *flags),
        }
    }

    /// Runs a frame that arrives.
    fn give(&mut self, device: Device, frame: Vec<u8>, gso: bool) {
        let given = Given::new(&self.known, &frame, |tuple| self.bench.holder(tuple));
        if let Some(ends) = given.ends.filter(|(_, to)| hosts::is_vip(to.ip())) {
            self.known.clients.entry(ends).or_default().speaks(&frame);
        }
        let segments = (frame.len() as u32).saturating_sub(54).div_ceil(GSO_BYTES);
        let programs = &mut self.bench.programs;
        let before = Before::new(programs, &frame, holder);
        let outcome = if gso && segments > 1 {
            programs.ingress_gso(device, &frame, GSO_BYTES, segments)
        } else {
            programs.ingress(device, &frame)
        };
        let reason = packet_laws::reason(&given, &outcome);
        packet_laws::resets(&outcome.counted, packet_laws::packets(&outcome));
        let programs = &self.bench.programs;
        for packet in packet_laws::packets(&outcome) {
            let content = |connection| map_laws::content(programs, hosts::tuple(connection));
            packet_laws::check(&mut self.known, &given, reason, packet, &content);
        }
        let held = self.look(reason, given.connection);
        before.check(&held.flows, reason);
        self.last = Some((device, frame));
    }

    /// Checks the maps, and returns what is in them.
    fn look(&mut self, reason: Reason, connection: Option<Ends>) -> Held {
        let held = Held::read(&self.bench.programs);
        held.check(&self.bench.programs, !self.setting.impatient);
        packet_laws::streams(&self.known);
        let state = connection.map_or(0, |connection| held.state(&hosts::tuple(connection)));
        (self.note)(state << 7 | reason as usize);
        held
    }

    /// Checks that every connection can be ended.
    fn end(mut self) {
        let held = Held::read(&self.bench.programs);
        let ends = [
            (held.hellos.keys().copied().collect::<Vec<_>>(), Reason::ExpireHello),
            (held.half_opens.keys().copied().collect(), Reason::ExpireHalfOpen),
            (held.flows.keys().copied().collect(), Reason::ExpireIdle),
            (held.flows.keys().copied().collect(), Reason::ExpireClosed),
        ];
        for (client, reason) in
            ends.iter().flat_map(|(clients, reason)| clients.iter().map(|client| (*client, *reason)))
        {
            let now = Held::read(&self.bench.programs);
            if let Some(order) = now.order_now(client, reason) {
                self.expire(&order);
            }
        }
        let left = Held::read(&self.bench.programs);
        assert!(left.is_empty(), "LEAK: {left:?}");
        for source in left.sources.keys() {
            self.bench.programs.remove::<_, Source>(name::SOURCES, *source);
        }
        for share in left.shares.keys() {
            self.bench.programs.remove::<_, Share>(name::SHARES, *share);
        }
    }
}

/// Whether BPF_PROG_TEST_RUN accepts a frame: it refuses those that end within the IP header.
fn runs(frame: &[u8]) -> bool {
    let least = match frame.get(12..14) {
        Some([0x08, 0x00] | [0x86, 0xdd]) => known::transport_at(frame),
        _ => 15,
    };
    frame.len() >= least
}

/// Returns the frame of a segment, with a wrong TCP checksum if requested.
fn built(segment: &Segment, bad_checksum: bool) -> Vec<u8> {
    let mut frame = segment.bytes();
    if bad_checksum {
        let at = known::transport_at(&frame) + 16;
        frame[at] ^= 0x80;
    }
    frame
}

/// Replaces bytes of a frame. If it is still a TCP segment and `repair` is set, lengths and checksums are repaired.
fn mangled(mut frame: Vec<u8>, patches: &[(usize, u8)], repair: bool) -> Vec<u8> {
    for (at, value) in patches {
        let at = at % frame.len();
        frame[at] = *value;
    }
    match Segment::parse(&frame) {
        Some(segment) if repair => segment.bytes(),
        _ => frame,
    }
}
