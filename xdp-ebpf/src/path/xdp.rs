//! XDP's part of the path, in front of TCX: answers SYNs for which nothing has to be known but the tables, and drops what no
//! sender sends. It decides by the same functions as [`super::run`]. Where that could decide anything else, the frame passes
//! unchanged and uncounted, and TCX handles it: so without XDP all is the same, only slower.

use common::maps::listener::{PROTOCOL_TLS, ROLE_VIP};
use common::maps::trace::{CLASS_NONE, KNOWN_NOTHING};
use common::reason::Reason;

use crate::delivery::ROLES_OF_REPLIES;
use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Xdp};
use crate::maps;
use crate::scratch::{Front, Received};
use crate::segment::hops::FlowHop;
use crate::segment::{back, draft};
use crate::stage::{admit, checksum, classify, glance, parse, syn};
use crate::trace;

/// Whether the frame may be of those that [`run`] answers or drops, and is IPv4.
#[inline(always)]
pub(crate) fn glance(xdp: Xdp) -> Option<bool> {
    // `vestibule trace` shows what TCX has.
    glance::family(xdp).filter(|_| !trace::is_on())
}

/// Handles a frame. `None`: it passes, unchanged.
#[inline(always)]
pub(crate) fn run(xdp: Xdp, v4: bool, s: &mut Front) -> Option<Exit> {
    let received = &mut s.received;
    begin(received);
    parse::frame(xdp, v4, received).ok()?;
    classify::role(received).ok()?;
    let vip = classify::is(&received.segment, ROLE_VIP) && !classify::is(&received.segment, ROLES_OF_REPLIES);
    if !vip || parse::unusual(received).is_some() || checksum::ip(received).is_err() || maps::is_draining() {
        return None;
    }
    if let Err(exit) = parse::tcp(xdp, received) {
        return (exit.verdict() == Verdict::Drop && back::is_ours(xdp, received, &mut s.draft))
            .then_some(exit);
    }
    received.client = received.segment.tuple;
    if !received.segment.is_syn()
        || received.segment.payload_bytes != 0
        || !checksum::is_complete(received)
        // A SYN on an open connection is challenged.
        || maps::flow(&received.client).is_some()
    {
        return None;
    }
    answer(xdp, s)
}

/// Resets what a packet before left in the working memory.
#[inline(always)]
fn begin(received: &mut Received) {
    received.now_ns = kernel::monotonic_ns();
    received.partial_known = false;
    received.hop = FlowHop::NONE;
    received.known = KNOWN_NOTHING;
    received.class = CLASS_NONE;
}

/// Answers a SYN as TCX does.
#[inline(always)]
fn answer(xdp: Xdp, s: &mut Front) -> Option<Exit> {
    let (received, draft) = (&mut s.received, &mut s.draft);
    if classify::listener(received, &mut s.listener).ok()? {
        if s.listener.protocol != PROTOCOL_TLS {
            return None;
        }
        admit::at_listener(received, &mut s.listener).ok()?;
        syn::answer(received, draft, &mut s.listener).ok()?;
        draft.reason = Reason::XdpAnswered as u32;
    } else {
        classify::own(&received.segment).ok()?;
        draft::answer(draft, &received.segment);
        draft::reset_numbers(draft, &received.segment);
        draft.reason = Reason::XdpNoListener as u32;
    }
    let exit = back::send(xdp, received, draft);
    (exit.verdict() != Verdict::Next).then_some(exit)
}
