//! Which tenant, which backend, and why: the kernel's decision on the maps in memory, by the kernel's own code
//! (`common::decide`, `common::wire::client_hello`). Pure.

use crate::model::problem::closest;
use crate::model::{Desired, InvalidName, ServerName};
use crate::plan::{Applied, Hop, Hops, World, plan};
use common::decide::maglev;
use common::decide::server_name::{NameError, RESERVED};
use common::maps::address::{Address, Port};
use common::maps::backend::{BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend};
use common::maps::flow::ClientTuple;
use common::maps::listener::{Listener, PROTOCOL_TLS};
use common::maps::route::{LABEL_LISTENER, LABEL_ROUTE, PAGE_SLOTS, PageKey, Route, Table};
use common::reason::Reason;
use common::wire::client_hello::{Outcome, Parser};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What a client would send.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// A ClientHello with this server name; U-labels are converted.
    Name(&'a str),
    /// The bytes of its stream, record headers included.
    Hello(&'a [u8]),
}

/// Where a client is, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// Its port; `None`: any.
    pub port: Option<u16>,
}

/// What becomes of a connection. Serialised, it is one line of `vestibule explain -o json`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Decision {
    /// `server_name`, `no_sni`, `need_more`, `invalid`.
    pub parse: &'static str,
    /// Lower case, A-labels, no trailing dot; with `parse` `server_name` only.
    pub server_name: Option<String>,
    /// `route`, `refuse`, `wait`.
    pub verdict: &'static str,
    /// The listener's name.
    pub listener: String,
    /// The route's name; also with `refuse` when the route was found and its backends are the reason.
    pub route: Option<String>,
    /// What matched, as configured; `None` for a default route and on TCP listeners.
    pub pattern: Option<String>,
    /// `address:port`; `None` when refused, and where the client's address family or port decides and is not known.
    pub backend: Option<SocketAddr>,
    /// The reason under which the packet that decides is counted, as `reason` in `vestibule reasons -o json`.
    pub reason: &'static str,
    /// The same for people.
    #[serde(skip)]
    pub why: &'static str,
}

/// Why a question cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is nothing to ask about.
    #[error("there is no listener")]
    NoListener,
    /// No listener has the name.
    #[error("there is no listener {name:?}; {remedy}")]
    Unknown {
        /// As asked.
        name: String,
        /// A likely name, or all there are.
        remedy: String,
    },
    /// Several, or none, route by name.
    #[error("which listener? Say --listener and one of: {choices}")]
    Choose {
        /// Names of listeners.
        choices: String,
    },
}

/// The maps that a configuration would fill, every backend being reachable.
pub fn world_of(desired: &Desired) -> World {
    let hop = |address: IpAddr| {
        let source = if address.is_ipv4() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        (address, Hop { source, ifindex: 1, mtu: 1500 })
    };
    let hops =
        Hops { towards: desired.backend_addresses().into_iter().map(hop).collect(), ..Hops::default() };
    let mut world = World::default();
    for change in plan(&Applied::default(), desired, &hops).changes {
        world.apply(&change);
    }
    world
}

/// Answers for one connection. `listener`: by name; `None`: the only TLS listener.
pub fn decide(
    world: &World,
    listener: Option<&str>,
    asked: Asked<'_>,
    from: Option<Client>,
) -> Result<Decision, ExplainError> {
    let listener = find_listener(world, listener)?;
    let (parse, parsed) = parsed(asked);
    let found = match (listener.protocol == PROTOCOL_TLS, parsed) {
        (true, Parsed::Name(name)) => by_name(world, &listener, &name),
        (true, Parsed::NoName) => by_default(&listener, Reason::RouteNoName),
        (true, Parsed::Refused(reason)) => Err(reason),
        (false, _) => by_default(&listener, Reason::RouteNone),
    };
    let mut decision = Decision {
        parse: parse.0,
        server_name: parse.1,
        verdict: "refuse",
        listener: world.label(LABEL_LISTENER, listener.id).unwrap_or_default().to_owned(),
        route: None,
        pattern: None,
        backend: None,
        reason: "",
        why: "",
    };
    let reason = match found {
        Ok(found) => {
            decision.route = world.label(LABEL_ROUTE, found.route).map(str::to_owned);
            decision.pattern = found.pattern;
            match pick(world, &listener, found.route, from) {
                Ok(backend) => {
                    decision.verdict = "route";
                    decision.backend = backend;
                    if listener.protocol == PROTOCOL_TLS { Reason::ConnectSyn } else { Reason::SynForwarded }
                }
                Err(reason) => reason,
            }
        }
        Err(reason) => {
            if reason == Reason::HelloStashed {
                decision.verdict = "wait";
            }
            reason
        }
    };
    decision.reason = reason.label();
    decision.why = reason.text();
    Ok(decision)
}

