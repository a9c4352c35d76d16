//! Safe names for the kernel helpers we call. Nothing here decides anything.

use aya_ebpf::bindings::{
    __sk_buff, BPF_CSUM_LEVEL_QUERY, BPF_F_ADJ_ROOM_FIXED_GSO, BPF_F_ADJ_ROOM_NO_CSUM_RESET,
    BPF_F_CURRENT_NETNS, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM, BPF_FIB_LKUP_RET_NO_NEIGH,
    bpf_fib_lookup as FibParams, bpf_redir_neigh, bpf_sock_tuple,
};
use aya_ebpf::helpers::generated as helper;
use common::maps::address::Address;
use common::maps::flow::BackendTuple;
use core::ffi::c_void;

/// The packet as the kernel hands it to us. Valid for the whole run of the program.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Skb(pub(crate) *mut __sk_buff);

/// `AF_INET` and `AF_INET6` as `bpf_fib_lookup` wants them.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `BPF_ADJ_ROOM_NET` of linux/bpf.h.
const ADJUST_BEHIND_IP: u32 = 0;
/// `PACKET_OTHERHOST` of linux/if_packet.h.
const PACKET_OTHERHOST: u32 = 3;

impl Skb {
    /// Bytes of the frame.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        // SAFETY: the kernel passes a valid context; the verifier checks each field access.
        unsafe { (*self.0).len }
    }

    /// EtherType, host byte order.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        // SAFETY: as in `length`.
        u16::from_be(unsafe { (*self.0).protocol } as u16)
    }

    /// Whether a VLAN tag is on the packet.
    #[inline(always)]
    pub(crate) fn has_vlan(self) -> bool {
        // SAFETY: as in `length`.
        unsafe { (*self.0).vlan_present != 0 }
    }

    /// The device the packet came in by.
    #[inline(always)]
    pub(crate) fn ifindex(self) -> u32 {
        // SAFETY: as in `length`.
        unsafe { (*self.0).ifindex }
    }

    /// Wire segments in this packet; 1 when it is not a GSO packet.
    #[inline(always)]
    pub(crate) fn segments(self) -> u32 {
        // SAFETY: as in `length`.
        let segments = unsafe { (*self.0).gso_segs };
        if segments == 0 { 1 } else { segments }
    }

    /// Payload bytes of each segment of a GSO packet; 0 when it is not one.
    #[inline(always)]
    pub(crate) fn segment_payload(self) -> u32 {
        // SAFETY: as in `length`.
        unsafe { (*self.0).gso_size }
    }

    /// Puts `bytes` zero bytes in front of the frame.
    #[inline(always)]
    pub(crate) fn grow_in_front(self, bytes: u32) -> bool {
        // SAFETY: the helper checks the length.
        unsafe { helper::bpf_skb_change_head(self.0, bytes, 0) == 0 }
    }

    /// Takes `bytes` bytes out behind the IP header without options. Segments of a GSO packet stay as long as they are.
    #[inline(always)]
    pub(crate) fn shrink_behind_ip(self, bytes: u32) -> bool {
        let flags = u64::from(BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET);
        // SAFETY: the helper checks the length.
        unsafe { helper::bpf_skb_adjust_room(self.0, -(bytes as i32), ADJUST_BEHIND_IP, flags) == 0 }
    }

    /// Copies `length` bytes from `offset` of the packet to `to`.
    #[inline(always)]
    pub(crate) fn load(self, offset: u32, to: *mut u8, length: u32) -> bool {
        // SAFETY: the verifier proves that `to` has room for `length` bytes; the helper checks the packet's end.
        unsafe { helper::bpf_skb_load_bytes(self.0.cast(), offset, to.cast(), length) == 0 }
    }

    /// Copies `length` bytes from `from` to `offset` of the packet.
    #[inline(always)]
    pub(crate) fn store(self, offset: u32, from: *const u8, length: u32) -> bool {
        // SAFETY: as in `load`.
        unsafe {
            helper::bpf_skb_store_bytes(self.0, offset, from.cast(), length, u64::from(BPF_F_RECOMPUTE_CSUM))
                == 0
        }
    }

    /// [`Skb::store`] for headers whose checksums [`Skb::fix_checksum`] brings in step: their sum does not change.
    #[inline(always)]
    pub(crate) fn store_headers(self, offset: u32, from: *const u8, length: u32) -> bool {
        // SAFETY: as in `load`.
        unsafe { helper::bpf_skb_store_bytes(self.0, offset, from.cast(), length, 0) == 0 }
    }

    /// Whether the frame is for another host: a device in promiscuous mode sees those too.
    #[inline(always)]
    pub(crate) fn is_for_another_host(self) -> bool {
        // SAFETY: as in `length`.
        unsafe { (*self.0).pkt_type == PACKET_OTHERHOST }
    }

    /// Makes the packet `length` bytes long. New bytes are zero; a GSO packet becomes an ordinary one.
    #[inline(always)]
    pub(crate) fn resize(self, length: u32) -> bool {
        // SAFETY: the helper checks the length.
        unsafe { helper::bpf_skb_change_tail(self.0, length, 0) == 0 }
    }

    /// Applies a checksum difference to the transport checksum at `offset`. With `pseudo_header` it also holds for
    /// packets whose checksum is still to be completed (CHECKSUM_PARTIAL); without, those are left alone.
    #[inline(always)]
    pub(crate) fn fix_checksum(self, offset: u32, difference: u32, pseudo_header: bool) -> bool {
        let flags = if pseudo_header { u64::from(BPF_F_PSEUDO_HDR) } else { 0 };
        // SAFETY: the helper checks the offset.
        unsafe { helper::bpf_l4_csum_replace(self.0, offset, 0, u64::from(difference), flags) == 0 }
    }

    /// Whether the device that the packet came in by has checked its checksum (CHECKSUM_UNNECESSARY).
    #[inline(always)]
    pub(crate) fn checksum_vouched(self) -> bool {
        // SAFETY: a question only.
        unsafe { helper::bpf_csum_level(self.0, u64::from(BPF_CSUM_LEVEL_QUERY)) >= 0 }
    }

    /// Sends a copy out of a device.
    #[inline(always)]
    pub(crate) fn clone_to(self, ifindex: u32) -> bool {
        // SAFETY: the helper checks the device.
        unsafe { helper::bpf_clone_redirect(self.0, ifindex, 0) == 0 }
    }

    /// Looks up the route and neighbour of `params`.
    #[inline(always)]
    pub(crate) fn find_route(self, params: &mut FibParams) -> i64 {
        // SAFETY: `params` has the size given.
        unsafe { helper::bpf_fib_lookup(self.0.cast(), params, size_of::<FibParams>() as i32, 0) }
    }

    /// Whether a socket of this network namespace already uses the backend-side four-tuple.
    #[inline(always)]
    pub(crate) fn socket_exists(self, tuple: &BackendTuple, v4: bool, buffer: &mut [u8; 36]) -> bool {
        let size = if v4 {
            buffer[0..4].copy_from_slice(&tuple.backend.bytes[12..16]);
            buffer[4..8].copy_from_slice(&tuple.source.bytes[12..16]);
            buffer[8..10].copy_from_slice(&tuple.backend_port.bytes);
            buffer[10..12].copy_from_slice(&tuple.source_port.bytes);
            12
        } else {
            buffer[0..16].copy_from_slice(&tuple.backend.bytes);
            buffer[16..32].copy_from_slice(&tuple.source.bytes);
            buffer[32..34].copy_from_slice(&tuple.backend_port.bytes);
            buffer[34..36].copy_from_slice(&tuple.source_port.bytes);
            36
        };
        // SAFETY: the buffer is as large as the larger form of the tuple; a socket found is released at once.
        unsafe {
            let sock = helper::bpf_skc_lookup_tcp(
                self.0.cast(),
                buffer.as_mut_ptr().cast::<bpf_sock_tuple>(),
                size,
                BPF_F_CURRENT_NETNS as u64,
                0,
            );
            if sock.is_null() {
                return false;
            }
            helper::bpf_sk_release(sock.cast());
        }
        true
    }
}

