//! Opens the connection to the backend: source port, SYN, and the hello when the backend answers.

use aya_ebpf::bindings::__sk_buff;
use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::{
    DECLINED_SACK, DECLINED_TIMESTAMPS, FLOW_ESTABLISHED, FLOW_OWED, HELLO_CONNECTING, HELLO_OWED,
    HELLO_SACK, HELLO_TIMESTAMPS, WINDOW_SCALE_NONE,
};
use common::reason::Reason;
use core::ffi::c_void;

use crate::draft;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, PSH, RST, SYN, Scratch};
use crate::stage::{emit, stash};

/// Source ports tried before the connection is refused.
const PORTS_TRIED: u32 = 32;

/// Claims a source port towards the backend that `pick` put into `s.hello.nat`. Verified once, on its own. 1 = done.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn connect_port(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    let mut search = PortSearch { skb, scratch: s, found: 0 };
    kernel::repeat(PORTS_TRIED, try_port, core::ptr::from_mut(&mut search).cast());
    search.found
}

/// The search for a source port.
#[repr(C)]
struct PortSearch {
    skb: *mut __sk_buff,
    scratch: *mut Scratch,
    found: u32,
}

/// Tries the next port of the range; 1 = claimed.
unsafe extern "C" fn try_port(_: u32, search: *mut c_void) -> i64 {
    // SAFETY: `connect_port` passes a `PortSearch` on its stack.
    let search = unsafe { &mut *search.cast::<PortSearch>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { search.scratch.as_mut() }) else { return 1 };
    let (Some(settings), Some(cursors)) = (maps::settings(), maps::cursors()) else { return 1 };
    let ports = u32::from(settings.source_port_last) + 1;
    let first = u32::from(settings.source_port_first);
    if ports <= first {
        return 1;
    }
    // One after the other: the longest time until a port comes again (TIME_WAIT at the backend).
    let port = first + maps::advance(&mut cursors.source_port) as u32 % (ports - first);
    s.hello.nat.source_port.bytes = (port as u16).to_be_bytes();
    if !maps::claim_nat(&s.hello.nat, &s.client) && !abandoned(s) {
        return 0;
    }
    if Skb(search.skb).socket_exists(&s.hello.nat, s.segment.v4, &mut s.socket) {
        maps::free_nat(&s.hello.nat, &s.client);
        return 0;
    }
    search.found = 1;
    1
}

/// Takes over a NAT entry whose connection is gone (its owner was reclaimed without it).
#[inline(always)]
fn abandoned(s: &mut Scratch) -> bool {
    let Some(owner) = maps::nat(&s.hello.nat) else { return false };
    s.victim = *owner;
    let gone = maps::flow(&s.victim).is_none()
        && maps::hello(&s.victim).is_none()
        && maps::half_open(&s.victim).is_none();
    if !gone || !maps::take_nat(&s.hello.nat, &s.client) {
        return false;
    }
    // The owner may have been about to store its entry: then it is given back.
    if maps::flow(&s.victim).is_some()
        || maps::hello(&s.victim).is_some()
        || maps::half_open(&s.victim).is_some()
    {
        maps::take_nat(&s.hello.nat, &s.victim);
        return false;
    }
    true
}

/// Sends the SYN for the hello in `s.hello` to the backend that `pick` chose, from a packet of either side.
#[inline(always)]
pub(crate) fn open(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    if connect_port(skb.0, s) == 0 {
        return Exit::reset(Reason::ConnectNoPort);
    }
    s.hello.state = HELLO_CONNECTING;
    s.hello.retransmits = 0;
    if !maps::put_hello(&s.client, &s.hello) {
        maps::free_nat(&s.hello.nat, &s.client);
        return Exit::reset(Reason::HelloStashFailed);
    }
    // Whoever took the port meanwhile keeps it.
    if !maps::nat(&s.hello.nat).is_some_and(|owner| *owner == s.client) {
        return Exit::reset(Reason::ConnectNoPort);
    }
    send_syn(skb, s, reason)
}

/// Sends the SYN once more, to the same backend.
#[inline(always)]
pub(crate) fn again(skb: Skb, s: &mut Scratch) -> Exit {
    if !maps::update_hello(&s.client, &s.hello) {
        // The backend answered meanwhile.
        return Exit::drop(Reason::HelloBeyond);
    }
    send_syn(skb, s, Reason::ConnectAgain)
}

/// An old connection of the backend's stands in the way: it is reset, and the SYN repeated at once. Once a try: what
/// answers so again waits for the client's clock, which asks the next backend.
#[inline(always)]
pub(crate) fn push_aside(skb: Skb, s: &mut Scratch) -> Exit {
    if s.hello.retransmits > 0 {
        return emit::reset(skb, s, Reason::ConnectStray);
    }
    s.hello.retransmits = 1;
    if !maps::update_hello(&s.client, &s.hello) {
        return emit::reset(skb, s, Reason::ConnectStray);
    }
    if let Err(failed) = emit::learn_partial(skb, s) {
        return failed;
    }
    draft::answer(s);
    draft::reset_numbers(&mut s.draft, &s.segment);
    emit::emit_copy(skb.0, s);
    send_syn(skb, s, Reason::ConnectOld)
}

