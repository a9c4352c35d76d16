//! The static file, read again and again: routes whose text is known are neither parsed nor compiled again.

use super::file::{self, Loaded};
use crate::compile::{Kept, Surroundings};
use crate::config::{self, Outline};
use crate::model::{Desired, ListenerSpec, Problem, Settings};
use foldhash::quality::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::mem::{swap, take};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tracing::debug;

/// At most one route in so many may have changed; else the whole file is compiled.
const SHARE: usize = 8;
/// So many routes may have changed in any file.
const FEW: usize = 64;

/// The static file, and what it said when it was good last.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    keys: [RandomState; 2],
    /// What was loaded as a whole, as long as [`Last`] is not made of it.
    whole: Option<Whole>,
    last: Option<Last>,
}

/// A text, by 128 bits that depend on two keys of this process.
type Number = [u64; 2];

/// A file that was compiled as a whole.
#[derive(Debug)]
struct Whole {
    numbers: Vec<Number>,
    names: Vec<Arc<str>>,
    settings: Settings,
    listeners: Vec<ListenerSpec>,
    around: Surroundings,
    desired: Desired,
    warnings: Vec<Problem>,
}

/// What a file said, route by route in the order of the file.
#[derive(Debug)]
struct Last {
    /// Of the routes' texts.
    numbers: Vec<Number>,
    names: Vec<Arc<str>>,
    /// What may surprise its author, apart from routes.
    warnings: Vec<Problem>,
    /// The same of routes, by place.
    of_routes: BTreeMap<usize, Vec<Problem>>,
    kept: Kept,
}

impl FileSource {
    /// The file at this path, not read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), keys: Default::default(), whole: None, last: None }
    }

    /// Reads, checks and compiles the file. One with any error is refused as a whole; the problems are then all there are,
    /// warnings included, with lines.
    pub fn load(&mut self, around: &Surroundings) -> Result<Loaded, Vec<Problem>> {
        let begun = Instant::now();
        let text = file::read(&self.path).map_err(|error| vec![file::unreadable(&error)])?;
        self.judge(text, around, begun)
    }

    /// Makes ready for the next time; for when nobody waits.
    pub fn settle(&mut self) {
        if let Some(whole) = self.whole.take() {
            self.last = Last::of(whole);
        }
    }

    fn judge(&mut self, text: String, around: &Surroundings, begun: Instant) -> Result<Loaded, Vec<Problem>> {
        self.settle();
        let outline = Outline::read(&text);
        let number = |text| [0, 1].map(|half: usize| self.keys[half].hash_one(text));
        let mut numbers: Option<Vec<Number>> =
            outline.as_ref().map(|outline| outline.texts().map(number).collect());
        if let (Some(last), Some(outline), Some(numbers)) = (&mut self.last, &outline, &mut numbers)
            && last.follow(outline, numbers, around, begun)
        {
            let (desired, problems) = (last.kept.desired().clone(), last.problems());
            return Ok(Loaded::new(desired, problems, text));
        }
        let parsed = config::parse_outlined(&text, outline);
        debug!(parsed_ms = millis(begun), "parsed");
        let facts = &parsed.0;
        let names = facts.routes.iter().map(|route| Arc::clone(&route.name)).collect();
        let (settings, listeners) = (facts.settings.clone(), facts.listeners.clone());
        let loaded = file::usable(parsed, text, around)?;
        self.last = None;
        self.whole = numbers.map(|numbers| {
            let (desired, warnings) = (loaded.desired.clone(), loaded.problems().to_vec());
            Whole { numbers, names, settings, listeners, around: around.clone(), desired, warnings }
        });
        Ok(loaded)
    }
}

