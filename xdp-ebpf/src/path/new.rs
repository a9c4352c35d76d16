//! Of a connection that begins: a SYN, the bare ACK of a handshake, or the first bytes of a hello.

use common::maps::listener::PROTOCOL_TCP;
use common::reason::Reason;

use crate::connection::cookie::PROOF_FIRST;
use crate::connection::{count, forget, half_open};
use crate::delivery;
use crate::exit::{Exit, Verdict};
use crate::kernel::Skb;
use crate::maps;
use crate::packet::FIN;
use crate::scratch::Scratch;
use crate::segment::emit;
use crate::stage::classify::Class;
use crate::stage::{checksum, hello, pick, route, syn};

/// A client's segment. `Ok`: what its connection is from now on.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    let tcp = s.dial.listener.protocol == PROTOCOL_TCP;
    // The third packet of a handshake, which the client waits for: it changes nothing, so nothing else is looked at.
    if !tcp && s.received.segment.is_bare() && s.dial.proof == PROOF_FIRST {
        return Err(Exit::drop(Reason::SynAcked));
    }
    checksum::tcp(skb, &mut s.received, &mut s.cursors)?;
    if tcp {
        return by_port(skb, s);
    }
    if s.received.segment.is_syn() {
        // A handshake under way goes on: its next segment is no SYN.
        return Err(match maps::is_draining() {
            true => Exit::reset(Reason::SynDraining),
            false => answer(skb, s),
        });
    }
    if s.dial.proof != PROOF_FIRST {
        // Of this handshake, but ahead of the hello (a later segment, or the bare answer to a repeated SYN-ACK): the
        // client has got nothing yet, and will repeat its hello.
        return Err(Exit::drop(Reason::SynEarly));
    }
    if s.received.segment.payload_bytes == 0 {
        return Err(match s.received.segment.has(FIN) {
            true => Exit::reset(Reason::SynClosedEarly),
            false => Exit::drop(Reason::SynAcked),
        });
    }
    if s.waiting.found {
        // Another connection on the same ports: its own cookie lets this one in.
        forget::pending(&mut s.received.client);
    }
    hello::begin(&s.received, &mut s.waiting, s.dial.listener.id);
    Ok(Class::Pending)
}

/// The SYN of a TLS listener: answered, and forgotten.
#[inline(always)]
fn answer(skb: Skb, s: &mut Scratch) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    match syn::answer(received, draft, &mut s.dial.listener) {
        Err(exit) => exit,
        Ok(()) => emit::send(skb, received, draft, &mut s.cursors, Reason::SynAnswered),
    }
}

/// The SYN of a TCP listener picks the backend, and is passed on to it.
#[inline(always)]
fn by_port(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    if maps::is_draining() {
        return Err(Exit::reset(Reason::SynDraining));
    }
    route::of_listener(&mut s.dial)?;
    let chosen = pick::next(&mut s.received, &mut s.dial);
    // Twice: another CPU may have taken the same free place at the same moment.
    let held = chosen.and_then(|()| hold(skb, s).or_else(|_| hold(skb, s)));
    if let Err(exit) = held {
        if exit.verdict() == Verdict::Reset {
            count::refused(s.dial.choice.route);
        }
        return Err(exit);
    }
    Ok(Class::HalfOpen)
}

/// The backend's side of the connection, and a place for it while it is half-open.
#[inline(always)]
fn hold(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    delivery::open(skb, &mut s.received, &mut s.dial)?;
    if !half_open::store(&mut s.received, &mut s.dial, &mut s.half_open, &mut s.cursors) {
        delivery::release(&s.dial.nat, &s.received.client, s.dial.connection.generation);
        return Err(Exit::reset(Reason::SynHalfOpenFull));
    }
    Ok(())
}
