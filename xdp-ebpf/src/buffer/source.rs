//! The number of waiting hellos of each source.

use common::maps::flow::{ClientTuple, Source};

use crate::atomic;
use crate::maps;
use crate::scratch::{Received, Waiting};

/// Counts one waiting hello less for the source.
#[inline(always)]
pub(crate) fn lower(tuple: &ClientTuple, epoch: u32) {
    let prefix = tuple.client.source_prefix();
    if let Some(source) = maps::source(&prefix) {
        // The entry stays even at zero: the daemon removes it once the source has been quiet.
        if source.epoch == epoch && atomic::add(&mut source.waiting, 1u32.wrapping_neg()) == 0 {
            atomic::add(&mut source.waiting, 1);
        }
    }
}

/// Counts one waiting hello more for the source; `false` when the source is at its limit.
#[inline(always)]
pub(crate) fn raise(received: &Received, waiting: &mut Waiting) -> bool {
    let Some(settings) = maps::settings() else { return false };
    let now_ns = received.now_ns;
    let prefix = received.segment.tuple.client.source_prefix();
    let epoch = &mut waiting.pending.source_epoch;
    let Some(source) = maps::source(&prefix) else {
        *epoch = (now_ns >> 20) as u32;
        let first = Source { newest_ns: now_ns, waiting: 1, epoch: *epoch };
        // If the map is full, that is due to counts that were never lowered: no reason to refuse a source
        // that has none.
        maps::insert_source(&prefix, &first);
        return true;
    };
    // All of its hellos are past their time limit, even any that were not counted down.
    if source.newest_ns + settings.hello_timeout_ns < now_ns {
        source.waiting = 0;
        source.epoch += 1;
    }
    if atomic::add(&mut source.waiting, 1) >= settings.source_hellos_max {
        atomic::add(&mut source.waiting, 1u32.wrapping_neg());
        return false;
    }
    source.newest_ns = now_ns;
    *epoch = source.epoch;
    true
}
