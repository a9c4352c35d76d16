use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use common::decide::maglev::mix;

use super::peers::Peer;
use super::{ALIVE, BEAT, LATE, LISTEN, NodeId, PROBE, SURE};

/// How many heartbeats are remembered.
const REMEMBERED: usize = 16;
/// Between two heartbeats beyond those that are counted.
const EXTRA: Duration = Duration::from_millis(20);

/// The heartbeats that were sent, and when the next one is.
#[derive(Debug)]
pub(super) struct Heartbeats {
    seed: u64,
    start: Instant,
    sent: VecDeque<(u64, Instant)>,
    /// `None`: nothing is asked.
    next: Option<Instant>,
    /// An answer is waited for that the next heartbeat would bring too late.
    is_urgent: bool,
    last_turn: Option<Instant>,
    listens_until: Instant,
    /// Since when it has not been known what others took over.
    unsure: Option<Instant>,
}

impl Heartbeats {
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        Self {
            seed,
            start: now,
            sent: VecDeque::new(),
            next: None,
            is_urgent: false,
            last_turn: None,
            listens_until: now + LISTEN,
            unsure: Some(now),
        }
    }

    pub(super) fn start(&self) -> Instant {
        self.start
    }

    pub(super) fn next(&self) -> Option<Instant> {
        let extra = self.is_urgent.then(|| self.sent.back().map(|(_, sent)| *sent + EXTRA)).flatten();
        let next = self.next?;
        Some(extra.map_or(next, |extra| extra.min(next)))
    }

    pub(super) fn last_turn(&self) -> Option<Instant> {
        self.last_turn
    }

    pub(super) fn listens_until(&self) -> Instant {
        self.listens_until
    }

    pub(super) fn is_sure(&self) -> bool {
        self.unsure.is_none()
    }

    /// When it may be sure.
    pub(super) fn sure(&self, last_turn: Instant) -> Option<Instant> {
        self.unsure.map(|since| since + PROBE).filter(|time| *time > last_turn)
    }

    /// Listens for a while before the next bid.
    pub(super) fn listen(&mut self, now: Instant) {
        self.listens_until = now + LISTEN;
    }

    /// An answer is needed soon.
    pub(super) fn hurry(&mut self) {
        self.is_urgent = true;
    }

    /// Asks nothing for now.
    pub(super) fn pause(&mut self) {
        self.next = None;
    }

    /// Returns when the heartbeat with this nonce was sent, if that is not long ago.
    pub(super) fn asked(&self, nonce: u64, now: Instant) -> Option<Instant> {
        let (_, sent) = self.sent.iter().find(|(sent, _)| *sent == nonce)?;
        (now.saturating_duration_since(*sent) < ALIVE).then_some(*sent)
    }

    /// Whether this turn comes so late that nobody could have been observed. After more than `grace`, others may have taken over
    /// what this node holds.
    pub(super) fn is_late(&mut self, now: Instant, grace: Duration) -> bool {
        let away = self.last_turn.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if !grace.is_zero() && away >= grace {
            self.unsure = Some(now);
        }
        self.next.is_some_and(|next| now > next + LATE)
    }

    /// Returns the nonce of the heartbeat that is due.
    pub(super) fn asks<'a>(
        &mut self,
        now: Instant,
        peers: impl Iterator<Item = &'a mut Peer>,
    ) -> Option<u64> {
        let is_counted = match self.next {
            Some(next) if now < next => {
                let is_due = self.next().is_some_and(|next| next <= now);
                if !is_due {
                    return None;
                }
                false
            }
            Some(next) => {
                self.next = Some(if now > next + LATE { now } else { next } + BEAT);
                true
            }
            None => {
                self.listen(now);
                self.next = Some(now + BEAT);
                true
            }
        };
        if is_counted {
            peers.for_each(|peer| peer.asked(now));
        }
        self.is_urgent = false;
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let nonce = mix(self.seed);
        self.sent.push_back((nonce, now));
        if self.sent.len() > REMEMBERED {
            self.sent.pop_front();
        }
        Some(nonce)
    }

    /// Ends a turn.
    pub(super) fn turned(&mut self, now: Instant, peers: &BTreeMap<NodeId, Peer>) {
        self.last_turn = Some(now);
        let Some(since) = self.unsure else { return };
        let mut alive = peers.values().filter(|peer| peer.is_alive(now)).peekable();
        let is_known = now >= since + PROBE
            && alive.peek().is_some()
            && alive.all(|peer| peer.confirmed().is_some_and(|asked| asked >= since));
        if is_known || now >= since + SURE {
            self.unsure = None;
        }
    }
}
