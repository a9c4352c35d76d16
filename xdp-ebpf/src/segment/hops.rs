//! The next hops that flows name by number: used, found again, and stored (`common::maps::next_hop`).

use common::maps::flow::{FLOW_FRAGMENTED, Flow};
use common::maps::next_hop::{self, HOPS, Hop, HopHead, SLOTS, Way, content, stored};
use common::maps::word::{Hops, Towards, Word};

use crate::atomic;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ETH_BYTES, Headers};
use crate::scratch::{Draft, Received};
use crate::verified::{Code, verified};

/// What a packet knows of the next hop from its flow; kept in `Received::hop`. 0: nothing, as it is of no flow.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct FlowHop(u32);

/// Bit 16: towards the client; bit 17: towards the backend; bit 18: routers may fragment it; bit 19: the backend believes of all
/// clients what it learns of the path to this one. Bits 0 to 15: the number of the hop, or 0.
const TO_CLIENT: u32 = 1 << 16;
const TO_BACKEND: u32 = 1 << 17;
const FRAGMENTED: u32 = 1 << 18;
const SHARED: u32 = 1 << 19;
const NUMBER: u32 = 0xffff;

impl FlowHop {
    /// The packet is of no flow, or not known to be of one.
    pub(crate) const NONE: Self = Self(0);

    /// What the flow of the packet in hand knows.
    #[inline(always)]
    pub(crate) fn of(received: &Received, flow: &Flow, towards: Towards) -> Self {
        let hops = atomic::word(&flow.hops);
        let fragmented = flow.connection.flags & FLOW_FRAGMENTED != 0;
        let bit = match towards {
            Towards::Client if fragmented => TO_CLIENT | FRAGMENTED,
            Towards::Client => TO_CLIENT,
            Towards::Backend => TO_BACKEND,
        };
        match hops.belongs_to(received.generation) {
            true => Self(bit | hops.number(next_hop::age(received.now_ns), towards)),
            false => Self(bit),
        }
    }

    /// The same of a packet to a client whose backend believes of all clients what it learns of the path to this one.
    #[inline(always)]
    pub(crate) fn shared(self, shared: bool) -> Self {
        if shared { Self(self.0 | SHARED) } else { self }
    }
}

/// Whether routers on the path to the client may fragment the packet in hand.
#[inline(always)]
pub(super) fn may_be_fragmented(received: &Received) -> bool {
    received.hop.0 & FRAGMENTED != 0
}

/// Whether the packet in hand goes to a client, and its backend believes of all clients what it learns of the path to this one.
#[inline(always)]
pub(super) fn is_about_all(received: &Received) -> bool {
    received.hop.0 & SHARED != 0
}

/// Whether the hop that the packet's flow names may be used: it is then in the headers and the draft.
#[inline(always)]
pub(super) fn take(received: &mut Received, draft: &mut Draft, ip_bytes: u32, ingress: u32) -> bool {
    let number = received.hop.0 & NUMBER;
    if number == 0 {
        return false;
    }
    let Some(hop) = maps::hop(number) else { return false };
    let head = atomic::word(&hop.head);
    let [to, from, out, came] = read(hop);
    let (Some(to), Some(from), Some(out), Some(came)) = (
        content(to, head.version),
        content(from, head.version),
        content(out, head.version),
        content(came, head.version),
    ) else {
        return false;
    };
    if head.confirmed != next_hop::age(received.now_ns)
        || head.version == 0
        || came as u32 != ingress
        || ip_bytes > (out >> 32) as u32
    {
        return false;
    }
    draft.route.ifindex = out as u32;
    let v4 = received.segment.v4;
    write_link(&mut received.headers, v4, to, from);
    true
}

/// Writes the link header: addresses as in [`Way`].
#[inline(always)]
pub(super) fn write_link(h: &mut Headers, v4: bool, to: u64, from: u64) {
    let at = if v4 { Headers::V4 } else { Headers::V6 } - ETH_BYTES as usize;
    h.set_link_word(at, to);
    h.set_link_word(at + 6, from);
    h.set_be16(at + 12, if v4 { 0x0800 } else { 0x86dd });
}

/// Reads the parts of a hop, each in one piece.
#[inline(always)]
fn read(hop: &Hop) -> [u64; 4] {
    let [a, b, c, d] = &hop.parts;
    [atomic::read_long(a), atomic::read_long(b), atomic::read_long(c), atomic::read_long(d)]
}

/// What [`store`] returns: the number of the hop, 0 if there was no room; and whether the packet in hand has to be sent
/// by the kernel's neighbour entry, because no packet of this unit of time was.
#[derive(Clone, Copy)]
pub(super) struct Stored(u32);

const ASK: u32 = 1 << 16;

impl Stored {
    #[inline(always)]
    pub(super) const fn must_ask(self) -> bool {
        self.0 & ASK != 0
    }
}

