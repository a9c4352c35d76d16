//! What a decision looks up: the kernel's maps, or an image of them in user space.

use crate::maps::backend::Backend;
use crate::maps::listener::{Listener, ListenerKey};
use crate::maps::route::{MemberKey, NameKey, Route, SuffixKey};
use crate::reason::Reason;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// The look-ups of a decision. Keys and records are in the caller's memory: a method copies a record there, or returns
/// a number. The kernel's programs compile it into themselves, so every method is `#[inline(always)]`.
pub trait Tables {
    /// Copies the listener of an address and port. `false`: there is none, and `to` holds anything.
    fn listener(&self, key: &ListenerKey, to: &mut Listener) -> bool;

    /// The route id of exactly this name; 0 = none. Of a short name's key ([`super::route_key::is_short`]) only
    /// [`NameKey::short`] counts.
    fn name(&self, key: &NameKey) -> u32;

    /// The route id of the longest wildcard over the name that the key holds back to front; 0 = none.
    fn wildcard(&self, key: &SuffixKey) -> u32;

    /// Copies a route. `false`: there is none, and `to` holds anything.
    fn route(&self, id: u32, to: &mut Route) -> bool;

    /// 1 + the member that has this slot of a Maglev table; 0 = no such slot.
    fn slot(&self, table: u32, slot: u32) -> u32;

    /// The backend id of a table's member; 0 = no such member.
    fn member(&self, key: &MemberKey) -> u32;

    /// Copies a backend. `false`: there is none, and `to` holds anything.
    fn backend(&self, id: u32, to: &mut Backend) -> bool;
}

/// Reads an entry that is believed: `look` copies it, and says whether there is one.
///
/// Elements of the kernel's hash maps are used again the moment they are removed, so a copy may be another key's entry.
/// The entry is looked up again, and what was copied must be what is there now. Else [`Reason::RouteChanged`]: nothing
/// was decided, the packet is dropped, and its sender's retransmission is decided again.
#[inline(always)]
pub fn stable<R: FromZeros + IntoBytes + Immutable>(
    to: &mut R,
    look: impl Fn(&mut R) -> bool,
) -> Result<bool, Reason> {
    if !look(to) {
        return Ok(false);
    }
    let mut again = R::new_zeroed();
    if look(&mut again) && is_same(to, &again) { Ok(true) } else { Err(Reason::RouteChanged) }
}

/// [`stable`] for a look-up that returns a number.
#[inline(always)]
pub(super) fn stable_number(look: impl Fn() -> u32) -> Result<u32, Reason> {
    let mut number = 0;
    stable(&mut number, |to| {
        *to = look();
        *to != 0
    })?;
    Ok(number)
}

/// Whether two records are the same: word by word and without a branch each, for the kernel's verifier.
#[inline(always)]
fn is_same<R: IntoBytes + Immutable>(one: &R, other: &R) -> bool {
    const { assert!(size_of::<R>().is_multiple_of(4), "records are made of words") };
    let (one, other) = (one.as_bytes().as_chunks::<4>().0, other.as_bytes().as_chunks::<4>().0);
    let mut difference = 0;
    let mut word = 0;
    while word < size_of::<R>() / 4 {
        difference |= u32::from_ne_bytes(one[word]) ^ u32::from_ne_bytes(other[word]);
        word += 1;
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// Looks that find these, one after the other.
    fn looks(found: &[Option<Backend>]) -> Result<Option<Backend>, Reason> {
        let next = Cell::new(0);
        let mut to = Backend::zeroed();
        let is_there = stable(&mut to, |to| {
            let found = found[next.replace(next.get() + 1)];
            *to = found.unwrap_or_default();
            found.is_some()
        })?;
        Ok(is_there.then_some(to))
    }

    /// A change of any byte is seen. Packet tests force one between two look-ups of the programs.
    #[test]
    fn what_changes_while_it_is_read_is_not_believed() {
        let one = Backend { route: 7, weight: 3, ..Backend::zeroed() };
        assert_eq!(looks(&[None]), Ok(None));
        assert_eq!(looks(&[Some(one), Some(one)]), Ok(Some(one)));
        assert_eq!(looks(&[Some(one), None]), Err(Reason::RouteChanged));
        for byte in 0..size_of::<Backend>() {
            let mut other = one;
            other.as_mut_bytes()[byte] ^= 0x80;
            assert_eq!(looks(&[Some(one), Some(other)]), Err(Reason::RouteChanged), "byte {byte}");
        }
        let numbers = [4, 5];
        let next = Cell::new(0);
        assert_eq!(stable_number(|| numbers[next.replace(next.get() + 1)]), Err(Reason::RouteChanged));
        assert_eq!(stable_number(|| 4), Ok(4));
        assert_eq!(stable_number(|| 0), Ok(0));
    }
}
