//! Every map, in the order a packet meets them, and the only access to them.

use aya_ebpf::bindings::{BPF_ANY, BPF_EXIST, BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf};
use aya_ebpf::macros::btf_map;
use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::event::{Expiry, RouteCounters};
use common::maps::flow::{BackendTuple, Chunk, ClientTuple, Flow, HalfOpen, Hello, Slot, Source};
use common::maps::listener::{AddressRole, Listener, ListenerKey};
use common::maps::route::{
    Label, LabelKey, MemberKey, NameKey, NameRoute, Page, PageKey, Route, ShortNameKey, SuffixKey,
};
use common::maps::settings::{CookieKey, Cursors, Ids, Settings};
use common::reason::{REASONS_MAX, Reason};

use crate::packet::{NextHop, Scratch};

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

/// What stands behind the fixed part of [`SuffixKey`], as aya's LPM key wants it.
#[repr(C)]
pub(crate) struct SuffixData {
    listener: [u8; 2],
    reversed: [u8; 254],
}

// The sizes given here are those of a small test; the loader sets the real ones from the settings.
#[btf_map]
pub(crate) static ABI: Array<u32, 1> = Array::new();
#[btf_map]
pub(crate) static SETTINGS: Array<Settings, 1> = Array::new();
#[btf_map]
pub(crate) static COOKIE_KEYS: Array<CookieKey, 2> = Array::new();
#[btf_map]
pub(crate) static CURSORS: Array<Cursors, 1> = Array::new();
#[btf_map]
pub(crate) static IDS: Array<Ids, 1> = Array::new();
#[btf_map]
pub(crate) static DRAIN: Array<u32, 1> = Array::new();
#[btf_map]
pub(crate) static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();
#[btf_map]
pub(crate) static NEXT_HOPS: PerCpuArray<NextHop, 256> = PerCpuArray::new();
#[btf_map]
pub(crate) static COUNTERS: PerCpuArray<u64, REASONS_MAX> = PerCpuArray::new();
#[btf_map]
pub(crate) static EVICTIONS: RingBuf<Expiry, 262_144> = RingBuf::new();
#[btf_map]
pub(crate) static ADDRESSES: HashMap<Address, AddressRole, 65_536, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static LISTENERS: HashMap<ListenerKey, Listener, 65_536, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ROUTES_EXACT: HashMap<ShortNameKey, NameRoute, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ROUTES_LONG: HashMap<NameKey, NameRoute, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ROUTES_WILDCARD: LpmTrie<SuffixData, NameRoute, 1024> = LpmTrie::new();
#[btf_map]
pub(crate) static ROUTES: HashMap<u32, Route, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static MAGLEV: HashMap<PageKey, Page, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static MEMBERS: HashMap<MemberKey, u32, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static BACKENDS: HashMap<u32, Backend, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static LABELS: HashMap<LabelKey, Label, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ROUTE_COUNTERS: HashMap<u32, RouteCounters, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static FLOWS: HashMap<ClientTuple, Flow, 1024> = HashMap::new();
#[btf_map]
pub(crate) static NATS: HashMap<BackendTuple, ClientTuple, 1024> = HashMap::new();
#[btf_map]
pub(crate) static HELLOS: HashMap<ClientTuple, Hello, 1024> = HashMap::new();
#[btf_map]
pub(crate) static CHUNKS: Array<Chunk, 1024> = Array::new();
#[btf_map]
pub(crate) static SOURCES: HashMap<Address, Source, 1024> = HashMap::new();
#[btf_map]
pub(crate) static HALF_OPENS: HashMap<ClientTuple, HalfOpen, 1024> = HashMap::new();
#[btf_map]
pub(crate) static HALF_OPEN_RING: Array<Slot, 1024> = Array::new();
#[btf_map]
pub(crate) static CLOSED_RING: Array<Slot, 1024> = Array::new();