impl Code for Stored {
    #[inline(always)]
    fn code(self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        Self(code)
    }
}

/// Stores the hop that this packet looked up; nothing, if it looked up none.
#[inline(always)]
pub(super) fn store_looked_up(skb: Skb, received: &Received, draft: &mut Draft) -> Stored {
    if draft.looked_up { store(draft, skb.ifindex(), next_hop::age(received.now_ns)) } else { Stored(0) }
}

verified! {
    /// Finds or stores the hop that the look-up in the draft's route gave.
    fn store as hops_store(draft: Draft; ingress: u32, age: u32) -> Stored {
        stored_at(&kernel::way(&draft.route, ingress), age)
    }
}

#[inline(always)]
fn stored_at(way: &Way, age: u32) -> Stored {
    let (parts, first) = (way.parts(), way.slot());
    let (mut free, mut tried) = (0, 0);
    // Not known to the compiler, which would unroll the loop; the verifier does know it.
    let slots = core::hint::black_box(u64::from(SLOTS));
    while u64::from(tried) < slots {
        let number = (first + tried) & (HOPS - 1);
        tried += 1;
        // No flow can name the first element.
        if number == 0 {
            continue;
        }
        let Some(hop) = maps::hop(number) else { break };
        let head = atomic::word(&hop.head);
        if is_of(hop, &parts, head.version) {
            return confirm(hop, head, number, age);
        }
        if free == 0 && head.is_free(age) {
            free = number;
        }
    }
    if free == 0 { Stored(ASK) } else { fill(free, &parts, age) }
}

verified! {
    /// Whether a packet of this unit of time stored or confirmed the hop that the look-up in the draft's route gave.
    pub(super) fn is_confirmed as hops_confirmed(draft: Draft; ingress: u32, age: u32) -> bool {
        let way = kernel::way(&draft.route, ingress);
        let (parts, first) = (way.parts(), way.slot());
        let mut tried = 0;
        // As in `stored_at`.
        let slots = core::hint::black_box(u64::from(SLOTS));
        while u64::from(tried) < slots {
            let number = (first + tried) & (HOPS - 1);
            tried += 1;
            let Some(hop) = maps::hop(number) else { break };
            let head = atomic::word(&hop.head);
            if number != 0 && is_of(hop, &parts, head.version) {
                return head.confirmed == age;
            }
        }
        false
    }
}

/// Whether the element has this content, in this version.
#[inline(always)]
fn is_of(hop: &Hop, parts: &[u64; 4], version: u16) -> bool {
    let found = read(hop);
    version != 0
        && found[0] == stored(parts[0], version)
        && found[1] == stored(parts[1], version)
        && found[2] == stored(parts[2], version)
        && found[3] == stored(parts[3], version)
}

/// Notes that a look-up found the hop. The first one of each unit of time asks for the neighbour.
#[inline(always)]
fn confirm(hop: &mut Hop, head: HopHead, number: u32, age: u32) -> Stored {
    // A CPU whose clock is behind changes nothing.
    if head.confirmed.wrapping_sub(age) as i32 >= 0 {
        return Stored(number);
    }
    match atomic::replace(&mut hop.head, head, HopHead { confirmed: age, ..head }) {
        true => Stored(number | ASK),
        // Another CPU did it at this moment, or the element has other content now: the next packet looks again.
        false => Stored(0),
    }
}

/// Takes the element for this content.
#[inline(always)]
fn fill(number: u32, parts: &[u64; 4], age: u32) -> Stored {
    let Some(hop) = maps::hop(number) else { return Stored(ASK) };
    let head = atomic::word(&hop.head);
    let next = head.next(age);
    if !head.is_free(age) || !atomic::replace(&mut hop.head, head, next) {
        return Stored(ASK);
    }
    // From here on, nobody believes the old content, and nobody the new one before all of it is there.
    let [a, b, c, d] = &mut hop.parts;
    atomic::write_long(a, stored(parts[0], next.version));
    atomic::write_long(b, stored(parts[1], next.version));
    atomic::write_long(c, stored(parts[2], next.version));
    atomic::write_long(d, stored(parts[3], next.version));
    Stored(number | ASK)
}

/// Gives the flow of the packet in hand the hop that the packet looked up.
#[inline(always)]
pub(super) fn keep(received: &mut Received, found: Stored) {
    if received.hop != FlowHop::NONE {
        let age = next_hop::age(received.now_ns);
        note(received, found.0 & NUMBER, age);
    }
}

verified! {
    /// Gives the packet's flow the number of a hop.
    fn note as hops_note(received: Received; number: u32, age: u32) -> () {
        let towards = if received.hop.0 & TO_CLIENT != 0 { Towards::Client } else { Towards::Backend };
        if let Some(flow) = maps::flow(&received.client) {
            let noted = |was| Hops::of(was).noted(age, towards, number).bits();
            atomic::change(&mut flow.hops, received.generation, noted);
        }
    }
}
