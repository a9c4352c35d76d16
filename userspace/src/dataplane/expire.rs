//! Ends connections where no packet triggers it: time limits, removed backends, evicted hellos. This file
//! selects the connections; the pinned program `expire` ends them.

use std::net::IpAddr;

use common::decide::admit;
use common::maps::event::{CLOSED_RING_DUE, EXPIRE_UNRESOLVED, Expiry};
use common::maps::flow::{ClientTuple, Connection, PENDING_UNDELIVERED};
use common::maps::settings::{Cursors, Settings};
use common::reason::Reason;

use super::awaited::Awaited;
use super::crowd::{self, Began, Crowd, Evicted, Going};
use super::due::{flow_is_due, half_open_is_due, hello_is_due, syn_is_due};
use super::held::{Held, Over};
use super::leftovers;
use super::maps::Maps;
use super::orphans::Orphans;
use super::pin::Pins;
use super::ports::Ports;
use super::precedence::Precedence;
use super::probes::Probes;
use super::read::{now_ns, now_secs};
use super::request::{ending, expiry, of_flow, of_held, of_record, reason};
pub use super::runner::ExpireError;
use super::runner::{self, Runner};
use super::swept::{Ended, Found};
use super::trials::Why;
use crate::plan::Selector;

/// Returns the threads that a flow map is worth for a walk that a change waits for: one for each quarter of a million entries, up to 16.
fn walkers(capacity: u32) -> usize {
    (capacity >> 18).clamp(1, 16) as usize
}

/// Ends connections.
#[derive(Debug)]
pub struct Expirer {
    maps: Maps,
    runner: Runner,
    probes: Probes,
    held: Held,
    ports: Ports,
    awaited: Awaited,
    orphans: Orphans,
    going: Going,
    crowded: Began,
    /// What the last sweeps found.
    found: Found,
    /// The number of flows when they were last counted, and when: monotonic clock, seconds.
    counted: (u64, u32),
}

impl Expirer {
    /// Opens the program and a separate set of maps, for use in a separate thread.
    pub fn open(pins: &Pins, ifindex: u32) -> Result<Self, ExpireError> {
        let runner = Runner::open(pins, ifindex)?;
        let mut this = Self {
            maps: Maps::open(pins)?,
            runner,
            probes: Probes::default(),
            held: Held::default(),
            ports: Ports::default(),
            awaited: Awaited::open(pins)?,
            orphans: Orphans::default(),
            going: Going::default(),
            crowded: Began::default(),
            found: Found::default(),
            counted: (0, 0),
        };
        // Until all are looked at.
        this.found.flows = this.count()?;
        Ok(this)
    }

    /// The maps that this uses.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// What the last sweeps found.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Has walks over all flows wait for what goes first.
    pub fn set_precedence(&mut self, precedence: Precedence) {
        self.maps.flows.set_precedence(precedence);
    }

    /// Sets the device for runs, one of ours.
    pub fn set_device(&mut self, ifindex: u32) {
        self.runner.set_device(ifindex);
    }

    /// Runs the program for one connection. Returns false if there was no such connection.
    pub fn run(&self, expiry: &Expiry) -> Result<bool, ExpireError> {
        self.runner.run(expiry)
    }

    /// Ends every connection that the selector matches; of those that are no longer admitted only the old ones. `is_old` says whether
    /// a generation was given out before another one.
    pub fn reset(
        &mut self,
        selector: &Selector,
        is_old: impl Fn(u32, u32) -> bool + Sync,
    ) -> Result<Ended, ExpireError> {
        self.reset_where(|client, is| reason(selector, &is_old, client, is))
    }

    /// Ends every connection for which `takes_it` returns a reason, which a flow is counted under. A hello without a route has route and backend 0.
    pub fn reset_where(
        &mut self,
        takes_it: impl Fn(&ClientTuple, &Connection) -> Option<Reason> + Sync,
    ) -> Result<Ended, ExpireError> {
        let (mut hellos, mut half_opens) = (Vec::new(), Vec::new());
        self.maps.hellos.walk(|client, hello| {
            let is_undelivered = hello.connection.state == PENDING_UNDELIVERED;
            if !is_undelivered && takes_it(client, &hello.connection).is_some() {
                hellos.push(of_record(client, &hello.connection, Reason::ExpireHello));
            }
        })?;
        self.maps.half_opens.walk(|client, half_open| {
            if takes_it(client, &half_open.connection).is_some() {
                half_opens.push(of_record(client, &half_open.connection, Reason::ExpireHalfOpen));
            }
        })?;
        // Flows are last, so that a connection that became a flow during the other walks is found here.
        let threads = runner::processors().min(walkers(self.maps.flows.capacity()));
        let flows = self.maps.flows.find(threads, |client, flow| ending(client, flow, &takes_it))?;
        let ended = Ended {
            hellos: self.runner.run_all(&hellos)?,
            half_opens: self.runner.run_all(&half_opens)?,
            flows: self.runner.end_flows(flows)?,
            closed: 0,
        };
        self.note_ended(ended.flows, &self.maps.settings.look_up(&0)?.unwrap_or_default());
        Ok(ended)
    }

