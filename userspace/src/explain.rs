//! Which tenant and backend a connection reaches, and why. Runs the kernel's own code (`common::decide`,
//! `common::wire::client_hello`) on the maps in memory, and decides nothing itself. Pure.

use crate::model::problem::closest;
use crate::model::{Desired, InvalidName, Pattern, ServerName};
use crate::plan::{Applied, Counts, Hop, Hops, MapsImage, plan};
use common::decide::admit::{self, Held};
use common::decide::pick::{self, Choice, pick};
use common::decide::route::{self, Matched, Name, route};
use common::decide::route_key::{self, Keys};
use common::decide::server_name::NameError;
use common::maps::address::{Address, Port};
use common::maps::flow::ClientTuple;
use common::maps::listener::{Listener, PROTOCOL_TLS};
use common::maps::route::{LABEL_LISTENER, LABEL_ROUTE, PICK_ADDRESS};
use common::maps::source::ShareKey;
use common::reason::Reason;
use common::wire::client_hello::{Outcome, Parser};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What a client would send.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// A ClientHello with this server name; U-labels are converted.
    Name(&'a str),
    /// The bytes of a client's stream, including record headers.
    Hello(&'a [u8]),
}

/// The client's address and port, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// Its port; `None`: any.
    pub port: Option<u16>,
}

/// The decision for a connection. Serialized, it is one line of `vestibule explain -o json`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Decision {
    /// `server_name`, `no_sni`, `need_more`, `invalid`.
    pub parse: &'static str,
    /// Lower case, A-labels, no trailing dot. Only if `parse` is `server_name`.
    pub server_name: Option<String>,
    /// `route`, `refuse`, `wait`.
    pub verdict: &'static str,
    /// The listener's name.
    pub listener: String,
    /// The route's name. Also set for `refuse` if a route was found but none of its backends can be used.
    pub route: Option<String>,
    /// Whose the route is. `None`: that of a file, or nobody who knows was asked.
    pub tenant: Option<String>,
    /// The pattern that matched, as configured; `None` for a default route and on TCP listeners.
    pub pattern: Option<String>,
    /// CIDRs of the clients that the route admits; `None`: all, or without a route.
    pub source_ranges: Option<Vec<String>>,
    /// The bounds on what the route and the client may have. Empty without a route.
    pub bounds: Vec<Bound>,
    /// `address:port`; `None` if refused, or if it depends on the client's unknown address or port.
    pub backend: Option<SocketAddr>,
    /// The reason under which the deciding packet is counted, the `reason` of `vestibule reasons -o json`.
    pub reason: &'static str,
    /// The reason as human-readable text.
    #[serde(skip)]
    pub why: &'static str,
}

/// A rule of `common::decide::admit`, which refuses new connections from a count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Bound {
    /// The reason of a refusal.
    pub reason: &'static str,
    /// What there is already; 0 for counts of the client's source if the client is not known.
    pub count: u32,
    /// From this count on, clients are refused.
    pub most: u32,
}

impl From<admit::Rule> for Bound {
    fn from(rule: admit::Rule) -> Self {
        Self { reason: rule.reason.label(), count: rule.count, most: rule.most }
    }
}

/// Why a query cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no listener at all.
    #[error(
        "there is no listener; `vestibule routes` shows what is configured, and in a cluster `vestibule claims` what was granted"
    )]
    NoListener,
    /// No listener has the name.
    #[error("there is no listener {name:?}; {remedy}")]
    Unknown {
        /// The name in the query.
        name: String,
        /// A similar name, or all names.
        remedy: String,
    },
    /// The query does not select a listener, and there is not exactly one TLS listener.
    #[error("which listener? Say --listener and one of: {choices}")]
    Choose {
        /// Names of listeners.
        choices: String,
    },
}

/// Returns the maps that a configuration would fill, with all backends reachable.
pub fn image_of(desired: &Desired) -> MapsImage {
    let hop = |address: IpAddr| {
        let source = if address.is_ipv4() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        (address, Hop { source, ifindex: 1, mtu: 1500, is_on_link: true })
    };
    let hops =
        Hops { towards: desired.backend_addresses().into_iter().map(hop).collect(), ..Hops::default() };
    let mut world = MapsImage::default();
    for change in plan(&Applied::default(), desired, &hops).changes {
        world.apply(&change);
    }
    world
}

