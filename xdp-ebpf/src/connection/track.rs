//! What a segment teaches about its flow: numbers, windows, life, and the end.

use common::decide::track::{self, Reset};
use common::maps::flow::{
    ClientTuple, End, FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_CLOSED, FLOW_ENDING, FLOW_PROBED,
    FLOW_RESET, Flow,
};
use common::maps::word::Word;

use super::end;
use super::exchange::{self, Marks};
use crate::atomic;
use crate::maps;
use crate::packet::{ACK, FIN, RST, SYN};
use crate::scratch::Received;
use crate::verified::{Code, verified};

/// What a segment meant for its flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The flow took nothing from it: its sender does not seem to be an end of the connection, or to be up to date.
    Nothing,
    /// The flow knows what the segment says.
    Believed,
    /// A RST that its receiver accepts: the flow is over.
    Reset,
    /// A RST that its receiver accepts only if it has all bytes before it: the receiver will be asked.
    OnTrial,
    /// A RST that its receiver does not accept.
    Unfit,
    /// The record belongs to another connection now.
    Stray,
}

impl Code for Heard {
    #[inline(always)]
    fn code(self) -> u32 {
        self as u32
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        match code {
            1 => Self::Believed,
            2 => Self::Reset,
            3 => Self::OnTrial,
            4 => Self::Unfit,
            5 => Self::Stray,
            _ => Self::Nothing,
        }
    }
}

/// Copies the words of an end.
#[inline(always)]
fn copy(end: &End) -> End {
    End { sent: atomic::word(&end.sent), acked: atomic::word(&end.acked) }
}

/// What a segment says.
#[derive(Clone, Copy)]
struct Said {
    seq: u32,
    end: u32,
    ack: u32,
    window: u32,
    fin: bool,
    /// Whether it begins with the backend's first byte.
    first: bool,
}

/// Raises the words of its sender, which were read as `near`. `false`: the record belongs to another connection now.
#[inline(always)]
fn learn(sender: &mut End, near: &End, generation: u32, said: Said) -> bool {
    // Most segments change one of the words.
    let is_news = near.acked.raised(said.ack, said.window) != near.acked;
    if is_news && !exchange::raise(&mut sender.acked, generation, said.ack, said.window) {
        return false;
    }
    // One without data or FIN shows nothing that its sender sent.
    let extended = near.sent.extended(said.end, said.fin).began(said.first);
    let is_news = said.end != said.seq && extended != near.sent;
    let (fin, first) = (u32::from(said.fin), u32::from(said.first));
    !is_news || exchange::extend(&mut sender.sent, generation, said.end, fin, first)
}

verified! {
    /// Learns from a segment of the flow in `received`: of its client (`from_client` = 1) or its backend (0).
    pub(crate) fn hear as track_hear(received: Received, flow: Flow; from_client: u32) -> Heard {
        let generation = received.generation;
        let from_client = from_client != 0;
        let ack = match from_client {
            true => received.segment.ack.wrapping_add(flow.seq_delta),
            false => received.segment.ack,
        };
        let first = flow.first_byte();
        let (client_scale, backend_scale) = (flow.client.sent.agreed().scale, flow.backend.sent.agreed().scale);
        let (sender, receiver, scale, other_scale) = match from_client {
            true => (&mut flow.client, &flow.backend, client_scale, backend_scale),
            false => (&mut flow.backend, &flow.client, backend_scale, client_scale),
        };
        let (near, far) = (copy(sender), copy(receiver));
        if !near.sent.belongs_to(generation) || !far.acked.belongs_to(generation) {
            return Heard::Stray;
        }
        let seg = &received.segment;
        if seg.has(RST) {
            return match track::reset(seg.seq, &near, &far) {
                Reset::Exact => Heard::Reset,
                Reset::Ahead => Heard::OnTrial,
                Reset::Elsewhere => Heard::Unfit,
            };
        }
        let end = seg.end();
        if seg.flags & (SYN | ACK) != ACK
            || !track::is_inside(seg.seq, end, &far, other_scale)
            || !track::is_acknowledgement(ack, &near, &far)
        {
            return Heard::Nothing;
        }
        if !track::is_old(end, &far) {
            let (window, fin) = (track::window(seg.window, scale), seg.has(FIN));
            let said = Said { seq: seg.seq, end, ack, window, fin, first: !from_client && seg.seq == first };
            if !learn(sender, &near, generation, said) {
                return Heard::Stray;
            }
        }
        let now = (received.now_ns / 1_000_000_000) as u32;
        // Only once a second, to spare the cache line.
        if flow.seen_secs != now {
            // A full barrier, before the flags are read: who ends the flow marks it, then looks at the time.
            atomic::exchange(&mut flow.seen_secs, now);
        }
        acquit(flow, generation, from_client);
        Heard::Believed
    }
}

/// Ends the trial of the other end's RST: this end was asked, and it still has the connection. And stops the daemon's order to
/// end the flow, if one is being carried out at this moment.
#[inline(always)]
fn acquit(flow: &mut Flow, generation: u32, from_client: bool) {
    let trial = if from_client { FLOW_BACKEND_ON_TRIAL } else { FLOW_CLIENT_ON_TRIAL };
    let both = trial | FLOW_PROBED;
    let flags = atomic::word(atomic::head(&mut flow.connection)).flags;
    let over = if flags & both == both { both } else { 0 } | flags & FLOW_ENDING;
    if over != 0 {
        exchange::mark(&mut flow.connection, generation, Marks::NONE, Marks::flags(over));
    }
}

/// Ends the flow if the segment did, or if both ends are done. `false`: the record belongs to another connection now.
#[inline(always)]
pub(crate) fn settle(received: &mut Received, flow: &mut Flow, heard: Heard, from_client: bool) -> bool {
    let (generation, now_ns) = (received.generation, received.now_ns);
    let client = &mut received.client;
    match heard {
        Heard::Stray => return false,
        Heard::Nothing | Heard::Unfit => {}
        Heard::Reset => {
            end::flow(client, flow, generation, FLOW_RESET, now_ns);
        }
        Heard::OnTrial => {
            let trial = if from_client { FLOW_CLIENT_ON_TRIAL } else { FLOW_BACKEND_ON_TRIAL };
            try_flow(client, flow, generation, trial.into());
        }
        // Both directions may see the last acknowledgements at the same moment. Each reads the other's words after
        // its own exchange, which is a full barrier, so at least one of them sees both.
        Heard::Believed => {
            if flow.client.sent.fin & flow.backend.sent.fin != 0
                && track::is_closed(&copy(&flow.client), &copy(&flow.backend))
            {
                end::flow(client, flow, generation, FLOW_CLOSED, now_ns);
            }
        }
    }
    true
}

verified! {
    /// Puts a flow on trial for the RST of one of its ends, and reports it to the daemon unless it is on trial for that already.
    fn try_flow as track_try_flow(client: ClientTuple, flow: Flow; generation: u32, trial: u32) -> () {
        let trial = trial as u8;
        let was = exchange::mark(&mut flow.connection, generation, Marks::flags(trial), Marks::NONE);
        if was.is_some_and(|was| was.its_flags() & trial == 0) {
            maps::report_trial(client);
        }
    }
}
