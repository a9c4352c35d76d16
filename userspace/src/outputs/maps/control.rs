//! What the kernel holds, and the writes that keep it in step with what is desired.

use std::collections::BTreeSet;
use std::mem::replace;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use tracing::{debug, info, warn};

use super::checks::{
    check_forwarding, node_exceptions, node_problems, refuse_errors, size_changes, unserved,
};
use super::complaints::Complaints;
use super::egress::Egress;
use super::hooks::Hooks;
use super::node_clients::{Followed, When};
use super::prepared::{Options, Prepared};
use super::reaper::{self, Ended, Freed, Reaper};
use crate::dataplane::apply::apply;
use crate::dataplane::attach;
use crate::dataplane::load::Programs;
use crate::dataplane::maps::{CookieKeys, Maps, settle};
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::dataplane::table::TableError;
use crate::model::{Desired, Problem};
use crate::outputs::{Done, Drifted, Exception, Order, StartError};
use crate::plan::{self, Applied, Change, Plan, plan};

/// The kernel side and what is known about it.
pub(super) struct Control {
    pins: Pins,
    is_strict: bool,
    programs: Programs,
    maps: Maps,
    reaper: Reaper,
    egress: Egress,
    /// The state in effect.
    desired: Arc<Desired>,
    keys: Option<CookieKeys>,
    applied: Applied,
    /// The maps hold all that is desired, so an equal state needs no work.
    is_in_step: bool,
    hooks: Hooks,
    complaints: Complaints,
}

/// How often a start waits for deletions.
const WAITS: u32 = 3;
/// The index of the loopback device, the same in every network namespace.
const LOOPBACK: u32 = 1;

impl Control {
    /// Adopts what is pinned or creates it, then continues from the maps. Needs the right to write.
    pub(super) fn begin(options: &Options, prepared: Prepared, order: Order) -> Result<Self, StartError> {
        let pins = &options.pins;
        let Prepared { is_strict, mut egress, programs } = prepared;
        let mut programs = match programs {
            Some(programs) => programs,
            None => Programs::load(pins, (&order.desired.settings).into())?,
        };
        programs.pin()?;
        let maps = Maps::open(pins)?;
        maps.make_cookie_keys()?;
        maps.make_port_cursors()?;
        let applied = Applied::from_maps(read::content(&maps)?);
        let mut reaper = Reaper::start(pins, LOOPBACK, options.swept.clone())?;
        reaper.end_removed(Ended::left(&applied))?;
        if !Arc::ptr_eq(egress.node(), &order.node.network) {
            egress.look_again(Arc::clone(&order.node.network));
        }
        let mut this = Self {
            pins: pins.clone(),
            is_strict,
            programs,
            maps,
            reaper,
            egress,
            hooks: Hooks::found(options, &order),
            desired: order.desired,
            keys: None,
            applied,
            is_in_step: false,
            complaints: Complaints::default(),
        };
        this.withdraw(order.is_withdrawn)?;
        // Before any listener exists: the cluster's keys would end a handshake started with our own key.
        this.sign_with(order.keys.as_ref())?;
        this.bring_at_start(order.begun)?;
        this.audit()?;
        this.follow_node_clients(When::Order);
        Ok(this)
    }

    /// Has every connection ended that an earlier plan, carried out in part, may have called for.
    fn audit(&self) -> Result<(), StartError> {
        let generation = read::next_generation(&self.maps)?;
        Ok(self.reaper.ask(reaper::Order::Audit(self.applied.census(), generation))?)
    }

    /// Stops writing. What is in the kernel keeps serving.
    pub(super) fn release(mut self) {
        self.reaper.end();
        self.hooks.node_clients.release(&self.pins);
    }

    /// Brings the kernel in step with an order. If refused, the previous state stays, but follows the network.
    pub(super) fn follow(&mut self, order: Order) -> Result<Done, StartError> {
        self.hooks.node_clients.note(&order);
        let outcome = self.carry_order_out(order);
        self.follow_node_clients(When::Order);
        outcome
    }

