//! Client -> VIP.

use common::maps::flow::{FLOW_ESTABLISHED, FLOW_SYN_SEEN, HELLO_CONNECTING};
use common::maps::listener::PROTOCOL_TCP;
use common::reason::Reason;

use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, FIN, RST, SYN, Scratch, Segment};
use crate::stage::forward::Step;
use crate::stage::{
    checksum, classify, close, connect, emit, forward, half_open, hello, pick, route, stash, syn,
};

/// The client's segment: an open flow first, for that is nearly every packet.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> Exit {
    s.client = s.segment.tuple;
    match flow_exists(skb, s) {
        Ok(true) => return established(skb, s),
        Ok(false) => {}
        Err(exit) => return exit,
    }
    if !classify::listener(s) {
        return match classify::own(s) {
            Err(exit) => exit,
            Ok(()) if s.segment.has(RST) => Exit::drop(Reason::ClassifyDropped),
            Ok(()) => match checksum::tcp(skb, s) {
                Err(exit) => exit,
                Ok(()) => Exit::reset(Reason::ClassifyNoListener),
            },
        };
    }
    // The third packet of a handshake, which the client waits for: it changes nothing, so nothing but its cookie is looked at.
    if s.listener_protocol != PROTOCOL_TCP && is_bare(&s.segment) && syn::begins(s) == Some(true) {
        return Exit::drop(Reason::SynAcked);
    }
    if let Err(exit) = checksum::tcp(skb, s) {
        return exit;
    }
    if s.listener_protocol == PROTOCOL_TCP {
        return tcp(skb, s);
    }
    if s.segment.has(SYN) && !s.segment.has(ACK) {
        // A handshake under way goes on: its next segment is no SYN.
        return if maps::is_draining() { Exit::reset(Reason::SynDraining) } else { syn::answer(skb, s) };
    }
    if let Err(exit) = admit(s) {
        // Not proved to be the waiting client's: it ends nothing.
        return exit;
    }
    match tls(skb, s) {
        Ok(exit) => exit,
        Err(exit) => {
            // Whoever is refused waits no longer.
            if exit.verdict() == Verdict::Reset && maps::hello(&s.client).is_some() {
                stash::forget(&s.client);
            }
            exit
        }
    }
}

/// Whether the segment is an acknowledgement and nothing else.
#[inline(always)]
fn is_bare(segment: &Segment) -> bool {
    segment.payload_bytes == 0 && segment.flags & (SYN | FIN | RST) == 0
}

/// Whether the segment belongs to a flow; its NAT tuple is then in `s.flow.nat`.
///
/// A SYN marks the flow (it may be forged) or, where the flow is over, ends it. Behind a SYN, a segment that does not
/// acknowledge what this flow's backend sent, and proves the new handshake, begins a new connection: the old flow is
/// never followed to the previous tenant.
#[inline(always)]
fn flow_exists(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let Some(flow) = maps::flow(&s.client) else { return Ok(false) };
    s.flow.nat = flow.nat;
    let syn = s.segment.has(SYN) && !s.segment.has(ACK);
    let known = flow.flags & FLOW_SYN_SEEN == 0 || forward::fits(flow, &s.segment);
    if !syn && known && s.segment.flags & (FIN | RST) == 0 {
        return Ok(true);
    }
    // What may begin or end a connection must be what its sender sent.
    checksum::tcp(skb, s)?;
    if syn {
        if flow.state != FLOW_ESTABLISHED {
            close::drop_entry(&s.client);
        } else if s.segment.seq != flow.client_isn {
            flow.flags |= FLOW_SYN_SEEN;
        }
        return Ok(false);
    }
    if known {
        return Ok(true);
    }
    let own = s.segment.ack == flow.cookie.wrapping_add(1);
    match handshake(s, flow.client_isn) {
        Handshake::New => {}
        // A later segment of the new hello: not for the backend of the old one.
        Handshake::Ahead if !own => return Err(Exit::drop(Reason::SynEarly)),
        Handshake::Ahead | Handshake::Old => return Ok(true),
    }
    let Some(old) = maps::flow(&s.client) else { return Ok(false) };
    kernel::assign(&mut s.flow, old);
    close::drop_entry(&s.client);
    maps::count_event(Reason::SynFlowReplaced);
    if s.segment.payload_bytes == 0 && maps::half_open(&s.client).is_none() {
        // On a TLS listener the bare ACK of the new handshake has nothing else to do: it tells the old backend.
        forward::draft_backend_reset(s);
        return Err(emit::send(skb, s, Reason::SynAcked));
    }
    Ok(false)
}

/// What a segment behind a SYN on an open flow belongs to.
enum Handshake {
    /// The flow that is there.
    Old,
    /// A new connection, of which it is the proof.
    New,
    /// A new connection whose proof is yet to come.
    Ahead,
}

/// Whose the segment is; `isn` is the client's first number of the flow that is there.
#[inline(always)]
fn handshake(s: &mut Scratch, isn: u32) -> Handshake {
    // On a TCP listener the proof is the acknowledgement of the new SYN's SYN-ACK.
    if let Some(held) = maps::half_open(&s.client) {
        kernel::assign(&mut s.half_open, held);
        let proof = s.half_open.isn != isn && !s.segment.has(RST) && half_open::acknowledged(s);
        return if proof { Handshake::New } else { Handshake::Old };
    }
    match syn::begins(s) {
        Some(true) if s.hello.isn != isn => Handshake::New,
        Some(false) => Handshake::Ahead,
        _ => Handshake::Old,
    }
}

