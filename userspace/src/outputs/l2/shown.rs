//! What is known of segments, for people and metrics: who announces what, since when and why, and which nodes are alive.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use super::candidates::node_id;
use super::kernel::Kernel;
use super::ownership::{Known, Member, NodeId, Standing};
use super::picture::{CandidateShown, ClaimShown, Page, Picture, VipShown};
use super::speakers::{Speakers, unix_ms};
use super::task::Task;
use super::wanted::OnDevice;
use super::why::Why;
use crate::model::{Announcement, Node, Problem, SegmentCounts};
use crate::outputs::{OnDevices, OnSegment};

/// The most addresses of a page: the thread that announces must not be late for its heartbeats.
const PAGE: usize = 1_000;
/// A candidate that was silent for this long is named to the controller: by then, the Lease of one that is off has ended.
const UNHEARD: Duration = Duration::from_secs(60);

/// Asks the thread that announces what it knows.
#[derive(Clone, Debug)]
pub(crate) struct Asker(pub(super) Sender<Task>);

impl Asker {
    /// Waits at most `limit` for each part. `None`: the thread is gone, or busy.
    pub(crate) fn picture(&self, limit: Duration) -> Option<Picture> {
        let mut all = Picture::default();
        let mut from = Some((0, IpAddr::from([0; 4])));
        while let Some(first) = from {
            let (answer, answered) = mpsc::channel();
            self.0.send(Task::Show { from: first, answer }).ok()?;
            let Page { picture, next } = answered.recv_timeout(limit).ok()?;
            all.vips.extend(picture.vips);
            all.candidates = picture.candidates;
            from = next;
        }
        Some(all)
    }
}

/// What is looked at.
pub(super) struct Scene<'a> {
    pub speakers: &'a Speakers,
    pub kernel: &'a Kernel,
    pub network: &'a Node,
    pub announcement: Option<&'a Announcement>,
    pub now: Instant,
}

/// What a look at everything found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub counts: Vec<SegmentCounts>,
    /// Foreign hosts that answer for addresses, and whether this node does, too.
    pub conflicts: Vec<(OnDevice, [u8; 6], bool)>,
    /// Addresses that a node announces on some device.
    pub served: BTreeSet<IpAddr>,
    /// Names of candidates that were silent for [`UNHEARD`], by device.
    pub unheard: BTreeMap<u32, Vec<Arc<str>>>,
}

