//! From the route to a backend: Maglev over the client's address and port, by the client's address family.

use common::decide::maglev::{self, LOOKS_MAX, TRIES_MAX};
use common::maps::backend::{BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE};
use common::maps::route::{MemberKey, PAGE_SLOTS, PageKey, Table};
use common::reason::Reason;

use crate::exit::Exit;
use crate::maps;
use crate::packet::Scratch;

/// Sets backend and the backend's half of the NAT tuple in `s.hello`; the route is `s.hello.route`, and
/// `s.hello.tries` (raised) says how many were tried before.
#[inline(always)]
pub(crate) fn next(s: &mut Scratch) -> Result<(), Exit> {
    Exit::from_code(pick_next(s))
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pick_next(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    Exit::code(choose(s).map_err(Exit::reset))
}

#[inline(always)]
fn choose(s: &mut Scratch) -> Result<(), Reason> {
    let Some(route) = maps::route(&s.hello.route) else { return Err(Reason::PickNone) };
    let v4 = s.client.client.is_v4();
    let table = if v4 { route.v4 } else { route.v6 };
    if table.id == 0 || table.members == 0 || table.slots == 0 {
        let other = if v4 { route.v6 } else { route.v4 };
        return Err(if other.members == 0 { Reason::PickNone } else { Reason::PickNoFamily });
    }
    let Some(first) = slot_member(s, &table) else { return Err(Reason::PickNone) };
    let mut look = 0;
    while look < LOOKS_MAX {
        let offset = s.hello.offset;
        if s.hello.tries >= TRIES_MAX || u32::from(offset) >= table.members {
            break;
        }
        s.hello.offset = offset + 1;
        match member(s, &table, maglev::member(first, u32::from(offset), table.members)) {
            Member::Taken => {
                s.hello.tries += 1;
                return Ok(());
            }
            // Only a client whose own share it is: one whose backend is down goes on to the next.
            Member::Refusing if offset == 0 => return Err(Reason::PickRefused),
            Member::Refusing | Member::Unusable => {}
        }
        look += 1;
    }
    Err(if s.hello.backend == 0 { Reason::PickNone } else { Reason::ConnectExhausted })
}

#[inline(always)]
fn slot_member(s: &Scratch, table: &Table) -> Option<u32> {
    if table.is_single() {
        return Some(0);
    }
    let slot = maglev::slot(maglev::flow_hash(&s.client), table.slots);
    let page = maps::page(&PageKey { table: table.id, page: slot / PAGE_SLOTS as u32 })?;
    Some(u32::from(page.slots[(slot & (PAGE_SLOTS as u32 - 1)) as usize]))
}

/// What a member is to a new connection.
enum Member {
    /// It is in `s.hello`.
    Taken,
    /// Its share of connections is refused.
    Refusing,
    /// It takes none.
    Unusable,
}

/// Takes the member if it may be dialled.
#[inline(always)]
fn member(s: &mut Scratch, table: &Table, member: u32) -> Member {
    let id = if table.is_single() {
        table.id
    } else {
        let Some(id) = maps::member(&MemberKey { table: table.id, member }) else { return Member::Unusable };
        *id
    };
    let Some(backend) = maps::backend(&id) else { return Member::Unusable };
    // A backend belongs to one route for ever: whatever was read from an entry that changed under us ends here.
    if backend.route != s.hello.route || backend.flags & (BACKEND_RETIRED | BACKEND_UNREACHABLE) != 0 {
        return Member::Unusable;
    }
    if backend.flags & BACKEND_REFUSING != 0 {
        return Member::Refusing;
    }
    let h = &mut s.hello;
    h.backend = id;
    h.nat.backend = backend.address;
    h.nat.source = backend.source;
    h.nat.backend_port = backend.port;
    h.backend_mss = backend.mtu;
    // Elements are reused at once: what was copied must be what the id leads to now.
    let same = maps::backend(&id).is_some_and(|b| {
        b.route == h.route
            && b.address == h.nat.backend
            && b.port == h.nat.backend_port
            && b.source == h.nat.source
    });
    if same { Member::Taken } else { Member::Unusable }
}
