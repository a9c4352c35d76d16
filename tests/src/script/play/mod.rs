//! Plays a script: injects the packets that ends send, and compares the packets that arrive with the script.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use common::decide::source_port::strides;
use common::maps::address::Address;
use common::maps::event::Expiry;
use common::maps::flow::{BackendTuple, ClientTuple, Flow, HalfOpen, Pending, Reply};
use common::maps::listener::{Listener, PROTOCOL_TLS};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::maps::source::Source;
use common::maps::word::SynSeen;
use common::reason::Reason;
use userspace::dataplane::due::{flow_is_due, half_open_is_due, hello_is_due};

use super::end::{End, Stream, usual_hello};
use super::{Kept, Packet, Step, parse, show};
use crate::addresses::{FAMILIES, Family, TLS_PORT, backend, server_name, vip};
use crate::config::DIRECT_PORT;
use crate::fill::default_settings;
use crate::packet::{Segment, flag};
use crate::program::{Programs, Sizes};
use crate::world::{DEVICES, Device};

/// The programs that packets meet.
mod hooks;

pub use hooks::Hooks;

/// MSS that the TLS listener announces.
const MSS: u16 = 1440;
/// Bytes of a frame from which on its device has room behind it for the answer to a SYN, which may be longer: it rounds frames up to 64 bytes.
const ROOM_FROM: usize = 65;

/// Plays a script file with IPv4, then with IPv6; the error names file, line, and what arrived. Returns how many packets XDP answered of
/// each family.
pub fn play(file: &Path, hooks: Hooks) -> Result<[u64; 2]> {
    let sizes = Sizes::default();
    let mut programs = Programs::attached(sizes)?;
    if hooks == Hooks::XdpAndTcx {
        programs.attach_front()?;
    }
    let mut by_xdp = [0; 2];
    programs.tls_with_one_route();
    programs.tcp_listener(DIRECT_PORT);
    // One segment size for both families, so that one script fits both.
    let tls = Listener { id: 1, mss: MSS, protocol: PROTOCOL_TLS, ..Listener::zeroed() };
    programs.listener(vip(Family::V4), TLS_PORT, tls);
    let others =
        FAMILIES.map(|family| (31 + u32::from(!family.is_v4()), programs.backend(2, backend(family, 0, 1))));
    programs.route(2, &others);
    programs.name(1, &server_name(1), 2);
    for (family, by_xdp) in FAMILIES.into_iter().zip(&mut by_xdp) {
        let settings = default_settings(sizes);
        programs.settings(settings);
        let mut player = Player {
            programs: &mut programs,
            family,
            tcp: false,
            settings,
            ends: BTreeMap::new(),
            arrived: [VecDeque::new(), VecDeque::new()],
            counted: BTreeMap::new(),
            aged: BTreeMap::new(),
            hooks,
            others: 0,
        };
        player.counted = player.programs.counters();
        let before = player.by_xdp();
        player.file(file)?;
        player.quiet().with_context(|| format!("{}, {family:?}: at its end", file.display()))?;
        *by_xdp = player.by_xdp() - before - player.others;
        player.forget();
    }
    Ok(by_xdp)
}

struct Player<'p> {
    programs: &'p mut Programs,
    family: Family,
    tcp: bool,
    settings: Settings,
    ends: BTreeMap<String, End>,
    /// Segments that arrived and were not checked yet, by device.
    arrived: [VecDeque<Segment>; 2],
    /// Counters when they were last checked.
    counted: BTreeMap<Reason, u64>,
    /// For each flow, the seconds by which it is older than its entry says, and the `seen_secs` of that
    /// entry.
    aged: BTreeMap<ClientTuple, (u32, u32)>,
    hooks: Hooks,
    /// Packets that XDP answered and no line sent.
    others: u64,
}

