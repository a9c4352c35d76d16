//! Ends connections for the daemon, when no packet arrives: each run handles one connection, or several flows that are to
//! be ended. The daemon runs the program `expire` with each [`Expiry`] in the packet.

use common::maps::backend::DELIVERY_NODE;
use common::maps::event::{
    CLOSED_RING_DUE, EXPIRE_DONE, EXPIRE_NOTHING, EXPIRE_SEVERAL, EXPIRE_UNRESOLVED, Expiry, ORDERS_MAX,
    PROBE_BOTH, PROBE_FAR, PROBE_HELD,
};
use common::maps::flow::{
    FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ENDING, FLOW_ESTABLISHED, FLOW_PROBED, FLOW_RESET,
    FLOW_UNDELIVERED, Flow, PENDING_CONNECTING, PENDING_UNDELIVERED,
};
use common::maps::source::ShareKey;
use common::reason::Reason;

use super::dial;
use crate::atomic;
use crate::connection::exchange::{self, Marks};
use crate::connection::record::Found;
use crate::connection::{closed, end, forget, half_open as half_open_record, pending as pending_record};
use crate::delivery;
use crate::exit::Verdict;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::ETH_BYTES;
use crate::scratch::{Cursors, Draft, Received, Scratch};
use crate::segment::emit;
use crate::stage::{connect, forward};
use crate::verified::{looped, verified};

/// A RST of either end is on trial.
const ON_TRIAL: u8 = FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL;

/// The daemon's request.
#[derive(Clone, Copy)]
struct Request {
    seq: u32,
    reason: u32,
    generation: u32,
    seen_secs: u32,
}

/// Where the orders of one run are in [`crate::scratch::Cursors::window`], of which a RST uses the first bytes. Copies: the packet with
/// them is the first RST's, too. The working memory keeps its size, for a map that is pinned is used again after an upgrade.
const ORDERS_AT: usize = 8_192;

impl Request {
    /// Whether a flow is to be ended.
    #[inline(always)]
    fn ends_flow(self) -> bool {
        let is = |reason: Reason| self.reason == reason as u32;
        let is_over = is(Reason::ExpireIdle) || is(Reason::ExpireRemoved) || is(Reason::ExpireRefused);
        is_over || is(Reason::ExpireTrial) || is(Reason::ExpireHeld) || is(Reason::ExpireCrowded)
    }
}

/// Handles what is requested. Returns what became of it: [`EXPIRE_DONE`] and the like.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> i32 {
    s.received.partial_known = false;
    s.received.now_ns = kernel::monotonic_ns();
    let orders = s.cursors.window.bytes.as_mut_ptr().wrapping_add(ORDERS_AT);
    if skb.load(ETH_BYTES, orders, (ORDERS_MAX * size_of::<Expiry>()) as u32) {
        s.exit = 0;
        each_order(skb, s);
        return (EXPIRE_SEVERAL + s.exit) as i32;
    }
    let Some(request) = read(skb, s) else { return EXPIRE_NOTHING as i32 };
    let is = |reason: Reason| request.reason == reason as u32;
    let done = if request.ends_flow() {
        flow(skb, s, request)
    } else if is(Reason::ExpireProbe) {
        let result = probe(skb, s, request);
        if result == EXPIRE_DONE {
            maps::count(request.reason & 0xff);
        }
        return result as i32;
    } else if is(Reason::ExpireClosed) && request.seq == CLOSED_RING_DUE {
        // Each flow is counted when it is removed.
        return i32::from(!closed::sweep(&mut s.cursors, s.received.now_ns));
    } else if is(Reason::ExpireClosed) {
        one_closed(s, request)
    } else if is(Reason::ExpireHello) || is(Reason::HelloTimeout) {
        pending(skb, s, request)
    } else if is(Reason::HelloEvicted) {
        // Already counted when the hello was evicted.
        return i32::from(!evicted(skb, s, request));
    } else if is(Reason::ConnectAgain) {
        return again(skb, s, request) as i32;
    } else if is(Reason::ExpireHalfOpen) {
        half_open(s, request)
    } else if is(Reason::ExpireShare) {
        maps::remove_share(&ShareKey::of(&s.received.client, request.seq))
    } else {
        false
    };
    if done {
        maps::count(request.reason & 0xff);
    }
    i32::from(!done)
}

