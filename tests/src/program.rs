//! The programs under test: loaded into their own namespace, with maps filled by typed helpers, and run once
//! per packet.
//!
//! Unless [`Programs::attached`] is used, nothing is attached or pinned. BPF_PROG_TEST_RUN passes a packet to
//! `ingress` as if it had arrived on a device. A packet that the program redirects is returned as
//! [`Outcome::packet`]; frames that it emits itself arrive at the devices' far ends.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, PerCpuArray, RingBuf};
use aya::programs::links::FdLink;
use aya::programs::{LinkOrder, Program, ProgramFd, ProgramInfo, SchedClassifier, TcAttach, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use common::maps::event::{Expiry, ORDERS_MAX};
use common::maps::flow::ClientTuple;
use common::maps::name;
use common::reason::Reason;
use zerocopy::{FromBytes, IntoBytes};

pub use aya::Pod;

pub use crate::map_facts::{MapFacts, MapKind};

use crate::burst::GsoContext;
use crate::counters;
use crate::test_run;
use crate::world::{DEVICES, Device, World, sent_inside};

/// Verdicts of a TC program (include/uapi/linux/bpf.h, `enum tcx_action_base` and TC_ACT_REDIRECT).
pub mod verdict {
    pub const NEXT: u32 = u32::MAX;
    pub const PASS: u32 = 0;
    pub const DROP: u32 = 2;
    pub const REDIRECT: u32 = 7;
}

/// Verdicts of an XDP program (`enum xdp_action`).
pub mod xdp_verdict {
    pub const DROP: u32 = 1;
    pub const PASS: u32 = 2;
    pub const TX: u32 = 3;
}

/// The capacity of the maps whose size depends on settings. Small, so that tests can fill them.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub flows: u32,
    pub hellos: u32,
    pub names: u32,
    pub closed: u32,
    pub shares: u32,
    pub dnat_flows: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 1024, hellos: 256, names: 256, closed: 1024, shares: 1024, dnat_flows: 1024 }
    }
}

impl Sizes {
    /// Returns the name and capacity of each map whose size depends on settings.
    fn capacities(self) -> [(&'static str, u32); 18] {
        [
            (name::FLOWS, self.flows),
            (name::NATS, self.flows + 2 * self.hellos),
            (name::PENDING, self.hellos),
            (name::BUFFERS, self.hellos),
            (name::SOURCES, self.hellos),
            (name::SHARES, self.shares),
            (name::DNAT_FLOWS, self.dnat_flows),
            (name::HALF_OPENS, self.hellos),
            (name::HALF_OPEN_RING, self.hellos),
            (name::CLOSED_RING, self.closed),
            (name::ROUTES_EXACT, self.names),
            (name::ROUTES_LONG, self.names),
            (name::ROUTES_WILDCARD, self.names),
            (name::ROUTES, self.names),
            (name::ROUTE_COUNTERS, self.names),
            (name::BACKENDS, 2 * self.names),
            (name::MEMBERS, 2 * self.names),
            (name::MAGLEV, 2 * self.names),
        ]
    }
}

/// The programs of the object.
pub const PROGRAMS: [&str; 3] = ["ingress", "expire", "front"];

/// The loaded object, its maps, and the small network around it.
#[derive(Debug)]
pub struct Programs {
    pub world: World,
    pub(crate) ebpf: Ebpf,
    /// `front` on the client's device, once it is attached.
    pub(crate) front: Option<FdLink>,
    /// The number of possible CPUs.
    cpus: usize,
}

/// The outcome of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// See [`verdict`].
    pub verdict: u32,
    /// The packet as the program left it.
    pub packet: Vec<u8>,
    /// Frames the program emitted itself, as received at the far end of each device.
    pub emitted: Vec<(Device, Vec<u8>)>,
    /// Every counter that changed, and by how much, ordered by reason number.
    pub counted: Vec<(Reason, u64)>,
}

/// Returns the compiled programs: the file named by `VESTIBULE_EBPF`, else those that the daemon embeds.
pub fn object() -> Result<Vec<u8>> {
    match std::env::var_os("VESTIBULE_EBPF") {
        Some(path) => {
            std::fs::read(&path).with_context(|| format!("VESTIBULE_EBPF={}", Path::new(&path).display()))
        }
        None => Ok(userspace::dataplane::OBJECT.to_vec()),
    }
}

