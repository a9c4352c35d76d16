//! Clients on the node itself: routes lead what they send to a VIP into a pair of devices, and the program at its other end gets it as
//! from any device. The pair, its routes and the program outlive the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::{replace, take};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::maps::name;
use tracing::{info, warn};

use super::node_pair::{FIELD, NodeClientsError, device, leave, need_own};
use super::node_routes::{Around, Wanted, named};
use crate::dataplane::attach;
use crate::dataplane::load::Programs;
use crate::dataplane::pin::Pins;
use crate::dataplane::table::Table;
use crate::model::{Desired, Node, Problem};
use crate::net::pair::{self, Changes, FAR, NEAR, Pair, Refused, RouteWriter, Routes};
use crate::net::sysctl;
use crate::outputs::Order;
use crate::outputs::l2::Foreign;
use crate::plan::Leading;

/// How long a route stays that nobody needs any more: resets of its connections come by it, and with strict reverse path filtering
/// the node's stack would drop them without. They are sent at once, and again a second later.
const LINGER: Duration = Duration::from_secs(2);

/// When pair and routes are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// An order is carried out.
    Order,
    /// Every second: only what the other output found is followed.
    Second,
    /// Every ten seconds: other programs may have changed something.
    Look,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// How much of what other programs had changed was made good since this was last said.
    pub(super) repaired: usize,
    /// There is something else to say than before.
    pub(super) is_news: bool,
}

/// What is known of the pair.
#[derive(Debug, Default)]
pub(super) struct NodeClients {
    /// Vestibule is withdrawn from the cluster or from this node: new connections are refused, and the pair goes with the daemon.
    is_withdrawn: bool,
    api_servers: Arc<BTreeSet<IpAddr>>,
    foreign: Foreign,
    /// The end with the program, as the maps say.
    far: Option<u32>,
    /// The program there is this daemon's.
    is_attached: bool,
    /// There is no pair, and nothing of one.
    is_left: bool,
    kept: Option<Kept>,
    writer: Option<RouteWriter>,
    repaired: usize,
    problems: Vec<Problem>,
}

/// What was found, and done since.
#[derive(Debug)]
struct Kept {
    pair: Pair,
    routes: Routes,
    /// The network at that time.
    network: Arc<Node>,
    foreign: BTreeMap<IpAddr, [u8; 6]>,
    /// Addresses whose routes nobody needs any more, and since when.
    leaving: BTreeMap<IpAddr, Instant>,
    /// What there is to say of the pair.
    problems: Vec<Problem>,
    /// The kernel refused some of it, which may be otherwise than it was found.
    is_doubtful: bool,
}

impl Kept {
    /// Whether nothing else is there, as far as is known.
    fn is_known(&self, when: When, node: &Arc<Node>) -> bool {
        when != When::Look && !self.is_doubtful && Arc::ptr_eq(&self.network, node)
    }

    /// Takes out of the changes those routes that resets may still need. One that may cut the node off from a host goes at once.
    fn let_linger(&mut self, changes: &mut Changes, wanted: &Wanted, now: Instant) {
        self.leaving.retain(|address, _| changes.remove.contains(address));
        let Self { leaving, routes, .. } = self;
        changes.remove.retain(|address| {
            let since = *leaving.entry(*address).or_insert(now);
            let cuts_off = wanted.left.contains_key(address) || routes.others.contains(address);
            cuts_off || now.duration_since(since) >= LINGER
        });
    }
}

impl NodeClients {
    /// What an earlier daemon left. `foreign` has the addresses that other hosts have.
    pub(super) fn found(pins: &Pins, foreign: Foreign) -> Self {
        Self { far: device(pins), foreign, ..Self::default() }
    }

    /// Notes what an order says beside what is desired.
    pub(super) fn note(&mut self, order: &Order) {
        self.is_withdrawn = order.is_withdrawn;
        self.api_servers = Arc::clone(&order.node.api_servers);
    }

    /// The end of the pair that has the program.
    pub(super) fn far(&self) -> Option<u32> {
        self.far
    }

    /// Whether there is nothing to be done: nobody is led by the pair, and nothing is left of it, or nothing is known to have changed.
    pub(super) fn rests(&self, desired: &Desired, when: When) -> bool {
        let is_same = || {
            let kept = self.kept.as_ref();
            kept.is_none_or(|kept| kept.leaving.is_empty() && kept.foreign == self.foreign.get())
        };
        self.is_left && !desired.settings.node_clients || when == When::Second && is_same()
    }