impl Scene<'_> {
    /// Returns what is known of a thousand addresses, from this one on.
    pub(super) fn page(&self, from: OnDevice) -> Page {
        let names = self.names();
        let name =
            |node: NodeId| names.get(&node).map_or_else(|| format!("{node:016x}"), ToString::to_string);
        let mut rest = self.kernel.announced().range(from..).map(|(on_device, _)| on_device);
        let wall = unix_ms();
        let since_ms =
            |at: Instant| wall.saturating_sub(self.now.saturating_duration_since(at).as_millis() as u64);
        let (some, silent) = (rest.by_ref().take(PAGE), self.speakers.silent());
        let vips = some.filter_map(|on_device| {
            let known = self.speakers.known(on_device)?;
            if let Some(other) = silent.get(&on_device.0) {
                return Some(of_twin(on_device, &self.network.name(*other)));
            }
            Some(vip(
                (self.speakers.own(), on_device),
                &known,
                self.speakers.owned(on_device),
                &name,
                since_ms,
            ))
        });
        let vips = vips.collect();
        let candidates = self.speakers.others(self.now).flat_map(|(device, members)| {
            let device = self.network.name(device);
            members.into_iter().map(move |member| (device.clone(), member)).collect::<Vec<_>>()
        });
        let candidates = candidates.map(|(device, member)| candidate(device, &member, &name)).collect();
        Page { picture: Picture { vips, candidates }, next: rest.next().copied() }
    }

    /// Looks at everything.
    pub(super) fn survey(&self) -> Survey {
        let mut survey = Survey::default();
        let mut counts: BTreeMap<u32, SegmentCounts> = BTreeMap::new();
        let names = self.names();
        let others: Vec<(u32, Vec<Member>)> = self.speakers.others(self.now).collect();
        let all = others.iter().flat_map(|(_, members)| members);
        let received: BTreeSet<NodeId> =
            all.filter(|member| member.silent.is_zero()).map(|member| member.node).collect();
        // A device on which nothing of others is received may be cut off, which others see.
        let mut alone: BTreeSet<u32> = BTreeSet::new();
        for (device, members) in others {
            let on = counts.entry(device).or_default();
            on.device = self.network.name(device).into();
            if !members.is_empty() && members.iter().all(|member| !member.silent.is_zero()) {
                alone.insert(device);
            }
            for Member { silent, is_closed, .. } in &members {
                *if silent.is_zero() { &mut on.alive } else { &mut on.unheard } += 1;
                on.closed += u64::from(*is_closed);
            }
            let named = unheard(&members, &received).filter_map(|node| names.get(&node).cloned());
            let named: Vec<Arc<str>> = named.collect();
            if !named.is_empty() {
                survey.unheard.insert(device, named);
            }
        }
        // Where another device of this node announces, nothing is settled on this one.
        let silent = self.speakers.silent();
        for on_device in self.kernel.announced().keys().filter(|(device, _)| !silent.contains_key(device)) {
            let Some((standing, foreign)) = self.speakers.disputed(on_device) else { continue };
            let on = counts.entry(on_device.0).or_default();
            let is_here = matches!(standing, Standing::Here { .. });
            match standing {
                Standing::Here { .. } => on.here += 1,
                Standing::Elsewhere { .. } => on.elsewhere += 1,
                Standing::Nobody { .. } => on.nobody += u64::from(!alone.contains(&on_device.0)),
                Standing::Conflict { .. } => {}
            }
            if matches!(standing, Standing::Here { .. } | Standing::Elsewhere { .. }) {
                survey.served.insert(on_device.1);
            }
            if let Some(link) = foreign {
                on.foreign += 1;
                survey.conflicts.push((*on_device, link, is_here));
            }
        }
        survey.counts = counts.into_values().collect();
        survey
    }

    fn names(&self) -> BTreeMap<NodeId, Arc<str>> {
        let members = self.announcement.iter().flat_map(|announcement| &announcement.members);
        members.map(|name| (node_id(name), Arc::clone(name))).collect()
    }
}

/// Returns the nodes that are to be named. A node that receives nothing of several others is cut off itself, and they name it. One of
/// which nothing was ever received on the device, but on another one (`received`), is not on this segment.
fn unheard(members: &[Member], received: &BTreeSet<NodeId>) -> impl Iterator<Item = NodeId> {
    let is_alone = members.len() > 1 && members.iter().all(|member| !member.silent.is_zero());
    let is_here = move |member: &&Member| member.link.is_some() || !received.contains(&member.node);
    let named = members.iter().filter(is_here).filter(move |member| !is_alone && member.silent >= UNHEARD);
    named.map(|member| member.node)
}

impl Survey {
    /// Returns foreign hosts that answer for addresses.
    pub(super) fn problems(&self, network: &Node) -> impl Iterator<Item = Problem> {
        self.conflicts.iter().map(|((device, address), link, is_here)| {
            let what = match is_here {
                true => "answers, too, for",
                false => "has",
            };
            let effect = match is_here {
                true => "which this node announces: clients reach one of the two by chance",
                false => "already, so this node does not announce it there",
            };
            Problem::warning(
                format!("addresses on {}", network.name(*device)),
                format!("the host with link address {} {what} {address} {effect}", written(*link)),
                "take the address from that host, or out of the pool",
            )
        })
    }

