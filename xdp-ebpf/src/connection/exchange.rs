//! Changes of the words that several CPUs change at the same time. Each change is made completely or not at all, and only
//! in the record of the connection that has the given generation.

use common::maps::flow::{Connection, FLOW_ENDING, FLOW_RESET, RECORD_LOCKED, RECORD_OVER};
use common::maps::word::{Acked, Head, Sent, SynSeen, Word};

use crate::atomic;
use crate::verified::verified;

/// Bits of [`Head`] behind the generation, as [`mark`] takes and returns them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks(u32);

impl Marks {
    /// No bits.
    pub(crate) const NONE: Self = Self(0);

    /// These bits of the state.
    #[inline(always)]
    pub(crate) const fn state(bits: u8) -> Self {
        Self(bits as u32)
    }

    /// These flags.
    #[inline(always)]
    pub(crate) const fn flags(bits: u8) -> Self {
        Self((bits as u32) << 8)
    }

    /// These bits of the wrong cookies.
    #[inline(always)]
    pub(crate) const fn wrong_cookies(bits: u8) -> Self {
        Self((bits as u32) << 16)
    }

    /// Returns the state.
    #[inline(always)]
    pub(crate) const fn its_state(self) -> u8 {
        self.0 as u8
    }

    /// Returns the flags.
    #[inline(always)]
    pub(crate) const fn its_flags(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

/// Sets and clears bits of state and flags of a record; returns what they were before. `None`: the record belongs to
/// another connection now, and was not changed.
#[inline(always)]
pub(crate) fn mark(connection: &mut Connection, generation: u32, set: Marks, clear: Marks) -> Option<Marks> {
    // A record always has a state.
    match exchange(atomic::head(connection), generation, set.0, clear.0) {
        0 => None,
        was => Some(Marks(was)),
    }
}

verified! {
    /// Exchanges the bits of a record's head that are behind its generation. Returns what they were; 0: not changed.
    fn exchange as exchange_mark(head: Head; generation: u32, set: u32, clear: u32) -> u32 {
        let marked = |was: u64| (was & !(u64::from(clear) << 32)) | u64::from(set) << 32;
        atomic::change(head, generation, marked).map_or(0, |was| (was >> 32) as u32)
    }
}

verified! {
    /// Unlocks a record with this state and delivery, unless it is over: then it stays locked. Returns its flags as they were
    /// before; 0: not changed.
    pub(crate) fn unlock as exchange_unlock(head: Head; generation: u32, state: u32, delivery: u32) -> u32 {
        let unlocked = |was: u64| {
            let mut head = Head::of(was);
            if head.flags & RECORD_OVER == 0 {
                head.flags &= !RECORD_LOCKED;
                head.state = state as u8;
                // Known only with the backend, after the record was stored.
                head.delivery = delivery as u8;
            }
            head.bits()
        };
        atomic::change(head, generation, unlocked).map_or(0, |was| Head::of(was).flags.into())
    }
}

/// Ends a flow, with state `FLOW_RESET`, if it has all flags `needs` in the very word that is replaced. Returns what its bits were
/// before. `None`: it misses a flag, or the record belongs to another connection now, and was not changed.
#[inline(always)]
pub(crate) fn end(connection: &mut Connection, generation: u32, needs: u8) -> Option<Marks> {
    match end_with(atomic::head(connection), generation, needs.into()) {
        0 => None,
        was => Some(Marks(was)),
    }
}

verified! {
    /// Exchanges the head of a flow that ends. Returns the bits behind its generation as they were; 0: not changed.
    fn end_with as exchange_end(head: Head; generation: u32, needs: u32) -> u32 {
        let needs = needs as u8;
        let has_all = |was: u64| Head::of(was).flags & needs == needs;
        let ended = |was: u64| {
            let head = Head::of(was);
            let over = Head { state: head.state | FLOW_RESET, flags: head.flags & !FLOW_ENDING, ..head };
            if has_all(was) { over.bits() } else { was }
        };
        atomic::change(head, generation, ended).filter(|was| has_all(*was)).map_or(0, |was| (was >> 32) as u32)
    }
}

verified! {
    /// Raises what an end acknowledged; `false`: the record belongs to another connection now.
    pub(crate) fn raise as exchange_raise(acked: Acked; generation: u32, ack: u32, window: u32) -> bool {
        atomic::change(acked, generation, |was| Acked::of(was).raised(ack, window).bits()).is_some()
    }
}

verified! {
    /// Extends what an end sent; `false`: the record belongs to another connection now.
    pub(crate) fn extend as exchange_extend(sent: Sent; generation: u32, end: u32, fin: u32, first: u32) -> bool {
        let extended = |was| Sent::of(was).extended(end, fin != 0).began(first != 0).bits();
        atomic::change(sent, generation, extended).is_some()
    }
}

verified! {
    /// Notes a SYN; `true` when it is the repetition of the one noted before.
    pub(crate) fn note_syn as exchange_note_syn(syn: SynSeen; generation: u32, isn: u32, time: u32) -> bool {
        let time = time as u16;
        let noted = |was| {
            let was = SynSeen::of(was);
            if was.is_repeated(isn, time) { was.bits() } else { was.noted(isn, time).bits() }
        };
        atomic::change(syn, generation, noted).is_some_and(|was| SynSeen::of(was).is_repeated(isn, time))
    }
}