/// Reads the request, and puts the connection's key in `received.client`.
#[inline(always)]
fn read(skb: Skb, s: &mut Scratch) -> Option<Request> {
    let order = &mut s.waiting.eviction;
    if !skb.load(ETH_BYTES, core::ptr::from_mut(order).cast(), size_of::<Expiry>() as u32) {
        return None;
    }
    Some(take(order, &mut s.received))
}

/// Puts the connection's key in `received.client`, and returns the rest of the order.
#[inline(always)]
fn take(expiry: &Expiry, received: &mut Received) -> Request {
    received.client = expiry.client;
    received.segment.v4 = expiry.client.client.is_v4();
    received.segment.jumbo_bytes = 0;
    received.segment.tuple = expiry.client;
    // The daemon made this packet: no device has to complete its checksum.
    received.partial = false;
    (received.from_node, received.by_pair) = (false, false);
    let Expiry { seq, reason, generation, seen_secs, .. } = *expiry;
    Request { seq, reason, generation, seen_secs }
}

looped! {
    /// Ends the flow of the next order; ends after the last one.
    fn each_order[Skb, skb](s: Scratch) times ORDERS_MAX as u32, |round| {
        let at = ORDERS_AT + (round % ORDERS_MAX as u32) as usize * size_of::<Expiry>();
        let order = s.cursors.window.bytes.as_ptr().wrapping_add(at);
        kernel::copy(core::ptr::from_mut(&mut s.waiting.eviction).cast(), order, size_of::<Expiry>() as u32);
        let request = take(&s.waiting.eviction, &mut s.received);
        if !request.ends_flow() {
            return true;
        }
        if flow(skb, s, request) {
            maps::count(request.reason & 0xff);
            s.exit += 1;
        }
        false
    }
}

verified! {
    /// Ends the flow in `received`, whose entry lingers, and copies it; `false`: it is over, or it has no longer all flags `needs`.
    fn end_flow as expire_end(received: Received, copy: Flow; needs: u32) -> bool {
        let Some(flow) = maps::flow(&received.client) else { return false };
        let generation = received.generation;
        if flow.connection.generation != generation || flow.connection.state == FLOW_RESET {
            return false;
        }
        kernel::assign(copy, flow);
        // First of all, so that no other CPU passes a segment or ends the flow as well. What was copied is this flow's if the
        // record still is.
        if !end::flow_with(&mut received.client, flow, generation, needs as u8, received.now_ns) {
            return false;
        }
        if end::clear(flow, generation, FLOW_UNDELIVERED) {
            pending_record::end(&mut received.client, generation);
        }
        flow.seen_secs = (received.now_ns / 1_000_000_000) as u32;
        true
    }
}

verified! {
    /// Resets both ends of the flow in `copy`.
    fn reset_ends as expire_reset[Skb, skb](received: Received, draft: Draft, copy: Flow, cursors: Cursors) -> () {
        received.from_node = delivery::is_to_node(&copy.connection);
        forward::draft_client_reset(&received.client, draft, copy);
        emit::copy(skb, received, draft, cursors);
        forward::draft_backend_reset(draft, copy);
        emit::copy(skb, received, draft, cursors);
    }
}

/// Finds the requested flow, and puts its generation in `received`. `None`: it is not what the daemon saw any more.
#[inline(always)]
fn find(received: &mut Received, request: Request) -> Option<&'static mut Flow> {
    let flow = maps::flow(&received.client)?;
    let generation = flow.connection.generation;
    received.generation = generation;
    (request.generation == generation).then_some(flow)
}

