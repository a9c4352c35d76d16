//! Reading a file again gives the same result as reading it alone, and unchanged parts are not parsed again.

use super::file::FileSource;
use crate::compile::{Compiler, Step};
use crate::model::{Desired, Problem};
use proptest::prelude::*;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

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
    (0..8u8, listeners, hostnames, backends, odd).prop_map(|(name, listeners, hostnames, backends, odd)| {
        Route { name, listeners, hostnames, backends, odd }
    })
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

/// A file that is followed.
struct Followed {
    source: FileSource,
    compiler: Compiler,
}

impl Followed {
    fn new() -> Self {
        Self { source: FileSource::new(""), compiler: Compiler::alone() }
    }

    fn load(&mut self, text: &str) -> Result<(Arc<Desired>, Vec<Problem>), Vec<Problem>> {
        self.source.judge(text.to_owned(), &mut self.compiler, Instant::now())?;
        assert_eq!(self.compiler.compile(None), Step::Some(Vec::new()));
        let warnings = self.source.located(self.compiler.problems());
        assert_eq!(warnings.is_empty(), !self.compiler.has_warnings());
        Ok((Arc::clone(self.compiler.desired()), warnings))
    }
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
        let mut followed = Followed::new();
        for edits in edits {
            let text = file.text();
            prop_assert_eq!(followed.load(&text), Followed::new().load(&text));
            let before = file.clone();
            edits.into_iter().for_each(|edit| file.edit(edit));
            // Half of the files that would be refused are corrected, so that others come after good ones.
            if Followed::new().load(&file.text()).is_err() && file.routes.len().is_multiple_of(2) {
                prop_assert!(followed.load(&file.text()).is_err());
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
    let routes = vec![route(1, "a.x", "10.1.0.1"), route(2, "b.x", "10.1.0.2"), route(3, "c.x", "fd01::1")];
    let mut file = File { routes, listeners: 3, room: 10 };
    let mut followed = Followed::new();
    let (first, _) = followed.load(&file.text()).unwrap();
    file.routes[1].backends = vec!["10.1.0.3"];
    let (second, _) = followed.load(&file.text()).unwrap();
    assert!(Arc::ptr_eq(&first.routes[0], &second.routes[0]), "it was followed");
    assert!(!Arc::ptr_eq(&first.routes[1], &second.routes[1]));
    file.routes[2].hostnames = vec!["a.x"];
    assert!(followed.load(&file.text()).is_err());
    file.routes[2].hostnames = vec!["d.x"];
    let (third, warnings) = followed.load(&file.text()).unwrap();
    assert!(Arc::ptr_eq(&second.routes[1], &third.routes[1]), "the bad file is forgotten");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    file.routes.remove(0);
    let (fourth, warnings) = followed.load(&file.text()).unwrap();
    assert!(Arc::ptr_eq(&third.routes[1], &fourth.routes[0]));
    assert_eq!(warnings[0].field, "routes[1].backends");
}
