//! Ends what no packet ends: the daemon asks, by running the program `expire` with an [`Expiry`] in the packet.

use common::maps::event::Expiry;
use common::maps::flow::{FLOW_ESTABLISHED, FLOW_OWED, FLOW_RESET, HELLO_OWED};
use common::reason::Reason;
use zerocopy::FromBytes;

use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ETH_BYTES, Scratch};
use crate::stage::{close, emit, forward, half_open, stash};

/// What was asked.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) seq: u32,
    pub(crate) reason: u32,
}

/// Reads the request; `s.client` is the connection.
#[inline(always)]
pub(crate) fn read(skb: Skb, s: &mut Scratch) -> Option<Request> {
    let to = s.window.bytes.as_mut_ptr();
    if !skb.load(ETH_BYTES, to, size_of::<Expiry>() as u32) {
        return None;
    }
    let (expiry, _) = Expiry::read_from_prefix(&s.window.bytes).ok()?;
    s.client = expiry.client;
    s.segment.v4 = expiry.client.client.is_v4();
    s.segment.tuple = expiry.client;
    // The packet is made here: its checksum is nobody else's to complete.
    s.partial = false;
    Some(Request { seq: expiry.seq, reason: expiry.reason })
}

/// Resets both sides of a flow; the entry lingers.
#[inline(always)]
pub(crate) fn flow(skb: Skb, s: &mut Scratch) -> bool {
    let Some(flow) = maps::flow(&s.client) else { return false };
    if flow.state == FLOW_RESET {
        return false;
    }
    let listed = flow.state != FLOW_ESTABLISHED;
    flow.state = FLOW_RESET;
    kernel::assign(&mut s.flow, flow);
    if flow.backend_flags & FLOW_OWED != 0 {
        flow.backend_flags &= !FLOW_OWED;
        maps::remove_hello(&s.client);
    }
    flow.seen_secs = (s.now_ns / 1_000_000_000) as u32;
    if !listed {
        let client = s.client;
        close::put(&client, s.now_ns);
    }
    forward::draft_client_reset(s);
    emit::emit_copy(skb.0, s);
    forward::draft_backend_reset(s);
    emit::emit_copy(skb.0, s);
    true
}

/// Removes a flow that is over.
#[inline(always)]
pub(crate) fn closed(s: &mut Scratch) -> bool {
    let Some(flow) = maps::flow(&s.client) else { return false };
    if flow.state == FLOW_ESTABLISHED {
        return false;
    }
    close::drop_entry(&s.client);
    true
}

/// Resets the client of a waiting hello and forgets it.
#[inline(always)]
pub(crate) fn hello(skb: Skb, s: &mut Scratch) -> bool {
    let Some(hello) = maps::hello(&s.client) else { return false };
    let open = maps::flow(&s.client).is_some_and(|flow| flow.state == FLOW_ESTABLISHED);
    if open && hello.state == HELLO_OWED {
        // Its backend answered since it was listed.
        return false;
    }
    kernel::assign(&mut s.hello, hello);
    if !stash::forget(&s.client) {
        return false;
    }
    if open {
        return true;
    }
    crate::stage::connect::draft_client_reset(s);
    emit::emit_copy(skb.0, s);
    true
}

/// Resets the client of a hello that gave way; its entry is gone already, a flow it owed bytes to may not be.
#[inline(always)]
pub(crate) fn evicted(skb: Skb, s: &mut Scratch, request: Request) -> bool {
    if let Some(flow) = maps::flow(&s.client) {
        // Only a flow whose owed bytes went with the hello is lost; any other began after it.
        if flow.backend_flags & FLOW_OWED == 0 || maps::hello(&s.client).is_some() {
            return false;
        }
        return self::flow(skb, s);
    }
    if maps::hello(&s.client).is_some() {
        // The client began anew and waits.
        return false;
    }
    s.hello.cookie = request.seq.wrapping_sub(1);
    crate::stage::connect::draft_client_reset(s);
    emit::emit_copy(skb.0, s);
    true
}

/// Forgets a half-open connection.
#[inline(always)]
pub(crate) fn half_open(s: &mut Scratch) -> bool {
    half_open::forget(&s.client)
}

/// Whether the number is the reason's.
#[inline(always)]
pub(crate) fn is(request: Request, reason: Reason) -> bool {
    request.reason == reason as u32
}