/// Decides for one connection. `listener` is a name; `None`: the only TLS listener.
pub fn decide(
    world: &MapsImage,
    counts: &Counts,
    listener: Option<&str>,
    asked: Query<'_>,
    from: Option<Client>,
) -> Result<Decision, ExplainError> {
    let listener = find_listener(world, listener)?;
    let (parse, parsed) = parsed(asked);
    let found = match parsed {
        Parsed::Name(name) => found(world, &listener, Some(&name)),
        Parsed::Refused(reason) if listener.protocol == PROTOCOL_TLS => Err(reason),
        Parsed::NoName | Parsed::Refused(_) => found(world, &listener, None),
    };
    let mut decision = Decision {
        parse: parse.0,
        server_name: parse.1,
        verdict: "refuse",
        listener: world.label(LABEL_LISTENER, listener.id).unwrap_or_default().to_owned(),
        route: None,
        tenant: None,
        pattern: None,
        source_ranges: None,
        bounds: Vec::new(),
        backend: None,
        reason: "",
        why: "",
    };
    let reason = match found {
        Ok(found) => {
            decision.route = world.label(LABEL_ROUTE, found.route).map(str::to_owned);
            decision.pattern = found.pattern;
            let held = held(counts, found.route, from);
            decision.bounds = admit::rules(&held, &world.settings).into_iter().map(Bound::from).collect();
            let ranges = world.routes.get(&found.route).and_then(|route| world.ranges(route.policy));
            decision.source_ranges =
                ranges.map(|ranges| ranges.ranges().iter().map(ToString::to_string).collect());
            let admitted = by_range(world, &listener, found.route, from)
                .and_then(|()| admit::admit(&held, &world.settings));
            match admitted.and_then(|()| backend(world, &listener, found.route, from)) {
                Ok(backend) => {
                    decision.verdict = "route";
                    decision.backend = backend;
                    if listener.protocol == PROTOCOL_TLS { Reason::ConnectSyn } else { Reason::SynForwarded }
                }
                Err(reason) => reason,
            }
        }
        Err(reason) => {
            if reason == Reason::HelloBuffered {
                decision.verdict = "wait";
            }
            reason
        }
    };
    decision.reason = reason.label();
    decision.why = reason.text();
    Ok(decision)
}

/// Admits the client by its address, if that is known.
fn by_range(world: &MapsImage, listener: &Listener, route: u32, from: Option<Client>) -> Result<(), Reason> {
    let Some(client) = from.map(|from| Address::from(from.address)) else { return Ok(()) };
    if !admit::is_admitted(world, listener.policy, &client) {
        return Err(Reason::AdmitSynRange);
    }
    match admit::is_admitted(world, admit::policy(world, route)?, &client) {
        true => Ok(()),
        false => Err(Reason::AdmitSourceRange),
    }
}

fn held(counts: &Counts, route: u32, from: Option<Client>) -> Held {
    let source = from.map(|from| Address::from(from.address).source_prefix());
    let share = source.and_then(|source| counts.shares.get(&ShareKey { source, route }));
    Held {
        route_flows: counts.routes.get(&route).map_or(0, |counters| admit::count(counters.flows)),
        share_flows: share.map_or(0, |share| admit::count(share.flows)),
        share_connecting: share.map_or(0, |share| admit::count(share.connecting)),
    }
}

fn find_listener(world: &MapsImage, name: Option<&str>) -> Result<Listener, ExplainError> {
    let mut listeners: Vec<(&str, Listener)> = world
        .listeners
        .values()
        .map(|listener| (world.label(LABEL_LISTENER, listener.id).unwrap_or_default(), *listener))
        .collect();
    listeners.sort_by_key(|(name, _)| *name);
    listeners.dedup_by_key(|(_, listener)| listener.id);
    let names = || listeners.iter().map(|(name, _)| *name);
    let choices = || names().collect::<Vec<_>>().join(", ");
    if listeners.is_empty() {
        return Err(ExplainError::NoListener);
    }
    if let Some(name) = name {
        let found = listeners.iter().find(|(other, _)| *other == name).map(|(_, listener)| *listener);
        return found.ok_or_else(|| ExplainError::Unknown {
            name: name.to_owned(),
            remedy: match closest(name, names()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("there are: {}", choices()),
            },
        });
    }
    let mut by_name = listeners.iter().filter(|(_, listener)| listener.protocol == PROTOCOL_TLS);
    match (by_name.next(), by_name.next()) {
        (Some((_, only)), None) => Ok(*only),
        _ => Err(ExplainError::Choose { choices: choices() }),
    }
}

