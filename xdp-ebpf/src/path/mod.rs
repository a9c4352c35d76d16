//! The order of the stages, which no other module knows. Each class of packets has a file of its own. A path
//! calls stages, but never another path: it returns the class that the packet has now, and [`client`] and
//! [`backend`] continue with that class.

/// Packets of an established connection, or of one that is over.
mod flow;
/// Packets of a connection that waits for bytes of its hello, or for its backend.
mod pending;
/// Tries of a connection whose backend is silent or refuses.
mod dial;
/// Packets of a TCP listener's connection whose backend or client has not answered yet.
mod half_open;
/// Packets that start a connection.
mod new;
/// Packets of no connection.
mod stray;
/// Packets of connections of the node that announced the address before.
mod previous;
/// ICMP: errors from routers and hosts on either side, and pings.
mod icmp;
/// Ends connections for the daemon, when no packet arrives.
pub(crate) mod expire;
/// What XDP answers or drops, before the kernel has made a packet of it.
pub(crate) mod xdp;

use common::maps::listener::{PROTOCOL_TCP, ROLE_VIP};
use common::maps::trace::{
    CLASS_NONE, KNOWN_ADDRESSES, KNOWN_BACKEND, KNOWN_CLIENT, KNOWN_NOTHING, KNOWN_SEGMENT,
};
use common::reason::Reason;

use crate::connection::half_open as half_open_record;
use crate::connection::pending as pending_record;
use crate::delivery::{self, ROLES_OF_REPLIES};
use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::RST;
use crate::scratch::{Cursors, Received, Scratch};
use crate::segment::hops::FlowHop;
use crate::segment::{emit, icmp_error};
use crate::stage::classify::{self, Class, Side};
use crate::stage::parse::Link;
use crate::stage::{checksum, heartbeat, neighbour, options, parse};

/// Handles every packet of every device that we are attached to.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> Exit {
    let exit = match walk(skb, s) {
        Ok(exit) | Err(exit) => exit,
    };
    let (received, draft, cursors) = (&mut s.received, &mut s.draft, &mut s.cursors);
    let exit = match exit.verdict() {
        // Each exit with this verdict is answered with RST here.
        Verdict::Reset => emit::reset(skb, received, draft, cursors, exit),
        // The sender of a segment that cannot be passed on is answered with ICMP here.
        Verdict::IcmpError => icmp_error::about_segment(skb, received, draft, cursors, exit.reason()),
        _ => exit,
    };
    settle(s);
    exit
}

/// Keeps a packet from the node's stack that came from there, and would go there again.
#[inline(always)]
pub(crate) fn turned_back(received: &Received, exit: Exit) -> Exit {
    match exit.verdict() {
        Verdict::Next if received.by_pair => Exit::drop(Reason::ClassifyNodeStray),
        _ => exit,
    }
}

/// Gives back what the packet's handling still holds.
#[inline(always)]
pub(super) fn settle(s: &mut Scratch) {
    let (received, waiting, half_open) = (&mut s.received, &mut s.waiting, &mut s.half_open);
    if waiting.held || waiting.claimed != 0 {
        pending_record::settle(received, waiting);
    }
    if half_open.held {
        half_open_record::settle(received, half_open);
    }
}

#[inline(always)]
fn walk(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    let received = &mut s.received;
    received.partial_known = false;
    received.hop = FlowHop::NONE;
    received.known = KNOWN_NOTHING;
    received.class = CLASS_NONE;
    received.by_pair = skb.ifindex() == maps::node_clients();
    received.from_node = received.by_pair;
    if let Err(exit) = parse::addresses(skb, received) {
        match parse::link(skb) {
            Link::Arp => neighbour::arp(skb, received)?,
            Link::Heartbeat => heartbeat::take(skb, received)?,
            Link::Other => {}
        }
        return Err(exit);
    }
    received.known = KNOWN_ADDRESSES;
    if parse::is_neighbour_discovery(received) {
        neighbour::discovery(skb, received, &mut s.draft, &mut s.cursors)?;
    }
    let received = &mut s.received;
    classify::role(received)?;
    parse::untag(skb)?;
    let vip = classify::is(&received.segment, ROLE_VIP);
    if parse::unusual(received) == Some(Reason::ParseOptions)
        && !parse::jumbo(skb, received)
        && options_end_here(skb, received, &mut s.cursors)
    {
        options::strip(skb, received, &mut s.cursors)?;
        parse::addresses(skb, received)?;
    }
    if !parse::is_tcp(received) || parse::unusual(received).is_some() {
        return other(skb, s);
    }
    received.now_ns = kernel::monotonic_ns();
    // A faulty segment that is not for a VIP is left to the node's stack. That has no socket for a backend's, and would
    // answer one with impossible flags by RST, which ends the connection of a backend whose number it acknowledges.
    checksum::ip(received).and_then(|()| parse::tcp(skb, received)).map_err(|exit| {
        let is_ours = match exit == Exit::drop(Reason::ParseFlags) {
            true => vip || delivery::is_reply(&received.segment),
            false => vip,
        };
        if is_ours { exit } else { Exit::next(Reason::ClassifyOwnTraffic) }
    })?;
    received.known = KNOWN_SEGMENT;
    match classify::side(received)? {
        Side::Backend => {
            received.known = KNOWN_BACKEND;
            backend(skb, s)
        }
        Side::Client => {
            received.known = KNOWN_CLIENT;
            client(skb, s)
        }
    }
}

