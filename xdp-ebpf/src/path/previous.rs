//! Packets of connections that are not known here, and may be open at the node that announced the address before.

use common::decide::previous::{CLOSED_HOPS, opens_nothing};
use common::maps::announced::OWNER_HERE;
use common::maps::listener::Listener;
use common::maps::previous::Peer;
use common::maps::segment::is_silent;
use common::reason::Reason;

use crate::connection::cookie::{PROOF_FIRST, PROOF_KEEP_ALIVE};
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::packet::SYN;
use crate::scratch::Received;
use crate::stage::previous::{self, HAS_COOKIE, IS_HERE};
use crate::stage::{admit, neighbour};
use crate::verified::verified;

/// The packet came while a connection on the same ports waits here.
pub(super) const WAITS: u32 = 1;
/// Without a previous owner, the packet opens a connection.
pub(super) const OPENS: u32 = 2;

verified! {
    /// Passes a packet of no connection on to the node that announced its address before, while that answers: `proof` is what the segment
    /// proves, `packet` what it is ([`WAITS`], [`OPENS`]). A SYN does not go on, nor what came while a connection on the same ports waits here,
    /// nor whom the listener does not admit: a dead agent there may not know. Only the owner passes something on, and who was it until a
    /// moment ago: the node to which it goes resets what it does not know. `Ok`: the packet is this node's.
    ///
    /// Drops what would open a connection by routes that may be old: at an address that another node announces, or may have taken, while
    /// no agent is here.
    pub(super) fn pass as previous_pass[Skb, skb](received: Received, listener: Listener; proof: u32, packet: u32) -> Result<(), Exit> {
        let stays = packet & WAITS != 0 || received.segment.has(SYN);
        if stays && packet & OPENS == 0 {
            return Ok(());
        }
        // While its gate is closed, this node is silent about the address, but the packet came here.
        let Some(mut announced) = neighbour::owned(skb, &received.segment.tuple.vip)? else { return Ok(()) };
        let stamp_ns = neighbour::stamp_ns(skb);
        if !stays {
            let has_cookie = if matches!(proof, PROOF_FIRST | PROOF_KEEP_ALIVE) { HAS_COOKIE } else { 0 };
            let is_here = if announced.is_here() { IS_HERE } else { 0 };
            let mut peer = Peer::zeroed();
            if previous::find(skb, received, &mut peer, has_cookie | is_here, stamp_ns)?
                && admit::at_listener(received, listener).is_ok()
            {
                // Others may have taken the address from a node whose agent is silent, and one of them may pass it on to this one.
                let keeps_hops = announced.is_here() && !is_silent(stamp_ns, kernel::monotonic_ns());
                let most = if keeps_hops { u32::from(u8::MAX) } else { u32::from(CLOSED_HOPS) };
                return Err(previous::send(skb, received, &mut peer, &mut announced, most));
            }
        }
        if packet & OPENS == 0 {
            return Ok(());
        }
        let is_gated = announced.owner == OWNER_HERE && neighbour::is_gate_closed(skb)?;
        if opens_nothing(!announced.is_here(), is_gated, stamp_ns, kernel::monotonic_ns()) {
            return Err(Exit::drop(Reason::PreviousUnattended));
        }
        Ok(())
    }
}
