//! ICMP: errors of routers and hosts on either side, pings.

use common::maps::flow::{FLOW_OWED, HELLO_CONNECTING, HELLO_OWED};
use common::maps::listener::ROLE_VIP;
use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::Scratch;
use crate::path::from_backend;
use crate::stage::icmp::{self, Kind, Quoted};
use crate::stage::{checksum, classify, connect, half_open, stash};

/// Least MTU that is believed: what Linux and RFC 8200 take.
const MTU_LEAST_V4: u32 = 552;
const MTU_LEAST_V6: u32 = 1280;

/// An ICMP message for a VIP or a source address.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch, kind: Kind) -> Exit {
    if let Err(exit) = checksum::ip(s) {
        return if classify::is(s, ROLE_VIP) { exit } else { Exit::next(Reason::ClassifyOwnTraffic) };
    }
    if kind == Kind::Echo {
        return match nobodys(s) {
            Err(exit) => exit,
            Ok(()) => icmp::answer(skb, s),
        };
    }
    s.now_ns = kernel::monotonic_ns();
    s.segment.flags = 0;
    match icmp::find(skb, s) {
        Quoted::ToClient if icmp::for_backend(s) => icmp::pass(skb, s, Reason::IcmpToBackend),
        Quoted::ToBackend => about_backend(skb, s, kind),
        Quoted::ToClient => Exit::drop(Reason::IcmpStray),
        Quoted::Unknown => match nobodys(s) {
            Err(exit) => exit,
            Ok(()) => Exit::drop(Reason::IcmpStray),
        },
    }
}

/// Leaves with what the node's own stack is to answer.
#[inline(always)]
fn nobodys(s: &Scratch) -> Result<(), Exit> {
    if !classify::is(s, ROLE_VIP) {
        return Err(Exit::next(Reason::ClassifyOwnTraffic));
    }
    classify::own(s)
}

/// The error quotes a segment of ours to a backend, for the client at `s.client`.
#[inline(always)]
fn about_backend(skb: Skb, s: &mut Scratch, kind: Kind) -> Exit {
    if kind == Kind::TooBig && owed(s) {
        return cut_smaller(skb, s);
    }
    if icmp::for_client(s) {
        return icmp::pass(skb, s, Reason::IcmpToClient);
    }
    if kind == Kind::Unreachable && dialled(s) {
        if !icmp::is_whole(skb, s) {
            return Exit::drop(Reason::IcmpStray);
        }
        maps::count_event(Reason::IcmpRefused);
        return from_backend::refused(skb, s);
    }
    if let Some(held) = maps::half_open(&s.client)
        && held.nat == s.flow.nat
        && held.isn == s.from
    {
        kernel::assign(&mut s.half_open, held);
        return half_opened(skb, s, kind);
    }
    Exit::drop(Reason::IcmpStray)
}

/// Whether the error quotes our SYN for a waiting hello; it is then in `s.hello`.
#[inline(always)]
fn dialled(s: &mut Scratch) -> bool {
    let Some(hello) = maps::hello(&s.client) else { return false };
    if hello.state != HELLO_CONNECTING || hello.nat != s.flow.nat || hello.isn != s.from {
        return false;
    }
    kernel::assign(&mut s.hello, hello);
    true
}

/// A TCP listener's client waits for the backend itself: it gets the error.
#[inline(always)]
fn half_opened(skb: Skb, s: &mut Scratch, kind: Kind) -> Exit {
    if kind == Kind::Unreachable {
        if !icmp::is_whole(skb, s) {
            return Exit::drop(Reason::IcmpStray);
        }
        half_open::forget(&s.client);
        s.hello.route = s.half_open.route;
        connect::refused(s);
        maps::count_event(Reason::IcmpRefused);
    }
    s.ack_shift = 0;
    icmp::to_client(s);
    icmp::pass(skb, s, Reason::IcmpToClient)
}

/// Whether bytes that we acknowledged are still ours to deliver on this flow.
#[inline(always)]
fn owed(s: &mut Scratch) -> bool {
    let Some(flow) = maps::flow(&s.client) else { return false };
    if flow.nat != s.flow.nat || flow.backend_flags & FLOW_OWED == 0 {
        return false;
    }
    kernel::assign(&mut s.flow, flow);
    true
}

/// The hello goes once more, in smaller segments: its bytes are ours, the client would not repeat them.
#[inline(always)]
fn cut_smaller(skb: Skb, s: &mut Scratch) -> Exit {
    let (least, headers) = if s.segment.v4 { (MTU_LEAST_V4, 52) } else { (MTU_LEAST_V6, 72) };
    let room = icmp::mtu(s).max(least) - headers;
    let quoted = s.from;
    let Some(hello) = maps::hello(&s.client) else { return Exit::drop(Reason::IcmpStray) };
    let offset = quoted.wrapping_sub(hello.isn.wrapping_add(1));
    if hello.state != HELLO_OWED || offset >= hello.have || room >= u32::from(hello.backend_mss) {
        return Exit::drop(Reason::IcmpStray);
    }
    if !icmp::is_whole(skb, s) {
        return Exit::drop(Reason::IcmpStray);
    }
    hello.backend_mss = room as u16;
    kernel::assign(&mut s.hello, hello);
    s.from = s.flow.backend_acked.wrapping_sub(s.hello.isn.wrapping_add(1)) & 0x3fff;
    if stash::stash_fetch(s) == 0 {
        return Exit::drop(Reason::IcmpStray);
    }
    connect::deliver(skb, s, Reason::ConnectRepeated)
}
