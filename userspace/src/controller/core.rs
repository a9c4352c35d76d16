//! What the controller does with what it knows: settles, judges, and says what is to be written, in which order and when. Pure: time is
//! an argument, so that it runs in a simulation as it does in a cluster.

use super::announcement::resolve::{Basis, resolve};
use super::announcement::{AnnouncementWrite, Announcements, Stored};
use super::claim_store::{ClaimNews, ClaimOutcome, ClaimWrite, Failure};
use super::claims::{Claims, Waits};
use super::health::Failing;
use super::history::History;
use super::judge::{Judge, Judgement, View};
use super::keys::{self, Spare};
use super::kube_event::{self, Note, Teller};
use super::kube_events::{self, Evidence};
use super::lag::Lag;
use super::lanes::Lanes;
use super::queue::{self, Outcome, Queue, Write};
use super::reports::Reporting;
use super::since::{STALE, Since, by_source};
use super::writes::Told;
use crate::model::cluster::PoolsClosed;
use crate::model::{Cluster, Facts, Kind, ObjectRef, Problem};
use crate::sources::kubernetes::{Named, Source, Stale, StoredStatus};
use crate::status::Nodes;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Minimum pause between two judgements, so that changes that arrive together are judged together.
const PAUSE: Duration = Duration::from_millis(50);

/// All that is known.
pub(super) struct Known<'a> {
    /// The objects of the cluster.
    pub(super) cluster: &'a Cluster,
    /// Their status as last received.
    pub(super) status: &'a dyn Fn(&ObjectRef) -> Option<&'a StoredStatus>,
    /// The served version of a kind.
    pub(super) version: &'a dyn Fn(Kind) -> Option<&'static str>,
    /// Release of the installed Gateway API CRDs.
    pub(super) bundle: Option<&'a str>,
    /// What is not listed, and is not waited for.
    pub(super) unlisted: BTreeSet<Source>,
    /// Sources that cannot be followed.
    pub(super) stale: Vec<Stale>,
    /// What the nodes with live agents hold.
    pub(super) nodes: Nodes,
    /// Backends that live nodes see down.
    pub(super) failing: Failing,
    /// What agents cannot follow: node, and source with the reason.
    pub(super) stale_nodes: Vec<(String, String)>,
    /// `metadata.uid` of NodeStates, by node.
    pub(super) node_uids: BTreeMap<String, String>,
    /// Why nothing is taken from MetalLB's pools.
    pub(super) metallb: Option<PoolsClosed>,
    /// What is needed for objects that are made for others to read.
    pub(super) reporting: Reporting,
    /// The current time, in RFC 3339, UTC.
    pub(super) now: &'a str,
}

/// The result of a judgement, for those who look at the controller.
pub(super) struct Summary {
    /// Problems that were found.
    pub(super) problems: Vec<Problem>,
    /// Addresses in use by Gateways and Services.
    pub(super) in_use: BTreeSet<IpAddr>,
    /// Nodes that count, those of which nothing is known, those that are not waited for, and live candidates that are silent to others.
    pub(super) nodes: [usize; 4],
    /// What the mark of Claims waits for; `None`: it is there.
    pub(super) waits: Option<Waits>,
}

/// A request to the API server.
pub(super) enum Request {
    Status(ObjectRef, Write),
    Claim(String, Box<ClaimWrite>),
    Announcement(AnnouncementWrite),
    /// With this count.
    Event(Note, u32),
    /// A look at the Secret, and the change that is due.
    Keys(Spare),
}

/// Its result.
pub(super) enum Done {
    Status(ObjectRef, Write, Outcome),
    /// `Err`: why it failed.
    Claim(String, Result<ClaimOutcome, Failure>),
    /// `Err`: why it failed.
    Announcement(Result<ClaimOutcome, String>),
    Event(Note, Told),
    /// What is known of the spare key now.
    Keys(Result<Spare, String>),
}

/// What the controller remembers, decides and wants written.
pub(super) struct Core {
    pub(super) claims: Claims,
    pub(super) announcements: Announcements,
    judge: Judge,
    history: History,
    lag: Lag,
    queue: Queue<ObjectRef>,
    lanes: Lanes,
    teller: Teller,
    /// What agents cannot follow: node and source.
    stale_nodes: Since<(String, String)>,
    /// Nodes of which it is not known what they hold, for as long as nobody sees to it.
    unread: Since<String>,
    keys: keys::Looks,
    /// What each route regains with its waiting write.
    won: BTreeMap<ObjectRef, String>,
    /// Whether something changed since the last judgement.
    is_touched: bool,
    rest_until: Instant,
    /// When to judge again even if nothing changes.
    again: Option<Instant>,
}