/// Whether something happened to the flow since the daemon saw it.
#[inline(always)]
fn is_outdated(flow: &Flow, request: Request) -> bool {
    let idle = request.reason == Reason::ExpireIdle as u32;
    let heard = idle && atomic::read_now(&flow.seen_secs) != request.seen_secs;
    let acked = atomic::word(&flow.client.acked).number;
    let progress = acked.wrapping_add(atomic::word(&flow.backend.acked).number);
    let moved = !idle && progress != request.seq && acked != request.seq;
    heard || moved
}

/// Whether nothing happened to the flow since the daemon saw it. It is then marked: a segment that is believed from now on
/// clears the mark, and one that was believed before shows in what is looked at behind the mark.
#[inline(always)]
fn is_unchanged(flow: &mut Flow, generation: u32, request: Request) -> bool {
    if flow.connection.state != FLOW_ESTABLISHED || is_outdated(flow, request) {
        return false;
    }
    exchange::mark(&mut flow.connection, generation, Marks::flags(FLOW_ENDING), Marks::NONE);
    if is_outdated(flow, request) {
        end::clear(flow, generation, FLOW_ENDING);
        return false;
    }
    true
}

/// Resets both sides of the requested flow, if there is still the reason to.
#[inline(always)]
fn flow(skb: Skb, s: &mut Scratch, request: Request) -> bool {
    let Some(flow) = find(&mut s.received, request) else { return false };
    let is = |reason: Reason| request.reason == reason as u32;
    // Without these flags there is no reason any more. They are in the word that ends it.
    let mut needs = 0;
    if is(Reason::ExpireTrial) {
        needs = FLOW_PROBED;
    } else if is(Reason::HelloEvicted) {
        needs = FLOW_UNDELIVERED;
    } else if is(Reason::ExpireIdle) || is(Reason::ExpireHeld) || is(Reason::ExpireCrowded) {
        if !is_unchanged(flow, s.received.generation, request) {
            return false;
        }
        needs = FLOW_ENDING;
    }
    let ended = end_flow(&mut s.received, &mut s.flow, needs.into());
    if ended {
        reset_ends(skb, &mut s.received, &mut s.draft, &mut s.flow, &mut s.cursors);
    }
    ended
}

/// Asks the end that may have accepted a RST, or both ends of an idle flow, whether they still have the connection. The
/// next segment of each ends its trial.
#[inline(always)]
fn probe(skb: Skb, s: &mut Scratch, request: Request) -> u32 {
    let Some(flow) = find(&mut s.received, request) else { return EXPIRE_NOTHING };
    let (mut flags, generation) = (flow.connection.flags & ON_TRIAL, s.received.generation);
    let idle = request.seq == PROBE_BOTH && flow.seen_secs == request.seen_secs;
    if idle || request.seq == PROBE_HELD {
        flags = ON_TRIAL;
    }
    if flags & ON_TRIAL == 0 || flow.connection.state != FLOW_ESTABLISHED {
        return EXPIRE_NOTHING;
    }
    let marks = Marks::flags(flags | FLOW_PROBED);
    // What is copied is this flow's if the record still is.
    kernel::assign(&mut s.flow, flow);
    let was = exchange::mark(&mut flow.connection, generation, marks, Marks::NONE);
    if was.is_none_or(|was| was.its_state() != FLOW_ESTABLISHED) {
        return EXPIRE_NOTHING;
    }
    let far = request.seq == PROBE_FAR;
    let mut sent = true;
    if flags & FLOW_CLIENT_ON_TRIAL != 0 {
        forward::draft_backend_probe(&mut s.draft, &s.flow, far);
        sent &= emit::copy(skb, &mut s.received, &mut s.draft, &mut s.cursors);
    }
    if flags & FLOW_BACKEND_ON_TRIAL != 0 {
        s.received.from_node = delivery::is_to_node(&s.flow.connection);
        forward::draft_client_probe(&s.received.client, &mut s.draft, &s.flow, far);
        sent &= emit::copy(skb, &mut s.received, &mut s.draft, &mut s.cursors);
    }
    if sent { EXPIRE_DONE } else { EXPIRE_UNRESOLVED }
}