    /// Leads clients on the node itself to what the maps serve.
    fn follow_node_clients(&mut self, when: When) -> Followed {
        if self.hooks.node_clients.rests(&self.desired, when) {
            return Followed::default();
        }
        let (leading, node) = (self.applied.leading(&self.desired), self.egress.node());
        let (desired, programs) = (&self.desired, &mut self.programs);
        self.hooks.node_clients.follow((desired, when), &leading, node, programs, &self.pins)
    }

    fn carry_order_out(&mut self, order: Order) -> Result<Done, StartError> {
        let Order { desired, node, keys, is_withdrawn, begun, .. } = order;
        // Whether or not the rest can be done.
        self.withdraw(is_withdrawn)?;
        let has_moved = !Arc::ptr_eq(self.egress.node(), &node.network);
        if has_moved {
            self.egress.look_again(node.network);
        }
        let mut done = match has_moved && Arc::ptr_eq(&desired, &self.desired) {
            true => self.bring(begun)?,
            false => match self.reload(desired, begun) {
                Err(refused @ StartError::Problems(_)) if has_moved => {
                    self.bring(begun)?;
                    return Err(refused);
                }
                outcome => outcome?,
            },
        };
        self.sign_with(keys.as_ref())?;
        done.took = begun.elapsed();
        Ok(done)
    }

    /// Applies another configuration. If it is refused, the previous one stays in effect.
    fn reload(&mut self, desired: Arc<Desired>, begun: Instant) -> Result<Done, StartError> {
        refuse_errors(&size_changes(&self.desired.settings, &desired.settings))?;
        let changed = self.desired.routes.differences(&desired.routes);
        let is_same = changed.is_empty()
            && (&self.desired.settings, &self.desired.listeners) == (&desired.settings, &desired.listeners);
        if is_same && self.is_in_step && self.egress.is_current() {
            drop(changed);
            self.applied.take_equal(&desired);
            self.desired = desired;
            return Ok(Done::default());
        }
        self.egress.follow(&desired, &changed)?;
        debug!(elapsed = ?begun.elapsed(), changed = changed.len(), "egress known");
        drop(changed);
        self.reuse_ids();
        let plan = plan(&self.applied, &desired, self.egress.hops());
        debug!(elapsed = ?begun.elapsed(), "planned");
        if self.is_strict
            && let Err(refused) = refuse_errors(&plan.problems)
        {
            self.egress.distrust();
            return Err(self.awaited(&plan.applied).unwrap_or(refused));
        }
        let before = replace(&mut self.desired, desired);
        let done = self.carry_out(plan, begun);
        // Freeing many routes takes a while, so it is done only after the new ones are in effect.
        drop(before);
        done
    }

    /// Brings the kernel in step with what is desired.
    fn bring(&mut self, begun: Instant) -> Result<Done, StartError> {
        self.egress.find(&self.desired)?;
        self.reuse_ids();
        let plan = plan(&self.applied, &self.desired, self.egress.hops());
        self.carry_out(plan, begun)
    }

    /// Carries out what waits until connections are ended, if any is: backends that are gone are forgotten, and devices that led to
    /// them are left. To be called from time to time: no order may follow.
    pub(super) fn finish_removals(&mut self) -> Result<(), StartError> {
        self.reuse_ids();
        if self.applied.has_senders_to_forget() {
            self.bring(Instant::now())?;
        }
        Ok(())
    }

    /// The same at a start, with the time that deletions take for which it waits.
    fn bring_at_start(&mut self, begun: Instant) -> Result<Done, StartError> {
        let mut done = self.bring(begun);
        for _ in 0..WAITS {
            if !matches!(done, Err(StartError::ListenerIds | StartError::SourceRanges)) {
                break;
            }
            thread::sleep(reaper::AGAIN + reaper::AGAIN / 4);
            done = self.bring(begun);
        }
        done
    }

    fn reuse_ids(&mut self) {
        let Freed { listeners, policies, senders } = self.reaper.freed();
        self.applied.reuse_listeners(listeners);
        self.applied.forget_policies(policies);
        self.applied.forget_senders(senders);
    }

    /// Returns what a listener or route waits for that there is once removals are completed.
    fn awaited(&self, applied: &Applied) -> Option<StartError> {
        let ids = applied.lacks_listener_ids() && self.reaper.is_removing_listeners();
        let room = applied.lacks_policies() && self.reaper.is_removing_policies();
        ids.then_some(StartError::ListenerIds).or(room.then_some(StartError::SourceRanges))
    }

