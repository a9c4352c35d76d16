//! Forced schedules: map changes by another CPU, made at exactly one point of a program.
//!
//! A race is a point of a program, and the changes that another CPU makes to the maps at that point. The
//! point is the nth time that the program accesses a certain byte of an element, such as the flag that it
//! reads before it acts. A hardware breakpoint on the byte stops the processor right after that access. The
//! kernel then runs a second, tiny program, which makes the changes. Nothing depends on timing. A test that
//! tries every n has tried every point after an access to the byte at which another CPU could have
//! interfered.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail, ensure};

use crate::program::{Pod, Programs};

use code::{Code, JUMP_IF_EQUAL, JUMP_UNLESS_EQUAL, LOOK_UP, MOVE_REGISTER, R0, R1, R6, STORE_64};

/// The instructions of the small program.
mod code;
/// A lock of the kernel's that another CPU has and keeps.
mod stall;

pub use stall::Stall;

/// One change to a map, as another CPU would make it.
#[derive(Clone, Debug)]
pub struct Change {
    map: &'static str,
    key: Vec<u8>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Bytes that overwrite those of the element, from this offset.
    Write(u16, Vec<u8>),
    Remove,
    /// The value of an element that there must not be yet.
    Insert(Vec<u8>),
    /// The value of an element that replaces another one.
    Replace(Vec<u8>),
    /// No change: of the byte at this offset, these bits must have this value.
    Expect(u16, u8, u8),
}

impl Change {
    /// Overwrites the element of `key` with `value`, `at` bytes from its start. This happens in place, so
    /// that a program that holds a pointer to the element sees it.
    pub fn write<K: Pod, V: Pod>(map: &'static str, key: &K, at: usize, value: &V) -> Self {
        let at = u16::try_from(at).expect("an offset in an element");
        Self { map, key: bytes_of(key), kind: Kind::Write(at, bytes_of(value)) }
    }

    /// Removes the element of `key` from a hash map.
    pub fn remove<K: Pod>(map: &'static str, key: &K) -> Self {
        Self { map, key: bytes_of(key), kind: Kind::Remove }
    }

    /// Inserts an element into a hash map that has none of `key`; it gets the memory of the one removed last.
    pub fn insert<K: Pod, V: Pod>(map: &'static str, key: &K, value: &V) -> Self {
        Self { map, key: bytes_of(key), kind: Kind::Insert(bytes_of(value)) }
    }

    /// Replaces the element of `key` in a hash map, as the daemon does: the kernel adds another element at the head of the chain,
    /// then removes the old one.
    pub fn replace<K: Pod, V: Pod>(map: &'static str, key: &K, value: &V) -> Self {
        Self { map, key: bytes_of(key), kind: Kind::Replace(bytes_of(value)) }
    }

    /// Changes nothing. The changes behind it are made only if there is the element of `key`, and these bits of its byte
    /// `at` bytes from the start have this value: another CPU would look before it acts.
    pub fn expect<K: Pod>(map: &'static str, key: &K, at: usize, bits: u8, value: u8) -> Self {
        let at = u16::try_from(at).expect("an offset in an element");
        Self { map, key: bytes_of(key), kind: Kind::Expect(at, bits, value) }
    }
}

impl Change {
    /// Returns a map with the value to insert: it may be larger than the small program's stack.
    fn value(&self) -> Result<Option<OwnedFd>> {
        let (Kind::Insert(bytes) | Kind::Replace(bytes)) = &self.kind else { return Ok(None) };
        let (key, map) = (0u32, array(bytes.len())?);
        let attr = Element {
            map: map.as_raw_fd(),
            key: std::ptr::from_ref(&key) as u64,
            value: bytes.as_ptr() as u64,
            ..Element::default()
        };
        bpf(MAP_UPDATE_ELEM, &attr).context("writing the value to insert")?;
        Ok(Some(map))
    }
}

fn bytes_of<T: Pod>(value: &T) -> Vec<u8> {
    // SAFETY: `Pod` has no padding and no invalid bytes; the slice is read while `value` is borrowed.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// A byte of an element of a map.
#[derive(Clone, Debug)]
pub struct Place {
    map: &'static str,
    key: Vec<u8>,
    at: isize,
}

impl Place {
    /// The byte `at` bytes into the element of `key`.
    pub fn new<K: Pod>(map: &'static str, key: &K, at: usize) -> Self {
        Self { map, key: bytes_of(key), at: at as isize }
    }

    /// The last byte of the key of an element of a hash map: each look-up that finds the element reads it.
    pub fn looked_up<K: Pod>(map: &'static str, key: &K) -> Self {
        let key = bytes_of(key);
        // The value is behind the key, at a multiple of eight (kernel: `struct htab_elem`).
        let at = key.len() as isize - 1 - key.len().next_multiple_of(8) as isize;
        Self { map, key, at }
    }

    /// The hash of the key of an element of a hash map: each look-up in the element's chain reads it, unless it finds what
    /// it looks for nearer to the head.
    pub fn passed<K: Pod>(map: &'static str, key: &K) -> Self {
        let key = bytes_of(key);
        // The key is behind the hash, at a multiple of eight.
        let at = -8 - key.len().next_multiple_of(8) as isize;
        Self { map, key, at }
    }
}

/// Changes that wait for an access. Dropping it cancels them.
#[derive(Debug)]
pub struct Schedule {
    /// A map with `Told` at index 0.
    told: OwnedFd,
    _stop: OwnedFd,
}

/// What the small program reports: an element of its own map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    accesses: u64,
    done: u64,
    address: u64,
}

