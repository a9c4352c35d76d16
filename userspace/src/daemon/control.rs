//! What the kernel holds, and how it is brought in step with what is desired.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::devices::{Choice, Chosen};
use super::error::StartError;
use super::keeper::{Ended, Keeper, Order};
use super::ways::Ways;
use crate::dataplane::apply::apply;
use crate::dataplane::attach;
use crate::dataplane::load::{self, LoadError, Programs};
use crate::dataplane::maps::{CookieKeys, Maps};
use crate::dataplane::pin::{PinError, Pins, Writer};
use crate::dataplane::read;
use crate::dataplane::sizes::Sizes;
use crate::dataplane::table::TableError;
use crate::model::{Desired, Problem, Settings};
use crate::net::node::Node;
use crate::net::sysctl::{self, ForwardingOff};
use crate::plan::{self, Applied, Change, Plan, plan};

/// What was done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// Map writes.
    pub changes: usize,
    /// From the beginning until new connections went the new way.
    pub in_force: Duration,
    /// Elements written to each map or deleted from it.
    pub writes: BTreeMap<&'static str, u64>,
}

/// What makes nobody wait once there is the right to write.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Refuse what cannot all be done, instead of doing the rest.
    strict: bool,
    ways: Ways,
    /// Loaded already where maps are pinned; else they would make maps, which only the writer may.
    programs: Option<Programs>,
}

