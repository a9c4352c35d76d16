//! Which nodes hold an object, asked of each of thousands of objects: what hundreds of nodes report is sorted once for all of them, so
//! that an object costs as much as is reported of it, however many nodes there are.

use super::progress::{Complaint, Held, Missing, NAMED, Nodes, Progress, key};
use crate::model::ObjectRef;
use foldhash::{HashMap, HashMapExt};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What nodes report, sorted.
#[derive(Debug)]
pub struct Counted<'n> {
    nodes: &'n Nodes,
    /// In the order of names.
    live: Vec<Live<'n>>,
    /// What each node holds, those that hold least first.
    holds: Vec<Option<u64>>,
    /// The same of nodes in their first minute that report nothing missing of themselves.
    joining: Vec<u64>,
    /// Of the n nodes that hold least, for each n, the first ones in the order of names.
    first: Vec<Vec<usize>>,
    /// What nodes report of each object, in the order of nodes.
    of_object: HashMap<Cow<'n, str>, Vec<OfObject<'n>>>,
    /// The only nodes that lead clients of these objects to a backend, if they can.
    leading: HashMap<ObjectRef, BTreeSet<Arc<str>>>,
}

#[derive(Debug)]
struct Live<'n> {
    name: &'n str,
    /// `None`: it reports that it holds nothing.
    holds: Option<u64>,
    /// What it reports of itself.
    of_itself: First<'n>,
}

#[derive(Debug)]
struct OfObject<'n> {
    node: usize,
    said: First<'n>,
}

/// The first complaints, each with its position among the node's.
#[derive(Clone, Copy, Debug, Default)]
struct First<'n> {
    any: Option<(usize, &'n str)>,
    missing: Option<(usize, &'n str)>,
}

impl<'n> First<'n> {
    fn add(&mut self, position: usize, complaint: &'n Complaint) {
        let said = (position, complaint.text.as_str());
        self.any.get_or_insert(said);
        if complaint.missing {
            self.missing.get_or_insert(said);
        }
    }
}

impl Nodes {
    /// Sorts what they report, to ask of many objects.
    pub fn counted(&self) -> Counted<'_> {
        self.counted_by(|_| None)
    }

    /// The same where Claims are known: a node that never read whose a Claim is reports that it lacks `Claim/name`, and so the object that
    /// `object_of` returns for that name.
    pub fn counted_by(&self, object_of: impl Fn(&str) -> Option<ObjectRef>) -> Counted<'_> {
        let mut this = Counted {
            nodes: self,
            live: Vec::with_capacity(self.live.len()),
            holds: Vec::new(),
            joining: Vec::new(),
            first: Vec::new(),
            of_object: HashMap::new(),
            leading: HashMap::new(),
        };
        for (name, held) in &self.live {
            this.add(name, held, &object_of);
        }
        let mut order: Vec<usize> = (0..this.live.len()).collect();
        order.sort_by_key(|node| this.live[*node].holds);
        this.holds = order.iter().map(|node| this.live[*node].holds).collect();
        let joins = |node: &&usize| self.joining.contains(this.live[**node].name);
        this.joining = order.iter().filter(joins).filter_map(|node| this.live[*node].holds).collect();
        let mut first = Vec::new();
        this.first.push(first.clone());
        for node in order {
            let at = first.partition_point(|other| *other < node);
            first.insert(at, node);
            first.truncate(NAMED);
            this.first.push(first.clone());
        }
        this
    }
}

impl<'n> Counted<'n> {
    fn add(&mut self, name: &'n str, held: &'n Held, object_of: impl Fn(&str) -> Option<ObjectRef>) {
        let node = self.live.len();
        let mut of_itself = First::default();
        for (position, complaint) in held.complaints.iter().enumerate() {
            #[cfg(test)]
            tests::asks(1);
            let Some(object) = complaint.object.as_deref() else {
                of_itself.add(position, complaint);
                continue;
            };
            let asks = object.strip_prefix("Claim/").and_then(&object_of);
            let object = asks.map_or(Cow::Borrowed(object), |asks| Cow::Owned(key(&asks)));
            let all = self.of_object.entry(object).or_default();
            if all.last().is_none_or(|last| last.node != node) {
                all.push(OfObject { node, said: First::default() });
            }
            if let Some(last) = all.last_mut() {
                last.said.add(position, complaint);
            }
        }
        let holds = of_itself.missing.is_none().then_some(held.claims_version);
        self.live.push(Live { name, holds, of_itself });
    }

    /// Sets which nodes alone lead clients of an object to a backend: where none of them can, nobody is served, however many hold it.
    pub fn led_by(self, leading: HashMap<ObjectRef, BTreeSet<Arc<str>>>) -> Self {
        Self { leading, ..self }
    }

    /// Whether any node reports anything of any object.
    pub fn has_reports(&self) -> bool {
        !self.of_object.is_empty()
    }

