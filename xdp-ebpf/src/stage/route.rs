//! From the server name to the route: exact, then the longest wildcard, then the listener's default.

use common::decide::{route_key, server_name};
use common::reason::Reason;
use common::wire::client_hello::Outcome;
use core::ffi::c_void;

use crate::exit::Exit;
use crate::kernel;
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
        Ok(Some(route)) => {
            s.hello.route = route;
            Exit::code(Ok(()))
        }
        Ok(None) => Exit::code(Err(Exit::drop(Reason::HelloBeyond))),
        Err(reason) => Exit::code(Err(Exit::reset(reason))),
    }
}

/// `None`: the entry changed while it was read; the client repeats.
#[inline(always)]
fn decide(s: &mut Scratch) -> Result<Option<u32>, Reason> {
    if s.hello.parser.outcome() != Outcome::Name {
        return default(s, Reason::RouteNoName).map(Some);
    }
    let (name, length) = (&s.hello.parser.name, s.hello.parser.name_length);
    if server_name::is_reserved(name, length) {
        return Err(Reason::RouteReserved);
    }
    route_key::exact(&mut s.name_key, s.listener, name, length);
    if let Some(route) = exact(s, length) {
        // Elements are reused at once: what was read must be what the name leads to now.
        return Ok(if exact(s, length) == Some(route) { Some(route) } else { None });
    }
    reverse(s);
    match maps::wildcard(&s.suffix_key) {
        Some(route) => Ok(if maps::wildcard(&s.suffix_key) == Some(route) { Some(route) } else { None }),
        None => default(s, Reason::RouteNone).map(Some),
    }
}

/// The route of the whole name in `s.name_key`.
#[inline(always)]
fn exact(s: &Scratch, length: u8) -> Option<u32> {
    let found =
        if route_key::is_short(length) { maps::exact(&s.name_key.short) } else { maps::long(&s.name_key) };
    found.map(|found| found.route)
}

#[inline(always)]
fn default(s: &Scratch, reason: Reason) -> Result<u32, Reason> {
    if s.listener_route == 0 { Err(reason) } else { Ok(s.listener_route) }
}

/// Fills the key of the wildcard lookup.
#[inline(always)]
fn reverse(s: &mut Scratch) {
    let length = s.hello.parser.name_length;
    let key = &mut s.suffix_key;
    key.prefix_bits = 16 + 8 * u32::from(length);
    key.listener = (s.listener as u16).to_be_bytes();
    // Only bytes within `prefix_bits` are compared: what an earlier packet left behind them does not matter.
    s.at = 0;
    let mut run = Run { scratch: s };
    kernel::repeat(32, reverse_step, core::ptr::from_mut(&mut run).cast());
}

/// Context of [`reverse_step`]: on the stack, as the kernel wants it.
#[repr(C)]
struct Run {
    scratch: *mut Scratch,
}

/// Turns round eight bytes; 1 = the end.
unsafe extern "C" fn reverse_step(_: u32, run: *mut c_void) -> i64 {
    // SAFETY: `reverse` passes a `Run` on its stack.
    let run = unsafe { &mut *run.cast::<Run>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { run.scratch.as_mut() }) else { return 1 };
    let (name, length) = (&s.hello.parser.name, s.hello.parser.name_length);
    let mut i = 0;
    while i < 8 {
        let at = s.at + i;
        if let Some(to) = s.suffix_key.reversed.get_mut(at as usize) {
            *to = route_key::reversed_byte(name, length, at);
        }
        i += 1;
    }
    s.at += 8;
    i64::from(s.at >= u32::from(length))
}
