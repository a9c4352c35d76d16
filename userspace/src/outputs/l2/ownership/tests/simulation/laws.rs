use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::lan::Lan;
use crate::outputs::l2::ownership::{Candidate, REPEAT};

/// One heartbeat, its answer, a request for a table, the table, and their delays.
const EXCUSED: Duration = Duration::from_millis(130);
/// The same where the agent of one of them is stopped or dead.
const UNATTENDED: Duration = Duration::from_millis(800);
/// The same where frames are lost.
const EXCUSED_WITH_LOSS: Duration = Duration::from_secs(3);

/// What is observed all the time.
#[derive(Debug, Default)]
pub(super) struct Laws {
    /// Since when two nodes receive everything from each other.
    whole: Vec<Vec<Option<Duration>>>,
    /// Since when two nodes have answered for the same address.
    doubles: BTreeMap<(IpAddr, usize, usize), Duration>,
    /// When a request for a table is sent again whose answer was lost last.
    lossless: Duration,
    /// The longest that a turn was late.
    late: Duration,
    pub(super) breach: Option<String>,
    /// The longest that two nodes answered for the same address, however excused.
    pub(super) double: Duration,
    pub(super) moves: usize,
    /// When which node closed or opened (`true`) what.
    pub(super) turnover: Vec<(Duration, usize, IpAddr, bool)>,
    pub(super) probes: usize,
}

impl Laws {
    pub(super) fn new(nodes: usize) -> Self {
        Self { whole: vec![vec![Some(Duration::ZERO); nodes]; nodes], ..Self::default() }
    }
}

/// Law 1: two nodes answer for one address only while they are cut off from each other, and a heartbeat after that or after the
/// return of one of them. Where frames are lost it takes longer, also for those that were lost before the loss ended.
pub(super) fn check(lan: &mut Lan) {
    let now = lan.now;
    let count = lan.nodes.len();
    lan.laws.late = lan.laws.late.max(lan.jitter);
    if lan.network.loss > 0 {
        lan.laws.lossless = now + REPEAT;
    }
    for a in 0..count {
        for b in 0..a {
            let has_agent = lan.nodes[a].has_running_agent() || lan.nodes[b].has_running_agent();
            let is_on = lan.nodes[a].is_on && lan.nodes[b].is_on;
            let is_whole = lan.network.is_whole(a, b) && is_on;
            let since = &mut lan.laws.whole[a][b];
            *since = since.or(has_agent.then_some(now)).filter(|_| is_whole);
        }
    }
    let addresses: BTreeSet<IpAddr> =
        lan.nodes.iter().flat_map(|node| node.kernel.announced.keys().copied()).collect();
    let mut doubles = BTreeMap::new();
    for address in addresses {
        let answering = lan.answering(&address);
        for (index, a) in answering.iter().enumerate() {
            for b in &answering[..index] {
                let since = lan.laws.doubles.get(&(address, *a, *b)).copied().unwrap_or(now);
                doubles.insert((address, *a, *b), since);
                lan.laws.double = lan.laws.double.max(now - since);
                let Some(whole) = lan.laws.whole[*a][*b] else { continue };
                let returned = lan.nodes[*a].returned.max(lan.nodes[*b].returned);
                let has_loss = lan.network.loss > 0;
                let excuse = whole.max(returned).max(lan.laws.lossless);
                // One agent was stopped or dead when they met: that is known when its stamp has grown old.
                let is_unattended = |node: &usize| {
                    let node = &lan.nodes[*node];
                    node.stopped <= excuse + EXCUSED && (!node.has_running_agent() || node.started >= excuse)
                };
                let allowed = if is_unattended(a) || is_unattended(b) { UNATTENDED } else { EXCUSED };
                let is_excused = match has_loss {
                    true => now <= excuse.max(since) + EXCUSED_WITH_LOSS,
                    false => {
                        now <= excuse + allowed + 5 * lan.network.delay.1 + lan.laws.late
                            && excuse > Duration::ZERO
                    }
                };
                if !is_excused {
                    let text = format!(
                        "{a} and {b} answer for {address} since {since:?}, now {now:?}, excuse {excuse:?}"
                    );
                    lan.laws.breach.get_or_insert(text);
                }
            }
        }
    }
    lan.laws.doubles = doubles;
}

/// Law 3: the first of its candidates answers for each address. All nodes live.
pub(super) fn preferred(lan: &Lan) -> Result<(), String> {
    for (address, candidates) in &lan.nodes[0].wanted {
        let number = |first: &Candidate| lan.nodes.iter().position(|node| node.id == first.node);
        let first = candidates.iter().max_by_key(|one| one.rank(address)).and_then(number);
        let answering = lan.answering(address);
        if answering != Vec::from_iter(first) {
            return Err(format!("{address}: {answering:?} answer, {first:?} comes first"));
        }
    }
    Ok(())
}

/// Law 2: exactly one node answers for each address that has a candidate, and none for the rest. All nodes want the same.
pub(super) fn settled(lan: &Lan) -> Result<(), String> {
    let wanted = &lan.nodes[0].wanted;
    let announced = lan.nodes.iter().flat_map(|node| node.kernel.announced.keys());
    let addresses: BTreeSet<&IpAddr> = wanted.keys().chain(announced).collect();
    for address in addresses {
        let answering = lan.answering(address);
        let candidates = wanted.get(address).map(|nodes| nodes.to_vec()).unwrap_or_default();
        let is_candidate = |node: &usize| candidates.iter().any(|one| one.node == lan.nodes[*node].id);
        let expected = usize::from(!candidates.is_empty());
        if answering.len() != expected || !answering.iter().all(is_candidate) {
            return Err(format!("{address}: {answering:?} answer, {expected} should"));
        }
    }
    Ok(())
}
