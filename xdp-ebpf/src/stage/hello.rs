//! Collects the ClientHello in order, over any number of segments. Its bytes, its time and the number of
//! hellos are limited.

use common::decide::cookie;
use common::maps::flow::{
    BUFFER_BYTES, HELLO_BYTES_MAX, OPTION_TIMESTAMPS, PENDING_BUFFERS, PENDING_COLLECTING,
    PENDING_CONNECTING, Pending, WINDOW_SCALE_ANNOUNCED, WINDOW_SCALE_NONE,
};
use common::reason::Reason;
use common::wire::client_hello::{Outcome, Parser, STEPS_MAX};
use common::wire::seq;

use crate::buffer::{NO_BUFFER, bytes, source, window};
use crate::connection::pending;
use crate::delivery;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, FIN, PSH, RST, Segment};
use crate::scratch::{Cursors, Draft, Received, Waiting};
use crate::segment::draft;
use crate::verified::{looped, verified};

/// Segments without PSH that are acknowledged together (RFC 9293 section 3.8.6.3).
const SEGMENTS_PER_ACK: u32 = 2;

/// Whether the pending connection has waited too long.
#[inline(always)]
pub(crate) fn is_over(received: &Received, pending: &Pending) -> bool {
    let timeout_ns = maps::settings().map_or(0, |settings| settings.hello_timeout_ns);
    pending.started_ns + timeout_ns < received.now_ns
}

/// Whether the segment acknowledges the SYN-ACK of this pending connection, and not another one.
#[inline(always)]
pub(crate) fn is_own(segment: &Segment, pending: &Pending) -> bool {
    segment.ack == pending.vip_isn.wrapping_add(1)
}

/// Starts a pending connection, which has no record yet. The offer was already read from the cookie.
#[inline(always)]
pub(crate) fn begin(received: &Received, waiting: &mut Waiting, listener: u32) {
    let p = &mut waiting.pending;
    p.connection = common::maps::flow::Connection::zeroed();
    p.connection.generation = maps::next_generation();
    p.connection.listener = listener;
    p.connection.delivery = delivery::of_client(received);
    p.started_ns = received.now_ns;
    p.nat = common::maps::flow::BackendTuple::zeroed();
    p.have = 0;
    p.acked = 0;
    p.buffers = [NO_BUFFER; PENDING_BUFFERS];
    p.segments_unacked = 0;
    p.offset = 0;
    p.silent = 0;
    p.retransmits = 0;
    p.source_epoch = 0;
    p.our_tsval = 0;
    p.mtu = 0;
    p.backend_mss = 0;
    p.moves = 0;
    p.slots = 0;
    p.challenged = 0;
    p.reserved = [0; 7];
    p.parser = Parser::zeroed();
}

/// Sets what the [`acknowledgement`] of a hello without a byte needs beside the offer, which was already read from the
/// cookie. Our timestamp stays the one that the client echoes: its lowest byte is part of the cookie.
#[inline(always)]
pub(crate) fn not_begun(received: &Received, pending: &mut Pending) {
    pending.connection.state = 0;
    pending.have = 0;
    pending.acked = 0;
    note_time(received, pending);
}

verified! {
    /// Takes a segment. `Ok`: the hello is complete, its last part is in the window, and the parser has the verdict.
    /// A repeated segment of a complete hello (the client's clock) also returns `Ok`, with state
    /// `PENDING_CONNECTING`. An exit with verdict `Redirect` in `Err` means that an [`acknowledgement`] must be sent.
    pub(crate) fn take as hello_take[Skb, skb](
        received: Received, waiting: Waiting, cursors: Cursors
    ) -> Result<(), Exit> {
        let seg = &received.segment;
        let p = &mut waiting.pending;
        let expected = p.isn.wrapping_add(1).wrapping_add(p.have);
        if seg.has(RST) {
            return Err(client_reset(received, waiting, expected));
        }
        let state = p.connection.state;
        p.window = seg.window;
        note_time(received, p);
        let closes = state == PENDING_COLLECTING && seg.has(FIN);
        if seg.payload_bytes == 0 && !closes {
            // A keep-alive has a number that we acknowledged before.
            let keep_alive =
                state == PENDING_COLLECTING && seq::before(seg.seq, p.isn.wrapping_add(1).wrapping_add(p.acked));
            return Err(match keep_alive {
                true => acked(received, waiting, Reason::HelloAcked),
                false => Exit::drop(Reason::SynAcked),
            });
        }
        let old = expected.wrapping_sub(seg.seq);
        // A FIN beyond a gap is no end yet: it may have overtaken the rest of the hello.
        if seq::before(expected, seg.seq) {
            return Err(match state == PENDING_CONNECTING {
                true => Exit::drop(Reason::HelloBeyond),
                false => acked(received, waiting, Reason::HelloGap),
            });
        }
        if closes && seg.payload_bytes == 0 {
            return Err(Exit::reset(Reason::HelloAbandoned));
        }
        if old >= seg.payload_bytes {
            // Nothing new: the client repeats. Before the hello is complete, we acknowledge what is here;
            // after that, the repetition is the clock that drives the connect.
            return match state == PENDING_CONNECTING {
                true => Ok(()),
                false => Err(acked(received, waiting, Reason::HelloAcked)),
            };
        }
        add(skb, received, waiting, cursors, old)
    }
}

