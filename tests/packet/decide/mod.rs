//! One decision: the loaded programs, `explain` and the tests' own oracle agree, for random tables, clients
//! and server names.
//!
//! Each of these errors, planted in `common::decide`, made it fail within the 10,000 cases:
//! * the longest wildcard takes precedence over the exact name, or over the pattern of one label;
//! * a reserved name is looked up further if the listener has no route of its own;
//! * the default route does not take unknown names; a missing name is treated as an unknown one;
//! * the offset does not change after the first try; each try examines one member fewer;
//! * clients over IPv6 get the IPv4 table if there is no IPv6 one;
//! * IPv4 clients are looked up as IPv6 ones; a range is looked up without its policy;
//! * a refusing member refuses clients that have no backend so far; unreachable members are dialled;
//!
//! So did leaving out any one lookup, listener, short name, long name, pattern of one label, wildcard, route, slot, member or
//! backend, in the programs (`VESTIBULE_EBPF` names the object to run) and in `plan::MapsImage`.
//!
//! `VESTIBULE_DECIDE_SECS=3600` runs for an hour; `VESTIBULE_DECIDE_SEED` sets the first seed.

mod kernel;
mod names;
mod oracle;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use common::maps::address::Port;
use common::maps::backend::{BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend};
use common::maps::listener::{Listener, ListenerKey};
use common::maps::route::LABEL_LISTENER;
use common::reason::Reason;
use tests::dice::Dice;
use tests::hello::hello;
use userspace::explain::{self, Client, Query};
use userspace::model::{DesiredListener, Protocol};
use userspace::plan::{Applied, Change, Counts, MapsImage, plan};

use kernel::{Kernel, Met};
use oracle::{Answer, Oracle};
use tables::Tables;

/// The number of tables in a run, and of cases on each of them.
const ROUNDS: u64 = 125;
const CASES: usize = 80;

/// The maps of a kernel, and their image. The desired state changes from round to round.
struct Scene {
    kernel: Kernel,
    image: MapsImage,
    applied: Applied,
    /// Changes that the last plan deferred.
    later: Vec<Change>,
    /// How often each outcome occurred.
    seen: BTreeMap<String, u64>,
}

impl Scene {
    fn carry_out(&mut self, changes: &[Change]) {
        for change in changes {
            self.kernel.apply(change);
            self.image.apply(change);
        }
    }

    /// Changes to other tables, as a daemon would. Now and then the old entries are left for a while.
    fn change_to(&mut self, tables: &Tables, dice: &mut Dice) {
        let mut planned = plan(&self.applied, &tables.desired, &tables.hops(&self.kernel.programs));
        let later = std::mem::take(&mut self.later);
        self.carry_out(&later);
        self.carry_out(&planned.changes);
        self.applied = planned.applied;
        if dice.one_in(2) {
            self.carry_out(&std::mem::take(&mut planned.later));
        }
        self.later = planned.later;
    }

    /// Flags some backends beyond the desired state; returns their previous records.
    fn close_some(&mut self, dice: &mut Dice) -> Vec<(u32, Backend)> {
        let mut all: Vec<(u32, Backend)> = self.image.backends.iter().map(|(id, one)| (*id, *one)).collect();
        all.sort_by_key(|(id, _)| *id);
        all.retain(|(_, backend)| backend.port.number() != 0 && dice.one_in(8));
        for (id, backend) in &all {
            let flags = backend.flags | dice.pick(&[BACKEND_RETIRED, BACKEND_UNREACHABLE]);
            self.carry_out(&[Change::PutBackend(*id, Backend { flags, ..*backend })]);
        }
        all
    }

