//! TCP listeners: the backend is picked at the SYN, which is passed on; the flow opens at the client's ACK.

use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, WINDOW_SCALE_NONE};
use common::reason::Reason;
use common::wire::seq;
use core::ffi::c_void;

use crate::draft;
use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::packet::{ACK, RST, SYN, Scratch, TCP_AT};

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
    o.backend_isn = s.segment.payload_bytes;
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
    // It may have taken data that came with the SYN.
    let syn_data = if s.half_open.answered == 0 { s.half_open.backend_isn } else { 0 };
    if seg.has(SYN | ACK)
        && seg.ack.wrapping_sub(s.half_open.isn.wrapping_add(1)) <= syn_data
        && let Some(held) = maps::half_open(&s.client)
    {
        held.backend_isn = seg.seq;
        held.answered = 1;
    }
}

/// Whether a RST is the client's: at the only number it has so far (RFC 5961 section 3.2). The backend, which waits for
/// the third packet of the handshake, would believe any within its window.
#[inline(always)]
pub(crate) fn abandoned(s: &Scratch) -> bool {
    s.segment.seq == s.half_open.isn.wrapping_add(1)
}

/// Takes the cookie of TCP Fast Open (RFC 7413, and the experimental form before it) out of the SYN in hand: a backend's
/// cookie would be for our address, so one client's would be everybody's. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn half_open_slow_open(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(scratch) = (unsafe { s.as_mut() }) else { return 0 };
    scratch.at = 20;
    let mut walk = Walk { scratch: s };
    kernel::repeat(40, slow_open_step, core::ptr::from_mut(&mut walk).cast());
    0
}

/// Context of [`slow_open_step`]: on the stack, as the kernel wants it.
#[repr(C)]
struct Walk {
    scratch: *mut Scratch,
}

/// Looks at one option; 1 = the end.
unsafe extern "C" fn slow_open_step(_: u32, walk: *mut c_void) -> i64 {
    // SAFETY: `half_open_slow_open` passes a `Walk` on its stack.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { walk.scratch.as_mut() }) else { return 1 };
    let at = s.at;
    if at >= s.segment.tcp_bytes {
        return 1;
    }
    let kind = s.headers.tcp_byte(at);
    let length = if kind == 1 { 1 } else { u32::from(s.headers.tcp_byte(at + 1)) };
    if kind == 0 || length == 0 || kind != 1 && length < 2 || at + length > s.segment.tcp_bytes {
        return 1;
    }
    // Kind 254 is shared: 0xf989 says that it is Fast Open's.
    let experimental = kind == 254 && length >= 4 && s.headers.tcp_be32(at) & 0xffff == 0xf989;
    if kind == 34 || experimental {
        let mut i = 0;
        while i < 40 {
            if i < length {
                s.headers.bytes[TCP_AT + ((at + i) & 63) as usize] = 1;
            }
            i += 1;
        }
    }
    s.at = at + length;
    0
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
    f.cookie = o.backend_isn;
    f.listener = o.listener as u16;
    // Neither scaled: windows pass as they are.
    f.client_scale = WINDOW_SCALE_NONE;
    f.backend_scale = WINDOW_SCALE_NONE;
    f.declined = 0;
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
    draft::to_backend(&mut s.draft, &s.half_open.nat);
}

/// Drafts the RST that tells the backend of `s.half_open` that its client's ACK was refused.
#[inline(always)]
pub(crate) fn draft_reset(s: &mut Scratch) {
    draft(s);
    draft::reset_at(&mut s.draft, s.segment.seq);
}

/// Turns the packet in hand towards the client.
#[inline(always)]
pub(crate) fn draft_to_client(s: &mut Scratch) {
    draft::to_client(&mut s.draft, &s.client);
}
