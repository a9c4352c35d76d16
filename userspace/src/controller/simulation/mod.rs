//! The controller's real core in a cluster that is simulated: an API server with delays, nodes that hold what was written a moment
//! later, and people who change things all the time. Time is virtual, and chance comes from a seed.

/// The API server, as far as the controller sees it.
mod server;
/// The nodes and their Leases.
mod nodes;
/// What is played, and what is seen of it.
mod options;
/// What was said stays.
mod stays;
/// Another controller begins to lead.
mod leaders;
/// The Secret.
mod secret;
/// Stories, and what is expected of them.
mod stories;

use super::agents::Reported;
use super::claim_store::{ClaimNews, ClaimOutcome, Stored};
use super::core::{Core, Done, Known, Request};
use super::liveness::Liveness;
use super::reports::Reporting;
use crate::dice::Dice;
use crate::model::{Cluster, Facts, ObjectRef};
use crate::sources::kubernetes::StoredStatus;
use nodes::Nodes;
use options::{Hangs, Lacks, Misses, Options, Seen, percentile};
use secret::{SCHEDULE, Secret};
use server::Server;
use stays::{Missed, Said};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

/// From a write until a watch reports it to the controller.
const WATCH: Duration = Duration::from_millis(20);
/// How long the nodes are there before the controller.
const SETTLED: Duration = Duration::from_secs(25);
/// How long the API server takes to write.
const WRITE: Duration = Duration::from_millis(5);
/// How long a hanging webhook delays a write that then fails: the controller's time limit.
const HANGS: Duration = super::election::REQUEST;

/// Something that happens at a time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A user changes an object.
    Change,
    /// The controller's watch reports what an object is now.
    ObjectSeen(ObjectRef),
    /// The same of a Claim.
    ClaimSeen(String),
    /// The controller has listed all Claims, as it does when it begins to lead.
    ClaimsListed,
    /// A request of this number has reached the API server and has ended.
    Ended(u64),
    /// A node renews its Lease.
    Renewal(usize),
    /// The controller's watch reports the Lease of a node.
    LeaseSeen(usize),
    /// A node dies.
    Death(usize),
    /// A node joins, which holds nothing yet.
    Join,
    /// Nodes begin to report that they do not hold some routes.
    Miss(usize),
    /// They hold them again.
    Regain,
    /// The agents of this many nodes are restarted, and have read all Claims after this time.
    AgentsRestart(usize, Duration),
    /// Another controller begins to lead.
    Restart,
    /// The controller's loop wakes up.
    Wake,
}

/// A cluster.
struct Simulation {
    options: Options,
    begun: Instant,
    now: Instant,
    dice: Dice,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// The number of events so far: of two at the same time, the earlier one comes first.
    count: u64,
    core: Core,
    liveness: Liveness,
    server: Server,
    nodes: Nodes,
    /// What the controller's store knows.
    cluster: Cluster,
    statuses: BTreeMap<ObjectRef, StoredStatus>,
    requests: BTreeMap<u64, Request>,
    /// When each route was changed that has not said yet that it is programmed.
    changed: BTreeMap<ObjectRef, Instant>,
    /// Until when a node is dead whose Lease lives, or one has joined that does not hold everything yet.
    absent_until: Instant,
    /// NodeStates, by node.
    states: BTreeMap<String, Reported>,
    missed: Option<Missed>,
    /// What the controller that will lead next has seen of Claims: what there was when another one began to lead last.
    follows: (BTreeMap<String, Stored>, u64),
    said: Said,
    secret: Secret,
    seen: Seen,
    /// The controller is judging until then.
    busy_until: Instant,
}

