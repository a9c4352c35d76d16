//! All maps, and the only code that accesses them.

use core::ptr;

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST, BPF_RB_AVAIL_DATA};
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf};
use aya_ebpf::helpers::generated::bpf_ringbuf_query;
use aya_ebpf::macros::btf_map;
use common::decide::store::{self, Unstored, unstored};
use common::decide::{source_port, told};
use common::maps::address::Address;
use common::maps::announced::{Announced, AnnouncedKey};
use common::maps::backend::Backend;
use common::maps::event::{Expiry, RouteCounters};
use common::maps::flow::{
    BackendTuple, Buffer, ClientTuple, FLOW_UNDELIVERED, Flow, HalfOpen, Pending, Reply, Slot,
};
use common::maps::listener::{self, AddressRole, Listener, ListenerKey};
use common::maps::next_hop::{self, Hop};
use common::maps::policy::{PolicyRange, RANGES_MAX};
use common::maps::previous::{Peer, PeerKey, Previous};
use common::maps::route::{
    Label, LabelKey, MemberKey, NameKey, NameRoute, Page, PageKey, Route, ShortNameKey,
};
use common::maps::segment::{Bid, HeardNs, Owned, Segment};
use common::maps::settings::{CookieKey, Cursors, Ids, Settings};
use common::maps::source::{Share, ShareKey, Source};
use common::maps::trace::{TraceCount, TraceFilter};
use common::maps::{told::Told, word::Word};
use common::reason::{REASONS_MAX, Reason};

use crate::atomic;
use crate::scratch::{Front, NextHop, Scratch};
use crate::trie_key::{PolicyData, SuffixData};
use crate::verified::verified;

/// What the decision looks up.
mod tables;
/// The list of flows whose backend sees its client.
pub(crate) mod dnat_flows;

pub(crate) use tables::Maps;

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;
/// Bytes of the ring of what the daemon is to know at once.
const EVICTIONS_BYTES: usize = 262_144;

