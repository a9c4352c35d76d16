//! Finds the route for a listener and a server name: by the exact name, then by the pattern of one label before
//! the rest of the name, then by the longest wildcard, then the listener's own route.

use super::route_key::{self, Keys, NAME_BUFFER};
use super::server_name;
use super::tables::{Tables, stable, stable_number};
use crate::maps::listener::{Listener, ListenerKey, PROTOCOL_TCP};
use crate::reason::Reason;

/// A server name as the parser of the hello returns it: lower case, no trailing dot.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// Zero after `length`.
    pub bytes: &'a [u8; NAME_BUFFER],
    /// Bytes of the name, 1 to 253.
    pub length: u8,
}

/// What matched the connection to its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
    /// The name itself.
    Exact,
    /// A pattern of one label before what follows the name's first dot.
    OneLabel,
    /// A wildcard of any depth that matches the name.
    Wildcard,
    /// The listener's own route: the default with TLS, the only one with TCP.
    Listener,
}

/// Copies the listener of an address and port. `Ok(false)`: there is none.
#[inline(always)]
pub fn listener(tables: &impl Tables, key: &ListenerKey, to: &mut Listener) -> Result<bool, Reason> {
    stable(to, |to| tables.listener(key, to))
}

/// Returns the route id of a connection, which is never 0, and what matched. `name` is the server name in the
/// hello, if any; it is ignored for a TCP listener. `each` calls [`route_key::take`] for each byte of the name, in
/// order, as [`each`] does; the kernel passes its own loop, whose body its verifier checks once.
///
/// Err: the client is refused for this reason. With [`Reason::RouteChanged`] its packet is dropped instead.
#[inline(always)]
pub fn route(
    tables: &impl Tables,
    listener: &Listener,
    name: Option<Name<'_>>,
    keys: &mut Keys,
    each: impl FnOnce(&mut Keys, Name<'_>),
) -> Result<(u32, Matched), Reason> {
    if listener.protocol == PROTOCOL_TCP {
        return own(listener, Reason::PickNone);
    }
    let Some(name) = name else { return own(listener, Reason::RouteNoName) };
    if server_name::is_reserved(name.bytes, name.length) {
        return Err(Reason::RouteReserved);
    }
    route_key::exact(&mut keys.name, listener.id, name.bytes, name.length);
    let route = stable_number(|| tables.name(&keys.name))?;
    if route != 0 {
        return Ok((route, Matched::Exact));
    }
    route_key::patterns(keys, listener.id, name.length, |keys| each(keys, name));
    let route = stable_number(|| tables.name(&keys.name))?;
    if route != 0 {
        return Ok((route, Matched::OneLabel));
    }
    let route = stable_number(|| tables.wildcard(&keys.suffix))?;
    if route != 0 {
        return Ok((route, Matched::Wildcard));
    }
    own(listener, Reason::RouteNone)
}

/// Takes each byte of a name into the keys of the patterns that match it.
pub fn each(keys: &mut Keys, name: Name<'_>) {
    for at in 0..name.length.into() {
        route_key::take(keys, name.bytes, name.length, at);
    }
}

/// Returns the listener's own route; `otherwise` is the error if it has none.
#[inline(always)]
fn own(listener: &Listener, otherwise: Reason) -> Result<(u32, Matched), Reason> {
    if listener.route == 0 { Err(otherwise) } else { Ok((listener.route, Matched::Listener)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::backend::Backend;
    use crate::maps::listener::PROTOCOL_TLS;
    use crate::maps::policy::PolicyKey;
    use crate::maps::route::{MemberKey, NameKey, Route, SuffixKey};

    /// The names of listener 1, and its wildcards of any depth.
    #[derive(Default)]
    struct Names {
        names: Vec<(NameKey, u32)>,
        wildcards: Vec<(SuffixKey, u32)>,
    }

    impl Names {
        /// Routes each pattern to the number of its position: `+.suffix` is one label, `*.suffix` any depth.
        fn of(patterns: &[&str]) -> Self {
            let mut this = Self::default();
            for (pattern, route) in patterns.iter().zip(1..) {
                if let Some(suffix) = pattern.strip_prefix("+.") {
                    this.names.push((route_key::one_label(1, suffix.as_bytes()).unwrap(), route));
                } else if let Some(suffix) = pattern.strip_prefix("*.") {
                    this.wildcards.push((route_key::wildcard(1, suffix.as_bytes()).unwrap(), route));
                } else {
                    let (bytes, length) = route_key::buffer(pattern.as_bytes()).unwrap();
                    let mut key = NameKey::zeroed();
                    route_key::exact(&mut key, 1, &bytes, length);
                    this.names.push((key, route));
                }
            }
            this
        }

        fn route(&self, name: &str) -> Result<(u32, Matched), Reason> {
            let (bytes, length) = route_key::buffer(name.as_bytes()).unwrap();
            let listener = Listener { id: 1, protocol: PROTOCOL_TLS, ..Listener::zeroed() };
            let name = Name { bytes: &bytes, length };
            route(self, &listener, Some(name), &mut Keys::default(), each)
        }
    }

    impl Tables for Names {
        fn name(&self, key: &NameKey) -> u32 {
            let is_this = |one: &NameKey| match route_key::is_short(key.short.length) {
                true => one.short == key.short,
                false => one == key,
            };
            self.names.iter().find(|(one, _)| is_this(one)).map_or(0, |(_, route)| *route)
        }

        fn wildcard(&self, key: &SuffixKey) -> u32 {
            let bytes = |key: &SuffixKey| (key.prefix_bits as usize - 16) / 8;
            let matching = self.wildcards.iter().filter(|(one, _)| {
                bytes(one) <= bytes(key) && one.reversed[..bytes(one)] == key.reversed[..bytes(one)]
            });
            matching.max_by_key(|(one, _)| one.prefix_bits).map_or(0, |(_, route)| *route)
        }

        fn listener(&self, _: &ListenerKey, _: &mut Listener) -> bool {
            false
        }

        fn route(&self, _: u32, _: &mut Route) -> bool {
            false
        }

        fn is_within(&self, _: &PolicyKey) -> bool {
            false
        }

        fn slot(&self, _: u32, _: u32) -> u32 {
            0
        }

        fn member(&self, _: &MemberKey) -> u32 {
            0
        }

        fn backend(&self, _: u32, _: &mut Backend) -> bool {
            false
        }
    }

    #[test]
    fn the_name_itself_comes_before_one_label_before_any_depth() {
        let names = Names::of(&["a.b.c", "+.b.c", "*.b.c", "*.c", "+.c"]);
        assert_eq!(names.route("a.b.c"), Ok((1, Matched::Exact)));
        assert_eq!(names.route("x.b.c"), Ok((2, Matched::OneLabel)));
        assert_eq!(names.route("x.a.b.c"), Ok((3, Matched::Wildcard)));
        assert_eq!(names.route("x.y.c"), Ok((4, Matched::Wildcard)));
        assert_eq!(names.route("b.c"), Ok((5, Matched::OneLabel)));
        assert_eq!(names.route("c"), Err(Reason::RouteNone));
    }

    #[test]
    fn deeper_names_are_not_of_one_label() {
        let names = Names::of(&["+.example.com", "+.default"]);
        assert_eq!(names.route("a.example.com"), Ok((1, Matched::OneLabel)));
        for name in ["a.b.example.com", "example.com", "com", "xexample.com", "a.example.com.x"] {
            assert_eq!(names.route(name), Err(Reason::RouteNone), "{name}");
        }
        assert_eq!(names.route("kubernetes.default"), Err(Reason::RouteReserved));
        assert_eq!(names.route("kubernetez.default"), Ok((2, Matched::OneLabel)));
    }

    #[test]
    fn the_longest_names_have_patterns_of_one_label() {
        let label = "n".repeat(63);
        let suffix = &[label.as_str(); 4].join(".")[2..253];
        let names = Names::of(&[&format!("+.{suffix}"), &format!("+.{}", &suffix[64 - 2..])]);
        let longest = format!("a.{suffix}");
        assert_eq!((longest.len(), names.route(&longest)), (253, Ok((1, Matched::OneLabel))));
        let shorter = format!("{label}.{}", &suffix[64 - 2..]);
        assert_eq!((shorter.len(), names.route(&shorter)), (253, Ok((2, Matched::OneLabel))));
    }
}
