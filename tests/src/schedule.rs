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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};

use crate::program::{Pod, Programs};

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
    at: usize,
}

impl Place {
    /// The byte `at` bytes into the element of `key`.
    pub fn new<K: Pod>(map: &'static str, key: &K, at: usize) -> Self {
        Self { map, key: bytes_of(key), at }
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

    /// Whether every change was made: the access happened, and each element existed.
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
        let told = told_map()?;
        let address = self.address_of(place, &told).context("asking where the byte lies")?;
        let mut code = Code::default();
        code.add(told.as_fd(), offset_of!(Told, accesses));
        code.end_if(JUMP_UNLESS_EQUAL, R1, nth as i32 - 1);
        for change in changes {
            code.change(self.map_fd(change.map), change);
        }
        code.add(told.as_fd(), offset_of!(Told, done));
        let loaded = load(PROG_TYPE_PERF_EVENT, code).context("loading the changes")?;
        Ok(Schedule { told, _stop: stop_at(address, &loaded)? })
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
        let frame = [0u8; 64];
        let attr = TestRun {
            program: program.as_raw_fd(),
            length: frame.len() as u32,
            data: frame.as_ptr() as u64,
            ..TestRun::default()
        };
        bpf(PROG_TEST_RUN, &attr)?;
        let base = told(map).address;
        ensure!(base != 0, "{} has no such element", place.map);
        Ok(base + place.at as u64)
    }
}

fn told_map() -> Result<OwnedFd> {
    let attr = MapCreate { kind: MAP_TYPE_ARRAY, key: 4, value: size_of::<Told>() as u32, entries: 1 };
    owned(MAP_CREATE, &attr).context("making a map")
}

/// Instructions of the small program (Documentation/bpf/standardization/instruction-set.rst).
#[derive(Default)]
struct Code {
    instructions: Vec<u64>,
    /// Jumps to the end, whose offsets are filled in later.
    to_end: Vec<usize>,
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
/// Preserved by helpers.
const R6: u8 = 6;
const R10: u8 = 10;

const LOAD_64: u8 = 0x18;
const STORE_BYTE: u8 = 0x72;
const ADD: u8 = 0x07;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const STORE_64: u8 = 0x7b;
const ATOMIC_64: u8 = 0xdb;
const ATOMIC_FETCH_ADD: i32 = 0x01;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source register of [`LOAD_64`]: the constant is a map's descriptor.
const MAP_FD: u8 = 1;
/// Numbers of helpers (include/uapi/linux/bpf.h).
const LOOK_UP: i32 = 1;
const DELETE: i32 = 3;

impl Code {
    fn put(&mut self, op: u8, to: u8, from: u8, offset: i16, constant: i32) {
        let word = u64::from(op)
            | u64::from(to) << 8
            | u64::from(from) << 12
            | u64::from(offset as u16) << 16
            | u64::from(constant as u32) << 32;
        self.instructions.push(word);
    }

    /// Calls a helper with a map and a key.
    fn call(&mut self, map: BorrowedFd<'_>, key: &[u8], helper: i32) {
        let at = -(key.len().next_multiple_of(8) as i16);
        for (i, byte) in key.iter().enumerate() {
            self.put(STORE_BYTE, R10, 0, at + i as i16, i32::from(*byte));
        }
        self.put(LOAD_64, R1, MAP_FD, 0, map.as_raw_fd());
        self.put(0, 0, 0, 0, 0);
        self.put(MOVE_REGISTER, R2, R10, 0, 0);
        self.put(ADD, R2, 0, 0, at.into());
        self.put(CALL, 0, 0, 0, helper);
    }

    /// Jumps to the end if the comparison `op` of the register with the constant is true.
    fn end_if(&mut self, op: u8, register: u8, constant: i32) {
        self.to_end.push(self.instructions.len());
        self.put(op, register, 0, 0, constant);
    }

    /// Adds 1 to a word of [`Told`]; R1 holds the value before.
    fn add(&mut self, told: BorrowedFd<'_>, at: usize) {
        self.call(told, &0u32.to_ne_bytes(), LOOK_UP);
        self.end_if(JUMP_IF_EQUAL, R0, 0);
        self.put(MOVE, R1, 0, 0, 1);
        self.put(ATOMIC_64, R0, R1, at as i16, ATOMIC_FETCH_ADD);
    }

    fn change(&mut self, map: BorrowedFd<'_>, change: &Change) {
        match &change.kind {
            Kind::Remove => {
                self.call(map, &change.key, DELETE);
                self.end_if(JUMP_UNLESS_EQUAL, R0, 0);
            }
            Kind::Write(at, bytes) => {
                self.call(map, &change.key, LOOK_UP);
                self.end_if(JUMP_IF_EQUAL, R0, 0);
                for (i, byte) in (*at as i16..).zip(bytes) {
                    self.put(STORE_BYTE, R0, 0, i, i32::from(*byte));
                }
            }
        }
    }

    /// Completes the program; it returns 0.
    fn finish(mut self) -> Vec<u64> {
        let end = self.instructions.len();
        for jump in std::mem::take(&mut self.to_end) {
            let distance = (end - jump - 1) as u16;
            self.instructions[jump] |= u64::from(distance) << 16;
        }
        self.put(MOVE, R0, 0, 0, 0);
        self.put(EXIT, 0, 0, 0, 0);
        self.instructions
    }
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

/// Loads the code as a program of this type.
fn load(kind: u32, code: Code) -> Result<OwnedFd> {
    let instructions = code.finish();
    let mut log = vec![0u8; 65_536];
    let attr = ProgLoad {
        kind,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 1,
        log_size: log.len() as u32,
        log: log.as_mut_ptr() as u64,
    };
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
fn owned<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