    fn round(&mut self, seed: u64) {
        let dice = &mut Dice::new(seed, 0);
        let tables = Tables::random(dice);
        self.change_to(&tables, dice);
        let before = self.close_some(dice);
        let closed: BTreeSet<SocketAddr> = before
            .iter()
            .map(|(_, backend)| SocketAddr::new(backend.address.into(), backend.port.number()))
            .collect();
        let oracle = Oracle { desired: &tables.desired, unreachable: &tables.unreachable, closed: &closed };
        for case in 0..CASES {
            let vip = tables.vip(dice);
            let client = client(dice, vip.is_ipv4());
            let name = names::asked(dice, &tables.patterns(vip));
            let told = format!(
                "seed {seed}, case {case}: {client} to {vip} asks for {:?}",
                name.as_deref().map(String::from_utf8_lossy)
            );
            let answers = match name.as_deref() {
                // RFC 6066 section 3: a name has at least one byte.
                Some([]) => oracle.answers(Some(b"-"), client, vip),
                name => oracle.answers(name, client, vip),
            };
            self.case(&told, &tables, name.as_deref(), (client, vip), &answers, dice.pick(&[0, 0, 0, 3]));
        }
        for (id, backend) in before {
            self.carry_out(&[Change::PutBackend(id, backend)]);
        }
    }

    /// Asserts that the image leads to this listener; `explain` is queried by the listener's name.
    fn finds(&self, told: &str, vip: SocketAddr, listener: Option<&DesiredListener>) {
        let key = ListenerKey { address: vip.ip().into(), port: Port::new(vip.port()), reserved: [0; 2] };
        let mut found = Listener::zeroed();
        let there = common::decide::route::listener(&self.image, &key, &mut found);
        assert_eq!(there, Ok(listener.is_some()), "{told}");
        if let Some(listener) = listener {
            assert_eq!(self.image.label(LABEL_LISTENER, found.id), Some(&*listener.name), "{told}");
        }
    }

    /// Asserts that both the programs and `explain` give one of these answers.
    fn case(
        &mut self,
        told: &str,
        tables: &Tables,
        name: Option<&[u8]>,
        (client, vip): (SocketAddr, SocketAddr),
        answers: &[Answer],
        refusals: usize,
    ) {
        let listener = tables
            .desired
            .listeners
            .iter()
            .find(|one| one.port == vip.port() && one.addresses.contains(&vip.ip()));
        self.finds(told, vip, listener);
        let is_tls = listener.is_none_or(|listener| listener.protocol == Protocol::Tls);
        let bytes = name.map_or_else(|| hello().bytes(), |name| hello().name(name).bytes());
        let met = match is_tls {
            true => self.kernel.tls(client, vip, &bytes, refusals),
            false => vec![self.kernel.tcp(client, vip)],
        };
        // A hello whose name is empty is malformed, so nothing is decided.
        if is_tls && listener.is_some() && name == Some(&[]) {
            assert_eq!(met, [Met::Refused(Reason::HelloMalformed)], "{told}");
            return;
        }
        let refusals = if is_tls { refusals } else { 0 };
        // Two answers may look the same to the programs: a text of digits and dots is taken as an address or
        // as a name.
        let right: Vec<&Answer> = answers.iter().filter(|answer| expected(answer, refusals) == met).collect();
        let Some(first) = right.first() else {
            panic!("{told}: the programs say {met:?}, the oracle {answers:?} on {tables:#?}");
        };
        *self.seen.entry(kind(first)).or_default() += 1;
        if let Some(listener) = listener {
            let from = Client { address: client.ip(), port: Some(client.port()) };
            let said = explain::decide(
                &self.image,
                &Counts::default(),
                Some(&listener.name),
                Query::Hello(&bytes),
                Some(from),
            )
            .unwrap_or_else(|error| panic!("{told}: {error}"));
            let said = (said.reason, said.route, said.pattern, said.backend);
            let alike = right.iter().any(|answer| told_of(answer, is_tls) == said);
            assert!(alike, "{told}: explain says {said:?}, the oracle {right:?} on {tables:#?}");
        }
    }
}

/// Returns a random client from 198.18.0.0/15 (RFC 2544) or 2001:db8::/32 (RFC 3849), which are assigned to
/// no host.
fn client(dice: &mut Dice, is_v4: bool) -> SocketAddr {
    let number = dice.number();
    let address: IpAddr = match is_v4 {
        true => Ipv4Addr::from(0xc612_0000 | number as u32 & 0x1_ffff).into(),
        false => Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(number)).into(),
    };
    SocketAddr::new(address, dice.between(1, 65_535) as u16)
}

