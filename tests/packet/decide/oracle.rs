//! The expected outcome of a connection, as the documentation of `model::Desired` defines it, written as
//! plainly as possible: no `Tables`, no maps, and nothing of `common::decide` but the hash.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use common::decide::maglev::flow_hash;
use common::maps::address::Port;
use common::maps::flow::ClientTuple;
use common::maps::route::PICK_MAGLEV;
use common::reason::Reason;
use userspace::compile::maglev::{Member, slots, table};
use userspace::model::{Affinity, BackendSpec, Desired, DesiredListener, DesiredRoute, Pattern, Protocol};

/// The expected outcome for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The address is not ours.
    NotOurs,
    /// No listener has the port.
    NoListener,
    /// Refused; with the route's name and the pattern that matched, once they are known.
    Refused { reason: Reason, route: Option<String>, pattern: Option<String> },
    /// These backends are dialled in turn as each of them refuses.
    Dialled { route: String, pattern: Option<String>, backends: Vec<SocketAddr> },
}

/// The desired state, and what is known of its backends.
#[derive(Debug)]
pub(super) struct Oracle<'a> {
    pub(super) desired: &'a Desired,
    /// Addresses that the node has no route to.
    pub(super) unreachable: &'a BTreeSet<IpAddr>,
    /// Backends that take no new connection, regardless of their other state.
    pub(super) closed: &'a BTreeSet<SocketAddr>,
}

/// How a text in a hello may be classified.
#[derive(Debug)]
enum Judged {
    Name(String),
    /// The text is an address, which is no name (RFC 6066 section 3).
    Nothing,
    Invalid,
}

