//! Entries of `NATS` and `DNAT_FLOWS` whose connection is gone. The programs remove an entry with the record of its connection, so there
//! are none of `NATS`, unless a map was changed by hand. Nobody else would ever free their source ports. Of `DNAT_FLOWS` there are
//! those of a flow that another CPU removed as soon as it was stored, and all for which a former release's programs did not care.

use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::{BackendTuple, ClientTuple, Reply};

use super::maps::Maps;
use super::syscall::Place;
use super::table::{Plain, Table, TableError};

/// Time from the start of a walk to that of the next one, in seconds, or longer where there are more than a million and a half.
const PERIOD_SECS: u32 = 600;
/// Entries that are looked at by one call, one a second. Among ten million, each takes two to four microseconds of a CPU: a hundredth of it.
const PART: usize = 2_500;

/// The sweeps of both maps.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    nats: Sweep<BackendTuple, Reply>,
    dnat_flows: Sweep<ClientTuple, DnatFlow>,
}

impl Orphans {
    /// Goes on with both sweeps; see [`Sweep::sweep`]. Returns the number of source ports that were freed.
    pub(super) fn sweep(&mut self, maps: &Maps, now: u32) -> Result<u32, TableError> {
        let freed = self.nats.sweep(&Entries { maps, table: &maps.nats }, now)?;
        if let Some(table) = &maps.dnat_flows {
            let removed = self.dnat_flows.sweep(&Entries { maps, table }, now)?;
            if removed > 0 {
                tracing::debug!(removed, "entries of flows that are gone: DNAT_FLOWS");
            }
        }
        Ok(freed)
    }
}

/// An entry that was made for a connection.
trait Entry<K>: Plain + PartialEq {
    /// Returns key and generation of the connection's record.
    fn connection(&self, key: &K) -> (ClientTuple, u32);
}

impl Entry<BackendTuple> for Reply {
    fn connection(&self, _: &BackendTuple) -> (ClientTuple, u32) {
        (self.tuple(), self.generation)
    }
}

impl Entry<ClientTuple> for DnatFlow {
    fn connection(&self, key: &ClientTuple) -> (ClientTuple, u32) {
        (*key, self.generation)
    }
}

/// The entries found by the last part of a walk, where the walk goes on, and when it began (monotonic clock, seconds).
#[derive(Debug)]
struct Sweep<K, V> {
    suspects: Vec<(K, V)>,
    rest: Option<Place>,
    begun_secs: Option<u32>,
}

impl<K, V> Default for Sweep<K, V> {
    fn default() -> Self {
        Self { suspects: Vec::new(), rest: None, begun_secs: None }
    }
}

/// The maps that are swept. Packets change them between any two calls.
trait Records {
    type Key: Plain;
    type Entry: Entry<Self::Key>;

    /// Calls `visit` for some entries, from `place` on, which is advanced. Returns whether they were the last.
    fn walk_on(
        &self,
        place: &mut Place,
        visit: &mut dyn FnMut(&Self::Key, &Self::Entry),
    ) -> Result<bool, TableError>;
    /// Returns an entry.
    fn entry(&self, key: &Self::Key) -> Result<Option<Self::Entry>, TableError>;
    /// Removes an entry. Returns whether it existed.
    fn remove(&self, key: &Self::Key) -> Result<bool, TableError>;
    /// Whether the record of the client in this map has this generation.
    fn is_in(&self, map: Map, client: &ClientTuple, generation: u32) -> Result<bool, TableError>;
}

/// A map with records of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Map {
    Flows,
    Hellos,
    HalfOpens,
}

/// A map with entries, and those with the records.
struct Entries<'m, K, V> {
    maps: &'m Maps,
    table: &'m Table<K, V>,
}

impl<K: Plain, V: Entry<K>> Records for Entries<'_, K, V> {
    type Key = K;
    type Entry = V;

    fn walk_on(&self, place: &mut Place, visit: &mut dyn FnMut(&K, &V)) -> Result<bool, TableError> {
        self.table.walk_on(place, PART, visit)
    }

    fn entry(&self, key: &K) -> Result<Option<V>, TableError> {
        self.table.look_up(key)
    }

    fn remove(&self, key: &K) -> Result<bool, TableError> {
        self.table.remove(key)
    }

    fn is_in(&self, map: Map, client: &ClientTuple, generation: u32) -> Result<bool, TableError> {
        let maps = self.maps;
        let found = match map {
            Map::Flows => maps.flows.look_up(client)?.map(|flow| flow.connection),
            Map::Hellos => maps.hellos.look_up(client)?.map(|hello| hello.connection),
            Map::HalfOpens => maps.half_opens.look_up(client)?.map(|half| half.connection),
        };
        Ok(found.is_some_and(|connection| connection.generation == generation))
    }
}

