//! A pinned map with the types of its keys and values.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::precedence::Precedence;
use super::syscall::{self, Place};

/// A type that a map can store: any bytes are valid, and all its bytes are initialized.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy {}
impl<T: FromBytes + IntoBytes + Immutable + Copy> Plain for T {}

/// The number of elements read by one system call of a walk.
const WALK_STEP: usize = 4096;

/// Why a map could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// No map is pinned there.
    #[error("no map {name} under {}; is vestibule running with these pins?", folder.display())]
    Missing {
        /// The map's name.
        name: &'static str,
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// The map pinned under this name has other sizes of keys or values.
    #[error(
        "map {name}: keys of {key} and values of {value} bytes are pinned, this version has {ours_key} and {ours_value}; run the vestibule \
         that made it, or `vestibule detach` (which ends all connections) and start again"
    )]
    Layout {
        /// The map's name.
        name: &'static str,
        /// Bytes of a pinned key.
        key: u32,
        /// Bytes of a pinned value.
        value: u32,
        /// Bytes of this version's key.
        ours_key: usize,
        /// Bytes of this version's value.
        ours_value: usize,
    },
    /// The map is full, or the kernel has no memory to extend it.
    #[error(
        "map {name} takes no more than {capacity} entries ({source}); raise {setting} in the settings, which needs `vestibule detach` and a new \
         start (in a cluster: Node maintenance in deploy/README.md)"
    )]
    Full {
        /// The map's name.
        name: &'static str,
        /// The most entries it can hold.
        capacity: u32,
        /// The field of `settings` that sizes it.
        setting: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other error.
    #[error("map {name}: {what}: {source}")]
    Failed {
        /// The map's name.
        name: &'static str,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The most parts in which a map is read at once.
const PARTS_MAX: usize = 16;

/// Room for the elements that one system call reads.
struct Room<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
}

impl<K: Plain, V: Plain> Room<K, V> {
    fn new(capacity: u32) -> Self {
        let step = WALK_STEP.min(capacity.max(1) as usize);
        Self { keys: vec![K::new_zeroed(); step], values: vec![V::new_zeroed(); step] }
    }

    fn grow(&mut self) {
        let step = 2 * self.keys.len();
        self.keys.resize(step, K::new_zeroed());
        self.values.resize(step, V::new_zeroed());
    }
}

/// An open map.
#[derive(Debug)]
pub struct Table<K, V> {
    name: &'static str,
    fd: OwnedFd,
    capacity: u32,
    is_hash: bool,
    /// What walks wait for before each of their steps.
    precedence: Option<Precedence>,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> AsFd for Table<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// Opens the map pinned as `name` in `folder`. Checks the sizes of keys and values.
    pub fn open(folder: &Path, name: &'static str) -> Result<Self, TableError> {
        let fd = syscall::open_pinned(&folder.join(name)).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOENT) => TableError::Missing { name, folder: folder.into() },
            _ => TableError::Failed { name, what: "open", source },
        })?;
        let info =
            syscall::map_info(&fd).map_err(|source| TableError::Failed { name, what: "info", source })?;
        if info.key_size as usize != size_of::<K>() || info.value_size as usize != size_of::<V>() {
            return Err(TableError::Layout {
                name,
                key: info.key_size,
                value: info.value_size,
                ours_key: size_of::<K>(),
                ours_value: size_of::<V>(),
            });
        }
        let is_hash = info.kind == syscall::KIND_HASH;
        Ok(Self { name, fd, capacity: info.max_entries, is_hash, precedence: None, types: PhantomData })
    }

    /// The most entries the map can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Has walks over this map wait for what goes first.
    pub(super) fn set_precedence(&mut self, precedence: Precedence) {
        self.precedence = Some(precedence);
    }

    /// Returns the value of `key`.
    pub fn look_up(&self, key: &K) -> Result<Option<V>, TableError> {
        let mut value = V::new_zeroed();
        let found = syscall::lookup(self, key.as_bytes(), value.as_mut_bytes())
            .map_err(|source| self.failed("lookup", source))?;
        Ok(found.then_some(value))
    }

    /// Writes one element.
    pub fn put(&self, key: &K, value: &V) -> Result<(), TableError> {
        syscall::update(self, key.as_bytes(), value.as_bytes()).map_err(|e| self.write_failed(e))
    }

    /// Writes all elements; stops at the first that fails.
    pub fn put_all(&self, elements: &[(K, V)]) -> Result<(), TableError> {
        if let [(key, value)] = elements {
            return self.put(key, value);
        }
        let (keys, values) = columns(elements);
        if elements.is_empty() {
            return Ok(());
        }
        syscall::update_batch(self, keys.as_bytes(), values.as_bytes(), elements.len() as u32)
            .map(drop)
            .map_err(|stopped| self.write_failed(stopped.error))
    }

    /// Deletes one element. Returns whether it existed.
    pub fn remove(&self, key: &K) -> Result<bool, TableError> {
        syscall::delete(self, key.as_bytes()).map_err(|source| self.failed("delete", source))
    }

    /// Deletes all these elements. Missing ones are no error.
    pub fn remove_all(&self, keys: &[K]) -> Result<(), TableError> {
        let mut rest = keys;
        while !rest.is_empty() {
            let Err(stopped) = syscall::delete_batch(self, rest.as_bytes(), rest.len() as u32) else {
                return Ok(());
            };
            if stopped.error.raw_os_error() != Some(libc::ENOENT) {
                return Err(self.failed("delete", stopped.error));
            }
            // The element at which it stopped does not exist.
            rest = rest.get(stopped.done as usize + 1..).unwrap_or_default();
        }
        Ok(())
    }

    /// Calls `visit` for every element. Elements added or removed during the walk may or may not be visited.
    pub fn walk(&self, mut visit: impl FnMut(&K, &V)) -> Result<(), TableError> {
        let mut place = Place::start();
        self.begin_walk();
        self.walk_on(&mut place, usize::MAX, &mut visit).map(drop)
    }

    /// Calls `visit` for the elements from `place` on, which is advanced, until these were as many as `least` or the last. Returns whether
    /// they were the last.
    pub(super) fn walk_on(
        &self,
        place: &mut Place,
        least: usize,
        visit: &mut dyn FnMut(&K, &V),
    ) -> Result<bool, TableError> {
        let (mut room, mut visited) = (Room::new(self.capacity), 0);
        loop {
            let (count, ended) = self.read(place, &mut room, visit)?;
            visited += count;
            if ended || visited >= least {
                return Ok(ended);
            }
        }
    }

    /// Returns what `choose` returns for the elements, from up to `threads` threads at once. An element may be chosen twice.
    pub(super) fn find<T: Send>(
        &self,
        threads: usize,
        choose: impl Fn(&K, &V) -> Option<T> + Sync,
    ) -> Result<Vec<T>, TableError> {
        self.begin_walk();
        let parts = if self.is_hash { threads.clamp(1, PARTS_MAX) as u32 } else { 1 };
        let one = |part: u32| -> Result<Vec<T>, TableError> {
            let (mut place, end) = bounds(self.capacity, part, parts);
            let (mut room, mut found) = (Room::new(self.capacity), Vec::new());
            // The kernel reads on behind the end of a part, which begins the next one.
            while end.is_none_or(|end| place.bucket() < end) {
                let (_, ended) =
                    self.read(&mut place, &mut room, &mut |key, value| found.extend(choose(key, value)))?;
                if ended {
                    break;
                }
            }
            Ok(found)
        };
        thread::scope(|scope| {
            let start = |part| {
                (part, thread::Builder::new().name("reaper+".into()).spawn_scoped(scope, move || one(part)))
            };
            let others: Vec<_> = (1..parts).map(start).collect();
            let mut all = one(0);
            for (part, other) in others {
                // A part without a thread is done here.
                let found = other.map_or_else(
                    |_| one(part),
                    |other| other.join().unwrap_or_else(|panic| resume_unwind(panic)),
                );
                all = all.and_then(|mut all| {
                    all.extend(found?);
                    Ok(all)
                });
            }
            all
        })
    }

    fn begin_walk(&self) {
        self.precedence.iter().for_each(Precedence::begin);
    }

    /// Reads the next elements. Returns how many there were, and whether they were the last.
    fn read(
        &self,
        place: &mut Place,
        room: &mut Room<K, V>,
        visit: &mut dyn FnMut(&K, &V),
    ) -> Result<(usize, bool), TableError> {
        let _step = self.precedence.as_ref().and_then(Precedence::step);
        loop {
            let step = room.keys.len();
            let read = syscall::lookup_batch(
                self,
                place,
                room.keys.as_mut_slice().as_mut_bytes(),
                room.values.as_mut_slice().as_mut_bytes(),
                step as u32,
            );
            match read {
                Ok((count, ended)) => {
                    let count = count as usize;
                    for (key, value) in room.keys.iter().zip(&room.values).take(count) {
                        visit(key, value);
                    }
                    return Ok((count, ended));
                }
                // A bucket of the hash table has more elements than fit: read more, from the same position.
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && step < 1 << 24 => room.grow(),
                Err(source) => return Err(self.failed("read", source)),
            }
        }
    }

    /// Returns the number of elements.
    pub fn count(&self) -> Result<u64, TableError> {
        let mut count = 0;
        self.walk(|_, _| count += 1)?;
        Ok(count)
    }

    fn failed(&self, what: &'static str, source: io::Error) -> TableError {
        TableError::Failed { name: self.name, what, source }
    }

    fn write_failed(&self, source: io::Error) -> TableError {
        match source.raw_os_error() {
            Some(libc::E2BIG | libc::ENOMEM | libc::ENOSPC) => TableError::Full {
                name: self.name,
                capacity: self.capacity,
                setting: super::sizes::setting(self.name),
                source,
            },
            _ => self.failed("write", source),
        }
    }
}

