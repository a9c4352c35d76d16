//! Ways off the path, and their one translation into what the kernel wants to hear.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, tcx_action_base::TCX_NEXT};
use common::reason::Reason;

use crate::maps;

/// What becomes of the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The next program, then the node's own stack.
    Next,
    /// Nothing more.
    Drop,
    /// Out of the device that `emit` chose.
    Redirect,
    /// To be answered with RST: `path` has `emit` do it and leaves with the result.
    Reset,
    /// Its sender is to get an ICMP error: `path` has `icmp_error` make it and leaves with the result.
    IcmpError,
}

/// A way off the path: the one reason that is counted, and the verdict. One number, so that it crosses the border of
/// separately verified functions.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Exit(u32);

/// Bits of a reason (`REASONS_MAX`); the verdict stands above them.
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

    /// The packet, or what was made of it, is on its way.
    #[inline(always)]
    pub(crate) const fn sent(reason: Reason) -> Self {
        Self(reason as u32 | SENT)
    }

    /// The client gets a RST.
    #[inline(always)]
    pub(crate) const fn reset(reason: Reason) -> Self {
        Self(reason as u32 | RESET)
    }

    /// What a decision's reason comes to: the client gets a RST, unless it is to repeat.
    #[inline(always)]
    pub(crate) const fn refused(reason: Reason) -> Self {
        match reason {
            Reason::RouteChanged => Self::drop(reason),
            _ => Self::reset(reason),
        }
    }

    /// The sender of a TCP segment that could not be passed on gets an ICMP error.
    #[inline(always)]
    pub(crate) const fn icmp_error(reason: Reason) -> Self {
        Self(reason as u32 | ICMP_ERROR)
    }

    /// [`Exit::sent`] for a reason given as a number.
    #[inline(always)]
    pub(crate) const fn sent_for(reason: u32) -> Self {
        Self(reason & REASON_MASK | SENT)
    }

    /// The same reason, and no answer.
    #[inline(always)]
    pub(crate) const fn dropped(self) -> Self {
        Self(self.reason() | DROP)
    }

    /// Number of the reason.
    #[inline(always)]
    pub(crate) const fn reason(self) -> u32 {
        self.0 & REASON_MASK
    }

    /// The verdict.
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

    /// As a number for the border of a separately verified function.
    #[inline(always)]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// From a number of [`Exit::number`].
    #[inline(always)]
    pub(crate) const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Counts the exit and says it in the kernel's words. The only place that knows them.
#[inline(always)]
pub(crate) fn leave(exit: Exit) -> i32 {
    maps::count(exit.reason());
    match exit.verdict() {
        Verdict::Next => TCX_NEXT,
        Verdict::Drop | Verdict::Reset | Verdict::IcmpError => TC_ACT_SHOT,
        Verdict::Redirect => TC_ACT_REDIRECT,
    }
}
