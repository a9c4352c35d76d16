//! Picks a route's backend by Maglev hashing of the client's address and port, among those of its address
//! family.

use super::maglev::{self, LOOKS_MAX, TRIES_MAX};
use super::tables::{Tables, stable};
use crate::maps::backend::{BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend};
use crate::maps::flow::ClientTuple;
use crate::maps::route::{MemberKey, Route, Table};
use crate::reason::Reason;

/// The backend picked for a connection, and the state of the search: the next try continues from here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Route id.
    pub route: u32,
    /// Backend id; 0 = none tried yet.
    pub backend: u32,
    /// Backends tried so far, including this one.
    pub tries: u8,
    /// Members of the table examined so far, including skipped ones.
    pub offset: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// The backend; valid once it is picked.
    pub record: Backend,
}

impl Choice {
    /// Returns a choice for `route` with no backend tried yet.
    #[inline(always)]
    pub const fn of(route: u32) -> Self {
        Self { route, backend: 0, tries: 0, offset: 0, reserved: [0; 2], record: Backend::zeroed() }
    }
}

/// Picks the backend to try next and stores it in `choice`: first the member that the client hashes to, then
/// its successors. Only the address and port of `client` are used.
///
/// Err: the client is refused for this reason. With [`Reason::RouteChanged`] its packet is dropped instead,
/// and `choice` must not be used.
#[inline(always)]
pub fn pick(tables: &impl Tables, choice: &mut Choice, client: &ClientTuple) -> Result<(), Reason> {
    let table = table(tables, choice.route, client.client.is_v4())?;
    let first = share(tables, &table, client)?;
    pick_from(tables, choice, &table, first)
}

/// Returns a route's table for clients of an address family. The table has at least one member.
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

/// Returns the member that the client hashes to.
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

/// Like [`pick`], for a client that hashes to member `first`.
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
            // Refuses only clients that hash to this member. A client whose own backend is down skips it.
            Member::Refusing if offset == 0 => return Err(Reason::PickRefused),
            Member::Refusing | Member::Unusable => {}
        }
        look += 1;
    }
    Err(if choice.backend == 0 { Reason::PickNone } else { Reason::ConnectExhausted })
}

/// Whether a member takes a new connection.
enum Member {
    /// Yes; it is stored in `choice`.
    Taken,
    /// Connections that hash to it are refused.
    Refusing,
    /// No; it is skipped.
    Unusable,
}

/// Stores the member in `choice` if it may be dialled.
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
    // A backend always belongs to the same route, so this catches a table that changed while it was read.
    if backend.route != choice.route || backend.flags & (BACKEND_RETIRED | BACKEND_UNREACHABLE) != 0 {
        return Ok(Member::Unusable);
    }
    if backend.flags & BACKEND_REFUSING != 0 {
        return Ok(Member::Refusing);
    }
    choice.backend = id;
    Ok(Member::Taken)
}