/// A per-CPU array of counters.
#[derive(Debug)]
pub struct PerCpu {
    name: &'static str,
    fd: OwnedFd,
    processors: usize,
}

impl PerCpu {
    /// Opens the map pinned as `name` in `folder`.
    pub fn open(folder: &Path, name: &'static str) -> Result<Self, TableError> {
        // For a per-CPU map, the kernel reports the size of one CPU's value.
        let Table { fd, .. } = Table::<u32, u64>::open(folder, name)?;
        let processors = possible_processors().map_err(|source| TableError::Failed {
            name,
            what: "count processors",
            source,
        })?;
        Ok(Self { name, fd, processors })
    }

    /// Returns the sum over all CPUs.
    pub fn sum(&self, index: u32) -> Result<u64, TableError> {
        let mut values = vec![0u64; self.processors];
        let failed = |source| TableError::Failed { name: self.name, what: "lookup", source };
        syscall::lookup(&self.fd, index.as_bytes(), values.as_mut_slice().as_mut_bytes()).map_err(failed)?;
        Ok(values.iter().sum())
    }
}

/// Returns the number of possible CPUs. The kernel returns a value for each, whether present or not.
pub(super) fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    last_processor(&text).map(|last| last + 1).ok_or_else(|| io::Error::other("unknown list of processors"))
}