/// The kernel's side and what is known about it.
pub(crate) struct Control {
    pins: Pins,
    /// Held as long as we write.
    writer: Writer,
    strict: bool,
    programs: Programs,
    maps: Maps,
    keeper: Keeper,
    ways: Ways,
    desired: Arc<Desired>,
    applied: Applied,
    /// Devices that have our program.
    attached: BTreeSet<u32>,
    /// What the node cannot do of what is desired.
    problems: Vec<Problem>,
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

impl Prepared {
    /// Does what needs no right to write: looks at the node's network and, where maps are pinned, loads the programs.
    /// What a node cannot do of `desired` is told later and keeps nothing else from being done.
    pub(crate) fn new(pins: &Pins, choice: Choice, desired: &Desired) -> Result<Self, StartError> {
        let programs = match load::need_version(pins) {
            Ok(()) => Some(Programs::load(pins, sizes(&desired.settings))?),
            // Nothing there, or another start is making it: whoever has the right to write sees to it.
            Err(LoadError::Pin(PinError::Nothing(_)) | LoadError::Abi { found: 0, .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { strict: false, ways: Ways::new(choice, Node::look()?), programs })
    }

    /// Whether the configuration fits this node; touches nothing.
    fn strictly(choice: Choice, desired: &Desired) -> Result<Self, StartError> {
        let is_named = matches!(choice, Choice::Named(_));
        let mut ways = Ways::new(choice, Node::look()?);
        ways.find(desired)?;
        let chosen = ways.chosen();
        if is_named && !chosen.unusable.is_empty() {
            return Err(StartError::Devices(chosen.unusable.clone()));
        }
        check_forwarding(ways.node(), &chosen.devices, desired)?;
        refuse_errors(&plan::impossible(desired, ways.hops()))?;
        Ok(Self { strict: true, ways, programs: None })
    }
}

impl Control {
    /// Adopts what is pinned or makes it anew. Everything that can be refused is refused before anything is touched.
    pub(super) fn start(pins: Pins, choice: Choice, desired: Desired) -> Result<Self, StartError> {
        pins.prepare()?;
        let writer = pins.lock()?;
        let fresh = !pins.holds_maps();
        let started = Prepared::strictly(choice, &desired)
            .and_then(|prepared| Self::begin(&pins, writer, prepared, Arc::new(desired)));
        // A start that failed leaves nothing behind, but what was there before it is not its to remove.
        if started.is_err()
            && fresh
            && let Err(error) = pins.remove()
        {
            warn!(%error, "what the failed start made is still there");
        }
        started
    }

    /// Goes on with what the maps hold now, by the right to write.
    pub(crate) fn begin(
        pins: &Pins,
        writer: Writer,
        prepared: Prepared,
        desired: Arc<Desired>,
    ) -> Result<Self, StartError> {
        let Prepared { strict, ways, programs } = prepared;
        let mut programs = match programs {
            Some(programs) => programs,
            None => Programs::load(pins, sizes(&desired.settings))?,
        };
        programs.pin()?;
        let maps = Maps::open(pins)?;
        maps.make_cookie_keys()?;
        let applied = Applied::from_maps(read::content(&maps)?);
        let keeper = Keeper::start(pins, LOOPBACK)?;
        let mut this = Self {
            pins: pins.clone(),
            writer,
            strict,
            programs,
            maps,
            keeper,
            ways,
            desired,
            applied,
            attached: BTreeSet::new(),
            problems: Vec::new(),
            told: BTreeSet::new(),
        };
        this.bring(Instant::now())?;
        this.keeper.ask(Order::Audit(this.applied.census()))?;
        Ok(this)
    }

    /// Stops writing and gives the right to write back. What is in the kernel goes on serving.
    pub(crate) fn release(self) -> Writer {
        self.keeper.end();
        self.writer
    }

    /// Another configuration; the one before stays when this one is refused.
    pub(crate) fn reload(&mut self, desired: Arc<Desired>, begun: Instant) -> Result<Done, StartError> {
        refuse_errors(&size_changes(&self.desired.settings, &desired.settings))?;
        let changed = self.desired.routes.differences(&desired.routes);
        self.ways.follow(&desired, &changed)?;
        debug!(elapsed = ?begun.elapsed(), changed = changed.len(), "ways known");
        drop(changed);
        let plan = plan(&self.applied, &desired, self.ways.hops());
        debug!(elapsed = ?begun.elapsed(), "planned");
        if self.strict
            && let Err(refused) = refuse_errors(&plan.problems)
        {
            self.ways.distrust();
            return Err(refused);
        }
        let before = replace(&mut self.desired, desired);
        let done = self.carry_out(plan, begun);
        // Freeing many routes takes a while: not before the others are in force.
        drop(before);
        done
    }

    /// Devices, addresses or routes changed.
    pub(crate) fn network_changed(&mut self) -> Result<Done, StartError> {
        let begun = Instant::now();
        self.ways.look_again(Node::look()?);
        self.bring(begun)
    }

    /// Brings the kernel in step with what is desired.
    fn bring(&mut self, begun: Instant) -> Result<Done, StartError> {
        self.ways.find(&self.desired)?;
        let plan = plan(&self.applied, &self.desired, self.ways.hops());
        self.carry_out(plan, begun)
    }

    fn carry_out(&mut self, mut plan: Plan, begun: Instant) -> Result<Done, StartError> {
        let chosen = self.ways.chosen();
        // Before any route leads over it: a reply on a device without our program would be answered by the node.
        self.attach(&chosen.devices)?;
        if !self.strict && self.ways.keep_to(&self.attached) {
            plan = plan::plan(&self.applied, &self.desired, self.ways.hops());
        }
        self.tell(&plan.problems, &chosen);
        let before_writing = begun.elapsed();
        let changes = plan.changes.iter().filter(|change| !matches!(change, Change::Settle)).count();
        // What follows waits until no packet is between two lookups; new connections need not.
        let settle = plan.changes.iter().position(|change| matches!(change, Change::Settle));
        let mut retire = plan.changes.split_off(settle.unwrap_or(plan.changes.len()));
        let written = apply(&self.maps, &plan.changes).inspect_err(|_| self.recover())?;
        self.applied = plan.applied;
        self.detach(&chosen.devices)?;
        let mut ended = Ended { later: plan.later, ..Ended::default() };
        ended.selector.join(written.reset.unwrap_or_default());
        for change in retire.extract_if(.., |change| matches!(change, Change::Settle | Change::Reset(_))) {
            if let Change::Reset(selector) = change {
                ended.selector.join(*selector);
            }
        }
        ended.retire = retire;
        self.keeper.ask(Order::End(ended))?;
        self.problems = plan.problems;
        self.problems.extend(node_problems(self.ways.node(), &chosen, &self.desired));
        let in_force = before_writing + written.in_force.unwrap_or_default();
        Ok(Done { changes, in_force, writes: written.writes })
    }

    /// Puts keys that every node has into the maps, and says which one signs. The keys before stay good for as long as
    /// they stand in the other place.
    pub(crate) fn set_cookie_keys(&mut self, keys: &CookieKeys) -> Result<(), TableError> {
        self.maps.put_cookie_keys(keys)?;
        self.maps.settings.put(&0, &self.applied.sign_with(keys.current))
    }

    /// After a write that failed only the maps know what they hold.
    fn recover(&mut self) {
        // A backend whose retirement is still to be written would be taken for one in use, and retired then.
        self.keeper.catch_up();
        match read::content(&self.maps) {
            Ok(content) => self.applied = Applied::from_maps(content),
            Err(error) => warn!(%error, "what the maps hold cannot be read"),
        }
    }

    fn attach(&mut self, devices: &BTreeSet<u32>) -> Result<(), StartError> {
        if let Err(error) = check_forwarding(self.ways.node(), devices, &self.desired) {
            warn!(%error, "a device cannot forward");
        }
        let mut failed = None;
        for index in devices.difference(&self.attached.clone()) {
            let device = self.ways.node().name(*index);
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
        if let Some(error) = failed.filter(|_| self.attached.is_empty() && self.strict) {
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
                info!(device = self.ways.node().name(index), "detached");
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
    pub(crate) fn devices(&self) -> String {
        let names: Vec<String> = self.attached.iter().map(|index| self.ways.node().name(*index)).collect();
        names.join(",")
    }

    /// What is in force.
    pub(crate) fn desired(&self) -> &Desired {
        &self.desired
    }

    /// What the node cannot do of it, and why.
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// What of the node's own network stands in the way.
fn node_problems(node: &Node, chosen: &Chosen, desired: &Desired) -> Vec<Problem> {
    let remedy = "name another device in the chart's `devices`, or none to follow the routes";
    let devices = chosen.unusable.iter().chain(&chosen.beyond);
    let mut problems: Vec<Problem> = devices.map(|what| Problem::warning("devices", what, remedy)).collect();
    if let Err(error) = check_forwarding(node, &chosen.devices, desired) {
        problems.push(Problem::error(
            "",
            error.to_string(),
            "let the node's own settings say so at every boot, too",
        ));
    }
    problems
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