/// Makes accessors that hand out a reference into a hash map.
///
/// Map memory is shared with other CPUs; each field is read and written on its own, and a torn read of two fields is
/// tolerated by every reader. An entry deleted meanwhile may at once become another key's: what decides where bytes go
/// is copied, and looked up again before it is believed.
macro_rules! hash_access {
    ($($find:ident $map:ident: $key:ty => $value:ty;)*) => { $(
        #[doc = concat!("The entry of `", stringify!($map), "`.")]
        #[inline(always)]
        pub(crate) fn $find(key: &$key) -> Option<&'static mut $value> {
            // SAFETY: non-null by the lookup, and memory of this map until the program ends; see the macro.
            $map.get_ptr_mut(key).map(|p| unsafe { &mut *p })
        }
    )* };
}

hash_access! {
    role ADDRESSES: Address => AddressRole;
    listener LISTENERS: ListenerKey => Listener;
    exact ROUTES_EXACT: ShortNameKey => NameRoute;
    long ROUTES_LONG: NameKey => NameRoute;
    route ROUTES: u32 => Route;
    page MAGLEV: PageKey => Page;
    member MEMBERS: MemberKey => u32;
    backend BACKENDS: u32 => Backend;
    route_counters ROUTE_COUNTERS: u32 => RouteCounters;
    flow FLOWS: ClientTuple => Flow;
    nat NATS: BackendTuple => ClientTuple;
    hello HELLOS: ClientTuple => Hello;
    source SOURCES: Address => Source;
    half_open HALF_OPENS: ClientTuple => HalfOpen;
}

/// The longest wildcard that matches.
#[inline(always)]
pub(crate) fn wildcard(key: &SuffixKey) -> Option<u32> {
    let key = core::ptr::from_ref(key).cast::<Key<SuffixData>>();
    // SAFETY: `SuffixKey` has the layout of `Key<SuffixData>`: a u32 of prefix bits, then 256 bytes.
    unsafe { ROUTES_WILDCARD.get(&*key).map(|found| found.route) }
}

/// Makes accessors that hand out a reference into an array map.
macro_rules! array_access {
    ($($find:ident $map:ident => $value:ty;)*) => { $(
        #[doc = concat!("The element of `", stringify!($map), "`.")]
        #[inline(always)]
        pub(crate) fn $find(index: u32) -> Option<&'static mut $value> {
            // SAFETY: non-null by the lookup; array elements are never freed.
            $map.get_ptr_mut(index).map(|p| unsafe { &mut *p })
        }
    )* };
}

array_access! {
    chunk CHUNKS => Chunk;
    half_open_slot HALF_OPEN_RING => Slot;
    closed_slot CLOSED_RING => Slot;
    cookie_key COOKIE_KEYS => CookieKey;
    scratch SCRATCH => Scratch;
    next_hop NEXT_HOPS => NextHop;
}

/// The settings in force.
#[inline(always)]
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get(0)
}

/// Whether new connections are to be refused.
#[inline(always)]
pub(crate) fn is_draining() -> bool {
    DRAIN.get(0).is_some_and(|value| *value != 0)
}

/// The cursors of the rings.
#[inline(always)]
pub(crate) fn cursors() -> Option<&'static mut Cursors> {
    // SAFETY: as in `array_access!`.
    CURSORS.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

/// Adds 1 and returns the value before, atomically over all CPUs.
#[inline(always)]
pub(crate) fn advance(counter: &mut u64) -> u64 {
    // The target says it has no atomics (true before cpu v3), so core offers no `fetch_add`; the intrinsic is one
    // BPF instruction.
    #[cfg(target_arch = "bpf")]
    // SAFETY: valid and aligned; map memory is only changed by atomic additions here.
    return unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::SeqCst }>(counter, 1)
    };
    #[cfg(not(target_arch = "bpf"))]
    core::mem::replace(counter, counter.wrapping_add(1))
}

/// Adds modulo 2^32 and returns the value before, atomically over all CPUs.
#[inline(always)]
pub(crate) fn add(counter: &mut u32, value: u32) -> u32 {
    #[cfg(target_arch = "bpf")]
    // SAFETY: as in `advance`.
    return unsafe {
        core::intrinsics::atomic_xadd::<u32, u32, { core::intrinsics::AtomicOrdering::SeqCst }>(
            counter, value,
        )
    };
    #[cfg(not(target_arch = "bpf"))]
    core::mem::replace(counter, counter.wrapping_add(value))
}