impl Oracle<'_> {
    /// Returns every right answer: more than one if a text may or may not be taken for an address.
    pub(super) fn answers(&self, name: Option<&[u8]>, client: SocketAddr, vip: SocketAddr) -> Vec<Answer> {
        let listeners = &self.desired.listeners;
        let here = |listener: &&DesiredListener| listener.addresses.contains(&vip.ip());
        if !listeners.iter().any(|listener| here(&listener)) {
            return vec![Answer::NotOurs];
        }
        let found = listeners.iter().position(|one| here(&one) && one.port == vip.port());
        let Some(place) = found else { return vec![Answer::NoListener] };
        let listener = &listeners[place];
        if listener.protocol == Protocol::Tcp {
            return vec![self.own(listener, client, Reason::PickNone)];
        }
        let judged = name.map_or_else(|| vec![Judged::Nothing], judge);
        judged.into_iter().map(|judged| self.tls(place, judged, client)).collect()
    }

    fn tls(&self, place: usize, judged: Judged, client: SocketAddr) -> Answer {
        let listener = &self.desired.listeners[place];
        let name = match judged {
            Judged::Name(name) => name,
            Judged::Nothing => return self.own(listener, client, Reason::RouteNoName),
            Judged::Invalid => return refused(Reason::HelloNameInvalid),
        };
        let reserved = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        if reserved.contains(&&*name) {
            return refused(Reason::RouteReserved);
        }
        let mut best: Option<(usize, &Pattern, &DesiredRoute)> = None;
        for route in self.desired.routes.iter() {
            for (_, pattern) in route.names.iter().filter(|(on, _)| *on == place) {
                let merit = match pattern {
                    Pattern::Exact(exact) if exact.as_str() == name => usize::MAX,
                    Pattern::OneLabel(suffix) if is_right_below(&name, suffix.as_str()) => usize::MAX - 1,
                    Pattern::Wildcard(suffix) if is_below(&name, suffix.as_str()) => suffix.as_str().len(),
                    _ => continue,
                };
                if best.is_none_or(|(before, _, _)| merit > before) {
                    best = Some((merit, pattern, &**route));
                }
            }
        }
        match best {
            Some((_, pattern, route)) => self.dial(route, Some(pattern), client, false),
            None => self.own(listener, client, Reason::RouteNone),
        }
    }

    /// Decides by the listener's own route.
    fn own(&self, listener: &DesiredListener, client: SocketAddr, otherwise: Reason) -> Answer {
        match listener.route {
            Some(route) => {
                let is_tcp = listener.protocol == Protocol::Tcp;
                self.dial(&self.desired.routes[route], None, client, is_tcp)
            }
            None => refused(otherwise),
        }
    }

    fn dial(
        &self,
        route: &DesiredRoute,
        pattern: Option<&Pattern>,
        client: SocketAddr,
        is_tcp: bool,
    ) -> Answer {
        let (name, pattern) = (route.name.to_string(), pattern.map(ToString::to_string));
        if route.source_ranges.as_ref().is_some_and(|ranges| !ranges.holds(client.ip())) {
            let reason = if is_tcp { Reason::AdmitSynRange } else { Reason::AdmitSourceRange };
            return Answer::Refused { reason, route: Some(name), pattern };
        }
        match self.backends(route, client) {
            Ok(backends) => Answer::Dialled { route: name, pattern, backends },
            Err(reason) => Answer::Refused { reason, route: Some(name), pattern },
        }
    }

    /// Returns the client's own backend and the next ones, by the Maglev table over all backends of its
    /// family that have a weight.
    fn backends(&self, route: &DesiredRoute, client: SocketAddr) -> Result<Vec<SocketAddr>, Reason> {
        let weighty = route.backends.iter().filter(|backend| backend.weight > 0);
        let (mut members, others): (Vec<&BackendSpec>, Vec<_>) =
            weighty.partition(|backend| backend.address.is_ipv4() == client.is_ipv4());
        members.sort_by_key(|backend| (backend.address, backend.port));
        if members.is_empty() {
            return Err(if others.is_empty() { Reason::PickNone } else { Reason::PickNoFamily });
        }
        // While the node reaches one, those it does not reach are no members.
        let is_reached = |one: &&BackendSpec| one.is_refusing() || !self.unreachable.contains(&one.address);
        if members.iter().any(|one| !one.is_refusing() && is_reached(one)) {
            members.retain(is_reached);
        }
        let dealt: Vec<Member> = members
            .iter()
            .map(|one| Member { address: one.address.into(), port: Port::new(one.port), weight: one.weight })
            .collect();
        let slots = u64::from(slots(dealt.iter().map(|member| member.weight)));
        // All connections of an address are as the one of port 0.
        let port = if route.affinity == Affinity::ClientIp { 0 } else { client.port() };
        let tuple =
            ClientTuple { client: client.ip().into(), client_port: Port::new(port), ..ClientTuple::zeroed() };
        let slot = (u64::from(flow_hash(&tuple, PICK_MAGLEV)) * slots) >> 32;
        let own = usize::from(table(&dealt, slots as u32)[slot as usize]);
        if members[own].is_refusing() {
            return Err(Reason::PickRefused);
        }
        members.rotate_left(own);
        let takes = |member: &BackendSpec| {
            let socket = SocketAddr::new(member.address, member.port);
            let takes = !member.is_refusing()
                && !self.unreachable.contains(&member.address)
                && !self.closed.contains(&socket);
            takes.then_some(socket)
        };
        let dialled: Vec<_> = members.into_iter().filter_map(takes).collect();
        if dialled.is_empty() { Err(Reason::PickNone) } else { Ok(dialled) }
    }
}

fn refused(reason: Reason) -> Answer {
    Answer::Refused { reason, route: None, pattern: None }
}

/// Returns whether at least one label precedes the suffix.
fn is_below(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).and_then(|above| above.strip_suffix('.')).is_some_and(|above| !above.is_empty())
}

/// Returns whether exactly one label precedes the suffix.
fn is_right_below(name: &str, suffix: &str) -> bool {
    let mut labels = name.split('.');
    labels.next().is_some() && labels.eq(suffix.split('.'))
}

/// Classifies a name (RFC 1035 section 2.3.4, RFC 6066 section 3). Underscores are accepted, and one dot at
/// the end is dropped.
fn judge(text: &[u8]) -> Vec<Judged> {
    let bare = text.strip_suffix(b".").unwrap_or(text);
    let Ok(string) = str::from_utf8(bare) else { return vec![Judged::Invalid] };
    if string.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4() || bare == text) {
        return vec![Judged::Nothing];
    }
    if text.contains(&b':') {
        let like = text.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
        return if like { vec![Judged::Nothing, Judged::Invalid] } else { vec![Judged::Invalid] };
    }
    let labels = string.split('.').all(|label| (1..=63).contains(&label.len()));
    let legal = bare.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte));
    if !labels || !legal || bare.len() > 253 {
        return vec![Judged::Invalid];
    }
    let name = Judged::Name(string.to_ascii_lowercase());
    let quad =
        bare.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') && string.split('.').count() == 4;
    if quad { vec![Judged::Nothing, name] } else { vec![name] }
}
