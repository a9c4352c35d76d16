//! Tries of a waiting connection whose backend is silent or refuses. What drives them is a repetition of the client, an answer
//! of the backend, or the daemon.

use common::reason::Reason;

use crate::connection::{count, half_open, pending as record};
use crate::delivery;
use crate::exit::{Exit, Verdict};
use crate::kernel::Skb;
use crate::maps;
use crate::scratch::{Cursors, Dial, Draft, Received, Scratch, Waiting};
use crate::segment::{draft, emit};
use crate::stage::{connect, pick};
use crate::verified::verified;

/// Backends that are asked for at once until one has the connection's port free: those that see the client's own may have another
/// connection of it, by another VIP or port.
const TAKEN_MAX: u32 = 3;

/// Chooses the next try of the connection in `s.waiting`, whose backend has not answered: at first the same backend again,
/// from the second time on the next usable one, if there is another one. An exit with verdict `Redirect` means that the SYN
/// must be sent.
#[inline(always)]
pub(super) fn again(skb: Skb, s: &mut Scratch) -> Exit {
    let p = &mut s.waiting.pending;
    p.retransmits = p.retransmits.saturating_add(1);
    p.moves = 0;
    if p.retransmits < 2 {
        return match record::write_back(&mut s.received, &mut s.waiting) {
            true => Exit::sent(Reason::ConnectAgain),
            false => Exit::drop(Reason::HelloBeyond),
        };
    }
    p.silent = 1;
    next(skb, &mut s.received, &mut s.dial, &mut s.waiting)
}

verified! {
    /// Gives up the backend that was tried last and claims the next one. If the one tried last is the only usable one, or
    /// the next [`TAKEN_MAX`] have the client's port taken, it is asked again. An exit with verdict `Redirect` means that the SYN
    /// must be sent; otherwise the record is still held, unless it is over.
    pub(super) fn next as dial_next[Skb, skb](received: Received, dial: Dial, waiting: Waiting) -> Exit {
        connect::resume(dial, &waiting.pending);
        let mut claimed = claim_next(skb, received, dial, waiting);
        for _ in 1..TAKEN_MAX {
            if is_taken(claimed, dial) {
                claimed = claim_next(skb, received, dial, waiting);
            }
        }
        // Among more backends, one that answers or has the port free may come later: the search goes on from where it is.
        if claimed == Ok(false) || is_taken(claimed, dial) {
            return match connect::again(received, dial, waiting) {
                Ok(()) => Exit::sent(Reason::ConnectAgain),
                Err(exit) => exit,
            };
        }
        // If nothing can be decided now, the hello stays for the next repetition.
        let is_refused = claimed.is_err_and(|exit| exit.verdict() == Verdict::Reset);
        if claimed.is_ok() || is_refused {
            let p = &waiting.pending;
            // Another record of the backend may have the same address.
            if is_refused || dial.nat != p.nat {
                delivery::release(&p.nat, &received.client, p.connection.generation);
            }
            count::retried(p.connection.route);
        }
        match claimed.and_then(|_| connect::store(received, dial, waiting)) {
            Ok(()) => Exit::sent(Reason::ConnectNext),
            Err(exit) => {
                count_refused(dial, exit);
                exit
            }
        }
    }
}

/// Whether the backend sees the client's own port, which another connection has there.
#[inline(always)]
fn is_taken(claimed: Result<bool, Exit>, dial: &Dial) -> bool {
    claimed == Err(Exit::reset(Reason::ConnectNoPort)) && !delivery::owns_source(&dial.connection)
}

verified! {
    /// Picks the next backend and claims its side of the connection, before that of the last one is released, or it could be that
    /// one; `Ok(false)`: it is the last one, which is the only usable one.
    fn claim_next as dial_claim_next[Skb, skb](
        received: Received, dial: Dial, waiting: Waiting
    ) -> Result<bool, Exit> {
        pick::next(received, dial)?;
        if dial.choice.backend == waiting.pending.connection.backend {
            return Ok(false);
        }
        delivery::open_again(skb, received, dial).map(|()| true)
    }
}

verified! {
    /// Ends the half-open connection that has the backend's side in `dial.nat`, claims that side, and resets the backend, which would
    /// answer our own SYN for the other one. `Err`: there is none, or it has not ended yet, or another SYN was faster.
    ///
    /// The RST is lost where the next hop is not resolved (`EmitCopyLost`); most often the other SYN did not arrive there either. The client
    /// is not made to wait for that: only its own SYN has the next hop resolved. If the backend has the other SYN nevertheless, its
    /// answers are strays, and another backend is tried.
    pub(super) fn push_out as dial_push_out[Skb, skb](
        received: Received, dial: Dial, draft: Draft, cursors: Cursors
    ) -> Result<(), Exit> {
        emit::learn_partial(skb, received)?;
        let seq = half_open::push_out(dial).map_err(|is_held| match is_held {
            true => Exit::drop(Reason::ConnectBusy),
            false if half_open::is_proven(dial) => Exit::reset(Reason::ConnectNoPort),
            false => Exit::drop(Reason::ConnectBusy),
        })?;
        let is_claimed = delivery::take_over(received, dial);
        delivery::address(draft, &dial.nat);
        draft::reset_at(draft, seq);
        if emit::copy(skb, received, draft, cursors) {
            maps::count_event(Reason::SynOldReset);
        }
        // Of the packet in hand, whose checksum was verified, only the bytes that were kept are used from now on.
        received.partial_known = true;
        if is_claimed { Ok(()) } else { Err(Exit::drop(Reason::ConnectBusy)) }
    }
}

/// Counts a refusal for the route.
#[inline(always)]
pub(super) fn count_refused(dial: &Dial, exit: Exit) {
    if exit.verdict() == Verdict::Reset {
        count::refused(dial.choice.route);
    }
}