/// Monotonic clock, nanoseconds.
#[inline(always)]
pub(crate) fn monotonic_ns() -> u64 {
    // SAFETY: no arguments.
    unsafe { helper::bpf_ktime_get_ns() }
}

/// Wall clock without leap seconds (CLOCK_TAI), nanoseconds: the same on every node with a set clock.
#[inline(always)]
pub(crate) fn tai_ns() -> u64 {
    // SAFETY: no arguments.
    unsafe { helper::bpf_ktime_get_tai_ns() }
}

/// Our timestamp clock towards clients (RFC 7323): about one tick a millisecond.
#[inline(always)]
pub(crate) fn timestamp(now_ns: u64) -> u32 {
    (now_ns >> 20) as u32
}

/// Difference of two checksums over whole 32-bit words; `from` or `to` may be empty.
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

/// Copies between memory that the verifier knows.
#[inline(always)]
pub(crate) fn copy(to: *mut u8, from: *const u8, bytes: u32) {
    // SAFETY: the verifier proves `to`; a bad `from` fails and leaves zeros.
    unsafe {
        helper::bpf_probe_read_kernel(to.cast(), bytes, from.cast());
    }
}

/// `*to = *from` without a copy on the way: the compiler would load all of it before it stores any, and spill.
#[inline(always)]
pub(crate) fn assign<T: Copy>(to: &mut T, from: &T) {
    copy(core::ptr::from_mut(to).cast(), core::ptr::from_ref(from).cast(), size_of::<T>() as u32);
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

/// Sends the packet to a next hop whose link address the kernel has yet to find.
#[inline(always)]
pub(crate) fn redirect_unresolved(ifindex: u32, hop: &mut bpf_redir_neigh) {
    // SAFETY: `hop` has the size given.
    unsafe {
        helper::bpf_redirect_neigh(ifindex, hop, size_of::<bpf_redir_neigh>() as i32, 0);
    }
}

/// Fills the parameters of a route lookup. `ip_bytes`: the largest IP packet that has to fit; 0 = the packet in hand.
#[inline(always)]
pub(crate) fn route_request(
    params: &mut FibParams,
    from: &Address,
    to: &Address,
    v4: bool,
    ifindex: u32,
    ip_bytes: u32,
) {
    // Zeroed whole: the kernel refuses values left in fields it does not expect.
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

/// What a route lookup found.
pub(crate) enum Found {
    /// Device and link addresses are known.
    Resolved,
    /// The link address has to be asked for.
    Unresolved,
    /// `BPF_FIB_LKUP_RET_*`, or negative.
    Failed(i64),
}

/// Reads the result of [`Skb::find_route`].
#[inline(always)]
pub(crate) fn route_result(code: i64) -> Found {
    match code {
        0 => Found::Resolved,
        c if c == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH) => Found::Unresolved,
        c => Found::Failed(c),
    }
}

/// The next hop of a route lookup, for [`redirect_unresolved`].
#[inline(always)]
pub(crate) fn next_hop(params: &FibParams, hop: &mut bpf_redir_neigh) {
    hop.nh_family = u32::from(params.family);
    // SAFETY: every bit pattern is valid for both arms of the union.
    hop.__bindgen_anon_1.ipv6_nh = unsafe { params.__bindgen_anon_4.ipv6_dst };
}

/// The MTU of the way that was found for a packet of [`route_request`] with a length, whether it fits or not.
#[inline(always)]
pub(crate) fn mtu_found(params: &FibParams) -> u32 {
    // SAFETY: both arms of the union are a u16.
    u32::from(unsafe { params.__bindgen_anon_1.mtu_result })
}

/// The link addresses a route lookup found: (destination, source).
#[inline(always)]
pub(crate) fn link_addresses(params: &FibParams) -> (&[u8; 6], &[u8; 6]) {
    // SAFETY: every bit pattern is valid for every arm of the union.
    unsafe {
        let found = &params.__bindgen_anon_6.__bindgen_anon_2;
        (&found.dmac, &found.smac)
    }
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
