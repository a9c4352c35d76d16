//! Packets of connections that are not known here, and may be open at the node that announced the address before.

use common::decide::previous::opens_nothing;
use common::maps::listener::Listener;
use common::maps::previous::Peer;
use common::reason::Reason;

use crate::connection::cookie::{PROOF_FIRST, PROOF_KEEP_ALIVE};
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::packet::SYN;
use crate::scratch::Received;
use crate::stage::admit;
use crate::stage::neighbour::{self, Whose};
use crate::stage::previous::{self, HAS_COOKIE, IS_HERE};
use crate::verified::verified;

verified! {
    /// Passes a packet of no connection on to the node that announced its address before, while that answers: `proof` is what the segment
    /// proves. A SYN does not go on, nor what came while a connection on the same ports waits here (`waits`), nor whom the listener
    /// does not admit: a dead agent there may not know. Only the owner passes something on, and who was it until a moment ago: the
    /// node to which it goes resets what it does not know. `Ok`: the packet is this node's.
    pub(super) fn pass as previous_pass[Skb, skb](received: Received, listener: Listener; proof: u32, waits: u32) -> Result<(), Exit> {
        if waits != 0 || received.segment.has(SYN) {
            return Ok(());
        }
        // While its gate is closed, this node is silent about the address, but the packet came here.
        let Some(mut announced) = neighbour::owned(skb, &received.segment.tuple.vip)? else { return Ok(()) };
        let has_cookie = if matches!(proof, PROOF_FIRST | PROOF_KEEP_ALIVE) { HAS_COOKIE } else { 0 };
        let is_here = if announced.is_here() { IS_HERE } else { 0 };
        let mut peer = Peer::zeroed();
        match previous::find(skb, received, &mut peer, has_cookie | is_here, neighbour::stamp_ns(skb)?)? {
            true if admit::at_listener(received, listener).is_ok() => {
                Err(previous::send(skb, received, &mut peer, &mut announced))
            }
            _ => Ok(()),
        }
    }
}

verified! {
    /// Drops what would open a connection by routes that may be old: at an address that another node announces, or may have taken, while no
    /// agent is here.
    pub(super) fn refuse as previous_refuse[Skb, skb](received: Received) -> Result<(), Exit> {
        let whose = neighbour::whose(skb, &received.segment.tuple.vip)?;
        if whose == Whose::Ours {
            return Ok(());
        }
        let (is_elsewhere, is_gated) = (whose == Whose::Others, whose == Whose::Gated);
        match opens_nothing(is_elsewhere, is_gated, neighbour::stamp_ns(skb)?, kernel::monotonic_ns()) {
            true => Err(Exit::drop(Reason::PreviousUnattended)),
            false => Ok(()),
        }
    }
}
