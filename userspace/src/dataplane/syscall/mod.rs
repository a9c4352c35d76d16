//! The commands of bpf(2) that aya does not offer: batches, and single elements of a pinned map whose type
//! the caller knows. Attributes are the leading part of the kernel's `union bpf_attr`; the kernel assumes
//! zero for the rest.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Links of XDP programs.
pub(super) mod link;

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_MAP_UPDATE_BATCH: libc::c_long = 26;
const BPF_MAP_DELETE_BATCH: libc::c_long = 27;

/// The attributes of an element operation. The slices have the sizes of the map, so the kernel stays within
/// them.
#[repr(C)]
struct Element {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct Info {
    fd: u32,
    length: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
}

/// The leading part of the kernel's `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MapInfo {
    /// `enum bpf_map_type`.
    pub kind: u32,
    pub id: u32,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    pub max_entries: u32,
}

/// The leading part of the kernel's `struct bpf_prog_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_length: u32,
    xlated_length: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    created_by: u32,
    map_count: u32,
    maps: u64,
    name: [u8; 16],
}

#[repr(C)]
struct ProgramId {
    id: u32,
    next: u32,
    flags: u32,
}

/// The attributes of `BPF_PROG_QUERY`.
#[repr(C)]
struct Query {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    reserved: u32,
    flags_of_each: u64,
    links: u64,
    flags_of_links: u64,
    revision: u64,
}

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i64> {
    // SAFETY: every attribute struct in this file and in `link` is the leading part of the kernel's struct for its command.
    // Its pointers come from slices that live through the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs a command that returns a descriptor.
fn opened<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn raw(fd: &impl AsFd) -> u32 {
    let fd: RawFd = fd.as_fd().as_raw_fd();
    fd as u32
}

/// Opens a pinned map or program.
pub(super) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    opened(BPF_OBJ_GET, &mut Object { path: path.as_ptr() as u64, fd: 0, flags: 0 })
}

pub(super) fn map_info(map: &impl AsFd) -> io::Result<MapInfo> {
    let mut info = MapInfo::default();
    let mut attributes = Info {
        fd: raw(map),
        length: size_of::<MapInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info)
}

fn program_info(program: &impl AsFd) -> io::Result<ProgramInfo> {
    let mut info = ProgramInfo::default();
    let mut attributes = Info {
        fd: raw(program),
        length: size_of::<ProgramInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info)
}

/// Returns the id of an open program.
pub(super) fn program_id(program: &impl AsFd) -> io::Result<u32> {
    program_info(program).map(|info| info.id)
}

/// Returns the name of the program with this id, as in its object. Requires CAP_SYS_ADMIN.
pub(super) fn program_name(id: u32) -> io::Result<String> {
    let program = opened(BPF_PROG_GET_FD_BY_ID, &mut ProgramId { id, next: 0, flags: 0 })?;
    let name = program_info(&program)?.name;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(name.get(..length).unwrap_or(&name)).into_owned())
}

/// Returns the ids of the programs on a hook of a device, in the order they run; at most `most`.
pub(super) fn programs_on(ifindex: u32, attach_type: u32, most: usize) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; most];
    let mut query = Query {
        ifindex,
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: most as u32,
        reserved: 0,
        flags_of_each: 0,
        links: 0,
        flags_of_links: 0,
        revision: 0,
    };
    bpf(BPF_PROG_QUERY, &mut query)?;
    ids.truncate(query.count as usize);
    Ok(ids)
}

fn element(map: &impl AsFd, key: &[u8], value: u64) -> Element {
    Element { map: raw(map), reserved: 0, key: key.as_ptr() as u64, value, flags: 0 }
}

