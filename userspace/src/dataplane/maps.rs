//! The pinned maps with the types of their keys and values.

use std::fmt;
use std::path::{Path, PathBuf};

use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::dnat_flow::DnatFlow;
use common::maps::event::RouteCounters;
use common::maps::flow::{BackendTuple, ClientTuple, Flow, HalfOpen, Pending, Reply};
use common::maps::listener::{AddressRole, Listener, ListenerKey};
use common::maps::name;
use common::maps::policy::{PolicyKey, PolicyRange};
use common::maps::route::{
    Label, LabelKey, MemberKey, NameKey, NameRoute, Page, PageKey, Route, ShortNameKey, SuffixKey,
};
use common::maps::settings::{CookieKey, Cursors, Ids, Settings};
use common::maps::source::{Share, ShareKey, Source};
use common::maps::{DRAIN_ASKED, DRAIN_WITHDRAWN};

use super::pin::Pins;
use super::table::{Plain, Table, TableError};

/// Cookie keys that all nodes share: a cookie created by one node is valid on every other.
#[derive(Clone, PartialEq, Eq)]
pub struct CookieKeys {
    /// Both are accepted for verification.
    pub keys: [CookieKey; 2],
    /// The key that signs: 0 or 1.
    pub current: u32,
}

impl fmt::Debug for CookieKeys {
    /// Omits the keys, since other people can read the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CookieKeys").field("current", &self.current).finish_non_exhaustive()
    }
}

/// The maps that user space reads or writes.
#[derive(Debug)]
#[expect(missing_docs, reason = "each is the map of its name, described in common::maps::name")]
pub struct Maps {
    pub settings: Table<u32, Settings>,
    pub ids: Table<u32, Ids>,
    pub drain: Table<u32, u32>,
    pub cookie_keys: Table<u32, CookieKey>,
    pub cursors: Table<u32, Cursors>,
    pub port_cursors: Table<u32, u64>,
    pub addresses: Table<Address, AddressRole>,
    pub listeners: Table<ListenerKey, Listener>,
    pub routes_exact: Table<ShortNameKey, NameRoute>,
    pub routes_long: Table<NameKey, NameRoute>,
    pub routes_wildcard: Table<SuffixKey, NameRoute>,
    pub routes: Table<u32, Route>,
    pub maglev: Table<PageKey, Page>,
    pub members: Table<MemberKey, u32>,
    pub backends: Table<u32, Backend>,
    pub labels: Table<LabelKey, Label>,
    pub route_counters: Table<u32, RouteCounters>,
    pub nats: Table<BackendTuple, Reply>,
    pub flows: Table<ClientTuple, Flow>,
    pub hellos: Table<ClientTuple, Pending>,
    pub sources: Table<Address, Source>,
    pub shares: Table<ShareKey, Share>,
    pub half_opens: Table<ClientTuple, HalfOpen>,
    /// `None`: a release without it made the maps, and runs still.
    pub dnat_flows: Option<Table<ClientTuple, DnatFlow>>,
    /// `None`: a release without source ranges made the maps, and runs still.
    policies: Option<Table<PolicyKey, PolicyRange>>,
    folder: PathBuf,
}

impl Maps {
    /// Opens all maps.
    pub fn open(pins: &Pins) -> Result<Self, TableError> {
        let folder = pins.folder();
        Ok(Self {
            settings: Table::open(folder, name::SETTINGS)?,
            ids: Table::open(folder, name::IDS)?,
            drain: Table::open(folder, name::DRAIN)?,
            cookie_keys: Table::open(folder, name::COOKIE_KEYS)?,
            cursors: Table::open(folder, name::CURSORS)?,
            port_cursors: Table::open(folder, name::PORT_CURSORS)?,
            addresses: Table::open(folder, name::ADDRESSES)?,
            listeners: Table::open(folder, name::LISTENERS)?,
            routes_exact: Table::open(folder, name::ROUTES_EXACT)?,
            routes_long: Table::open(folder, name::ROUTES_LONG)?,
            routes_wildcard: Table::open(folder, name::ROUTES_WILDCARD)?,
            routes: Table::open(folder, name::ROUTES)?,
            maglev: Table::open(folder, name::MAGLEV)?,
            members: Table::open(folder, name::MEMBERS)?,
            backends: Table::open(folder, name::BACKENDS)?,
            labels: Table::open(folder, name::LABELS)?,
            route_counters: Table::open(folder, name::ROUTE_COUNTERS)?,
            nats: Table::open(folder, name::NATS)?,
            flows: Table::open(folder, name::FLOWS)?,
            hellos: Table::open(folder, name::PENDING)?,
            sources: Table::open(folder, name::SOURCES)?,
            shares: Table::open(folder, name::SHARES)?,
            half_opens: Table::open(folder, name::HALF_OPENS)?,
            dnat_flows: open_later(folder, name::DNAT_FLOWS)?,
            policies: open_later(folder, name::POLICIES)?,
            folder: folder.to_owned(),
        })
    }