    /// Notes that another thread ended flows.
    pub fn note_ended_elsewhere(&mut self, flows: u32) -> Result<(), ExpireError> {
        self.note_ended(flows, &self.maps.settings.look_up(&0)?.unwrap_or_default());
        Ok(())
    }

    /// Notes that flows were ended, whose entries linger.
    fn note_ended(&mut self, flows: u32, settings: &Settings) {
        self.going.add(flows, now_secs(), settings.closed_timeout_secs);
    }

    /// Ends waiting hellos, half-open connections, closed flows and flows that are held at their time limits, sends SYNs again, and goes on
    /// with trials. Run every second.
    pub fn sweep_waiting(&mut self, settings: &Settings) -> Result<Ended, ExpireError> {
        let now = now_ns();
        let (mut hellos, mut syns, mut half_opens, mut waiting) = (Vec::new(), Vec::new(), Vec::new(), 0);
        self.maps.hellos.walk(|client, hello| {
            waiting += 1;
            if hello_is_due(hello, now, settings) {
                hellos.push(of_record(client, &hello.connection, Reason::ExpireHello));
            } else if syn_is_due(hello, now) {
                syns.push(of_record(client, &hello.connection, Reason::ConnectAgain));
            }
        })?;
        self.maps.half_opens.walk(|client, half_open| {
            if half_open_is_due(half_open, now, settings) {
                half_opens.push(of_record(client, &half_open.connection, Reason::ExpireHalfOpen));
            }
        })?;
        self.found.hellos = waiting;
        for syn in &syns {
            if self.runner.request(syn)? == EXPIRE_UNRESOLVED {
                let hello = self.maps.hellos.look_up(&syn.client)?;
                self.probes.note_unresolved(hello.map(|hello| hello.nat.backend.into()));
            }
        }
        let ended = Ended {
            hellos: self.runner.run_all(&hellos)?,
            half_opens: self.runner.run_all(&half_opens)?,
            closed: self.sweep_closed(settings)?,
            flows: self.probes.sweep(&self.maps, &self.runner)? + self.sweep_held()?,
        };
        self.note_ended(ended.flows, settings);
        let orphans = self.orphans.sweep(&self.maps, now_secs())?;
        if orphans > 0 {
            tracing::warn!(orphans, "removed source ports that belonged to no connection");
        }
        Ok(ended)
    }

    /// Returns the backends whose link address the last sweeps missed, and forgets them.
    pub fn take_unresolved(&mut self) -> Vec<IpAddr> {
        self.probes.take_unresolved()
    }

    /// Takes up a flow that a RST put on trial. The walks find what was not reported.
    pub fn take_up(&mut self, client: &ClientTuple) -> Result<(), ExpireError> {
        if let Some(flow) = self.maps.flows.look_up(client)? {
            self.probes.trials.reported(client, &flow);
        }
        Ok(())
    }

    /// Ends flows that are held and whose time is over since the last walk.
    fn sweep_held(&mut self) -> Result<u32, ExpireError> {
        let now = now_secs();
        let due = self.held.due(now);
        let ended = self.end_held(&due, now);
        if ended.is_err() {
            // The next walk may be minutes away.
            self.held.put_back(due, now);
        }
        ended
    }

    fn end_held(&mut self, due: &[ClientTuple], now: u32) -> Result<u32, ExpireError> {
        let mut orders = Vec::new();
        for client in due {
            let Some(flow) = self.maps.flows.look_up(client)? else { continue };
            if self.held.over(client, &flow, now) == Some(Over::End) {
                orders.push(of_held(client, &flow, Reason::ExpireHeld));
            }
        }
        self.runner.end_flows(orders)
    }

    /// Has the program remove the flows that have been closed for long enough, in the order they closed. Returns how many slots
    /// of the ring it freed; closing connections free some as well.
    fn sweep_closed(&self, settings: &Settings) -> Result<u32, ExpireError> {
        let places = u64::from(settings.closed);
        // Older slots were written over.
        let oldest = |cursors: Cursors| cursors.closed_tail.max(cursors.closed_head.saturating_sub(places));
        let look = || Ok::<_, ExpireError>(self.maps.cursors.look_up(&0)?.map_or(0, oldest));
        let before = look()?;
        let due = Expiry { seq: CLOSED_RING_DUE, ..expiry(&ClientTuple::zeroed(), Reason::ExpireClosed) };
        while self.run(&due)? {}
        Ok((look()? - before) as u32)
    }

