//! Invariants of flows: what a packet may teach one, what may end one, and that it leaves all others as they are. Windows are
//! calculated here once more, by the documented rules (ARCHITECTURE.md, "Strangers").

use ::tests::packet::flag::{ACK, FIN, RST, SYN};
use ::tests::program::Programs;
use common::maps::flow::{
    BackendTuple, ClientTuple, End, FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_CLOSED, FLOW_ENDING,
    FLOW_ESTABLISHED, FLOW_FRAGMENTED, FLOW_PROBED, FLOW_RESET, FLOW_SYN_SEEN, FLOW_UNDELIVERED, Flow,
    Pending,
};
use common::maps::name;
use common::reason::Reason;
use std::collections::BTreeMap;

use super::hosts::{self, Ends};
use super::said::{Said, Side};

/// Flows are made so much older before a packet, in seconds, that one which shows life changes the time, however soon it comes.
const AGE: u32 = 7;
/// Unit of the largest window that an end announced, in bytes.
const UNIT: i64 = 16_384;
/// A window scale that says that the end does not scale.
const UNSCALED: u8 = 15;
/// Bit beside a backend's window scale: its first byte was seen.
const FIRST_SEEN: u8 = 32;

/// How far a number is ahead of another one; less than zero: behind it.
fn distance(from: u32, to: u32) -> i64 {
    i64::from(to.wrapping_sub(from) as i32)
}

/// A window in bytes, as this end announces it.
fn scaled(window: u16, end: &End) -> i64 {
    let scale = end.sent.agreed & 15;
    i64::from(window) << if scale == UNSCALED { 0 } else { scale.min(14) }
}

/// A packet, and the flows before it.
#[derive(Debug)]
pub struct Before {
    flows: BTreeMap<ClientTuple, Flow>,
    /// What the packet says; `None`: it is no TCP segment.
    said: Option<Said>,
    /// The connection that it belongs to, and the end that sent it.
    owner: Option<(ClientTuple, Side)>,
    /// The number behind the bytes that the backend still misses and the client need not repeat, if they are kept.
    undelivered_until: Option<u32>,
}

impl Before {
    /// Reads all flows, and makes them older. `holder` returns the connection that has a port to a backend.
    pub fn new(
        programs: &mut Programs,
        frame: &[u8],
        holder: impl Fn(&Programs, &BackendTuple) -> Option<Ends>,
    ) -> Self {
        let mut flows: BTreeMap<ClientTuple, Flow> = programs.entries(name::FLOWS).into_iter().collect();
        for (client, flow) in &mut flows {
            flow.seen_secs = flow.seen_secs.wrapping_sub(AGE);
            programs.insert(name::FLOWS, *client, *flow);
        }
        let said = Said::read(frame);
        let owner = said.and_then(|said| said.owner(|tuple| holder(programs, tuple)));
        let hello = owner.and_then(|(client, _)| programs.entry::<_, Pending>(name::PENDING, client));
        let until = |hello: Pending| hello.isn.wrapping_add(1).wrapping_add(hello.acked);
        Self { flows, said, owner, undelivered_until: hello.map(until) }
    }

    /// Checks what became of the flows. `reason` is the packet's own.
    pub fn check(&self, after: &BTreeMap<ClientTuple, Flow>, reason: Reason) {
        for (client, was) in &self.flows {
            let segment = self.said.zip(self.owner).filter(|(_, (owner, _))| owner == client);
            match (same(was, after.get(client)), segment) {
                (None, segment) => may_go(was, segment.map(|(said, (_, side))| (said, side))),
                (Some(now), None) => self.is_untouched(was, now),
                (Some(now), Some((said, (_, side)))) => {
                    let until = self.undelivered_until;
                    Heard { was, now, said, side, until, reason }.check();
                }
            }
        }
    }

    /// Checks a flow that the packet does not belong to. Only an ICMP error may be about it: that the path is narrow.
    fn is_untouched(&self, was: &Flow, now: &Flow) {
        let mut expected = *was;
        if self.said.is_none() {
            expected.connection.flags |= now.connection.flags & FLOW_FRAGMENTED;
        }
        assert_eq!(*now, expected, "a packet of no flow, or of another one, changes this");
    }
}