impl Programs {
    /// Loads the programs with the default sizes and fills in settings and cookie keys, but no listeners or
    /// routes.
    pub fn load() -> Result<Self> {
        Self::with_sizes(Sizes::default())
    }

    /// Same as [`Self::load`], with other sizes.
    pub fn with_sizes(sizes: Sizes) -> Result<Self> {
        Self::inside(World::new()?, sizes)
    }

    /// Loads the programs in a world of TAP devices and attaches `ingress` to both, as the daemon does.
    /// Frames passed to [`World::send`] then take the kernel's normal path.
    pub fn attached(sizes: Sizes) -> Result<Self> {
        let mut programs = Self::inside(World::tapped()?, sizes)?;
        let (world, ebpf) = (&programs.world, &mut programs.ebpf);
        world.node.run(|| -> Result<()> {
            let program: &mut SchedClassifier =
                ebpf.program_mut("ingress").context("no ingress in the object")?.try_into()?;
            for device in DEVICES {
                let place = TcAttach::Tcx { attach_type: TcAttachType::Ingress, order: LinkOrder::default() };
                program.attach(world.ifindex(device), place).context("attaching ingress")?;
            }
            Ok(())
        })?;
        Ok(programs)
    }

    fn inside(world: World, sizes: Sizes) -> Result<Self> {
        let ebpf = world.node.run(|| load(&object()?, sizes))?;
        let cpus = aya::util::nr_cpus().map_err(|(what, error)| anyhow::anyhow!("{what}: {error}"))?;
        let mut programs = Self { world, ebpf, front: None, cpus: cpus.get() as usize };
        programs.fill_settings(sizes);
        Ok(programs)
    }

    /// Runs `ingress` on a frame as if it had arrived on a device.
    pub fn ingress(&mut self, device: Device, frame: &[u8]) -> Outcome {
        self.run("ingress", device, frame, GsoContext::default(), 0)
    }

    /// Same as [`Self::ingress`], on a device that gives the sum over the packet (CHECKSUM_COMPLETE). Panics if that sum does not
    /// fit the packet afterwards.
    pub fn ingress_summed(&mut self, device: Device, frame: &[u8]) -> Outcome {
        self.run("ingress", device, frame, GsoContext::default(), test_run::SUMMED)
    }

    /// Same as [`Self::ingress`], for a super-packet of segments with at most `gso_size` payload bytes.
    pub fn ingress_gso(&mut self, device: Device, frame: &[u8], gso_size: u32, segments: u32) -> Outcome {
        self.run("ingress", device, frame, GsoContext { gso_size, gso_segments: segments }, 0)
    }

    /// Runs `expire` as the daemon does, on an Ethernet header with the client's family, then the order, then
    /// zeros.
    pub fn expire(&mut self, order: &Expiry) -> Outcome {
        self.run("expire", Device::Client, &order_frame(order), GsoContext::default(), 0)
    }

    /// Runs `expire` once for several orders of one family, as the daemon does.
    pub fn expire_several(&mut self, orders: &[Expiry]) -> Outcome {
        let mut frame = order_frame(&orders[0]);
        frame.truncate(14);
        frame.extend(orders.as_bytes());
        frame.resize(14 + size_of::<[Expiry; ORDERS_MAX]>(), 0);
        self.run("expire", Device::Client, &frame, GsoContext::default(), 0)
    }

    /// Returns the context of a packet that arrived on a device.
    pub(crate) fn context(&self, device: Device) -> [u8; 192] {
        GsoContext::default().bytes(self.world.ifindex(device))
    }

    fn run(&mut self, program: &str, device: Device, frame: &[u8], gso: GsoContext, flags: u32) -> Outcome {
        let context = gso.bytes(self.world.ifindex(device));
        self.run_with(program, &context, frame, flags)
    }

