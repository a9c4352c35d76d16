//! Doors: addresses and ports we answer on. Each has one protocol; a TCP door has one owner, a TLS door as many as it
//! has names.

use super::rank::Claimant;
use crate::model::Protocol;
use foldhash::HashMap;
use std::net::SocketAddr;

/// An address and port we answer on.
pub(super) struct Door<'a> {
    pub(super) at: SocketAddr,
    pub(super) protocol: Protocol,
    /// Who opened it.
    pub(super) owner: Claimant<'a>,
}

/// Who wants a door for what.
#[derive(Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) claimant: Claimant<'a>,
    pub(super) at: SocketAddr,
    pub(super) protocol: Protocol,
    /// Whose claim it is, as the caller counts.
    pub(super) whose: Whose,
}

/// What a door is claimed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The listener of the static file at this place.
    File(usize),
    /// The listener at this place.
    Listener(usize),
    /// The Service port at this place.
    ServicePort(usize),
}

/// Opens the doors. For each claim, in the order of claimants, `told` hears the door's place and whether it is theirs.
pub(super) fn open<'a>(
    mut claims: Vec<Claim<'a>>,
    mut told: impl FnMut(Whose, usize, bool),
) -> Vec<Door<'a>> {
    // Claims of one object keep their order: equal objects give equal doors.
    claims.sort_by_key(|claim| claim.claimant);
    let mut doors: Vec<Door<'a>> = Vec::new();
    let mut places: HashMap<SocketAddr, usize> = HashMap::default();
    for claim in claims {
        let place = *places.entry(claim.at).or_insert(doors.len());
        let Some(door) = doors.get(place) else {
            doors.push(Door { at: claim.at, protocol: claim.protocol, owner: claim.claimant });
            told(claim.whose, place, true);
            continue;
        };
        let shared = door.protocol == claim.protocol && claim.protocol == Protocol::Tls;
        told(claim.whose, place, shared);
    }
    doors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, ObjectName};
    use Protocol::{Tcp, Tls};

    fn won(claims: &[(Claimant<'_>, &str, Protocol)]) -> Vec<bool> {
        let claims: Vec<Claim<'_>> = claims
            .iter()
            .enumerate()
            .map(|(place, (claimant, at, protocol))| Claim {
                claimant: *claimant,
                at: at.parse().unwrap(),
                protocol: *protocol,
                whose: Whose::Listener(place),
            })
            .collect();
        let mut won = vec![false; claims.len()];
        open(claims, |whose, _, is_own| {
            let Whose::Listener(place) = whose else { panic!("{whose:?}") };
            won[place] = is_own;
        });
        won
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
        // Of the same age: by kind, then by name.
        let gateway = object(1, Kind::Gateway, &b);
        assert_eq!(won(&[(old, "1.1.1.1:1", Tcp), (gateway, "1.1.1.1:1", Tcp)]), [false, true]);
        let first = object(1, Kind::Gateway, &a);
        assert_eq!(won(&[(gateway, "1.1.1.1:1", Tcp), (first, "1.1.1.1:1", Tcp)]), [false, true]);
    }
}
