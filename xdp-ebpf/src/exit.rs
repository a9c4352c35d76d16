//! How packets leave the path, and the only translation into the kernel's return codes.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, tcx_action_base::TCX_NEXT, xdp_action};
use common::reason::Reason;

use crate::maps;

/// What happens to the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Handed on to the next program, then to the node's own stack.
    Next,
    /// Dropped without an answer.
    Drop,
    /// Sent out of the device that `emit` chose.
    Redirect,
    /// Answered with RST: `path` has `emit` do it and leaves with the result.
    Reset,
    /// Its sender gets an ICMP error: `path` has `icmp_error` make it and leaves with the result.
    IcmpError,
}

/// How a packet leaves the path: the one reason that is counted, and the verdict. It is one number, so that
/// separately verified functions can pass it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Exit(u32);

/// Bits of a reason (`REASONS_MAX`); the verdict is in the bits above them.
const REASON_BITS: u32 = 8;
const REASON_MASK: u32 = (1 << REASON_BITS) - 1;
const _: () = assert!(common::reason::REASONS_MAX == 1 << REASON_BITS, "every reason fits into an exit");

const DROP: u32 = 1 << REASON_BITS;
const SENT: u32 = 2 << REASON_BITS;
const RESET: u32 = 3 << REASON_BITS;
const ICMP_ERROR: u32 = 4 << REASON_BITS;

impl Exit {
    /// Hands the packet on.
    #[inline(always)]
    pub(crate) const fn next(reason: Reason) -> Self {
        Self(reason as u32)
    }

    /// Drops the packet.
    #[inline(always)]
    pub(crate) const fn drop(reason: Reason) -> Self {
        Self(reason as u32 | DROP)
    }

    /// The packet, or what was made of it, is sent.
    #[inline(always)]
    pub(crate) const fn sent(reason: Reason) -> Self {
        Self(reason as u32 | SENT)
    }

    /// Resets the client.
    #[inline(always)]
    pub(crate) const fn reset(reason: Reason) -> Self {
        Self(reason as u32 | RESET)
    }

    /// Refuses for a reason of the decision: resets the client or, when it should repeat the packet, drops it.
    #[inline(always)]
    pub(crate) const fn refused(reason: Reason) -> Self {
        match reason {
            Reason::RouteChanged => Self::drop(reason),
            _ => Self::reset(reason),
        }
    }

    /// Sends an ICMP error to the sender of a TCP segment that could not be passed on.
    #[inline(always)]
    pub(crate) const fn icmp_error(reason: Reason) -> Self {
        Self(reason as u32 | ICMP_ERROR)
    }

    /// Like [`Exit::sent`], for a reason given as a number.
    #[inline(always)]
    pub(crate) const fn sent_for(reason: u32) -> Self {
        Self(reason & REASON_MASK | SENT)
    }

    /// Returns the number of the reason.
    #[inline(always)]
    pub(crate) const fn reason(self) -> u32 {
        self.0 & REASON_MASK
    }

    /// Returns the verdict.
    #[inline(always)]
    pub(crate) const fn verdict(self) -> Verdict {
        match self.0 >> REASON_BITS {
            0 => Verdict::Next,
            2 => Verdict::Redirect,
            3 => Verdict::Reset,
            4 => Verdict::IcmpError,
            _ => Verdict::Drop,
        }
    }

    /// Returns the exit as a number, to pass it between separately verified functions.
    #[inline(always)]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Makes an exit from a number of [`Exit::number`].
    #[inline(always)]
    pub(crate) const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Counts the exit and returns the kernel's code for it. Only this function uses those codes.
#[inline(always)]
pub(crate) fn leave(exit: Exit) -> i32 {
    maps::count(exit.reason());
    match exit.verdict() {
        Verdict::Next => TCX_NEXT,
        Verdict::Drop | Verdict::Reset | Verdict::IcmpError => TC_ACT_SHOT,
        Verdict::Redirect => TC_ACT_REDIRECT,
    }
}

/// The same for XDP. A frame that passes is not counted: TCX counts it.
#[inline(always)]
pub(crate) fn leave_xdp(exit: Option<Exit>) -> u32 {
    let Some(exit) = exit else { return xdp_action::XDP_PASS };
    maps::count(exit.reason());
    match exit.verdict() {
        Verdict::Redirect => xdp_action::XDP_TX,
        _ => xdp_action::XDP_DROP,
    }
}
