//! From a listener and a server name to a route: the exact name, then the longest wildcard, then the listener's own.

use super::route_key::{self, NAME_BUFFER};
use super::server_name;
use super::tables::{Tables, stable, stable_number};
use crate::maps::listener::{Listener, ListenerKey, PROTOCOL_TCP};
use crate::maps::route::{NameKey, SuffixKey};
use crate::reason::Reason;

/// A server name as a hello's parser leaves it: lower case, no trailing dot.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// Zero behind `length`.
    pub bytes: &'a [u8; NAME_BUFFER],
    /// Bytes of the name, 1 to 253.
    pub length: u8,
}

/// Room for the keys of a name's look-ups; whatever it held does not matter.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// Of the exact name.
    pub name: NameKey,
    /// Of the wildcards over it.
    pub suffix: SuffixKey,
}

/// What of a route took the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
    /// The name itself.
    Exact,
    /// A wildcard over the name.
    Wildcard,
    /// The listener leads to it: TLS by default, TCP always.
    Listener,
}

/// Copies the listener of an address and port; `Ok(false)`: there is none.
#[inline(always)]
pub fn listener(tables: &impl Tables, key: &ListenerKey, to: &mut Listener) -> Result<bool, Reason> {
    stable(to, |to| tables.listener(key, to))
}

/// The route of a connection, and what matched; never 0. `name` is what the hello asks for, if it names anything; a TCP
/// listener does not look at it. `reverse` fills the key of the wildcards as [`route_key::suffix`] does: a name's length
/// of steps is a loop of its own in the kernel.
///
/// Err: the client is refused for this reason; with [`Reason::RouteChanged`] its packet is dropped.
#[inline(always)]
pub fn route(
    tables: &impl Tables,
    listener: &Listener,
    name: Option<Name<'_>>,
    keys: &mut Keys,
    reverse: impl FnOnce(&mut SuffixKey, u32, Name<'_>),
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
    reverse(&mut keys.suffix, listener.id, name);
    let route = stable_number(|| tables.wildcard(&keys.suffix))?;
    if route != 0 {
        return Ok((route, Matched::Wildcard));
    }
    own(listener, Reason::RouteNone)
}

/// The listener's own route, if it has one.
#[inline(always)]
fn own(listener: &Listener, otherwise: Reason) -> Result<(u32, Matched), Reason> {
    if listener.route == 0 { Err(otherwise) } else { Ok((listener.route, Matched::Listener)) }
}