    /// Returns the addresses that other hosts have, so that this node does not announce them, each with the link address of its host.
    pub(super) fn foreign(&self) -> BTreeMap<IpAddr, [u8; 6]> {
        // A router that answers for everything on one device, or a host of another segment, takes nothing from what nodes announce.
        let is_theirs = |((_, address), _, _): &&(OnDevice, [u8; 6], bool)| !self.served.contains(address);
        let elsewhere = self.conflicts.iter().filter(is_theirs);
        elsewhere.map(|((_, address), link, _)| (*address, *link)).collect()
    }

    /// Whether it found nothing to name.
    pub(super) fn is_quiet(&self) -> bool {
        self.conflicts.is_empty() && self.unheard.is_empty()
    }

    /// Returns what is announced, by the name of the device, with what else is known of it.
    pub(super) fn on_devices<'a>(
        &self,
        here: impl Iterator<Item = &'a OnDevice>,
        network: &Node,
    ) -> OnDevices {
        let mut on: BTreeMap<u32, OnSegment> = BTreeMap::new();
        for (device, address) in here {
            on.entry(*device).or_default().addresses.insert(*address);
        }
        for ((device, address), link, _) in &self.conflicts {
            on.entry(*device).or_default().conflicts.insert(*address, *link);
        }
        for (device, names) in &self.unheard {
            on.entry(*device).or_default().unheard.extend(names.iter().cloned());
        }
        on.into_iter().map(|(device, on)| (network.name(device).into(), on)).collect()
    }
}

/// Returns a link address as `ip link` shows it.
pub(crate) fn written(link: [u8; 6]) -> String {
    link.map(|byte| format!("{byte:02x}")).join(":")
}

fn vip(
    (own, (device, address)): (NodeId, &OnDevice),
    known: &Known,
    owned: Option<(u64, Option<Why>)>,
    name: &dyn Fn(NodeId) -> String,
    since_ms: impl Fn(Instant) -> u64,
) -> VipShown {
    let changed = known.since.filter(|(_, why)| *why != Why::Found).map(|(at, _)| since_ms(at));
    let why = known.since.map(|(_, why)| why);
    let mut claims: Vec<(NodeId, u64)> = known.claims.clone();
    claims.sort_by_key(|(node, epoch)| (std::cmp::Reverse(*epoch), *node));
    let claims = claims.into_iter().map(|(node, epoch)| ClaimShown { node: name(node), epoch }).collect();
    let mut shown = VipShown {
        address: address.to_string(),
        device: *device,
        since_ms: changed,
        why: why.map(|why| why.text().to_owned()),
        claims,
        candidates: known.candidates,
        foreign: known.foreign.map(written),
        ..VipShown::default()
    };
    match &known.standing {
        Standing::Here { epoch, .. } => {
            (shown.node, shown.epoch) = (Some(name(own)), Some(*epoch));
            // Also what an earlier agent took.
            let owned_why = owned.and_then(|(_, why)| why).map(|why| why.text().to_owned());
            (shown.since_ms, shown.why) =
                (owned.map(|(since, _)| since).or(changed), owned_why.or(shown.why));
        }
        Standing::Elsewhere { node, epoch } => {
            (shown.node, shown.epoch) = (Some(name(*node)), Some(*epoch));
        }
        Standing::Nobody { why } => shown.waits = (*why).to_owned(),
        Standing::Conflict { link } => shown.waits = format!("the host {} has it", written(*link)),
    }
    shown
}

/// Returns what is shown of an address on a device where another device of this node announces.
fn of_twin((device, address): &OnDevice, other: &str) -> VipShown {
    let waits = format!("device {other} of this node is on this segment, too, and announces there");
    VipShown { address: address.to_string(), device: *device, waits, ..VipShown::default() }
}