verified! {
    /// Takes the first segment of a connection whose listener routes by port: it has no hello, and maybe no data.
    pub(crate) fn take_any as hello_take_any[Skb, skb](
        received: Received, waiting: Waiting, cursors: Cursors
    ) -> Result<(), Exit> {
        let p = &mut waiting.pending;
        p.window = received.segment.window;
        note_time(received, p);
        cursors.from = 0;
        match window::first(skb, received, waiting, cursors) {
            true => Ok(()),
            false => Err(Exit::drop(Reason::EmitFailed)),
        }
    }
}

/// Records the client's timestamp and its echo of ours.
#[inline(always)]
fn note_time(received: &Received, p: &mut Pending) {
    let seg = &received.segment;
    if seg.timestamps_at == 0 {
        return;
    }
    if p.connection.state == 0 {
        p.client_tsval = seg.tsval;
        // The echo of our SYN-ACK.
        p.our_tsval = received.headers.tcp_be32(seg.timestamps_at + 4);
    } else if seq::before(p.client_tsval, seg.tsval) {
        // Only the newest: a segment that was overtaken must not make our SYN or the hello look old to a
        // backend that has seen a newer timestamp (PAWS, RFC 7323 section 5.3).
        p.client_tsval = seg.tsval;
    }
}

/// Data behind hellos is kept until one in this many slots of `BUFFERS` is taken. Sources are limited in what they collect
/// from one in two on, which nobody may bring about with that data.
const BEHIND_PART: u32 = 4;

verified! {
    /// Whether the segment's data may be kept behind the hello. A function of its own, to spare the stack.
    fn has_room_behind as hello_room_behind(received: Received, waiting: Waiting) -> bool {
        let have = waiting.pending.have;
        let grows = pending::slots(have + received.segment.payload_bytes) > pending::slots(have);
        !grows || !source::is_crowded(BEHIND_PART)
    }
}

/// Adds the new part of the segment; its first `old` bytes are already here.
#[inline(always)]
fn add(
    skb: Skb,
    received: &mut Received,
    waiting: &mut Waiting,
    cursors: &mut Cursors,
    old: u32,
) -> Result<(), Exit> {
    let repeated = old > 0;
    // Data after the hello is in no source's count: it is kept only while most slots are free.
    if waiting.pending.connection.state == PENDING_CONNECTING && !has_room_behind(received, waiting) {
        return if repeated { Ok(()) } else { Err(Exit::drop(Reason::HelloBeyond)) };
    }
    // Buffers are stored whole: the window needs the bytes that are already in a partly filled one.
    cursors.from = waiting.pending.have & !(BUFFER_BYTES as u32 - 1);
    if cursors.from != waiting.pending.have && !bytes::fetch(received, waiting, cursors) {
        return Err(Exit::reset(Reason::HelloBufferFailed));
    }
    cursors.from = waiting.pending.have;
    if window::more(skb, received, waiting, cursors, old).is_none() {
        return Err(Exit::drop(Reason::EmitFailed));
    }
    if waiting.pending.connection.state == PENDING_CONNECTING {
        // Data after the hello (TLS early data): kept as long as there is room, never acknowledged by us.
        bytes::keep(received, waiting, cursors)?;
        if repeated {
            // The record stays held, for the next try.
            pending::write(received, waiting);
            return Ok(());
        }
        pending::store(received, waiting)?;
        return Err(Exit::drop(Reason::HelloBuffered));
    }
    judge(skb, received, waiting, cursors)
}

/// Accepts a RST only at the end of what is here or was acknowledged. A client that sent more than was kept has another number:
/// elsewhere in the window a RST is challenged (RFC 5961 section 3.2), and the answer to that is where we acknowledged. It may
/// never come: the host is gone, or the RST closed a firewall behind itself. So the client is asked again once its flow is open.
#[inline(always)]
fn client_reset(received: &mut Received, waiting: &mut Waiting, expected: u32) -> Exit {
    let (at, p) = (received.segment.seq, &mut waiting.pending);
    let beyond = at.wrapping_sub(p.isn.wrapping_add(1).wrapping_add(p.acked));
    if !waiting.held || beyond > HELLO_BYTES_MAX as u32 {
        return Exit::drop(Reason::SynStray);
    }
    if beyond != 0 && at != expected {
        p.challenged = 1;
        return match pending::write_back(received, waiting) {
            true => Exit::sent(Reason::HelloChallenged),
            false => Exit::drop(Reason::HelloBeyond),
        };
    }
    pending::remove_held(received, waiting);
    Exit::drop(Reason::HelloReset)
}

/// Stores what [`window::more`] added, with the earlier part of the first buffer, and the record.
#[inline(always)]
fn keep(received: &mut Received, waiting: &mut Waiting, cursors: &mut Cursors) -> Result<(), Exit> {
    bytes::keep(received, waiting, cursors)?;
    pending::store(received, waiting)
}

