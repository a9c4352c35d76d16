use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Flaw;
use super::laws::Laws;
use super::network::{AnswerPacket, Network, Packet};
use super::node::{Entry, Kernel, Node, Wanted};
use crate::dice::Dice;
use crate::outputs::l2::ownership::{Action, Frame, Rules, Segment};

/// Something that happens at a time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Arrives { from: usize, to: usize, packet: Packet },
    Wake { node: usize, number: u64 },
    Follows { node: usize, wanted: Wanted },
}

/// Nodes on a segment.
#[derive(Debug)]
pub(super) struct Lan {
    base: Instant,
    pub(super) now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    count: u64,
    pub(super) dice: Dice,
    pub(super) nodes: Vec<Node>,
    pub(super) network: Network,
    pub(super) rules: Rules,
    pub(super) flaw: Option<Flaw>,
    pub(super) laws: Laws,
    /// The longest that a turn is late.
    pub(super) jitter: Duration,
    /// What happened, for those who look into a failure.
    pub(super) log: Vec<String>,
}

impl Lan {
    /// Nodes that are on, without agents.
    pub(super) fn new(seed: u64, nodes: usize, grace: Duration) -> Self {
        let mut dice = Dice(seed);
        let nodes: Vec<Node> = (0..nodes).map(|number| Node::new(number, dice.next())).collect();
        Self {
            base: Instant::now(),
            now: Duration::from_secs(1),
            events: BinaryHeap::new(),
            count: 0,
            dice,
            network: Network::new(nodes.len()),
            laws: Laws::new(nodes.len()),
            nodes,
            rules: Rules { grace, rebalance: None, withdraws: false },
            flaw: None,
            jitter: Duration::from_millis(3),
            log: Vec::new(),
        }
    }

    pub(super) fn at(&mut self, time: Duration, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    pub(super) fn note(&mut self, text: String) {
        let line = format!("{:>10.4} {text}", self.now.as_secs_f64());
        self.log.push(line);
    }

    /// The numbers of the nodes that answer for an address.
    pub(super) fn answering(&self, address: &IpAddr) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        let nodes = nodes.filter(|(_, node)| node.answers(address, self.rules.grace, self.flaw, self.now));
        nodes.map(|(number, _)| number).collect()
    }

