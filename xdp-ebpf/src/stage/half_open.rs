//! TCP listeners: the meaning of a segment for a connection whose SYN was passed to the backend, and the
//! opening of its flow.

use common::maps::flow::{
    Flow, HALF_OPEN_ANSWERED, HALF_OPEN_DIALLED, HalfOpen, OPTION_SACK, OPTION_TIMESTAMPS, WINDOW_SCALE_NONE,
};
use common::maps::word::{Agreed, units};
use common::reason::Reason;
use common::wire::seq;

use crate::connection::half_open;
use crate::connection::open;
use crate::delivery;
use crate::exit::{Exit, Verdict};
use crate::packet::{ACK, FIN, MSS_DEFAULT_V4, MSS_DEFAULT_V6, RST, SYN, Segment};
use crate::scratch::{Draft, Held, Received};
use crate::verified::verified;

/// Whether the segment is the client's ACK to the backend's SYN-ACK, or later (RFC 9293 section 3.10.7.4).
#[inline(always)]
pub(crate) fn acknowledged(seg: &Segment, o: &HalfOpen) -> bool {
    seg.has(ACK)
        && o.connection.state == HALF_OPEN_ANSWERED
        && seg.ack == o.backend_isn.wrapping_add(1)
        && seq::before_or_at(o.isn.wrapping_add(1), seg.seq)
}

/// Records the backend's SYN-ACK.
#[inline(always)]
pub(crate) fn answered(received: &Received, held: &mut Held) {
    let (seg, o) = (&received.segment, &mut held.record);
    // The backend may have accepted data that arrived with the SYN.
    let syn_bytes = if o.connection.state == HALF_OPEN_DIALLED { o.syn_bytes } else { 0 };
    if seg.has(SYN | ACK) && seg.ack.wrapping_sub(o.isn.wrapping_add(1)) <= syn_bytes {
        o.backend_isn = seg.seq;
        o.backend_scale = seg.window_scale;
        o.backend_window = seg.window;
        o.connection.state = HALF_OPEN_ANSWERED;
        half_open::write(received, held);
    }
}

/// The meaning of a backend's segment for a half-open connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// For the client.
    Ours,
    /// A bare acknowledgement, or a SYN-ACK, of an old connection on the same ports: in TIME_WAIT, one whose end the backend
    /// missed, or one that is alive, which loses nothing by it. The client must not see it, for it would answer with RST.
    Old,
    /// An acknowledgement of our SYN that accepts nothing: the backend answers an earlier SYN that arrived late (RFC 7323
    /// section 5.3).
    Late,
    /// Of an old connection, or forged.
    Stray,
}

/// Reads a backend's segment. Once the backend has accepted the SYN, all of them are for the client.
#[inline(always)]
pub(crate) fn answer(seg: &Segment, o: &HalfOpen) -> Answer {
    if o.connection.state != HALF_OPEN_DIALLED || seg.flags & (RST | ACK) == 0 {
        return Answer::Ours;
    }
    let acceptable = seg.has(ACK) && seg.ack.wrapping_sub(o.isn.wrapping_add(1)) <= o.syn_bytes;
    if acceptable && seg.flags & (SYN | RST) != 0 {
        Answer::Ours
    } else if acceptable {
        Answer::Late
    } else if seg.has(ACK) && seg.payload_bytes == 0 && seg.flags & (FIN | RST) == 0 {
        Answer::Old
    } else {
        Answer::Stray
    }
}

/// Whether a RST is the client's: it must be at the only sequence number that the client has so far (RFC 5961 section
/// 3.2). The backend waits for the third packet of the handshake and would accept any RST within its window.
#[inline(always)]
pub(crate) fn abandoned(seg: &Segment, o: &HalfOpen) -> bool {
    seg.seq == o.isn.wrapping_add(1)
}

/// Drafts the client's SYN, to go from the port in its record. Data in it is left to the client to repeat.
#[inline(always)]
pub(crate) fn draft_syn(segment: &Segment, d: &mut Draft, o: &HalfOpen) {
    delivery::address(d, &o.nat);
    d.payload_bytes = 0;
    d.payload_from = 0;
    d.seq = o.isn;
    d.ack = 0;
    d.flags = SYN;
    d.window = o.client_window;
    d.mss = match o.mss {
        0 if segment.v4 => MSS_DEFAULT_V4,
        0 => MSS_DEFAULT_V6,
        mss => mss,
    };
    d.window_scale = o.client_scale;
    d.sack_permitted = o.options & OPTION_SACK != 0;
    d.timestamps = o.options & OPTION_TIMESTAMPS != 0;
    d.tsval = o.client_tsval;
    d.tsecr = 0;
}

/// Whether the backend refuses the SYN.
#[inline(always)]
pub(crate) fn refused(seg: &Segment, o: &HalfOpen) -> bool {
    seg.has(RST | ACK) && seg.ack == o.isn.wrapping_add(1)
}

verified! {
    /// Turns the half-open connection into a flow after the client's ACK. Its numbers pass unchanged. This CPU holds its
    /// record, which is removed. `Err` with a reset verdict: both sides must be reset.
    pub(crate) fn open as half_open_flow(received: Received, held: Held, f: Flow) -> Result<(), Exit> {
        let o = &held.record;
        open::may_open(&o.connection)?;
        let seg = &received.segment;
        f.seq_delta = 0;
        f.ts_delta = 0;
        let first = o.isn.wrapping_add(1);
        f.client.acked.number = seg.ack;
        f.client.acked.window = 0;
        f.client.sent.next = first.wrapping_add(o.syn_bytes);
        f.backend.acked.number = first;
        f.backend.acked.window = units(o.backend_window.into());
        f.backend.sent.next = seg.ack;
        f.client_isn = o.isn;
        f.vip_isn = o.backend_isn;
        // Both ends must offer scaling (RFC 7323 section 2.2).
        let scaled = o.client_scale != WINDOW_SCALE_NONE && o.backend_scale != WINDOW_SCALE_NONE;
        let scale = |scale| Agreed::scale(if scaled { scale } else { WINDOW_SCALE_NONE });
        // Windows pass unchanged.
        f.agree(scale(o.client_scale), scale(o.backend_scale));
        let mut connection = o.connection;
        connection.flags = 0;
        let opened = open::open(&mut received.client, f, &connection, &o.nat, received.now_ns);
        opened.map_err(|exit| match exit.verdict() {
            Verdict::Reset => exit,
            _ => Exit::drop(Reason::SynBusy),
        })?;
        // The flow takes over the backend's side.
        half_open::remove_held(received, held);
        open::opened(&connection);
        received.generation = connection.generation;
        Ok(())
    }
}