impl<K: Plain, V: Entry<K>> Sweep<K, V> {
    /// Removes the entries that had no connection at the last call either, a second ago, and looks for others if it is time to.
    /// Returns the number of removed ones. A program claims an entry of `NATS` just before it stores the connection, so an entry
    /// without a connection is no orphan yet.
    fn sweep(&mut self, maps: &impl Records<Key = K, Entry = V>, now: u32) -> Result<u32, TableError> {
        let mut removed = 0;
        for (key, entry) in std::mem::take(&mut self.suspects) {
            if maps.entry(&key)? == Some(entry) && !has_connection(maps, &key, &entry)? {
                removed += u32::from(maps.remove(&key)?);
            }
        }
        let mut place = match self.rest.take() {
            Some(place) => place,
            None if self.begun_secs.is_some_and(|begun| now.saturating_sub(begun) < PERIOD_SECS) => {
                return Ok(removed);
            }
            None => {
                self.begun_secs = Some(now);
                Place::start()
            }
        };
        let mut failed = Ok(());
        let walked = maps.walk_on(&mut place, &mut |key, entry| match has_connection(maps, key, entry) {
            Ok(true) => {}
            Ok(false) => self.suspects.push((*key, *entry)),
            Err(error) => failed = Err(error),
        });
        // After an error as well, the next call goes on there.
        self.rest = (!matches!(walked, Ok(true))).then_some(place);
        failed.and(walked).map(|_| removed)
    }
}