    /// Returns the nodes that alone lead clients of an object to a backend, if each of them reports that it cannot.
    fn led_by_none(&self, object: &ObjectRef, said: &[OfObject<'n>]) -> Option<Missing> {
        let leading = self.leading.get(object).filter(|leading| !leading.is_empty())?;
        let excepted = said.iter().filter(|one| one.said.missing.is_some());
        let excepted = excepted.map(|one| (self.live[one.node].name, self.why(one.node, said)));
        let all: Vec<_> = excepted.filter(|(node, _)| leading.contains(*node)).collect();
        let count = Some(all.len()).filter(|count| *count == leading.len())?;
        let named = all.into_iter().take(NAMED).map(|(node, why)| (node.to_owned(), why.map(str::to_owned)));
        Some(Missing { named: named.collect(), count, is_whole: true })
    }

    /// The number of nodes that should hold each object.
    pub fn count(&self) -> usize {
        self.live.len() + self.nodes.unknown.len()
    }

    /// Whether there may be nodes of which it is not known what they hold: nothing follows from that.
    pub fn knows_less(&self) -> bool {
        self.nodes.knows_less()
    }

    /// How many of the nodes that do not hold the Claims up to `version` are in their first minute.
    pub fn joining(&self, version: u64) -> usize {
        self.joining.partition_point(|holds| *holds < version)
    }

    /// Returns which nodes hold an object whose Claims are those up to `version`.
    pub fn progress(&self, object: &ObjectRef, version: u64) -> Progress {
        if self.nodes.are_unlisted {
            return Progress::Unknown;
        }
        if self.count() == 0 {
            return Progress::NoAgents;
        }
        let said: &[OfObject<'_>] = match self.of_object.is_empty() {
            true => &[],
            false => self.of_object.get(key(object).as_str()).map_or(&[], Vec::as_slice),
        };
        if let Some(missing) = self.led_by_none(object, said) {
            return Progress::Missing(missing);
        }
        let behind = self.holds.partition_point(|holds| holds.is_none_or(|holds| holds < version));
        let holds_all = |node: usize| self.live[node].holds.is_some_and(|holds| holds >= version);
        let excepted = |one: &&OfObject<'_>| one.said.missing.is_some() && holds_all(one.node);
        let excepted: Vec<usize> = said.iter().filter(excepted).map(|one| one.node).collect();
        let count = behind + excepted.len() + self.nodes.unknown.len();
        #[cfg(test)]
        tests::asks(1 + said.len());
        if count == 0 {
            return Progress::Everywhere;
        }
        let mut named: Vec<usize> = self.first[behind].iter().copied().chain(excepted).collect();
        named.sort_unstable();
        named.truncate(NAMED);
        #[cfg(test)]
        tests::asks(named.len());
        let live = named.into_iter().map(|node| (self.live[node].name, self.why(node, said)));
        let unknown = self.nodes.unknown.iter().map(|(node, unknown)| (node.as_str(), Some(&*unknown.why)));
        let named = live.chain(unknown).take(NAMED);
        let named = named.map(|(node, why)| (node.to_owned(), why.map(str::to_owned))).collect();
        Progress::Missing(Missing { named, count, is_whole: false })
    }

    /// Returns why a node does not hold an object of which this is said.
    fn why(&self, node: usize, said: &[OfObject<'n>]) -> Option<&'n str> {
        let of_object = said.binary_search_by_key(&node, |one| one.node);
        let of_object = of_object.map_or_else(|_| First::default(), |found| said[found].said);
        let of_itself = &self.live[node].of_itself;
        let exceptions = of_object.missing.into_iter().chain(of_itself.missing);
        // What is said of the object itself says more.
        let why = exceptions.min().or(of_object.any).or(of_itself.any);
        why.map(|(_, text)| text)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::{Kind, ObjectName};
    use proptest::prelude::*;
    use std::cell::Cell;

    thread_local! {
        /// How many nodes and complaints were looked at.
        pub(in crate::status) static ASKED: Cell<usize> = const { Cell::new(0) };
    }

    pub(in crate::status) fn asks(more: usize) {
        ASKED.with(|asked| asked.set(asked.get() + more));
    }

    fn object(number: usize) -> ObjectRef {
        ObjectRef { kind: Kind::TlsRoute, name: ObjectName::new("a", format!("r{number}")) }
    }

    fn complaint(object: Option<usize>, missing: bool, text: &str) -> Complaint {
        Complaint {
            object: object.map(|number| key(&self::object(number))),
            missing,
            text: text.to_owned(),
            ..Complaint::default()
        }
    }

    fn nodes(all: usize, complaints: impl Fn(usize) -> Vec<Complaint>) -> Nodes {
        let live = (0..all).map(|node| {
            let held = Held {
                claims_version: 10 + node as u64 % 7,
                complaints: complaints(node),
                ..Held::default()
            };
            (format!("n{node:03}"), held)
        });
        Nodes { live: live.collect(), ..Nodes::default() }
    }

    /// Each of ten thousand objects asked each of five hundred nodes.
    #[test]
    fn exceptions_cost_a_judgement_no_more_than_what_is_reported() {
        const OBJECTS: usize = 10_000;
        const NODES: usize = 500;
        let one = |object| move |_| vec![complaint(object, true, "it cannot be written")];
        let hundred = |node: usize| {
            let of = |number| complaint(Some((node * 100 + number) % OBJECTS), true, "it cannot be written");
            (0..100).map(of).collect()
        };
        for (what, nodes) in [
            ("no exception", nodes(NODES, |_| Vec::new())),
            ("one that all nodes report", nodes(NODES, one(Some(7)))),
            ("one on each node", nodes(NODES, |node| one(Some(node))(node))),
            ("a hundred on each node", nodes(NODES, hundred)),
            ("nothing is held", nodes(NODES, one(None))),
        ] {
            let reported: usize = nodes.live.values().map(|held| held.complaints.len()).sum();
            ASKED.with(|asked| asked.set(0));
            let counted = nodes.counted();
            for number in 0..OBJECTS {
                counted.progress(&object(number), 9);
            }
            let asked = ASKED.with(Cell::get);
            assert!(asked <= OBJECTS * (1 + NAMED) + NODES + 2 * reported, "{what}: {asked}");
        }
    }

    /// All others hold it, and lead nobody: with `externalTrafficPolicy: Local` only nodes with a pod do.
    #[test]
    fn an_object_that_none_of_its_nodes_leads_anywhere_is_missing_however_many_hold_it() {
        let said = |excepted: &'static [usize], leading: &[&str]| {
            let nodes = nodes(100, |node| {
                let is_one = excepted.contains(&node);
                is_one.then(|| complaint(Some(7), true, "its pod is out of reach")).into_iter().collect()
            });
            let leading = leading.iter().map(|node| Arc::from(*node)).collect();
            let counted = nodes.counted().led_by(HashMap::from_iter([(object(7), leading)]));
            match counted.progress(&object(7), 9) {
                Progress::Missing(missing) => Some((missing.is_whole, missing.named)),
                _ => None,
            }
        };
        let named = |node: &str| (node.to_owned(), Some("its pod is out of reach".to_owned()));
        assert_eq!(said(&[3], &["n003"]), Some((true, vec![named("n003")])));
        assert_eq!(said(&[3, 5], &["n003", "n005"]), Some((true, vec![named("n003"), named("n005")])));
        assert_eq!(said(&[3], &["n003", "n005"]), Some((false, vec![named("n003")])), "the other one does");
        assert_eq!(said(&[3], &[]), Some((false, vec![named("n003")])), "it has no pod");
        assert_eq!(said(&[], &["n003"]), None);
    }

    fn complaints() -> impl Strategy<Value = Vec<Complaint>> {
        let one = (prop::option::weighted(0.8, 0..4_usize), any::<bool>(), "[a-c]");
        let one = one.prop_map(|(object, missing, text)| complaint(object, missing, &text));
        prop::collection::vec(one, 0..4)
    }

    fn reports() -> impl Strategy<Value = Nodes> {
        let held = (0..4_u64, complaints());
        let held = held.prop_map(|(claims_version, complaints)| Held {
            claims_version,
            complaints,
            ..Held::default()
        });
        let live = prop::collection::btree_map("[a-z]{1,2}", held, 0..24);
        let unknown = prop::collection::btree_map("[A-Z]{1,2}", Just("it is silent".into()), 0..4);
        (live, unknown, prop::bool::weighted(0.1)).prop_map(|(live, unknown, are_unlisted)| Nodes {
            live,
            unknown,
            are_unlisted,
            ..Nodes::default()
        })
    }

    proptest! {
        #[test]
        fn an_object_lacks_the_nodes_that_do_not_hold_it(
            nodes in reports(), number in 0..5_usize, version in 0..5_u64,
        ) {
            let all: Vec<_> = nodes.missing(key(&object(number)), version).collect();
            let named = all.iter().take(NAMED).map(|(node, why)| ((*node).to_owned(), why.map(str::to_owned)));
            let missing = Missing { named: named.collect(), count: all.len(), is_whole: false };
            let asked_one_by_one = match () {
                () if nodes.are_unlisted => Progress::Unknown,
                () if nodes.live.is_empty() && nodes.unknown.is_empty() => Progress::NoAgents,
                () if all.is_empty() => Progress::Everywhere,
                () => Progress::Missing(missing),
            };
            prop_assert_eq!(nodes.counted().progress(&object(number), version), asked_one_by_one);
        }
    }
}