/// Writes `new` and returns the value before, atomically over all CPUs.
#[inline(always)]
pub(crate) fn exchange(word: &mut u32, new: u32) -> u32 {
    #[cfg(target_arch = "bpf")]
    // SAFETY: as in `advance`.
    return unsafe {
        core::intrinsics::atomic_xchg::<u32, { core::intrinsics::AtomicOrdering::SeqCst }>(word, new)
    };
    #[cfg(not(target_arch = "bpf"))]
    core::mem::replace(word, new)
}

/// Counts a reason on this CPU.
#[inline(always)]
pub(crate) fn count(reason: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason) {
        // SAFETY: non-null by the lookup; nobody else writes this CPU's element.
        unsafe { *counter += 1 };
    }
}

/// Counts an event that is not the packet's own exit.
#[inline(always)]
pub(crate) fn count_event(reason: Reason) {
    count(reason as u32);
}

/// Stores a NAT entry unless the four-tuple is taken.
#[inline(always)]
pub(crate) fn claim_nat(key: &BackendTuple, client: &ClientTuple) -> bool {
    NATS.insert(key, client, u64::from(BPF_NOEXIST)).is_ok()
}

/// Stores a NAT entry whoever held it.
#[inline(always)]
pub(crate) fn take_nat(key: &BackendTuple, client: &ClientTuple) -> bool {
    NATS.insert(key, client, u64::from(BPF_ANY)).is_ok()
}

/// Removes a NAT entry, if it is this client's.
#[inline(always)]
pub(crate) fn free_nat(key: &BackendTuple, owner: &ClientTuple) {
    if nat(key).is_some_and(|holder| *holder == *owner) {
        let _ = NATS.remove(key);
    }
}

/// Stores a flow unless there is one.
#[inline(always)]
pub(crate) fn insert_flow(key: &ClientTuple, flow: &Flow) -> bool {
    FLOWS.insert(key, flow, u64::from(BPF_NOEXIST)).is_ok()
}

/// Removes a flow; `false` when somebody else did.
#[inline(always)]
pub(crate) fn remove_flow(key: &ClientTuple) -> bool {
    FLOWS.remove(key).is_ok()
}

/// Stores a hello over the one that is there; `false` when there is none.
#[inline(always)]
pub(crate) fn update_hello(key: &ClientTuple, hello: &Hello) -> bool {
    HELLOS.insert(key, hello, u64::from(BPF_EXIST)).is_ok()
}

/// Stores a hello over whatever was there.
#[inline(always)]
pub(crate) fn put_hello(key: &ClientTuple, hello: &Hello) -> bool {
    HELLOS.insert(key, hello, u64::from(BPF_ANY)).is_ok()
}

/// Removes a hello; `false` when somebody else did.
#[inline(always)]
pub(crate) fn remove_hello(key: &ClientTuple) -> bool {
    HELLOS.remove(key).is_ok()
}

/// Stores a half-open connection unless there is one.
#[inline(always)]
pub(crate) fn insert_half_open(key: &ClientTuple, half_open: &HalfOpen) -> bool {
    HALF_OPENS.insert(key, half_open, u64::from(BPF_NOEXIST)).is_ok()
}

/// Removes a half-open connection; `false` when somebody else did.
#[inline(always)]
pub(crate) fn remove_half_open(key: &ClientTuple) -> bool {
    HALF_OPENS.remove(key).is_ok()
}

/// Stores the count of a source.
#[inline(always)]
pub(crate) fn insert_source(key: &Address, source: &Source) -> bool {
    SOURCES.insert(key, source, u64::from(BPF_ANY)).is_ok()
}

/// Tells the daemon of a hello that gave way.
#[inline(always)]
pub(crate) fn report(expiry: &Expiry) {
    let _ = EVICTIONS.output(expiry, 0);
}
