//! Bindings: addresses and ports we answer on. Each has one protocol. A TCP binding has one owner; a TLS
//! binding has as many owners as it has names.

use super::precedence::Claimant;
use crate::model::{Cluster, Protocol};
use foldhash::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

/// The most addresses and ports that are answered on. Each is an element of `LISTENERS` (65,536); in a
/// cluster it is also a listener with one of 65,535 ids.
pub const BINDINGS_MAX: usize = 65_535;
/// The most different addresses that are answered on. `ADDRESSES` (65,536) also holds those of the node
/// itself.
pub const ADDRESSES_MAX: usize = 65_536 - 1024;

/// An address and port we answer on.
pub(super) struct Binding<'a> {
    pub(super) at: SocketAddr,
    pub(super) protocol: Protocol,
    /// The first of those that have it, and not always the one that opened it: it is the same when all is settled again, and they all had it before.
    pub(super) owner: Claimant<'a>,
}

/// A claim on an address and port.
#[derive(Clone, Copy)]
pub(super) struct Bid<'a> {
    pub(super) claimant: Claimant<'a>,
    pub(super) at: SocketAddr,
    pub(super) protocol: Protocol,
    /// What the claim is for, by the caller's index.
    pub(super) whose: Whose,
}

/// What a binding is claimed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The listener of the static file at this index.
    File(usize),
    /// The listener at this index.
    Listener(usize),
    /// The Service port at this index.
    ServicePort(usize),
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The claimant has the binding at this index, alone or with others.
    Own(usize),
    /// The binding at this index belongs to another claimant.
    Lost(usize),
    /// The maps have no room for this binding.
    Full(SocketAddr),
    /// This binding is of a shared address, on a port that takes TLS only.
    TlsOnly(SocketAddr),
}

/// Returns the message about a binding that takes TLS only.
pub(super) fn tls_only(at: SocketAddr) -> String {
    format!(
        "{at} takes TLS only: the address is shared, and addresses.tlsPorts of the chart's values names the port; use TLS, another \
         port, or an address of its own"
    )
}

/// The most bindings and addresses that the maps have room for.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Addresses and ports.
    pub bindings: usize,
    /// Different addresses.
    pub addresses: usize,
}

impl Default for Most {
    fn default() -> Self {
        Self { bindings: BINDINGS_MAX, addresses: ADDRESSES_MAX }
    }
}