    /// What there is to say.
    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Makes pair and routes what they should be, or removes them where nobody wants them. `leading`: as [`crate::plan::Applied::leading`].
    pub(super) fn follow(
        &mut self,
        (desired, when): (&Desired, When),
        leading: &BTreeMap<IpAddr, Leading>,
        node: &Arc<Node>,
        programs: &mut Programs,
        pins: &Pins,
    ) -> Followed {
        // Connections that are open go on while the daemon lives.
        let is_wanted = desired.settings.node_clients && (!self.is_withdrawn || self.far.is_some());
        let outcome = match is_wanted {
            true => {
                let foreign = self.foreign.get();
                let around = Around { leading, node, api_servers: &self.api_servers, foreign: &foreign };
                let wanted = Wanted::new(desired, around);
                self.serve(wanted, (when, node, foreign), programs, pins)
            }
            false if self.is_left => Ok(Vec::new()),
            false => self.leave(pins),
        };
        let problems = outcome.unwrap_or_else(|error| {
            // What is there is not known any more.
            self.kept = None;
            let what = match is_wanted {
                true => {
                    format!("clients on the node itself may not reach the addresses of listeners: {error}")
                }
                false => format!("the pair of devices for clients on the node itself stays: {error}"),
            };
            vec![Problem::warning(FIELD, what, error.remedy())]
        });
        let is_news = problems != self.problems;
        if replace(&mut self.problems, problems) != self.problems {
            self.problems.iter().for_each(|problem| warn!("{problem}"));
        }
        Followed { repaired: take(&mut self.repaired), is_news }
    }

    fn serve(
        &mut self,
        wanted: Wanted,
        (when, node, foreign): (When, &Arc<Node>, BTreeMap<IpAddr, [u8; 6]>),
        programs: &mut Programs,
        pins: &Pins,
    ) -> Result<Vec<Problem>, NodeClientsError> {
        self.is_left = false;
        let before = self.kept.take();
        let mut kept = match before {
            Some(before) if before.is_known(when, node) => Kept { foreign, ..before },
            before => {
                let (pair, problems) = self.make(&wanted, programs, pins)?;
                let routes = pair::routes(pair)?;
                let leaving = before.filter(|before| before.pair == pair).map(|before| {
                    self.note_changed(&routes.differing(&before.routes, &wanted.routes));
                    before.leaving
                });
                let (network, leaving) = (Arc::clone(node), leaving.unwrap_or_default());
                Kept { pair, routes, network, foreign, leaving, problems, is_doubtful: false }
            }
        };
        let mut changes = kept.routes.changes_to(&wanted.routes);
        kept.let_linger(&mut changes, &wanted, Instant::now());
        let (added, removed) = (changes.add.len() + changes.replace.len(), changes.remove.len());
        let blocked: Vec<IpAddr> = changes.blocked.iter().copied().collect();
        let mut refused = Refused::new();
        if added + removed > 0 {
            let mut writer = match self.writer.take() {
                Some(writer) => writer,
                None => RouteWriter::open()?,
            };
            // One that failed is not used again.
            refused = writer.carry_out(&changes, kept.pair)?;
            self.writer = Some(writer);
            kept.routes.follow(changes, &refused);
            info!(added, removed, refused = refused.len(), "routes for clients on the node itself");
        }
        let mut problems =
            [&*kept.problems, &wanted.problems(FIELD), &of_routes(&blocked, &refused)].concat();
        // With it goes on what is to be removed a moment later.
        kept.is_doubtful = !refused.is_empty();
        self.kept = Some(kept);
        problems.dedup();
        Ok(problems)
    }

    /// Makes the pair, or what it lacks, with the program at its end. Returns it, and what there is to say of it.
    fn make(
        &mut self,
        wanted: &Wanted,
        programs: &mut Programs,
        pins: &Pins,
    ) -> Result<(Pair, Vec<Problem>), NodeClientsError> {
        let found = pair::find()?;
        if let Some(found) = found {
            need_own(found, self.far, pins)?;
        }
        let pair = pair::make()?;
        let is_new = self.far != Some(pair.far);
        if self.is_attached && is_new {
            self.repaired += 1;
            warn!("another program removed the pair for clients on the node itself: it is made again");
        }
        let mut problems = Vec::new();
        let families = [true, false].map(|is_v4| wanted.routes.keys().any(|vip| vip.is_ipv4() == is_v4));
        match [NEAR, FAR].into_iter().try_fold(false, |was, end| Ok(sysctl::forward(end, families)? | was)) {
            Ok(was_off) if was_off && self.is_attached && !is_new => {
                self.repaired += 1;
                warn!("another program switched forwarding off on {NEAR} or {FAR}: it is switched on again");
            }
            Ok(_) => {}
            Err(error) => problems.push(no_forwarding(&error)),
        }
        let has_program = !is_new && attach::is_attached(programs, pair.far)?;
        if !has_program || !self.is_attached {
            attach::attach(programs, pins, pair.far)?;
            info!(device = FAR, "attached, for clients on the node itself");
        }
        if self.is_attached && !is_new && !has_program {
            self.repaired += 1;
            warn!(device = FAR, "another program detached ours: it is attached again");
        }
        // Before any route: what the program passes on there, it drops.
        Table::<u32, u32>::open(pins.folder(), name::NODE_CLIENTS)?.put(&0, &pair.far)?;
        (self.far, self.is_attached) = (Some(pair.far), true);
        Ok((pair, problems))
    }

