//! Safe wrappers for the kernel helpers we call. Nothing here decides anything.

use aya_ebpf::bindings::{BPF_FIB_LKUP_RET_NO_NEIGH, bpf_fib_lookup as FibParams, bpf_redir_neigh};
use aya_ebpf::helpers::generated as helper;
use common::maps::address::Address;
use common::maps::next_hop::{Way, link, mark};
use core::ffi::c_void;

/// The packet in hand when TC runs us.
pub(crate) mod skb;
/// The frame in hand when XDP runs us.
pub(crate) mod xdp;

pub(crate) use skb::Skb;
pub(crate) use xdp::Xdp;

/// The context with which the kernel calls a program. Separately verified functions take it as the kernel's
/// own type, which the verifier recognizes by its name.
pub(crate) trait Context: Copy {
    /// `__sk_buff` of linux/bpf.h, or a similar type.
    type Raw;

    /// Wraps the kernel's pointer.
    fn of(raw: *mut Self::Raw) -> Self;

    /// Returns the kernel's pointer.
    fn raw(self) -> *mut Self::Raw;
}

/// What a packet can do at either hook.
pub(crate) trait Packet: Context {
    /// Returns the length of the frame.
    fn length(self) -> u32;

    /// Copies `length` bytes from `offset` of the frame to `to`.
    fn load(self, offset: u32, to: *mut u8, length: u32) -> bool;

    /// Looks up the route and the neighbour for `params`.
    fn find_route(self, params: &mut FibParams) -> i64;
}

/// `AF_INET` and `AF_INET6` in the form that `bpf_fib_lookup` takes.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Returns the monotonic clock in nanoseconds.
#[inline(always)]
pub(crate) fn monotonic_ns() -> u64 {
    // SAFETY: no arguments.
    unsafe { helper::bpf_ktime_get_ns() }
}

/// Returns the wall clock without leap seconds (CLOCK_TAI) in nanoseconds: the same on every node whose clock is set.
#[inline(always)]
pub(crate) fn tai_ns() -> u64 {
    // SAFETY: no arguments.
    unsafe { helper::bpf_ktime_get_tai_ns() }
}

/// Returns our timestamp clock towards clients (RFC 7323): about one tick per millisecond.
#[inline(always)]
pub(crate) fn timestamp(now_ns: u64) -> u32 {
    (now_ns >> 20) as u32
}

/// Returns the difference of two checksums over whole 32-bit words; `from` or `to` may be empty.
#[inline(always)]
pub(crate) fn checksum_difference(
    from: *const u8,
    from_bytes: u32,
    to: *const u8,
    to_bytes: u32,
    seed: u32,
) -> u32 {
    // SAFETY: the verifier proves both ranges.
    unsafe {
        helper::bpf_csum_diff(from.cast_mut().cast(), from_bytes, to.cast_mut().cast(), to_bytes, seed) as u32
    }
}

/// Copies between memory ranges that the verifier tracks.
#[inline(always)]
pub(crate) fn copy(to: *mut u8, from: *const u8, bytes: u32) {
    // SAFETY: the verifier proves `to`; a bad `from` fails and leaves zeros.
    unsafe {
        helper::bpf_probe_read_kernel(to.cast(), bytes, from.cast());
    }
}

/// Copies `*from` to `*to` directly. For a plain assignment the compiler would load everything before it
/// stores anything, and spill.
#[inline(always)]
pub(crate) fn assign<T: Copy>(to: &mut T, from: &T) {
    copy(core::ptr::from_mut(to).cast(), core::ptr::from_ref(from).cast(), size_of::<T>() as u32);
}

/// Copies all of `*from` but its first eight bytes, which other CPUs may exchange in `*to`.
#[inline(always)]
pub(crate) fn assign_behind_head<T: Copy>(to: &mut T, from: &T) {
    let (to, from) = (core::ptr::from_mut(to).cast::<u8>(), core::ptr::from_ref(from).cast::<u8>());
    copy(to.wrapping_add(8), from.wrapping_add(8), size_of::<T>() as u32 - 8);
}

/// Runs `step(index, context)` up to `times` times, until it returns 1.
#[inline(always)]
pub(crate) fn repeat(
    times: u32,
    step: unsafe extern "C" fn(u32, *mut c_void) -> i64,
    context: *mut c_void,
) -> i64 {
    // SAFETY: `context` lives on the caller's stack for the whole call.
    unsafe { helper::bpf_loop(times, step as *mut c_void, context, 0) }
}

