//! Consistent hashing with weights (Eisenbud et al., "Maglev", NSDI 2016, section 3.4).

use crate::maps::address::Port;
use crate::maps::flow::ClientTuple;
use crate::maps::route::PICK_ADDRESS;

/// Returns a hash of the client's address and port, or with [`PICK_ADDRESS`] of the address alone. It is the same on every
/// node and after every restart.
#[inline(always)]
pub fn flow_hash(tuple: &ClientTuple, pick: u8) -> u32 {
    let (high, low) = tuple.client.halves();
    // A factor instead of a condition, which the verifier would follow twice.
    let port = port_word(tuple.client_port) * (pick != PICK_ADDRESS) as u64;
    mix(mix(mix(0x9e37_79b9_7f4a_7c15 ^ high) ^ low) ^ port) as u32
}

#[inline(always)]
const fn port_word(port: Port) -> u64 {
    port.number() as u64
}

/// The finaliser of SplitMix64 (Steele et al. 2014): a bijection whose output bits all depend on all input
/// bits.
#[inline(always)]
pub const fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Returns the slot of a table for a flow's hash. `slots` is not 0.
#[inline(always)]
pub const fn slot(hash: u32, slots: u32) -> u32 {
    // The hash is uniform, so scaling it replaces a division.
    ((hash as u64 * slots as u64) >> 32) as u32
}

/// Returns the member to try at `attempt`: first the slot's own member, then its successors, round and round.
/// 0 if there are no `members`.
#[inline(always)]
pub const fn member(slot_member: u32, attempt: u32, members: u32) -> u32 {
    // Without the operator, which panics at 0: the kernel programs must not.
    match slot_member.wrapping_add(attempt).checked_rem(members) {
        Some(member) => member,
        None => 0,
    }
}
