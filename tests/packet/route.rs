//! Choosing the route by server name.

use std::mem::offset_of;

use common::decide::route_key;
use common::decide::server_name::RESERVED;
use common::maps::backend::Backend;
use common::maps::listener::{Listener, ListenerKey};
use common::maps::name;
use common::maps::route::{NameKey, NameRoute, Route};
use common::reason::Reason;
use tests::addresses::{FAMILIES, TLS_PORT, vip};
use tests::hello::hello;
use tests::program::{Outcome, Pod, Programs};
use tests::schedule::{Change, Place};

use crate::check::{assert_dropped, assert_sent};
use crate::scene::{Client, dial, ready};
use crate::setup::backend_address;

/// The port of a second listener.
const OTHER_PORT: u16 = 8443;

/// Loads routes 1 to 9, all with the same backends, listener 2 on [`OTHER_PORT`], and these names on listener 1;
/// `+.` and a suffix is one label before it.
fn routed(names: &[(&str, u32)]) -> Programs {
    let mut programs = ready();
    for route in 2..10 {
        let backends = FAMILIES
            .map(|family| (10 * route + family as u32, programs.backend(route, backend_address(family, 0))));
        programs.route(route, &backends);
    }
    for family in FAMILIES {
        let listener = Listener { id: 2, ..listener(&programs, family) };
        programs.listener(vip(family), OTHER_PORT, listener);
    }
    for (pattern, route) in names {
        match (pattern.strip_prefix("*."), pattern.strip_prefix("+.")) {
            (Some(suffix), _) => programs.wildcard(1, suffix, *route),
            (None, Some(suffix)) => programs.one_label(1, suffix, *route),
            (None, None) => programs.name(1, pattern, *route),
        }
    }
    programs
}

/// Returns listener 1 as stored in the maps.
fn listener(programs: &Programs, family: tests::addresses::Family) -> Listener {
    let port = common::maps::address::Port::new(TLS_PORT);
    let key = ListenerKey { address: vip(family).into(), port, reserved: [0; 2] };
    programs.entry(name::LISTENERS, key).expect("listener 1 is there")
}

/// Sets the default route of listener 1.
fn default_route(programs: &mut Programs, route: u32) {
    for family in FAMILIES {
        let listener = Listener { route, ..listener(programs, family) };
        programs.listener(vip(family), TLS_PORT, listener);
    }
}

/// Returns the route that a hello's bytes lead to, or the reason for the refusal.
fn judge(programs: &mut Programs, client: Client, bytes: &[u8]) -> Result<u32, Reason> {
    let outcome: Outcome = client.send(programs, 0, bytes);
    let [(reason, 1)] = outcome.counted[..] else { panic!("{:?}", outcome.counted) };
    if reason == Reason::ConnectSyn {
        let route = client.waiting(programs).expect("the hello is kept").connection.route;
        let reset = client.at(bytes.len() as u32).rst();
        assert_eq!(client.give(programs, &reset).counted, [(Reason::HelloReset, 1)]);
        return Ok(route);
    }
    assert_sent(&outcome, reason, &client.refusal());
    assert_eq!(client.waiting(programs), None);
    Err(reason)
}

/// Asserts the result for each name, over both families, on this port.
#[track_caller]
fn assert_routes(programs: &mut Programs, port: u16, cases: &[(&str, Result<u32, Reason>)]) {
    for family in FAMILIES {
        for (name, expected) in cases {
            let client = dial(family).to_port(port).shake(programs);
            let got = judge(programs, client, &hello().name(name).bytes());
            assert_eq!(got, *expected, "{name} over {family:?}");
        }
    }
}

#[test]
fn exact_names_match_in_any_case_and_with_a_trailing_dot() {
    tests::skip_without_root!();
    let mut programs = routed(&[("api.example.org", 2), ("a", 3), ("x_1-2.example", 4)]);
    let cases = [
        ("api.example.org", Ok(2)),
        ("API.Example.ORG", Ok(2)),
        ("api.example.org.", Ok(2)),
        ("a", Ok(3)),
        ("A.", Ok(3)),
        ("x_1-2.example", Ok(4)),
        ("api.example.or", Err(Reason::RouteNone)),
        ("api.example.orga", Err(Reason::RouteNone)),
        ("pi.example.org", Err(Reason::RouteNone)),
        ("b.api.example.org", Err(Reason::RouteNone)),
        ("tenant-a.k8s.example.com", Ok(1)),
    ];
    assert_routes(&mut programs, TLS_PORT, &cases);
}