impl Schedule {
    /// How often the byte was accessed.
    pub fn accesses(&self) -> u64 {
        self.told().accesses
    }

    /// Whether every change was made: the access happened, each element existed, or did not if it was inserted, and was as
    /// expected.
    pub fn happened(&self) -> bool {
        self.told().done == 1
    }

    fn told(&self) -> Told {
        told(&self.told)
    }
}

fn told(map: &OwnedFd) -> Told {
    let (key, mut told) = (0u32, Told::default());
    let attr = Element {
        map: map.as_raw_fd(),
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_mut(&mut told) as u64,
        ..Element::default()
    };
    bpf(MAP_LOOKUP_ELEM, &attr).expect("an array has its elements");
    told
}

impl Programs {
    /// Makes these changes right after the `nth` access to a byte, counted from 1 and from now on. Reads and
    /// writes by this thread and by threads it creates count, including the test's own.
    pub fn behind_access(&self, place: &Place, nth: u32, changes: &[Change]) -> Result<Schedule> {
        let told = array(size_of::<Told>())?;
        let address = self.address_of(place, &told).context("asking where the byte lies")?;
        let mut code = Code::default();
        code.add(told.as_fd(), offset_of!(Told, accesses));
        code.end_if(JUMP_UNLESS_EQUAL, R1, nth as i32 - 1);
        let values: Vec<_> = changes.iter().map(Change::value).collect::<Result<_>>()?;
        for (change, value) in changes.iter().zip(&values) {
            code.change(self.map_fd(change.map), change, value.as_ref().map(AsFd::as_fd));
        }
        code.add(told.as_fd(), offset_of!(Told, done));
        let loaded = load(PROG_TYPE_PERF_EVENT, code).context("loading the changes")?;
        Ok(Schedule { told, _stop: stop_at(address, &loaded)? })
    }

    /// Finds two elements of one chain of a hash map, of which these are keys in the order in which they were inserted. Returns
    /// the key of the one and of the other that every look-up of the one passes.
    pub fn chained<K: Pod>(&self, map: &'static str, keys: &[K]) -> Result<(K, K)> {
        let every = self.looking_up(map, keys)?;
        for (at, ahead) in keys.iter().enumerate() {
            let watch = self.behind_access(&Place::passed(map, ahead), 1, &[])?;
            run(&every)?;
            // One is the look-up of the element itself.
            if watch.accesses() < 2 {
                continue;
            }
            for key in &keys[..at] {
                let before = watch.accesses();
                run(&self.looking_up(map, std::slice::from_ref(key))?)?;
                if watch.accesses() > before {
                    return Ok((*key, *ahead));
                }
            }
        }
        bail!("{map}: no two of these {} elements are of one chain", keys.len())
    }

    /// Loads a program that looks up these keys. During the system call for it, the kernel does not run what waits for an access.
    fn looking_up<K: Pod>(&self, map: &'static str, keys: &[K]) -> Result<OwnedFd> {
        let mut code = Code::default();
        keys.iter().for_each(|key| code.call(self.map_fd(map), &bytes_of(key), LOOK_UP));
        load(PROG_TYPE_SCHED_CLS, code).context("loading the look-ups")
    }

    /// Returns the kernel's address of a byte. A program that looks its element up can report it.
    fn address_of(&self, place: &Place, map: &OwnedFd) -> Result<u64> {
        let mut code = Code::default();
        code.call(self.map_fd(place.map), &place.key, LOOK_UP);
        code.end_if(JUMP_IF_EQUAL, R0, 0);
        code.put(MOVE_REGISTER, R6, R0, 0, 0);
        code.call(map.as_fd(), &0u32.to_ne_bytes(), LOOK_UP);
        code.end_if(JUMP_IF_EQUAL, R0, 0);
        code.put(STORE_64, R0, R6, offset_of!(Told, address) as i16, 0);
        let program = load(PROG_TYPE_SCHED_CLS, code)?;
        run(&program)?;
        let base = told(map).address;
        ensure!(base != 0, "{} has no such element", place.map);
        Ok(base.wrapping_add_signed(place.at as i64))
    }
}