/// Returns the flow as it is now; `None`: it is gone.
fn same<'a>(was: &Flow, now: Option<&'a Flow>) -> Option<&'a Flow> {
    now.filter(|now| now.connection.generation == was.connection.generation)
}

/// Checks that a flow may be removed. One that is over makes room. An open one does for a new connection of its client, which
/// a segment proves that acknowledges nothing of the flow. A SYN came before it, or the client has acknowledged nothing yet.
fn may_go(was: &Flow, segment: Option<(Said, Side)>) {
    if was.connection.state != FLOW_ESTABLISHED {
        return;
    }
    let Some((said, Side::Client)) = segment else { panic!("an open flow is removed by {segment:?}") };
    assert!(said.is_whole && said.has(ACK) && !said.has(RST), "an open flow is removed by {said:?}");
    let first = was.vip_isn.wrapping_add(1).wrapping_add(was.seq_delta);
    let is_unheard = was.client.acked.number == first;
    assert!(was.connection.flags & FLOW_SYN_SEEN != 0 || is_unheard, "an open flow is removed: {was:?}");
    let ack = said.ack.wrapping_add(was.seq_delta);
    let fits = distance(was.client.acked.number, ack) >= 0 && distance(ack, was.backend.sent.next) >= 0;
    assert!(!fits, "a flow is removed by what acknowledges its bytes: {said:?}\n{was:?}");
    assert_ne!(was.connection.wrong_cookies, u8::MAX, "a flow is removed after eight wrong cookies");
}

/// A segment of a flow, which is still there.
#[derive(Debug)]
struct Heard<'a> {
    was: &'a Flow,
    now: &'a Flow,
    said: Said,
    side: Side,
    /// [`Before::undelivered_until`].
    until: Option<u32>,
    reason: Reason,
}