impl Core {
    /// Of what the files say.
    pub(super) fn new(files: Facts, keys: keys::Schedule, now: Instant) -> Self {
        Self {
            claims: Claims::default(),
            announcements: Announcements::default(),
            judge: Judge::new(files),
            history: History::default(),
            lag: Lag::default(),
            queue: Queue::new(),
            lanes: Lanes::default(),
            teller: Teller::new(),
            stale_nodes: Since::default(),
            unread: Since::default(),
            keys: keys::Looks::new(keys),
            won: BTreeMap::new(),
            is_touched: true,
            rest_until: now,
            again: None,
        }
    }

    /// Takes what the files say now.
    pub(super) fn reads(&mut self, files: Facts) {
        self.judge.reads(files);
        self.touch();
    }

    /// Something changed of what is known.
    pub(super) fn touch(&mut self) {
        self.is_touched = true;
    }

    /// Begins or ceases to lead: another controller may have written meanwhile, or may do so from now on. Nothing is judged as a leader
    /// before Claims are listed again ([`Claims::is_listed`]).
    pub(super) fn lead(&mut self, leads: bool) {
        self.judge.lead();
        self.queue.clear();
        self.claims.clear(leads);
        self.announcements.clear();
        self.won.clear();
        // Who could not follow something in an earlier term may have done so since.
        (self.stale_nodes, self.unread) = (Since::default(), Since::default());
        self.keys.lead();
        self.touch();
    }

    /// Takes what the watch of Claims reports.
    pub(super) fn take_claims(&mut self, news: ClaimNews) {
        self.history.note(&news);
        self.is_touched |= self.claims.take(news);
        kube_events::tell_edits(&mut self.teller, self.claims.edited());
    }

    /// Takes what the watch of what is announced reports.
    pub(super) fn take_announcement(&mut self, news: Named<Stored>) {
        self.is_touched |= self.announcements.take(news);
        if let Some(edited) = self.announcements.edited() {
            self.teller.happened(kube_events::announcement_edited(&edited));
        }
    }

    /// Takes what nodes report, if a backup was restored: one that does not lead must know later what was reported by then.
    pub(super) fn follow(&mut self, nodes: impl FnOnce() -> Nodes) {
        if self.history.is_restored() {
            self.history.judge(&mut nodes());
        }
    }

