//! Backend -> one of our source addresses. `s.client` is the client's four-tuple.

use common::maps::flow::{FLOW_OWED, Flow, HELLO_CONNECTING, HELLO_OWED};
use common::reason::Reason;

use crate::draft;
use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{FIN, RST, SYN, Scratch};
use crate::stage::connect::Answer;
use crate::stage::forward::Step;
use crate::stage::{checksum, close, connect, emit, forward, half_open, pick, stash};

/// The backend's segment.
#[inline(always)]
pub(crate) fn run(skb: Skb, s: &mut Scratch) -> Exit {
    // Every tuple of a NAT entry is one of these three.
    if let Some(flow) = maps::flow(&s.client)
        && flow.nat == s.segment.backend_tuple()
    {
        // What may end a connection, or frees bytes that we owe, must be what the backend sent.
        if (s.segment.flags & (SYN | FIN | RST) != 0 || flow.backend_flags & FLOW_OWED != 0)
            && let Err(exit) = checksum::tcp(skb, s)
        {
            return exit;
        }
        return established(skb, s, flow);
    }
    if let Err(exit) = checksum::tcp(skb, s) {
        return exit;
    }
    if let Some(hello) = maps::hello(&s.client)
        && hello.state == HELLO_CONNECTING
        && hello.nat == s.segment.backend_tuple()
    {
        kernel::assign(&mut s.hello, hello);
        return connecting(skb, s);
    }
    if let Some(held) = maps::half_open(&s.client)
        && held.nat == s.segment.backend_tuple()
    {
        kernel::assign(&mut s.half_open, held);
        return half_opened(skb, s);
    }
    // Since the first look another CPU may have made the flow, before the hello went: the same SYN-ACK, come twice.
    if maps::flow(&s.client).is_some_and(|flow| flow.nat == s.segment.backend_tuple()) {
        return Exit::drop(Reason::ConnectStray);
    }
    emit::reset(skb, s, Reason::ForwardStray)
}

#[inline(always)]
fn established(skb: Skb, s: &mut Scratch, flow: &mut Flow) -> Exit {
    match forward::from_backend(s, flow) {
        Step::Pass => emit::pass(skb, s, Reason::ForwardClient),
        Step::PassReset => emit::pass(skb, s, Reason::ForwardReset),
        Step::Linger => forward::linger(skb, s),
        Step::AckBackend => forward::acknowledge_backend(skb, s),
        Step::Stray => Exit::drop(Reason::ForwardStray),
        Step::Repeat => repeat(skb, s),
    }
}

/// The backend misses bytes that we acknowledged to the client.
#[inline(always)]
fn repeat(skb: Skb, s: &mut Scratch) -> Exit {
    let Some(waiting) = maps::hello(&s.client) else { return Exit::drop(Reason::ForwardStray) };
    if waiting.state != HELLO_OWED {
        return Exit::drop(Reason::ForwardStray);
    }
    kernel::assign(&mut s.hello, waiting);
    s.from = s.segment.ack.wrapping_sub(s.hello.isn.wrapping_add(1)) & 0x3fff;
    if stash::stash_fetch(s) == 0 {
        close::end(s);
        return give_up(skb, s, Exit::reset(Reason::HelloStashFailed), true);
    }
    // A duplicate ACK asks for the first hole only; the client's own clock still repeats all.
    if !s.segment.has(SYN) {
        s.hello.have = s.hello.have.min(s.from + u32::from(s.hello.backend_mss));
    }
    connect::deliver(skb, s, Reason::ConnectRepeated)
}

/// We wait for its SYN-ACK.
#[inline(always)]
fn connecting(skb: Skb, s: &mut Scratch) -> Exit {
    match connect::answer(s) {
        Answer::Stray => emit::reset(skb, s, Reason::ConnectStray),
        Answer::Old => connect::push_aside(skb, s),
        Answer::Refused => refused(skb, s),
        Answer::Accepted => accepted(skb, s),
    }
}

/// The backend of the waiting hello in `s.hello` refused, or is out of reach: the next one.
#[inline(always)]
pub(super) fn refused(skb: Skb, s: &mut Scratch) -> Exit {
    // Exactly one CPU gets to remove it: this one, or the one that has the client's repetition.
    if !maps::remove_hello(&s.client) {
        return Exit::drop(Reason::ConnectStray);
    }
    connect::abandon(s);
    match pick::next(s) {
        Ok(()) => retried(skb, s),
        Err(exit) => give_up(skb, s, exit, false),
    }
}

#[inline(always)]
fn accepted(skb: Skb, s: &mut Scratch) -> Exit {
    s.from = 0;
    // While the entry still holds the places: once it is gone they are anybody's.
    if stash::stash_fetch(s) == 0 {
        // Another CPU had the same SYN-ACK, delivered the hello and freed them.
        if maps::hello(&s.client).is_none() {
            return Exit::drop(Reason::ConnectStray);
        }
        return give_up(skb, s, Exit::reset(Reason::HelloStashFailed), true);
    }
    match connect::establish(s) {
        Ok(()) => connect::deliver(skb, s, Reason::ConnectHello),
        Err(exit) if exit.verdict() == Verdict::Reset => give_up(skb, s, exit, true),
        Err(exit) => exit,
    }
}

#[inline(always)]
fn retried(skb: Skb, s: &mut Scratch) -> Exit {
    let exit = connect::open(skb, s, Reason::ConnectNext);
    if exit.verdict() == Verdict::Reset { give_up(skb, s, exit, false) } else { exit }
}

/// The client is reset; and the backend too, where it has a connection.
#[inline(always)]
fn give_up(skb: Skb, s: &mut Scratch, exit: Exit, backend_too: bool) -> Exit {
    connect::refused(s);
    // Taken out of the map to try another backend: then it is counted down here.
    if !stash::forget(&s.client) && s.hello.state == HELLO_CONNECTING {
        stash::lower(&s.client, s.hello.source_epoch);
    }
    connect::draft_client_reset(s);
    if !backend_too {
        return emit::send_exit(skb, s, exit);
    }
    if let Err(failed) = emit::learn_partial(skb, s) {
        return failed;
    }
    emit::emit_copy(skb.0, s);
    draft::answer(s);
    draft::reset_numbers(&mut s.draft, &s.segment);
    emit::send_exit(skb, s, exit)
}

/// A TCP listener's backend answers the client itself.
#[inline(always)]
fn half_opened(skb: Skb, s: &mut Scratch) -> Exit {
    half_open::answered(s);
    let refused = half_open::refused(s);
    if refused {
        half_open::forget(&s.client);
        s.hello.route = s.half_open.route;
        connect::refused(s);
    }
    half_open::draft_to_client(s);
    emit::pass_through(skb, s, if refused { Reason::ConnectRefused } else { Reason::ForwardClient })
}