#[inline(always)]
fn established(skb: Skb, s: &mut Scratch) -> Exit {
    match forward::from_client(s) {
        Step::Pass => emit::pass(skb, s, Reason::ForwardBackend),
        Step::PassReset => emit::pass(skb, s, Reason::ForwardReset),
        Step::Linger | Step::AckBackend => forward::linger(skb, s),
        Step::Stray => Exit::drop(Reason::SynStray),
        Step::Repeat => repeat(skb, s),
    }
}

/// Bytes that we owe the backend go once more.
#[inline(always)]
fn repeat(skb: Skb, s: &mut Scratch) -> Exit {
    let Some(waiting) = maps::hello(&s.client) else { return Exit::drop(Reason::HelloBeyond) };
    kernel::assign(&mut s.hello, waiting);
    s.from = s.flow.backend_acked.wrapping_sub(s.hello.isn.wrapping_add(1)) & 0x3fff;
    if stash::stash_fetch(s) == 0 {
        return lost(skb, s);
    }
    connect::deliver(skb, s, Reason::ConnectRepeated)
}

/// Bytes that we acknowledged are gone: both sides have to know.
#[inline(always)]
fn lost(skb: Skb, s: &mut Scratch) -> Exit {
    close::end(s);
    if let Err(failed) = emit::learn_partial(skb, s) {
        return failed;
    }
    forward::draft_backend_reset(s);
    emit::emit_copy(skb.0, s);
    Exit::reset(Reason::HelloStashFailed)
}

/// Lets in segments of the waiting hello, and the first of a new one.
#[inline(always)]
fn admit(s: &mut Scratch) -> Result<(), Exit> {
    if !hello::find(s)? {
        // Since `flow_exists` looked another CPU may have made the flow, before the hello went: no second one is begun.
        if s.segment.payload_bytes > 0 && maps::flow(&s.client).is_some() {
            return Err(Exit::drop(Reason::HelloBeyond));
        }
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
    // One that had to wait for its bytes is counted since then; from now on it waits for its backend.
    if !s.found && !stash::raise(s) {
        return Err(Exit::reset(Reason::HelloSourceFull));
    }
    // Only now, so that a hello that is refused takes nobody's place.
    let exit = if stash::stash_keep(s) == 0 {
        Exit::reset(Reason::HelloStashFailed)
    } else {
        connect::open(skb, s, Reason::ConnectSyn)
    };
    stash::stash_settle(s);
    Err(opened(s, exit))
}

/// The client repeats a hello that is complete: the backend has not answered. The first time the same backend is asked
/// again; from the second on the next one.
#[inline(always)]
fn retransmitted(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    s.hello.retransmits = s.hello.retransmits.saturating_add(1);
    if s.hello.retransmits < 2 {
        return Err(connect::again(skb, s));
    }
    // Exactly one CPU gets to remove it: this one, or the one that has the backend's answer.
    if !maps::remove_hello(&s.client) {
        return Err(Exit::drop(Reason::HelloBeyond));
    }
    connect::abandon(s);
    pick::next(s).inspect_err(|_| {
        connect::refused(s);
        stash::lower(&s.client, s.hello.source_epoch);
    })?;
    let exit = connect::open(skb, s, Reason::ConnectNext);
    Err(opened(s, exit))
}

/// What came of dialling; a refusal is the route's.
#[inline(always)]
fn opened(s: &mut Scratch, exit: Exit) -> Exit {
    if exit.verdict() == Verdict::Reset {
        connect::refused(s);
        // Where there is an entry, whoever forgets it counts it down.
        if maps::hello(&s.client).is_none() {
            stash::lower(&s.client, s.hello.source_epoch);
        }
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
        if maps::is_draining() {
            return Exit::reset(Reason::SynDraining);
        }
        return match open_tcp(skb, s) {
            Ok(()) => pass_syn(skb, s),
            Err(exit) => exit,
        };
    }
    if !known {
        return if s.segment.has(RST) {
            Exit::drop(Reason::SynStray)
        } else {
            Exit::reset(Reason::SynCookieMismatch)
        };
    }
    if s.segment.has(RST) {
        if !half_open::abandoned(s) {
            return Exit::drop(Reason::SynStray);
        }
        half_open::forget(&s.client);
        half_open::draft(s);
        return emit::pass_through(skb, s, Reason::ForwardReset);
    }
    if !half_open::acknowledged(s) {
        return Exit::reset(Reason::SynCookieMismatch);
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
    // Twice: another CPU may have taken the same free place at the same moment.
    hold(skb, s).or_else(|_| hold(skb, s)).inspect_err(|_| connect::refused(s))
}

/// A source port and a place for a half-open connection.
#[inline(always)]
fn hold(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    if connect::connect_port(skb.0, s) == 0 {
        return Err(Exit::reset(Reason::ConnectNoPort));
    }
    if half_open::half_open_store(s) == 0 {
        maps::free_nat(&s.hello.nat, &s.client);
        return Err(Exit::reset(Reason::SynHalfOpenFull));
    }
    Ok(())
}

#[inline(always)]
fn pass_syn(skb: Skb, s: &mut Scratch) -> Exit {
    half_open::draft(s);
    emit::keep_received(s);
    if s.segment.tcp_bytes > 20 {
        half_open::half_open_slow_open(s);
    }
    emit::pass(skb, s, Reason::SynForwarded)
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