    /// The number of statuses that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether it is time for a judgement.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.is_touched |= self.again.is_some_and(|again| again <= now);
        self.is_touched && now >= self.rest_until
    }

    /// When a judgement is due, if nothing changes before.
    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.is_touched { Some(self.rest_until) } else { self.again }
    }

    /// Judges everything.
    pub(super) fn judge(&mut self, known: Known<'_>, at: Instant) -> Summary {
        self.is_touched = false;
        let Known { cluster, status, version, bundle, unlisted, stale, mut nodes, .. } = known;
        let Known { failing, stale_nodes, node_uids, metallb, reporting, now, .. } = known;
        self.history.judge(&mut nodes);
        self.claims.note_on_nodes(if self.claims.is_unmarked() { nodes.may_hold() } else { None });
        let mut held_back = nodes.held_back();
        for (node, line) in stale_nodes.iter().filter(|(_, line)| line.starts_with("claims:")) {
            held_back.entry(node.clone()).or_insert_with(|| format!("its agent cannot follow {line}"));
        }
        let (excluded, excludes_again) = self.lag.exclude(self.claims.newest(), &mut nodes, at);
        let status = |object: &ObjectRef| status(object);
        let view = View {
            cluster,
            status: &status,
            bundle,
            nodes: &nodes,
            failing: &failing,
            metallb,
            now,
            at,
            unlisted,
            reporting: &reporting,
        };
        let mut judged = self.judge.judge(&view, &mut self.claims);
        judged.problems.extend(self.announce(&view, &judged));
        judged.take(view.basis().configuration(&judged.problems));
        let (stale, young): (Vec<_>, Vec<_>) = stale.into_iter().partition(|stale| stale.since + STALE <= at);
        self.stale_nodes.note(stale_nodes.into_iter().map(by_source), at);
        let (stale_nodes, young_nodes): (Vec<_>, Vec<_>) =
            self.stale_nodes.all().partition(|(_, since, _)| *since + STALE <= at);
        let unread = nodes.unknown.iter().filter(|(_, unknown)| unknown.lasts);
        self.unread.note(unread.map(|(node, unknown)| (node.clone(), unknown.why.to_string())), at);
        let (unread, young_unread): (Vec<_>, Vec<_>) =
            self.unread.all().partition(|(_, since, _)| *since + STALE <= at);
        let evidence = Evidence { cluster, version, nodes: &nodes, failing: &failing, node_uids: &node_uids };
        let (mut notes, unheard) = evidence.of_everything(&judged.problems, &judged.conflicts, &reporting);
        notes.extend(evidence.stale(&stale));
        notes.extend(evidence.excluded(&excluded, &held_back));
        notes.extend(evidence.unread(unread.iter().map(|(node, _, why)| (node.as_str(), *why))));
        notes.extend(stale_nodes.iter().map(|((node, _), _, line)| evidence.stale_node(node, line)));
        let waits = self.claims.waits(at);
        let said = waits.iter().filter_map(|waits| waits.event.as_deref());
        notes.extend(said.flat_map(|why| evidence.unmarked(why)));
        self.teller.lasts(notes);
        for happening in &judged.happenings {
            self.teller.happened(evidence.allocated(happening));
        }
        for (object, write) in judged.writes {
            match judged.won.get(&object) {
                Some(lost) => self.won.insert(object.clone(), lost.clone()),
                None => self.won.remove(&object),
            };
            self.queue.want(&object, write);
        }
        let young =
            young.iter().map(|stale| stale.since).chain(young_nodes.iter().map(|(_, since, _)| *since));
        let said = young.chain(young_unread.iter().map(|(_, since, _)| *since)).map(|since| since + STALE);
        let unmarked = waits.as_ref().map(|_| at + Waits::LOOK);
        self.again = said.chain(judged.again).chain(excludes_again).chain(unmarked).min();
        self.queue.forget(|object| !judged.objects.contains(object));
        self.won.retain(|object, _| judged.objects.contains(object));
        let nodes = [nodes.live.len(), nodes.unknown.len(), excluded.len(), unheard];
        Summary { problems: judged.problems, in_use: judged.in_use, nodes, waits }
    }

    /// Asks for what is announced. Returns what is wrong with what it follows from.
    fn announce(&mut self, view: &View<'_>, judged: &Judgement) -> Vec<Problem> {
        if view.nodes.are_unlisted {
            return Vec::new();
        }
        let (spec, problems) = resolve(&Basis {
            cluster: view.cluster,
            leases: &view.nodes.members,
            metallb: view.metallb.as_ref(),
            unlisted: &view.unlisted,
            in_use: &judged.in_use,
            pooled: &judged.pooled,
            holders: &judged.holders,
            said: self.announcements.said(),
        });
        if let Some(spec) = spec {
            self.announcements.want(spec);
        }
        problems
    }

    /// A judgement has ended, which took so long: however much changes, judging takes at most half of the time.
    pub(super) fn rest(&mut self, took: Duration, now: Instant) {
        self.rest_until = now + PAUSE.max(took);
    }

    /// Why the keys cannot be kept.
    pub(super) fn keys_trouble(&self) -> Option<&str> {
        self.keys.trouble()
    }

    /// Begins to keep the keys, if it is time to; otherwise, when to ask again.
    pub(super) fn next_keys(&mut self, now: Instant) -> Result<Spare, Option<Instant>> {
        self.keys.next(now)
    }

    /// Returns the next request to send; otherwise, when to ask again.
    pub(super) fn next(&mut self, now: Instant) -> Result<Request, Option<Instant>> {
        let mut wake: Option<Instant> = None;
        let mut ask_at = |at: Option<Instant>| wake = wake.into_iter().chain(at).min();
        // First, so that keys change on time however many statuses wait, and whatever delays their writes.
        match self.next_keys(now) {
            Ok(spare) => return Ok(Request::Keys(spare)),
            Err(at) => ask_at(at),
        }
        self.lanes.look(now);
        match self.queue.next(now, |object| self.lanes.have_room(object)) {
            queue::Next::Send(object, write) => {
                self.lanes.take(&object, now);
                if object.kind == Kind::Gateway {
                    self.judge.gives(&object.name, &write);
                }
                return Ok(Request::Status(object, write));
            }
            queue::Next::At(at) => ask_at(Some(at)),
            queue::Next::Idle => {}
        }
        // Others may wait for the lanes of one that hangs.
        ask_at(self.lanes.next_slow());
        match self.claims.next(now) {
            Ok((name, write)) => return Ok(Request::Claim(name, Box::new(write))),
            Err(at) => ask_at(at),
        }
        match self.announcements.next(now) {
            Ok(write) => return Ok(Request::Announcement(write)),
            Err(at) => ask_at(at),
        }
        match self.teller.next(now) {
            kube_event::Next::Tell(note, count) => return Ok(Request::Event(note, count)),
            kube_event::Next::At(at) => ask_at(Some(at)),
            kube_event::Next::Idle => {}
        }
        Err(wake)
    }

    /// Drops a status that was not sent: the object's kind is no longer served.
    pub(super) fn drop_sent(&mut self, object: &ObjectRef) {
        self.lanes.drop_sent(object);
        self.queue.drop_sent(object);
    }

    /// Takes the result of a request. Returns a route that has regained something, and the message about what it had lost: to be
    /// followed by [`Core::happened`].
    pub(super) fn done(&mut self, done: Done, now: Instant) -> Option<(ObjectRef, String)> {
        match done {
            Done::Status(object, write, outcome) => {
                self.lanes.give_back(&object, now);
                let won = if outcome == Outcome::Written { self.won.remove(&object) } else { None };
                if outcome == Outcome::Conflict {
                    // The newer object may be reported later; the queue waits for it.
                    self.judge.forget(&object);
                    self.touch();
                }
                self.queue.done(&object, write, outcome, now);
                won.map(|lost| (object, lost))
            }
            Done::Claim(name, outcome) => {
                match outcome {
                    Ok(outcome) => self.claims.ended(&name, outcome, now),
                    // Its object says why.
                    Err(failure) => self.is_touched |= self.claims.failed(&name, &failure, now),
                }
                None
            }
            Done::Announcement(outcome) => {
                self.announcements.ended(outcome, now);
                None
            }
            Done::Event(note, told) => {
                match told {
                    Told::Yes => self.teller.told(&note, now),
                    told => self.teller.failed(&note, told == Told::Failed, now),
                }
                None
            }
            Done::Keys(kept) => {
                self.keys.ended(kept, now);
                None
            }
        }
    }

    /// Something happened, of which an Event is to be written.
    pub(super) fn happened(&mut self, note: Note) {
        self.teller.happened(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::claim_store::Stored;
    use crate::model::cluster::ClassSpec;
    use crate::settle::tests::Scene;
    use crate::status::{Complaint, Held, Unknown};
    use serde_json::json;
    use std::sync::Arc;

    /// Returns the notes that are written when this cannot be followed, after so much time.
    fn notes(core: &mut Core, since: Instant, at: Instant) -> Vec<(&'static str, String)> {
        notes_of(core, Nodes::default(), since, at)
    }

    /// The same where nodes hold this.
    fn notes_of(core: &mut Core, nodes: Nodes, since: Instant, at: Instant) -> Vec<(&'static str, String)> {
        let mut cluster = Cluster::default();
        cluster.classes.insert("c".into(), Arc::new(ClassSpec::default()));
        let known = Known {
            cluster: &cluster,
            status: &|_| None,
            version: &|_| Some("v1"),
            bundle: None,
            unlisted: BTreeSet::new(),
            stale: vec![Stale { source: "leases", since, why: "403".to_owned() }],
            nodes,
            failing: Failing::new(),
            stale_nodes: vec![("n1".to_owned(), "claims: 403 Forbidden".to_owned())],
            node_uids: BTreeMap::new(),
            metallb: None,
            reporting: Reporting::NONE,
            now: "2026-11-21T10:00:00Z",
        };
        core.judge(known, at);
        let mut told = Vec::new();
        while let Ok(request) = core.next(at) {
            if let Request::Event(note, _) = request {
                told.push((note.regarding.kind, note.text()));
                core.done(Done::Event(note, Told::Yes), at);
            }
        }
        told.sort_unstable();
        told
    }

    /// One agent that was left out of an upgrade held all conditions as they were, and nothing said so.
    #[test]
    fn nodes_whose_report_cannot_be_read_are_an_event_of_all_after_a_minute() {
        let begun = Instant::now();
        let mut core = Core::new(Facts::default(), keys::Schedule::default(), begun);
        let unknown = |nodes: &[&str]| {
            let why = Unknown { why: "its report is of version 1; upgrade it".into(), lasts: true };
            let lasting = nodes.iter().map(|node| ((*node).to_owned(), why.clone()));
            let young = [("n9".to_owned(), Unknown::from("it was not renewed yet"))];
            Nodes { unknown: lasting.chain(young).collect(), ..Nodes::default() }
        };
        let told = |core: &mut Core, nodes: &[&str], seconds: u64| {
            let told = notes_of(core, unknown(nodes), begun, begun + Duration::from_secs(seconds));
            let of_class = told.into_iter().filter(|(kind, _)| *kind == "GatewayClass");
            of_class.map(|(_, text)| text).filter(|text| !text.contains("cannot follow")).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut core, &["n1", "n2"], 0), [""; 0]);
        assert!(core.next_due() <= Some(begun + STALE));
        assert_eq!(
            told(&mut core, &["n1", "n2"], 60),
            ["on nodes n1, n2: its report is of version 1; upgrade it"]
        );
        // That one of them was upgraded is no other Event.
        assert_eq!(told(&mut core, &["n2"], 61), [""; 0]);
    }

    /// Whether the mark is written although a Claim is refused, where the node holds Claims up to this version, and the Gateway's status
    /// says this.
    fn is_marked(holds: u64, programmed: &str) -> bool {
        let mut at = Instant::now();
        let mut core = Core::new(Facts::default(), keys::Schedule::default(), at);
        core.lead(true);
        core.take_claims(ClaimNews::Listed(BTreeMap::new(), 9));
        let mut scene = Scene::new();
        scene.gateway("a/gw", 1, "192.0.2.1", &["tls TLS:443"]);
        for name in ["refused", "other"] {
            scene.tls(&format!("a/{name}"), 1, &["gw"], &[&format!("{name}.example")], &["s:443"]);
        }
        let says = json!({"type": "Programmed", "status": programmed, "observedGeneration": 7});
        let status = json!({"conditions": [says]});
        let stored = StoredStatus { resource_version: "1".to_owned(), uid: "u".to_owned(), status };
        let held = Held { claims_version: holds, ..Held::default() };
        let members = BTreeSet::from(["n1".to_owned()]);
        for _ in 0..3 {
            let known = Known {
                cluster: scene.cluster(),
                status: &|object| (object.kind == Kind::Gateway).then_some(&stored),
                version: &|_| Some("v1"),
                bundle: None,
                unlisted: BTreeSet::new(),
                stale: Vec::new(),
                nodes: Nodes {
                    live: BTreeMap::from([("n1".to_owned(), held.clone())]),
                    members: members.clone(),
                    ..Nodes::default()
                },
                failing: Failing::new(),
                stale_nodes: Vec::new(),
                node_uids: BTreeMap::new(),
                metallb: None,
                reporting: Reporting::NONE,
                now: "2026-11-21T10:00:00Z",
            };
            core.judge(known, at);
            while let Ok(request) = core.next(at) {
                let done = match request {
                    Request::Claim(name, _) if name.contains("refused") => {
                        let failure = Failure { why: "403".to_owned(), is_refusal: true };
                        Done::Claim(name, Err(failure))
                    }
                    Request::Claim(name, write) => {
                        let ClaimWrite::Create(spec) = *write else { panic!("{write:?}") };
                        let stored = Stored { spec, version: "10".to_owned(), ..Stored::default() };
                        core.take_claims(ClaimNews::Put(name.clone(), Box::new(stored)));
                        Done::Claim(name, Ok(ClaimOutcome::Written))
                    }
                    Request::Status(object, write) => Done::Status(object, write, Outcome::Written),
                    Request::Announcement(_) => Done::Announcement(Ok(ClaimOutcome::Written)),
                    Request::Event(note, _) => Done::Event(note, Told::Yes),
                    Request::Keys(_) => Done::Keys(Err("none here".to_owned())),
                };
                core.done(done, at);
            }
            at += Duration::from_secs(64);
        }
        !core.claims.is_unmarked()
    }

    #[test]
    fn what_is_refused_holds_the_mark_back_only_where_a_node_may_serve_it() {
        assert!(is_marked(0, "False"));
        assert!(!is_marked(7, "False"), "the node holds what was written before the mark went");
        assert!(!is_marked(0, "True"), "the node's agent has started since");
    }

    /// Only its log said why.
    #[test]
    fn a_node_that_is_not_waited_for_is_named_with_what_it_says_of_itself() {
        let refused = |holds_back| {
            let complaint = |holds_back, text: &str| Complaint {
                holds_back,
                text: text.to_owned(),
                ..Complaint::default()
            };
            let more = complaint(false, "3 more backends fail their probe than are listed");
            vec![complaint(false, "no device"), complaint(holds_back, "its NodeState is refused"), more]
        };
        for (node, holds_back, why) in [
            (0, true, "its NodeState is refused"),
            (0, false, "see the log of its agent"),
            (1, false, "its agent cannot follow claims: 403 Forbidden"),
        ] {
            assert_eq!(why_excluded(node, &refused(holds_back)), [why]);
        }
    }

    /// What is said of the one of six nodes that is behind, and complains about this.
    fn why_excluded(behind: u64, complaints: &[Complaint]) -> Vec<String> {
        let begun = Instant::now();
        let mut core = Core::new(Facts::default(), keys::Schedule::default(), begun);
        let mut stored = Stored { version: "9".to_owned(), ..Stored::default() };
        stored.spec.protocol = "TLS".to_owned();
        let claims = BTreeMap::from([("a".to_owned(), stored)]);
        core.take_claims(ClaimNews::Listed(claims, 9));
        let nodes = |complaints: &[Complaint]| {
            let held = |node: u64| match node {
                node if node == behind => {
                    Held { claims_version: 3, complaints: complaints.to_vec(), ..Held::default() }
                }
                _ => Held { claims_version: 9, ..Held::default() },
            };
            Nodes { live: (0..6).map(|node| (format!("n{node}"), held(node))).collect(), ..Nodes::default() }
        };
        notes_of(&mut core, nodes(&[]), begun, begun);
        let told = notes_of(&mut core, nodes(complaints), begun, begun + STALE);
        let behind = told.iter().filter(|(_, text)| text.starts_with("it does not hold Claims"));
        behind.filter_map(|(_, text)| Some(text.rsplit("; ").next()?.to_owned())).collect()
    }

    /// What could be followed meanwhile was old at once, and an Event.
    #[test]
    fn what_agents_could_not_follow_in_an_earlier_term_is_forgotten() {
        let begun = Instant::now();
        let later = begun + 10 * STALE;
        let mut core = Core::new(Facts::default(), keys::Schedule::default(), begun);
        let unknown = || {
            let why = Unknown { why: "its report is of version 1".into(), lasts: true };
            Nodes { unknown: BTreeMap::from([("n1".to_owned(), why)]), ..Nodes::default() }
        };
        let told = |core: &mut Core, at| {
            let told =
                notes_of(core, unknown(), at, at).into_iter().map(|(kind, text)| format!("{kind} {text}"));
            told.filter(|text| text.contains("its agent cannot follow") || text.contains("its report"))
                .count()
        };
        assert_eq!(told(&mut core, begun), 0);
        core.lead(false);
        core.lead(true);
        assert_eq!(told(&mut core, later), 0);
        assert_eq!(told(&mut core, later + STALE), 2);
    }

    /// Otherwise all that nodes have reported since would be of before, once it leads.
    #[test]
    fn one_that_does_not_lead_notes_what_nodes_reported_when_a_backup_was_restored() {
        let mut core = Core::new(Facts::default(), keys::Schedule::default(), Instant::now());
        let nodes = |claims_version| {
            let held = Held { claims_version, ..Held::default() };
            Nodes { live: BTreeMap::from([("n1".to_owned(), held)]), ..Nodes::default() }
        };
        for version in [100, 80] {
            core.take_claims(ClaimNews::Listed(BTreeMap::new(), version));
            core.follow(|| nodes(100));
        }
        let stored = Stored { version: "90".to_owned(), ..Stored::default() };
        core.take_claims(ClaimNews::Put("a".to_owned(), Box::new(stored)));
        for (version, is_known) in [(90, true), (100, false)] {
            let mut nodes = nodes(version);
            core.history.judge(&mut nodes);
            assert_eq!(!nodes.live.is_empty(), is_known, "{version}");
        }
    }

    /// One that lasts for a moment, as when the API server restarts, would be an Event of each node.
    #[test]
    fn what_controller_and_agents_cannot_follow_for_a_minute_is_an_event() {
        let begun = Instant::now();
        let mut core = Core::new(Facts::default(), keys::Schedule::default(), begun);
        assert_eq!(notes(&mut core, begun, begun), []);
        assert_eq!(core.next_due(), Some(begun + STALE));
        let told = notes(&mut core, begun, begun + STALE);
        let [(class, own), (node, of_node)] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((*class, *node), ("GatewayClass", "NodeState"));
        assert!(own.starts_with("the controller cannot follow leases: 403; "), "{own}");
        assert!(of_node.starts_with("its agent cannot follow claims: 403 Forbidden; "), "{of_node}");
    }
}