impl Player<'_> {
    fn file(&mut self, file: &Path) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        for line in parse::parse(&text).with_context(|| file.display().to_string())? {
            let played = match &line.step {
                Step::Use(name) => self.file(&file.with_file_name(format!("{name}.inc"))),
                step => self.step(step),
            };
            played.with_context(|| {
                format!("{}:{} ({:?}): {}", file.display(), line.number, self.family, line.text)
            })?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::TcpListener => self.tcp = true,
            Step::Port { end, port } => {
                let peer = self.end(end)?.peer.as_mut();
                peer.context("nobody has spoken to this end yet")?.set_port(*port);
            }
            Step::Isn { end, number } => self.end(end)?.isn = *number,
            Step::Hello { end, tenant, bytes } => {
                self.end(end)?.stream.beginning = usual_hello(*tenant, *bytes);
            }
            Step::Ports { first, last } => {
                self.settings.source_port_first = *first;
                self.settings.source_port_last = *last;
                self.settings.source_port_strides = strides(*first, *last);
                self.programs.settings(self.settings);
            }
            Step::Use(name) => bail!("{name} is used elsewhere"),
            Step::Sends { end, packet } => self.send(end, packet)?,
            Step::Gets { end, packet } => self.expect(end, packet)?,
            Step::Stream { end, begin, until, by, ack } => self.stream(end, *begin, *until, *by, *ack)?,
            Step::Anew { end, tenant } => self.anew(end, *tenant)?,
            Step::Challenged { end } => self.challenged(end)?,
            Step::Age { seconds } => self.age(*seconds),
            Step::Sweep => self.sweep()?,
            Step::Counts(expected) => self.counts(expected)?,
            Step::Entries(expected) => {
                for (kept, count) in expected {
                    let there = self.kept(*kept);
                    ensure!(there == *count, "there are {there} {kept:?}");
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, name: &str) -> Result<&mut End> {
        if !self.ends.contains_key(name) {
            self.ends.insert(name.into(), End::named(name, self.family, self.tcp)?);
        }
        self.ends.get_mut(name).context("just made")
    }

    fn anew(&mut self, name: &str, tenant: usize) -> Result<()> {
        let tcp = self.tcp;
        let end = self.end(name)?;
        end.isn = end.isn.wrapping_add(0x1234_5678);
        (end.peer_isn, end.peer_clock, end.heard) = (None, None, None);
        end.stream.seed += 1 << 20;
        if !tcp {
            end.stream.beginning = usual_hello(tenant, parse::HELLO_BYTES);
        }
        Ok(())
    }

    fn send(&mut self, name: &str, packet: &Packet) -> Result<()> {
        self.quiet()?;
        let end = self.end(name)?;
        let (device, segment) = (end.device, end.segment(packet)?);
        let mut frame = segment.bytes();
        if self.hooks == Hooks::XdpAndTcx
            && device == Device::Client
            && segment.flags & (flag::SYN | flag::ACK) == flag::SYN
        {
            self.let_tcx_answer()?;
            if segment.to.port() == TLS_PORT {
                frame.resize(frame.len().max(ROOM_FROM), 0);
            }
        }
        self.programs.world.send(device, &frame).context("sending")?;
        self.receive()
    }

    /// Checks that no packet is left that no line expected.
    fn quiet(&mut self) -> Result<()> {
        self.receive()?;
        for (device, waiting) in DEVICES.iter().zip(&self.arrived) {
            if let Some(segment) = waiting.front() {
                bail!("before this line the {device:?} side got {}", self.told(segment));
            }
        }
        Ok(())
    }

    /// Receives the frames that the devices sent.
    fn receive(&mut self) -> Result<()> {
        let frames = self.programs.world.drain();
        self.take(frames)
    }

    fn take(&mut self, frames: Vec<(Device, Vec<u8>)>) -> Result<()> {
        for (device, frame) in frames {
            let segment = Segment::parse(&frame).with_context(|| format!("no TCP segment: {frame:02x?}"))?;
            ensure!(segment.bytes() == frame, "a wrong checksum or length: {frame:02x?}");
            self.arrived[device as usize].push_back(segment);
        }
        Ok(())
    }

    fn expect(&mut self, name: &str, packet: &Packet) -> Result<()> {
        self.receive()?;
        let device = self.end(name)?.device;
        let got = self.arrived[device as usize].pop_front().context("nothing arrived")?;
        let told = self.told(&got);
        self.meet(name, &got)?;
        let end = self.end(name)?;
        let shown = show::arrived(end, &got);
        end.check(packet, &got).with_context(|| format!("got {shown}\n(or {told})"))
    }

    /// Takes a challenge ACK that this end gets.
    fn challenged(&mut self, name: &str) -> Result<()> {
        self.receive()?;
        let (device, own) = (self.end(name)?.device, self.end(name)?.own);
        let got = self.arrived[device as usize].pop_front().context("nothing arrived")?;
        let is_challenge = got.flags == flag::ACK && got.payload.is_empty() && got.to == own;
        ensure!(is_challenge, "got {}", self.told(&got));
        Ok(())
    }

    /// Lets an end learn from a SYN, and records for both ends which stream they must receive.
    fn meet(&mut self, name: &str, got: &Segment) -> Result<()> {
        self.end(name)?.learn(got);
        if got.flags & (flag::SYN | flag::ACK) != flag::SYN || self.end(name)?.device == Device::Client {
            return Ok(());
        }
        // A client's ISN is passed on unchanged, so it identifies the client of this SYN.
        let stream = self.end(name)?.stream.clone();
        let caller = self.ends.values_mut().find(|end| end.device == Device::Client && end.isn == got.seq);
        let caller = caller.context("a SYN of no client")?;
        caller.heard = Some(stream);
        let heard: Stream = caller.stream.clone();
        self.end(name)?.heard = Some(heard);
        Ok(())
    }

    /// Formats a segment in the numbers of the end that it is for, if there is one.
    fn told(&self, segment: &Segment) -> String {
        let known = self
            .ends
            .values()
            .find(|end| end.own == segment.to && end.peer.is_none_or(|peer| peer == segment.from));
        match known {
            Some(end) => show::arrived(end, segment),
            None => format!("{segment:?}"),
        }
    }

    /// Sends segments, each of which must arrive as it was sent.
    fn stream(&mut self, name: &str, begin: u64, until: u64, by: u64, ack: u64) -> Result<()> {
        let own = self.end(name)?.clone();
        let facing = |end: &End| match own.device {
            Device::Client => end.device == Device::Backend && end.peer_isn == Some(own.isn),
            Device::Backend => end.device == Device::Client && Some(end.isn) == own.peer_isn,
        };
        let to = self.ends.iter().find(|(_, end)| facing(end)).map(|(name, _)| name.clone());
        let to = to.context("nobody is at the other end")?;
        let mut at = begin;
        while at < until {
            let packet = Packet {
                flags: flag::ACK,
                begin: at,
                end: (at + by).min(until),
                ack: Some(ack),
                window: None,
                urgent: 0,
                ecn: 0,
                options: Some(Vec::new()),
            };
            self.send(name, &packet)?;
            self.expect(&to, &packet).with_context(|| format!("at {at}, at {to}"))?;
            at += by;
        }
        Ok(())
    }

    fn counts(&mut self, expected: &[(Reason, u64)]) -> Result<()> {
        let now = self.programs.counters();
        let moved =
            hooks::as_tcx_counts(now.iter().map(|(reason, count)| (*reason, count - self.counted[reason])));
        self.counted = now;
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        ensure!(moved == expected, "counted were {moved:?}");
        Ok(())
    }

    fn kept(&self, kept: Kept) -> usize {
        match kept {
            Kept::Flows => self.programs.entries::<ClientTuple, Flow>(name::FLOWS).len(),
            Kept::Nats => self.programs.entries::<BackendTuple, Reply>(name::NATS).len(),
            Kept::Hellos => self.programs.entries::<ClientTuple, Pending>(name::PENDING).len(),
            Kept::HalfOpens => self.programs.entries::<ClientTuple, HalfOpen>(name::HALF_OPENS).len(),
        }
    }

    /// Lets seconds pass for all entries. A flow's entry is only marked, because the machine may have been up
    /// for less time than the idle timeout.
    fn age(&mut self, seconds: u32) {
        for (client, flow) in self.programs.entries::<ClientTuple, Flow>(name::FLOWS) {
            let before = match self.aged.get(&client) {
                Some((since, seen)) if *seen == flow.seen_secs => *since,
                _ => 0,
            };
            let seen_secs = flow.seen_secs.wrapping_sub(1);
            self.aged.insert(client, (before + seconds, seen_secs));
            let mut flow = Flow { seen_secs, ..flow };
            if flow.syn.time != 0 {
                flow.syn.time = flow.syn.time.wrapping_sub(SynSeen::time(u64::from(seconds) * 1_000_000_000));
            }
            self.programs.insert(name::FLOWS, client, flow);
        }
        let ns = u64::from(seconds) * 1_000_000_000;
        for (client, hello) in self.programs.entries::<ClientTuple, Pending>(name::PENDING) {
            let started_ns = hello.started_ns.saturating_sub(ns);
            self.programs.insert(name::PENDING, client, Pending { started_ns, ..hello });
        }
        for (client, held) in self.programs.entries::<ClientTuple, HalfOpen>(name::HALF_OPENS) {
            let started_ns = held.started_ns.saturating_sub(ns);
            self.programs.insert(name::HALF_OPENS, client, HalfOpen { started_ns, ..held });
        }
    }

    /// Expires what is due, decided by the same functions as in the daemon.
    fn sweep(&mut self) -> Result<()> {
        self.quiet()?;
        let mut due = Vec::new();
        for (client, flow) in self.programs.entries::<ClientTuple, Flow>(name::FLOWS) {
            let idle = match self.aged.get(&client) {
                Some((since, seen)) if *seen == flow.seen_secs => *since,
                _ => 0,
            };
            let seen_secs = 1;
            due.extend(
                flow_is_due(&Flow { seen_secs, ..flow }, seen_secs + idle, &self.settings)
                    .map(|reason| (client, reason)),
            );
        }
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
        let now = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
        for (client, hello) in self.programs.entries::<ClientTuple, Pending>(name::PENDING) {
            due.extend(hello_is_due(&hello, now, &self.settings).then_some((client, Reason::ExpireHello)));
        }
        for (client, held) in self.programs.entries::<ClientTuple, HalfOpen>(name::HALF_OPENS) {
            let over = half_open_is_due(&held, now, &self.settings);
            due.extend(over.then_some((client, Reason::ExpireHalfOpen)));
        }
        for (client, reason) in due {
            let flow = match reason {
                Reason::ExpireHello | Reason::ExpireHalfOpen => None,
                _ => self.programs.entry::<_, Flow>(name::FLOWS, client),
            };
            let Flow { connection, seen_secs, .. } = flow.unwrap_or_default();
            let (generation, reason) = (connection.generation, reason as u32);
            let outcome = self.programs.expire(&Expiry { client, seq: 0, reason, generation, seen_secs });
            self.take(outcome.emitted)?;
        }
        Ok(())
    }

    /// Removes all connections, so that no script sees those of another script.
    fn forget(&mut self) {
        self.programs.clear::<ClientTuple, Flow>(name::FLOWS);
        self.programs.clear::<BackendTuple, Reply>(name::NATS);
        self.programs.clear::<ClientTuple, Pending>(name::PENDING);
        self.programs.clear::<ClientTuple, HalfOpen>(name::HALF_OPENS);
        let cursors: Cursors = self.programs.element(name::CURSORS, 0);
        self.programs.set(name::CURSORS, 0, Cursors { half_opens: 0, buffered: 0, ..cursors });
        for listener in 0..4 {
            self.programs.set(name::HALF_OPEN_COUNT, listener, 0u32);
        }
        self.programs.clear::<Address, Source>(name::SOURCES);
    }
}