    pub(crate) fn run_with(&mut self, program: &str, context: &[u8], frame: &[u8], flags: u32) -> Outcome {
        self.world.drain();
        let before = self.counters();
        let (world, ebpf) = (&self.world, &self.ebpf);
        let (verdict, packet, sent) = world.node.run(|| {
            let sent = || sent_inside().expect("the node's devices are counted");
            let before = sent();
            let (verdict, packet) = run_once(ebpf, program, frame, (context, flags), 65_536);
            (verdict, packet, sent() - before)
        });
        let after = self.counters();
        let counted = Reason::ALL
            .iter()
            .map(|reason| (*reason, after[reason] - before[reason]))
            .filter(|(_, moved)| *moved != 0)
            .collect();
        Outcome { verdict, packet, emitted: self.world.receive(sent), counted }
    }

    /// Returns all counters, summed over CPUs.
    pub fn counters(&self) -> BTreeMap<Reason, u64> {
        let Map::PerCpuArray(map) = self.map(name::COUNTERS) else { panic!("COUNTERS is a per-CPU array") };
        let counts = counters::read(map.fd().as_fd(), self.cpus).unwrap_or_else(|error| panic!("{error:#}"));
        Reason::ALL.iter().map(|reason| (*reason, counts[*reason as usize])).collect()
    }

    /// Returns an element of a per-CPU array, one value per CPU.
    pub fn per_cpu<V: Pod>(&self, map: &str, index: u32) -> Vec<V> {
        let map: PerCpuArray<_, V> = self.map(map).try_into().expect("a per-CPU array of this type");
        map.get(&index, 0).expect("in range").to_vec()
    }

    /// Inserts an entry into a hash map.
    pub fn insert<K: Pod, V: Pod>(&mut self, map: &str, key: K, value: V) {
        let mut map: HashMap<_, K, V> = self.map_mut(map).try_into().expect("a hash map of these types");
        map.insert(&key, &value, 0).expect("the map takes the entry");
    }

    /// Removes an entry from a hash map.
    pub fn remove<K: Pod, V: Pod>(&mut self, map: &str, key: K) {
        let mut map: HashMap<_, K, V> = self.map_mut(map).try_into().expect("a hash map of these types");
        map.remove(&key).expect("the entry is there");
    }

    /// Returns an entry of a hash map.
    pub fn entry<K: Pod, V: Pod>(&self, map: &str, key: K) -> Option<V> {
        let map: HashMap<_, K, V> = self.map(map).try_into().expect("a hash map of these types");
        map.get(&key, 0).ok()
    }

    /// Returns every entry of a hash map.
    pub fn entries<K: Pod, V: Pod>(&self, map: &str) -> Vec<(K, V)> {
        let map: HashMap<_, K, V> = self.map(map).try_into().expect("a hash map of these types");
        map.iter().map(|entry| entry.expect("nobody else writes")).collect()
    }

    /// Removes every entry from a hash map.
    pub fn clear<K: Pod, V: Pod>(&mut self, map: &str) {
        for (key, _) in self.entries::<K, V>(map) {
            self.remove::<K, V>(map, key);
        }
    }

    /// Writes an element of an array.
    pub fn set<V: Pod>(&mut self, map: &str, index: u32, value: V) {
        let mut map: Array<_, V> = self.map_mut(map).try_into().expect("an array of this type");
        map.set(index, &value, 0).expect("in range");
    }

    /// Returns an element of an array.
    pub fn element<V: Pod>(&self, map: &str, index: u32) -> V {
        let map: Array<_, V> = self.map(map).try_into().expect("an array of this type");
        map.get(&index, 0).expect("in range")
    }

    /// Inserts an entry into an LPM trie whose key, prefix length included, is 4 + `N` bytes.
    pub fn insert_prefix<const N: usize, V: Pod>(&mut self, map: &str, bits: u32, data: [u8; N], value: V) {
        let mut map: LpmTrie<_, [u8; N], V> = self.map_mut(map).try_into().expect("a trie of these types");
        map.insert(&Key::new(bits, data), &value, 0).expect("the map takes the entry");
    }

    /// Removes an entry from an LPM trie; see [`Self::insert_prefix`].
    pub fn remove_prefix<const N: usize, V: Pod>(&mut self, map: &str, bits: u32, data: [u8; N]) {
        let mut map: LpmTrie<_, [u8; N], V> = self.map_mut(map).try_into().expect("a trie of these types");
        map.remove(&Key::new(bits, data)).expect("the entry is there");
    }

