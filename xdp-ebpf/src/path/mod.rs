//! The packet's way; the only files that know the order of stages.

/// Client -> VIP.
pub(crate) mod from_client;
/// ICMP: errors of routers and hosts on either side, pings.
pub(crate) mod from_router;
/// Backend -> one of our source addresses.
pub(crate) mod from_backend;
/// What the daemon brings about when no packet comes.
pub(crate) mod from_daemon;

use common::maps::listener::ROLE_VIP;
use common::reason::Reason;

use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Skb};
use crate::packet::Scratch;
use crate::stage::classify::{self, Side};
use crate::stage::{checksum, emit, icmp, options, parse, tell};

/// Every packet of every device that we are attached to.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> Exit {
    let exit = match walk(skb, s) {
        Ok(exit) | Err(exit) => exit,
    };
    match exit.verdict() {
        // The one place that answers a client with RST.
        Verdict::Reset => emit::reset_code(skb, s, exit),
        // And the one that answers a sender with ICMP for a segment that cannot go on.
        Verdict::Tell => tell::sender(skb, s, exit),
        _ => exit,
    }
}

#[inline(always)]
fn walk(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    s.partial_known = false;
    parse::addresses(skb, s)?;
    classify::role(s)?;
    // What is the node's own is left as it is, for the node's stack.
    if parse::unusual(s) == Some(Reason::ParseOptions)
        && classify::is(s, ROLE_VIP)
        && classify::own(s).is_ok()
    {
        options::strip(skb, s)?;
        parse::addresses(skb, s)?;
    }
    if !parse::is_tcp(s) || parse::unusual(s).is_some() {
        return Err(other(skb, s));
    }
    s.now_ns = kernel::monotonic_ns();
    // Whatever is wrong with a segment for the node's own address is for the node's stack to say.
    checksum::ip(s).and_then(|()| parse::tcp(skb, s)).map_err(|exit| {
        if classify::is(s, ROLE_VIP) { exit } else { Exit::next(Reason::ClassifyOwnTraffic) }
    })?;
    match classify::side(s)? {
        Side::Backend => Err(from_backend::run(skb, s)),
        Side::Client => Err(from_client::run(skb, s)),
    }
}

/// Not a TCP segment that we can read. The node's own address: handed on. Else the VIP is ours alone.
#[inline(always)]
fn other(skb: Skb, s: &mut Scratch) -> Exit {
    if parse::unusual(s).is_none()
        && let Some(kind) = icmp::kind(s, parse::protocol(s))
    {
        return from_router::run(skb, s, kind);
    }
    if parse::unusual(s) == Some(Reason::ParseFragment) && parse::fragment_ports(s) && classify::connection(s)
    {
        // Put together by the node's stack it would be answered with RST. The fragments behind this one find no first.
        return Exit::drop(Reason::ParseFragment);
    }
    if !classify::is(s, ROLE_VIP) {
        return Exit::next(Reason::ClassifyOwnTraffic);
    }
    if let Err(exit) = classify::own(s) {
        return exit;
    }
    if parse::is_neighbour_discovery(s) {
        return Exit::next(Reason::ClassifyOwnTraffic);
    }
    if let Some(reason) = parse::unusual(s) {
        return Exit::drop(reason);
    }
    emit::unreachable(skb, s)
}
