//! Words of eight bytes that several CPUs change at the same time, each by compare-and-exchange.
//!
//! The record of a connection that is over is used again for another one, possibly while a slow CPU still holds a
//! pointer to it. So each word has the connection's generation, or its low half: an exchange that comes too late does
//! not find the word that it expects, and changes nothing.

use super::flow::{RECORD_EMPTY, RECORD_LOCKED, RECORD_OVER};
use crate::wire::seq;

/// A word that is exchanged in one piece.
pub trait Word: Copy + PartialEq {
    /// Returns the word's bits.
    fn bits(self) -> u64;
    /// Makes the word from its bits.
    fn of(bits: u64) -> Self;
    /// Whether the word belongs to the connection with this generation.
    fn belongs_to(self, generation: u32) -> bool;
}

/// Makes a map type a [`Word`]: with the generation's low half or all of it in a field `generation`, or with an expression of word and
/// generation that says whether they belong together.
macro_rules! word {
    ($name:ident, $half:ty) => {
        $crate::maps::word::word!($name, |word, generation| word.generation == generation as $half);
    };
    ($name:ident, |$word:pat_param, $generation:pat_param| $belongs:expr) => {
        impl $crate::maps::word::Word for $name {
            #[inline(always)]
            fn bits(self) -> u64 {
                zerocopy::transmute!(self)
            }

            #[inline(always)]
            fn of(bits: u64) -> Self {
                zerocopy::transmute!(bits)
            }

            #[inline(always)]
            fn belongs_to(self, generation: u32) -> bool {
                let ($word, $generation) = (self, generation);
                $belongs
            }
        }
    };
}
pub(crate) use word;

map_struct! {
    /// The first eight bytes of [`super::flow::Connection`], which has the meaning of the fields.
    pub struct Head = 8 {
        pub generation: u32,
        pub state: u8,
        pub flags: u8,
        pub wrong_cookies: u8,
        pub delivery: u8,
    }
}
word!(Head, u32);

impl Head {
    /// Returns the head of a waiting or half-open connection's record that is over, that nobody holds, and to which nothing
    /// belongs any more.
    #[inline(always)]
    #[must_use]
    pub const fn left(self) -> Self {
        Self { state: RECORD_EMPTY, flags: (self.flags | RECORD_OVER) & !RECORD_LOCKED, ..self }
    }
}

map_struct! {
    /// What an end of a flow sent.
    pub struct Sent = 8 {
        /// Sequence number after its last byte.
        pub next: u32,
        /// The low half of the connection's generation.
        pub generation: u16,
        /// 1: its last byte is a FIN.
        pub fin: u8,
        /// What its handshake agreed on, which does not change: [`Agreed::bits`]. Bit 5, of a backend: its first byte was seen.
        pub agreed: u8,
    }
}
word!(Sent, u16);

impl Sent {
    /// Returns the word after a segment that ends at `end`. Bytes after a FIN prove that the FIN was forged.
    #[inline(always)]
    #[must_use]
    pub const fn extended(mut self, end: u32, fin: bool) -> Self {
        if seq::before(self.next, end) {
            self.next = end;
            self.fin = fin as u8;
        } else if fin && self.next == end {
            self.fin = 1;
        }
        self
    }
}

/// Bit of [`Sent::agreed`]: a segment began with the backend's first byte.
const BEGAN: u8 = 32;

impl Sent {
    /// Returns the word after a segment that began with the backend's first byte, if it did.
    #[inline(always)]
    #[must_use]
    pub const fn began(mut self, first: bool) -> Self {
        self.agreed |= if first { BEGAN } else { 0 };
        self
    }

    /// Whether a segment began with the backend's first byte. Where none did, what was seen lies behind a gap.
    #[inline(always)]
    pub const fn has_first(self) -> bool {
        self.agreed & BEGAN != 0
    }
}

/// What the handshake of an end of a flow agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Its window scale or [`super::flow::WINDOW_SCALE_NONE`]. It is always known: a flow opens only after both handshakes.
    pub scale: u8,
    /// Of a client: `true` if it was given our window scale, and windows are converted between the scales; otherwise
    /// they pass unchanged.
    pub scaled: bool,
    /// Of a client: [`super::flow::DECLINED_TIMESTAMPS`], [`super::flow::DECLINED_SACK`].
    pub declined: u8,
}

impl Agreed {
    /// Only a scale.
    #[inline(always)]
    pub const fn scale(scale: u8) -> Self {
        Self { scale, scaled: false, declined: 0 }
    }

    /// Returns it as [`Sent::agreed`]: bits 0 to 3 are the scale, 4 whether windows are converted, 6 and 7 what was
    /// declined.
    #[inline(always)]
    pub const fn bits(self) -> u8 {
        self.scale & 15 | (self.scaled as u8) << 4 | self.declined << 6
    }
}

impl Sent {
    /// Returns what the handshake agreed on.
    #[inline(always)]
    pub const fn agreed(self) -> Agreed {
        let bits = self.agreed;
        Agreed { scale: bits & 15, scaled: bits & 16 != 0, declined: bits >> 6 }
    }
}

/// Unit of [`Acked::window`], in bytes: the largest window (RFC 7323 section 2.3) fits into 16 bits.
pub const WINDOW_UNIT: u32 = 1 << 14;

map_struct! {
    /// What an end of a flow acknowledged.
    pub struct Acked = 8 {
        /// Its highest acknowledgement number, in the other end's own sequence numbers.
        pub number: u32,
        /// The low half of the connection's generation.
        pub generation: u16,
        /// The largest window that it ever announced, in units of [`WINDOW_UNIT`] bytes, rounded up. No right edge that
        /// it ever announced is further ahead of `number`.
        pub window: u16,
    }
}
word!(Acked, u16);