fn find_listener(world: &World, name: Option<&str>) -> Result<Listener, ExplainError> {
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
    /// Refused, or waited for, before any route is looked up.
    Refused(Reason),
}

/// The words for the answer, and what follows.
fn parsed(asked: Asked<'_>) -> ((&'static str, Option<String>), Parsed) {
    let outcome = match asked {
        Asked::Name(text) => match ServerName::new(text) {
            Ok(name) => return (("server_name", Some(name.to_string())), Parsed::Name(name.to_string())),
            Err(InvalidName::Rule(NameError::Address)) => Outcome::NoName,
            Err(_) => Outcome::NameInvalid,
        },
        Asked::Hello(bytes) => {
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
        Outcome::NeedMore => refused("need_more", Reason::HelloStashed),
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

/// As `stage/route.rs`: exact, then the longest wildcard, then the default.
fn by_name(world: &World, listener: &Listener, name: &str) -> Result<Found, Reason> {
    if RESERVED.contains(&name) {
        return Err(Reason::RouteReserved);
    }
    if let Some(route) = world.exact(listener.id, name) {
        return Ok(Found { route, pattern: Some(name.to_owned()) });
    }
    match world.wildcard(listener.id, name) {
        Some((suffix, route)) => Ok(Found { route, pattern: Some(format!("*.{suffix}")) }),
        None => by_default(listener, Reason::RouteNone),
    }
}

fn by_default(listener: &Listener, otherwise: Reason) -> Result<Found, Reason> {
    if listener.route == 0 { Err(otherwise) } else { Ok(Found { route: listener.route, pattern: None }) }
}

/// As `stage/pick.rs`. `Ok(None)`: some backend, which one depends on what is not known of the client.
fn pick(
    world: &World,
    listener: &Listener,
    route: u32,
    from: Option<Client>,
) -> Result<Option<SocketAddr>, Reason> {
    let route = world.routes.get(&route).copied().unwrap_or_default();
    if let Some(from) = from {
        return pick_for(world, &route, from);
    }
    let entries = world.listeners.iter().filter(|(_, entry)| entry.id == listener.id);
    let addresses: Vec<bool> = entries.map(|(key, _)| key.address.is_v4()).collect();
    let of_family = |is_v4: bool| {
        let address = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        addresses.contains(&is_v4).then(|| pick_for(world, &route, Client { address, port: None }))
    };
    match (of_family(true), of_family(false)) {
        (Some(Ok(_)), Some(Ok(_))) => Ok(None),
        (Some(Ok(backend)), _) | (_, Some(Ok(backend))) => Ok(backend),
        (Some(Err(reason)), _) | (None, Some(Err(reason))) => Err(reason),
        (None, None) => Err(Reason::PickNone),
    }
}

fn pick_for(world: &World, route: &Route, from: Client) -> Result<Option<SocketAddr>, Reason> {
    let (table, other) = if from.address.is_ipv4() { (route.v4, route.v6) } else { (route.v6, route.v4) };
    if table.id == 0 || table.members == 0 || table.slots == 0 {
        return Err(if other.members == 0 { Reason::PickNone } else { Reason::PickNoFamily });
    }
    let tries = |first: u32| {
        let attempts = 0..maglev::LOOKS_MAX.min(table.members);
        attempts.filter_map(move |n| usable(world, &table, maglev::member(first, n, table.members))).next()
    };
    let first = match from.port {
        _ if table.slots == 1 => 0,
        Some(port) => slot_member(world, &table, from.address, port).ok_or(Reason::PickNone)?,
        None => {
            let any = (0..table.members).any(|member| usable(world, &table, member).is_some());
            return if any { Ok(None) } else { Err(Reason::PickNone) };
        }
    };
    if refuses(world, &table, first) {
        return Err(Reason::PickRefused);
    }
    let backend = tries(first).ok_or(Reason::PickNone)?;
    Ok(Some(SocketAddr::new(backend.address.into(), backend.port.number())))
}

fn slot_member(world: &World, table: &Table, address: IpAddr, port: u16) -> Option<u32> {
    let client =
        ClientTuple { client: Address::from(address), client_port: Port::new(port), ..ClientTuple::zeroed() };
    let slot = maglev::slot(maglev::flow_hash(&client), table.slots);
    let page = world.pages.get(&PageKey { table: table.id, page: slot / PAGE_SLOTS as u32 })?;
    page.slots.get(slot as usize % PAGE_SLOTS).map(|member| u32::from(*member))
}

fn usable<'w>(world: &'w World, table: &Table, member: u32) -> Option<&'w Backend> {
    let unusable = BACKEND_RETIRED | BACKEND_UNREACHABLE | BACKEND_REFUSING;
    world.backends.get(&world.member(table, member)?).filter(|backend| backend.flags & unusable == 0)
}

/// Whether the share of connections of this member is refused.
fn refuses(world: &World, table: &Table, member: u32) -> bool {
    let id = world.member(table, member);
    id.and_then(|id| world.backends.get(&id)).is_some_and(|backend| backend.flags & BACKEND_REFUSING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Surroundings;
    use crate::sources::file::judge;
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

    fn world() -> World {
        world_of(&judge(FILE, &Surroundings::default()).0)
    }

    fn client(text: &str) -> Client {
        match text.parse::<SocketAddr>() {
            Ok(socket) => Client { address: socket.ip(), port: Some(socket.port()) },
            Err(_) => Client { address: text.parse().unwrap(), port: None },
        }
    }

    fn answer(world: &World, listener: Option<&str>, asked: Asked<'_>, from: Option<&str>) -> String {
        let decision = decide(world, listener, asked, from.map(client)).unwrap();
        serde_json::to_string(&decision).unwrap() + "\n"
    }

    fn check(questions: &[(&str, Option<&str>)], expected: Expect) {
        let world = world();
        let lines =
            questions.iter().map(|(name, from)| answer(&world, Some("shared"), Asked::Name(name), *from));
        expected.assert_eq(&lines.collect::<String>());
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
                {"parse":"server_name","server_name":"a.example.com","verdict":"route","listener":"shared","route":"a","pattern":"a.example.com","backend":"10.97.2.2:6443","reason":"syn"}
                {"parse":"server_name","server_name":"x.y.a.example.com","verdict":"route","listener":"shared","route":"a","pattern":"*.a.example.com","backend":"[fd97:2::2]:6443","reason":"syn"}
                {"parse":"server_name","server_name":"c.example.com","verdict":"route","listener":"shared","route":"b","pattern":"*.example.com","backend":"10.97.3.3:6443","reason":"syn"}
                {"parse":"server_name","server_name":"c.example.com","verdict":"route","listener":"shared","route":"b","pattern":"*.example.com","backend":null,"reason":"syn"}
                {"parse":"server_name","server_name":"xn--bcher-kva.example.com","verdict":"route","listener":"shared","route":"b","pattern":"*.example.com","backend":"10.97.3.2:6443","reason":"syn"}
                {"parse":"server_name","server_name":"a.example.com","verdict":"route","listener":"shared","route":"a","pattern":"a.example.com","backend":null,"reason":"syn"}
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
                {"parse":"server_name","server_name":"b.example.com","verdict":"refuse","listener":"shared","route":"b","pattern":"b.example.com","backend":null,"reason":"no_family"}
                {"parse":"server_name","server_name":"other.org","verdict":"refuse","listener":"shared","route":"c","pattern":null,"backend":null,"reason":"no_backend"}
                {"parse":"no_sni","server_name":null,"verdict":"refuse","listener":"shared","route":"c","pattern":null,"backend":null,"reason":"no_backend"}
                {"parse":"invalid","server_name":null,"verdict":"refuse","listener":"shared","route":null,"pattern":null,"backend":null,"reason":"name_invalid"}
                {"parse":"server_name","server_name":"kubernetes.default.svc","verdict":"refuse","listener":"shared","route":null,"pattern":null,"backend":null,"reason":"reserved_name"}
            "#]],
        );
    }

    #[test]
    fn hellos_are_read_as_the_kernel_does() {
        let world = world();
        let lines = [&b"GET / HTTP/1.1\r\n"[..], &[0x16, 3, 1, 0, 200, 1], &[0x16, 3, 1, 0, 0], b""]
            .map(|bytes| answer(&world, Some("shared"), Asked::Hello(bytes), None));
        expect![[r#"
            {"parse":"invalid","server_name":null,"verdict":"refuse","listener":"shared","route":null,"pattern":null,"backend":null,"reason":"not_tls"}
            {"parse":"need_more","server_name":null,"verdict":"wait","listener":"shared","route":null,"pattern":null,"backend":null,"reason":"stashed"}
            {"parse":"invalid","server_name":null,"verdict":"refuse","listener":"shared","route":null,"pattern":null,"backend":null,"reason":"malformed"}
            {"parse":"need_more","server_name":null,"verdict":"wait","listener":"shared","route":null,"pattern":null,"backend":null,"reason":"stashed"}
        "#]].assert_eq(&lines.concat());
        expect![[r#"
            {"parse":"invalid","server_name":null,"verdict":"route","listener":"direct","route":"a","pattern":null,"backend":"10.97.2.2:6443","reason":"forwarded"}
        "#]].assert_eq(&answer(&world, Some("direct"), Asked::Hello(b"SSH-2.0-x\r\n"), Some("192.0.2.7")));
    }

    #[test]
    fn the_only_tls_listener_is_meant() {
        let world = world();
        assert_eq!(decide(&world, None, Asked::Name("a.example.com"), None).unwrap().listener, "shared");
        let error =
            |world: &World, name| decide(world, name, Asked::Name("a"), None).unwrap_err().to_string();
        expect![[r#"there is no listener "share"; did you mean "shared"?"#]]
            .assert_eq(&error(&world, Some("share")));
        expect!["there is no listener"].assert_eq(&error(&World::default(), None));
        let two = FILE.replace("protocol: TCP", "protocol: TLS");
        expect!["which listener? Say --listener and one of: direct, shared"]
            .assert_eq(&error(&world_of(&judge(&two, &Surroundings::default()).0), None));
    }

    #[test]
    fn unreachable_members_are_passed_over() {
        let mut world = world();
        let at = |world: &World, port: u16| {
            let from = Client { address: "192.0.2.7".parse().unwrap(), port: Some(port) };
            decide(world, Some("shared"), Asked::Name("b.example.com"), Some(from)).unwrap()
        };
        let heavy = |d: &Decision| d.backend.is_some_and(|backend| backend.to_string() == "10.97.3.3:6443");
        let share = (0..4000).filter(|n| heavy(&at(&world, 40_000 + n))).count();
        assert!((2850..3150).contains(&share), "{share} of 4000 for weight 3 of 4");
        for backend in world.backends.values_mut().filter(|backend| backend.weight == 3) {
            backend.flags = BACKEND_UNREACHABLE;
        }
        assert!((0..100).all(|n| at(&world, 40_000 + n).backend.unwrap().to_string() == "10.97.3.2:6443"));
        world.backends.values_mut().for_each(|backend| backend.flags = BACKEND_UNREACHABLE);
        assert_eq!(at(&world, 40_000).reason, "no_backend");
    }
}
