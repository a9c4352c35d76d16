//! Collects the ClientHello: in order, over any number of segments, bounded in bytes, time and number.

use aya_ebpf::bindings::__sk_buff;
use common::maps::flow::{
    CHUNK_BYTES, HELLO_BYTES_MAX, HELLO_COLLECTING, HELLO_CONNECTING, HELLO_TIMESTAMPS,
    WINDOW_SCALE_ANNOUNCED, WINDOW_SCALE_NONE,
};
use common::reason::Reason;
use common::wire::client_hello::{Outcome, STEPS_MAX};
use common::wire::seq;
use core::ffi::c_void;

use crate::draft;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, FIN, PSH, RST, Scratch};
use crate::stage::emit;
use crate::stage::stash::{self, NO_CHUNK};

/// Segments without PSH that are acknowledged together (RFC 9293 section 3.8.6.3).
const SEGMENTS_PER_ACK: u32 = 2;

/// Finds the client's waiting hello and copies it to `s.hello`. One that is over is answered with RST when the segment
/// is its own, and forgotten in any case.
#[inline(always)]
pub(crate) fn find(s: &mut Scratch) -> Result<bool, Exit> {
    let tuple = s.segment.tuple;
    let Some(hello) = maps::hello(&tuple) else { return Ok(false) };
    let timeout_ns = maps::settings().map_or(0, |settings| settings.hello_timeout_ns);
    let over = hello.started_ns + timeout_ns < s.now_ns;
    kernel::assign(&mut s.hello, hello);
    s.found = true;
    if !over {
        return Ok(true);
    }
    stash::forget(&tuple);
    if s.segment.ack != s.hello.cookie.wrapping_add(1) {
        return Ok(false);
    }
    Err(if s.segment.has(RST) { Exit::drop(Reason::HelloReset) } else { Exit::reset(Reason::HelloTimeout) })
}

/// Begins a hello with the offer that `syn` left in `s.hello`.
#[inline(always)]
pub(crate) fn begin(s: &mut Scratch) {
    s.found = false;
    let h = &mut s.hello;
    h.started_ns = s.now_ns;
    h.listener = s.listener;
    h.route = 0;
    h.backend = 0;
    h.have = 0;
    h.acked = 0;
    h.chunks = [NO_CHUNK; 8];
    h.segments_unacked = 0;
    h.state = 0;
    h.tries = 0;
    h.offset = 0;
    h.retransmits = 0;
    h.source_epoch = 0;
    h.our_tsval = 0;
    h.backend_mss = 0;
    h.nat = common::maps::flow::BackendTuple::zeroed();
    h.parser = common::wire::client_hello::Parser::zeroed();
}

/// Takes a segment. `Ok`: the hello is complete, its last part in the window, `s.hello.parser` has the verdict; a repeated segment of
/// a complete hello (the client's clock) comes as `Ok` with `s.hello.state` [`HELLO_CONNECTING`].
#[inline(always)]
pub(crate) fn take(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    let code = hello_take(skb.0, s);
    let result = Exit::from_code(code);
    // Answered here, not in the function: one verified function less to look into.
    if code == Exit::code(Err(Exit::sent(Reason::HelloAcked))) {
        return Err(acknowledge(skb, s, Reason::HelloAcked));
    }
    if code == Exit::code(Err(Exit::sent(Reason::HelloGap))) {
        return Err(acknowledge(skb, s, Reason::HelloGap));
    }
    result
}

/// Verified once, on its own. `sent` in the result means: to be acknowledged by [`take`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn hello_take(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    Exit::code(collect(Skb(skb), s))
}

