//! Client -> VIP.

use common::maps::flow::{FLOW_ESTABLISHED, FLOW_SYN_SEEN, HELLO_CONNECTING};
use common::maps::listener::PROTOCOL_TCP;
use common::reason::Reason;

use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, RST, SYN, Scratch};
use crate::stage::forward::Step;
use crate::stage::{classify, connect, emit, forward, half_open, hello, pick, route, stash, syn};

/// The client's segment: an open flow first, for that is nearly every packet.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> Exit {
    s.client = s.segment.tuple;
    if flow_exists(s) {
        return established(skb, s);
    }
    if classify::listener(s).is_none() {
        return match classify::own(s) {
            Err(exit) => exit,
            Ok(()) if s.segment.has(RST) => Exit::drop(Reason::ClassifyDropped),
            Ok(()) => Exit::reset(Reason::ClassifyNoListener),
        };
    }
    if s.listener_protocol == PROTOCOL_TCP {
        return tcp(skb, s);
    }
    if s.segment.has(SYN) && !s.segment.has(ACK) {
        return syn::answer(skb, s);
    }
    if let Err(exit) = admit(s) {
        // Not proved to be the waiting client's: it ends nothing.
        return exit;
    }
    match tls(skb, s) {
        Ok(exit) => exit,
        Err(exit) => {
            // Whoever is refused waits no longer.
            if exit.verdict() == Verdict::Reset
                && maps::hello(&s.client).is_some()
            {
                stash::forget(&s.client);
            }
            exit
        }
    }
}

/// Whether the segment belongs to a flow. A SYN marks the flow (it may be forged) or, where the flow is over, ends it;
/// a valid cookie behind a SYN proves that the client began anew, so that the old flow is never followed.
#[inline(always)]
fn flow_exists(s: &mut Scratch) -> bool {
    let Some(flow) = maps::flow(&s.client) else { return false };
    if s.segment.has(SYN) && !s.segment.has(ACK) {
        if flow.state == FLOW_ESTABLISHED {
            flow.flags |= FLOW_SYN_SEEN;
        } else {
            forward::drop_entry(&s.client);
        }
        return false;
    }
    if flow.flags & FLOW_SYN_SEEN == 0 {
        return true;
    }
    // On a TCP listener the proof is the acknowledgement of the new SYN's SYN-ACK.
    let anew = match maps::half_open(&s.client) {
        Some(held) => !s.segment.has(RST) && s.segment.seq == held.isn.wrapping_add(1),
        None => syn::begins(s),
    };
    if anew {
        kernel::assign(&mut s.flow, flow);
        forward::drop_entry(&s.client);
        maps::count_event(Reason::SynFlowReplaced);
        return false;
    }
    true
}

#[inline(always)]
fn established(skb: Skb, s: &mut Scratch) -> Exit {
    match forward::from_client(s) {
        Step::Pass => emit::pass(skb, s, Reason::ForwardBackend),
        Step::PassReset => emit::pass(skb, s, Reason::ForwardReset),
        Step::Linger | Step::AckBackend => forward::linger(skb, s),
        Step::Repeat => repeat(skb, s),
    }
}

/// Bytes that we owe the backend go once more.
#[inline(always)]
fn repeat(skb: Skb, s: &mut Scratch) -> Exit {
    let Some(waiting) = maps::hello(&s.client) else { return Exit::drop(Reason::HelloBeyond) };
    kernel::assign(&mut s.hello, waiting);
    s.from = s.flow.backend_acked.wrapping_sub(s.hello.isn.wrapping_add(1)) & 0x3fff;
    connect::deliver(skb, s, Reason::ConnectRepeated)
}

/// Lets in segments of the waiting hello, and the first of a new one.
#[inline(always)]
fn admit(s: &mut Scratch) -> Result<(), Exit> {
    if !hello::find(s) {
        syn::verify(s)?;
        hello::begin(s);
    } else if s.segment.ack != s.hello.cookie.wrapping_add(1) && !s.segment.has(RST) {
        // Another connection on the same ports: only its own cookie lets it in.
        syn::verify(s)?;
        stash::forget(&s.client);
        hello::begin(s);
    }
    Ok(())
}

/// A TLS listener: collect the hello, find its tenant, dial a backend.
#[inline(always)]
fn tls(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    hello::take(skb, s)?;
    if s.hello.state == HELLO_CONNECTING {
        return retransmitted(skb, s);
    }
    route::find(s)?;
    pick::next(s).inspect_err(|_| connect::refused(s))?;
    Err(opened(skb, s, Reason::ConnectSyn))
}

/// The client repeats a hello that is complete: the backend has not answered. The first time the same backend is asked
/// again; from the second on the next one.
#[inline(always)]
fn retransmitted(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    s.hello.retransmits = s.hello.retransmits.saturating_add(1);
    if s.hello.retransmits < 2 {
        return Err(connect::again(skb, s));
    }
    connect::abandon(s);
    pick::next(s).inspect_err(|_| connect::refused(s))?;
    Err(opened(skb, s, Reason::ConnectNext))
}

/// Dials; a refusal is the route's.
#[inline(always)]
fn opened(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    let exit = connect::open(skb, s, reason);
    if exit.verdict() == Verdict::Reset {
        connect::refused(s);
    }
    exit
}

/// A TCP listener: the SYN picks the backend, the ACK opens the flow.
#[inline(always)]
fn tcp(skb: Skb, s: &mut Scratch) -> Exit {
    let known = match maps::half_open(&s.client) {
        Some(held) => {
            kernel::assign(&mut s.half_open, held);
            true
        }
        None => false,
    };
    if s.segment.has(SYN) && !s.segment.has(ACK) {
        if known && s.half_open.isn == s.segment.seq {
            return pass_syn(skb, s);
        }
        if known {
            half_open::forget(&s.client);
        }
        return match open_tcp(skb, s) {
            Ok(()) => pass_syn(skb, s),
            Err(exit) => exit,
        };
    }
    if !known {
        return if s.segment.has(RST) { Exit::drop(Reason::SynStray) } else { Exit::reset(Reason::SynCookieMismatch) };
    }
    if s.segment.has(RST) {
        half_open::forget(&s.client);
        half_open::draft(s);
        return emit::pass_through(skb, s, Reason::ForwardReset);
    }
    match half_open::open(s) {
        Ok(()) => established(skb, s),
        Err(exit) => refuse_both(skb, s, exit),
    }
}

#[inline(always)]
fn open_tcp(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    half_open::begin(s);
    pick::next(s).inspect_err(|_| connect::refused(s))?;
    if connect::connect_port(skb.0, s) == 0 {
        connect::refused(s);
        return Err(Exit::reset(Reason::ConnectNoPort));
    }
    if half_open::half_open_store(s) == 0 {
        maps::free_nat(&s.hello.nat);
        connect::refused(s);
        return Err(Exit::reset(Reason::SynHalfOpenFull));
    }
    Ok(())
}

#[inline(always)]
fn pass_syn(skb: Skb, s: &mut Scratch) -> Exit {
    half_open::draft(s);
    emit::pass_through(skb, s, Reason::SynForwarded)
}

/// The client's ACK came too late: its backend was removed, or the flow table is full. The backend waits for an ACK.
#[inline(always)]
fn refuse_both(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    half_open::forget(&s.client);
    s.hello.route = s.half_open.route;
    connect::refused(s);
    if let Err(failed) = emit::learn_partial(skb, s) {
        return failed;
    }
    half_open::draft_reset(s);
    emit::emit_copy(skb.0, s);
    exit
}
