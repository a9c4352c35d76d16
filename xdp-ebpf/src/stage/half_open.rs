//! TCP listeners: the backend is picked at the SYN, which is passed on; the flow opens at the client's ACK.

use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, WINDOW_SCALE_NONE};
use common::reason::Reason;
use common::wire::seq;
use core::ffi::c_void;

use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::packet::{ACK, RST, SYN, Scratch};

/// Places looked at before the oldest half-open connection has to give way.
const PROBES: u32 = 64;

/// Makes `s.hello` carry route and listener for `pick` and `connect_port`, which read them there.
#[inline(always)]
pub(crate) fn begin(s: &mut Scratch) {
    let h = &mut s.hello;
    h.route = s.listener_route;
    h.listener = s.listener;
    h.backend = 0;
    h.tries = 0;
    h.offset = 0;
    h.nat = common::maps::flow::BackendTuple::zeroed();
}

/// Stores the half-open connection whose backend side stands in `s.hello.nat`. Verified once, on its own. 1 = done.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn half_open_store(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let slot = claim(s);
    let (o, h) = (&mut s.half_open, &s.hello);
    o.nat = h.nat;
    o.route = h.route;
    o.backend = h.backend;
    o.listener = h.listener;
    o.slot = slot;
    o.isn = s.segment.seq;
    o.started_ns = s.now_ns;
    o.backend_isn = 0;
    o.answered = 0;
    if slot == u32::MAX || !maps::insert_half_open(&s.client, &s.half_open) {
        return 0;
    }
    // Another CPU may have claimed the same place, or the port: an entry that the ring does not know is never met again.
    let kept = maps::half_open_slot(slot).is_some_and(|held| held.owner == s.client)
        && maps::nat(&s.half_open.nat).is_some_and(|owner| *owner == s.client);
    if !kept {
        half_open_forget(core::ptr::from_ref(&s.client));
    }
    u32::from(kept)
}

/// The search for a place in the ring.
#[repr(C)]
struct Search {
    scratch: *mut Scratch,
    timeout_ns: u64,
    start: u32,
    places: u32,
    found: u32,
}

/// Looks at one place; 1 = it is free.
unsafe extern "C" fn probe(i: u32, search: *mut c_void) -> i64 {
    // SAFETY: `claim` passes a `Search` on its stack.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { search.scratch.as_mut() }) else { return 1 };
    if search.places == 0 {
        return 1;
    }
    let place = search.start.wrapping_add(i) % search.places;
    let Some(slot) = maps::half_open_slot(place) else { return 0 };
    let Some(held) = maps::half_open(&slot.owner) else {
        search.found = place;
        return 1;
    };
    if held.slot != place {
        search.found = place;
        return 1;
    }
    if held.started_ns + search.timeout_ns < s.now_ns {
        // A copy: the place may be claimed meanwhile.
        s.victim = slot.owner;
        forget(&s.victim);
        search.found = place;
        return 1;
    }
    0
}

#[inline(always)]
fn claim(s: &mut Scratch) -> u32 {
    let (Some(settings), Some(cursors)) = (maps::settings(), maps::cursors()) else { return u32::MAX };
    let places = settings.half_opens;
    if places == 0 {
        return u32::MAX;
    }
    let start = maps::advance(&mut cursors.half_open) as u32;
    let mut search =
        Search { scratch: s, timeout_ns: settings.hello_timeout_ns, start, places, found: u32::MAX };
    kernel::repeat(PROBES, probe, core::ptr::from_mut(&mut search).cast());
    let mut place = search.found;
    if place == u32::MAX {
        // Places are taken in turn, so who holds this one is about the oldest; and no other CPU begins here.
        place = start % places;
        evict(s, place);
    }
    let Some(slot) = maps::half_open_slot(place) else { return u32::MAX };
    slot.owner = s.client;
    slot.since_secs = (s.now_ns / 1_000_000_000) as u32;
    place
}

#[inline(always)]
fn evict(s: &mut Scratch, place: u32) {
    let Some(slot) = maps::half_open_slot(place) else { return };
    s.victim = slot.owner;
    if forget(&s.victim) {
        maps::count_event(Reason::SynHalfOpenEvicted);
    }
}

