//! Answers to hosts of the device's own network, made of the packet that asked. The link addresses are in it already.

use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::{self, Skb};

/// Removes a VLAN tag that has only a priority: the answer has none.
#[inline(always)]
pub(crate) fn untag(skb: Skb) -> bool {
    !skb.has_vlan() || skb.untag()
}

/// Sends the answer out of the device that the question came in on, if all of it is stored in the packet.
#[inline(always)]
pub(crate) fn send(skb: Skb, stored: bool, reason: Reason) -> Exit {
    if !stored {
        return Exit::drop(Reason::EmitFailed);
    }
    kernel::redirect(skb.ifindex());
    Exit::sent(reason)
}