#[test]
fn wildcards_match_one_label_or_more_and_the_longest_wins() {
    tests::skip_without_root!();
    let mut programs = routed(&[
        ("*.example.org", 2),
        ("*.deep.example.org", 3),
        ("exact.deep.example.org", 4),
        ("*.b.c", 5),
    ]);
    let cases = [
        ("a.example.org", Ok(2)),
        ("a.b.c.example.org", Ok(2)),
        ("A.B.Example.Org.", Ok(2)),
        ("deep.example.org", Ok(2)),
        ("a.deep.example.org", Ok(3)),
        ("a.b.deep.example.org", Ok(3)),
        ("exact.deep.example.org", Ok(4)),
        ("not.exact.deep.example.org", Ok(3)),
        ("xdeep.example.org", Ok(2)),
        // The wildcard itself, and names that only have the same ending.
        ("example.org", Err(Reason::RouteNone)),
        ("xexample.org", Err(Reason::RouteNone)),
        ("a.b.c", Ok(5)),
        ("b.c", Err(Reason::RouteNone)),
        ("c", Err(Reason::RouteNone)),
        ("*.example.org", Err(Reason::HelloNameInvalid)),
    ];
    assert_routes(&mut programs, TLS_PORT, &cases);
}

#[test]
fn one_label_comes_after_the_name_itself_and_before_any_depth() {
    tests::skip_without_root!();
    let mut programs = routed(&[
        ("exact.example.org", 2),
        ("+.example.org", 3),
        ("*.example.org", 4),
        ("*.org", 5),
        ("+.org", 6),
        ("+.alone.example.net", 7),
        ("+.default", 8),
    ]);
    let cases = [
        ("exact.example.org", Ok(2)),
        ("a.example.org", Ok(3)),
        ("EXACT2.Example.Org.", Ok(3)),
        ("a.exact.example.org", Ok(4)),
        ("a.b.example.org", Ok(4)),
        ("a.b.org", Ok(5)),
        ("example.org", Ok(6)),
        ("a.org", Ok(6)),
        ("org", Err(Reason::RouteNone)),
        ("a.alone.example.net", Ok(7)),
        ("a.b.alone.example.net", Err(Reason::RouteNone)),
        ("alone.example.net", Err(Reason::RouteNone)),
        ("xalone.example.net", Err(Reason::RouteNone)),
        ("kubernetez.default", Ok(8)),
        ("kubernetes.default", Err(Reason::RouteReserved)),
        // The key in the map is no name that a client can ask for.
        ("*.example.org", Err(Reason::HelloNameInvalid)),
        ("*.alone.example.net", Err(Reason::HelloNameInvalid)),
        ("*", Err(Reason::HelloNameInvalid)),
    ];
    assert_routes(&mut programs, TLS_PORT, &cases);
}

/// The key with `*` is shorter than that of the name: it may be in the other map, and nothing of the name, or of an
/// earlier one, is left behind its end.
#[test]
fn one_label_of_any_length_matches() {
    tests::skip_without_root!();
    let label = "a".repeat(63);
    let long = format!("{label}.{label}.{label}");
    let suffixes =
        [59, 60, 61, 125, 189].map(|bytes| long[long.len() - bytes..].trim_start_matches('.').to_owned());
    let patterns = suffixes.each_ref().map(|suffix| format!("+.{suffix}"));
    let routed_to: Vec<(&str, u32)> = patterns.iter().map(String::as_str).zip(2..).collect();
    let mut programs = routed(&routed_to);
    for first in ["x", "xx", &label, "y"] {
        let names = suffixes.each_ref().map(|suffix| format!("{first}.{suffix}"));
        let cases: Vec<_> = names.iter().map(String::as_str).zip((2..).map(Ok)).collect();
        assert_routes(&mut programs, TLS_PORT, &cases);
        let deeper = names.each_ref().map(|name| format!("x.{name}"));
        let cases: Vec<_> = deeper
            .iter()
            .filter(|name| name.len() <= 253)
            .map(|name| (&**name, Err(Reason::RouteNone)))
            .collect();
        assert_routes(&mut programs, TLS_PORT, &cases);
    }
    let longest = format!("{}.{}", &label[..63], suffixes[4]);
    assert_eq!(longest.len(), 253);
}

#[test]
fn a_short_name_after_a_long_one_matches_by_its_own_bytes() {
    tests::skip_without_root!();
    let long = format!("{}.example.org", ["label"; 30].join("."));
    let mut programs = routed(&[("*.example.org", 2), ("*.g", 3)]);
    assert_routes(
        &mut programs,
        TLS_PORT,
        &[
            (&long, Ok(2)),
            ("g", Err(Reason::RouteNone)),
            (&long, Ok(2)),
            ("a.g", Ok(3)),
            ("rg", Err(Reason::RouteNone)),
        ],
    );
}