/// Milliseconds since then.
fn millis(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

impl Last {
    fn of(whole: Whole) -> Option<Self> {
        let Whole { numbers, names, settings, listeners, around, desired, warnings } = whole;
        let mut this = Self {
            kept: Kept::new(settings, listeners, &around, desired)?,
            numbers,
            names,
            warnings: Vec::new(),
            of_routes: BTreeMap::new(),
        };
        this.warn(warnings);
        Some(this)
    }

    /// Adds warnings.
    fn warn(&mut self, warnings: Vec<Problem>) {
        for warning in warnings {
            match place_of(&warning) {
                Some((place, _)) => self.of_routes.entry(place).or_default().push(warning),
                None => self.warnings.push(warning),
            }
        }
    }

    /// Everything that may surprise the file's author, as compiling the whole file tells it.
    fn problems(&self) -> Vec<Problem> {
        self.warnings.iter().chain(self.of_routes.values().flatten()).cloned().collect()
    }

    /// Goes on to a file that differs in a few routes. `false`: it is to be compiled as a whole; nothing is changed here.
    fn follow(
        &mut self,
        outline: &Outline<'_>,
        numbers: &mut Vec<Number>,
        around: &Surroundings,
        begun: Instant,
    ) -> bool {
        if !outline.problems.is_empty() || !self.kept.is_of(&outline.settings, &outline.listeners, around) {
            return false;
        }
        let difference = Difference::of(&self.numbers, numbers);
        if difference.gone.len().max(difference.new.len()) > FEW.max(numbers.len() / SHARE) {
            return false;
        }
        let Some((new, problems)) = outline.routes(&difference.new) else { return false };
        debug!(parsed_ms = millis(begun), changed = new.len(), "parsed");
        let gone: Vec<Arc<str>> =
            difference.gone.iter().map(|place| Arc::clone(&self.names[*place])).collect();
        if !problems.is_empty() {
            return false;
        }
        let Some(warnings) = self.kept.change(&gone, &new) else { return false };
        let added = new.into_iter().map(|route| (route.place, route.name));
        difference.rename(&mut self.names, added.collect());
        self.of_routes = difference.moved(take(&mut self.of_routes), self.numbers.len(), numbers.len());
        self.warn(warnings);
        swap(&mut self.numbers, numbers);
        true
    }
}

/// Where a file differs from the one before it: places of routes in either.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference {
    /// So many are the same at the beginning.
    first: usize,
    /// So many are the same at the end.
    last: usize,
    /// Those between that are the same: place before, place now.
    same: HashMap<usize, usize>,
    /// Those of before that are not there.
    gone: Vec<usize>,
    /// Those that were not there before.
    new: Vec<usize>,
}

impl Difference {
    fn of(before: &[Number], now: &[Number]) -> Self {
        let first = before.iter().zip(now).take_while(|(a, b)| a == b).count();
        let rest = before[first..].iter().rev().zip(now[first..].iter().rev());
        let last = rest.take_while(|(a, b)| a == b).count();
        let mut this = Self { first, last, ..Self::default() };
        let old = first..before.len() - last;
        let mut places: HashMap<Number, usize> = old.clone().map(|place| (before[place], place)).collect();
        for (place, number) in now.iter().enumerate().take(now.len() - last).skip(first) {
            match places.remove(number) {
                Some(old) => drop(this.same.insert(old, place)),
                None => this.new.push(place),
            }
        }
        this.gone = old.filter(|place| !this.same.contains_key(place)).collect();
        this
    }

    /// Puts names to their new places; `new` are those of new routes.
    fn rename(&self, names: &mut Vec<Arc<str>>, new: Vec<(usize, Arc<str>)>) {
        let mut between: BTreeMap<usize, Arc<str>> = new.into_iter().collect();
        between.extend(self.same.iter().map(|(old, now)| (*now, Arc::clone(&names[*old]))));
        names.splice(self.first..names.len() - self.last, between.into_values());
    }

    /// Warnings about routes that are still there, at their new places.
    fn moved(
        &self,
        warnings: BTreeMap<usize, Vec<Problem>>,
        before: usize,
        now: usize,
    ) -> BTreeMap<usize, Vec<Problem>> {
        let to = |old: usize| match old {
            old if old < self.first => Some(old),
            old if old >= before - self.last => Some(old + now - before),
            old => self.same.get(&old).copied(),
        };
        let moved = |(old, mut problems): (usize, Vec<Problem>)| {
            let now = to(old)?;
            for problem in problems.iter_mut().filter(|_| now != old) {
                let rest = place_of(problem).map(|(_, rest)| format!("routes[{now}{rest}"));
                problem.field = rest.unwrap_or_default();
            }
            Some((now, problems))
        };
        warnings.into_iter().filter_map(moved).collect()
    }
}