/// Reads the value of `key` into `value`. Returns false if there is no such key.
pub(super) fn lookup(map: &impl AsFd, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
    match bpf(BPF_MAP_LOOKUP_ELEM, &mut element(map, key, value.as_mut_ptr() as u64)) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

pub(super) fn update(map: &impl AsFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    bpf(BPF_MAP_UPDATE_ELEM, &mut element(map, key, value.as_ptr() as u64)).map(drop)
}

/// Deletes an element. Returns false if there was no such key.
pub(super) fn delete(map: &impl AsFd, key: &[u8]) -> io::Result<bool> {
    match bpf(BPF_MAP_DELETE_ELEM, &mut element(map, key, 0)) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// A failed batch: the number of elements done, and the error.
pub(super) struct Stopped {
    pub done: u32,
    pub error: io::Error,
}

fn batch(command: libc::c_long, attributes: &mut Batch) -> Result<u32, Stopped> {
    match bpf(command, attributes) {
        Ok(_) => Ok(attributes.count),
        Err(error) => {
            // After EFAULT the kernel does not write back the count.
            let done = if error.raw_os_error() == Some(libc::EFAULT) { 0 } else { attributes.count };
            Err(Stopped { done, error })
        }
    }
}

/// Writes `count` elements, stored consecutively in `keys` and `values`.
pub(super) fn update_batch(map: &impl AsFd, keys: &[u8], values: &[u8], count: u32) -> Result<u32, Stopped> {
    batch(
        BPF_MAP_UPDATE_BATCH,
        &mut Batch {
            in_batch: 0,
            out_batch: 0,
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count,
            map: raw(map),
            element_flags: 0,
            flags: 0,
        },
    )
}

/// Deletes `count` elements; stops at the first that does not exist.
pub(super) fn delete_batch(map: &impl AsFd, keys: &[u8], count: u32) -> Result<u32, Stopped> {
    batch(
        BPF_MAP_DELETE_BATCH,
        &mut Batch {
            in_batch: 0,
            out_batch: 0,
            keys: keys.as_ptr() as u64,
            values: 0,
            count,
            map: raw(map),
            element_flags: 0,
            flags: 0,
        },
    )
}

/// `BPF_MAP_TYPE_HASH`.
pub(super) const KIND_HASH: u32 = 1;

/// The position of a walk through a map. Has room for the longest key: some map types use it as position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    bytes: [u8; 512],
    begun: bool,
}

impl Place {
    pub(super) fn start() -> Self {
        Self { bytes: [0; 512], begun: false }
    }

    /// The position at this bucket of a hash map.
    pub(super) fn at(bucket: u32) -> Self {
        let mut place = Self { begun: true, ..Self::start() };
        place.bytes[..4].copy_from_slice(&bucket.to_ne_bytes());
        place
    }

    /// Returns the bucket of a position in a hash map.
    pub(super) fn bucket(&self) -> u32 {
        let [a, b, c, d, ..] = self.bytes;
        u32::from_ne_bytes([a, b, c, d])
    }
}

/// Reads up to `count` further elements, and advances `place`. Returns `Ok((n, true))` at the end.
pub(super) fn lookup_batch(
    map: &impl AsFd,
    place: &mut Place,
    keys: &mut [u8],
    values: &mut [u8],
    count: u32,
) -> io::Result<(u32, bool)> {
    let mark = place.bytes.as_mut_ptr() as u64;
    let mut attributes = Batch {
        in_batch: if place.begun { mark } else { 0 },
        out_batch: mark,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count,
        map: raw(map),
        element_flags: 0,
        flags: 0,
    };
    let result = batch(BPF_MAP_LOOKUP_BATCH, &mut attributes);
    place.begun = true;
    match result {
        Ok(done) => Ok((done, false)),
        Err(stopped) if stopped.error.raw_os_error() == Some(libc::ENOENT) => Ok((stopped.done, true)),
        Err(stopped) => Err(stopped.error),
    }
}

/// Runs a classifier once on `data`; `context` is the leading part of `__sk_buff`. Returns its result.
pub(super) fn test_run(program: &impl AsFd, data: &[u8], context: &[u8]) -> io::Result<u32> {
    let mut attributes = TestRun {
        program: raw(program),
        data_size_in: data.len() as u32,
        data_in: data.as_ptr() as u64,
        ctx_size_in: context.len() as u32,
        ctx_in: context.as_ptr() as u64,
        ..TestRun::default()
    };
    bpf(BPF_PROG_TEST_RUN, &mut attributes)?;
    Ok(attributes.retval)
}