/// Makes a map of one element with this many bytes.
fn array(bytes: usize) -> Result<OwnedFd> {
    let attr = MapCreate { kind: MAP_TYPE_ARRAY, key: 4, value: bytes as u32, entries: 1 };
    owned(MAP_CREATE, &attr).context("making a map")
}

/// Runs `program` whenever this thread, or one that it creates, has read or written the byte at this address.
fn stop_at(address: u64, program: &OwnedFd) -> Result<OwnedFd> {
    let attr = PerfEvent {
        kind: PERF_TYPE_BREAKPOINT,
        size: size_of::<PerfEvent>() as u32,
        sample_period: 1,
        flags: PERF_INHERIT,
        breakpoint: BREAKPOINT_READ_WRITE,
        address,
        length: 1,
        ..PerfEvent::default()
    };
    // SAFETY: `PerfEvent` is the first part of `struct perf_event_attr` and contains its own length.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC) };
    ensure!(fd >= 0, "perf_event_open: {}", io::Error::last_os_error());
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    let event = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
    // SAFETY: both descriptors are open.
    let set = unsafe { libc::ioctl(event.as_raw_fd(), PERF_IOC_SET_BPF, program.as_raw_fd()) };
    ensure!(set == 0, "PERF_EVENT_IOC_SET_BPF: {}", io::Error::last_os_error());
    Ok(event)
}

/// Runs a program once.
fn run(program: &OwnedFd) -> io::Result<()> {
    let frame = [0u8; 64];
    let attr = TestRun {
        program: program.as_raw_fd(),
        length: frame.len() as u32,
        data: frame.as_ptr() as u64,
        ..TestRun::default()
    };
    bpf(PROG_TEST_RUN, &attr).map(drop)
}

/// Loads the code as a program of this type.
fn load(kind: u32, code: Code) -> Result<OwnedFd> {
    let instructions = code.finish();
    let quiet = ProgLoad {
        kind,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        ..ProgLoad::default()
    };
    if let Ok(loaded) = owned(PROG_LOAD, &quiet) {
        return Ok(loaded);
    }
    let mut log = vec![0u8; 65_536];
    let attr = ProgLoad { log_level: 1, log_size: log.len() as u32, log: log.as_mut_ptr() as u64, ..quiet };
    let loaded = owned(PROG_LOAD, &attr);
    let told = String::from_utf8_lossy(&log);
    let told = told.trim_end_matches(['\0', '\n']);
    ensure!(loaded.is_ok(), "{}: {told}", loaded.expect_err("it is none"));
    Ok(loaded?)
}

/// Commands and constants of bpf(2) (include/uapi/linux/bpf.h).
const MAP_CREATE: libc::c_int = 0;
pub(crate) const MAP_LOOKUP_ELEM: libc::c_int = 1;
pub(crate) const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_SCHED_CLS: u32 = 3;
const PROG_TYPE_PERF_EVENT: u32 = 7;
/// Constants of perf_event_open(2) (include/uapi/linux/perf_event.h, include/uapi/linux/hw_breakpoint.h).
const PERF_TYPE_BREAKPOINT: u32 = 5;
const PERF_INHERIT: u64 = 1 << 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_IOC_SET_BPF: libc::Ioctl = 0x4004_2408;
const BREAKPOINT_READ_WRITE: u32 = 3;

/// Arguments of bpf(2), each the first part of `union bpf_attr`; the rest is zero. Addresses point to the
/// caller's memory.
macro_rules! arguments {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => { $(
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }
    )* };
}

arguments! {
    MapCreate { kind: u32, key: u32, value: u32, entries: u32, }
    Element { map: i32, padding: u32, key: u64, value: u64, flags: u64, }
    TestRun {
        program: i32, answer: u32, length: u32, length_out: u32, data: u64, data_out: u64, repeat: u32, duration: u32,
    }
    ProgLoad {
        kind: u32, count: u32, instructions: u64, license: u64, log_level: u32, log_size: u32, log: u64,
    }
    // The second version of `struct perf_event_attr`.
    PerfEvent {
        kind: u32, size: u32, config: u64, sample_period: u64, sample_type: u64, read_format: u64, flags: u64,
        wakeup: u32, breakpoint: u32, address: u64, length: u64,
    }
}

/// Calls bpf(2).
pub(crate) fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_int> {
    // SAFETY: `T` is one of the argument structs above, and every address in it points to memory that the
    // caller holds.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>() as libc::c_uint)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as libc::c_int) }
}

/// Calls bpf(2) with a command that returns a descriptor.
pub(crate) fn owned<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