/// Removes a flow that is over.
#[inline(always)]
fn one_closed(s: &mut Scratch, request: Request) -> bool {
    let Some(flow) = find(&mut s.received, request) else { return false };
    if flow.connection.state == FLOW_ESTABLISHED {
        return false;
    }
    forget::flow(&mut s.received.client, s.received.generation)
}

/// Removes the requested half-open connection.
#[inline(always)]
fn half_open(s: &mut Scratch, request: Request) -> bool {
    if half_open_record::lock(&mut s.received, &mut s.half_open, request.generation) != Found::Held {
        return false;
    }
    half_open_record::remove_held(&mut s.received, &mut s.half_open);
    true
}

/// Resets the client of the requested pending connection and forgets it.
#[inline(always)]
fn pending(skb: Skb, s: &mut Scratch, request: Request) -> bool {
    if pending_record::lock(&mut s.received, &mut s.waiting, request.generation) != Found::Held {
        return false;
    }
    let received = &mut s.received;
    let open = maps::flow(&received.client).is_some_and(|flow| flow.connection.state == FLOW_ESTABLISHED);
    let pending = &s.waiting.pending;
    let (state, vip_isn) = (pending.connection.state, pending.vip_isn);
    if open && state == PENDING_UNDELIVERED {
        // Its backend answered after the daemon listed it.
        super::settle(s);
        return false;
    }
    pending_record::remove_held(received, &mut s.waiting);
    if !open {
        reset_client(skb, s, vip_isn);
    }
    true
}

/// Sends the SYN of the requested pending connection again, or the next backend's: its client waits for the server and
/// repeats nothing.
#[inline(always)]
fn again(skb: Skb, s: &mut Scratch, request: Request) -> u32 {
    let generation = request.generation;
    if pending_record::lock(&mut s.received, &mut s.waiting, generation) != Found::Held {
        return EXPIRE_NOTHING;
    }
    if s.waiting.pending.connection.state != PENDING_CONNECTING {
        super::settle(s);
        return EXPIRE_NOTHING;
    }
    let exit = dial::again(skb, s);
    maps::count(exit.reason());
    match exit.verdict() {
        Verdict::Redirect => {
            connect::draft_syn(&s.received.segment, &mut s.draft, &s.waiting.pending);
            if !emit::copy(skb, &mut s.received, &mut s.draft, &mut s.cursors) {
                return EXPIRE_UNRESOLVED;
            }
        }
        Verdict::Reset => {
            pending_record::remove_held(&mut s.received, &mut s.waiting);
            let vip_isn = s.waiting.pending.vip_isn;
            reset_client(skb, s, vip_isn);
        }
        _ => super::settle(s),
    }
    EXPIRE_DONE
}

/// Resets the client of an evicted hello. The hello's entry is already gone; a flow that needed its bytes may
/// still exist.
#[inline(always)]
fn evicted(skb: Skb, s: &mut Scratch, request: Request) -> bool {
    let client = &s.received.client;
    if let Some(flow) = maps::flow(client) {
        // Only a flow whose undelivered bytes were evicted with the hello is lost; any other flow started later.
        let is_lost =
            flow.connection.generation == request.generation && flow.connection.flags & FLOW_UNDELIVERED != 0;
        return is_lost && self::flow(skb, s, request);
    }
    if maps::pending(client).is_some() {
        // The client started a new connection, which waits.
        return false;
    }
    if maps::flow(client).is_some() {
        // It waited when flows were looked up, and its backend accepted before hellos were.
        return false;
    }
    s.received.from_node = request.seen_secs == DELIVERY_NODE.into();
    reset_client(skb, s, request.seq.wrapping_sub(1));
    true
}

#[inline(always)]
fn reset_client(skb: Skb, s: &mut Scratch, vip_isn: u32) {
    connect::draft_client_reset(&s.received, &mut s.draft, vip_isn);
    emit::copy(skb, &mut s.received, &mut s.draft, &mut s.cursors);
}