/// Returns what the programs do for this answer when this many backends refuse.
fn expected(answer: &Answer, refusals: usize) -> Vec<Met> {
    match answer {
        Answer::NotOurs => vec![Met::Refused(Reason::NotOurs)],
        Answer::NoListener => vec![Met::Refused(Reason::ClassifyNoListener)],
        Answer::Refused { reason, .. } => vec![Met::Refused(*reason)],
        Answer::Dialled { backends, .. } => {
            let dialled = backends.iter().take(refusals + 1).copied().map(Met::Backend);
            let exhausted = (refusals >= backends.len()).then_some(Met::Refused(Reason::ConnectExhausted));
            dialled.chain(exhausted).collect()
        }
    }
}

/// Returns what `explain` reports for this answer: reason, route, pattern and backend.
fn told_of(
    answer: &Answer,
    is_tls: bool,
) -> (&'static str, Option<String>, Option<String>, Option<SocketAddr>) {
    match answer.clone() {
        Answer::NotOurs | Answer::NoListener => unreachable!("there is a listener"),
        Answer::Refused { reason, route, pattern } => (reason.label(), route, pattern, None),
        Answer::Dialled { route, pattern, backends } => {
            let reason = if is_tls { Reason::ConnectSyn } else { Reason::SynForwarded };
            (reason.label(), Some(route), pattern, backends.first().copied())
        }
    }
}

/// Returns the key under which the answer is counted.
fn kind(answer: &Answer) -> String {
    match answer {
        Answer::NotOurs => "not ours".into(),
        Answer::NoListener => "no listener".into(),
        Answer::Refused { reason, .. } => format!("refused: {}", reason.label()),
        Answer::Dialled { pattern, .. } => match pattern.as_deref() {
            None => "dialled by the listener's route".into(),
            Some(pattern) => {
                let (kind, pattern) = match pattern.strip_suffix(" (one label)") {
                    Some(pattern) => ("one label", pattern),
                    None if pattern.starts_with("*.") => ("a wildcard", pattern),
                    None => ("the name", pattern),
                };
                format!("dialled by {kind}{}", if pattern.len() > 61 { " (long)" } else { "" })
            }
        },
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

#[test]
fn programs_explain_and_oracle_decide_alike() {
    tests::skip_without_root!();
    let (kernel, image) = (Kernel::new(), MapsImage::default());
    let mut scene =
        Scene { kernel, image, applied: Applied::default(), later: Vec::new(), seen: BTreeMap::new() };
    let begun = Instant::now();
    let time = number("VESTIBULE_DECIDE_SECS").map(Duration::from_secs);
    let first = number("VESTIBULE_DECIDE_SEED").unwrap_or(1);
    let rounds = (first..).enumerate().take_while(|(round, _)| match time {
        Some(time) => begun.elapsed() < time,
        None => (*round as u64) < ROUNDS,
    });
    let mut done = 0;
    for (_, seed) in rounds {
        scene.round(seed);
        done += CASES as u64;
    }
    eprintln!("{done} cases in {:.1} s: {:#?}", begun.elapsed().as_secs_f64(), scene.seen);
    // Rare outcomes must occur too, otherwise the run says nothing about them.
    let least = |kind: &str| scene.seen.get(kind).copied().unwrap_or_default() * 1000 / done;
    for (kind, share) in [
        ("dialled by the name", 20),
        ("dialled by the name (long)", 5),
        ("dialled by one label", 20),
        ("dialled by one label (long)", 5),
        ("dialled by a wildcard", 20),
        ("dialled by a wildcard (long)", 5),
        ("dialled by the listener's route", 50),
        ("refused: unknown_name", 20),
        ("refused: no_name", 2),
        ("refused: reserved_name", 2),
        ("refused: name_invalid", 20),
        ("refused: no_backend", 10),
        ("refused: no_family", 5),
        ("refused: refused", 1),
        ("refused: source_range", 10),
        ("refused: source_range_syn", 5),
        ("no listener", 10),
    ] {
        assert!(least(kind) >= share, "{kind}: {} of a thousand, at least {share} wanted", least(kind));
    }
}