/// Opens as many bindings as the maps have room for. Namespaces that have a binding come before those that do not. Calls `told`
/// with the outcome of each claim, in the order of precedence. What the chart reserves for TLS holds for objects, and not for the
/// static file, which is the operator's too.
pub(super) fn open<'a>(
    mut claims: Vec<Bid<'a>>,
    cluster: &Cluster,
    most: Most,
    mut told: impl FnMut(Whose, Outcome),
) -> Vec<Binding<'a>> {
    // The sort is stable, so claims of one object keep their order: equal objects result in equal bindings.
    let is_new = |claim: &Bid<'a>| {
        let has = |namespace| cluster.possession.has_binding(namespace, claim.at, claim.protocol);
        claim.claimant.namespace().is_some_and(|namespace| !has(namespace))
    };
    claims.sort_by_key(|claim| (is_new(claim), claim.claimant));
    let mut bindings: Vec<Binding<'a>> = Vec::new();
    let mut places: HashMap<SocketAddr, usize> = HashMap::default();
    let mut addresses: HashSet<IpAddr> = HashSet::default();
    let policy = &cluster.policy;
    let is_tls_only = |claim: &Bid<'a>| {
        let at = claim.at;
        let is_object = claim.claimant.namespace().is_some();
        is_object
            && claim.protocol != Protocol::Tls
            && policy.tls_ports.contains(&at.port())
            && policy.shared.contains(&at.ip())
    };
    for claim in claims {
        if is_tls_only(&claim) {
            told(claim.whose, Outcome::TlsOnly(claim.at));
            continue;
        }
        let outcome = match places.get(&claim.at) {
            Some(place) => {
                let is_shared =
                    bindings[*place].protocol == claim.protocol && claim.protocol == Protocol::Tls;
                if is_shared {
                    let owner = &mut bindings[*place].owner;
                    *owner = claim.claimant.min(*owner);
                    Outcome::Own(*place)
                } else {
                    Outcome::Lost(*place)
                }
            }
            None => {
                let is_new = !addresses.contains(&claim.at.ip());
                if bindings.len() >= most.bindings || (is_new && addresses.len() >= most.addresses) {
                    Outcome::Full(claim.at)
                } else {
                    addresses.insert(claim.at.ip());
                    places.insert(claim.at, bindings.len());
                    bindings.push(Binding { at: claim.at, protocol: claim.protocol, owner: claim.claimant });
                    Outcome::Own(bindings.len() - 1)
                }
            }
        };
        told(claim.whose, outcome);
    }
    bindings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, ObjectName, Possession};
    use Protocol::{Tcp, Tls};

    fn won(claims: &[(Claimant<'_>, &str, Protocol)]) -> Vec<bool> {
        won_of(claims, Most::default())
    }

    fn won_of(claims: &[(Claimant<'_>, &str, Protocol)], most: Most) -> Vec<bool> {
        let claims: Vec<Bid<'_>> = claims
            .iter()
            .enumerate()
            .map(|(place, (claimant, at, protocol))| Bid {
                claimant: *claimant,
                at: at.parse().unwrap(),
                protocol: *protocol,
                whose: Whose::Listener(place),
            })
            .collect();
        let mut won = vec![false; claims.len()];
        open(claims, &Cluster::default(), most, |whose, outcome| {
            let Whose::Listener(place) = whose else { panic!("{whose:?}") };
            won[place] = matches!(outcome, Outcome::Own(_));
        });
        won
    }

    /// Otherwise who shares an address on TLS could take it from all others any day.
    #[test]
    fn who_has_a_share_on_tls_does_not_have_the_port_on_tcp() {
        let names = ["a", "b"].map(|namespace| ObjectName::new(namespace, "g"));
        let object =
            |n: usize, created_secs| Claimant::Object { created_secs, kind: Kind::Gateway, name: &names[n] };
        let at: SocketAddr = "1.1.1.1:443".parse().unwrap();
        let mut possession = Possession::default();
        for name in &names {
            possession.add_binding(&name.namespace, at, Tls);
        }
        let bid = |n, created_secs, protocol| Bid {
            claimant: object(n, created_secs),
            at,
            protocol,
            whose: Whose::Listener(n),
        };
        let mut outcomes = Vec::new();
        let cluster = Cluster { possession, ..Cluster::default() };
        open(vec![bid(0, 9, Tls), bid(1, 1, Tcp)], &cluster, Most::default(), |whose, outcome| {
            outcomes.push((whose, outcome));
        });
        assert_eq!(outcomes, [(Whose::Listener(0), Outcome::Own(0)), (Whose::Listener(1), Outcome::Lost(0))]);
    }

    #[test]
    fn what_does_not_fit_is_refused_to_the_newest() {
        let names: Vec<ObjectName> = (0..4).map(|n| ObjectName::new("a", format!("{n}"))).collect();
        let object =
            |n: usize| Claimant::Object { created_secs: n as i64, kind: Kind::Gateway, name: &names[n] };
        let claims = [
            (object(3), "1.1.1.1:4", Tcp),
            (object(2), "1.1.1.2:1", Tcp),
            (object(1), "1.1.1.1:1", Tls),
            (object(0), "1.1.1.1:2", Tcp),
            (object(3), "1.1.1.1:1", Tls),
        ];
        let most = |bindings, addresses| Most { bindings, addresses };
        assert_eq!(won_of(&claims, Most::default()), [true; 5]);
        assert_eq!(won_of(&claims, most(3, 2)), [false, true, true, true, true], "what is open is shared");
        assert_eq!(won_of(&claims, most(2, 2)), [false, false, true, true, true]);
        assert_eq!(won_of(&claims, most(9, 1)), [true, false, true, true, true]);
    }

    #[test]
    fn one_protocol_has_a_door_and_the_first_has_a_tcp_door() {
        let (a, b) = (ObjectName::new("a", "x"), ObjectName::new("b", "x"));
        let object = |created_secs, kind, name| Claimant::Object { created_secs, kind, name };
        let file = Claimant::File { what: "listener", name: "x" };
        let (old, new) = (object(1, Kind::Service, &b), object(2, Kind::Gateway, &a));
        assert_eq!(won(&[(new, "1.1.1.1:1", Tls), (old, "1.1.1.1:1", Tls)]), [true, true]);
        assert_eq!(won(&[(new, "1.1.1.1:1", Tls), (old, "1.1.1.1:1", Tcp)]), [false, true]);
        assert_eq!(won(&[(new, "1.1.1.1:1", Tcp), (old, "1.1.1.1:1", Tcp)]), [false, true]);
        assert_eq!(won(&[(new, "1.1.1.1:1", Tcp), (old, "1.1.1.1:2", Tcp)]), [true, true]);
        assert_eq!(won(&[(new, "1.1.1.1:1", Tcp), (old, "[::1]:1", Tcp)]), [true, true]);
        assert_eq!(won(&[(old, "1.1.1.1:1", Tcp), (file, "1.1.1.1:1", Tls)]), [false, true]);
        // At the same age, kind decides, then name.
        let gateway = object(1, Kind::Gateway, &b);
        assert_eq!(won(&[(old, "1.1.1.1:1", Tcp), (gateway, "1.1.1.1:1", Tcp)]), [false, true]);
        let first = object(1, Kind::Gateway, &a);
        assert_eq!(won(&[(gateway, "1.1.1.1:1", Tcp), (first, "1.1.1.1:1", Tcp)]), [false, true]);
    }
}
