//! Counts of sources that are no longer needed, and room for new ones.

use common::decide::admit::count;
use common::maps::source::{Share, ShareKey};

use super::maps::Maps;
use super::table::TableError;

/// Removes the counts of sources that are quiet for so long that none of their hellos can still wait. `now` and
/// `hello_timeout_ns` in nanoseconds.
pub(super) fn sweep_waiting(maps: &Maps, now: u64, hello_timeout_ns: u64) -> Result<(), TableError> {
    let mut quiet = Vec::new();
    maps.sources.walk(|prefix, source| {
        if source.newest_ns.saturating_add(hello_timeout_ns) < now {
            quiet.push(*prefix);
        }
    })?;
    maps.sources.remove_all(&quiet)
}

/// Removes shares without a connection. Returns those with the fewest connections if the map is nearly full all the
/// same: they are evicted for new sources, which cannot be counted otherwise.
///
/// A connection counted between the look and the removal is forgotten; the programs never count below zero.
pub(super) fn sweep_shares(maps: &Maps) -> Result<Vec<ShareKey>, TableError> {
    let has = |share: &Share| count(share.flows).saturating_add(count(share.connecting));
    let (mut unused, mut in_use) = (Vec::new(), 0);
    maps.shares.walk(|key, share| match has(share) {
        0 => unused.push(*key),
        _ => in_use += 1,
    })?;
    maps.shares.remove_all(&unused)?;
    // There may be a million: they are only remembered where some of them have to go.
    if !is_nearly_full(in_use, maps.shares.capacity()) {
        return Ok(Vec::new());
    }
    let mut used = Vec::new();
    maps.shares.walk(|key, share| used.push((has(share), *key)))?;
    Ok(least_used(used, maps.shares.capacity()))
}

/// Whether more than seven eighths of the capacity are in use.
fn is_nearly_full(in_use: usize, capacity: u32) -> bool {
    in_use > capacity as usize / 8 * 7
}

/// Over seven eighths of the capacity: returns those above three quarters, the least used ones.
fn least_used(mut used: Vec<(u32, ShareKey)>, capacity: u32) -> Vec<ShareKey> {
    if !is_nearly_full(used.len(), capacity) {
        return Vec::new();
    }
    let capacity = capacity as usize;
    used.sort_unstable_by_key(|(flows, _)| *flows);
    let keep = capacity / 4 * 3;
    used.drain(..used.len() - keep).map(|(_, key)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(count: u32) -> Vec<(u32, ShareKey)> {
        (1..=count).map(|flows| (flows, ShareKey { route: flows, ..ShareKey::zeroed() })).rev().collect()
    }

    #[test]
    fn the_least_used_share_is_evicted_in_a_full_map() {
        assert_eq!(least_used(used(70), 80), []);
        let routes: Vec<u32> = least_used(used(71), 80).iter().map(|key| key.route).collect();
        assert_eq!(routes, (1..=11).collect::<Vec<_>>());
    }
}