#[inline(always)]
fn collect(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    let seg = &s.segment;
    let h = &mut s.hello;
    let expected = h.isn.wrapping_add(1).wrapping_add(h.have);
    if seg.has(RST) {
        return Err(client_reset(s, expected));
    }
    h.window = seg.window;
    if seg.timestamps_at != 0 {
        if h.state == 0 {
            h.client_tsval = seg.tsval;
            // The echo of our SYN-ACK.
            h.our_tsval = s.headers.tcp_be32(seg.timestamps_at + 4);
        } else if seq::before(h.client_tsval, seg.tsval) {
            // The newest: one that was overtaken must not make our SYN or the hello look old to a backend that has seen
            // a newer (PAWS, RFC 7323 section 5.3).
            h.client_tsval = seg.tsval;
        }
    }
    if h.state == HELLO_COLLECTING && seg.has(FIN) && seg.payload_bytes == 0 {
        return Err(Exit::reset(Reason::HelloAbandoned));
    }
    if seg.payload_bytes == 0 {
        return Err(Exit::drop(Reason::SynAcked));
    }
    let old = expected.wrapping_sub(seg.seq);
    if seq::before(expected, seg.seq) {
        return Err(if h.state == HELLO_CONNECTING {
            Exit::drop(Reason::HelloBeyond)
        } else {
            acked(s, Reason::HelloGap)
        });
    }
    if old >= seg.payload_bytes {
        // Nothing new: the client repeats. Before the hello is complete it is told what is here; after, it is the
        // clock that drives the connect.
        return if h.state == HELLO_CONNECTING { Ok(()) } else { Err(acked(s, Reason::HelloAcked)) };
    }
    let repeated = old > 0;
    // Chunks are stored whole: the window needs what is already in the one that is begun.
    s.from = s.hello.have & !(CHUNK_BYTES as u32 - 1);
    if s.from != s.hello.have && stash::stash_fetch(s) == 0 {
        return Err(Exit::reset(Reason::HelloStashFailed));
    }
    s.from = s.hello.have;
    if load(skb, s, old).is_none() {
        return Err(Exit::drop(Reason::EmitFailed));
    }
    if s.hello.state == HELLO_CONNECTING {
        // Data behind the hello (TLS early data): kept as long as there is room, never acknowledged by us.
        keep(s)?;
        return if repeated { Ok(()) } else { Err(Exit::drop(Reason::HelloStashed)) };
    }
    judge(skb, s)
}

/// A RST is believed at the two places where an honest one can be (RFC 5961 section 3.2).
#[inline(always)]
fn client_reset(s: &mut Scratch, expected: u32) -> Exit {
    let at = s.segment.seq;
    let tuple = s.segment.tuple;
    if (at == expected || at == s.hello.isn.wrapping_add(1).wrapping_add(s.hello.acked))
        && stash::forget(&tuple)
    {
        return Exit::drop(Reason::HelloReset);
    }
    Exit::drop(Reason::SynStray)
}

/// Loads the new part of the payload into the window, behind what is there; as much as fits. `s.hello.have` grows.
#[inline(always)]
fn load(skb: Skb, s: &mut Scratch, skip: u32) -> Option<()> {
    let have = s.hello.have;
    let new = s.segment.payload_bytes - skip;
    let room = HELLO_BYTES_MAX as u32 - have;
    let length = new.min(room);
    let from = s.segment.payload_at + skip;
    // In two halves: a copy of 8 KiB from any place below 16 KiB stays inside the window.
    let first = length.min(8192);
    if !load_piece(skb, s, from, have, first)
        || !load_piece(skb, s, from + first, have + first, length - first)
    {
        return None;
    }
    s.hello.have = have + length;
    Some(())
}

#[inline(always)]
fn load_piece(skb: Skb, s: &mut Scratch, from: u32, to: u32, length: u32) -> bool {
    let length = core::hint::black_box(length);
    if length == 0 {
        return true;
    }
    if length > 8192 {
        return false;
    }
    let to = core::hint::black_box(to) & 0x3fff;
    let at = s.window.bytes.as_mut_ptr().wrapping_add(to as usize);
    skb.load(from, at, length)
}

/// Stores what `load` brought, with the part of its first chunk that was there before.
#[inline(always)]
fn keep(s: &mut Scratch) -> Result<(), Exit> {
    let kept = store(s);
    stash::stash_settle(s);
    kept
}

#[inline(always)]
fn store(s: &mut Scratch) -> Result<(), Exit> {
    if stash::stash_keep(s) == 0 {
        return Err(Exit::reset(Reason::HelloStashFailed));
    }
    // One that was found is only ever stored over itself: it may have become a flow on another CPU.
    if s.found {
        return if maps::update_hello(&s.segment.tuple, &s.hello) {
            Ok(())
        } else {
            Err(Exit::drop(Reason::HelloBeyond))
        };
    }
    if maps::put_hello(&s.segment.tuple, &s.hello) {
        Ok(())
    } else {
        Err(Exit::reset(Reason::HelloStashFailed))
    }
}