impl Heard<'_> {
    fn check(&self) {
        let (was, now, said) = (self.was, self.now, &self.said);
        // What opens or ends a connection must be what its sender sent.
        let is_unread = said.has(SYN | FIN | RST) && !said.is_whole;
        if is_unread || was.connection.state == FLOW_RESET {
            let mut expected = *was;
            if !is_unread && self.is_guess() {
                expected.connection.wrong_cookies = now.connection.wrong_cookies;
            }
            assert_eq!(*now, expected, "{said:?} changes this");
            return;
        }
        self.fixed();
        let ((near, far), (near_now, far_now)) = (self.side.ends(was), self.side.ends(now));
        assert_eq!(far_now, far, "{said:?} changes what its receiver said");
        let is_believed = self.is_believed();
        // The ends take nothing from a segment of which the receiver has every byte.
        let is_old = distance(far.acked.number, said.end) < 0;
        let taught = if is_believed && !is_old { self.taught() } else { near };
        assert!(near_now == near || near_now == taught, "{self:?}\nmay teach {taught:?}");
        assert!(now.seen_secs == was.seen_secs || is_believed, "shows life: {self:?}");
        self.state(is_believed);
        let may_clear = self.flags(is_believed);
        // What passed must have been learned from.
        if is_believed && matches!(self.reason, Reason::ForwardClient | Reason::ForwardBackend) {
            assert_eq!(near_now, taught, "taught nothing: {self:?}");
            assert_ne!(now.seen_secs, was.seen_secs, "shows no life: {self:?}");
            assert_eq!(now.connection.flags & may_clear, 0, "acquits nobody: {self:?}");
            assert!(now.connection.state != FLOW_ESTABLISHED || !is_done(now), "not closed: {self:?}");
        }
    }

    /// Whether the segment was counted as one with a wrong cookie, and may be one.
    fn is_guess(&self) -> bool {
        let [was, now] = [self.was, self.now].map(|flow| flow.connection.wrong_cookies);
        self.side == Side::Client && !self.said.opens() && now == was << 1 | 1
    }

    /// Checks what no packet of an end changes, or only certain ones do.
    fn fixed(&self) {
        let (was, now, said) = (self.was, self.now, &self.said);
        let from_client = self.side == Side::Client;
        let is_same = now.connection.wrong_cookies == was.connection.wrong_cookies;
        assert!(is_same || self.is_guess(), "counts a guess: {self:?}");
        assert!(now.syn == was.syn || from_client && said.opens(), "notes a SYN: {self:?}");
        let mut expected = *was;
        expected.connection.state = now.connection.state;
        expected.connection.flags = now.connection.flags;
        expected.connection.wrong_cookies = now.connection.wrong_cookies;
        expected.seen_secs = now.seen_secs;
        (expected.client, expected.backend) = (now.client, now.backend);
        (expected.syn, expected.hops) = (now.syn, now.hops);
        assert_eq!(*now, expected, "{said:?} changes what never changes");
    }

    /// Returns the segment's acknowledgement number in the receiver's own numbers.
    fn ack(&self) -> u32 {
        match self.side {
            Side::Client => self.said.ack.wrapping_add(self.was.seq_delta),
            Side::Backend => self.said.ack,
        }
    }

    /// Whether the flow may learn from the segment: all of it is in its receiver's window, from one largest window behind what
    /// the receiver acknowledged to the largest one ever announced ahead (and one unit more, for probes of a closed window and
    /// what was rounded), and its acknowledgement is one largest window behind its sender's highest at most, and of what was sent.
    fn is_believed(&self) -> bool {
        let ((near, far), said) = (self.side.ends(self.was), &self.said);
        let behind = scaled(u16::MAX, &far);
        let ahead = (i64::from(far.acked.window) + 1) * UNIT;
        let is_inside = |number| (-behind..=ahead).contains(&distance(far.acked.number, number));
        let highest = distance(far.sent.next, near.acked.number).min(0);
        let oldest = highest - i64::from(near.acked.window) * UNIT;
        !said.has(SYN | RST)
            && said.has(ACK)
            && is_inside(said.seq)
            && is_inside(said.end)
            && (oldest..=0).contains(&distance(far.sent.next, self.ack()))
    }

    /// Returns what the flow knows of the sender once it has learned from the segment.
    fn taught(&self) -> End {
        let ((mut near, _), said) = (self.side.ends(self.was), &self.said);
        if distance(near.acked.number, self.ack()) > 0 {
            near.acked.number = self.ack();
        }
        let units = (scaled(said.window, &near) as u64).div_ceil(UNIT as u64) as u16;
        near.acked.window = near.acked.window.max(units);
        if said.end == said.seq {
            return near;
        }
        match distance(near.sent.next, said.end) {
            // Bytes behind a FIN prove that it was not the end.
            1.. => (near.sent.next, near.sent.fin) = (said.end, u8::from(said.has(FIN))),
            0 => near.sent.fin |= u8::from(said.has(FIN)),
            _ => {}
        }
        let first = self.was.vip_isn.wrapping_add(1).wrapping_add(self.was.seq_delta);
        if self.side == Side::Backend && said.seq == first {
            near.sent.agreed |= FIRST_SEEN;
        }
        near
    }

    /// Checks how the flow may end: by a RST where its receiver acknowledged last, by the last acknowledgement of two FINs, or
    /// because bytes are lost that its client need not repeat.
    fn state(&self, is_believed: bool) {
        let (was, now) = (self.was.connection, self.now.connection);
        let (_, far) = self.side.ends(self.was);
        let is_exact = self.said.has(RST) && self.said.seq == far.acked.number;
        let is_lost = self.reason == Reason::HelloBufferFailed
            && was.flags & FLOW_UNDELIVERED != 0
            && self.until.is_none();
        let allowed = match now.state {
            FLOW_RESET => is_exact || is_lost,
            FLOW_CLOSED => was.state == FLOW_CLOSED || is_believed && is_done(self.now),
            state => state == was.state,
        };
        assert!(allowed, "ends the flow: {self:?}");
    }

    /// Checks the flags; returns those that the segment may clear.
    fn flags(&self, is_believed: bool) -> u8 {
        let ((near, far), said) = (self.side.ends(self.was), &self.said);
        let (was, now) = (self.was.connection.flags, self.now.connection.flags);
        let is_ahead = distance(far.acked.number, said.seq) > 0 && distance(said.seq, near.sent.next) >= 0;
        let mut may_set = match self.side {
            Side::Client if said.opens() => FLOW_SYN_SEEN,
            Side::Client => 0,
            Side::Backend => FLOW_FRAGMENTED,
        };
        if said.has(RST) && is_ahead {
            may_set |= self.side.trial();
        }
        assert_eq!(now & !was & !may_set, 0, "sets flags: {self:?}");
        let mut may_clear = 0;
        if is_believed {
            may_clear |= FLOW_ENDING;
            let tried = self.side.other().trial() | FLOW_PROBED;
            may_clear |= if was & tried == tried { tried } else { 0 };
            let until = self.until.unwrap_or(self.was.client.sent.next);
            let is_delivered = self.side == Side::Backend && distance(until, said.ack) >= 0;
            may_clear |= if is_delivered { FLOW_UNDELIVERED } else { 0 };
        }
        let ended = if self.now.connection.state == FLOW_RESET { FLOW_ENDING } else { 0 };
        assert_eq!(was & !now & !(may_clear | ended), 0, "clears flags: {self:?}");
        may_clear
    }
}