impl Simulation {
    fn new(options: Options) -> Self {
        let begun = Instant::now();
        let mut dice = Dice(options.seed);
        let server = Server::new(&options, &mut dice);
        let mut simulation = Self {
            begun,
            now: begun,
            events: BinaryHeap::new(),
            count: 0,
            core: Core::new(Facts::default(), SCHEDULE, begun),
            liveness: Liveness::default(),
            cluster: server.cluster.clone(),
            statuses: server.statuses.clone(),
            nodes: Nodes::new(options.nodes, begun, &mut dice),
            server,
            requests: BTreeMap::new(),
            changed: BTreeMap::new(),
            absent_until: begun,
            states: BTreeMap::new(),
            missed: None,
            follows: Default::default(),
            said: Said::default(),
            secret: Secret::new(begun + SETTLED),
            seen: Seen::default(),
            busy_until: begun,
            dice,
            options,
        };
        simulation.core.lead(true);
        simulation.core.take_claims(ClaimNews::Listed(BTreeMap::new(), 0));
        simulation.liveness.listed(BTreeMap::new(), begun);
        for node in 0..simulation.options.nodes {
            let at = begun + simulation.dice.between(Duration::ZERO, Duration::from_secs(10));
            simulation.nodes.renews_at(node, at);
            simulation.at(at, Event::Renewal(node));
        }
        // When the controller begins to lead, it knows the nodes.
        simulation.begun += SETTLED;
        for route in simulation.server.routes() {
            simulation.changed.insert(route, simulation.begun);
        }
        simulation.busy_until = simulation.begun;
        simulation.wake();
        simulation
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Runs until this time, or until `is_over`.
    fn run(&mut self, until: Instant, is_over: impl Fn(&Self) -> bool) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > until || is_over(self) {
                self.events.push(Reverse((at, 0, event)));
                self.now = until.min(at);
                return;
            }
            self.now = at;
            self.happens(event);
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Change => {
                let is_missed =
                    |route: &_| self.missed.as_ref().is_some_and(|missed| missed.routes.contains(route));
                let may = |route: &_| !self.changed.contains_key(route) && !is_missed(route);
                let routes = self.server.change(&mut self.dice, may);
                for route in routes {
                    self.changed.insert(route.clone(), self.now);
                    self.at(self.now + WATCH, Event::ObjectSeen(route));
                }
                let pause = Duration::from_secs_f64(1.0 / self.options.changes);
                self.at(self.now + pause, Event::Change);
            }
            Event::ObjectSeen(object) => {
                self.server.report(&object, &mut self.cluster, &mut self.statuses);
                self.core.touch();
                self.wake();
            }
            Event::ClaimsListed => self.list_claims(),
            // A watch begins with a list.
            Event::ClaimSeen(_) if !self.core.claims.is_listed() => {}
            Event::ClaimSeen(name) => {
                let news = match self.server.claims.get(&name) {
                    Some(stored) => ClaimNews::Put(name, Box::new(stored.clone())),
                    None => ClaimNews::Gone(name),
                };
                self.core.take_claims(news);
                self.wake();
            }
            Event::Ended(number) => self.ended(number),
            Event::Renewal(node) => {
                // Others were asked for before it was put off.
                if let Some(next) = self.nodes.renew(node, self.now, &mut self.dice) {
                    self.at(self.now + WRITE + WATCH, Event::LeaseSeen(node));
                    self.at(next, Event::Renewal(node));
                }
            }
            Event::LeaseSeen(node) => {
                let (name, lease) = self.nodes.lease(node);
                if self.liveness.put(name, lease, self.now) {
                    self.core.touch();
                }
                self.wake();
            }
            Event::Death(node) => {
                self.nodes.die(node, self.now);
                // Its Lease is valid for 40 s after it was renewed last.
                self.absent_until = self.absent_until.max(self.now + Duration::from_secs(45));
            }
            Event::Join => self.join(),
            Event::Miss(nodes) => self.miss(nodes),
            Event::Regain => self.regain(),
            Event::AgentsRestart(nodes, lasts) => self.restart_agents(nodes, lasts),
            Event::Restart => {
                self.restart();
                if let Some(pause) = self.options.restarts {
                    self.at(self.now + pause, Event::Restart);
                }
            }
            Event::Wake => self.act(),
        }
    }

    fn wake(&mut self) {
        let at = self.now.max(self.busy_until);
        self.at(at, Event::Wake);
    }

    /// What the loop does.
    fn act(&mut self) {
        if self.now < self.busy_until || !self.core.claims.is_listed() {
            return;
        }
        if self.core.is_due(self.now) {
            self.judge();
        }
        let at = self.busy_until.max(self.now);
        let asked = loop {
            match self.core.next(at) {
                Ok(request) => self.send(request, at),
                Err(asked) => break asked,
            }
        };
        if let Some(next) = asked.into_iter().chain(self.core.next_due()).min() {
            self.at(next.max(at), Event::Wake);
        }
    }

    fn judge(&mut self) {
        let nodes = super::agents::nodes(&self.liveness, &self.states);
        let statuses = &self.statuses;
        let known = Known {
            cluster: &self.cluster,
            status: &|object| statuses.get(object),
            version: &|_| Some("v1"),
            bundle: None,
            unlisted: BTreeSet::new(),
            stale: Vec::new(),
            nodes,
            failing: BTreeMap::new(),
            stale_nodes: Vec::new(),
            node_uids: BTreeMap::new(),
            metallb: None,
            reporting: Reporting::NONE,
            now: "2026-11-28T10:00:00Z",
        };
        let real = Instant::now();
        self.core.judge(known, self.now);
        self.seen.judged += real.elapsed();
        self.seen.judgements += 1;
        self.busy_until = self.now + self.options.judging;
        self.core.rest(self.options.judging, self.busy_until);
    }

    fn send(&mut self, request: Request, at: Instant) {
        let takes = match &request {
            Request::Status(object, _) if self.server.status_hangs(object) => HANGS,
            Request::Claim(name, write) if self.server.claim_hangs(name, write) => HANGS,
            _ => WRITE,
        };
        self.count += 1;
        let number = self.count;
        self.requests.insert(number, request);
        self.at(at + takes, Event::Ended(number));
    }

    /// A request is carried out in the moment when it ends.
    fn ended(&mut self, number: u64) {
        // It may have ended when another controller began to lead.
        let Some(request) = self.requests.remove(&number) else { return };
        let done = match request {
            Request::Status(object, write) => {
                let outcome = self.server.write_status(&object, &write);
                self.at(self.now + WATCH, Event::ObjectSeen(object.clone()));
                self.note_said(&object);
                self.note_programmed(&object);
                Done::Status(object, write, outcome)
            }
            Request::Claim(name, write) => {
                let version = self.server.write_claim(&name, *write);
                if let Some(version) = version {
                    for (node, at) in self.nodes.told(version, self.now, &mut self.dice) {
                        self.at(at, Event::Renewal(node));
                    }
                    self.at(self.now + WATCH, Event::ClaimSeen(name.clone()));
                }
                Done::Claim(
                    name,
                    version.map(|_| ClaimOutcome::Written).ok_or_else(|| "it hangs".to_owned().into()),
                )
            }
            Request::Announcement(_) => Done::Announcement(Ok(ClaimOutcome::Written)),
            Request::Event(note, _) => Done::Event(note, super::writes::Told::Yes),
            Request::Keys(spare) => Done::Keys(Ok(self.secret.keep(spare, self.now, &mut self.dice))),
        };
        self.core.done(done, self.now);
        self.wake();
    }

    fn note_programmed(&mut self, object: &ObjectRef) {
        if !self.server.says_programmed(object) {
            return;
        }
        let Some(since) = self.changed.remove(object) else { return };
        let holders = self.nodes.holders(self.server.claims_version(object), self.now);
        let counted = self.nodes.counted(self.now);
        assert!(holders + self.few() >= counted, "{object} is programmed on {holders} nodes of {counted}");
        if since == self.begun || self.server.hangs(object) {
            return;
        }
        let delay = self.now - since;
        match since < self.absent_until {
            true => self.seen.delays_with_absent.push(delay),
            false => self.seen.delays.push(delay),
        }
    }

    /// Runs until all routes are programmed for the first time.
    fn start(&mut self) {
        let patience = self.begun + Duration::from_secs(600);
        let served = |this: &Self| this.changed.keys().all(|route| this.server.hangs(route));
        self.run(patience, served);
        self.seen.first = self.now - self.begun;
        assert!(served(self), "{} routes are not programmed after ten minutes", self.changed.len());
    }

    /// Plays it.
    fn play(mut self) -> Seen {
        self.start();
        self.server.are_all_programmed = true;
        let before = self.server.counts;
        let changing = self.now;
        // From the last one on: the first ones are made to lack something.
        for (nth, after) in self.options.dies.clone().into_iter().enumerate() {
            self.at(self.now + after, Event::Death(self.options.nodes - 1 - nth));
        }
        if let Some(pause) = self.options.restarts {
            self.at(self.now + pause, Event::Restart);
        }
        if let Some(pause) = self.options.joins {
            self.at(self.now + pause, Event::Join);
        }
        if let Some(Misses { what, nodes, after, lasts }) = self.options.misses {
            match what {
                Lacks::Routes => self.at(self.now + after, Event::Miss(nodes)),
                Lacks::Claims => self.at(self.now + after, Event::AgentsRestart(nodes, lasts)),
            }
            self.at(self.now + after + lasts, Event::Regain);
        }
        self.at(self.now, Event::Change);
        self.run(changing + self.options.lasts, |_| false);
        let changes = self.options.lasts.as_secs_f64() * self.options.changes;
        let after = self.server.counts;
        self.seen.writes = ((after.0 - before.0) as f64 / changes, (after.1 - before.1) as f64 / changes);
        // Those of the last seconds are still open.
        let late = self.now.checked_sub(Duration::from_secs(15)).unwrap();
        let is_late = |(route, since): &(&ObjectRef, &Instant)| **since < late && !self.server.hangs(route);
        self.seen.open = self.changed.iter().filter(is_late).count();
        self.seen.delays.sort();
        self.seen.delays_with_absent.sort();
        self.look_back();
        self.seen
    }
}