/// Returns the highest number in a list such as `0-3,8-11`.
fn last_processor(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Returns where a part of a map begins, and the bucket before which it ends. The last one ends where the kernel says so: a hash map
/// has as many buckets as the next power of two of its entries, but that is the kernel's to change, and other maps have none.
fn bounds(capacity: u32, part: u32, parts: u32) -> (Place, Option<u32>) {
    let buckets = u64::from(capacity).next_power_of_two();
    let bucket = |part: u32| (buckets * u64::from(part) / u64::from(parts)) as u32;
    let begin = if part == 0 { Place::start() } else { Place::at(bucket(part)) };
    (begin, (part + 1 < parts).then(|| bucket(part + 1)))
}

fn columns<K: Plain, V: Plain>(elements: &[(K, V)]) -> (Vec<K>, Vec<V>) {
    elements.iter().map(|(key, value)| (*key, *value)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that began behind the end of the one before it would leave connections out that are to be ended.
    #[test]
    fn the_parts_of_a_map_follow_each_other_from_its_start_to_its_end() {
        for capacity in [1, 3, (1 << 18) + 1, u32::MAX] {
            for parts in 1..=PARTS_MAX as u32 {
                let all: Vec<_> = (0..parts).map(|part| bounds(capacity, part, parts)).collect();
                assert_eq!(all[0].0, Place::start(), "in an array, a position is behind its element");
                for pair in all.windows(2) {
                    assert_eq!(pair[0].1, Some(pair[1].0.bucket()), "{capacity} {parts}");
                    assert!(pair[0].0.bucket() <= pair[1].0.bucket(), "{capacity} {parts}");
                }
                assert_eq!(all.last().unwrap().1, None);
            }
        }
    }

    /// Walks over what is no map: their first step fails, but not before it may be taken.
    fn waits(walk: impl Fn(&Table<u32, u32>) -> bool + Send + 'static) {
        let precedence = Precedence::default();
        let mut table = Table::<u32, u32> {
            name: "none",
            fd: std::fs::File::open("/dev/null").unwrap().into(),
            capacity: 8,
            is_hash: true,
            precedence: None,
            types: PhantomData,
        };
        table.set_precedence(precedence.clone());
        // Of a walk before.
        precedence.exhaust();
        let first = precedence.first();
        let (sender, failed) = std::sync::mpsc::channel();
        let walk = thread::spawn(move || sender.send(walk(&table)).unwrap());
        assert!(failed.recv_timeout(std::time::Duration::from_millis(100)).is_err(), "it waits");
        drop(first);
        assert!(failed.recv().unwrap(), "it has gone on");
        walk.join().unwrap();
    }

    #[test]
    fn a_walk_waits_for_what_goes_first() {
        waits(|table| table.walk(|_, _| {}).is_err());
    }

    #[test]
    fn a_search_waits_for_what_goes_first() {
        waits(|table| table.find(2, |_, _| Some(())).is_err());
    }

    #[test]
    fn the_last_processor_ends_the_list() {
        assert_eq!(last_processor("0\n"), Some(0));
        assert_eq!(last_processor("0-1\n"), Some(1));
        assert_eq!(last_processor("0-3,8-11\n"), Some(11));
        assert_eq!(last_processor(""), None);
    }
}