/// Whether each end sent a FIN that the other acknowledged.
fn is_done(flow: &Flow) -> bool {
    [(&flow.client, &flow.backend), (&flow.backend, &flow.client)]
        .iter()
        .all(|(end, other)| end.sent.fin != 0 && distance(end.sent.next, other.acked.number) >= 0)
}

/// Checks that what happened to these clients' connections left the flows of all others as they were, but for those that are over and made
/// room.
pub fn others_stay(
    before: &BTreeMap<ClientTuple, Flow>,
    after: &BTreeMap<ClientTuple, Flow>,
    clients: &[ClientTuple],
) {
    for (client, was) in before.iter().filter(|(client, _)| !clients.contains(client)) {
        match same(was, after.get(client)) {
            None => may_go(was, None),
            Some(now) => {
                let mut expected = *was;
                expected.connection.flags |= now.connection.flags & FLOW_FRAGMENTED;
                assert_eq!(*now, expected, "what happened to {clients:?} changes the flow of {client:?}");
            }
        }
    }
}

/// Checks that an order of the daemon about this client taught its flow nothing.
pub fn taught_nothing(
    before: &BTreeMap<ClientTuple, Flow>,
    after: &BTreeMap<ClientTuple, Flow>,
    client: &ClientTuple,
) {
    let both = before.get(client).and_then(|was| Some((was, same(was, after.get(client))?)));
    if let Some((was, now)) = both {
        let numbers = |flow: &Flow| (flow.client, flow.backend, flow.syn, flow.seq_delta, flow.nat);
        assert_eq!(numbers(now), numbers(was), "an order changes numbers");
        let is_over = now.connection.state == FLOW_RESET;
        assert!(now.seen_secs == was.seen_secs || is_over, "an order shows life");
    }
}