#[inline(always)]
fn send_syn(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    draft::to_backend(&mut s.draft, &s.hello.nat);
    let (d, h) = (&mut s.draft, &s.hello);
    d.payload_bytes = 0;
    d.payload_from = 0;
    d.seq = h.isn;
    d.ack = 0;
    d.flags = SYN;
    // A SYN's window is not scaled (RFC 7323 section 2.2).
    let shift = if h.window_scale == WINDOW_SCALE_NONE { 0 } else { u32::from(h.window_scale & 15) };
    d.window = (u32::from(h.window) << shift).min(65_535) as u16;
    let headers = if s.segment.v4 { 40 } else { 60 };
    d.mss = h.mss.min(h.backend_mss.saturating_sub(headers));
    d.window_scale = h.window_scale;
    d.sack_permitted = h.flags & HELLO_SACK != 0;
    d.timestamps = h.flags & HELLO_TIMESTAMPS != 0;
    d.tsval = h.client_tsval;
    d.tsecr = 0;
    emit::send(skb, s, reason)
}

/// Drafts a RST to the client of `s.hello`, at the number it waits for.
#[inline(always)]
pub(crate) fn draft_client_reset(s: &mut Scratch) {
    draft::to_client(&mut s.draft, &s.client);
    draft::reset_at(&mut s.draft, s.hello.cookie.wrapping_add(1));
}

/// What a backend's segment means to a connection that waits for its SYN-ACK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// SYN-ACK to our SYN.
    Accepted,
    /// RST to our SYN.
    Refused,
    /// The acknowledgement of an old connection on the same ports: TIME_WAIT, or one whose end the backend missed.
    Old,
    /// Something else.
    Stray,
}

/// Reads the backend's answer; `s.hello` is the connection.
#[inline(always)]
pub(crate) fn answer(s: &Scratch) -> Answer {
    let seg = &s.segment;
    let acceptable = seg.has(ACK) && seg.ack == s.hello.isn.wrapping_add(1);
    if acceptable && seg.has(RST) {
        Answer::Refused
    } else if acceptable && seg.has(SYN) {
        Answer::Accepted
    } else if seg.has(ACK) && !seg.has(RST) && !seg.has(SYN) {
        Answer::Old
    } else {
        Answer::Stray
    }
}

