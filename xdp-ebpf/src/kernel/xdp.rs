//! The frame in hand when XDP runs us, before the kernel has made a packet of it: reads, writes and resizes it. Nothing here
//! decides anything.

use aya_ebpf::bindings::{bpf_fib_lookup as FibParams, xdp_md};
use aya_ebpf::helpers::generated as helper;

use super::{Context, Packet};

/// The frame as the kernel passes it to us. Valid for the whole run of the program.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Xdp(*mut xdp_md);

impl Context for Xdp {
    type Raw = xdp_md;

    #[inline(always)]
    fn of(raw: *mut xdp_md) -> Self {
        Self(raw)
    }

    #[inline(always)]
    fn raw(self) -> *mut xdp_md {
        self.0
    }
}

impl Packet for Xdp {
    #[inline(always)]
    fn length(self) -> u32 {
        // SAFETY: the kernel passes a valid context.
        unsafe { helper::bpf_xdp_get_buff_len(self.0) as u32 }
    }

    #[inline(always)]
    fn load(self, offset: u32, to: *mut u8, length: u32) -> bool {
        // SAFETY: the verifier proves that `to` has room for `length` bytes; the helper checks the frame's end.
        unsafe { helper::bpf_xdp_load_bytes(self.0, offset, to.cast(), length) == 0 }
    }

    #[inline(always)]
    fn find_route(self, params: &mut FibParams) -> i64 {
        // SAFETY: `params` has the size given.
        unsafe { helper::bpf_fib_lookup(self.0.cast(), params, size_of::<FibParams>() as i32, 0) }
    }
}

impl Xdp {
    /// Returns the first `N` bytes, if they are in the first piece of the frame.
    #[inline(always)]
    pub(crate) fn head<const N: usize>(self) -> Option<&'static [u8; N]> {
        // SAFETY: the kernel passes a valid context, which has the frame's addresses as 32-bit fields; the verifier makes them
        // pointers, and checks that nothing beyond the end is read.
        unsafe {
            let (begin, end) = ((*self.0).data as usize, (*self.0).data_end as usize);
            if begin + N > end { None } else { Some(&*(begin as *const [u8; N])) }
        }
    }

    /// Returns the device that the frame came in on.
    #[inline(always)]
    pub(crate) fn ifindex(self) -> u32 {
        // SAFETY: the kernel passes a valid context; the verifier checks each field access.
        unsafe { (*self.0).ingress_ifindex }
    }

    /// Copies `length` bytes from `from` to the start of the frame.
    #[inline(always)]
    pub(crate) fn store(self, from: *mut u8, length: u32) -> bool {
        // SAFETY: as in `load`.
        unsafe { helper::bpf_xdp_store_bytes(self.0, 0, from.cast(), length) == 0 }
    }

    /// Makes the frame longer by this many bytes, or shorter. If it has no room behind it, it stays as it is.
    #[inline(always)]
    pub(crate) fn resize(self, by: i32) -> bool {
        // SAFETY: the helper checks the frame's room.
        unsafe { helper::bpf_xdp_adjust_tail(self.0, by) == 0 }
    }
}