    /// Lets time pass. Stops at the first breach of a law.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(Reverse((time, _, _))) = self.events.peek()
            && *time <= end
            && self.laws.breach.is_none()
        {
            let Some(Reverse((time, _, event))) = self.events.pop() else { break };
            self.now = self.now.max(time);
            self.happen(event);
            super::laws::check(self);
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives { from, to, packet } => self.arrive(from, to, packet),
            Event::Wake { node, number } if self.nodes[node].wake.1 == number => self.run(node),
            Event::Wake { .. } => {}
            Event::Follows { node, wanted } => self.follow(node, wanted),
        }
    }

    /// A node learns what is served there.
    pub(super) fn follow(&mut self, node: usize, wanted: Wanted) {
        let time = self.base + self.now;
        let this = &mut self.nodes[node];
        this.wanted = wanted.clone();
        if let Some(agent) = &mut this.agent {
            agent.candidates(wanted, time);
            self.wake(node, self.now);
        }
    }

    fn wake(&mut self, node: usize, time: Duration) {
        let (next, number) = self.nodes[node].wake;
        if next <= self.now || time < next {
            self.nodes[node].wake = (time, number + 1);
            self.at(time, Event::Wake { node, number: number + 1 });
        }
    }

    /// Starts an agent.
    pub(super) fn start(&mut self, node: usize) {
        let time = self.base + self.now;
        let (seed, boot) = (self.dice.next(), self.dice.next());
        let (now, rules) = (self.now, self.rules);
        let this = &mut self.nodes[node];
        if !this.is_on || this.agent.is_some() {
            return;
        }
        let version =
            if self.flaw == Some(Flaw::OldVersions) { 0 } else { u64::try_from(now.as_nanos()).unwrap() };
        let mut segment = Segment::new(this.id, rules, seed, version, time);
        if self.flaw == Some(Flaw::AdoptsNothing) {
            this.kernel.announced.clear();
        } else {
            this.kernel.announced.iter().for_each(|(address, epoch)| segment.adopt(*address, *epoch, time));
        }
        this.kernel.entry.get_or_insert(Entry { boot, digest: 0, stamp: now });
        segment.candidates(this.wanted.clone(), time);
        (this.agent, this.paused, this.started) = (Some(segment), false, now);
        this.kernel.socket.clear();
        this.received = now;
        self.wake(node, self.now);
        self.note(format!("{node} agent starts"));
    }

    pub(super) fn kill(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        if this.has_running_agent() {
            this.stopped = self.now;
        }
        (this.agent, this.paused) = (None, false);
        this.kernel.socket.clear();
        this.wake.1 += 1;
        this.wake.0 = Duration::ZERO;
        self.note(format!("{node} agent killed"));
    }

    pub(super) fn pause(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            if !self.nodes[node].paused {
                self.nodes[node].stopped = self.now;
            }
            self.nodes[node].paused = true;
            self.note(format!("{node} agent paused"));
        }
    }

    pub(super) fn resume(&mut self, node: usize) {
        if self.nodes[node].paused {
            (self.nodes[node].paused, self.nodes[node].returned) = (false, self.now);
            self.nodes[node].started = self.now;
            self.note(format!("{node} agent resumed"));
            self.wake(node, self.now);
        }
    }

    pub(super) fn turn_off(&mut self, node: usize) {
        self.kill(node);
        self.nodes[node].is_on = false;
        self.nodes[node].kernel = Kernel::default();
        self.note(format!("{node} off"));
    }

    pub(super) fn turn_on(&mut self, node: usize) {
        if !self.nodes[node].is_on {
            (self.nodes[node].is_on, self.nodes[node].returned) = (true, self.now);
            self.note(format!("{node} on"));
        }
    }

    /// The kernel of a node receives a frame.
    fn arrive(&mut self, from: usize, to: usize, packet: Packet) {
        let (now, grace, flaw) = (self.now, self.rules.grace, self.flaw);
        let this = &mut self.nodes[to];
        if !this.is_on {
            return;
        }
        this.received = now;
        match &packet {
            Packet::Ask { nonce } => {
                let Some(entry) = this.kernel.entry else { return };
                this.kernel.received = Some(now);
                let stamp_age = now.saturating_sub(entry.stamp);
                let (nonce, boot, digest) = (*nonce, entry.boot, entry.digest);
                self.send(to, from, Packet::Answer(AnswerPacket { nonce, boot, stamp_age, digest }));
                return;
            }
            Packet::Query(address) => {
                if this.answers(address, grace, flaw, now) {
                    self.send(to, from, Packet::Reply(*address));
                }
                return;
            }
            Packet::Resend { to: node } if *node != this.id || flaw == Some(Flaw::NoResend) => return,
            Packet::Answer(_) | Packet::Resend { .. } => {
                if this.kernel.entry.is_some() {
                    this.kernel.received = Some(now);
                }
            }
            Packet::Reply(_) if flaw == Some(Flaw::NoVeto) => return,
            Packet::Reply(_) | Packet::Table { .. } => {}
        }
        this.pass(from, packet);
        if self.nodes[to].has_running_agent() {
            let delay = self.dice.between(Duration::from_micros(20), Duration::from_micros(500));
            self.wake(to, now + delay);
        }
    }

    fn send(&mut self, from: usize, to: usize, packet: Packet) {
        let (loss, (least, most)) = (self.network.loss, self.network.delay);
        let is_lost = (0..packet.frames()).any(|_| self.dice.happens(loss));
        if !is_lost && self.network.passes(from, to, &packet) {
            let delay = self.dice.between(least, most);
            self.at(self.now + delay, Event::Arrives { from, to, packet });
        }
    }

    fn send_to_all(&mut self, from: usize, packet: &Packet) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            self.send(from, to, packet.clone());
        }
    }

    /// A turn of an agent: what has arrived is handed over first.
    fn run(&mut self, node: usize) {
        let (now, time) = (self.now, self.base + self.now);
        let has_chatter = self.network.has_chatter && (node == 0 || !self.network.cut[0][node]);
        let links: Vec<_> = self.nodes.iter().map(|node| (node.id, node.link)).collect();
        let this = &mut self.nodes[node];
        if !this.has_running_agent() {
            return;
        }
        if has_chatter {
            this.received = now;
        }
        let Some(segment) = &mut this.agent else { return };
        segment.isolated(now.saturating_sub(this.received) > Duration::from_secs(1), time);
        segment.withdraw(time);
        for (from, packet) in std::mem::take(&mut this.kernel.socket) {
            let (id, link) = links[from];
            match packet {
                Packet::Answer(answer) => segment.answered(&answer.from(id, link), time),
                Packet::Table { boot, version, bids } => segment.table(id, boot, version, bids, time),
                Packet::Resend { .. } => segment.resend(id, time),
                Packet::Reply(address) => segment.claimed(address, link, time),
                Packet::Ask { .. } | Packet::Query(_) => {}
            }
        }
        let actions = segment.turn(time);
        let due = segment.due().saturating_duration_since(self.base);
        let (digest, may_stamp) = (segment.digest(), segment.may_stamp());
        if let Some(entry) = &mut this.kernel.entry {
            entry.digest = digest;
            if may_stamp || self.flaw == Some(Flaw::StampsAtOnce) {
                entry.stamp = now;
            }
        }
        actions.into_iter().for_each(|action| self.act(node, action));
        let late = self.dice.between(Duration::ZERO, self.jitter);
        let due = (due + late).clamp(now + Duration::from_micros(50), now + Duration::from_millis(100));
        self.wake(node, due);
    }

    fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Close(address) => {
                if self.flaw != Some(Flaw::NeverCloses) {
                    self.nodes[node].kernel.announced.remove(&address);
                }
                self.note(format!("{node} closes {address}"));
                self.laws.turnover.push((self.now, node, address, false));
                self.laws.moves += 1;
            }
            Action::Open { address, epoch } => {
                let before = self.nodes[node].kernel.announced.insert(address, epoch);
                self.note(format!("{node} opens {address} {epoch}"));
                if before != Some(epoch) {
                    self.laws.turnover.push((self.now, node, address, true));
                    self.laws.moves += 1;
                }
            }
            Action::Probe(address) => {
                self.laws.probes += 1;
                self.send_to_all(node, &Packet::Query(address));
            }
            Action::Send(Frame::Ask { nonce }) => self.send_to_all(node, &Packet::Ask { nonce }),
            Action::Send(Frame::Resend { to }) => self.send_to_all(node, &Packet::Resend { to }),
            Action::Send(Frame::Bids { version, bids }) => {
                self.note(format!("{node} table {version} {bids:?}"));
                let Some(entry) = self.nodes[node].kernel.entry else { return };
                if self.flaw == Some(Flaw::OpensWithTheBid) {
                    let open: BTreeMap<IpAddr, u64> = bids.iter().copied().collect();
                    self.nodes[node].kernel.announced.extend(open);
                }
                self.send_to_all(node, &Packet::Table { boot: entry.boot, version, bids });
            }
        }
    }
}
