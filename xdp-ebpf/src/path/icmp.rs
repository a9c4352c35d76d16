//! ICMP: errors from routers and hosts on either side, and pings.

use common::maps::flow::{
    BackendTuple, FLOW_UNDELIVERED, HALF_OPEN_DIALLED, HELLO_OFFSET_MASK, PENDING_CONNECTING,
    PENDING_UNDELIVERED,
};
use common::maps::listener::ROLE_VIP;
use common::maps::trace::CLASS_ICMP;
use common::reason::Reason;

use super::previous;
use crate::buffer::bytes;
use crate::connection::cookie::PROOF_NONE;
use crate::connection::record::Found;
use crate::connection::{count, half_open, narrow, pending};
use crate::delivery;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::scratch::{Quote, Scratch};
use crate::segment::emit;
use crate::stage::icmp::{self, Kind, MTU_LEAST_V6, Quoted};
use crate::stage::{checksum, classify, connect};

/// The smallest MTU that is accepted, as in Linux.
const MTU_LEAST_V4: u32 = 552;

/// The outcome of a message.
pub(super) enum Came {
    /// The packet leaves.
    Sent(Exit),
    /// The backend of the connection in `s.waiting` is unreachable.
    Refused,
}

/// Handles an ICMP message for a VIP or for an address that backends reply to.
#[inline(always)]
pub(super) fn run(skb: Skb, s: &mut Scratch, kind: Kind) -> Result<Came, Exit> {
    let received = &mut s.received;
    if let Err(exit) = checksum::ip(received) {
        let vip = classify::is(&received.segment, ROLE_VIP);
        return Err(if vip { exit } else { Exit::next(Reason::ClassifyOwnTraffic) });
    }
    if kind == Kind::Echo {
        nobodys(s)?;
        return Ok(Came::Sent(icmp::answer(skb, &mut s.received, &mut s.draft)));
    }
    received.now_ns = kernel::monotonic_ns();
    received.segment.flags = 0;
    let quoted = icmp::find(skb, received, &mut s.quote);
    if matches!(quoted, Quoted::ToClient | Quoted::ToBackend) {
        received.class = CLASS_ICMP;
    }
    match quoted {
        Quoted::ToClient if icmp::for_backend(received, &mut s.draft, &mut s.quote) => {
            about_client(skb, s, kind)
        }
        Quoted::ToBackend => about_backend(skb, s, kind),
        Quoted::ToClient => Err(Exit::drop(Reason::IcmpStray)),
        Quoted::Elsewhere => {
            nobodys(s)?;
            // Of a router, which no policy admits.
            s.dial.listener.policy = 0;
            previous::pass(skb, &mut s.received, &mut s.dial.listener, PROOF_NONE, 0)?;
            Err(Exit::drop(Reason::IcmpStray))
        }
        Quoted::Unknown => {
            nobodys(s)?;
            Err(Exit::drop(Reason::IcmpStray))
        }
    }
}

/// Leaves if the message is for the node's own stack.
#[inline(always)]
fn nobodys(s: &Scratch) -> Result<(), Exit> {
    if !classify::is(&s.received.segment, ROLE_VIP) {
        return Err(Exit::next(Reason::ClassifyOwnTraffic));
    }
    classify::own(&s.received.segment)
}

#[inline(always)]
fn pass(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    icmp::pass(skb, &mut s.received, &mut s.draft, &mut s.quote, reason as u32)
}

/// Handles an error about a backend's segment to the client in `received.client`, addressed to the backend. "Too big" would
/// lower the MTU of the backend's path to our source address, and so of all clients: an IPv4 backend is not notified, and its
/// segments to this client may be fragmented instead; IPv6 has nothing like it, so the backend is notified, within limits.
#[inline(always)]
fn about_client(skb: Skb, s: &mut Scratch, kind: Kind) -> Result<Came, Exit> {
    if kind == Kind::TooBig && icmp::is_about_all(&s.received) {
        whole(skb, s)?;
        if s.received.segment.v4 {
            narrow::let_fragment(&s.received.client, s.received.generation);
            return Err(Exit::drop(Reason::IcmpFragmented));
        }
        let second = (s.received.now_ns / 1_000_000_000) as u32;
        if !narrow::may_notify(&mut s.received.client, s.received.generation, second) {
            return Err(Exit::drop(Reason::IcmpTooMany));
        }
    }
    Ok(Came::Sent(pass(skb, s, Reason::IcmpToBackend)))
}