#[test]
fn a_name_of_253_bytes_is_routed() {
    tests::skip_without_root!();
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "b".repeat(61));
    let other = format!("{label}.{label}.{label}.{}", "c".repeat(61));
    let wild = format!("x.{}", &longest[2..]);
    assert_eq!(longest.len(), 253);
    let mut programs = routed(&[(&longest, 2), (&format!("*.{}", &longest[64..]), 3)]);
    let too_long = format!("{longest}b");
    let dotted = format!("{longest}.");
    let cases = [
        (longest.as_str(), Ok(2)),
        (&dotted, Ok(2)),
        (&other, Err(Reason::RouteNone)),
        (&wild, Ok(3)),
        (&too_long, Err(Reason::HelloNameInvalid)),
    ];
    assert_routes(&mut programs, TLS_PORT, &cases);
    let below = format!("y.{}", &longest[64..]);
    assert_routes(&mut programs, TLS_PORT, &[(&below, Ok(3))]);
}

/// Names of up to 61 bytes have their own map, and a long name may start like a short one.
#[test]
fn short_and_long_names_are_told_apart() {
    tests::skip_without_root!();
    let of = |bytes: usize, last: &str| {
        format!("{}.{}.{last}", "n".repeat(10), "m".repeat(bytes - 12 - last.len()))
    };
    let names: Vec<String> = (59..=64).map(|bytes| of(bytes, "org")).collect();
    let patterns: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(2..).collect();
    let mut programs = routed(&patterns);
    let routed: Vec<_> = patterns.iter().map(|(name, route)| (*name, Ok(*route))).collect();
    assert_routes(&mut programs, TLS_PORT, &routed);
    for bytes in 59..=64 {
        let (other, upper) = (of(bytes, "net"), of(bytes, "org").to_uppercase());
        let cases = [(other.as_str(), Err(Reason::RouteNone)), (&upper, Ok(bytes as u32 - 57))];
        assert_routes(&mut programs, TLS_PORT, &cases);
    }
    // After a long name, which leaves its bytes in the working memory.
    let cases = [(names[5].as_str(), Ok(7)), (&names[0], Ok(2)), (&names[2], Ok(4)), (&names[3], Ok(5))];
    assert_routes(&mut programs, TLS_PORT, &cases);
}

#[test]
fn names_of_another_listener_do_not_match() {
    tests::skip_without_root!();
    let mut programs = routed(&[("api.example.org", 2), ("*.example.net", 3)]);
    programs.name(2, "other.example.org", 4);
    programs.wildcard(2, "other.example.net", 5);
    programs.one_label(2, "example.org", 6);
    let own = [
        ("other.example.org", Ok(4)),
        ("a.example.org", Ok(6)),
        ("a.other.example.net", Ok(5)),
        ("api.example.org", Ok(6)),
        ("a.example.net", Err(Reason::RouteNone)),
    ];
    assert_routes(&mut programs, OTHER_PORT, &own);
    let first = [("other.example.org", Err(Reason::RouteNone)), ("a.other.example.net", Ok(3))];
    assert_routes(&mut programs, TLS_PORT, &first);
}

#[test]
fn reserved_names_are_nobodys() {
    tests::skip_without_root!();
    let patterns: Vec<String> = RESERVED.iter().map(|name| (*name).to_owned()).collect();
    let mut names: Vec<(&str, u32)> = patterns.iter().map(|name| (name.as_str(), 2)).collect();
    names.extend([("*.default", 3), ("*.svc", 3), ("*.local", 3)]);
    let mut programs = routed(&names);
    default_route(&mut programs, 4);
    for name in RESERVED {
        let upper = format!("{}.", name.to_uppercase());
        let cases = [(name, Err(Reason::RouteReserved)), (upper.as_str(), Err(Reason::RouteReserved))];
        assert_routes(&mut programs, TLS_PORT, &cases);
    }
    // Names that are only similar.
    let cases = [
        ("kubernetes.default.svc.cluster.local.example.org", Ok(4)),
        ("kubernetes.default.svc.cluster", Ok(4)),
        ("kubernetez", Ok(4)),
        ("kubernetes.defaulT.svd", Ok(4)),
        ("a.kubernetes.default", Ok(3)),
    ];
    assert_routes(&mut programs, TLS_PORT, &cases);
}