// The sizes given here suit a small test; the loader sets the real ones from the settings.
#[btf_map]
pub(crate) static ABI: Array<u32, 1> = Array::new();
#[btf_map]
pub(crate) static SETTINGS: Array<Settings, 1> = Array::new();
#[btf_map]
pub(crate) static COOKIE_KEYS: Array<CookieKey, 2> = Array::new();
#[btf_map]
pub(crate) static CURSORS: Array<Cursors, 1> = Array::new();
#[btf_map]
pub(crate) static PORT_CURSORS: Array<u64, { source_port::CURSORS }> = Array::new();
#[btf_map]
pub(crate) static IDS: Array<Ids, 1> = Array::new();
#[btf_map]
pub(crate) static DRAIN: Array<u32, 1> = Array::new();
#[btf_map]
pub(crate) static NODE_CLIENTS: Array<u32, 1> = Array::new();
#[btf_map]
pub(crate) static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();
#[btf_map]
pub(crate) static FRONT: PerCpuArray<Front, 1> = PerCpuArray::new();
#[btf_map]
pub(crate) static FRONT_HOPS: PerCpuArray<NextHop, 256> = PerCpuArray::new();
#[btf_map]
pub(crate) static NEXT_HOPS: PerCpuArray<NextHop, 256> = PerCpuArray::new();
#[btf_map]
pub(crate) static HOPS: Array<Hop, { next_hop::HOPS as usize }> = Array::new();
#[btf_map]
pub(crate) static TRACE: Array<TraceFilter, 1> = Array::new();
#[btf_map]
pub(crate) static TRACE_COUNT: Array<TraceCount, 1> = Array::new();
#[btf_map]
pub(crate) static COUNTERS: PerCpuArray<u64, REASONS_MAX> = PerCpuArray::new();
#[btf_map]
pub(crate) static EVICTIONS: RingBuf<Expiry, EVICTIONS_BYTES> = RingBuf::new();
#[btf_map]
pub(crate) static ADDRESSES: HashMap<Address, AddressRole, 65_536, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ANNOUNCED: HashMap<AnnouncedKey, Announced, 65_536, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static SEGMENTS: HashMap<u32, Segment, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static HEARD: HashMap<u32, HeardNs, 1024> = HashMap::new();
#[btf_map]
pub(crate) static BIDS: HashMap<AnnouncedKey, Bid, 65_536, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static OWNED: HashMap<AnnouncedKey, Owned, 65_536, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static PREVIOUS: HashMap<AnnouncedKey, Previous, 4096, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static PEERS: HashMap<PeerKey, Peer, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static LISTENERS: HashMap<ListenerKey, Listener, 65_536, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ROUTES_EXACT: HashMap<ShortNameKey, NameRoute, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ROUTES_LONG: HashMap<NameKey, NameRoute, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static ROUTES_WILDCARD: LpmTrie<SuffixData, NameRoute, 1024> = LpmTrie::new();
#[btf_map]
pub(crate) static POLICIES: LpmTrie<PolicyData, PolicyRange, RANGES_MAX> = LpmTrie::new();
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
pub(crate) static NATS: HashMap<BackendTuple, Reply, 1024> = HashMap::new();
#[btf_map]
pub(crate) static PENDING: HashMap<ClientTuple, Pending, 1024> = HashMap::new();
#[btf_map]
pub(crate) static BUFFERS: Array<Buffer, 1024> = Array::new();
#[btf_map]
pub(crate) static SOURCES: HashMap<Address, Source, 1024> = HashMap::new();
#[btf_map]
pub(crate) static SHARES: HashMap<ShareKey, Share, 1024, NO_PREALLOC> = HashMap::new();
#[btf_map]
pub(crate) static HALF_OPENS: HashMap<ClientTuple, HalfOpen, 1024> = HashMap::new();
#[btf_map]
pub(crate) static HALF_OPEN_RING: Array<Slot, 1024> = Array::new();
#[btf_map]
pub(crate) static HALF_OPEN_COUNT: Array<u32, { listener::IDS }> = Array::new();
#[btf_map]
pub(crate) static CLOSED_RING: Array<Slot, 1024> = Array::new();

/// Makes accessors that return a reference into a hash map, found [`once`] or [`overwritten`].
///
/// Map memory is shared with other CPUs. Each field is read and written on its own, and every reader tolerates a torn read of
/// two fields. The element of a deleted entry may be reused for another key at once. So data that decides where bytes go is
/// copied, and looked up again before it is used.
macro_rules! hash_access {
    ($look:ident; $($find:ident $map:ident: $key:ty => $value:ty;)*) => { $(
        #[doc = concat!("The entry of `", stringify!($map), "`.")]
        #[inline(always)]
        pub(crate) fn $find(key: &$key) -> Option<&'static mut $value> {
            // SAFETY: non-null by the lookup, and memory of this map until the program ends; see the macro.
            $look(|| $map.get_ptr_mut(key)).map(|p| unsafe { &mut *p })
        }
    )* };
}

/// Looks up an entry that only packets make and remove.
#[inline(always)]
fn once<T>(find: impl Fn() -> Option<T>) -> Option<T> {
    find()
}

/// Looks up an entry that the daemon may be overwriting.
///
/// The kernel adds the new element at the head of the chain, then removes the old one (`htab_map_update_elem`). A look-up that
/// was past the head by then finds neither, and has to be repeated.
#[inline(always)]
fn overwritten<T>(find: impl Fn() -> Option<T>) -> Option<T> {
    find().or_else(find)
}

hash_access! { overwritten;
    role ADDRESSES: Address => AddressRole;
    announced ANNOUNCED: AnnouncedKey => Announced;
    segment SEGMENTS: u32 => Segment;
    previous PREVIOUS: AnnouncedKey => Previous;
    peer PEERS: PeerKey => Peer;
    backend BACKENDS: u32 => Backend;
}