/// Runs the parser over the new bytes.
#[inline(always)]
fn judge(
    skb: Skb,
    received: &mut Received,
    waiting: &mut Waiting,
    cursors: &mut Cursors,
) -> Result<(), Exit> {
    parse(waiting, cursors);
    match waiting.pending.parser.outcome() {
        // `path` buffers and stores it, once nothing refuses it.
        Outcome::Name | Outcome::NoName => {
            waiting.pending.connection.state = 0;
            Ok(())
        }
        Outcome::NeedMore => wait(skb, received, waiting, cursors),
        Outcome::NotTls => Err(Exit::reset(Reason::HelloNotTls)),
        Outcome::Malformed => Err(Exit::reset(Reason::HelloMalformed)),
        Outcome::TooLong => Err(Exit::reset(Reason::HelloTooLong)),
        Outcome::NameInvalid => Err(Exit::reset(Reason::HelloNameInvalid)),
    }
}

/// Keeps the hello until its next segment arrives.
#[inline(always)]
fn wait(skb: Skb, received: &mut Received, waiting: &mut Waiting, cursors: &mut Cursors) -> Result<(), Exit> {
    if waiting.pending.have >= HELLO_BYTES_MAX as u32 {
        return Err(Exit::reset(Reason::HelloTooLong));
    }
    // After a FIN it can never be complete.
    if received.segment.has(FIN) {
        return Err(Exit::reset(Reason::HelloAbandoned));
    }
    let new = !waiting.held;
    if new && !source::raise(received, waiting) {
        return Err(Exit::reset(Reason::HelloSourceFull));
    }
    waiting.pending.connection.state = PENDING_COLLECTING;
    let p = &mut waiting.pending;
    p.segments_unacked += skb.segments();
    let now = received.segment.has(PSH) || p.segments_unacked >= SEGMENTS_PER_ACK;
    if now {
        p.segments_unacked = 0;
        p.acked = p.have;
        advance_clock(received, p);
    }
    if let Err(exit) = keep(received, waiting, cursors) {
        // The count of a stored record is lowered with its removal.
        if new {
            source::lower(&received.client, waiting.pending.source_epoch);
        }
        return Err(exit);
    }
    Err(if now { Exit::sent(Reason::HelloAcked) } else { Exit::drop(Reason::HelloBuffered) })
}

/// Sets our timestamp to the current time, but never behind the SYN-ACK's, whose lowest byte is part of the
/// cookie (RFC 7323 section 5.3: the client drops a segment that seems older). It is marked as an acknowledgement's.
#[inline(always)]
fn advance_clock(received: &Received, p: &mut Pending) {
    let now = kernel::timestamp(received.now_ns);
    if seq::before(p.our_tsval, now) {
        p.our_tsval = now;
    }
    p.our_tsval |= u32::from(cookie::ACKNOWLEDGED);
}

/// Acknowledges everything received so far; from then on these bytes are ours to deliver.
#[inline(always)]
fn acked(received: &mut Received, waiting: &mut Waiting, reason: Reason) -> Exit {
    let p = &mut waiting.pending;
    p.acked = p.have;
    p.segments_unacked = 0;
    advance_clock(received, p);
    if waiting.held && pending::write_back(received, waiting) {
        Exit::sent(reason)
    } else {
        Exit::drop(Reason::HelloBeyond)
    }
}

/// Drafts the acknowledgement of the bytes that are ours to deliver.
#[inline(always)]
pub(crate) fn acknowledgement(received: &Received, draft: &mut Draft, pending: &Pending) {
    draft::answer(draft, &received.segment);
    let (d, p) = (draft, pending);
    d.seq = p.vip_isn.wrapping_add(1);
    d.ack = p.isn.wrapping_add(1).wrapping_add(p.acked);
    d.flags = ACK;
    let room = HELLO_BYTES_MAX as u32 - p.acked.min(HELLO_BYTES_MAX as u32);
    let shift = if p.window_scale == WINDOW_SCALE_NONE { 0 } else { WINDOW_SCALE_ANNOUNCED };
    // Rounded up: the right edge that the SYN-ACK announced must not move back (RFC 9293 section 3.8.6), and
    // the last bytes of the largest hello must not wait for a window of less than one unit.
    d.window = ((room + (1 << shift) - 1) >> shift) as u16;
    d.timestamps = p.options & OPTION_TIMESTAMPS != 0;
    d.tsval = p.our_tsval;
    d.tsecr = p.client_tsval;
}

verified! {
    /// Runs the parser over the bytes in the window.
    fn parse as hello_parse(waiting: Waiting, cursors: Cursors) -> () {
        each_step(waiting, cursors);
    }
}

looped! {
    /// Runs one step of the parser.
    fn each_step(waiting: Waiting, cursors: Cursors) times STEPS_MAX, |_round| {
        let end = waiting.pending.have;
        waiting.pending.parser.step(&cursors.window, end)
    }
}
