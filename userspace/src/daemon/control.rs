//! What the kernel holds, and how it is brought in step with what is desired.

use std::collections::BTreeSet;
use std::mem::replace;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::devices::{Choice, Chosen, choose};
use super::keeper::{Keeper, KeeperGone, Order};
use crate::dataplane::apply::apply;
use crate::dataplane::attach::{self, AttachError};
use crate::dataplane::load::{LoadError, Programs};
use crate::dataplane::maps::Maps;
use crate::dataplane::pin::{PinError, Pins, Writer};
use crate::dataplane::read;
use crate::dataplane::sizes::Sizes;
use crate::dataplane::table::TableError;
use crate::model::{Desired, Problem, Settings};
use crate::net::NetError;
use crate::net::node::Node;
use crate::net::sysctl::{self, ForwardingOff};
use crate::net::ways::Ways;
use crate::plan::{Applied, Change, Hops, Plan, plan};

/// Why the kernel is not in step.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be used on this node.
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
    /// The devices cannot be used.
    #[error("{}", .0.join("\n"))]
    Devices(Vec<String>),
    /// The kernel does not forward.
    #[error(transparent)]
    Forwarding(#[from] ForwardingOff),
    /// The pin folder.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The programs.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A device.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The node's network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The thread that ends connections.
    #[error(transparent)]
    Keeper(#[from] KeeperGone),
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// Map writes.
    pub changes: usize,
    /// From the beginning until new connections went the new way.
    pub in_force: Duration,
}

/// The kernel's side and what is known about it.
pub(super) struct Control {
    pins: Pins,
    /// Held as long as we write.
    _writer: Writer,
    programs: Programs,
    maps: Maps,
    keeper: Keeper,
    choice: Choice,
    node: Node,
    ways: Ways,
    desired: Desired,
    applied: Applied,
    /// Devices that have our program.
    attached: BTreeSet<u32>,
    /// Problems already logged, so that each is logged once.
    told: BTreeSet<String>,
}

/// Index of the loopback device of every network namespace.
const LOOPBACK: u32 = 1;

/// Problems logged at once.
pub(super) const LOGGED: usize = 20;

fn sizes(settings: &Settings) -> Sizes {
    Sizes { flows: settings.max_flows, names: settings.max_names, hellos: settings.max_hellos }
}

impl Control {
    /// Adopts what is pinned or makes it anew. Everything that can be refused is refused before anything is touched.
    pub(super) fn start(pins: Pins, choice: Choice, desired: Desired) -> Result<Self, StartError> {
        pins.prepare()?;
        let writer = pins.lock()?;
        let fresh = !pins.holds_maps();
        let started = Self::judge(&choice, &desired)
            .and_then(|(node, ways)| Self::load(&pins, writer, choice, node, ways, desired));
        // A start that failed leaves nothing behind, but what was there before it is not its to remove.
        if started.is_err()
            && fresh
            && let Err(error) = pins.remove()
        {
            warn!(%error, "what the failed start made is still there");
        }
        started
    }

    /// Whether the configuration fits this node; touches nothing.
    fn judge(choice: &Choice, desired: &Desired) -> Result<(Node, Ways), StartError> {
        let (node, mut ways) = (Node::look()?, Ways::default());
        let (hops, chosen) = surroundings(choice, &node, &mut ways, desired)?;
        if matches!(choice, Choice::Named(_)) && !chosen.unusable.is_empty() {
            return Err(StartError::Devices(chosen.unusable));
        }
        check_forwarding(&node, &chosen.devices, desired)?;
        refuse_errors(&plan(&Applied::default(), desired, &hops).problems)?;
        Ok((node, ways))
    }

    fn load(
        pins: &Pins,
        writer: Writer,
        choice: Choice,
        node: Node,
        ways: Ways,
        desired: Desired,
    ) -> Result<Self, StartError> {
        let mut programs = Programs::load(pins, sizes(&desired.settings))?;
        programs.pin()?;
        let maps = Maps::open(pins)?;
        maps.make_cookie_keys()?;
        let applied = Applied::from_maps(read::content(&maps)?);
        let keeper = Keeper::start(pins, LOOPBACK)?;
        let mut this = Self {
            pins: pins.clone(),
            _writer: writer,
            programs,
            maps,
            keeper,
            choice,
            node,
            ways,
            desired,
            applied,
            attached: BTreeSet::new(),
            told: BTreeSet::new(),
        };
        this.bring(Instant::now())?;
        this.keeper.ask(Order::Audit(this.applied.census()))?;
        Ok(this)
    }

    /// Another configuration; the one before stays when this one is refused.
    pub(super) fn reload(&mut self, desired: Desired, begun: Instant) -> Result<Done, StartError> {
        refuse_errors(&size_changes(&self.desired.settings, &desired.settings))?;
        let (hops, chosen) = surroundings(&self.choice, &self.node, &mut self.ways, &desired)?;
        debug!(elapsed = ?begun.elapsed(), "ways known");
        let plan = plan(&self.applied, &desired, &hops);
        debug!(elapsed = ?begun.elapsed(), "planned");
        refuse_errors(&plan.problems)?;
        let before = replace(&mut self.desired, desired);
        let done = self.carry_out(plan, chosen, begun);
        // Freeing ten thousand routes takes a while: not before the others are in force.
        drop(before);
        done
    }

    /// Devices, addresses or routes changed.
    pub(super) fn network_changed(&mut self) -> Result<Done, StartError> {
        let begun = Instant::now();
        self.node = Node::look()?;
        self.ways.forget();
        self.bring(begun)
    }

    /// Brings the kernel in step with what is desired.
    fn bring(&mut self, begun: Instant) -> Result<Done, StartError> {
        let (hops, chosen) = surroundings(&self.choice, &self.node, &mut self.ways, &self.desired)?;
        let plan = plan(&self.applied, &self.desired, &hops);
        self.carry_out(plan, chosen, begun)
    }

    fn carry_out(&mut self, plan: Plan, chosen: Chosen, begun: Instant) -> Result<Done, StartError> {
        self.tell(&plan.problems, &chosen);
        // Before any route leads over it: a reply on a device without our program would be answered by the node.
        self.attach(&chosen.devices)?;
        let before_writing = begun.elapsed();
        let written = apply(&self.maps, &plan.changes).inspect_err(|_| self.recover())?;
        self.applied = plan.applied;
        self.detach(&chosen.devices)?;
        if written.reset.is_some() || !plan.later.is_empty() {
            self.keeper.ask(Order::End { selector: written.reset, later: plan.later })?;
        }
        let changes = plan.changes.iter().filter(|change| !matches!(change, Change::Settle)).count();
        Ok(Done { changes, in_force: before_writing + written.in_force.unwrap_or_default() })
    }

    /// After a write that failed only the maps know what they hold.
    fn recover(&mut self) {
        match read::content(&self.maps) {
            Ok(content) => self.applied = Applied::from_maps(content),
            Err(error) => warn!(%error, "what the maps hold cannot be read"),
        }
    }

    fn attach(&mut self, devices: &BTreeSet<u32>) -> Result<(), StartError> {
        if let Err(error) = check_forwarding(&self.node, devices, &self.desired) {
            warn!(%error, "a device cannot forward");
        }
        let mut failed = None;
        for index in devices.difference(&self.attached.clone()) {
            let device = self.node.name(*index);
            match attach::attach(&mut self.programs, &self.pins, *index) {
                Ok(()) => {
                    self.attached.insert(*index);
                    info!(device, "attached");
                }
                // A device may go while we look at it; the next change of the network tries again.
                Err(error) => {
                    warn!(%error, device, "not attached");
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed.filter(|_| self.attached.is_empty()) {
            return Err(error.into());
        }
        self.keeper.ask(Order::Device(self.attached.first().copied().unwrap_or(LOOPBACK)))?;
        Ok(())
    }

    /// Takes the program off every other device, those of an earlier start included.
    fn detach(&mut self, keep: &BTreeSet<u32>) -> Result<(), StartError> {
        for index in self.pins.linked_devices()? {
            if !keep.contains(&index) {
                attach::detach(&self.pins, index)?;
                info!(device = self.node.name(index), "detached");
            }
        }
        self.attached.retain(|index| keep.contains(index));
        Ok(())
    }

    /// Logs what is news.
    fn tell(&mut self, problems: &[Problem], chosen: &Chosen) {
        let devices = chosen.unusable.iter().chain(&chosen.beyond).cloned();
        let now: BTreeSet<String> = problems.iter().map(ToString::to_string).chain(devices).collect();
        let news: Vec<&String> = now.difference(&self.told).collect();
        for problem in news.iter().take(LOGGED) {
            warn!("{problem}");
        }
        if news.len() > LOGGED {
            warn!("and {} more like these", news.len() - LOGGED);
        }
        self.told = now;
    }

    /// Names of the devices that have the program.
    pub(super) fn devices(&self) -> String {
        let names: Vec<String> = self.attached.iter().map(|index| self.node.name(*index)).collect();
        names.join(",")
    }

    /// What is in force.
    pub(super) fn desired(&self) -> &Desired {
        &self.desired
    }
}

/// The ways to the backends over devices of ours, and which devices those are.
fn surroundings(
    choice: &Choice,
    node: &Node,
    ways: &mut Ways,
    desired: &Desired,
) -> Result<(Hops, Chosen), StartError> {
    let mut towards = ways.towards(&desired.backend_addresses(), node)?;
    let chosen = choose(choice, node, &mut towards);
    Ok((Hops { towards, own: node.own.clone() }, chosen))
}

/// The maps keep the sizes they were made with.
fn size_changes(before: &Settings, after: &Settings) -> Vec<Problem> {
    let sizes = [
        ("maxFlows", before.max_flows, after.max_flows),
        ("maxNames", before.max_names, after.max_names),
        ("maxHellos", before.max_hellos, after.max_hellos),
    ];
    let changed = sizes.into_iter().filter(|(_, before, after)| before != after);
    changed
        .map(|(setting, before, after)| {
            Problem::error(
                format!("settings.{setting}"),
                format!("cannot change from {before} while the maps are pinned"),
                "put it back, or `vestibule detach` (which ends all connections) and start again",
            )
            .value(after)
        })
        .collect()
}

fn refuse_errors(problems: &[Problem]) -> Result<(), StartError> {
    let errors: Vec<Problem> = problems.iter().filter(|problem| problem.is_error()).cloned().collect();
    if errors.is_empty() { Ok(()) } else { Err(StartError::Problems(errors)) }
}

fn check_forwarding(node: &Node, devices: &BTreeSet<u32>, desired: &Desired) -> Result<(), ForwardingOff> {
    let listening = desired.listeners.iter().flat_map(|listener| &listener.addresses);
    let v4 = listening.clone().any(|address| address.is_ipv4());
    let v6 = listening.clone().any(|address| address.is_ipv6());
    for index in devices {
        sysctl::forwarding(&node.name(*index), v4, v6)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_size_is_refused_by_field_and_value() {
        let before = Settings::default();
        assert!(size_changes(&before, &before).is_empty());
        let after = Settings { max_names: 7, idle_timeout: Duration::from_secs(9), ..Settings::default() };
        let problems = size_changes(&before, &after);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!((problem.field.as_str(), problem.value.as_str()), ("settings.maxNames", "7"));
        assert!(problem.is_error() && problem.remedy.contains("detach"));
    }
}