/// The backend accepted: makes the flow and delivers the hello. `Err` with a reset verdict: the client is to be told.
#[inline(always)]
pub(crate) fn establish(s: &mut Scratch) -> Result<(), Exit> {
    Exit::from_code(connect_establish(s))
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn connect_establish(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    Exit::code(make_flow(s))
}

#[inline(always)]
fn make_flow(s: &mut Scratch) -> Result<(), Exit> {
    match maps::backend(&s.hello.backend) {
        Some(backend) if backend.flags & BACKEND_RETIRED == 0 => {}
        _ => return Err(Exit::reset(Reason::ConnectRetired)),
    }
    let (f, h, seg) = (&mut s.flow, &mut s.hello, &s.segment);
    let timestamps = h.flags & HELLO_TIMESTAMPS != 0 && seg.timestamps_at != 0;
    f.nat = h.nat;
    f.route = h.route;
    f.backend = h.backend;
    f.seq_delta = seg.seq.wrapping_sub(h.cookie);
    // Tied at the last timestamp we sent, so that echoes of it are the backend's own SYN-ACK's: Linux from 6.15 on takes
    // no other while it waits for our ACK.
    f.ts_delta = if timestamps { seg.tsval.wrapping_sub(h.our_tsval) } else { 0 };
    f.client_acked = h.cookie.wrapping_add(1);
    f.backend_acked = h.isn.wrapping_add(1);
    f.client_next = h.isn.wrapping_add(1).wrapping_add(h.have);
    f.backend_next = seg.seq.wrapping_add(1);
    f.client_fin = 0;
    f.backend_fin = 0;
    f.seen_secs = (s.now_ns / 1_000_000_000) as u32;
    f.state = FLOW_ESTABLISHED;
    f.flags = 0;
    f.backend_flags = if h.acked > 0 { FLOW_OWED } else { 0 };
    f.client_isn = h.isn;
    f.cookie = h.cookie;
    f.listener = h.listener as u16;
    f.client_scale = h.window_scale;
    f.backend_scale = seg.window_scale;
    f.declined = 0;
    if !timestamps && h.flags & HELLO_TIMESTAMPS != 0 {
        f.declined |= DECLINED_TIMESTAMPS;
    }
    if !seg.sack_permitted && h.flags & HELLO_SACK != 0 {
        f.declined |= DECLINED_SACK;
    }
    let unscaled = h.window_scale != WINDOW_SCALE_NONE && seg.window_scale == WINDOW_SCALE_NONE;
    if f.declined != 0 || unscaled {
        maps::count_event(Reason::ConnectDeclined);
    }
    let default = if seg.v4 { 536 } else { 1220 };
    let headers = if seg.v4 { 40 } else { 60 };
    let told = if seg.mss == 0 { default } else { seg.mss };
    // Timestamps take 12 bytes of each segment (RFC 6691).
    h.backend_mss =
        told.min(h.backend_mss.saturating_sub(headers)).clamp(88, 8960) - if timestamps { 12 } else { 0 };
    if !timestamps {
        h.flags &= !HELLO_TIMESTAMPS;
    }
    if !maps::insert_flow(&s.client, &s.flow) {
        // The same SYN-ACK on two CPUs: one of them made the flow.
        let twice = maps::flow(&s.client).is_some_and(|flow| flow.nat == s.hello.nat);
        return Err(if twice {
            Exit::drop(Reason::ConnectStray)
        } else {
            Exit::reset(Reason::ConnectTableFull)
        });
    }
    s.hello.state = HELLO_OWED;
    let owed = s.hello.acked > 0;
    let ours = if owed { maps::update_hello(&s.client, &s.hello) } else { maps::remove_hello(&s.client) };
    if !ours {
        // The client's clock took the hello to another backend meanwhile.
        maps::remove_flow(&s.client);
        return Err(Exit::drop(Reason::ConnectStray));
    }
    if !owed {
        stash::stash_free(s);
    }
    stash::lower(&s.client, s.hello.source_epoch);
    if let Some(counters) = maps::route_counters(&s.hello.route) {
        maps::advance(&mut counters.connected);
    }
    Ok(())
}

/// The deliverance of a hello.
#[repr(C)]
struct Delivery {
    skb: *mut __sk_buff,
    scratch: *mut Scratch,
}

/// Sends stream bytes `s.from` to `s.hello.have`, which `stash` put into the window, to the backend, each segment
/// within its MSS.
#[inline(always)]
pub(crate) fn deliver(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    if let Err(exit) = emit::learn_partial(skb, s) {
        return exit;
    }
    match Exit::from_code(connect_deliver(skb.0, s, reason as u32)) {
        Err(exit) => exit,
        Ok(()) => Exit::drop(Reason::EmitFailed),
    }
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn connect_deliver(skb: *mut __sk_buff, s: *mut Scratch, reason: u32) -> u32 {
    let mut delivery = Delivery { skb, scratch: s };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    s.deliver_at = s.from;
    kernel::repeat(256, deliver_step, core::ptr::from_mut(&mut delivery).cast());
    draft_piece(s, s.deliver_at);
    emit::emit_draft(skb, s, reason)
}

/// Sends one full segment if another follows; 1 = the one in hand is the last.
unsafe extern "C" fn deliver_step(_: u32, delivery: *mut c_void) -> i64 {
    // SAFETY: `connect_deliver` passes a `Delivery` on its stack.
    let delivery = unsafe { &mut *delivery.cast::<Delivery>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { delivery.scratch.as_mut() }) else { return 1 };
    let mss = u32::from(s.hello.backend_mss);
    if s.deliver_at + mss >= s.hello.have {
        return 1;
    }
    draft_piece(s, s.deliver_at);
    emit::emit_copy(delivery.skb, s);
    s.deliver_at += mss;
    0
}

/// Drafts the segment that begins at stream byte `at`.
#[inline(always)]
fn draft_piece(s: &mut Scratch, at: u32) {
    draft::to_backend(&mut s.draft, &s.hello.nat);
    let (d, h) = (&mut s.draft, &s.hello);
    let left = h.have.saturating_sub(at);
    d.payload_from = at;
    d.payload_bytes = left.min(u32::from(h.backend_mss));
    d.seq = h.isn.wrapping_add(1).wrapping_add(at);
    // What the client has, and not what passed on its way there: the backend has to repeat what the client lost.
    d.ack = s.flow.client_acked.wrapping_add(s.flow.seq_delta);
    d.flags = if d.payload_bytes == left { ACK | PSH } else { ACK };
    // When the backend declined scaling, our window must be told unscaled.
    let unscaled = h.window_scale != WINDOW_SCALE_NONE && s.flow.backend_scale == WINDOW_SCALE_NONE;
    let window = if unscaled { u32::from(h.window) << (h.window_scale & 15) } else { u32::from(h.window) };
    d.window = window.min(65_535) as u16;
    d.timestamps = h.flags & HELLO_TIMESTAMPS != 0;
    d.tsval = h.client_tsval;
    d.tsecr = h.our_tsval.wrapping_add(s.flow.ts_delta);
}

/// Gives up the source port towards the backend tried last.
#[inline(always)]
pub(crate) fn abandon(s: &mut Scratch) {
    maps::free_nat(&s.hello.nat, &s.client);
    if let Some(counters) = maps::route_counters(&s.hello.route) {
        maps::advance(&mut counters.retried);
    }
}

/// Counts a connection that was refused although its route is known.
#[inline(always)]
pub(crate) fn refused(s: &Scratch) {
    if let Some(counters) = maps::route_counters(&s.hello.route) {
        maps::advance(&mut counters.refused);
    }
}