    /// Returns the hellos evicted since the last call, as reported to the daemon, and forgets trials.
    pub fn evictions(&mut self) -> Vec<Expiry> {
        self.reported()
    }

    /// Returns the clients whose flows were put on trial since the last call, as reported to the daemon, and forgets evictions.
    pub fn trials(&mut self) -> Vec<ClientTuple> {
        self.reported()
    }

    /// Takes all records of the ring; returns those of this size.
    fn reported<T: FromBytes>(&mut self) -> Vec<T> {
        let mut ring: RingBuf<_> = self.map_mut(name::EVICTIONS).try_into().expect("a ring buffer");
        std::iter::from_fn(|| Some(T::read_from_bytes(&ring.next()?).ok())).flatten().collect()
    }

    fn map(&self, name: &str) -> &Map {
        self.ebpf.map(name).unwrap_or_else(|| panic!("no map {name} in the object"))
    }

    fn map_mut(&mut self, name: &str) -> &mut Map {
        self.ebpf.map_mut(name).unwrap_or_else(|| panic!("no map {name} in the object"))
    }

    /// Returns what the kernel reports about each map.
    pub fn maps(&self) -> Vec<MapFacts> {
        let facts = self.ebpf.maps().map(|(name, map)| MapFacts::of(name, map));
        facts.collect::<Result<_>>().unwrap_or_else(|error| panic!("{error:#}"))
    }

    pub(crate) fn map_fd(&self, name: &str) -> BorrowedFd<'_> {
        let data = match self.map(name) {
            Map::HashMap(data) | Map::LpmTrie(data) | Map::Array(data) | Map::PerCpuArray(data) => data,
            other => panic!("{name} is of no kind with keys: {other:?}"),
        };
        data.fd().as_fd()
    }

    /// Returns what the kernel reports about a loaded program.
    pub fn info(&self, program: &str) -> ProgramInfo {
        self.ebpf.program(program).expect("in the object").info().expect("loaded")
    }
}

/// Returns the packet in which `expire` gets an order.
pub fn order_frame(order: &Expiry) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend(if order.client.client.is_v4() { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(order.as_bytes());
    frame.resize(14 + 128, 0);
    frame
}

/// Runs a program once, with a context and flags; returns its verdict, and up to `room` bytes of the packet as it left it.
pub(crate) fn run_once(
    ebpf: &Ebpf,
    program: &str,
    frame: &[u8],
    (context, flags): (&[u8], u32),
    room: usize,
) -> (u32, Vec<u8>) {
    let mut packet = vec![0; room];
    let fd = descriptor(ebpf.program(program).expect("in the object")).expect("loaded").as_fd();
    let (verdict, length) = test_run::test_run(fd, frame, &mut packet, context, flags)
        .unwrap_or_else(|error| panic!("running {program} on {} bytes: {error}", frame.len()));
    packet.truncate(length);
    (verdict, packet)
}

pub(crate) fn descriptor(program: &Program) -> Result<&ProgramFd> {
    Ok(match program {
        Program::SchedClassifier(program) => program.fd()?,
        Program::Xdp(program) => program.fd()?,
        other => anyhow::bail!("of no kind that is run: {other:?}"),
    })
}

/// Loads the object with these capacities, without pinning, and has the kernel verify all programs.
fn load(object: &[u8], sizes: Sizes) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    for (map, entries) in sizes.capacities() {
        loader.map_max_entries(map, entries);
    }
    let mut ebpf = loader.load(object).context("loading the object")?;
    for name in PROGRAMS {
        let program = ebpf.program_mut(name).with_context(|| format!("no program {name} in the object"))?;
        let loaded = match program {
            Program::SchedClassifier(program) => program.load(),
            Program::Xdp(program) => program.load(),
            other => anyhow::bail!("{name} is of no kind that is run: {other:?}"),
        };
        loaded.map_err(|error| anyhow::anyhow!("the kernel refuses {name}: {}", end_of(&error)))?;
    }
    Ok(ebpf)
}

/// Returns the last lines of an error with its causes: a verifier log is long, and the reason is at its end.
fn end_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
