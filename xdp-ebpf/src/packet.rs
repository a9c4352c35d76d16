//! A packet's headers, and the fields read from them.

use common::maps::address::{Address, Port};
use common::maps::flow::ClientTuple;

/// Bytes of an Ethernet header.
pub(crate) const ETH_BYTES: u32 = 14;
/// Bytes before the TCP header in an IPv4 frame without options.
pub(crate) const V4_BYTES: u32 = 34;
/// Bytes before the TCP header in an IPv6 frame without extension headers.
pub(crate) const V6_BYTES: u32 = 54;
/// Bytes of the hop-by-hop header that the kernel puts before TCP in an IPv6 packet too long for its length field (RFC 2675;
/// BIG TCP, until Linux 7.0).
pub(crate) const JUMBO_BYTES: u32 = 8;
/// The maximum length of a TCP header, in bytes.
pub(crate) const TCP_BYTES_MAX: u32 = 60;
/// The MSS of an end that announces none (RFC 9293 section 3.7.1).
pub(crate) const MSS_DEFAULT_V4: u16 = 536;
/// The same for IPv6.
pub(crate) const MSS_DEFAULT_V6: u16 = 1220;

/// TCP flags (RFC 9293 section 3.1).
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// Offset of the TCP header in [`Headers`]: the same for both families, and it aligns addresses and TCP fields.
pub(crate) const TCP_AT: usize = 56;
const V4_FRAME_AT: usize = TCP_AT - V4_BYTES as usize;
const V6_FRAME_AT: usize = TCP_AT - V6_BYTES as usize;
const V4_AT: usize = V4_FRAME_AT + ETH_BYTES as usize;
const V6_AT: usize = V6_FRAME_AT + ETH_BYTES as usize;

/// The Ethernet, IP and TCP headers of a frame, as on the wire.
#[repr(C, align(8))]
pub(crate) struct Headers {
    /// The frame starts at 22 (IPv4) or 2 (IPv6), the TCP header at [`TCP_AT`].
    pub(crate) bytes: [u8; 128],
}

impl Headers {
    /// Offset of the IPv4 header.
    pub(crate) const V4: usize = V4_AT;
    /// Offset of the IPv6 header.
    pub(crate) const V6: usize = V6_AT;

    /// Returns a pointer to the first byte of the frame.
    #[inline(always)]
    pub(crate) fn frame(&mut self, v4: bool) -> *mut u8 {
        let at = if v4 { V4_FRAME_AT } else { V6_FRAME_AT };
        // SAFETY: both offsets lie inside `bytes`.
        unsafe { self.bytes.as_mut_ptr().add(at) }
    }

    /// Reads the 16-bit number at an even offset.
    #[inline(always)]
    pub(crate) fn be16(&self, at: usize) -> u16 {
        debug_assert!(at.is_multiple_of(2) && at < 126);
        // SAFETY: in range and aligned, since callers pass constants and `bytes` is aligned to 8.
        u16::from_be(unsafe { self.bytes.as_ptr().add(at).cast::<u16>().read() })
    }

    /// Reads the 32-bit number at an offset divisible by 4.
    #[inline(always)]
    pub(crate) fn be32(&self, at: usize) -> u32 {
        debug_assert!(at.is_multiple_of(4) && at < 124);
        // SAFETY: as in `be16`.
        u32::from_be(unsafe { self.bytes.as_ptr().add(at).cast::<u32>().read() })
    }

    /// Reads the 32 bits at an offset divisible by 4 in memory order, without a byte swap.
    #[inline(always)]
    pub(crate) fn word(&self, at: usize) -> u32 {
        debug_assert!(at.is_multiple_of(4) && at < 124);
        // SAFETY: as in `be16`.
        unsafe { self.bytes.as_ptr().add(at).cast::<u32>().read() }
    }

    /// Writes the 16-bit number at an even offset.
    #[inline(always)]
    pub(crate) fn set_be16(&mut self, at: usize, value: u16) {
        // SAFETY: as in `be16`.
        unsafe { self.bytes.as_mut_ptr().add(at).cast::<u16>().write(value.to_be()) }
    }

    /// Writes the 32-bit number at an offset divisible by 4.
    #[inline(always)]
    pub(crate) fn set_be32(&mut self, at: usize, value: u32) {
        // SAFETY: as in `be16`.
        unsafe { self.bytes.as_mut_ptr().add(at).cast::<u32>().write(value.to_be()) }
    }

    /// Reads the port at an even offset.
    #[inline(always)]
    pub(crate) fn port(&self, at: usize) -> Port {
        debug_assert!(at.is_multiple_of(2) && at < 126);
        // SAFETY: as in `be16`.
        unsafe { self.bytes.as_ptr().add(at).cast::<Port>().read() }
    }

    /// Writes the port at an even offset.
    #[inline(always)]
    pub(crate) fn set_port(&mut self, at: usize, port: Port) {
        // SAFETY: as in `be16`.
        unsafe { self.bytes.as_mut_ptr().add(at).cast::<Port>().write(port) }
    }

    /// Writes a link address.
    #[inline(always)]
    pub(crate) fn set_link(&mut self, at: usize, link: &[u8; 6]) {
        debug_assert!(at < 122);
        // SAFETY: in range, since callers pass constants.
        unsafe { self.bytes.as_mut_ptr().add(at).cast::<[u8; 6]>().write(*link) }
    }

    /// Writes a link address in the form of `common::maps::next_hop::link`.
    #[inline(always)]
    pub(crate) fn set_link_word(&mut self, at: usize, link: u64) {
        debug_assert!(at < 122);
        // SAFETY: in range, since callers pass constants; writes need not be aligned.
        unsafe {
            let to = self.bytes.as_mut_ptr().add(at);
            to.cast::<u32>().write_unaligned(link as u32);
            to.add(4).cast::<u16>().write_unaligned((link >> 32) as u16);
        }
    }

