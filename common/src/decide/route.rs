//! Finds the route for a listener and a server name: by the exact name, then by the longest wildcard, then
//! the listener's own route.

use super::route_key::{self, NAME_BUFFER};
use super::server_name;
use super::tables::{Tables, stable, stable_number};
use crate::maps::listener::{Listener, ListenerKey, PROTOCOL_TCP};
use crate::maps::route::{NameKey, SuffixKey};
use crate::reason::Reason;

/// A server name as the parser of the hello returns it: lower case, no trailing dot.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// Zero after `length`.
    pub bytes: &'a [u8; NAME_BUFFER],
    /// Bytes of the name, 1 to 253.
    pub length: u8,
}

/// Memory for the keys of a name's lookups; its previous content does not matter.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// The key of the exact name.
    pub name: NameKey,
    /// The key of the wildcards that match it.
    pub suffix: SuffixKey,
}

/// What matched the connection to its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
    /// The name itself.
    Exact,
    /// A wildcard that matches the name.
    Wildcard,
    /// The listener's own route: the default with TLS, the only one with TCP.
    Listener,
}

/// Copies the listener of an address and port. `Ok(false)`: there is none.
#[inline(always)]
pub fn listener(tables: &impl Tables, key: &ListenerKey, to: &mut Listener) -> Result<bool, Reason> {
    stable(to, |to| tables.listener(key, to))
}

/// Returns the route id of a connection, which is never 0, and what matched. `name` is the server name in the
/// hello, if any; it is ignored for a TCP listener. `reverse` fills the key of the wildcards as
/// [`route_key::suffix`] does; the kernel passes its own, because it needs a separate loop over the bytes of
/// the name.
///
/// Err: the client is refused for this reason. With [`Reason::RouteChanged`] its packet is dropped instead.
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

/// Returns the listener's own route; `otherwise` is the error if it has none.
#[inline(always)]
fn own(listener: &Listener, otherwise: Reason) -> Result<(u32, Matched), Reason> {
    if listener.route == 0 { Err(otherwise) } else { Ok((listener.route, Matched::Listener)) }
}