    /// The map of source ranges. A start makes it beside the maps of a release that had none; until then it is missing.
    pub fn policies(&self) -> Result<&Table<PolicyKey, PolicyRange>, TableError> {
        let missing = || TableError::Missing { name: name::POLICIES, folder: self.folder.clone() };
        self.policies.as_ref().ok_or_else(missing)
    }

    /// Writes the agent's bit of the drain flag. Returns whether the command line's is set.
    pub fn withdraw(&self, is_withdrawn: bool) -> Result<bool, TableError> {
        let word = self.drain.look_up(&0)?.unwrap_or_default();
        let bit = if is_withdrawn { DRAIN_WITHDRAWN } else { 0 };
        if word & DRAIN_WITHDRAWN != bit {
            self.drain.put(&0, &(word & !DRAIN_WITHDRAWN | bit))?;
        }
        Ok(word & DRAIN_ASKED != 0)
    }

    /// Writes the keys that changed.
    pub fn put_cookie_keys(&self, keys: &CookieKeys) -> Result<(), TableError> {
        for (index, key) in (0..).zip(&keys.keys) {
            if self.cookie_keys.look_up(&index)?.as_ref() != Some(key) {
                self.cookie_keys.put(&index, key)?;
            }
        }
        Ok(())
    }

    /// Generates the cookie keys at the very first start. Later starts keep them for open handshakes.
    pub fn make_cookie_keys(&self) -> Result<(), TableError> {
        for index in 0..self.cookie_keys.capacity() {
            if self.cookie_keys.look_up(&index)?.unwrap_or_default() == CookieKey::zeroed() {
                let key = CookieKey { k0: random(), k1: random() };
                self.cookie_keys.put(&index, &key)?;
            }
        }
        Ok(())
    }

    /// Starts the sequences of source ports at random positions at the very first start. Otherwise a node that was
    /// booted again would use the same ports as after its last boot, and backends may still have connections on
    /// them. Later starts continue the sequences.
    pub fn make_port_cursors(&self) -> Result<(), TableError> {
        for index in 0..self.port_cursors.capacity() {
            if self.port_cursors.look_up(&index)?.unwrap_or_default() == 0 {
                self.port_cursors.put(&index, &(random() >> 32))?;
            }
        }
        Ok(())
    }
}

/// Opens a map that former releases did not make.
fn open_later<K: Plain, V: Plain>(
    folder: &Path,
    name: &'static str,
) -> Result<Option<Table<K, V>>, TableError> {
    match Table::open(folder, name) {
        Err(TableError::Missing { .. }) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Returns 64 bits from the kernel's random generator.
fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the length is the buffer's. Up to 256 bytes are returned completely once the generator is seeded.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(got, 8, "the kernel's random generator works");
    u64::from_ne_bytes(bytes)
}

/// Makes all threads allocate from one heap, to be called before there are any. Of the heaps that glibc otherwise makes for threads,
/// [`give_back_memory`] could not return the end: what loading programs or reading a cluster needed for a moment would be kept.
pub fn share_one_heap() {
    /// What is larger has pages of its own, and what is free at the heap's end is returned from this size on. glibc would raise both to
    /// what was freed last, up to 32 and 64 MiB.
    #[cfg(target_env = "gnu")]
    const LARGE: libc::c_int = 1 << 20;
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
    }
}

/// Returns memory that is freed but kept by the allocator to the kernel.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Waits until every packet in flight at the time of the call has been handled: an RCU grace period.
pub fn settle() {
    /// linux/membarrier.h: the kernel waits with `synchronize_rcu`.
    const MEMBARRIER_CMD_GLOBAL: libc::c_long = 1;
    // SAFETY: membarrier takes three numbers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 {
        // Refused by a kernel with nohz_full CPUs. Handling a packet takes far less than this.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
