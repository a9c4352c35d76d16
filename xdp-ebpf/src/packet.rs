//! A packet's headers, and what was read from them.

use common::maps::address::{Address, Port};
use common::maps::flow::ClientTuple;

/// Bytes of an Ethernet header.
pub(crate) const ETH_BYTES: u32 = 14;
/// Bytes of the headers before TCP in an IPv4 frame (options are refused).
pub(crate) const V4_BYTES: u32 = 34;
/// Bytes of the headers before TCP in an IPv6 frame (extension headers are refused).
pub(crate) const V6_BYTES: u32 = 54;
/// Most bytes of a TCP header.
pub(crate) const TCP_BYTES_MAX: u32 = 60;

/// TCP flags (RFC 9293 section 3.1).
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// Where headers stand in [`Headers`]: TCP at one place for both families, addresses and TCP fields aligned.
pub(crate) const TCP_AT: usize = 56;
const V4_FRAME_AT: usize = TCP_AT - V4_BYTES as usize;
const V6_FRAME_AT: usize = TCP_AT - V6_BYTES as usize;
const V4_AT: usize = V4_FRAME_AT + ETH_BYTES as usize;
const V6_AT: usize = V6_FRAME_AT + ETH_BYTES as usize;

/// Ethernet, IP and TCP header of a frame, as on the wire.
#[repr(C, align(8))]
pub(crate) struct Headers {
    /// The frame begins at 22 (IPv4) or 2 (IPv6); TCP at [`TCP_AT`].
    pub(crate) bytes: [u8; 128],
}

impl Headers {
    /// Offset of the IPv4 header.
    pub(crate) const V4: usize = V4_AT;
    /// Offset of the IPv6 header.
    pub(crate) const V6: usize = V6_AT;

    /// First byte of the frame.
    #[inline(always)]
    pub(crate) fn frame(&mut self, v4: bool) -> *mut u8 {
        let at = if v4 { V4_FRAME_AT } else { V6_FRAME_AT };
        // SAFETY: both offsets lie inside `bytes`.
        unsafe { self.bytes.as_mut_ptr().add(at) }
    }

    /// The 16-bit number at an even offset.
    #[inline(always)]
    pub(crate) fn be16(&self, at: usize) -> u16 {
        debug_assert!(at.is_multiple_of(2) && at < 126);
        // SAFETY: in range and aligned: callers pass constants; `bytes` is aligned to 8.
        u16::from_be(unsafe { self.bytes.as_ptr().add(at).cast::<u16>().read() })
    }

    /// The 32-bit number at an offset divisible by 4.
    #[inline(always)]
    pub(crate) fn be32(&self, at: usize) -> u32 {
        debug_assert!(at.is_multiple_of(4) && at < 124);
        // SAFETY: as in `be16`.
        u32::from_be(unsafe { self.bytes.as_ptr().add(at).cast::<u32>().read() })
    }

    /// The 32 bits at an offset divisible by 4, as they lie in memory.
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

    /// The port at an even offset.
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
        // SAFETY: in range: callers pass constants.
        unsafe { self.bytes.as_mut_ptr().add(at).cast::<[u8; 6]>().write(*link) }
    }

    /// The address at an offset divisible by 4 (IPv4: 4 bytes, IPv6: 16).
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

    /// Byte of the TCP header at a variable offset; the mask keeps it inside.
    #[inline(always)]
    pub(crate) fn tcp_byte(&self, offset: u32) -> u8 {
        self.bytes[tcp_at(offset)]
    }

    /// 32-bit number of the TCP header at a variable offset, aligned or not.
    #[inline(always)]
    pub(crate) fn tcp_be32(&self, offset: u32) -> u32 {
        // SAFETY: the mask keeps all four bytes inside: TCP_AT + 63 + 4 < 128.
        u32::from_be(unsafe { self.bytes.as_ptr().add(tcp_at(offset)).cast::<u32>().read_unaligned() })
    }

    /// Writes a 32-bit number at a variable offset of the TCP header.
    #[inline(always)]
    pub(crate) fn set_tcp_be32(&mut self, offset: u32, value: u32) {
        // SAFETY: as in `tcp_be32`.
        unsafe { self.bytes.as_mut_ptr().add(tcp_at(offset)).cast::<u32>().write_unaligned(value.to_be()) }
    }
}

/// Place of a byte of the TCP header, kept inside.
#[inline(always)]
const fn tcp_at(offset: u32) -> usize {
    TCP_AT + (offset & 63) as usize
}

/// What `parse` read from the headers. Numbers in host byte order.
#[repr(C)]
pub(crate) struct Segment {
    /// Source as `client`, destination as `vip`.
    pub(crate) tuple: ClientTuple,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Bytes of the TCP header.
    pub(crate) tcp_bytes: u32,
    /// Offset of the payload in the frame.
    pub(crate) payload_at: u32,
    pub(crate) payload_bytes: u32,
    /// Offset of the timestamp option's first number in the TCP header; 0 = none.
    pub(crate) timestamps_at: u32,
    /// Offset of the first SACK block in the TCP header; 0 = none.
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
}

impl Segment {
    /// Whether all of `flags` are set.
    #[inline(always)]
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Whether it is an acknowledgement and nothing else.
    #[inline(always)]
    pub(crate) fn is_bare(&self) -> bool {
        self.payload_bytes == 0 && self.flags & (SYN | FIN | RST) == 0
    }

    /// Whether it asks for a new connection.
    #[inline(always)]
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    /// Sequence number behind the segment.
    #[inline(always)]
    pub(crate) fn end(&self) -> u32 {
        let mut end = self.seq.wrapping_add(self.payload_bytes);
        if self.flags & (SYN | FIN) != 0 {
            end = end.wrapping_add(1);
        }
        end
    }
}
