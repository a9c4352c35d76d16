//! Answers that XDP sends: the frame in hand becomes the answer, and goes back out of the device that it came in on.
//! Whatever is not certain leaves the frame unchanged, for TCX to answer.

use common::reason::Reason;
use common::wire::checksum;

use super::{draft, next_hop, sums};
use crate::exit::Exit;
use crate::kernel::{Packet, Xdp};
use crate::packet::{ETH_BYTES, TCP_AT, TCP_BYTES_MAX, V4_BYTES, V6_BYTES};
use crate::scratch::{Draft, Received};
use crate::verified::verified;

verified! {
    /// Whether the frame is addressed to the device that it came in on, as far as its answer or those before show it.
    pub(crate) fn is_ours as back_is_ours[Xdp, xdp](received: Received, draft: Draft) -> bool {
        if let Some(is_ours) = next_hop::is_to_device(xdp, received) {
            return is_ours;
        }
        draft::answer(draft, &received.segment);
        next_hop::leads_to_device(xdp, received, draft)
    }
}

verified! {
    /// Sends the draft in place of the frame, counted under `draft.reason`. Any other exit than one that sends or drops: the
    /// frame is as it was.
    pub(crate) fn send as back_send[Xdp, xdp](received: Received, draft: Draft) -> Exit {
        let unchanged = Exit::next(Reason::NotOurs);
        let v4 = received.segment.v4;
        let bytes = draft::bytes(received, draft);
        if !next_hop::find_back(xdp, received, draft, bytes - ETH_BYTES) {
            return unchanged;
        }
        draft::write(received, draft);
        received.partial = false;
        let sum = sums::transport(received, draft, received.segment.tcp_bytes & 60);
        received.headers.set_be16(TCP_AT + 16, !checksum::fold(sum));
        // Fails where there is no room behind the frame.
        if !xdp.resize(bytes as i32 - xdp.length() as i32) {
            return unchanged;
        }
        let stored = match v4 {
            true => store::<true>(xdp, received, bytes),
            false => store::<false>(xdp, received, bytes),
        };
        if stored { Exit::sent_for(draft.reason) } else { Exit::drop(Reason::EmitFailed) }
    }
}

#[inline(always)]
fn store<const V4: bool>(xdp: Xdp, received: &mut Received, bytes: u32) -> bool {
    let most = (if V4 { V4_BYTES } else { V6_BYTES }) + TCP_BYTES_MAX;
    let bytes = core::hint::black_box(bytes);
    bytes > 0 && bytes <= most && xdp.store(received.headers.frame(V4), bytes)
}