fn candidate(device: String, member: &Member, name: &dyn Fn(NodeId) -> String) -> CandidateShown {
    CandidateShown {
        node: name(member.node),
        device,
        link_address: member.link.map(written),
        silent_seconds: member.silent.as_secs(),
        gate_closed: member.is_closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: NodeId, silent: u64) -> Member {
        Member { node, link: Some([2; 6]), silent: Duration::from_secs(silent), is_closed: false }
    }

    #[test]
    fn link_addresses_are_written_as_ip_does() {
        assert_eq!(written([2, 0, 0x5e, 0xa, 0xff, 1]), "02:00:5e:0a:ff:01");
    }

    #[test]
    fn a_candidate_is_named_after_a_minute_unless_this_node_receives_nothing_of_anybody() {
        let named = |members: &[Member]| unheard(members, &BTreeSet::from([7])).collect::<Vec<_>>();
        assert_eq!(named(&[member(1, 0), member(2, 59), member(3, 60)]), [3]);
        assert_eq!(named(&[member(2, 70), member(3, 80)]), [0; 0], "it is cut off itself");
        assert_eq!(named(&[member(2, 70)]), [2], "of two, neither knows which one is");
        let never = |node| Member { link: None, ..member(node, 70) };
        assert_eq!(named(&[member(1, 0), never(7)]), [0; 0], "it is on another segment");
        assert_eq!(named(&[member(1, 0), never(8), member(7, 70)]), [8, 7]);
    }

    #[test]
    fn what_concerns_others_is_said_also_of_devices_where_nothing_is_announced() {
        let vip = IpAddr::from([192, 0, 2, 9]);
        let survey = Survey {
            conflicts: vec![((2, vip), [9; 6], false)],
            unheard: [(3, vec!["n".into()])].into(),
            ..Survey::default()
        };
        let on = survey.on_devices([(4, vip)].iter(), &Node::default());
        assert_eq!(on["#2"].conflicts, [(vip, [9; 6])].into());
        assert_eq!((on["#3"].unheard.len(), on["#4"].addresses.len(), on.len()), (1, 1, 3));
        assert!(!survey.is_quiet() && Survey::default().is_quiet());
        // A router that answers for everything on one device takes no route to what is announced on another.
        assert_eq!(survey.foreign(), [(vip, [9; 6])].into());
        assert!(Survey { served: [vip].into(), ..survey }.foreign().is_empty());
    }

    #[test]
    fn what_is_shown_of_an_address_follows_who_announces_it() {
        let (on_device, now) = ((2, IpAddr::from([192, 0, 2, 9])), Instant::now());
        let known = |standing, why| Known {
            standing,
            since: Some((now, why)),
            claims: vec![(1, 4), (2, 5)],
            candidates: 2,
            foreign: None,
        };
        let name = |node: NodeId| format!("n{node}");
        let shown = |known: &Known, owned| vip((1, &on_device), known, owned, &name, |_| 7);
        let here = known(Standing::Here { epoch: 4, since: now }, Why::Found);
        let taken = shown(&here, Some((3, Some(Why::OwnerSilent))));
        assert_eq!((taken.node.as_deref(), taken.since_ms), (Some("n1"), Some(3)));
        assert_eq!(taken.why.as_deref(), Some("owner silent"));
        let adopted = shown(&here, None);
        assert_eq!((adopted.since_ms, adopted.why.as_deref()), (None, Some("found")), "not known");
        let elsewhere = shown(&known(Standing::Elsewhere { node: 2, epoch: 5 }, Why::HigherEpoch), None);
        assert_eq!((elsewhere.node.as_deref(), elsewhere.epoch), (Some("n2"), Some(5)));
        assert_eq!(elsewhere.since_ms, Some(7));
        let claims: Vec<_> = elsewhere.claims.iter().map(|claim| claim.node.as_str()).collect();
        assert_eq!(claims, ["n2", "n1"], "the highest first");
        let nobody = shown(&known(Standing::Nobody { why: "this node leaves" }, Why::Leaving), None);
        assert_eq!((nobody.node, nobody.waits.as_str()), (None, "this node leaves"));
    }
}
