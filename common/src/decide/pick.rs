//! From a route to a backend: Maglev over the client's address and port, by the client's address family.

use super::maglev::{self, LOOKS_MAX, TRIES_MAX};
use super::tables::{Tables, stable};
use crate::maps::backend::{BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend};
use crate::maps::flow::ClientTuple;
use crate::maps::route::{MemberKey, Route, Table};
use crate::reason::Reason;

/// A connection's backend, and how far the choice of one has come: the next try goes on from here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Route id.
    pub route: u32,
    /// Backend id; 0 = none was tried.
    pub backend: u32,
    /// Backends tried so far, this one among them.
    pub tries: u8,
    /// Members of the table looked at so far, those passed over among them.
    pub offset: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// The backend; valid once it is picked.
    pub record: Backend,
}

impl Choice {
    /// Nothing tried yet.
    #[inline(always)]
    pub const fn of(route: u32) -> Self {
        Self { route, backend: 0, tries: 0, offset: 0, reserved: [0; 2], record: Backend::zeroed() }
    }
}

/// Picks the backend to be tried next: the client's own member of the table first, then its successors. `choice` then
/// has it; of `client` address and port count.
///
/// Err: the client is refused for this reason; with [`Reason::RouteChanged`] its packet is dropped, and `choice` is to be
/// forgotten.
#[inline(always)]
pub fn pick(tables: &impl Tables, choice: &mut Choice, client: &ClientTuple) -> Result<(), Reason> {
    let table = table(tables, choice.route, client.client.is_v4())?;
    let first = share(tables, &table, client)?;
    pick_from(tables, choice, &table, first)
}

/// The table of a route for clients of a family; it has a member.
#[inline(always)]
pub fn table(tables: &impl Tables, route: u32, is_v4: bool) -> Result<Table, Reason> {
    let mut record = Route::zeroed();
    if !tables.route(route, &mut record) {
        return Err(Reason::PickNone);
    }
    let (table, other) = if is_v4 { (record.v4, record.v6) } else { (record.v6, record.v4) };
    if table.id == 0 || table.members == 0 || table.slots == 0 {
        return Err(if other.members == 0 { Reason::PickNone } else { Reason::PickNoFamily });
    }
    Ok(table)
}

/// The member whose share of connections the client's is.
#[inline(always)]
fn share(tables: &impl Tables, table: &Table, client: &ClientTuple) -> Result<u32, Reason> {
    if table.is_single() {
        return Ok(0);
    }
    match tables.slot(table.id, maglev::slot(maglev::flow_hash(client), table.slots)) {
        0 => Err(Reason::PickNone),
        found => Ok(found - 1),
    }
}

/// [`pick`] for a client in the share of member `first`.
#[inline(always)]
pub fn pick_from(tables: &impl Tables, choice: &mut Choice, table: &Table, first: u32) -> Result<(), Reason> {
    let mut look = 0;
    while look < LOOKS_MAX {
        let offset = choice.offset;
        if choice.tries >= TRIES_MAX || u32::from(offset) >= table.members {
            break;
        }
        choice.offset = offset + 1;
        match member(tables, choice, table, maglev::member(first, u32::from(offset), table.members))? {
            Member::Taken => {
                choice.tries += 1;
                return Ok(());
            }
            // Only a client whose own share it is: one whose backend is down goes on to the next.
            Member::Refusing if offset == 0 => return Err(Reason::PickRefused),
            Member::Refusing | Member::Unusable => {}
        }
        look += 1;
    }
    Err(if choice.backend == 0 { Reason::PickNone } else { Reason::ConnectExhausted })
}

/// What a member is to a new connection.
enum Member {
    /// `choice` has it.
    Taken,
    /// Its share of connections is refused.
    Refusing,
    /// It takes none.
    Unusable,
}

/// Takes the member if it may be dialled.
#[inline(always)]
fn member(tables: &impl Tables, choice: &mut Choice, table: &Table, member: u32) -> Result<Member, Reason> {
    let id = match table.is_single() {
        true => table.id,
        false => tables.member(&MemberKey { table: table.id, member }),
    };
    let backend = &mut choice.record;
    if id == 0 || !stable(backend, |to| tables.backend(id, to))? {
        return Ok(Member::Unusable);
    }
    // A backend belongs to one route for ever: whatever was read from a table that changed under us ends here.
    if backend.route != choice.route || backend.flags & (BACKEND_RETIRED | BACKEND_UNREACHABLE) != 0 {
        return Ok(Member::Unusable);
    }
    if backend.flags & BACKEND_REFUSING != 0 {
        return Ok(Member::Refusing);
    }
    choice.backend = id;
    Ok(Member::Taken)
}