    /// Notes the addresses whose routes another program changed.
    fn note_changed(&mut self, changed: &BTreeSet<IpAddr>) {
        if changed.is_empty() {
            return;
        }
        self.repaired += changed.len();
        let changed: Vec<IpAddr> = changed.iter().copied().collect();
        warn!(
            addresses = named(&changed),
            "another program changed routes into {NEAR}: they are made as they were"
        );
    }

    /// Removes the pair of a node that is left: nobody is there any more to do it later.
    pub(super) fn release(&mut self, pins: &Pins) {
        if self.is_withdrawn
            && let Err(error) = self.leave(pins)
        {
            warn!(%error, "the pair for clients on the node itself stays: `ip link del {NEAR}` removes it");
        }
    }

    fn leave(&mut self, pins: &Pins) -> Result<Vec<Problem>, NodeClientsError> {
        if leave(pins)? {
            info!("the pair for clients on the node itself is removed");
        }
        (self.far, self.is_attached, self.is_left, self.kept) = (None, false, true, None);
        Ok(Vec::new())
    }
}

fn no_forwarding(error: &io::Error) -> Problem {
    let what = format!(
        "the kernel does not forward on {FAR}, so nothing that clients on the node send reaches a backend: {error}"
    );
    let remedy = format!("`sysctl -w net.ipv4.conf.{FAR}.forwarding=1 net.ipv6.conf.{FAR}.forwarding=1`");
    Problem::warning(FIELD, what, remedy)
}

/// Returns what there is to say of addresses to which other programs' routes lead, and of what the kernel refused.
fn of_routes(blocked: &[IpAddr], refused: &Refused) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !blocked.is_empty() {
        let what = format!("clients on the node itself follow another program's route to {}", named(blocked));
        let remedy = "remove that route from the main table, if it is not needed";
        problems.push(Problem::warning(FIELD, what, remedy));
    }
    if let Some((address, error)) = refused.first() {
        let what = format!(
            "the kernel refuses {} routes into the pair, such as to {address}: {error}",
            refused.len()
        );
        let remedy = "it is tried again with each change, and every ten seconds";
        problems.push(Problem::warning(FIELD, what, remedy));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::maps::node_routes::Left;

    fn at(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// The resets of what was open come by them; a host that is cut off waits for nothing.
    #[test]
    fn routes_stay_for_the_resets_of_their_connections_unless_they_cut_a_host_off() {
        let ours = (1..=5).map(|last| (at(last), None)).collect();
        let mut kept = Kept {
            pair: Pair { near: 7, far: 8 },
            routes: Routes { ours, others: [at(4)].into() },
            network: Arc::default(),
            foreign: BTreeMap::new(),
            leaving: BTreeMap::new(),
            problems: Vec::new(),
            is_doubtful: false,
        };
        let mut wanted = Wanted::default();
        wanted.routes.insert(at(5), None);
        wanted.left.insert(at(3), Left::ApiServer);
        let begun = Instant::now();
        let removed = |kept: &mut Kept, wanted: &Wanted, after: Duration| {
            let mut changes = kept.routes.changes_to(&wanted.routes);
            kept.let_linger(&mut changes, wanted, begun + after);
            kept.routes.follow(changes.clone(), &Refused::new());
            changes.remove
        };
        assert_eq!(removed(&mut kept, &wanted, Duration::ZERO), [at(3), at(4)].into());
        // One that is wanted again, and then not, stays as long again.
        wanted.routes.insert(at(2), None);
        assert!(removed(&mut kept, &wanted, LINGER / 2).is_empty());
        wanted.routes.remove(&at(2));
        assert_eq!(removed(&mut kept, &wanted, LINGER), [at(1)].into());
        assert_eq!(removed(&mut kept, &wanted, LINGER * 2), [at(2)].into());
        assert!(removed(&mut kept, &wanted, LINGER * 2).is_empty() && kept.leaving.is_empty());
    }

    /// A refused route of one family kept those of the other that nobody needed, for ever.
    #[test]
    fn what_the_kernel_refused_is_looked_at_again_and_what_leaves_goes_on_leaving() {
        let (network, leaving) = (Arc::<Node>::default(), BTreeMap::from([(at(1), Instant::now())]));
        let mut kept = Kept {
            pair: Pair { near: 7, far: 8 },
            routes: Routes::default(),
            network: Arc::clone(&network),
            foreign: BTreeMap::new(),
            leaving,
            problems: Vec::new(),
            is_doubtful: false,
        };
        assert!(kept.is_known(When::Order, &network) && !kept.is_known(When::Look, &network));
        assert!(!kept.is_known(When::Order, &Arc::default()));
        kept.is_doubtful = true;
        assert!(!kept.is_known(When::Second, &network));
        let clients = NodeClients { kept: Some(kept), ..NodeClients::default() };
        assert!(!clients.rests(&Desired::default(), When::Second), "it is removed within seconds");
    }
}
