//! The packet in hand when TC runs us: reads, writes, resizes and sends it. Nothing here decides anything.

use aya_ebpf::bindings::{
    __sk_buff, BPF_CSUM_LEVEL_QUERY, BPF_F_ADJ_ROOM_FIXED_GSO, BPF_F_ADJ_ROOM_NO_CSUM_RESET,
    BPF_F_CURRENT_NETNS, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM, bpf_fib_lookup as FibParams, bpf_sock_tuple,
};
use aya_ebpf::helpers::generated as helper;

use super::{Context, Packet};

/// The packet as the kernel passes it to us. Valid for the whole run of the program.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Skb(*mut __sk_buff);

impl Context for Skb {
    type Raw = __sk_buff;

    #[inline(always)]
    fn of(raw: *mut __sk_buff) -> Self {
        Self(raw)
    }

    #[inline(always)]
    fn raw(self) -> *mut __sk_buff {
        self.0
    }
}

impl Packet for Skb {
    #[inline(always)]
    fn length(self) -> u32 {
        Self::length(self)
    }

    #[inline(always)]
    fn load(self, offset: u32, to: *mut u8, length: u32) -> bool {
        Self::load(self, offset, to, length)
    }

    #[inline(always)]
    fn find_route(self, params: &mut FibParams) -> i64 {
        Self::find_route(self, params)
    }
}

/// `BPF_ADJ_ROOM_NET` of linux/bpf.h.
const ADJUST_BEHIND_IP: u32 = 0;
/// `PACKET_OTHERHOST` of linux/if_packet.h.
const PACKET_OTHERHOST: u32 = 3;

impl Skb {
    /// Returns the length of the frame.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        // SAFETY: the kernel passes a valid context; the verifier checks each field access.
        unsafe { (*self.0).len }
    }

    /// Returns the EtherType in host byte order.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        // SAFETY: as in `length`.
        u16::from_be(unsafe { (*self.0).protocol } as u16)
    }

    /// Whether the packet has a VLAN tag.
    #[inline(always)]
    pub(crate) fn has_vlan(self) -> bool {
        // SAFETY: as in `length`.
        unsafe { (*self.0).vlan_present != 0 }
    }

    /// Returns the VLAN of the packet's tag; 0 = the tag has only a priority, and the packet is one of the device itself (IEEE
    /// 802.1Q).
    #[inline(always)]
    pub(crate) fn vlan(self) -> u32 {
        // SAFETY: as in `length`.
        unsafe { (*self.0).vlan_tci & 0xfff }
    }

    /// Removes the VLAN tag.
    #[inline(always)]
    pub(crate) fn untag(self) -> bool {
        // SAFETY: the helper checks the packet.
        unsafe { helper::bpf_skb_vlan_pop(self.0) == 0 }
    }

    /// Returns the device that the packet came in on.
    #[inline(always)]
    pub(crate) fn ifindex(self) -> u32 {
        // SAFETY: as in `length`.
        unsafe { (*self.0).ifindex }
    }

    /// Returns the number of wire segments in this packet; 1 when it is not a GSO packet.
    #[inline(always)]
    pub(crate) fn segments(self) -> u32 {
        // SAFETY: as in `length`.
        let segments = unsafe { (*self.0).gso_segs };
        if segments == 0 { 1 } else { segments }
    }

    /// Returns the payload bytes of each segment of a GSO packet; 0 when it is not one.
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

    /// Removes `bytes` bytes after the fixed part of the IP header. Segments of a GSO packet keep their length.
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

    /// Like [`Skb::store`], where the sum over the packet (CHECKSUM_COMPLETE) must not change: for headers whose checksum fields
    /// [`Skb::fix_checksum`] updates, and for the Ethernet header, which is not part of it.
    #[inline(always)]
    pub(crate) fn store_headers(self, offset: u32, from: *const u8, length: u32) -> bool {
        // SAFETY: as in `load`.
        unsafe { helper::bpf_skb_store_bytes(self.0, offset, from.cast(), length, 0) == 0 }
    }

    /// Whether the frame is for another host; a device in promiscuous mode also sees such frames.
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

    /// Applies a checksum difference to the transport checksum at `offset`. With `pseudo_header`, packets whose
    /// checksum is still to be completed (CHECKSUM_PARTIAL) are changed too; without it, those are left alone.
    #[inline(always)]
    pub(crate) fn fix_checksum(self, offset: u32, difference: u32, pseudo_header: bool) -> bool {
        let flags = if pseudo_header { u64::from(BPF_F_PSEUDO_HDR) } else { 0 };
        // SAFETY: the helper checks the offset.
        unsafe { helper::bpf_l4_csum_replace(self.0, offset, 0, u64::from(difference), flags) == 0 }
    }

    /// Adds to the sum over the packet that its device computed (CHECKSUM_COMPLETE); other packets have none.
    #[inline(always)]
    pub(crate) fn add_to_sum(self, difference: u32) {
        // SAFETY: no memory is passed. It fails for packets without such a sum.
        unsafe {
            helper::bpf_csum_update(self.0, difference);
        }
    }

    /// Whether the device that the packet came in on has verified its checksum (CHECKSUM_UNNECESSARY).
    #[inline(always)]
    pub(crate) fn checksum_vouched(self) -> bool {
        // SAFETY: only a query.
        unsafe { helper::bpf_csum_level(self.0, u64::from(BPF_CSUM_LEVEL_QUERY)) >= 0 }
    }

    /// Sends a copy of the packet out of a device.
    #[inline(always)]
    pub(crate) fn clone_to(self, ifindex: u32) -> bool {
        // SAFETY: the helper checks the device.
        unsafe { helper::bpf_clone_redirect(self.0, ifindex, 0) == 0 }
    }

    /// Looks up the route and the neighbour for `params`.
    #[inline(always)]
    pub(crate) fn find_route(self, params: &mut FibParams) -> i64 {
        // SAFETY: `params` has the size given.
        unsafe { helper::bpf_fib_lookup(self.0.cast(), params, size_of::<FibParams>() as i32, 0) }
    }

    /// Whether a socket of this network namespace has the four-tuple. The tuple is in the first `bytes` bytes
    /// of `bpf_sock_tuple`: 12 (IPv4) or 36 (IPv6).
    #[inline(always)]
    pub(crate) fn socket_exists(self, tuple: &mut [u8; 36], bytes: u32) -> bool {
        // SAFETY: the buffer is as large as the larger form of the tuple; a socket found is released at once.
        unsafe {
            let sock = helper::bpf_skc_lookup_tcp(
                self.0.cast(),
                tuple.as_mut_ptr().cast::<bpf_sock_tuple>(),
                bytes,
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
