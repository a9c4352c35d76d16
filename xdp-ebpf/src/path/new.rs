//! Packets that start a connection: a SYN, the bare ACK of a handshake, keep-alives after it, or the first bytes of a hello.

use common::maps::listener::PROTOCOL_TCP;
use common::reason::Reason;

use crate::connection::cookie::{PROOF_FIRST, PROOF_KEEP_ALIVE};
use crate::connection::{count, half_open, pending};
use crate::delivery;
use crate::exit::{Exit, Verdict};
use crate::kernel::Skb;
use crate::maps;
use crate::packet::FIN;
use crate::scratch::Scratch;
use crate::segment::emit;
use crate::stage::classify::Class;
use crate::stage::{admit, checksum, hello, pick, route, syn};

/// Handles a client's segment. `Ok`: the class of its connection from now on.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    let tcp = s.dial.listener.protocol == PROTOCOL_TCP;
    // The third packet of a handshake, which adds to the client's waiting time. It changes nothing, so
    // nothing else is checked.
    if !tcp && s.received.segment.is_bare() && s.dial.proof == PROOF_FIRST {
        return Err(Exit::drop(Reason::SynAcked));
    }
    checksum::tcp(skb, &mut s.received, &mut s.cursors)?;
    admit::at_listener(&mut s.received, &mut s.dial.listener)?;
    if s.received.segment.is_syn() {
        // Draining does not stop a handshake in progress: its next segment is not a SYN.
        if maps::is_draining() {
            return Err(Exit::reset(Reason::SynDraining));
        }
        return if tcp && !by_cookie(s) { by_port(skb, s) } else { Err(answer(skb, s)) };
    }
    let keep_alive = s.dial.proof == PROOF_KEEP_ALIVE;
    // On a TCP listener, where the client's ACK was lost, its keep-alive dials.
    if keep_alive && !(tcp && s.received.segment.payload_bytes == 0) {
        return Err(answer_keep_alive(skb, s));
    }
    if !keep_alive && s.dial.proof != PROOF_FIRST {
        // Part of this handshake, but ahead of the hello's first segment (a later segment, or the bare answer
        // to a repeated SYN-ACK). Nothing was acknowledged to the client yet, so it will repeat its hello: a client
        // with timestamps to which something was acknowledged echoes that, and has no valid cookie any more.
        return Err(Exit::drop(Reason::SynEarly));
    }
    // On a TCP listener the server may speak first.
    if !tcp && s.received.segment.payload_bytes == 0 {
        return Err(match s.received.segment.has(FIN) {
            true => Exit::reset(Reason::SynClosedEarly),
            false => Exit::drop(Reason::SynAcked),
        });
    }
    if s.waiting.held {
        // Another connection is pending on the same ports: the segment's own cookie admits the new one.
        pending::remove_held(&mut s.received, &mut s.waiting);
    }
    hello::begin(&s.received, &mut s.waiting, s.dial.listener.id);
    Ok(Class::Pending)
}

/// Whether the SYN of a TCP listener is answered by a cookie. A SYN may be forged, so it replaces no other
/// connection that its sender may be opening.
#[inline(always)]
fn by_cookie(s: &mut Scratch) -> bool {
    s.half_open.held
        || maps::pending(&s.received.client).is_some()
        || half_open::is_crowded(&mut s.received, &mut s.dial)
}

/// Answers the SYN by a cookie. Nothing is stored.
#[inline(always)]
fn answer(skb: Skb, s: &mut Scratch) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    match syn::answer(received, draft, &mut s.dial.listener) {
        Err(exit) => exit,
        Ok(()) => emit::send(skb, received, draft, &mut s.cursors, Reason::SynAnswered),
    }
}

/// Answers the keep-alive of a client that has sent nothing yet. Nothing is stored, so its hello is accepted only while its
/// cookie is.
#[inline(always)]
fn answer_keep_alive(skb: Skb, s: &mut Scratch) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    hello::not_begun(received, &mut s.waiting.pending);
    hello::acknowledgement(received, draft, &s.waiting.pending);
    emit::send(skb, received, draft, &mut s.cursors, Reason::SynKeepAlive)
}

/// Picks the backend for the SYN of a TCP listener, which is then passed to it.
#[inline(always)]
fn by_port(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    route::of_listener(&mut s.dial)?;
    let admitted = admit::new(&mut s.received, &mut s.dial);
    let chosen = admitted.and_then(|()| pick::next(&mut s.received, &mut s.dial));
    match chosen.and_then(|()| hold(skb, s)) {
        Ok(true) => Ok(Class::HalfOpen),
        Ok(false) => Err(answer(skb, s)),
        Err(exit) => {
            if exit.verdict() == Verdict::Reset {
                count::refused(s.dial.choice.route);
            }
            Err(exit)
        }
    }
}

/// Claims the backend's side of the connection, and a slot for it while it is half-open; `Ok(false)`: there is no slot, or
/// a connection that the client's proof ends has its port.
#[inline(always)]
fn hold(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    s.dial.connection.generation = maps::next_generation();
    if let Err(exit) = delivery::open(skb, &mut s.received, &mut s.dial) {
        // Backends that see the client's own port know one connection on it. The client's flow, which this SYN gives up, has it
        // until the client proves that it sent the SYN. So has another SYN that nobody proved, by another VIP or port. A look-up
        // that finds nobody may come between two steps of another CPU.
        let gives_way = !delivery::owns_source(&s.dial.connection)
            && match exit.verdict() {
                Verdict::Drop => maps::flow(&s.received.client).is_some(),
                _ => !half_open::is_proven(&mut s.dial),
            };
        return if gives_way { Ok(false) } else { Err(exit) };
    }
    let stored = half_open::store(&mut s.received, &mut s.dial, &mut s.half_open, &mut s.cursors);
    if stored != Ok(true) {
        delivery::release(&s.dial.nat, &s.received.client, s.dial.connection.generation);
    }
    stored
}