    /// Checks every flow: ends idle ones and those that are held, removes closed ones that are left over, notes those on
    /// trial, asks the ends of silent ones, and makes room in a crowded map and for backends with few source ports left.
    pub fn sweep_flows(&mut self, settings: &Settings) -> Result<Ended, ExpireError> {
        let now = now_secs();
        let (mut idle, mut closed, mut stuck) = (Vec::new(), Vec::new(), Vec::new());
        let found = self.crowd()?;
        let mut crowd = self.crowded.walk(found, now);
        let (probes, held, ports, mut found) = (&mut self.probes, &mut self.held, &mut self.ports, 0);
        self.awaited.begin()?;
        probes.begin(now);
        held.begin();
        ports.begin(settings);
        self.maps.flows.walk(|client, flow| {
            found += 1;
            match flow_is_due(flow, now, settings) {
                Some(Reason::ExpireClosed) => closed.push(of_flow(client, flow, Reason::ExpireClosed)),
                Some(reason) => idle.push(of_flow(client, flow, reason)),
                None => {
                    match held.over(client, flow, now) {
                        Some(Over::End) => return idle.push(of_held(client, flow, Reason::ExpireHeld)),
                        Some(Over::Ask) => stuck.push((*client, *flow)),
                        None => {}
                    }
                    probes.note(client, flow);
                    if crowd.is_crowded() {
                        crowd.note(client, flow, held.stuck(client, flow, now), now);
                    }
                    if let Some(crowd) = ports.note(flow, probes.trials.makes_room(client, flow)) {
                        crowd.note(client, flow, held.stuck(client, flow, now), now);
                    }
                }
            }
        })?;
        held.end(now);
        self.found.flows = found;
        let (flows, closed) = (self.runner.end_flows(idle)?, self.runner.run_all(&closed)?);
        for (client, flow) in &stuck {
            self.probes.ask_both(&self.runner, client, flow, Why::Held)?;
        }
        let mut evicted = crowd.into_first();
        evicted.append(self.ports.end(&evicted));
        let crowded = self.make_room(evicted)?;
        self.note_ended(flows + crowded, settings);
        self.probes.end(&self.runner)?;
        Ok(Ended { flows: flows + crowded, closed, ..Ended::default() })
    }

    /// Removes what is left of connections that are gone: counts of sources, and undelivered bytes. `true`: the counts had to make room.
    pub fn sweep_left(&mut self, settings: &Settings) -> Result<(Ended, bool), ExpireError> {
        let (hellos, is_full) = leftovers::sweep(&self.maps, &self.runner, settings)?;
        Ok((Ended { hellos, ..Ended::default() }, is_full))
    }

    /// Whether walks have more to find than what time limits end: source ports towards a backend are nearly used up, or were all taken,
    /// or reports of flows on trial may be lost.
    pub fn is_awaited(&self) -> Result<bool, ExpireError> {
        Ok(self.ports.are_short() || self.awaited.is_there()?)
    }

    /// Whether the map of flows is so full that all flows are to be checked every second.
    pub fn is_crowded(&mut self) -> Result<bool, ExpireError> {
        let (flows, at) = self.counted;
        // Adding up the counters of all routes takes time.
        let may_be = crowd::may_be_crowded(flows, now_secs().saturating_sub(at), self.maps.flows.capacity());
        let is_crowded = may_be && self.crowd()?.is_crowded();
        if !is_crowded {
            self.crowded.end();
        }
        Ok(is_crowded)
    }

    /// Returns how crowded the map of flows is.
    fn crowd(&mut self) -> Result<Crowd, ExpireError> {
        let closed = self.maps.settings.look_up(&0)?.unwrap_or_default().closed;
        let going = self.probes.trials.crowded() + self.going.count(now_secs(), closed);
        Ok(Crowd::new(self.count()?, self.maps.flows.capacity(), going, closed))
    }

    /// Returns the number of flows, those that are over and linger included.
    fn count(&mut self) -> Result<u64, ExpireError> {
        let mut flows = 0;
        self.maps.route_counters.walk(|_, counters| flows += u64::from(admit::count(counters.flows)))?;
        self.counted = (flows, now_secs());
        Ok(flows)
    }

    /// Ends the first of the flows that are evicted, and asks the ends of idle ones. [`Self::end_more`] ends the others.
    fn make_room(&mut self, evicted: Evicted) -> Result<u32, ExpireError> {
        self.going.evict(evicted.stuck);
        let ended = self.end_piece()?;
        for (client, flow) in &evicted.idle {
            self.probes.ask_both(&self.runner, client, flow, Why::Room)?;
        }
        Ok(ended)
    }

    /// Whether some of the flows that the last walk evicted are still to be ended.
    pub fn is_evicting(&self) -> bool {
        self.going.is_evicting()
    }

    /// Ends more of the flows that the last walk evicted, for less than a tenth of a second of CPU. What had progress since stays.
    pub fn end_more(&mut self) -> Result<Ended, ExpireError> {
        let flows = self.end_piece()?;
        self.note_ended_elsewhere(flows)?;
        Ok(Ended { flows, ..Ended::default() })
    }

    /// Ends flows that are evicted, several in each run. After an error, the next walk finds the others.
    fn end_piece(&mut self) -> Result<u32, ExpireError> {
        let piece = self.going.next();
        self.runner.end_flows(piece).inspect_err(|_| self.going.give_up())
    }
}