/// Whether there is a record of the connection that the entry was made for.
fn has_connection<R: Records>(maps: &R, key: &R::Key, entry: &R::Entry) -> Result<bool, TableError> {
    let (client, generation) = entry.connection(key);
    // Flows once more at the end: it may have become one meanwhile.
    for map in [Map::Flows, Map::Hellos, Map::HalfOpens, Map::Flows] {
        if maps.is_in(map, &client, generation)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use common::maps::address::{Address, Port};

    const GENERATION: u32 = 7;

    /// What a packet does to the maps.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        Claim,
        Store(Map),
        Forget(Map),
        Release,
        /// Another connection claims the port.
        ClaimAgain,
    }

    /// The maps with one port, and what packets do to them at forced points: before each look or removal, the steps due by then.
    #[derive(Debug, Default)]
    struct Forced {
        nats: RefCell<Option<Reply>>,
        stored: RefCell<Vec<(Map, u32)>>,
        looks: Cell<usize>,
        /// Steps, and the look before which each is taken.
        schedule: Vec<(usize, Step)>,
        /// The part of the walk with the entry: the last one.
        part: u32,
        /// The part that cannot be read.
        broken: Cell<Option<u32>>,
    }

    fn client() -> ClientTuple {
        ClientTuple::tcp(Address::v4([192, 0, 2, 1]), Address::default(), Port::new(1), Port::new(443))
    }

    impl Forced {
        fn new(before: &[Step], schedule: &[(usize, Step)]) -> Self {
            let maps = Self { schedule: schedule.into(), ..Self::default() };
            before.iter().for_each(|step| maps.take(*step));
            maps
        }

        fn take(&self, step: Step) {
            match step {
                Step::Claim => *self.nats.borrow_mut() = Some(Reply::to(&client(), GENERATION)),
                Step::ClaimAgain => *self.nats.borrow_mut() = Some(Reply::to(&client(), GENERATION + 1)),
                Step::Release => *self.nats.borrow_mut() = None,
                Step::Store(map) => self.stored.borrow_mut().push((map, GENERATION)),
                Step::Forget(map) => self.stored.borrow_mut().retain(|(in_map, _)| *in_map != map),
            }
        }

        fn look(&self) {
            let look = self.looks.replace(self.looks.get() + 1);
            self.schedule.iter().filter(|(at, _)| *at == look).for_each(|(_, step)| self.take(*step));
        }
    }

    impl Records for Forced {
        type Key = BackendTuple;
        type Entry = Reply;

        fn walk_on(
            &self,
            place: &mut Place,
            visit: &mut dyn FnMut(&BackendTuple, &Reply),
        ) -> Result<bool, TableError> {
            self.look();
            let part = place.bucket();
            if self.broken.get() == Some(part) {
                let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
                return Err(TableError::Failed { name: "NATS", what: "read", source });
            }
            *place = Place::at(part + 1);
            let found = self.nats.borrow().filter(|_| part == self.part);
            found.iter().for_each(|reply| visit(&BackendTuple::zeroed(), reply));
            Ok(part >= self.part)
        }

        fn entry(&self, _: &BackendTuple) -> Result<Option<Reply>, TableError> {
            self.look();
            Ok(*self.nats.borrow())
        }

        fn remove(&self, _: &BackendTuple) -> Result<bool, TableError> {
            self.look();
            Ok(self.nats.take().is_some())
        }

        fn is_in(&self, map: Map, _: &ClientTuple, generation: u32) -> Result<bool, TableError> {
            self.look();
            Ok(self.stored.borrow().contains(&(map, generation)))
        }
    }

    /// Sweeps twice. Returns how many entries were removed, the entry that is left, and the number of looks at the maps.
    fn swept(maps: &Forced) -> (u32, Option<u32>, usize) {
        let mut orphans = Sweep::default();
        let removed = (0..2).map(|second| orphans.sweep(maps, 1_000 + second).unwrap()).sum();
        (removed, maps.nats.borrow().map(|reply| reply.generation), maps.looks.get())
    }

    #[test]
    fn an_entry_without_a_connection_is_removed_by_the_second_sweep() {
        let maps = Forced::new(&[Step::Claim], &[]);
        let mut orphans = Sweep::default();
        assert_eq!(orphans.sweep(&maps, 1_000).unwrap(), 0);
        assert!(maps.nats.borrow().is_some());
        assert_eq!(orphans.sweep(&maps, 1_010).unwrap(), 1);
        assert!(maps.nats.borrow().is_none());
        // The next walk is due ten minutes after the last one.
        maps.take(Step::Claim);
        assert_eq!([1_020, 1_599].map(|now| orphans.sweep(&maps, now).unwrap()), [0, 0]);
        assert_eq!([1_600, 1_601].map(|now| orphans.sweep(&maps, now).unwrap()), [0, 1]);
    }

    /// A walk through millions takes many calls, of which each takes as long as that of a small map.
    #[test]
    fn a_walk_goes_on_where_it_was_and_begins_again_when_it_is_time() {
        let maps = Forced { part: 2, ..Forced::new(&[Step::Claim], &[]) };
        let mut orphans = Sweep::default();
        assert_eq!([0, 1, 2, 3].map(|second| orphans.sweep(&maps, 1_000 + second).unwrap()), [0, 0, 0, 1]);
        maps.take(Step::Claim);
        assert_eq!([1_004, 1_599].map(|now| orphans.sweep(&maps, now).unwrap()), [0, 0], "the walk is over");
        assert_eq!([1_600, 1_601, 1_602, 1_603].map(|now| orphans.sweep(&maps, now).unwrap()), [0, 0, 0, 1]);
    }

    /// The rest was looked through ten minutes later.
    #[test]
    fn a_walk_that_fails_once_goes_on_a_second_later() {
        let maps = Forced { part: 2, ..Forced::new(&[Step::Claim], &[]) };
        let mut orphans = Sweep::default();
        assert_eq!(orphans.sweep(&maps, 1_000).unwrap(), 0);
        maps.broken.set(Some(1));
        assert!(orphans.sweep(&maps, 1_001).is_err());
        maps.broken.set(None);
        assert_eq!([2, 3, 4].map(|second| orphans.sweep(&maps, 1_000 + second).unwrap()), [0, 0, 1]);
    }

    /// Its connection is stored at any point from the first look at the entry on: the first sweep may find none, the second does.
    #[test]
    fn an_entry_whose_connection_is_stored_after_the_first_look_stays() {
        for map in [Map::Flows, Map::Hellos, Map::HalfOpens] {
            let mut late = 0;
            // The walk, and four looks for the record.
            for at in 0..=5 {
                let maps = Forced::new(&[Step::Claim], &[(at, Step::Store(map))]);
                let (removed, left, looks) = swept(&maps);
                assert_eq!((removed, left), (0, Some(GENERATION)), "{map:?}, stored before look {at}");
                late += u32::from(looks > 5);
            }
            assert!(late > 0, "{map:?}: no sweep suspected it");
        }
    }

    /// A hello or a half-open connection becomes a flow between two looks: it is in one of the maps all the time.
    #[test]
    fn a_connection_that_becomes_a_flow_meanwhile_is_no_suspect() {
        for map in [Map::Hellos, Map::HalfOpens] {
            for at in 0..=5 {
                let opens = [(at, Step::Store(Map::Flows)), (at, Step::Forget(map))];
                let maps = Forced::new(&[Step::Claim, Step::Store(map)], &opens);
                let mut orphans = Sweep::default();
                assert_eq!(orphans.sweep(&maps, 1_000).unwrap(), 0);
                assert_eq!(orphans.suspects, [], "{map:?}, before look {at}");
            }
        }
    }

    /// The suspect's port was released, and is another connection's by the second sweep.
    #[test]
    fn an_entry_that_another_connection_claimed_since_stays() {
        let maps = Forced::new(&[Step::Claim], &[]);
        let mut orphans = Sweep::default();
        assert_eq!(orphans.sweep(&maps, 1_000).unwrap(), 0);
        [Step::Release, Step::ClaimAgain].iter().for_each(|step| maps.take(*step));
        assert_eq!(orphans.sweep(&maps, 1_010).unwrap(), 0);
        assert_eq!(*maps.nats.borrow(), Some(Reply::to(&client(), GENERATION + 1)));
    }
}
