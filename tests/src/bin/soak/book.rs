//! What clients, backends and the director share: the connections, their classes, changes and faults.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::{Aim, End, Plan};
use crate::tenants::{ALL, BACKENDS};

/// How long an ended connection is remembered: its hello may still reach a backend.
const REMEMBERED: Duration = Duration::from_secs(120);
/// After a change is in force, its tenant's connections may be reset for this long: removed backends are searched for
/// flows a second time after a second.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(3);
/// What the director did that is remembered: some 15 minutes.
const NOTES: usize = 400;
/// [`Connection::backend`]: none has the hello yet.
const NO_BACKEND: u8 = u8::MAX;

/// A connection that clients and backends know.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) plan: Plan,
    /// Digest of the hello.
    pub(crate) digest: u64,
    pub(crate) begun: Instant,
    /// The backend that received the hello.
    backend: AtomicU8,
    /// The client's own address, once it is connected.
    local: Mutex<Option<SocketAddr>>,
    /// The backend's address and the node's, once the backend has the hello.
    served: Mutex<Option<(SocketAddr, SocketAddr)>>,
}

impl Connection {
    /// Notes the backend that has the hello. `false`: one had it before.
    pub(crate) fn take(&self, backend: u8) -> bool {
        self.backend.compare_exchange(NO_BACKEND, backend, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The backend that has the hello.
    pub(crate) fn backend(&self) -> Option<u8> {
        Some(self.backend.load(Ordering::Acquire)).filter(|backend| *backend != NO_BACKEND)
    }

    /// Notes the ends of the connection between backend and node.
    pub(crate) fn served(&self, backend: SocketAddr, node: SocketAddr) {
        *locked(&self.served) = Some((backend, node));
    }

    /// Notes the client's own address.
    pub(crate) fn connected(&self, local: SocketAddr) {
        *locked(&self.local) = Some(local);
    }

    /// The client's own address.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        *locked(&self.local)
    }
}

/// A change of a tenant's backends.
#[derive(Clone, Debug)]
struct Change {
    tenant: u32,
    /// The removed backends, a bit for each.
    removed: u8,
    /// From when on it explains nothing; `None` while it is not in force.
    until: Option<Instant>,
    /// Whether the tenant has no route at all since.
    absent: bool,
}

/// Something that must not happen.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) connection: Option<Arc<Connection>>,
    pub(crate) at: Instant,
}

/// Something that the director did, for reports.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) at: Instant,
    pub(crate) what: String,
}

/// Everything that is shared.
#[derive(Debug, Default)]
pub(crate) struct Book {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Those whose client is not done yet.
    live: Mutex<HashMap<u64, Arc<Connection>>>,
    ended: Mutex<VecDeque<(Instant, u64)>>,
    changes: Mutex<Vec<Change>>,
    notes: Mutex<VecDeque<Note>>,
    faults: Mutex<Vec<Fault>>,
    classes: Mutex<BTreeMap<&'static str, u64>>,
    /// Connections that clients make at present.
    pub(crate) active: AtomicU64,
    /// The number of a client's connection that none has started.
    pub(crate) reached: AtomicU64,
    /// No new connections for now.
    pub(crate) paused: AtomicBool,
    /// The end: no new connections, and those that wait give up.
    pub(crate) stop: AtomicBool,
}

