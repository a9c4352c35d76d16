//! From the server name to the route: exact, then the longest wildcard, then the listener's default.

use common::decide::{route_key, server_name};
use common::reason::Reason;
use common::wire::client_hello::Outcome;

use crate::exit::Exit;
use crate::maps;
use crate::packet::Scratch;

/// Sets `s.hello.route`.
#[inline(always)]
pub(crate) fn find(s: &mut Scratch) -> Result<(), Exit> {
    Exit::from_code(route_find(s))
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn route_find(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    match decide(s) {
        Ok(route) => {
            s.hello.route = route;
            Exit::code(Ok(()))
        }
        Err(reason) => Exit::code(Err(Exit::reset(reason))),
    }
}

#[inline(always)]
fn decide(s: &mut Scratch) -> Result<u32, Reason> {
    if s.hello.parser.outcome() != Outcome::Name {
        return default(s, Reason::RouteNoName);
    }
    let (name, length) = (&s.hello.parser.name, s.hello.parser.name_length);
    if server_name::is_reserved(name, length) {
        return Err(Reason::RouteReserved);
    }
    route_key::exact(&mut s.name_key, s.listener, name, length);
    if let Some(found) = maps::exact(&s.name_key) {
        return Ok(found.route);
    }
    reverse(s);
    match maps::wildcard(&s.suffix_key) {
        Some(route) => Ok(route),
        None => default(s, Reason::RouteNone),
    }
}

#[inline(always)]
fn default(s: &Scratch, reason: Reason) -> Result<u32, Reason> {
    if s.listener_route == 0 { Err(reason) } else { Ok(s.listener_route) }
}

/// Fills the key of the wildcard lookup.
#[inline(always)]
fn reverse(s: &mut Scratch) {
    let length = s.hello.parser.name_length;
    let name = &s.hello.parser.name;
    let key = &mut s.suffix_key;
    key.prefix_bits = 16 + 8 * u32::from(length);
    key.listener = (s.listener as u16).to_be_bytes();
    // Only bytes within `prefix_bits` are compared: what an earlier packet left behind them does not matter.
    let mut i = 0u32;
    while i < u32::from(length) {
        let Some(to) = key.reversed.get_mut(i as usize) else { break };
        *to = route_key::reversed_byte(name, length, i);
        i += 1;
    }
}
