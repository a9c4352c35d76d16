//! Maglev tables of routes: members and pages.

use super::Planner;
use super::applied::AppliedTable;
use super::change::Change;
use crate::compile::maglev;
use common::maps::backend::{BACKEND_REFUSING, BACKEND_UNREACHABLE, Backend};
use common::maps::route::{MemberKey, PAGE_SLOTS, Page, PageKey, Table};

impl Planner<'_> {
    /// Whether a table has exactly these backends, with their weights.
    pub(super) fn table_stays(&self, backends: &[(u32, Backend)], is_v4: bool, old: &AppliedTable) -> bool {
        let members = of_family(backends, is_v4).map(|(id, backend)| (*id, backend.weight));
        old.members.len() == old.table.members as usize && old.members.iter().copied().eq(members)
    }

    /// Returns the table of one family: the old one while its members and weights stay, otherwise a new one.
    pub(super) fn table(
        &mut self,
        backends: &[(u32, Backend)],
        is_v4: bool,
        old: Option<&AppliedTable>,
    ) -> AppliedTable {
        if let Some(old) = old.filter(|old| self.table_stays(backends, is_v4, old)) {
            return old.clone();
        }
        let of_family = || of_family(backends, is_v4);
        let members: Box<[(u32, u16)]> = of_family().map(|(id, backend)| (*id, backend.weight)).collect();
        if members.is_empty() {
            return AppliedTable::default();
        }
        let slots = maglev::slots(members.iter().map(|(_, weight)| *weight));
        if let [(backend, _)] = members[..] {
            return AppliedTable { table: Table { id: backend, slots, members: 1 }, members };
        }
        let id = self.next_id(|ids| &mut ids.table);
        let table = Table { id, slots, members: members.len() as u32 };
        for (member, (id, _)) in (0..).zip(&*members) {
            self.steps.fill.push(Change::PutMember(MemberKey { table: table.id, member }, *id));
        }
        let values: Vec<Backend> = of_family().map(|(_, backend)| *backend).collect();
        for (page, value) in (0..).zip(pages(&values, table.slots)) {
            self.steps.fill.push(Change::PutPage(PageKey { table: table.id, page }, Box::new(value)));
        }
        AppliedTable { table, members }
    }

    pub(super) fn delete_table(&mut self, table: &Table) {
        if table.is_single() {
            return;
        }
        let pages =
            (0..page_count(table.slots)).map(|page| Change::DeletePage(PageKey { table: table.id, page }));
        self.steps.later.extend(pages);
        let members =
            (0..table.members).map(|member| Change::DeleteMember(MemberKey { table: table.id, member }));
        self.steps.later.extend(members);
    }
}

/// Returns the backends of a family that take new flows. While this node reaches at least one of them, those it does not reach
/// are left out: `pick` would look at each of them for nothing. Otherwise the table stays as it is: a device that goes down and
/// returns changes the table of no route.
fn of_family(backends: &[(u32, Backend)], is_v4: bool) -> impl Iterator<Item = &(u32, Backend)> {
    let takes = move |backend: &Backend| backend.weight > 0 && backend.address.is_v4() == is_v4;
    let reached = |backend: &Backend| backend.flags & (BACKEND_UNREACHABLE | BACKEND_REFUSING) == 0;
    let some = backends.iter().any(|(_, backend)| takes(backend) && reached(backend));
    let left_out = move |backend: &Backend| some && backend.flags & BACKEND_UNREACHABLE != 0;
    backends.iter().filter(move |(_, backend)| takes(backend) && !left_out(backend))
}

/// Returns the number of pages of a table with this many slots.
pub(super) fn page_count(slots: u32) -> u32 {
    if slots > 1 { slots.div_ceil(PAGE_SLOTS as u32) } else { 0 }
}

/// Returns the pages of the table over `members`, in order.
pub(super) fn pages(members: &[Backend], slots: u32) -> Vec<Page> {
    if slots < 2 {
        return Vec::new();
    }
    let members: Vec<_> = members
        .iter()
        .map(|b| maglev::Member { address: b.address, port: b.port, weight: b.weight })
        .collect();
    let table = maglev::table(&members, slots);
    table
        .chunks(PAGE_SLOTS)
        .map(|chunk| {
            let mut page = Page::zeroed();
            page.slots[..chunk.len()].copy_from_slice(chunk);
            page
        })
        .collect()
}
