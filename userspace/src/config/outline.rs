//! A JSON file whose routes are still text. A route whose text did not change need not be parsed again, and
//! routes can be parsed on several CPUs at once.

use super::checked::Check;
use super::raw::{RawOutline, RawRoute};
use crate::model::{Facts, ListenerSpec, Problem, RouteSpec, Settings};
use serde_json::value::RawValue;
use std::thread;

/// The fewest routes for which a thread is worthwhile.
const PART: usize = 4096;

/// A JSON file of the right shape, except for the routes, whose shape is not checked yet.
#[derive(Debug)]
pub struct Outline<'t> {
    /// Limits and times.
    pub settings: Settings,
    /// In the order of the file.
    pub listeners: Vec<ListenerSpec>,
    /// Problems of everything except the routes.
    pub problems: Vec<Problem>,
    routes: Vec<&'t RawValue>,
}

/// Checked routes, and their problems.
type Checked = (Vec<RouteSpec>, Vec<Problem>);

impl<'t> Outline<'t> {
    /// Parses everything except the routes. `None`: not JSON, or of the wrong shape.
    pub fn read(text: &'t str) -> Option<Self> {
        if !super::is_json(text) {
            return None;
        }
        let raw: RawOutline<'t> = serde_json::from_str(text).ok()?;
        let mut problems = Vec::new();
        let mut check = Check { problems: &mut problems };
        check.heading(raw.api_version.as_deref(), raw.kind.as_deref());
        let settings = check.settings(raw.settings.unwrap_or_default());
        let listeners = check.listeners(raw.listeners);
        Some(Self { settings, listeners, problems, routes: raw.routes.unwrap_or_default() })
    }

    /// The text of each route, in file order.
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &'t str> {
        self.routes.iter().map(|route| route.get())
    }

    /// Parses the routes at these positions. `None`: one has the wrong shape.
    pub fn routes(&self, places: &[usize]) -> Option<Checked> {
        read(places.iter().map(|place| (*place, self.routes.get(*place).copied())))
    }

    /// Parses the whole file. `None`: a route has the wrong shape.
    pub fn whole(self) -> Option<(Facts, Vec<Problem>)> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let part = self.routes.len().div_ceil(threads).max(PART);
        let first = |number: usize| number * part;
        let parts: Vec<Option<Checked>> = thread::scope(|scope| {
            let read = |(number, routes): (usize, &[&'t RawValue])| {
                let routes = routes.to_vec();
                move || read((first(number)..).zip(routes.into_iter().map(Some)))
            };
            let mut parts = self.routes.chunks(part).enumerate().map(read);
            // This thread parses a part, too.
            let own = parts.next();
            let others: Vec<_> = parts.map(|read| scope.spawn(read)).collect();
            let own = own.map(|read| read());
            let others = others.into_iter().map(|other| other.join().unwrap_or_default());
            own.into_iter().chain(others).collect()
        });
        let (mut routes, mut problems) = (Vec::with_capacity(self.routes.len()), self.problems);
        for part in parts {
            let (more, wrong) = part?;
            routes.extend(more);
            problems.extend(wrong);
        }
        Some((
            Facts { settings: self.settings, listeners: self.listeners, routes, ..Facts::default() },
            problems,
        ))
    }
}

/// Parses routes, given with their positions.
fn read<'t>(routes: impl Iterator<Item = (usize, Option<&'t RawValue>)>) -> Option<Checked> {
    let (mut specs, mut problems) = (Vec::with_capacity(routes.size_hint().0), Vec::new());
    let mut check = Check { problems: &mut problems };
    for (place, text) in routes {
        let raw: RawRoute<'t> = serde_json::from_str(text?.get()).ok()?;
        specs.extend(check.route(place, raw));
    }
    Some((specs, problems))
}

#[cfg(test)]
mod tests {
    use super::super::{parse, raw::RawConfig};
    use super::*;

    fn file(routes: usize, odd: &str) -> String {
        let route = |n: usize| {
            let odd = if n + 1 == routes { odd } else { "" };
            format!(
                r#"{{"name":"r{n}","listeners":["a"],"hostnames":["n{n}.example.com"],"backends":[{{"address":"10.0.0.1","port":{}}}]{odd}}}"#,
                n + 1
            )
        };
        let routes: Vec<String> = (0..routes).map(route).collect();
        format!(
            r#"{{"apiVersion":"vestibule.dev/v1alpha1","kind":"StaticConfig","listeners":[{{"name":"a","addresses":["10.97.0.10"],"port":443,"protocol":"TLS"}}],"routes":[{}]}}"#,
            routes.join(",\n ")
        )
    }

    #[test]
    fn what_is_read_in_parts_is_what_is_read_at_once() {
        for routes in [0, 1, PART, 2 * PART + 1] {
            let text = file(routes, "");
            let raw: RawConfig<'_> = serde_json::from_str(&text).unwrap();
            let mut problems = Vec::new();
            let facts = super::super::checked::facts(raw, &mut problems);
            assert_eq!(Outline::read(&text).unwrap().whole(), Some((facts, problems)));
        }
    }

    #[test]
    fn a_route_that_is_odd_is_told_like_ever() {
        let text = file(PART + 2, r#","colour":"red""#);
        assert_eq!(Outline::read(&text).unwrap().whole(), None);
        let (_, problems) = parse(&text);
        assert_eq!(problems[0].field, format!("routes[{}].colour", PART + 1));
        let outline = Outline::read(&text).unwrap();
        assert_eq!(outline.routes(&[PART + 1]), None);
        let (routes, _) = outline.routes(&[2, 5]).unwrap();
        assert_eq!(
            routes.iter().map(|route| (route.place, &*route.name)).collect::<Vec<_>>(),
            [(2, "r2"), (5, "r5")]
        );
    }
}