    fn carry_out(&mut self, mut plan: Plan, begun: Instant) -> Result<Done, StartError> {
        self.is_in_step = false;
        let chosen = self.egress.chosen();
        // Before any route uses a device: without our program there, the node itself would answer replies.
        self.attach(&chosen.devices)?;
        let (names, node) = (&self.desired.settings.xdp_devices, self.egress.node());
        let fronts = self.hooks.follow(names, node, &chosen.devices, &mut self.programs, &self.pins);
        if !self.is_strict && self.egress.keep_to(&self.hooks.tcx) {
            plan = plan::plan(&self.applied, &self.desired, self.egress.hops());
        }
        self.complaints.note_fronts(fronts);
        self.complaints.log(&plan.problems, &chosen);
        let before_writing = begun.elapsed();
        let changes = plan.changes.iter().filter(|change| !matches!(change, Change::Settle)).count();
        // What follows `Settle` waits until no packet is between two lookups. New connections need not.
        let place = plan.changes.iter().position(|change| matches!(change, Change::Settle));
        let mut retire = plan.changes.split_off(place.unwrap_or(plan.changes.len()));
        let written = apply(&self.maps, &plan.changes).inspect_err(|_| self.recover())?;
        let senders = &plan.applied.gone_senders() - &self.applied.gone_senders();
        self.applied = plan.applied;
        let mut ended = Ended { later: plan.later, senders, ..Ended::default() };
        ended.selector.join(written.reset.unwrap_or_default());
        for change in retire.extract_if(.., |change| matches!(change, Change::Settle | Change::Reset(_))) {
            if let Change::Reset(selector) = change {
                ended.selector.join(*selector);
            }
        }
        ended.retire = retire;
        if !ended.selector.ranges.is_empty() {
            // No packet is in flight any more that was admitted by what is no longer written.
            settle();
            match read::next_generation(&self.maps) {
                Ok(generation) => ended.selector.admit_since(generation),
                Err(error) => warn!(%error, "which connections were admitted before is not known"),
            }
        }
        self.reaper.end_removed(ended)?;
        self.hooks.tcx.retain(|index| chosen.devices.contains(index));
        // What a backend that is gone sends on a connection that is being ended must not pass us.
        if !self.reaper.is_ending_senders() {
            self.hooks.leave(&chosen.devices, self.egress.node(), &self.pins)?;
        }
        self.complaints.problems = plan.problems;
        self.complaints.problems.extend(node_problems(self.egress.node(), &chosen, &self.desired));
        self.complaints.exceptions = self.unheld();
        if let Some(awaited) = self.awaited(&self.applied) {
            return Err(awaited);
        }
        self.is_in_step = true;
        let in_force = before_writing + written.in_force.unwrap_or_default();
        Ok(Done { changes, in_force, writes: written.writes, took: begun.elapsed() })
    }

    /// Writes keys that all nodes share to the maps, and selects the one that signs. The keys before stay
    /// valid while they are in the other slot.
    fn sign_with(&mut self, keys: Option<&CookieKeys>) -> Result<(), TableError> {
        let Some(keys) = keys.filter(|keys| self.keys.as_ref() != Some(*keys)) else { return Ok(()) };
        self.maps.put_cookie_keys(keys)?;
        self.maps.settings.put(&0, &self.applied.sign_with(keys.current))?;
        self.keys = Some(keys.clone());
        Ok(())
    }

    /// Refuses new connections, or takes them again, as far as it is for the agent to say. Returns whether the command line requested
    /// that they be refused. To be called from time to time: the command line may overwrite what the agent says.
    pub(super) fn withdraw(&self, is_withdrawn: bool) -> Result<bool, TableError> {
        self.maps.withdraw(is_withdrawn)
    }

    /// Reads the content of the maps again, since it is unknown after a failed write.
    fn recover(&mut self) {
        // Otherwise a backend whose retirement is not written yet would be adopted as in use, then retired; and what is to be
        // deleted may be adopted, and be deleted then.
        self.reaper.forget_deletions();
        match read::content(&self.maps) {
            Ok(content) => {
                self.applied = Applied::from_maps(content);
                let left = self.reaper.end_removed(Ended::left(&self.applied));
                // What was written may have to end connections, and the next plan does not call for that.
                if let Err(error) = left.map_err(StartError::from).and_then(|()| self.audit()) {
                    warn!(%error, "what the failed write left is still there");
                }
            }
            Err(error) => warn!(%error, "what the maps hold cannot be read"),
        }
    }

