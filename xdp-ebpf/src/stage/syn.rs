//! Answers SYNs of TLS listeners with a cookie. Stores nothing.

use common::decide::cookie::{self, Offer};
use common::maps::flow::{HELLO_BYTES_MAX, WINDOW_SCALE_ANNOUNCED, WINDOW_SCALE_NONE};
use common::maps::listener::Listener;
use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::packet::{ACK, MSS_DEFAULT_V4, MSS_DEFAULT_V6, SYN};
use crate::scratch::{Draft, Received};
use crate::segment::draft;
use crate::verified::verified;

verified! {
    /// Drafts the SYN-ACK for the SYN in hand.
    pub(crate) fn answer as syn_answer(received: Received, draft: Draft, listener: Listener) -> Result<(), Exit> {
        let seg = &received.segment;
        let mss = if seg.mss != 0 {
            seg.mss
        } else if seg.v4 {
            MSS_DEFAULT_V4
        } else {
            MSS_DEFAULT_V6
        };
        let timestamps = seg.timestamps_at != 0;
        let offer = Offer { mss, window_scale: seg.window_scale, sack: seg.sack_permitted, timestamps };
        let index = maps::settings().map_or(0, |settings| settings.cookie_key) & 1;
        let Some(key) = maps::cookie_key(index) else { return Err(Exit::drop(Reason::EmitFailed)) };
        let epoch = cookie::epoch(kernel::tai_ns());
        let cookie = cookie::make(key, index, &seg.tuple, seg.seq, epoch, &offer);
        draft::answer(draft, seg);
        draft.seq = cookie.seq;
        draft.ack = seg.seq.wrapping_add(1);
        draft.flags = SYN | ACK;
        // Never scaled (RFC 7323 section 2.2): the number of bytes that the buffers can take.
        draft.window = HELLO_BYTES_MAX as u16;
        draft.mss = listener.mss;
        draft.window_scale =
            if seg.window_scale == WINDOW_SCALE_NONE { WINDOW_SCALE_NONE } else { WINDOW_SCALE_ANNOUNCED };
        draft.sack_permitted = seg.sack_permitted;
        draft.timestamps = timestamps;
        draft.tsval = kernel::timestamp(received.now_ns) & !0xff | u32::from(cookie.stamp);
        draft.tsecr = seg.tsval;
        Ok(())
    }
}
