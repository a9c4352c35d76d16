//! The tables that decisions read: the kernel's maps, or an image of them in user space.

use super::pick::{self, Choice, LOOKS_MAX, Search};
use crate::maps::backend::Backend;
use crate::maps::listener::{Listener, ListenerKey};
use crate::maps::policy::PolicyKey;
use crate::maps::route::{MemberKey, NameKey, Route, SuffixKey};
use crate::reason::Reason;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// The lookups of a decision. Keys and records are in the caller's memory: each method copies a record there
/// or returns a number. The kernel programs inline the lookups, so every method is `#[inline(always)]`.
pub trait Tables {
    /// Copies the listener of an address and port. `false`: there is none, and the content of `to` is
    /// undefined.
    fn listener(&self, key: &ListenerKey, to: &mut Listener) -> bool;

    /// Returns the route id of exactly this name, or of the pattern of one label that is stored like a name
    /// ([`super::route_key::one_label`]); 0 = none. For a short name ([`super::route_key::is_short`]) only
    /// [`NameKey::short`] is used.
    fn name(&self, key: &NameKey) -> u32;

    /// Returns the route id of the longest wildcard of any depth that matches the reversed name in the key; 0 = none.
    fn wildcard(&self, key: &SuffixKey) -> u32;

    /// Copies a route. `false`: there is none, and the content of `to` is undefined.
    fn route(&self, id: u32, to: &mut Route) -> bool;

    /// Whether a policy has a range that holds the address in the key.
    fn is_within(&self, key: &PolicyKey) -> bool;

    /// Returns 1 + the member in this slot of a Maglev table; 0 = no such slot.
    fn slot(&self, table: u32, slot: u32) -> u32;

    /// Returns the backend id of a table's member; 0 = no such member.
    fn member(&self, key: &MemberKey) -> u32;

    /// Copies a backend. `false`: there is none, and the content of `to` is undefined.
    fn backend(&self, id: u32, to: &mut Backend) -> bool;

    /// Calls [`pick::look`] until it returns `true`, at most [`LOOKS_MAX`] times. The verifier follows each round of a plain
    /// loop, so the kernel programs have one of their own.
    #[inline(always)]
    fn search(&self, choice: &mut Choice, search: Search)
    where
        Self: Sized,
    {
        let _ = (0..LOOKS_MAX).find(|_| pick::look(self, choice, &search));
    }
}

/// Reads an entry reliably. `look` copies the entry and returns whether there is one.
///
/// The kernel reuses an element of a hash map as soon as it is removed, so a copy may contain another key's
/// entry. The entry is therefore looked up twice, and both copies must be equal. Otherwise the result is
/// [`Reason::RouteChanged`]: nothing was decided, the packet is dropped, and the sender's retransmission is
/// decided from scratch.
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

/// Like [`stable`], for a lookup that returns a number.
#[inline(always)]
pub(super) fn stable_number(look: impl Fn() -> u32) -> Result<u32, Reason> {
    let mut number = 0;
    stable(&mut number, |to| {
        *to = look();
        *to != 0
    })?;
    Ok(number)
}

/// Whether two records are equal. Compares word by word and without branches, for the kernel's verifier.
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

    /// Calls [`stable`] with lookups that return the elements of `found` in turn.
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

    /// A change of any byte is detected. Packet tests force a change between two lookups of the programs.
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