hash_access! { once;
    heard HEARD: u32 => HeardNs;
    route_counters ROUTE_COUNTERS: u32 => RouteCounters;
    flow FLOWS: ClientTuple => Flow;
    reply NATS: BackendTuple => Reply;
    pending PENDING: ClientTuple => Pending;
    source SOURCES: Address => Source;
    share SHARES: ShareKey => Share;
    half_open HALF_OPENS: ClientTuple => HalfOpen;
}

/// Makes accessors that return a reference into an array map.
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
    buffer BUFFERS => Buffer;
    half_open_slot HALF_OPEN_RING => Slot;
    half_open_count HALF_OPEN_COUNT => u32;
    closed_slot CLOSED_RING => Slot;
    cookie_key COOKIE_KEYS => CookieKey;
    port_cursor PORT_CURSORS => u64;
    scratch SCRATCH => Scratch;
    front FRONT => Front;
    front_hop FRONT_HOPS => NextHop;
    next_hop NEXT_HOPS => NextHop;
    hop HOPS => Hop;
    trace_filter TRACE => TraceFilter;
    trace_count TRACE_COUNT => TraceCount;
}

/// Returns the current settings.
#[inline(always)]
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get(0)
}

/// Whether new connections must be refused.
#[inline(always)]
pub(crate) fn is_draining() -> bool {
    DRAIN.get(0).is_some_and(|value| *value != 0)
}

/// Returns the device by which clients on the node itself come and are answered; 0, which is no device's: there is none.
#[inline(always)]
pub(crate) fn node_clients() -> u32 {
    NODE_CLIENTS.get(0).map_or(0, |device| *device)
}

/// Returns the cursors of the rings.
#[inline(always)]
pub(crate) fn cursors() -> Option<&'static mut Cursors> {
    // SAFETY: as in `array_access!`.
    CURSORS.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

/// Whether bytes of the flow are still undelivered, read again after a lookup of those bytes failed. A CPU that
/// receives the backend's acknowledgement first clears the flag, by an exchange, and then removes the hello.
#[inline(always)]
pub(crate) fn is_undelivered(flow: &mut Flow, generation: u32) -> bool {
    // The failed lookup comes before the read below.
    atomic::fence(&mut flow.seen_secs);
    let head = atomic::word(atomic::head(&mut flow.connection));
    head.generation == generation && head.flags & FLOW_UNDELIVERED != 0
}

/// Returns a number that no other connection of the node has.
#[inline(always)]
pub(crate) fn next_generation() -> u32 {
    cursors().map_or(0, |cursors| (atomic::advance(&mut cursors.generation) as u32).wrapping_add(1))
}

/// Returns the identification of an IPv4 packet that is cut into `segments` segments, each of which has the next number.
#[inline(always)]
pub(crate) fn next_identification(segments: u32) -> u16 {
    cursors().map_or(0, |cursors| atomic::add(&mut cursors.identification, segments) as u16)
}

/// Whether one more IPv6 error "too big" about a client may be passed to its backend in this second; it is then counted.
#[inline(always)]
pub(crate) fn has_room_for_error(client: &Address, second: u32) -> bool {
    let (Some(cursors), Some(key)) = (cursors(), cookie_key(0)) else { return false };
    let group = told::group(client, key);
    atomic::change(&mut cursors.told[Told::word(group)], 0, |was| Told::of(was).raised(second, group).bits())
        .is_some_and(|was| Told::of(was).has_room(second, group))
}

/// Counts a reason on this CPU.
#[inline(always)]
pub(crate) fn count(reason: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason) {
        // SAFETY: non-null by the lookup; no other CPU writes this CPU's element.
        unsafe { *counter += 1 };
    }
}

/// Counts an event that is not the packet's own exit.
#[inline(always)]
pub(crate) fn count_event(reason: Reason) {
    count(reason as u32);
}

/// Whether an element is gone after this attempt to remove it.
#[inline(always)]
fn is_gone(removed: Result<(), i32>) -> bool {
    removed.err().is_none_or(store::is_missing)
}

