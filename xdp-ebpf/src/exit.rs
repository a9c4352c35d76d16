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
    /// Its sender is to be told by ICMP: `path` has `tell` do it and leaves with the result.
    Tell,
}

/// A way off the path: the one reason that is counted, and the verdict. One number, so that it crosses the border of
/// separately verified functions.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Exit(u32);

/// Code of "no exit": go on.
const GO_ON: u32 = u32::MAX;

impl Exit {
    /// Hands the packet on.
    #[inline(always)]
    pub(crate) const fn next(reason: Reason) -> Self {
        Self(reason as u32)
    }

    /// Drops the packet.
    #[inline(always)]
    pub(crate) const fn drop(reason: Reason) -> Self {
        Self(reason as u32 | 1 << 8)
    }

    /// The packet, or what was made of it, is on its way.
    #[inline(always)]
    pub(crate) const fn sent(reason: Reason) -> Self {
        Self(reason as u32 | 2 << 8)
    }

    /// The client gets a RST.
    #[inline(always)]
    pub(crate) const fn reset(reason: Reason) -> Self {
        Self(reason as u32 | 3 << 8)
    }

    /// The sender of a TCP segment that could not be passed on gets an ICMP error.
    #[inline(always)]
    pub(crate) const fn tell(reason: Reason) -> Self {
        Self(reason as u32 | 4 << 8)
    }

    /// [`Exit::code`] of [`Exit::sent`] for a reason given as a number.
    #[inline(always)]
    pub(crate) const fn sent_code(reason: u32) -> u32 {
        reason | 2 << 8
    }

    /// The same reason, and no answer.
    #[inline(always)]
    pub(crate) const fn dropped(self) -> Self {
        Self(self.reason() | 1 << 8)
    }

    /// Number of the reason.
    #[inline(always)]
    pub(crate) const fn reason(self) -> u32 {
        self.0 & 0x7f
    }

    /// The verdict.
    #[inline(always)]
    pub(crate) const fn verdict(self) -> Verdict {
        match self.0 >> 8 {
            0 => Verdict::Next,
            2 => Verdict::Redirect,
            3 => Verdict::Reset,
            4 => Verdict::Tell,
            _ => Verdict::Drop,
        }
    }

    /// As a number for the border of a separately verified function.
    #[inline(always)]
    pub(crate) const fn code(result: Result<(), Self>) -> u32 {
        match result {
            Ok(()) => GO_ON,
            Err(exit) => exit.0,
        }
    }

    /// From a number of [`Exit::code`].
    #[inline(always)]
    pub(crate) const fn from_code(code: u32) -> Result<(), Self> {
        if code == GO_ON { Ok(()) } else { Err(Self(code)) }
    }
}

/// Counts the exit and says it in the kernel's words. The only place that knows them.
#[inline(always)]
pub(crate) fn leave(exit: Exit) -> i32 {
    maps::count(exit.reason());
    match exit.verdict() {
        Verdict::Next => TCX_NEXT,
        Verdict::Drop | Verdict::Reset | Verdict::Tell => TC_ACT_SHOT,
        Verdict::Redirect => TC_ACT_REDIRECT,
    }
}