/// Removes a half-open connection with its NAT entry; `false` when somebody else did.
#[inline(always)]
pub(crate) fn forget(client: &ClientTuple) -> bool {
    half_open_forget(core::ptr::from_ref(client)) == 1
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn half_open_forget(client: *const ClientTuple) -> u32 {
    // SAFETY: null is checked; else the caller's tuple.
    let Some(client) = (unsafe { client.as_ref() }) else { return 0 };
    let Some(held) = maps::half_open(client) else { return 0 };
    let nat = held.nat;
    if !maps::remove_half_open(client) {
        return 0;
    }
    maps::free_nat(&nat, client);
    1
}

/// Whether the segment is the client's ACK to the backend's SYN-ACK, or later (RFC 9293 section 3.10.7.4).
#[inline(always)]
pub(crate) fn acknowledged(s: &Scratch) -> bool {
    let (o, seg) = (&s.half_open, &s.segment);
    seg.has(ACK)
        && o.answered == 1
        && seg.ack == o.backend_isn.wrapping_add(1)
        && seq::before_or_at(o.isn.wrapping_add(1), seg.seq)
}

/// Notes the backend's SYN-ACK.
#[inline(always)]
pub(crate) fn answered(s: &Scratch) {
    let seg = &s.segment;
    if seg.has(SYN | ACK)
        && seg.ack == s.half_open.isn.wrapping_add(1)
        && let Some(held) = maps::half_open(&s.client)
    {
        held.backend_isn = seg.seq;
        held.answered = 1;
    }
}

/// Whether the backend refuses our SYN.
#[inline(always)]
pub(crate) fn refused(s: &Scratch) -> bool {
    s.segment.has(RST | ACK) && s.segment.ack == s.half_open.isn.wrapping_add(1)
}

/// The client's ACK came: the half-open connection becomes a flow whose numbers pass unchanged.
#[inline(always)]
pub(crate) fn open(s: &mut Scratch) -> Result<(), Exit> {
    Exit::from_code(half_open_flow(s))
}

/// Verified once, on its own. `s.half_open` is the connection.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn half_open_flow(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    match maps::backend(&s.half_open.backend) {
        Some(backend) if backend.flags & BACKEND_RETIRED == 0 => {}
        _ => return Exit::code(Err(Exit::reset(Reason::ConnectRetired))),
    }
    let (f, o, seg) = (&mut s.flow, &s.half_open, &s.segment);
    f.nat = o.nat;
    f.route = o.route;
    f.backend = o.backend;
    f.seq_delta = 0;
    f.ts_delta = 0;
    f.client_acked = seg.ack;
    f.backend_acked = seg.seq;
    f.client_next = seg.seq;
    f.backend_next = seg.ack;
    f.client_fin = 0;
    f.backend_fin = 0;
    f.seen_secs = (s.now_ns / 1_000_000_000) as u32;
    f.state = FLOW_ESTABLISHED;
    f.flags = 0;
    f.backend_flags = 0;
    f.client_isn = o.isn;
    f.listener = o.listener as u16;
    // Neither scaled: windows pass as they are.
    f.client_scale = WINDOW_SCALE_NONE;
    f.backend_scale = WINDOW_SCALE_NONE;
    if !maps::insert_flow(&s.client, &s.flow) {
        return Exit::code(Err(Exit::reset(Reason::ConnectTableFull)));
    }
    // The NAT entry goes over to the flow.
    maps::remove_half_open(&s.client);
    if let Some(counters) = maps::route_counters(&s.half_open.route) {
        maps::advance(&mut counters.connected);
    }
    Exit::code(Ok(()))
}

/// Turns the packet in hand towards the backend of `s.half_open`.
#[inline(always)]
pub(crate) fn draft(s: &mut Scratch) {
    let (d, n) = (&mut s.draft.tuple, &s.half_open.nat);
    d.client = n.source;
    d.vip = n.backend;
    d.client_port = n.source_port;
    d.vip_port = n.backend_port;
}

/// Drafts the RST that tells the backend of `s.half_open` that its client's ACK was refused.
#[inline(always)]
pub(crate) fn draft_reset(s: &mut Scratch) {
    draft(s);
    let (d, seg) = (&mut s.draft, &s.segment);
    d.payload_bytes = 0;
    d.payload_from = 0;
    d.timestamps = false;
    d.window = 0;
    d.seq = seg.seq;
    d.ack = 0;
    d.flags = RST;
}

/// Turns the packet in hand towards the client.
#[inline(always)]
pub(crate) fn draft_to_client(s: &mut Scratch) {
    let (d, c) = (&mut s.draft.tuple, &s.client);
    d.client = c.vip;
    d.vip = c.client;
    d.client_port = c.vip_port;
    d.vip_port = c.client_port;
}