/// The place of the route that a problem is about, and what follows it in the path of the field.
fn place_of(problem: &Problem) -> Option<(usize, &str)> {
    let rest = problem.field.strip_prefix("routes[")?;
    let end = rest.find(']')?;
    Some((rest.get(..end)?.parse().ok()?, rest.get(end..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write;

    /// A route as the file has it.
    #[derive(Clone, Debug)]
    struct Route {
        name: u8,
        listeners: Vec<&'static str>,
        hostnames: Vec<&'static str>,
        backends: Vec<&'static str>,
        odd: &'static str,
    }

    /// What happens to a file.
    #[derive(Clone, Debug)]
    enum Edit {
        Put(prop::sample::Index, Route),
        Change(prop::sample::Index, Vec<&'static str>),
        Rename(prop::sample::Index, u8),
        Remove(prop::sample::Index),
        Swap(prop::sample::Index, prop::sample::Index),
        Listeners(usize),
        Room(u32),
    }

    const LISTENERS: [&str; 4] = [
        r#"{"name":"tls","addresses":["10.97.0.10","fd97::10"],"port":443,"protocol":"TLS"}"#,
        r#"{"name":"tls","addresses":["10.97.0.10"],"port":443,"protocol":"TLS","defaultRoute":"r1"}"#,
        r#"{"name":"tls","addresses":["10.97.0.10"],"port":443,"protocol":"TLS"},
           {"name":"tcp","addresses":["10.97.0.10"],"port":444,"protocol":"TCP"}"#,
        r#"{"name":"b","addresses":["10.97.0.11"],"port":443,"protocol":"TLS"},
           {"name":"tls","addresses":["10.97.0.10"],"port":443,"protocol":"TLS"}"#,
    ];
    const HOSTS: [&str; 6] = ["a.x", "b.x", "c.x", "*.x", "d.x", "e.x"];
    const BACKENDS: [&str; 5] = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "fd01::1", "10.97.0.10"];

    fn route() -> impl Strategy<Value = Route> {
        let listeners = prop_oneof![
            8 => Just(vec!["tls"]),
            1 => Just(vec!["tls", "tcp"]),
            1 => Just(vec!["tls", "b"]),
            1 => Just(vec!["tcp"]),
            1 => Just(vec![]),
        ];
        let hostnames = prop::sample::subsequence(HOSTS.to_vec(), 0..=2);
        let backends = prop::sample::subsequence(BACKENDS[..4].to_vec(), 0..=3);
        let odd = prop_oneof![
            20 => Just(""),
            1 => Just(r#","colour":"red""#),
            1 => Just(r#","backends":[]"#),
        ];
        (0..8u8, listeners, hostnames, backends, odd).prop_map(
            |(name, listeners, hostnames, backends, odd)| Route { name, listeners, hostnames, backends, odd },
        )
    }

    fn edit() -> impl Strategy<Value = Edit> {
        let at = any::<prop::sample::Index>;
        let backends = prop::sample::subsequence(BACKENDS.to_vec(), 0..=3);
        prop_oneof![
            4 => (at(), route()).prop_map(|(at, route)| Edit::Put(at, route)),
            4 => (at(), backends).prop_map(|(at, backends)| Edit::Change(at, backends)),
            1 => (at(), 0..8u8).prop_map(|(at, name)| Edit::Rename(at, name)),
            2 => at().prop_map(Edit::Remove),
            1 => (at(), at()).prop_map(|(one, other)| Edit::Swap(one, other)),
            1 => (0..LISTENERS.len()).prop_map(Edit::Listeners),
            1 => (2..8u32).prop_map(Edit::Room),
        ]
    }

    /// A file.
    #[derive(Clone, Debug)]
    struct File {
        routes: Vec<Route>,
        listeners: usize,
        room: u32,
    }

    impl File {
        fn edit(&mut self, edit: Edit) {
            let count = self.routes.len();
            match edit {
                Edit::Put(at, route) => self.routes.insert(at.index(count + 1), route),
                Edit::Listeners(listeners) => self.listeners = listeners,
                Edit::Room(room) => self.room = room,
                _ if count == 0 => {}
                Edit::Change(at, backends) => self.routes[at.index(count)].backends = backends,
                Edit::Rename(at, name) => self.routes[at.index(count)].name = name,
                Edit::Remove(at) => drop(self.routes.remove(at.index(count))),
                Edit::Swap(one, other) => self.routes.swap(one.index(count), other.index(count)),
            }
        }

        fn text(&self) -> String {
            let mut text = format!(
                r#"{{"apiVersion":"vestibule.dev/v1alpha1","kind":"StaticConfig","settings":{{"maxNames":{}}},"listeners":[{}],"routes":["#,
                self.room, LISTENERS[self.listeners]
            );
            for (place, route) in self.routes.iter().enumerate() {
                let comma = if place == 0 { "" } else { "," };
                let backend = |address: &&str| format!(r#"{{"address":"{address}","port":443}}"#);
                let backends: Vec<String> = route.backends.iter().map(backend).collect();
                let Route { name, listeners, hostnames, odd, .. } = route;
                write!(
                    text,
                    "{comma}\n{{\"name\":\"r{name}\",\"listeners\":{listeners:?},\"hostnames\":{hostnames:?},\"backends\":[{}]{odd}}}",
                    backends.join(",")
                )
                .unwrap();
            }
            text + "]}"
        }
    }

    fn load(source: &mut FileSource, text: &str) -> Result<(Desired, Vec<Problem>), Vec<Problem>> {
        let loaded = source.judge(text.to_owned(), &Surroundings::default(), Instant::now())?;
        Ok((loaded.desired.clone(), loaded.warnings()))
    }

    fn source() -> FileSource {
        FileSource::new("")
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_file_read_again_comes_to_what_it_comes_to_by_itself(
            routes in prop::collection::vec(route(), 0..6),
            room in 2..6u32,
            edits in prop::collection::vec(prop::collection::vec(edit(), 0..3), 1..16),
        ) {
            let mut file = File { routes, listeners: 0, room };
            let mut followed = source();
            for edits in edits {
                let text = file.text();
                prop_assert_eq!(load(&mut followed, &text), load(&mut source(), &text));
                let before = file.clone();
                edits.into_iter().for_each(|edit| file.edit(edit));
                // Half of the files that would be refused are mended, so that others come after good ones.
                if load(&mut source(), &file.text()).is_err() && file.routes.len().is_multiple_of(2) {
                    prop_assert!(load(&mut followed, &file.text()).is_err());
                    file = before;
                }
            }
        }
    }

    #[test]
    fn a_changed_route_is_compiled_alone_and_a_bad_one_changes_nothing() {
        let route = |name: u8, host: &'static str, backend: &'static str| Route {
            name,
            listeners: vec!["tls"],
            hostnames: vec![host],
            backends: vec![backend],
            odd: "",
        };
        let routes =
            vec![route(1, "a.x", "10.1.0.1"), route(2, "b.x", "10.1.0.2"), route(3, "c.x", "fd01::1")];
        let mut file = File { routes, listeners: 3, room: 10 };
        let mut followed = source();
        let (first, _) = load(&mut followed, &file.text()).unwrap();
        assert!(followed.whole.is_some());
        file.routes[1].backends = vec!["10.1.0.3"];
        let (second, _) = load(&mut followed, &file.text()).unwrap();
        assert!(followed.whole.is_none(), "it was followed");
        assert!(Arc::ptr_eq(&first.routes[0], &second.routes[0]));
        assert!(!Arc::ptr_eq(&first.routes[1], &second.routes[1]));
        file.routes[2].hostnames = vec!["a.x"];
        assert!(load(&mut followed, &file.text()).is_err());
        file.routes[2].hostnames = vec!["d.x"];
        let (third, warnings) = load(&mut followed, &file.text()).unwrap();
        assert!(followed.whole.is_none(), "the bad file is forgotten");
        assert!(Arc::ptr_eq(&second.routes[1], &third.routes[1]));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        file.routes.remove(0);
        let (_, warnings) = load(&mut followed, &file.text()).unwrap();
        assert!(followed.whole.is_none());
        assert_eq!(warnings[0].field, "routes[1].backends");
    }

    #[test]
    fn differences_are_found_around_what_moved() {
        let numbers = |list: &[u64]| list.iter().map(|n| [*n, 0]).collect::<Vec<_>>();
        let of = |before: &[u64], now: &[u64]| Difference::of(&numbers(before), &numbers(now));
        assert_eq!(of(&[], &[]), Difference::default());
        assert_eq!(of(&[1, 2, 3], &[1, 2, 3]), Difference { first: 3, ..Difference::default() });
        let one = of(&[1, 2, 3], &[1, 9, 3]);
        assert_eq!(
            one,
            Difference { first: 1, last: 1, gone: vec![1], new: vec![1], ..Difference::default() }
        );
        let swapped = of(&[1, 2, 3, 4], &[1, 3, 2, 4]);
        assert_eq!((swapped.gone.len(), swapped.new.len(), swapped.same.len()), (0, 0, 2));
        let twice = of(&[7, 1], &[7, 7, 1]);
        assert_eq!((twice.gone.len(), twice.new), (0, vec![1]));
    }
}
