//! Heartbeats of the nodes of a segment: whether this node lives is answered here, so that a dead agent is not taken for a dead node.

use common::decide::tables;
use common::maps::next_hop::link;
use common::maps::previous::{ATTENDED, Peer, PeerKey};
use common::maps::segment::Segment;
use common::reason::Reason;
use common::wire::heartbeat::{self, ANSWER, ASK, BYTES, ENTRY_BYTES, Heartbeat};

use crate::atomic;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ETH_BYTES, Headers};
use crate::scratch::Received;
use crate::segment::reply;
use crate::verified::verified;

/// Offset in [`Headers`] of the Ethernet header: in front of a heartbeat, which begins where an IPv6 header does, for there its numbers
/// are aligned.
const FRAME: usize = Headers::V6 - ETH_BYTES as usize;
/// A frame without entries.
const FRAME_BYTES: u32 = ETH_BYTES + BYTES as u32;

verified! {
    /// Answers the question of another node of the segment whether this one lives; hands on to the agent what is for it. `Ok`: the
    /// device is not on a segment, and the frame is the kernel's.
    pub(crate) fn take as heartbeat_take[Skb, skb](received: Received) -> Result<(), Exit> {
        let device = skb.ifindex();
        let mut segment = Segment::zeroed();
        let known = tables::stable(&mut segment, |to| {
            maps::segment(&device).is_some_and(|found| {
                // The compiler would cut it into pieces of odd sizes, which the verifier wants to be aligned on the stack.
                kernel::assign(to, found);
                true
            })
        });
        if !known.map_err(Exit::refused)? {
            return Ok(());
        }
        let h = &mut received.headers;
        let refused = Err(Exit::drop(Reason::HeartbeatRefused));
        if skb.length() < FRAME_BYTES || !skb.load(0, h.frame(false), FRAME_BYTES) {
            return refused;
        }
        let Some(asked) = Heartbeat::read(h.part(Headers::V6)) else { return refused };
        // Our own come back where a segment loops, or another node has our name.
        if asked.sender == segment.node
            || skb.length() != FRAME_BYTES + u32::from(asked.entries) * ENTRY_BYTES as u32
        {
            return refused;
        }
        // The agent verifies a table of bids, whose tag is over all entries.
        if asked.entries != 0 {
            return Err(Exit::next(Reason::HeartbeatPassed));
        }
        if !heartbeat::is_authentic(h.part(Headers::V6), &segment.keys) {
            return refused;
        }
        let now_ns = kernel::monotonic_ns();
        let answers_us = asked.kind == ANSWER && asked.receiver == segment.node;
        // A node that may announce nothing here takes nothing over.
        if answers_us || asked.kind == ASK && !asked.is_of_observer() {
            maps::note_heard(device, now_ns);
        }
        if let Some(peer) = maps::peer(&PeerKey::new(asked.sender, device)) {
            let mut from = link(h.word(FRAME + 6), h.be16(FRAME + 10).to_be());
            if asked.kind == ASK && asked.askers_link() != 0 {
                from = asked.askers_link();
                atomic::write_long(&mut peer.link, from);
            }
            // A node that asks may be one that receives nothing. Only without an agent here, which gets no answers, does a question do. One
            // that has another link address now cannot be reached by the one that is known.
            if (answers_us || asked.kind == ASK && segment.is_silent(now_ns)) && peer.link == from {
                let was = atomic::read_long(&peer.heard_ns);
                let heard_ns = Peer::heard(was, asked.stamp_age_ms, now_ns);
                // What another CPU has just cleared must not come back; to clear it is right whatever was there.
                if heard_ns & ATTENDED == 0 {
                    atomic::write_long(&mut peer.heard_ns, heard_ns);
                } else {
                    atomic::raise(&mut peer.heard_ns, was, heard_ns);
                }
            }
        }
        if asked.kind != ASK {
            return Err(Exit::next(Reason::HeartbeatPassed));
        }
        // A group's link address: our answer would go to all of them.
        if h.bytes[FRAME + 6] & 1 != 0 {
            return refused;
        }
        asked.answer(&segment, now_ns).write(h.part_mut(Headers::V6));
        let key = if segment.key == 0 { segment.keys[0] } else { segment.keys[1] };
        heartbeat::sign(h.part_mut(Headers::V6), &key);
        let asker = *h.part::<6>(FRAME + 6);
        h.set_link(FRAME, &asker);
        h.set_link(FRAME + 6, &segment.link);
        let body = h.bytes.as_ptr().wrapping_add(Headers::V6);
        let stored = reply::untag(skb)
            && skb.store_headers(0, h.frame(false), ETH_BYTES)
            && skb.store(ETH_BYTES, body, BYTES as u32);
        Err(reply::send(skb, stored, Reason::HeartbeatAnswered))
    }
}
