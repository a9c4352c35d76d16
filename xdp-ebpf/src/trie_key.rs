//! Keys of LPM tries in the form that aya needs: a prefix length, and the data behind it.

use aya_ebpf::btf_maps::lpm_trie::Key;
use common::maps::policy::PolicyKey;
use common::maps::route::SuffixKey;

/// The data behind the prefix length of [`SuffixKey`].
#[repr(C)]
pub(crate) struct SuffixData {
    listener: [u8; 2],
    reversed: [u8; 254],
}

/// The data behind the prefix length of [`PolicyKey`].
#[repr(C)]
pub(crate) struct PolicyData {
    policy: [u8; 2],
    family: u8,
    reserved: u8,
    address: [u8; 16],
}

/// Returns the key of `ROUTES_WILDCARD`.
#[inline(always)]
pub(crate) fn of_suffix(key: &SuffixKey) -> &Key<SuffixData> {
    // SAFETY: the same layout: a u32 of prefix bits, then 256 bytes.
    unsafe { &*core::ptr::from_ref(key).cast() }
}

/// Returns the key of `POLICIES`.
#[inline(always)]
pub(crate) fn of_policy(key: &PolicyKey) -> &Key<PolicyData> {
    // SAFETY: the same layout: a u32 of prefix bits, then 20 bytes.
    unsafe { &*core::ptr::from_ref(key).cast() }
}