/// Returns the connection that a frame belongs to, wherever its ports are.
pub fn owner(frame: &[u8], holder: impl Fn(&BackendTuple) -> Option<Ends>) -> Option<ClientTuple> {
    Said::read(frame)?.owner(holder).map(|(client, _)| client)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ::tests::addresses::{BACKEND_PORT, FAMILIES, TENANT_NETS, balancer};
    use ::tests::packet::{Segment, segment};

    use super::*;

    /// An open flow: 100 bytes of each end are not acknowledged yet, windows of 64 KiB, scales of 7.
    struct Scene {
        flow: Flow,
        until: Option<u32>,
    }

    const SENT: u32 = 1_000;
    const ACKED: u32 = SENT - 100;
    const BACKEND_SENT: u32 = 0x2000_0000;
    const BACKEND_ACKED: u32 = BACKEND_SENT - 100;
    const DELTA: u32 = 0x1234_5678;
    const BEHIND: u32 = 65_535 << 7;
    const AHEAD: u32 = 5 * 16_384;
    const OPEN: u32 = 4 * 16_384;

    impl Scene {
        fn new() -> Self {
            let mut flow = Flow::zeroed();
            (flow.connection.generation, flow.connection.state) = (3, FLOW_ESTABLISHED);
            (flow.client.sent.next, flow.client.acked.number) = (SENT, BACKEND_ACKED);
            (flow.backend.sent.next, flow.backend.acked.number) = (BACKEND_SENT, ACKED);
            for end in [&mut flow.client, &mut flow.backend] {
                (end.sent.agreed, end.acked.window) = (7, 4);
            }
            flow.seq_delta = DELTA;
            flow.vip_isn = BACKEND_ACKED.wrapping_sub(5_001).wrapping_sub(DELTA);
            Self { flow, until: None }
        }

        /// The client's next segment.
        fn of_client(&self) -> Segment {
            let (client, vip) = hosts::ends(0);
            segment(client, vip).seq(SENT).ack(BACKEND_SENT.wrapping_sub(DELTA)).window(0)
        }

        /// The backend's next segment.
        fn of_backend(&self) -> Segment {
            let source = SocketAddr::new(balancer(FAMILIES[0], TENANT_NETS[0]), 2_000);
            segment(SocketAddr::new(hosts::backend(0).2, BACKEND_PORT), source)
                .seq(BACKEND_SENT)
                .ack(SENT)
                .window(0)
        }

        /// Whether the laws allow a packet to make this of the flow (`None`: it is gone), for this reason.
        fn allows(&self, frame: &[u8], now: Option<Flow>, reason: Reason) -> bool {
            let said = Said::read(frame);
            let owner = said.and_then(|said| said.owner(|_| Some(hosts::ends(0))));
            let client = hosts::tuple(hosts::ends(0));
            let flows = BTreeMap::from([(client, self.flow)]);
            let before = Before { flows, said, owner, undelivered_until: self.until };
            let after: BTreeMap<_, _> = now.map(|now| (client, now)).into_iter().collect();
            std::panic::catch_unwind(|| before.check(&after, reason)).is_ok()
        }

        /// Whether a segment may change the flow so.
        fn may(&self, segment: &Segment, change: impl Fn(&mut Flow)) -> bool {
            let mut now = self.flow;
            change(&mut now);
            assert_ne!(now, self.flow, "the change is none");
            let frame = segment.bytes();
            assert!(self.allows(&frame, Some(self.flow), Reason::NotOurs), "nothing need change");
            self.allows(&frame, Some(now), Reason::NotOurs)
        }
    }

    fn lives(flow: &mut Flow) {
        flow.seen_secs = flow.seen_secs.wrapping_add(AGE);
    }

    #[test]
    fn life_is_shown_from_one_window_behind_to_one_ahead() {
        let scene = Scene::new();
        let client = |seq: u32| scene.may(&scene.of_client().seq(seq).payload([1]), lives);
        let backend = |seq: u32| scene.may(&scene.of_backend().seq(seq).payload([1]), lives);
        for (may, acked) in [(&client as &dyn Fn(u32) -> bool, ACKED), (&backend, BACKEND_ACKED)] {
            assert!(may(acked.wrapping_sub(BEHIND)) && !may(acked.wrapping_sub(BEHIND + 1)));
            assert!(may(acked + AHEAD - 1) && !may(acked + AHEAD));
            assert!(!may(acked.wrapping_add(1 << 31)));
        }
        let client = |ack: u32| {
            scene.may(&scene.of_client().seq(SENT).ack(ack.wrapping_sub(DELTA)).payload([1]), lives)
        };
        let backend = |ack: u32| scene.may(&scene.of_backend().ack(ack).payload([1]), lives);
        for (may, sent) in [(&client as &dyn Fn(u32) -> bool, BACKEND_SENT), (&backend, SENT)] {
            assert!(may(sent) && !may(sent + 1), "of what was not sent");
            assert!(may(sent.wrapping_sub(100 + OPEN)) && !may(sent.wrapping_sub(101 + OPEN)));
        }
        let without = |flags| Segment { flags, ..scene.of_client().payload([1]) };
        assert!(!scene.may(&without(ACK | RST), lives) && !scene.may(&without(ACK | SYN), lives));
    }

    #[test]
    fn a_segment_teaches_what_it_says_and_no_more() {
        let scene = Scene::new();
        let data = scene.of_client().payload([1; 10]);
        let learn = |by: u32| {
            move |flow: &mut Flow| {
                flow.client.sent.next += by;
                flow.client.acked.number = BACKEND_SENT;
            }
        };
        assert!(scene.may(&data, learn(10)));
        assert!(!scene.may(&data, learn(9)) && !scene.may(&data, learn(11)));
        assert!(!scene.may(&data, |flow| flow.client.sent.next += 10), "a half of it");
        assert!(!scene.may(&data, |flow| flow.backend.acked.number += 10), "the other end's number");
        assert!(!scene.may(&data.clone().seq(SENT + AHEAD), learn(10)));
        let fin = |flow: &mut Flow| {
            learn(1)(flow);
            flow.client.sent.fin = 1;
        };
        assert!(scene.may(&scene.of_client().fin(), fin) && !scene.may(&scene.of_client().payload([1]), fin));
        // Behind what the receiver acknowledged, it shows life and acknowledges nothing.
        let old = scene.of_client().seq(ACKED - 11).payload([1; 10]);
        assert!(scene.may(&old, lives) && !scene.may(&old, learn(0)));
        let window = |units| {
            move |flow: &mut Flow| {
                flow.backend.acked.number = SENT;
                flow.backend.acked.window = units;
            }
        };
        // 1,000 of 128 bytes are eight units.
        let wide = scene.of_backend().window(1_000);
        assert!(scene.may(&wide, window(8)) && !scene.may(&wide, window(7)) && !scene.may(&wide, window(9)));
        let first = scene.of_backend().seq(BACKEND_ACKED - 5_000).payload([1; 5_000]);
        let began = |flow: &mut Flow| {
            flow.backend.sent.agreed |= FIRST_SEEN;
            flow.backend.acked.number = SENT;
        };
        assert!(scene.may(&first, began) && !scene.may(&scene.of_backend().payload([1]), began));
    }

    #[test]
    fn what_passed_was_learned_from() {
        let mut scene = Scene::new();
        let data = scene.of_backend().payload([1; 10]).bytes();
        let passed = |scene: &Scene, now| scene.allows(&data, Some(now), Reason::ForwardClient);
        assert!(!passed(&scene, scene.flow), "taught nothing");
        let mut now = scene.flow;
        (now.backend.sent.next, now.backend.acked.number) = (BACKEND_SENT + 10, SENT);
        assert!(!passed(&scene, now), "shows no life");
        lives(&mut now);
        assert!(passed(&scene, now));
        let asked = FLOW_CLIENT_ON_TRIAL | FLOW_PROBED;
        (scene.flow.connection.flags, now.connection.flags) = (asked, asked);
        assert!(!passed(&scene, now), "acquits nobody");
        now.connection.flags = 0;
        assert!(passed(&scene, now));
        scene.flow.connection.flags = FLOW_CLIENT_ON_TRIAL;
        assert!(!passed(&scene, now), "it was not asked");
        scene.flow.connection.flags = FLOW_BACKEND_ON_TRIAL | FLOW_PROBED;
        assert!(!passed(&scene, now), "the other end was asked");
    }

    #[test]
    fn only_a_rst_where_its_receiver_acknowledged_last_resets() {
        let mut scene = Scene::new();
        let reset = |flow: &mut Flow| flow.connection.state = FLOW_RESET;
        let rst = |seq| scene.of_client().seq(seq).rst();
        assert!(scene.may(&rst(ACKED), reset));
        for seq in [ACKED - 1, ACKED + 1, SENT, SENT + 1] {
            assert!(!scene.may(&rst(seq), reset), "{seq}");
        }
        assert!(scene.may(&scene.of_backend().seq(BACKEND_ACKED).rst(), reset));
        assert!(!scene.may(&scene.of_client().seq(ACKED), reset), "no RST");
        let mut wrong = rst(ACKED).bytes();
        wrong[34 + 16] ^= 1;
        let mut now = scene.flow;
        reset(&mut now);
        assert!(!scene.allows(&wrong, Some(now), Reason::NotOurs), "a wrong checksum");
        // Bytes that its client need not repeat are lost.
        scene.flow.connection.flags = FLOW_UNDELIVERED;
        now.connection.flags = FLOW_UNDELIVERED;
        let data = scene.of_client().bytes();
        assert!(scene.allows(&data, Some(now), Reason::HelloBufferFailed));
        scene.until = Some(SENT);
        assert!(!scene.allows(&data, Some(now), Reason::HelloBufferFailed), "they are still there");
    }

    #[test]
    fn only_a_rst_ahead_of_that_goes_on_trial() {
        let scene = Scene::new();
        let trial = |flag| move |flow: &mut Flow| flow.connection.flags |= flag;
        let rst = |seq| scene.of_client().seq(seq).rst();
        for seq in [ACKED + 1, SENT] {
            assert!(scene.may(&rst(seq), trial(FLOW_CLIENT_ON_TRIAL)), "{seq}");
            assert!(!scene.may(&rst(seq), trial(FLOW_BACKEND_ON_TRIAL)), "{seq}");
        }
        for seq in [ACKED, SENT + 1, ACKED - 1] {
            assert!(!scene.may(&rst(seq), trial(FLOW_CLIENT_ON_TRIAL)), "{seq}");
        }
        assert!(scene.may(&scene.of_backend().rst(), trial(FLOW_BACKEND_ON_TRIAL)));
        assert!(!scene.may(&scene.of_client(), trial(FLOW_CLIENT_ON_TRIAL)), "no RST");
        for flag in [FLOW_PROBED, FLOW_ENDING, FLOW_UNDELIVERED, FLOW_FRAGMENTED, FLOW_SYN_SEEN] {
            assert!(!scene.may(&scene.of_client(), trial(flag)), "{flag}");
        }
    }

    #[test]
    fn the_last_acknowledgement_of_two_fins_closes() {
        let mut scene = Scene::new();
        scene.flow.client.sent.fin = 1;
        scene.flow.backend.sent.fin = 1;
        scene.flow.backend.acked.number = SENT;
        let close = |flow: &mut Flow| {
            flow.client.acked.number = BACKEND_SENT;
            flow.connection.state = FLOW_CLOSED;
        };
        let last = scene.of_client();
        assert!(scene.may(&last, close));
        assert!(!scene.may(&last, |flow| flow.connection.state = FLOW_CLOSED), "not acknowledged");
        scene.flow.backend.sent.fin = 0;
        assert!(!scene.may(&last, close), "one FIN");
    }

    #[test]
    fn an_open_flow_goes_only_for_a_new_connection_of_its_client() {
        let mut scene = Scene::new();
        let goes = |scene: &Scene, segment: &Segment| scene.allows(&segment.bytes(), None, Reason::NotOurs);
        let cookie = scene.of_client().ack(77);
        assert!(!goes(&scene, &cookie), "no SYN came before");
        scene.flow.connection.flags = FLOW_SYN_SEEN;
        assert!(goes(&scene, &cookie));
        assert!(!goes(&scene, &scene.of_client()), "it acknowledges the flow's bytes");
        assert!(!goes(&scene, &scene.of_backend()) && !goes(&scene, &cookie.clone().rst()));
        scene.flow.connection.wrong_cookies = u8::MAX;
        assert!(!goes(&scene, &cookie), "a stranger guesses");
        scene.flow.connection.state = FLOW_RESET;
        assert!(goes(&scene, &scene.of_backend()), "it is over");
    }

    #[test]
    fn flows_of_others_stay_as_they_are() {
        let scene = Scene::new();
        let (client, other) = (hosts::tuple(hosts::ends(0)), hosts::tuple(hosts::ends(1)));
        let before = BTreeMap::from([(client, scene.flow)]);
        let stays = |now: Option<Flow>, clients: &[ClientTuple]| {
            let after: BTreeMap<_, _> = now.map(|now| (client, now)).into_iter().collect();
            std::panic::catch_unwind(|| others_stay(&before, &after, clients)).is_ok()
        };
        let mut now = scene.flow;
        assert!(stays(Some(now), &[other]) && !stays(None, &[other]) && stays(None, &[client]));
        now.client.sent.next += 1;
        assert!(!stays(Some(now), &[other]) && stays(Some(now), &[client]));
        let teaches = |now: Flow| {
            let after = BTreeMap::from([(client, now)]);
            std::panic::catch_unwind(|| taught_nothing(&before, &after, &client)).is_err()
        };
        assert!(teaches(now) && !teaches(scene.flow));
        let udp = scene.of_client().bytes();
        let udp: Vec<u8> =
            udp.iter().enumerate().map(|(at, byte)| if at == 23 { 17 } else { *byte }).collect();
        assert!(!scene.allows(&udp, Some(now), Reason::NotOurs), "no segment at all");
    }
}
