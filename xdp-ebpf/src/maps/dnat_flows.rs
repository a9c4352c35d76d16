//! The list of flows whose backend sees its client.

use aya_ebpf::btf_maps::HashMap;
use aya_ebpf::macros::btf_map;
use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::ClientTuple;

use super::NO_PREALLOC;

#[btf_map]
pub(crate) static DNAT_FLOWS: HashMap<ClientTuple, DnatFlow, 1024, NO_PREALLOC> = HashMap::new();

/// Adds a flow. Where there is no room, the daemon finds it by its walk over all flows.
#[inline(always)]
pub(crate) fn add(key: &ClientTuple, flow: &DnatFlow) {
    let _ = DNAT_FLOWS.insert(key, flow, 0);
}

/// Removes a flow. If the kernel refuses, the daemon's sweep finds the entry.
#[inline(always)]
pub(crate) fn remove(key: &ClientTuple) {
    let _ = DNAT_FLOWS.remove(key);
}
