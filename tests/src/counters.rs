//! Reads all counters at once. Reading them one by one would take most of the time spent on a packet.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use anyhow::{Context, Result, ensure};
use common::reason::REASONS_MAX;

/// `BPF_MAP_LOOKUP_BATCH` (include/uapi/linux/bpf.h).
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;

/// The attributes of that command.
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

/// Returns every element of `COUNTERS`, summed over CPUs.
pub(crate) fn read(map: BorrowedFd<'_>, cpus: usize) -> Result<Vec<u64>> {
    let mut keys = vec![0_u32; REASONS_MAX];
    let mut values = vec![0_u64; REASONS_MAX * cpus];
    let mut mark = 0_u64;
    let mut attributes = Batch {
        in_batch: 0,
        out_batch: std::ptr::from_mut(&mut mark) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: REASONS_MAX as u32,
        map: map.as_raw_fd() as u32,
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel writes at most `count` keys, and `count` values of 8 bytes for each possible CPU.
    // Both buffers have room for that.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_LOOKUP_BATCH,
            std::ptr::from_mut(&mut attributes),
            size_of::<Batch>(),
        )
    };
    let error = io::Error::last_os_error();
    // ENOENT: these were the last elements.
    if result != 0 && error.raw_os_error() != Some(libc::ENOENT) {
        return Err(error).context("reading the counters");
    }
    ensure!(attributes.count as usize == REASONS_MAX, "only {} counters", attributes.count);
    Ok(values.chunks(cpus).map(|each| each.iter().sum()).collect())
}
