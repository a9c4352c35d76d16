//! The order of stages; nobody else knows it. Each way a packet can go has a file of its own; a path calls stages, and no
//! other path: it gives the class that the packet has now, and [`client`] and [`backend`] go on from there.

/// Of an established connection, or of one that is over.
mod flow;
/// Of a connection that waits for bytes of its hello, or for its backend.
mod pending;
/// Of a TCP listener's connection whose backend has not answered, or whose client has not.
mod half_open;
/// Of a connection that begins.
mod new;
/// Of no connection.
mod stray;
/// ICMP: errors of routers and hosts on either side, pings.
mod icmp;
/// What the daemon brings about when no packet comes.
pub(crate) mod expire;

use common::maps::listener::ROLE_VIP;
use common::reason::Reason;

use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Skb};
use crate::packet::RST;
use crate::scratch::Scratch;
use crate::segment::{emit, icmp_error};
use crate::stage::classify::{self, Class, Side};
use crate::stage::{checksum, options, parse};

/// Every packet of every device that we are attached to.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> Exit {
    let exit = match walk(skb, s) {
        Ok(exit) | Err(exit) => exit,
    };
    let (received, draft, cursors) = (&mut s.received, &mut s.draft, &mut s.cursors);
    match exit.verdict() {
        // The one place that answers with RST.
        Verdict::Reset => emit::reset(skb, received, draft, cursors, exit),
        // And the one that answers a sender with ICMP for a segment that cannot go on.
        Verdict::IcmpError => icmp_error::about_segment(skb, received, draft, cursors, exit.reason()),
        _ => exit,
    }
}

#[inline(always)]
fn walk(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    let received = &mut s.received;
    received.partial_known = false;
    parse::addresses(skb, received)?;
    classify::role(received)?;
    let vip = classify::is(&received.segment, ROLE_VIP);
    // What is the node's own is left as it is, for the node's stack.
    if parse::unusual(received) == Some(Reason::ParseOptions)
        && vip
        && classify::own(&received.segment).is_ok()
    {
        options::strip(skb, received, &mut s.cursors)?;
        parse::addresses(skb, received)?;
    }
    if !parse::is_tcp(received) || parse::unusual(received).is_some() {
        return other(skb, s);
    }
    received.now_ns = kernel::monotonic_ns();
    // Whatever is wrong with a segment for the node's own address is for the node's stack to say.
    checksum::ip(received)
        .and_then(|()| parse::tcp(skb, received, &mut s.cursors))
        .map_err(|exit| if vip { exit } else { Exit::next(Reason::ClassifyOwnTraffic) })?;
    match classify::side(received)? {
        Side::Backend => backend(skb, s),
        Side::Client => client(skb, s),
    }
}

/// A client's segment: of an open flow first, for that is nearly every packet.
#[inline(always)]
fn client(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    let class = match flow::takes(skb, s)? {
        true => Class::Flow,
        false => without_flow(skb, s)?,
    };
    Ok(match class {
        Class::Flow => flow::client(skb, s),
        Class::Pending => pending::client(skb, s),
        Class::HalfOpen => half_open::pass_syn(skb, s),
        Class::New | Class::Stray => stray::client(skb, s),
    })
}

/// What a client's segment comes to that no flow takes.
#[inline(always)]
fn without_flow(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    if !classify::listener(&mut s.received, &mut s.dial)? {
        return Err(no_listener(skb, s));
    }
    let mut class = classify::client(&mut s.received, &mut s.dial, &mut s.waiting, &mut s.half_open)?;
    if class == Class::Pending && !pending::takes(skb, s)? {
        class = classify::unknown(&mut s.received, &mut s.dial, &mut s.waiting)?;
    }
    if class == Class::HalfOpen {
        class = half_open::client(skb, s)?;
    }
    if class == Class::New {
        class = new::client(skb, s)?;
    }
    Ok(class)
}

/// A client's segment for a port of the VIP that nobody serves.
#[inline(always)]
fn no_listener(skb: Skb, s: &mut Scratch) -> Exit {
    let received = &mut s.received;
    match classify::own(&received.segment) {
        Err(exit) => exit,
        Ok(()) if received.segment.has(RST) => Exit::drop(Reason::ClassifyDropped),
        Ok(()) => match checksum::tcp(skb, received, &mut s.cursors) {
            Err(exit) => exit,
            Ok(()) => Exit::reset(Reason::ClassifyNoListener),
        },
    }
}

/// A backend's segment, of the connection at `received.client`.
#[inline(always)]
fn backend(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    if let Some(exit) = flow::backend(skb, s) {
        return Ok(exit);
    }
    checksum::tcp(skb, &mut s.received, &mut s.cursors)?;
    Ok(match classify::backend(&s.received, &mut s.waiting, &mut s.half_open) {
        Class::Pending => pending::backend(skb, s),
        Class::HalfOpen => half_open::backend(skb, s),
        // The same SYN-ACK, come twice.
        Class::Flow => Exit::drop(Reason::ConnectStray),
        Class::New | Class::Stray => stray::backend(),
    })
}

/// Not a TCP segment that we can read. The node's own address: handed on. Else the VIP is ours alone.
#[inline(always)]
fn other(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    let received = &mut s.received;
    let unusual = parse::unusual(received);
    if unusual.is_none()
        && let Some(kind) = crate::stage::icmp::kind(received, parse::protocol(received))
    {
        return Ok(match icmp::run(skb, s, kind)? {
            icmp::Came::Sent(exit) => exit,
            icmp::Came::Refused => pending::refused(skb, s),
        });
    }
    if unusual == Some(Reason::ParseFragment)
        && parse::fragment_ports(received)
        && classify::has_connection(received, &mut s.dial)
    {
        // Put together by the node's stack it would be answered with RST. The fragments behind this one find no first.
        return Err(Exit::drop(Reason::ParseFragment));
    }
    if !classify::is(&received.segment, ROLE_VIP) {
        return Err(Exit::next(Reason::ClassifyOwnTraffic));
    }
    classify::own(&received.segment)?;
    if parse::is_neighbour_discovery(received) {
        return Err(Exit::next(Reason::ClassifyOwnTraffic));
    }
    match unusual {
        Some(reason) => Err(Exit::drop(reason)),
        None => Ok(icmp_error::unreachable(skb, received, &mut s.draft, &mut s.cursors)),
    }
}