impl Acked {
    /// Returns the word after an acknowledgement that announces a window of `window` bytes.
    #[inline(always)]
    pub const fn raised(mut self, ack: u32, window: u32) -> Self {
        if seq::before(self.number, ack) {
            self.number = ack;
        }
        let window = units(window);
        if self.window < window {
            self.window = window;
        }
        self
    }
}

/// Returns a window of `bytes` in units of [`WINDOW_UNIT`], rounded up.
#[inline(always)]
pub const fn units(bytes: u32) -> u16 {
    let units = bytes.div_ceil(WINDOW_UNIT);
    if units > u16::MAX as u32 { u16::MAX } else { units as u16 }
}

map_struct! {
    /// The last SYN that arrived for an open flow.
    pub struct SynSeen = 8 {
        /// Its initial sequence number.
        pub isn: u32,
        /// The low half of the connection's generation.
        pub generation: u16,
        /// Monotonic clock when it arrived first, in units of 2^26 ns, which wrap after 73 minutes. 0: none arrived.
        pub time: u16,
    }
}
word!(SynSeen, u16);

/// A SYN is believed when it arrives again after this time: just under a second, the time after which hosts repeat
/// it (RFC 6298 section 2.1). In units of [`SynSeen::time`].
pub const SYN_AGAIN: u16 = 14;
/// A SYN is forgotten after this time, some ten seconds.
pub const SYN_OVER: u16 = 149;

impl SynSeen {
    /// Returns the clock in units of [`SynSeen::time`]; never 0.
    #[inline(always)]
    pub const fn time(now_ns: u64) -> u16 {
        let time = (now_ns >> 26) as u16;
        if time == 0 { 1 } else { time }
    }

    /// Whether the SYN arrived long enough ago to be believed when it arrives again.
    #[inline(always)]
    pub const fn is_repeated(self, isn: u32, time: u16) -> bool {
        let age = time.wrapping_sub(self.time);
        self.time != 0 && self.isn == isn && age >= SYN_AGAIN && age < SYN_OVER
    }

    /// Returns the word after a SYN that is not a repetition. A younger SYN does not push out an older one that may
    /// still be repeated.
    #[inline(always)]
    pub const fn noted(mut self, isn: u32, time: u16) -> Self {
        let age = time.wrapping_sub(self.time);
        if self.time == 0 || age >= SYN_OVER {
            self.isn = isn;
            self.time = time;
        }
        self
    }
}

map_struct! {
    /// The next hops of a flow, as numbers of [`super::next_hop::Hop`], and when they were looked up. Both were looked up in
    /// the same unit of time: the first packet of the next one finds neither.
    pub struct Hops = 8 {
        /// The low half of the connection's generation.
        pub generation: u16,
        /// The low bits of the unit of time.
        pub time: u16,
        /// Bits 0 to 11: towards the client. Bits 12 to 23: towards the backend. 0: not known. Bits 24 to 31: the bits
        /// of the time above `time`, which wraps after 26 days.
        pub numbers: u32,
    }
}
word!(Hops, u16);

/// Bits of a hop's number.
const NUMBER_BITS: u32 = 12;
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;

/// A direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    Client,
    Backend,
}

impl Towards {
    #[inline(always)]
    const fn shift(self) -> u32 {
        match self {
            Self::Client => 0,
            Self::Backend => NUMBER_BITS,
        }
    }
}

impl Hops {
    /// Returns the number that was looked up in this unit of time; 0: none was.
    #[inline(always)]
    pub const fn number(self, age: u32, towards: Towards) -> u32 {
        let numbers = self.numbers ^ age >> 16 << 24;
        // The bits of the time are equal if both differences are zero.
        if self.time == age as u16 && numbers >> 24 == 0 { numbers >> towards.shift() & NUMBER } else { 0 }
    }

    /// Returns the word after a look-up in this unit of time that gave this number; 0: it gave none.
    #[inline(always)]
    pub const fn noted(mut self, age: u32, towards: Towards, number: u32) -> Self {
        let other = match towards {
            Towards::Client => self.number(age, Towards::Backend) << Towards::Backend.shift(),
            Towards::Backend => self.number(age, Towards::Client),
        };
        self.time = age as u16;
        self.numbers = age >> 16 << 24 | other | (number & NUMBER) << towards.shift();
        self
    }
}

map_struct! {
    /// Who took a slot of a ring, and when.
    pub struct Taken = 8 {
        /// The connection's generation; 0: nobody did yet.
        pub generation: u32,
        /// Monotonic clock, seconds.
        pub since_secs: u32,
    }
}
word!(Taken, u32);

map_struct! {
    /// The waiting hellos of a source. Its generation is `epoch`.
    pub struct Waiting = 8 {
        pub waiting: u32,
        /// Another number each time that the count begins at zero: hellos of an older count do not lower this one.
        pub epoch: u32,
    }
}

word!(Waiting, |word, generation| word.epoch == generation);

impl Waiting {
    /// Returns the word after one more, or one fewer.
    #[inline(always)]
    pub const fn raised(mut self) -> Self {
        self.waiting = self.waiting.saturating_add(1);
        self
    }

    /// See [`Self::raised`].
    #[inline(always)]
    pub const fn lowered(mut self) -> Self {
        self.waiting = self.waiting.saturating_sub(1);
        self
    }
}