#[test]
fn unknown_names_are_refused_without_a_default_route() {
    tests::skip_without_root!();
    let mut programs = routed(&[]);
    assert_routes(&mut programs, TLS_PORT, &[("nobody.example.org", Err(Reason::RouteNone))]);
}

/// Returns hellos without a name: with none at all, and with an address instead.
fn nameless() -> Vec<Vec<u8>> {
    let mut all = vec![hello().bytes()];
    all.extend(["192.0.2.1", "10.0.0.1.", "2001:db8::1", "::1"].map(|name| hello().name(name).bytes()));
    all
}

#[test]
fn no_name_and_addresses_as_names_are_refused_without_a_default_route() {
    tests::skip_without_root!();
    let mut programs = routed(&[("*.1", 2)]);
    for family in FAMILIES {
        for bytes in nameless() {
            let client = dial(family).shake(&mut programs);
            assert_eq!(judge(&mut programs, client, &bytes), Err(Reason::RouteNoName));
        }
    }
}

#[test]
fn the_default_route_takes_unknown_names_and_no_name_but_never_what_is_malformed() {
    tests::skip_without_root!();
    let mut programs = routed(&[("api.example.org", 2)]);
    default_route(&mut programs, 7);
    assert_routes(&mut programs, TLS_PORT, &[("api.example.org", Ok(2)), ("nobody.example.org", Ok(7))]);
    let mut bad_length = hello().name("nobody.example.org").bytes();
    // The session id is longer than allowed.
    bad_length[43] = 33;
    let malformed = [
        (hello().name("not a name").bytes(), Reason::HelloNameInvalid),
        (hello().name("a..b").bytes(), Reason::HelloNameInvalid),
        (bad_length, Reason::HelloMalformed),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), Reason::HelloNotTls),
    ];
    for family in FAMILIES {
        for bytes in nameless() {
            let client = dial(family).shake(&mut programs);
            assert_eq!(judge(&mut programs, client, &bytes), Ok(7));
        }
        for (bytes, reason) in &malformed {
            let client = dial(family).shake(&mut programs);
            assert_eq!(judge(&mut programs, client, bytes), Err(*reason));
        }
    }
}

/// Sends a hello whose packet looks up the entry of `key`; after the first access another CPU changes it. The
/// packet then decides nothing, and the client's retransmission is decided by the current entry.
#[track_caller]
fn changes<K: Pod, V: Pod>(programs: &mut Programs, client: Client, map: &'static str, key: K, at: usize) {
    let entry: V = programs.entry(map, key).expect("the entry is there");
    let bytes = hello().name(CHANGING).bytes();
    let change = Change::write(map, &key, at, &9_u32);
    let other = programs.behind_access(&Place::new(map, &key, at), 1, &[change]).expect("the byte is there");
    let outcome = client.send(programs, 0, &bytes);
    assert!(other.happened(), "{map}");
    assert_dropped(&outcome, Reason::RouteChanged);
    assert_eq!((outcome.emitted, client.waiting(programs)), (Vec::new(), None), "{map}");
    drop(other);
    programs.insert(map, key, entry);
    assert_eq!(judge(programs, client, &bytes), Ok(2), "{map}");
}

/// The name of route 2 below.
const CHANGING: &str = "changing.example.org";

/// Hash map elements are reused as soon as they are removed, so a read may return another key's value.
#[test]
fn an_entry_that_changes_while_it_is_read_decides_nothing() {
    tests::skip_without_root!();
    let mut programs = routed(&[(CHANGING, 2)]);
    let (bytes, length) = route_key::buffer(CHANGING.as_bytes()).expect("a name");
    let mut name = NameKey::zeroed();
    route_key::exact(&mut name, 1, &bytes, length);
    for family in FAMILIES {
        let port = common::maps::address::Port::new(TLS_PORT);
        let listener = ListenerKey { address: vip(family).into(), port, reserved: [0; 2] };
        let backend = 20 + family as u32;
        let mut client = |port| dial(family).port(port).shake(&mut programs);
        let [first, second, third, fourth] = [41_000, 41_001, 41_002, 41_003].map(&mut client);
        let at = offset_of!(Listener, id);
        changes::<_, Listener>(&mut programs, first, name::LISTENERS, listener, at);
        let at = offset_of!(NameRoute, route);
        changes::<_, NameRoute>(&mut programs, second, name::ROUTES_EXACT, name.short, at);
        let at = offset_of!(Backend, route);
        changes::<_, Backend>(&mut programs, third, name::BACKENDS, backend, at);
        // Another route's policy.
        changes::<_, Route>(&mut programs, fourth, name::ROUTES, 2u32, offset_of!(Route, policy));
    }
}