/// Sends the packet out of a device when the program returns.
#[inline(always)]
pub(crate) fn redirect(ifindex: u32) {
    // SAFETY: a bad device is counted by the kernel and the packet dropped.
    unsafe {
        helper::bpf_redirect(ifindex, 0);
    }
}

/// Sends the packet to a next hop whose link address the kernel must still resolve.
#[inline(always)]
pub(crate) fn redirect_unresolved(ifindex: u32, hop: &mut bpf_redir_neigh) {
    // SAFETY: `hop` has the size given.
    unsafe {
        helper::bpf_redirect_neigh(ifindex, hop, size_of::<bpf_redir_neigh>() as i32, 0);
    }
}

/// Fills the parameters of a route lookup. `ip_bytes`: the largest IP packet that must fit; 0 = the packet in hand.
#[inline(always)]
pub(crate) fn route_request(
    params: &mut FibParams,
    from: &Address,
    to: &Address,
    v4: bool,
    ifindex: u32,
    ip_bytes: u32,
) {
    // All fields are zeroed: the kernel refuses leftover values in fields where it expects none.
    // SAFETY: all-zero is a valid value of a C structure without pointers.
    unsafe { core::ptr::write_bytes(params, 0, 1) };
    params.l4_protocol = 6;
    params.ifindex = ifindex;
    params.__bindgen_anon_1.tot_len = ip_bytes as u16;
    if v4 {
        params.family = AF_INET;
        params.__bindgen_anon_3.ipv4_src = last_word(from);
        params.__bindgen_anon_4.ipv4_dst = last_word(to);
    } else {
        params.family = AF_INET6;
        params.__bindgen_anon_3.ipv6_src = words(from);
        params.__bindgen_anon_4.ipv6_dst = words(to);
    }
}

/// The result of a route lookup.
pub(crate) enum Found {
    /// The device and the link addresses are known.
    Resolved,
    /// The link address must still be resolved.
    Unresolved,
    /// `BPF_FIB_LKUP_RET_*`, or negative.
    Failed(i64),
}

/// Reads the result of [`Packet::find_route`].
#[inline(always)]
pub(crate) fn route_result(code: i64) -> Found {
    match code {
        0 => Found::Resolved,
        c if c == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH) => Found::Unresolved,
        c => Found::Failed(c),
    }
}

/// Reads the next hop of a route lookup, for [`redirect_unresolved`].
#[inline(always)]
pub(crate) fn next_hop(params: &FibParams, hop: &mut bpf_redir_neigh) {
    hop.nh_family = u32::from(params.family);
    // SAFETY: every bit pattern is valid for both arms of the union.
    hop.__bindgen_anon_1.ipv6_nh = unsafe { params.__bindgen_anon_4.ipv6_dst };
}

/// Returns the MTU of the route found. The [`route_request`] must have had a length; it does not matter
/// whether that fits.
#[inline(always)]
pub(crate) fn mtu_found(params: &FibParams) -> u32 {
    // SAFETY: both arms of the union are a u16.
    u32::from(unsafe { params.__bindgen_anon_1.mtu_result })
}

/// Returns the link addresses that a route lookup found: (destination, source).
#[inline(always)]
pub(crate) fn link_addresses(params: &FibParams) -> (&[u8; 6], &[u8; 6]) {
    // SAFETY: every bit pattern is valid for every arm of the union.
    unsafe {
        let found = &params.__bindgen_anon_6.__bindgen_anon_2;
        (&found.dmac, &found.smac)
    }
}

/// Returns what a route lookup found for a packet that came in on `ingress`. The [`route_request`] must have had a
/// length.
#[inline(always)]
pub(crate) fn way(params: &FibParams, ingress: u32) -> Way {
    let (to, from) = link_addresses(params);
    let mtu = mtu_found(params) as u16;
    // SAFETY: every bit pattern is valid for both arms of the union, and the request has zeroed it.
    let mark = mark(params.family, unsafe { params.__bindgen_anon_4.ipv6_dst });
    Way { to: link_word(to), from: link_word(from), egress: params.ifindex, ingress, mtu, mark }
}

#[inline(always)]
fn link_word(address: &[u8; 6]) -> u64 {
    let from = address.as_ptr();
    // SAFETY: six bytes; reads need not be aligned.
    unsafe { link(from.cast::<u32>().read_unaligned(), from.add(4).cast::<u16>().read_unaligned()) }
}

#[inline(always)]
fn word(b: &[u8; 16], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
fn last_word(address: &Address) -> u32 {
    word(&address.bytes, 12)
}

#[inline(always)]
fn words(address: &Address) -> [u32; 4] {
    let b = &address.bytes;
    [word(b, 0), word(b, 4), word(b, 8), word(b, 12)]
}