/// Whether the packet's options are ours to take off: it is for a VIP, or a backend's segment of a connection. Other packets
/// for the node's own address are left unchanged for the node's stack.
#[inline(always)]
fn options_end_here(skb: Skb, received: &mut Received, cursors: &mut Cursors) -> bool {
    if classify::is(&received.segment, ROLE_VIP) && classify::own(&received.segment).is_ok() {
        return true;
    }
    classify::is(&received.segment, ROLES_OF_REPLIES)
        && options::ports(skb, received, cursors)
        && delivery::is_reply(&received.segment)
}

/// Notes what the packet belongs to, for `trace`.
#[inline(always)]
fn note(s: &mut Scratch, class: Class) -> Class {
    s.received.class = class as u8;
    class
}

/// Handles a client's segment. Open flows are tried first, because nearly every packet belongs to one.
#[inline(always)]
fn client(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    let class = match flow::takes(skb, s)? {
        true => note(s, Class::Flow),
        false => without_flow(skb, s)?,
    };
    Ok(match class {
        Class::Flow => flow::client(skb, s),
        Class::Pending => pending::client(skb, s),
        Class::HalfOpen => half_open::pass_syn(skb, s),
        Class::New | Class::Stray => stray::client(skb, s),
    })
}

/// Returns the class of a client's segment that belongs to no flow.
#[inline(always)]
fn without_flow(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    if !classify::listener(&mut s.received, &mut s.dial.listener)? {
        return Err(no_listener(skb, s));
    }
    let mut class = classify::client(&mut s.received, &mut s.dial, &mut s.waiting, &mut s.half_open)?;
    note(s, class);
    if class == Class::Pending && !pending::takes(skb, s)? {
        class = classify::unknown(&mut s.received, &mut s.dial, &mut s.waiting)?;
        note(s, class);
    }
    if class == Class::HalfOpen {
        class = half_open::client(skb, s)?;
    }
    if matches!(class, Class::New | Class::Stray) {
        let waits = if s.waiting.held | s.half_open.held { previous::WAITS } else { 0 };
        // A SYN that is answered by a cookie opens nothing yet.
        let is_question = s.received.segment.is_syn() && s.dial.listener.protocol != PROTOCOL_TCP;
        let opens = if class == Class::New && !is_question { previous::OPENS } else { 0 };
        previous::pass(skb, &mut s.received, &mut s.dial.listener, s.dial.proof, waits | opens)?;
    }
    if class == Class::New {
        class = new::client(skb, s)?;
    }
    Ok(note(s, class))
}

/// Handles a client's segment for a port of the VIP that has no listener.
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

/// Handles a backend's segment of the connection in `received.client`.
#[inline(always)]
fn backend(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    if let Some(exit) = flow::backend(skb, s) {
        note(s, Class::Flow);
        return Ok(exit);
    }
    checksum::tcp(skb, &mut s.received, &mut s.cursors)?;
    let class = classify::backend(&mut s.received, &mut s.waiting, &mut s.half_open)?;
    Ok(match note(s, class) {
        Class::Pending => pending::backend(skb, s),
        Class::HalfOpen => half_open::backend(skb, s),
        // The same SYN-ACK, received twice.
        Class::Flow => Exit::drop(Reason::ConnectIgnored),
        Class::New | Class::Stray => stray::backend(&s.received),
    })
}

/// Handles a packet that is not a TCP segment we can read. Packets for the node's own address are handed on;
/// other VIPs belong to us alone.
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
        && (parse::fragment_ports(received) || options::ports(skb, received, &mut s.cursors))
        && classify::has_connection(received, &mut s.dial)
    {
        // The node's stack would reassemble it and answer with RST. Without it, the later fragments cannot be
        // reassembled.
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
