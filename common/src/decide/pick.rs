//! Picks a route's backend by Maglev hashing of the client's address and port, or of its address alone, among those of
//! its address family.

use super::maglev;
use super::tables::{Tables, stable};
use crate::maps::backend::{BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend};
use crate::maps::flow::ClientTuple;
use crate::maps::route::{MEMBERS_MAX, MemberKey, Route, Table};
use crate::reason::Reason;

/// The most members that one search looks at: all of a table.
pub const LOOKS_MAX: u32 = MEMBERS_MAX as u32;

/// The backend picked for a connection, and the state of the search: the next try continues from here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Route id.
    pub route: u32,
    /// Backend id; 0 = none tried yet.
    pub backend: u32,
    /// Members of the table examined in this round, including skipped ones.
    pub offset: u16,
    /// 1: a backend of this round was given up because it did not answer, so another round follows.
    pub silent: u8,
    /// How the last search ended: a value of `MET_*`.
    met: u8,
    /// The backend; valid once it is picked.
    pub record: Backend,
}

/// [`Choice::met`]: none of the members that were left may be dialled.
const MET_NONE: u8 = 0;
/// [`Choice::met`]: a backend.
const MET_TAKEN: u8 = 1;
/// [`Choice::met`]: the client's own member, which refuses.
const MET_REFUSING: u8 = 2;
/// [`Choice::met`]: a backend that changed while it was read.
const MET_CHANGED: u8 = 3;

impl Choice {
    /// Returns a choice for `route` with no backend tried yet.
    #[inline(always)]
    pub const fn of(route: u32) -> Self {
        Self { route, backend: 0, offset: 0, silent: 0, met: MET_NONE, record: Backend::zeroed() }
    }
}

/// Picks the backend to try next and stores it in `choice`: first the member that the client hashes to, then
/// its successors, round and round: only a round in which every backend refused is the last. Only the address and
/// port of `client` are used. If no other backend is usable, the one tried last is picked again.
///
/// Err: the client is refused for this reason. With [`Reason::RouteChanged`] its packet is dropped instead,
/// and `choice` must not be used.
#[inline(always)]
pub fn pick(tables: &impl Tables, choice: &mut Choice, client: &ClientTuple) -> Result<(), Reason> {
    let (table, by) = table(tables, choice.route, client.client.is_v4())?;
    let first = share(tables, &table, by, client)?;
    pick_from(tables, choice, &table, first)
}

/// Returns a route's table for clients of an address family, and its [`Route::pick`]. The table has at least one member.
#[inline(always)]
pub fn table(tables: &impl Tables, route: u32, is_v4: bool) -> Result<(Table, u8), Reason> {
    let mut record = Route::zeroed();
    if !stable(&mut record, |to| tables.route(route, to))? {
        return Err(Reason::PickNone);
    }
    let (table, other) = if is_v4 { (record.v4, record.v6) } else { (record.v6, record.v4) };
    if table.id == 0 || table.members == 0 || table.slots == 0 {
        return Err(if other.members == 0 { Reason::PickNone } else { Reason::PickNoFamily });
    }
    Ok((table, record.pick))
}

/// Returns the member that the client hashes to.
#[inline(always)]
fn share(tables: &impl Tables, table: &Table, by: u8, client: &ClientTuple) -> Result<u32, Reason> {
    if table.is_single() {
        return Ok(0);
    }
    match tables.slot(table.id, maglev::slot(maglev::flow_hash(client, by), table.slots)) {
        0 => Err(Reason::PickNone),
        found => Ok(found - 1),
    }
}

/// Like [`pick`], for a client that hashes to member `first`.
#[inline(always)]
pub fn pick_from(tables: &impl Tables, choice: &mut Choice, table: &Table, first: u32) -> Result<(), Reason> {
    let table = Table { members: table.members.min(LOOKS_MAX), ..*table };
    // After a silent one, all members once more, the one tried last included. A product instead of a condition, which the
    // verifier would follow twice.
    let end = table.members + u32::from(choice.offset) * u32::from(choice.silent & 1);
    choice.met = MET_NONE;
    tables.search(choice, Search { table, first, end });
    match choice.met {
        MET_TAKEN => {}
        MET_REFUSING => return Err(Reason::PickRefused),
        MET_CHANGED => return Err(Reason::RouteChanged),
        _ => return Err(none(choice)),
    }
    if u32::from(choice.offset) > table.members {
        // The next round has started.
        choice.offset -= table.members as u16;
        choice.silent = 0;
    }
    Ok(())
}

/// What is looked for in one call of [`pick_from`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Search {
    table: Table,
    /// The member that the client hashes to.
    first: u32,
    /// [`Choice::offset`] at the end of the round.
    end: u32,
}

/// Looks at the next member. `true`: the search is over.
#[inline(always)]
pub fn look(tables: &impl Tables, choice: &mut Choice, search: &Search) -> bool {
    let offset = u32::from(choice.offset);
    if offset >= search.end {
        return true;
    }
    // A member that refuses does so only to clients that hash to it. A client whose own backend is down skips it.
    let own = offset == 0 && choice.backend == 0;
    choice.offset = choice.offset.wrapping_add(1);
    let at = maglev::member(search.first, offset, search.table.members);
    choice.met = match member(tables, choice, &search.table, at) {
        Ok(Member::Taken) => MET_TAKEN,
        Ok(Member::Refusing) if own => MET_REFUSING,
        Ok(Member::Refusing | Member::Unusable) => return false,
        Err(_) => MET_CHANGED,
    };
    true
}

/// Why a client is refused that has no backend left.
#[inline(always)]
const fn none(choice: &Choice) -> Reason {
    if choice.backend == 0 { Reason::PickNone } else { Reason::ConnectExhausted }
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
