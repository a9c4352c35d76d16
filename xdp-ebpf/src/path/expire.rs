//! What the daemon brings about when no packet comes: one run, one connection. It runs the program `expire` with an
//! [`Expiry`] in the packet.

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

/// What was asked.
#[derive(Clone, Copy)]
struct Request {
    seq: u32,
    reason: u32,
}

/// 0 = done, 1 = there was nothing to do.
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
        // Counted when it gave way.
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

/// Reads the request; `received.client` is the connection.
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
    // The packet is made here: its checksum is nobody else's to complete.
    received.partial = false;
    Some(Request { seq: expiry.seq, reason: expiry.reason })
}

verified! {
    /// Resets both sides of a flow; the entry lingers.
    fn reset_flow as expire_flow[Skb, skb](received: Received, draft: Draft, copy: Flow, cursors: Cursors) -> bool {
        let Some(flow) = maps::flow(&received.client) else { return false };
        if flow.connection.state == FLOW_RESET {
            return false;
        }
        kernel::assign(copy, flow);
        // First, so that no other CPU passes a segment, or ends it too.
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

/// Resets both sides of the flow in question.
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
        // Its backend answered since it was listed.
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

/// Resets the client of a hello that gave way; its entry is gone already, a flow it owed bytes to may not be.
#[inline(always)]
fn evicted(skb: Skb, s: &mut Scratch, request: Request) -> bool {
    let client = &s.received.client;
    if let Some(flow) = maps::flow(client) {
        // Only a flow whose owed bytes went with the hello is lost; any other began after it. The flag comes second: who
        // has the acknowledgement clears it before the hello goes.
        if maps::pending(client).is_some() || flow.connection.backend_flags & FLOW_UNDELIVERED == 0 {
            return false;
        }
        return self::flow(skb, s);
    }
    if maps::pending(client).is_some() {
        // The client began anew and waits.
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