/// Locks what no thread leaves broken, even if one panics.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    /// Enters a connection.
    pub(crate) fn begin(&self, plan: Plan, digest: u64) -> Arc<Connection> {
        let connection = Arc::new(Connection {
            plan,
            digest,
            begun: Instant::now(),
            backend: AtomicU8::new(NO_BACKEND),
            local: Mutex::new(None),
            served: Mutex::new(None),
        });
        for list in [&self.open, &self.live] {
            locked(list).insert(connection.plan.number, Arc::clone(&connection));
        }
        connection
    }

    /// The client is done with a connection; a change of its tenant may explain how it ended.
    pub(crate) fn end(&self, connection: &Connection, explained: bool) {
        let class = if explained { "reset by a change" } else { class(connection) };
        *locked(&self.classes).entry(class).or_default() += 1;
        locked(&self.live).remove(&connection.plan.number);
        let now = Instant::now();
        let mut ended = locked(&self.ended);
        ended.push_back((now, connection.plan.number));
        let mut open = locked(&self.open);
        while ended.front().is_some_and(|(at, _)| now - *at > REMEMBERED) {
            if let Some((_, number)) = ended.pop_front() {
                open.remove(&number);
            }
        }
    }

    /// The connection with this number.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<Connection>> {
        locked(&self.open).get(&number).cloned()
    }

    /// Senders and receivers of the connections that are open, and of as many as `ended` others: client and VIP, backend
    /// and node.
    pub(crate) fn four_tuples(&self, ended: usize) -> Vec<(SocketAddr, SocketAddr)> {
        let mut known: Vec<Arc<Connection>> = locked(&self.live).values().cloned().collect();
        known.extend(locked(&self.open).values().take(ended).cloned());
        let ends = known.iter().flat_map(|of| {
            let plan = &of.plan;
            let client = of.local().map(|local| (local, plan.tenant.address(plan.family)));
            client.into_iter().chain(*locked(&of.served))
        });
        ends.collect()
    }

    /// Connections by class.
    pub(crate) fn classes(&self) -> BTreeMap<&'static str, u64> {
        locked(&self.classes).clone()
    }

    /// Notes what the director does, for reports.
    pub(crate) fn note(&self, what: impl Into<String>) {
        let mut notes = locked(&self.notes);
        if notes.len() == NOTES {
            notes.pop_front();
        }
        notes.push_back(Note { at: Instant::now(), what: what.into() });
    }

    /// What the director did last, oldest first.
    pub(crate) fn notes(&self) -> Vec<Note> {
        locked(&self.notes).iter().cloned().collect()
    }

    /// Notes a change of a tenant's backends before it is written.
    pub(crate) fn change(&self, tenant: u32, before: u8, after: u8) {
        self.note(backends_changed(tenant, before, after));
        let mut changes = locked(&self.changes);
        for change in changes.iter_mut().filter(|change| change.tenant == tenant && change.absent) {
            change.absent = after == 0;
        }
        let removed = if after == 0 { ALL } else { before & !after };
        if removed != 0 {
            changes.push(Change { tenant, removed, until: None, absent: after == 0 });
        }
    }

    /// All changes are in force from now on.
    pub(crate) fn in_force(&self) {
        let until = Instant::now() + AFTERMATH;
        let mut changes = locked(&self.changes);
        for change in changes.iter_mut().filter(|change| change.until.is_none() && !change.absent) {
            change.until = Some(until);
        }
        // No connection lasts for ten minutes.
        changes.retain(|change| change.until.is_none_or(|until| until.elapsed() < Duration::from_secs(600)));
    }

    /// The daemon was killed: what it may still have had to do for a change is done once it is back.
    pub(crate) fn killed(&self) {
        let now = Instant::now();
        for change in
            locked(&self.changes).iter_mut().filter(|change| change.until.is_some_and(|until| until > now))
        {
            change.until = None;
        }
    }

    /// Whether a change of its tenant explains that a connection was reset.
    pub(crate) fn explains(&self, connection: &Connection) -> bool {
        let backend = connection.backend();
        locked(&self.changes).iter().any(|change| {
            change.tenant == connection.plan.tenant.number
                && change.until.is_none_or(|until| until >= connection.begun)
                && backend.is_none_or(|backend| change.removed & 1 << backend != 0)
        })
    }

    /// Notes a fault, which stops the soak.
    pub(crate) fn fault(&self, what: impl Into<String>, connection: Option<&Arc<Connection>>) {
        // What comes after the end of the soak is no fault.
        if self.stop.load(Ordering::Relaxed) && locked(&self.faults).is_empty() {
            return;
        }
        let (what, connection) = (what.into(), connection.cloned());
        locked(&self.faults).push(Fault { what, connection, at: Instant::now() });
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The faults so far.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        locked(&self.faults).clone()
    }

    /// Whether the soak is over.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A change of a tenant's backends, for reports.
fn backends_changed(tenant: u32, before: u8, after: u8) -> String {
    let list = |backends: u8| {
        let numbers = (0..BACKENDS).filter(|backend| backends & 1 << backend != 0);
        match numbers.map(|backend| backend.to_string()).collect::<Vec<_>>().join(" ") {
            none if none.is_empty() => "none".to_owned(),
            numbers => numbers,
        }
    };
    let [removed, added] = [before & !after, after & !before].map(list);
    format!("tenant {tenant}: backends {} are chosen, removed {removed}, added {added}", list(after))
}

/// The class of a connection, for the table.
fn class(connection: &Connection) -> &'static str {
    let plan = &connection.plan;
    match plan.aim {
        Aim::Served(_) if plan.tenant.tcp => "tcp",
        Aim::Served(End::AbortUp(_) | End::AbortDown(_) | End::Leave(_)) => "client aborts",
        Aim::Served(End::BackendAborts(_)) => "backend aborts",
        Aim::Served(_) if plan.hello_bytes <= 1400 => "hello ≤ 1,400",
        Aim::Served(_) if plan.hello_bytes <= 5000 => "hello ≤ 5,000",
        Aim::Served(_) => "hello > 5,000",
        Aim::Refused(_) => "refused",
        Aim::Unfinished(_) => "unfinished",
        Aim::Empty(_) | Aim::ClosedPort => "no hello",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noted_with_what_they_remove_and_add() {
        let book = Book::default();
        for (before, after) in [(0b1111, 0b0101), (0b0101, 0b0101), (0b0101, 0), (0, 0b1000)] {
            book.change(2, before, after);
        }
        let notes: Vec<String> = book.notes().into_iter().map(|note| note.what).collect();
        let expected = [
            "tenant 2: backends 0 2 are chosen, removed 1 3, added none",
            "tenant 2: backends 0 2 are chosen, removed none, added none",
            "tenant 2: backends none are chosen, removed 0 2, added none",
            "tenant 2: backends 3 are chosen, removed none, added 3",
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn the_last_notes_are_kept() {
        let book = Book::default();
        for number in 0..=NOTES {
            book.note(number.to_string());
        }
        let notes = book.notes();
        assert_eq!((notes.len(), notes[0].what.as_str()), (NOTES, "1"));
        assert!(notes.is_sorted_by_key(|note| note.at));
    }
}
