//! The number of waiting hellos of each source.

use common::maps::flow::ClientTuple;
use common::maps::settings::Settings;
use common::maps::source::Source;
use common::maps::word::{self, Word};

use crate::atomic;
use crate::maps;
use crate::scratch::{Received, Waiting};

/// Counts one waiting hello less for the source.
#[inline(always)]
pub(crate) fn lower(tuple: &ClientTuple, epoch: u32) {
    let prefix = tuple.client.source_prefix();
    if let Some(source) = maps::source(&prefix) {
        // The entry stays even at zero: the daemon removes it once the source has been quiet.
        atomic::change(&mut source.count, epoch, |was| word::Waiting::of(was).lowered().bits());
    }
}

/// Returns the most hellos of one source: while half of the slots are free, as many as it sends.
#[inline(always)]
fn most(settings: &Settings) -> u32 {
    if is_taken(settings, 2) { settings.source_hellos_max } else { u32::MAX }
}

/// Whether more than one in this many slots of `BUFFERS` is taken.
#[inline(always)]
fn is_taken(settings: &Settings, part: u32) -> bool {
    maps::cursors().is_none_or(|cursors| atomic::read_now(&cursors.buffered) > settings.buffers / part)
}

/// Whether more than one in this many slots of `BUFFERS` is taken, by the settings in the map.
#[inline(always)]
pub(crate) fn is_crowded(part: u32) -> bool {
    maps::settings().is_none_or(|settings| is_taken(settings, part))
}

/// Counts one waiting hello more for the source; `false` when the source is at its limit.
#[inline(always)]
pub(crate) fn raise(received: &Received, waiting: &mut Waiting) -> bool {
    let Some(settings) = maps::settings() else { return false };
    let now_ns = received.now_ns;
    let prefix = received.segment.tuple.client.source_prefix();
    let counted = &mut waiting.pending.source_epoch;
    let mut found = maps::source(&prefix);
    if found.is_none() {
        let count = word::Waiting { waiting: 1, epoch: (now_ns >> 20) as u32 };
        if maps::insert_source(&prefix, &Source { newest_ns: now_ns, count }) {
            *counted = count.epoch;
            return true;
        }
        found = maps::source(&prefix);
    }
    // If the map is full, that is due to counts that were never lowered: no reason to refuse a source that has none.
    let Some(source) = found else { return true };
    let (max, epoch) = (most(settings), atomic::word(&source.count).epoch);
    // All of its hellos are past their time limit, even any that were not counted down.
    let over = source.newest_ns + settings.hello_timeout_ns < now_ns;
    let raised = |was| {
        let was = word::Waiting::of(was);
        match over {
            true => word::Waiting { waiting: 1, epoch: epoch.wrapping_add(1) },
            false if was.waiting >= max => was,
            false => was.raised(),
        }
        .bits()
    };
    // An epoch in which this hello is not counted, so that it is not counted down.
    *counted = epoch.wrapping_sub(1);
    // If another CPU begins a new count at this moment, this hello is not part of it.
    let Some(was) = atomic::change(&mut source.count, epoch, raised) else { return true };
    let own = if over { epoch.wrapping_add(1) } else { epoch };
    let refused = !over && word::Waiting::of(was).waiting >= max;
    // The daemon may have removed the count after the look-up, and its element may be another source's.
    if !maps::source(&prefix).is_some_and(|found| core::ptr::eq(found, source)) {
        if !refused {
            atomic::change(&mut source.count, own, |was| word::Waiting::of(was).lowered().bits());
        }
        return true;
    }
    if refused {
        return false;
    }
    source.newest_ns = now_ns;
    *counted = own;
    true
}