/// Runs the parser over the new bytes.
#[inline(always)]
fn judge(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    hello_parse(s);
    match s.hello.parser.outcome() {
        // Stashed and stored by `path`, once nothing refuses it.
        Outcome::Name | Outcome::NoName => {
            s.hello.state = 0;
            Ok(())
        }
        Outcome::NeedMore => wait(skb, s),
        Outcome::NotTls => Err(Exit::reset(Reason::HelloNotTls)),
        Outcome::Malformed => Err(Exit::reset(Reason::HelloMalformed)),
        Outcome::TooLong => Err(Exit::reset(Reason::HelloTooLong)),
        Outcome::NameInvalid => Err(Exit::reset(Reason::HelloNameInvalid)),
    }
}

/// The hello goes on in a later segment.
#[inline(always)]
fn wait(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    if s.hello.have >= HELLO_BYTES_MAX as u32 {
        return Err(Exit::reset(Reason::HelloTooLong));
    }
    // With FIN it never will be whole.
    if s.segment.has(FIN) {
        return Err(Exit::reset(Reason::HelloAbandoned));
    }
    if s.hello.state != HELLO_COLLECTING {
        if !stash::raise(s) {
            return Err(Exit::reset(Reason::HelloSourceFull));
        }
        s.hello.state = HELLO_COLLECTING;
    }
    s.hello.segments_unacked += skb.segments();
    let now = s.segment.has(PSH) || s.hello.segments_unacked >= SEGMENTS_PER_ACK;
    if now {
        s.hello.segments_unacked = 0;
        s.hello.acked = s.hello.have;
        advance_clock(s);
    }
    if let Err(exit) = keep(s) {
        let tuple = s.segment.tuple;
        stash::lower(&tuple, s.hello.source_epoch);
        return Err(exit);
    }
    Err(if now { Exit::sent(Reason::HelloAcked) } else { Exit::drop(Reason::HelloStashed) })
}

/// Our timestamp of this moment; never behind the SYN-ACK's, whose lowest byte is a part of the cookie (RFC 7323
/// section 5.3: the client drops what seems older).
#[inline(always)]
fn advance_clock(s: &mut Scratch) {
    let now = kernel::timestamp(s.now_ns);
    if seq::before(s.hello.our_tsval, now) {
        s.hello.our_tsval = now;
    }
}

/// Everything here is acknowledged; from then on the bytes are ours to deliver.
#[inline(always)]
fn acked(s: &mut Scratch, reason: Reason) -> Exit {
    s.hello.acked = s.hello.have;
    s.hello.segments_unacked = 0;
    advance_clock(s);
    if maps::update_hello(&s.segment.tuple, &s.hello) {
        Exit::sent(reason)
    } else {
        Exit::drop(Reason::HelloBeyond)
    }
}

/// Sends the acknowledgement.
#[inline(always)]
fn acknowledge(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    draft::answer(s);
    let (d, h) = (&mut s.draft, &s.hello);
    d.seq = h.cookie.wrapping_add(1);
    d.ack = h.isn.wrapping_add(1).wrapping_add(h.acked);
    d.flags = ACK;
    let room = HELLO_BYTES_MAX as u32 - h.have.min(HELLO_BYTES_MAX as u32);
    let shift = if h.window_scale == WINDOW_SCALE_NONE { 0 } else { WINDOW_SCALE_ANNOUNCED };
    // Rounded up: the right edge of what the SYN-ACK announced must not move back (RFC 9293 section 3.8.6), and the
    // last bytes of the largest hello must not wait for a window of less than one unit.
    d.window = ((room + (1 << shift) - 1) >> shift) as u16;
    d.timestamps = h.flags & HELLO_TIMESTAMPS != 0;
    d.tsval = h.our_tsval;
    d.tsecr = h.client_tsval;
    emit::send(skb, s, reason)
}

/// The parser's run. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn hello_parse(s: *mut Scratch) -> u32 {
    let mut run = Run { scratch: s };
    kernel::repeat(STEPS_MAX, parse_step, core::ptr::from_mut(&mut run).cast());
    0
}

/// Context of [`parse_step`]: on the stack, as the kernel wants it.
#[repr(C)]
struct Run {
    scratch: *mut Scratch,
}

/// One step of the parser; 1 = it stopped.
unsafe extern "C" fn parse_step(_: u32, run: *mut c_void) -> i64 {
    // SAFETY: `hello_parse` passes a `Run` on its stack.
    let run = unsafe { &mut *run.cast::<Run>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { run.scratch.as_mut() }) else { return 1 };
    let end = s.hello.have;
    i64::from(s.hello.parser.step(&s.window, end))
}