/// Handles an error about a segment that we sent to a backend, for the client in `received.client`.
#[inline(always)]
fn about_backend(skb: Skb, s: &mut Scratch, kind: Kind) -> Result<Came, Exit> {
    if kind == Kind::TooBig
        && is_undelivered(s)
        && let Some(exit) = cut_smaller(skb, s)?
    {
        return Ok(Came::Sent(exit));
    }
    if icmp::for_client(&mut s.received, &mut s.draft, &mut s.quote) {
        return Ok(Came::Sent(pass(skb, s, Reason::IcmpToClient)));
    }
    let generation = s.received.generation;
    if pending::lock(&mut s.received, &mut s.waiting, generation) == Found::Held
        && s.waiting.pending.connection.state == PENDING_CONNECTING
    {
        let dialled = &s.waiting.pending;
        quotes_syn(&dialled.nat, dialled.isn, &s.quote)?;
        if kind != Kind::Unreachable {
            return Err(Exit::drop(Reason::IcmpStray));
        }
        whole(skb, s)?;
        maps::count_event(Reason::IcmpRefused);
        return Ok(Came::Refused);
    }
    if half_open::lock(&mut s.received, &mut s.half_open, generation) == Found::Held {
        let dialled = &s.half_open.record;
        quotes_syn(&dialled.nat, dialled.isn, &s.quote)?;
        return half_opened(skb, s, kind);
    }
    Err(Exit::drop(Reason::IcmpStray))
}

/// Leaves unless the error quotes the SYN of a connection that waits for its backend. The node may have another connection
/// on these addresses and ports, which needs the error.
#[inline(always)]
fn quotes_syn(nat: &BackendTuple, isn: u32, quote: &Quote) -> Result<(), Exit> {
    match delivery::is_quoted(nat, quote) && isn == quote.seq {
        true => Ok(()),
        false => Err(Exit::next(Reason::ClassifyOwnTraffic)),
    }
}

/// Refuses a message whose checksum is wrong.
#[inline(always)]
fn whole(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    match icmp::is_whole(skb, &mut s.received, &mut s.cursors) {
        true => Ok(()),
        false => Err(Exit::drop(Reason::IcmpStray)),
    }
}

/// Passes the error to the client of a TCP listener, which waits for the backend itself. Once the backend has answered, the
/// error is about a repetition of the SYN, and ends nothing.
#[inline(always)]
fn half_opened(skb: Skb, s: &mut Scratch, kind: Kind) -> Result<Came, Exit> {
    if kind == Kind::Unreachable && s.half_open.record.connection.state == HALF_OPEN_DIALLED {
        whole(skb, s)?;
        half_open::remove_held(&mut s.received, &mut s.half_open);
        count::refused(s.half_open.record.connection.route);
        maps::count_event(Reason::IcmpRefused);
    }
    icmp::to_client(&s.received, &mut s.draft, &mut s.quote, 0);
    Ok(Came::Sent(pass(skb, s, Reason::IcmpToClient)))
}

/// Whether bytes that we acknowledged are still undelivered on this flow; the flow is then in `s.flow`.
#[inline(always)]
fn is_undelivered(s: &mut Scratch) -> bool {
    let Some(flow) = maps::flow(&s.received.client) else { return false };
    if flow.connection.generation != s.received.generation || flow.connection.flags & FLOW_UNDELIVERED == 0 {
        return false;
    }
    kernel::assign(&mut s.flow, flow);
    true
}

/// Sends the hello again in smaller segments: we acknowledged its bytes, so the client would not repeat them. `None`: the
/// error is about bytes behind them, which the client repeats itself.
#[inline(always)]
fn cut_smaller(skb: Skb, s: &mut Scratch) -> Result<Option<Exit>, Exit> {
    let stray = Exit::drop(Reason::IcmpStray);
    let (least, headers) = if s.received.segment.v4 { (MTU_LEAST_V4, 52) } else { (MTU_LEAST_V6, 72) };
    let room = icmp::mtu(&s.received).max(least) - headers;
    if pending::lock(&mut s.received, &mut s.waiting, s.flow.connection.generation) != Found::Held {
        return Err(stray);
    }
    let p = &mut s.waiting.pending;
    let offset = s.quote.seq.wrapping_sub(p.isn.wrapping_add(1));
    if p.connection.state != PENDING_UNDELIVERED {
        return Err(stray);
    }
    if offset >= p.have {
        return Ok(None);
    }
    if room >= u32::from(p.backend_mss) {
        return Err(stray);
    }
    p.backend_mss = room as u16;
    whole(skb, s)?;
    pending::write(&s.received, &s.waiting);
    s.cursors.from =
        s.flow.backend.acked.number.wrapping_sub(s.waiting.pending.isn.wrapping_add(1)) & HELLO_OFFSET_MASK;
    if !bytes::fetch(&mut s.received, &mut s.waiting, &mut s.cursors) {
        return Err(stray);
    }
    emit::learn_partial(skb, &mut s.received)?;
    connect::draft_delivery(&mut s.draft, &s.waiting.pending, &s.flow, Reason::ConnectRepeated);
    Ok(Some(connect::deliver(skb, &mut s.received, &mut s.draft, &mut s.waiting, &mut s.cursors)))
}
