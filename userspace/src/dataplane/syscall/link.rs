//! Links of XDP programs: made, changed, read back and pinned.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{BPF_OBJ_GET_INFO_BY_FD, Info, Object, bpf, opened, raw};

const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_DETACH: libc::c_long = 34;

/// The attributes of `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// The attributes of `BPF_LINK_UPDATE`.
#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

/// The leading part of the kernel's `struct bpf_link_info`, for links of devices.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::dataplane) struct LinkInfo {
    /// `enum bpf_link_type`.
    pub kind: u32,
    pub id: u32,
    pub program: u32,
    reserved: u32,
    /// Its device; 0: it is gone.
    pub ifindex: u32,
    padding: u32,
}

/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE` of linux/if_link.h: by the driver, or not at all.
const DRIVER_MODE: u32 = 1 << 2;

/// Attaches an XDP program to a device by a link, in its driver.
pub(in crate::dataplane) fn create(program: &impl AsFd, ifindex: u32) -> io::Result<OwnedFd> {
    let program = raw(program);
    opened(BPF_LINK_CREATE, &mut LinkCreate { program, ifindex, attach_type: ATTACH_XDP, flags: DRIVER_MODE })
}

/// Detaches what the link attaches, at once: the kernel frees a link that lost its last pin only later.
pub(in crate::dataplane) fn detach(link: &impl AsFd) -> io::Result<()> {
    bpf(BPF_LINK_DETACH, &mut raw(link)).map(drop)
}

/// Replaces the program of a link.
pub(in crate::dataplane) fn update(link: &impl AsFd, program: &impl AsFd) -> io::Result<()> {
    let mut attributes = LinkUpdate { link: raw(link), program: raw(program), flags: 0, old_program: 0 };
    bpf(BPF_LINK_UPDATE, &mut attributes).map(drop)
}

pub(in crate::dataplane) fn info(link: &impl AsFd) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    let mut attributes = Info {
        fd: raw(link),
        length: size_of::<LinkInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info)
}

/// Pins an open map, program or link.
pub(in crate::dataplane) fn pin(object: &impl AsFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    bpf(BPF_OBJ_PIN, &mut Object { path: path.as_ptr() as u64, fd: raw(object), flags: 0 }).map(drop)
}
