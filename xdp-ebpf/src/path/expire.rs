//! Ends connections for the daemon, when no packet arrives: each run handles one connection. The daemon runs
//! the program `expire` with an [`Expiry`] in the packet.

use common::maps::event::Expiry;
use common::maps::flow::{FLOW_ESTABLISHED, FLOW_RESET, FLOW_UNDELIVERED, Flow, PENDING_UNDELIVERED};
use common::reason::Reason;
use zerocopy::FromBytes;

use crate::connection::{end, forget};
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::ETH_BYTES;
use crate::scratch::{Cursors, Draft, Received, Scratch};
use crate::segment::emit;
use crate::stage::{connect, forward};
use crate::verified::verified;

/// The daemon's request.
#[derive(Clone, Copy)]
struct Request {
    seq: u32,
    reason: u32,
}

/// Handles one request. Returns 0 when it is done, 1 when there was nothing to do.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> i32 {
    s.received.partial_known = false;
    s.received.now_ns = kernel::monotonic_ns();
    let Some(request) = read(skb, s) else { return 1 };
    let is = |reason: Reason| request.reason == reason as u32;
    let done = if is(Reason::ExpireIdle) || is(Reason::ExpireRemoved) {
        flow(skb, s)
    } else if is(Reason::ExpireClosed) {
        closed(s)
    } else if is(Reason::ExpireHello) || is(Reason::HelloTimeout) {
        pending(skb, s)
    } else if is(Reason::HelloEvicted) {
        // Already counted when the hello was evicted.
        return i32::from(!evicted(skb, s, request));
    } else if is(Reason::ExpireHalfOpen) {
        forget::half_open(&mut s.received.client)
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
    let to = s.cursors.window.bytes.as_mut_ptr();
    if !skb.load(ETH_BYTES, to, size_of::<Expiry>() as u32) {
        return None;
    }
    let (expiry, _) = Expiry::read_from_prefix(&s.cursors.window.bytes).ok()?;
    let received = &mut s.received;
    received.client = expiry.client;
    received.segment.v4 = expiry.client.client.is_v4();
    received.segment.tuple = expiry.client;
    // The daemon made this packet: no device has to complete its checksum.
    received.partial = false;
    Some(Request { seq: expiry.seq, reason: expiry.reason })
}

verified! {
    /// Resets both sides of a flow, whose entry lingers.
    fn reset_flow as expire_flow[Skb, skb](received: Received, draft: Draft, copy: Flow, cursors: Cursors) -> bool {
        let Some(flow) = maps::flow(&received.client) else { return false };
        if flow.connection.state == FLOW_RESET {
            return false;
        }
        kernel::assign(copy, flow);
        // First of all, so that no other CPU passes a segment or ends the flow as well.
        end::flow(&mut received.client, flow, FLOW_RESET, received.now_ns);
        if flow.connection.backend_flags & FLOW_UNDELIVERED != 0 {
            flow.connection.backend_flags &= !FLOW_UNDELIVERED;
            maps::remove_pending(&received.client);
        }
        flow.seen_secs = (received.now_ns / 1_000_000_000) as u32;
        forward::draft_client_reset(&received.client, draft, copy);
        emit::copy(skb, received, draft, cursors);
        forward::draft_backend_reset(draft, copy);
        emit::copy(skb, received, draft, cursors);
        true
    }
}

/// Resets both sides of the requested flow.
#[inline(always)]
fn flow(skb: Skb, s: &mut Scratch) -> bool {
    reset_flow(skb, &mut s.received, &mut s.draft, &mut s.flow, &mut s.cursors)
}

/// Removes a flow that is over.
#[inline(always)]
fn closed(s: &mut Scratch) -> bool {
    let client = &mut s.received.client;
    let Some(flow) = maps::flow(client) else { return false };
    if flow.connection.state == FLOW_ESTABLISHED {
        return false;
    }
    forget::flow(client);
    true
}

/// Resets the client of a pending connection and forgets it.
#[inline(always)]
fn pending(skb: Skb, s: &mut Scratch) -> bool {
    let received = &mut s.received;
    let Some(pending) = maps::pending(&received.client) else { return false };
    let open = maps::flow(&received.client).is_some_and(|flow| flow.connection.state == FLOW_ESTABLISHED);
    if open && pending.connection.state == PENDING_UNDELIVERED {
        // Its backend answered after the daemon listed it.
        return false;
    }
    let vip_isn = pending.vip_isn;
    if !forget::pending(&mut received.client) {
        return false;
    }
    if !open {
        reset_client(skb, s, vip_isn);
    }
    true
}

/// Resets the client of an evicted hello. The hello's entry is already gone; a flow that needed its bytes may
/// still exist.
#[inline(always)]
fn evicted(skb: Skb, s: &mut Scratch, request: Request) -> bool {
    let client = &s.received.client;
    if let Some(flow) = maps::flow(client) {
        // Only a flow whose undelivered bytes were evicted with the hello is lost; any other flow started
        // later. The flag is read after the lookup: a CPU that receives the acknowledgement clears it before
        // it removes the hello.
        if maps::pending(client).is_some() || flow.connection.backend_flags & FLOW_UNDELIVERED == 0 {
            return false;
        }
        return self::flow(skb, s);
    }
    if maps::pending(client).is_some() {
        // The client started a new connection, which waits.
        return false;
    }
    reset_client(skb, s, request.seq.wrapping_sub(1));
    true
}

#[inline(always)]
fn reset_client(skb: Skb, s: &mut Scratch, vip_isn: u32) {
    connect::draft_client_reset(&s.received, &mut s.draft, vip_isn);
    emit::copy(skb, &mut s.received, &mut s.draft, &mut s.cursors);
}