/// Stores the connection that a backend's replies belong to, unless the four-tuple already has one.
#[inline(always)]
pub(crate) fn claim_reply(key: &BackendTuple, reply: &Reply) -> bool {
    NATS.insert(key, reply, u64::from(BPF_NOEXIST)).is_ok()
}

/// Removes the connection that a backend's replies belong to. If the kernel refuses, the daemon's sweep finds the entry.
#[inline(always)]
pub(crate) fn remove_reply(key: &BackendTuple) {
    let _ = NATS.remove(key);
}

/// Stores a flow unless there is one.
#[inline(always)]
pub(crate) fn insert_flow(key: &ClientTuple, flow: &Flow) -> Result<(), Unstored> {
    FLOWS.insert(key, flow, u64::from(BPF_NOEXIST)).map_err(unstored)
}

/// Removes a flow; `false`: it is still there.
#[inline(always)]
pub(crate) fn remove_flow(key: &ClientTuple) -> bool {
    is_gone(FLOWS.remove(key))
}

/// Stores a hello unless the client has one.
#[inline(always)]
pub(crate) fn insert_pending(key: &ClientTuple, hello: &Pending) -> Result<(), Unstored> {
    PENDING.insert(key, hello, u64::from(BPF_NOEXIST)).map_err(unstored)
}

/// Removes a hello; `false`: it is still there.
#[inline(always)]
pub(crate) fn remove_pending(key: &ClientTuple) -> bool {
    is_gone(PENDING.remove(key))
}

/// Stores a half-open connection unless there is one.
#[inline(always)]
pub(crate) fn insert_half_open(key: &ClientTuple, half_open: &HalfOpen) -> Result<(), Unstored> {
    HALF_OPENS.insert(key, half_open, u64::from(BPF_NOEXIST)).map_err(unstored)
}

/// Removes a half-open connection; `false`: it is still there.
#[inline(always)]
pub(crate) fn remove_half_open(key: &ClientTuple) -> bool {
    is_gone(HALF_OPENS.remove(key))
}

/// Notes when another node was last there on a device. Where the map is full, it counts as never.
#[inline(always)]
pub(crate) fn note_heard(device: u32, now_ns: HeardNs) {
    if let Some(heard) = heard(&device) {
        atomic::write_long(heard, now_ns);
    } else {
        let _ = HEARD.insert(&device, &now_ns, 0);
    }
}

/// Stores the count of waiting hellos of a source, unless it has one.
#[inline(always)]
pub(crate) fn insert_source(key: &Address, source: &Source) -> bool {
    SOURCES.insert(key, source, u64::from(BPF_NOEXIST)).is_ok()
}

/// Stores what a source has of a route, unless that is stored already.
#[inline(always)]
pub(crate) fn insert_share(key: &ShareKey, share: &Share) -> bool {
    SHARES.insert(key, share, u64::from(BPF_NOEXIST)).is_ok()
}

/// Drops the count of a source's flows to a route; `false` when there is none.
#[inline(always)]
pub(crate) fn remove_share(key: &ShareKey) -> bool {
    SHARES.remove(key).is_ok()
}

verified! {
    /// Reports to the daemon that a RST put this client's flow on trial, as long as half of the ring is left for evictions: their clients
    /// wait for a RST, while the daemon's next walk finds a flow on trial, too, and is made sooner for what is counted as lost here.
    pub(crate) fn report_trial as maps_report_trial(client: ClientTuple) -> () {
        let ring = ptr::from_ref(&EVICTIONS).cast_mut().cast();
        // SAFETY: the address of the static is that of the map, for the kernel's verifier too, which the library has no method for.
        let unread = unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) };
        if unread < EVICTIONS_BYTES as u64 / 2 && EVICTIONS.output_untyped(&*client, 0).is_ok() {
            return;
        }
        count_event(Reason::ForwardUnreported);
    }
}

/// Reports an evicted hello to the daemon.
#[inline(always)]
pub(crate) fn report(expiry: &Expiry) {
    let _ = EVICTIONS.output(expiry, 0);
}