    fn attach(&mut self, devices: &BTreeSet<u32>) -> Result<(), StartError> {
        if let Err(error) = check_forwarding(self.egress.node(), devices, &self.desired) {
            warn!(%error, "a device cannot forward");
        }
        let mut failed = None;
        for index in devices.difference(&self.hooks.tcx.clone()) {
            let device = self.egress.node().name(*index);
            match attach::attach(&mut self.programs, &self.pins, *index) {
                Ok(()) => {
                    self.hooks.tcx.insert(*index);
                    info!(device, "attached");
                }
                // A device may disappear at this moment. The next change of the network tries again.
                Err(error) => {
                    warn!(%error, device, "not attached");
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed.filter(|_| self.hooks.tcx.is_empty() && self.is_strict) {
            return Err(error.into());
        }
        self.reaper.ask(reaper::Order::Device(self.hooks.tcx.first().copied().unwrap_or(LOOPBACK)))?;
        Ok(())
    }

    /// Returns the devices that have the program.
    pub(super) fn attached(&self) -> &BTreeSet<u32> {
        &self.hooks.tcx
    }

    /// Returns what the maps hold, and what they should.
    pub(super) fn held(&self) -> (&Applied, &Desired) {
        (&self.applied, &self.desired)
    }

    /// Returns the names of the devices that have the program, joined by commas.
    pub(super) fn devices(&self) -> String {
        let names: Vec<String> = self.hooks.tcx.iter().map(|index| self.egress.node().name(*index)).collect();
        names.join(",")
    }

    /// Returns what the node cannot do of the state in effect, and why.
    pub(super) fn problems(&self) -> Vec<Problem> {
        [&*self.complaints.problems(), self.hooks.node_clients.problems()].concat()
    }

    /// Returns what is not held of the state in effect, apart from what drifted.
    fn unheld(&self) -> Vec<Exception> {
        let chosen = self.egress.chosen();
        let of_node = node_exceptions(self.egress.node(), &chosen, &self.hooks.tcx, &self.desired);
        of_node.into_iter().chain(unserved(&self.desired, &self.applied, &self.egress.node().own)).collect()
    }

    /// Returns what is not held of the state in effect.
    pub(super) fn exceptions(&self) -> Vec<Exception> {
        self.complaints.exceptions()
    }

    /// Looks at a part of what the kernel should hold, and repairs what other programs changed of it. `None`: nothing is different from
    /// what the last look found.
    pub(super) fn look_for_drift(&mut self) -> Option<Drifted> {
        let before = self.exceptions();
        let drift = &mut self.complaints.drift;
        let (mut repaired, is_over) = match self.is_in_step {
            true => drift.look(&self.applied, &self.maps),
            // What the maps should hold is not known, and will be written again. But where XDP should be is.
            false => (0, drift.skip()),
        };
        if is_over {
            repaired += self.hooks.look_at_tcx(drift, &mut self.programs, &self.pins, self.egress.node());
        }
        if is_over && self.is_in_step {
            self.complaints.exceptions = self.unheld();
        }
        let (names, node, mut is_news) = (&self.desired.settings.xdp_devices, self.egress.node(), false);
        let (programs, pins, chosen) = (&mut self.programs, &self.pins, &self.egress.chosen().devices);
        if let Some((attached, found)) = self.hooks.look_again(is_over, names, node, chosen, programs, pins) {
            (repaired, is_news) = (repaired + attached, self.complaints.note_fronts(found));
        }
        if self.is_in_step {
            let followed = self.follow_node_clients(if is_over { When::Look } else { When::Second });
            (repaired, is_news) = (repaired + followed.repaired, is_news | followed.is_news);
        }
        let exceptions = self.exceptions();
        let is_news = is_news || repaired > 0 || exceptions != before;
        is_news.then(|| Drifted { problems: self.problems(), exceptions, repaired })
    }
}
