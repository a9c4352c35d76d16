//! The one log statement: a packet as it leaves, for `vestibule trace`.

use common::decide::trace;
use common::maps::trace::{
    CLASS_NONE, EXIT_DROP, EXIT_NEXT, EXIT_SENT, HOOK_TCX, KNOWN_CLIENT, KNOWN_SEGMENT, TraceRecord,
};
use zerocopy::IntoBytes;

use crate::atomic;
use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Context, Skb};
use crate::maps;
use crate::scratch::Received;
use crate::verified::verified;

/// After this time a filter that was not renewed is switched off.
const SWITCH_OFF_NS: u64 = 1_000_000_000;

/// Whether a `vestibule trace` may be running.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    maps::trace_filter(0).is_some_and(|filter| filter.until_ns != 0)
}

verified! {
    /// Logs the packet if the filter chooses it. `exit`: [`Exit::number`].
    pub(crate) fn log as trace_log[Skb, skb](received: Received; exit: u32) -> () {
        let (Some(filter), Some(count)) = (maps::trace_filter(0), maps::trace_count(0)) else { return };
        let now_ns = kernel::monotonic_ns();
        let until_ns = filter.until_ns;
        if now_ns >= until_ns {
            // Not at once: a renewal may be in flight.
            if now_ns - until_ns >= SWITCH_OFF_NS {
                filter.until_ns = 0;
            }
            return;
        }
        let mut record = record(skb, received, Exit::from_number(exit), now_ns);
        if !trace::chooses(filter, &record) {
            return;
        }
        record.number = atomic::advance(&mut count.chosen);
        if !trace::is_within_limit(count, record.number, now_ns) {
            return;
        }
        let bytes = record.as_bytes();
        aya_log_ebpf::info!(skb.raw(), target: "packet", "{:x}", bytes);
    }
}

#[inline(always)]
fn record(skb: Skb, received: &Received, exit: Exit, now_ns: u64) -> TraceRecord {
    let segment = &received.segment;
    let is_segment = received.known >= KNOWN_SEGMENT;
    let of_connection = received.known >= KNOWN_CLIENT || received.class != CLASS_NONE;
    let tuple = &segment.tuple;
    // Read in any case: the compiler would make one instruction of both loads, of a packet or of our memory, which the
    // verifier refuses.
    let frame_bytes = core::hint::black_box(skb.length());
    TraceRecord {
        time_ns: now_ns,
        number: 0,
        client: if of_connection { received.client } else { *tuple },
        from: tuple.client,
        to: tuple.vip,
        from_port: tuple.client_port,
        to_port: tuple.vip_port,
        seq: segment.seq,
        ack: segment.ack,
        bytes: if is_segment { segment.payload_bytes } else { frame_bytes },
        device: skb.ifindex(),
        generation: if received.class != CLASS_NONE { received.generation } else { 0 },
        window: segment.window,
        flags: segment.flags,
        hook: HOOK_TCX,
        known: received.known,
        class: received.class,
        exit: match exit.verdict() {
            Verdict::Next => EXIT_NEXT,
            Verdict::Redirect => EXIT_SENT,
            Verdict::Drop | Verdict::Reset | Verdict::IcmpError => EXIT_DROP,
        },
        reason: exit.reason() as u8,
    }
}