enum Parsed {
    Name(String),
    NoName,
    /// Refused or incomplete, before any route lookup.
    Refused(Reason),
}

/// Returns `parse` and `server_name` of the decision, and how to continue.
fn parsed(asked: Query<'_>) -> ((&'static str, Option<String>), Parsed) {
    let outcome = match asked {
        Query::Name(text) => match ServerName::new(text) {
            Ok(name) => return (("server_name", Some(name.to_string())), Parsed::Name(name.to_string())),
            Err(InvalidName::Rule(NameError::Address)) => Outcome::NoName,
            Err(_) => Outcome::NameInvalid,
        },
        Query::Hello(bytes) => {
            let mut parser = Parser::zeroed();
            let outcome = parser.run(bytes, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            let name = parser.name.get(..usize::from(parser.name_length)).unwrap_or_default();
            if outcome == Outcome::Name {
                let name = String::from_utf8_lossy(name).into_owned();
                return (("server_name", Some(name.clone())), Parsed::Name(name));
            }
            outcome
        }
    };
    let refused = |word, reason| ((word, None), Parsed::Refused(reason));
    match outcome {
        Outcome::NoName => (("no_sni", None), Parsed::NoName),
        Outcome::NeedMore => refused("need_more", Reason::HelloBuffered),
        Outcome::NotTls => refused("invalid", Reason::HelloNotTls),
        Outcome::TooLong => refused("invalid", Reason::HelloTooLong),
        Outcome::NameInvalid => refused("invalid", Reason::HelloNameInvalid),
        Outcome::Name | Outcome::Malformed => refused("invalid", Reason::HelloMalformed),
    }
}

struct Found {
    route: u32,
    pattern: Option<String>,
}

/// Looks up the route and the pattern that matched.
fn found(world: &MapsImage, listener: &Listener, name: Option<&str>) -> Result<Found, Reason> {
    let buffer =
        name.map(|name| route_key::buffer(name.as_bytes()).ok_or(Reason::HelloNameInvalid)).transpose()?;
    let asked = buffer.as_ref().map(|(bytes, length)| Name { bytes, length: *length });
    let (route, matched) = route(world, listener, asked, &mut Keys::default(), route::each)?;
    let pattern = match matched {
        Matched::Exact => name.map(str::to_owned),
        Matched::OneLabel => {
            name.and_then(|name| name.split_once('.')).and_then(|(_, suffix)| one_label(suffix))
        }
        Matched::Wildcard => {
            let wildcard = name.and_then(|name| world.wildcard(listener.id, name));
            wildcard.map(|(suffix, _)| format!("*.{suffix}"))
        }
        Matched::Listener => None,
    };
    Ok(Found { route, pattern })
}

/// Returns the text of a pattern of one label.
fn one_label(suffix: &str) -> Option<String> {
    ServerName::new(suffix).ok().map(|suffix| Pattern::OneLabel(suffix).to_string())
}

/// Chooses the backend. `Ok(None)`: the choice depends on an unknown address or port of the client.
fn backend(
    world: &MapsImage,
    listener: &Listener,
    route: u32,
    from: Option<Client>,
) -> Result<Option<SocketAddr>, Reason> {
    if let Some(from) = from {
        // Where the address alone decides, any port will do.
        let by_address = world.routes.get(&route).is_some_and(|route| route.pick == PICK_ADDRESS);
        return backend_for(world, route, Client { port: from.port.or(by_address.then_some(0)), ..from });
    }
    let entries = world.listeners.iter().filter(|(_, entry)| entry.id == listener.id);
    let addresses: Vec<bool> = entries.map(|(key, _)| key.address.is_v4()).collect();
    let of_family = |is_v4: bool| {
        let address = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        addresses.contains(&is_v4).then(|| backend_for(world, route, Client { address, port: None }))
    };
    match (of_family(true), of_family(false)) {
        (Some(Ok(_)), Some(Ok(_))) => Ok(None),
        (Some(Ok(backend)), _) | (_, Some(Ok(backend))) => Ok(backend),
        (Some(Err(reason)), _) | (None, Some(Err(reason))) => Err(reason),
        (None, None) => Err(Reason::PickNone),
    }
}

fn backend_for(world: &MapsImage, route: u32, from: Client) -> Result<Option<SocketAddr>, Reason> {
    let client = Address::from(from.address);
    let socket = |choice: &Choice| SocketAddr::new(choice.record.address.into(), choice.record.port.number());
    if let Some(port) = from.port {
        let client = ClientTuple { client, client_port: Port::new(port), ..ClientTuple::zeroed() };
        let mut choice = Choice::of(route);
        return pick(world, &mut choice, &client).map(|()| Some(socket(&choice)));
    }
    let (table, _) = pick::table(world, route, client.is_v4())?;
    // The port selects the member, so check all members.
    let shares = (0..table.members).map(|member| {
        let mut choice = Choice::of(route);
        pick::pick_from(world, &mut choice, &table, member).map(|()| socket(&choice))
    });
    let (mut backends, mut refused) = (BTreeSet::new(), None);
    for share in shares {
        match share {
            Ok(backend) => drop(backends.insert(backend)),
            Err(reason) => refused = Some(reason),
        }
    }
    match (backends.len(), refused) {
        (0, reason) => Err(reason.unwrap_or(Reason::PickNone)),
        (1, None) => Ok(backends.pop_first()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeFacts;
    use crate::sources::file::judge;
    use common::maps::backend::BACKEND_UNREACHABLE;
    use common::maps::event::RouteCounters;
    use common::maps::route::NameRoute;
    use common::maps::source::Share;
    use expect_test::{Expect, expect};

    const FILE: &str = r#"
apiVersion: vestibule.dev/v1alpha1
kind: StaticConfig
listeners:
  - { name: shared, addresses: ["10.97.0.10", "fd97::10"], port: 443, protocol: TLS, defaultRoute: c }
  - { name: direct, addresses: ["10.97.0.10"], port: 20001, protocol: TCP }
routes:
  - name: a
    listeners: [shared, direct]
    hostnames: ["a.example.com", "*.a.example.com"]
    backends: [{ address: "10.97.2.2", port: 6443 }, { address: "fd97:2::2", port: 6443 }]
  - name: b
    listeners: [shared]
    hostnames: ["b.example.com", "*.example.com"]
    backends: [{ address: "10.97.3.2", port: 6443 }, { address: "10.97.3.3", port: 6443, weight: 3 }]
  - name: c
    backends: [{ address: "10.97.4.2", port: 6443, weight: 0 }]
"#;

    fn world() -> MapsImage {
        image_of(&judge(FILE, &NodeFacts::default()).0)
    }

    fn client(text: &str) -> Client {
        match text.parse::<SocketAddr>() {
            Ok(socket) => Client { address: socket.ip(), port: Some(socket.port()) },
            Err(_) => Client { address: text.parse().unwrap(), port: None },
        }
    }

    fn answer(world: &MapsImage, listener: Option<&str>, asked: Query<'_>, from: Option<&str>) -> String {
        let decision = decide(world, &Counts::default(), listener, asked, from.map(client)).unwrap();
        serde_json::to_string(&decision).unwrap() + "\n"
    }

    fn check(questions: &[(&str, Option<&str>)], expected: Expect) {
        let world = world();
        let lines =
            questions.iter().map(|(name, from)| answer(&world, Some("shared"), Query::Name(name), *from));
        expected.assert_eq(&lines.collect::<String>());
    }

    #[test]
    fn a_pattern_of_one_label_is_shown_as_one() {
        let suffix = ServerName::new("example.com").unwrap();
        let mut world = world();
        let listener = find_listener(&world, Some("shared")).unwrap();
        let a = world.exact(listener.id, "a.example.com").unwrap();
        world.apply(&crate::plan::Change::PutOneLabel(listener.id, suffix, NameRoute { route: a }));
        let told = |name| {
            let told = decide(&world, &Counts::default(), Some("shared"), Query::Name(name), None).unwrap();
            (told.route.unwrap_or_default(), told.pattern.unwrap_or_default())
        };
        let expected = [
            ("b.example.com", "b", "b.example.com"),
            ("c.example.com", "a", "*.example.com (one label)"),
            ("c.c.example.com", "b", "*.example.com"),
            ("example.com", "c", ""),
            ("localhost", "c", ""),
        ];
        for (name, route, pattern) in expected {
            assert_eq!(told(name), (route.to_owned(), pattern.to_owned()), "{name}");
        }
    }

    #[test]
    fn names_lead_to_routes() {
        check(
            &[
                ("A.Example.COM.", Some("192.0.2.7")),
                ("x.y.a.example.com", Some("[2001:db8::7]:40000")),
                ("c.example.com", Some("192.0.2.7:40000")),
                ("c.example.com", Some("192.0.2.7")),
                ("bücher.example.com", Some("192.0.2.7:40001")),
                ("a.example.com", None),
            ],
            expect![[r#"
                {"parse":"server_name","server_name":"a.example.com","verdict":"route","listener":"shared","route":"a","tenant":null,"pattern":"a.example.com","source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":"10.97.2.2:6443","reason":"syn"}
                {"parse":"server_name","server_name":"x.y.a.example.com","verdict":"route","listener":"shared","route":"a","tenant":null,"pattern":"*.a.example.com","source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":"[fd97:2::2]:6443","reason":"syn"}
                {"parse":"server_name","server_name":"c.example.com","verdict":"route","listener":"shared","route":"b","tenant":null,"pattern":"*.example.com","source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":"10.97.3.3:6443","reason":"syn"}
                {"parse":"server_name","server_name":"c.example.com","verdict":"route","listener":"shared","route":"b","tenant":null,"pattern":"*.example.com","source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":null,"reason":"syn"}
                {"parse":"server_name","server_name":"xn--bcher-kva.example.com","verdict":"route","listener":"shared","route":"b","tenant":null,"pattern":"*.example.com","source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":"10.97.3.2:6443","reason":"syn"}
                {"parse":"server_name","server_name":"a.example.com","verdict":"route","listener":"shared","route":"a","tenant":null,"pattern":"a.example.com","source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":null,"reason":"syn"}
            "#]],
        );
    }

    #[test]
    fn refusals_have_a_reason() {
        check(
            &[
                ("b.example.com", Some("2001:db8::7")),
                ("other.org", Some("192.0.2.7")),
                ("10.0.0.1", None),
                ("a b", None),
                ("kubernetes.default.svc", None),
            ],
            expect![[r#"
                {"parse":"server_name","server_name":"b.example.com","verdict":"refuse","listener":"shared","route":"b","tenant":null,"pattern":"b.example.com","source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":null,"reason":"no_family"}
                {"parse":"server_name","server_name":"other.org","verdict":"refuse","listener":"shared","route":"c","tenant":null,"pattern":null,"source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":null,"reason":"no_backend"}
                {"parse":"no_sni","server_name":null,"verdict":"refuse","listener":"shared","route":"c","tenant":null,"pattern":null,"source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":null,"reason":"no_backend"}
                {"parse":"invalid","server_name":null,"verdict":"refuse","listener":"shared","route":null,"tenant":null,"pattern":null,"source_ranges":null,"bounds":[],"backend":null,"reason":"name_invalid"}
                {"parse":"server_name","server_name":"kubernetes.default.svc","verdict":"refuse","listener":"shared","route":null,"tenant":null,"pattern":null,"source_ranges":null,"bounds":[],"backend":null,"reason":"reserved_name"}
            "#]],
        );
    }

    #[test]
    fn hellos_are_read_as_the_kernel_does() {
        let world = world();
        let lines = [&b"GET / HTTP/1.1\r\n"[..], &[0x16, 3, 1, 0, 200, 1], &[0x16, 3, 1, 0, 0], b""]
            .map(|bytes| answer(&world, Some("shared"), Query::Hello(bytes), None));
        expect![[r#"
            {"parse":"invalid","server_name":null,"verdict":"refuse","listener":"shared","route":null,"tenant":null,"pattern":null,"source_ranges":null,"bounds":[],"backend":null,"reason":"not_tls"}
            {"parse":"need_more","server_name":null,"verdict":"wait","listener":"shared","route":null,"tenant":null,"pattern":null,"source_ranges":null,"bounds":[],"backend":null,"reason":"buffered"}
            {"parse":"invalid","server_name":null,"verdict":"refuse","listener":"shared","route":null,"tenant":null,"pattern":null,"source_ranges":null,"bounds":[],"backend":null,"reason":"malformed"}
            {"parse":"need_more","server_name":null,"verdict":"wait","listener":"shared","route":null,"tenant":null,"pattern":null,"source_ranges":null,"bounds":[],"backend":null,"reason":"buffered"}
        "#]].assert_eq(&lines.concat());
        expect![[r#"
            {"parse":"invalid","server_name":null,"verdict":"route","listener":"direct","route":"a","tenant":null,"pattern":null,"source_ranges":null,"bounds":[{"reason":"route_full","count":0,"most":1000000},{"reason":"source_full","count":0,"most":65536},{"reason":"connecting","count":0,"most":8192}],"backend":"10.97.2.2:6443","reason":"forwarded"}
        "#]].assert_eq(&answer(&world, Some("direct"), Query::Hello(b"SSH-2.0-x\r\n"), Some("192.0.2.7")));
    }

    #[test]
    fn the_only_tls_listener_is_meant() {
        let world = world();
        assert_eq!(
            decide(&world, &Counts::default(), None, Query::Name("a.example.com"), None).unwrap().listener,
            "shared"
        );
        let error = |world: &MapsImage, name| {
            decide(world, &Counts::default(), name, Query::Name("a"), None).unwrap_err().to_string()
        };
        expect![[r#"there is no listener "share"; did you mean "shared"?"#]]
            .assert_eq(&error(&world, Some("share")));
        expect!["there is no listener; `vestibule routes` shows what is configured, and in a cluster `vestibule claims` what was granted"]
            .assert_eq(&error(&MapsImage::default(), None));
        let two = FILE.replace("protocol: TCP", "protocol: TLS");
        expect!["which listener? Say --listener and one of: direct, shared"]
            .assert_eq(&error(&image_of(&judge(&two, &NodeFacts::default()).0), None));
    }

    #[test]
    fn a_client_above_a_bound_is_refused() {
        let world = world();
        let is_a = |id: &&u32| world.label(LABEL_ROUTE, **id) == Some("a");
        let route = *world.routes.keys().find(is_a).unwrap();
        let mut counts = Counts::default();
        let source = Address::from(IpAddr::from([192, 0, 2, 7]));
        let most = world.settings.share_flows_max;
        counts.shares.insert(ShareKey { source, route }, Share { flows: most, ..Share::zeroed() });
        counts.routes.insert(route, RouteCounters { flows: 70_000, ..RouteCounters::zeroed() });
        let ask = |from| {
            let name = Query::Name("a.example.com");
            decide(&world, &counts, Some("shared"), name, Some(client(from))).unwrap()
        };
        let refused = ask("192.0.2.7");
        assert_eq!(
            (refused.verdict, refused.reason, refused.route.as_deref()),
            ("refuse", "source_full", Some("a"))
        );
        assert_eq!(refused.bounds[0].count, 70_000);
        assert_eq!(refused.bounds[1], Bound { reason: "source_full", count: most, most });
        assert_eq!(ask("192.0.2.8").verdict, "route");
    }

    #[test]
    fn where_its_address_decides_a_client_needs_no_port_but_an_address() {
        let mut world = world();
        world.routes.values_mut().for_each(|route| route.pick = PICK_ADDRESS);
        let ask = |port| {
            let from = Client { address: IpAddr::from([192, 0, 2, 7]), port };
            let name = Query::Name("b.example.com");
            decide(&world, &Counts::default(), Some("shared"), name, Some(from)).unwrap().backend
        };
        assert!(ask(None).is_some());
        assert!((1..100).all(|port| ask(Some(port)) == ask(None)));
        let anybody = decide(&world, &Counts::default(), Some("shared"), Query::Name("b.example.com"), None);
        let anybody = anybody.unwrap();
        assert_eq!((anybody.verdict, anybody.backend), ("route", None), "clients have several");
    }

    #[test]
    fn unreachable_members_are_passed_over() {
        let mut world = world();
        let at = |world: &MapsImage, port: u16| {
            let from = Client { address: "192.0.2.7".parse().unwrap(), port: Some(port) };
            decide(world, &Counts::default(), Some("shared"), Query::Name("b.example.com"), Some(from))
                .unwrap()
        };
        let heavy = |d: &Decision| d.backend.is_some_and(|backend| backend.to_string() == "10.97.3.3:6443");
        let share = (0..4000).filter(|n| heavy(&at(&world, 40_000 + n))).count();
        assert!((2850..3150).contains(&share), "{share} of 4000 for weight 3 of 4");
        for backend in world.backends.values_mut().filter(|backend| backend.weight == 3) {
            backend.flags = BACKEND_UNREACHABLE;
        }
        assert!((0..100).all(|n| at(&world, 40_000 + n).backend.unwrap().to_string() == "10.97.3.2:6443"));
        // For any client port.
        let from = Client { address: "192.0.2.7".parse().unwrap(), port: None };
        let any =
            decide(&world, &Counts::default(), Some("shared"), Query::Name("b.example.com"), Some(from))
                .unwrap();
        assert_eq!(any.backend.unwrap().to_string(), "10.97.3.2:6443");
        world.backends.values_mut().for_each(|backend| backend.flags = BACKEND_UNREACHABLE);
        assert_eq!(at(&world, 40_000).reason, "no_backend");
    }
}