    /// Reads the address at an offset divisible by 4 (IPv4: 4 bytes, IPv6: 16).
    #[inline(always)]
    pub(crate) fn address(&self, at: usize, v4: bool) -> Address {
        // SAFETY: as in `be16`.
        unsafe {
            if v4 {
                Address::v4(self.bytes.as_ptr().add(at).cast::<[u8; 4]>().read())
            } else {
                self.bytes.as_ptr().add(at).cast::<Address>().read()
            }
        }
    }

    /// Writes the address at an offset divisible by 4.
    #[inline(always)]
    pub(crate) fn set_address(&mut self, at: usize, address: &Address, v4: bool) {
        // SAFETY: as in `be16`.
        unsafe {
            let to = self.bytes.as_mut_ptr().add(at);
            if v4 {
                let low = core::ptr::from_ref(address).cast::<u32>().add(3).read();
                to.cast::<u32>().write(low);
            } else {
                to.cast::<Address>().write(*address);
            }
        }
    }

    /// Returns `N` bytes, from a constant offset on.
    #[inline(always)]
    pub(crate) fn part<const N: usize>(&self, at: usize) -> &[u8; N] {
        debug_assert!(at + N <= self.bytes.len());
        // SAFETY: in range, since callers pass constants.
        unsafe { &*self.bytes.as_ptr().add(at).cast() }
    }

    /// Like [`Self::part`], to be written.
    #[inline(always)]
    pub(crate) fn part_mut<const N: usize>(&mut self, at: usize) -> &mut [u8; N] {
        debug_assert!(at + N <= self.bytes.len());
        // SAFETY: as in `part`.
        unsafe { &mut *self.bytes.as_mut_ptr().add(at).cast() }
    }

    /// Reads a byte of the TCP header at a variable offset; the mask keeps it in range.
    #[inline(always)]
    pub(crate) fn tcp_byte(&self, offset: u32) -> u8 {
        self.bytes[tcp_at(offset)]
    }

    /// Reads a 32-bit number of the TCP header at a variable offset, aligned or not.
    #[inline(always)]
    pub(crate) fn tcp_be32(&self, offset: u32) -> u32 {
        // SAFETY: the mask keeps all four bytes in range: TCP_AT + 63 + 4 < 128.
        u32::from_be(unsafe { self.bytes.as_ptr().add(tcp_at(offset)).cast::<u32>().read_unaligned() })
    }

    /// Writes a 32-bit number at a variable offset of the TCP header.
    #[inline(always)]
    pub(crate) fn set_tcp_be32(&mut self, offset: u32, value: u32) {
        // SAFETY: as in `tcp_be32`.
        unsafe { self.bytes.as_mut_ptr().add(tcp_at(offset)).cast::<u32>().write_unaligned(value.to_be()) }
    }
}

/// Returns the index in [`Headers::bytes`] of a byte of the TCP header; the mask keeps it in range.
#[inline(always)]
const fn tcp_at(offset: u32) -> usize {
    TCP_AT + (offset & 63) as usize
}

/// What `parse` read from the headers. Numbers are in host byte order.
#[repr(C)]
pub(crate) struct Segment {
    /// The source as `client`, the destination as `vip`.
    pub(crate) tuple: ClientTuple,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Length of the TCP header.
    pub(crate) tcp_bytes: u32,
    /// Bytes between the IP header and the TCP header: 0 or [`JUMBO_BYTES`].
    pub(crate) jumbo_bytes: u32,
    /// Offset of the payload in the frame.
    pub(crate) payload_at: u32,
    pub(crate) payload_bytes: u32,
    /// Offset in the TCP header of the timestamp option's first number; 0 = none.
    pub(crate) timestamps_at: u32,
    /// Offset in the TCP header of the first SACK block; 0 = none.
    pub(crate) sack_at: u32,
    pub(crate) sack_blocks: u32,
    pub(crate) tsval: u32,
    pub(crate) window: u16,
    /// MSS option; 0 = none.
    pub(crate) mss: u16,
    pub(crate) flags: u8,
    pub(crate) v4: bool,
    /// Window scale option or `WINDOW_SCALE_NONE`.
    pub(crate) window_scale: u8,
    pub(crate) sack_permitted: bool,
    /// `ROLE_*` bits of the destination.
    pub(crate) role: u8,
    /// Offset in the TCP header of the option that is read next.
    pub(crate) option_at: u8,
}

impl Segment {
    /// Returns the offset of the TCP header in the frame.
    #[inline(always)]
    pub(crate) fn tcp_at(&self) -> u32 {
        // The mask changes nothing, but shows the verifier the range.
        if self.v4 { V4_BYTES } else { V6_BYTES + (self.jumbo_bytes & JUMBO_BYTES) }
    }

    /// Whether all of `flags` are set.
    #[inline(always)]
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Whether the segment is a bare acknowledgement: no payload, no SYN, FIN or RST.
    #[inline(always)]
    pub(crate) fn is_bare(&self) -> bool {
        self.payload_bytes == 0 && self.flags & (SYN | FIN | RST) == 0
    }

    /// Whether the segment opens a new connection.
    #[inline(always)]
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    /// Returns the sequence number after the segment's last byte.
    #[inline(always)]
    pub(crate) fn end(&self) -> u32 {
        let mut end = self.seq.wrapping_add(self.payload_bytes);
        if self.flags & (SYN | FIN) != 0 {
            end = end.wrapping_add(1);
        }
        end
    }
}
