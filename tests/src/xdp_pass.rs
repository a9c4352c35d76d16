//! An XDP program that passes every frame. A veth takes frames that XDP at its other end sends back only if it has a program itself.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};

use crate::net::Namespace;
use crate::schedule::owned;

/// include/uapi/linux/bpf.h
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// include/uapi/linux/if_link.h: `XDP_FLAGS_DRV_MODE`.
const DRIVER_MODE: u32 = 1 << 2;

/// `r0 = XDP_PASS; exit`.
const PASS: [u64; 2] = [0x2_0000_00b7, 0x95];

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
}

/// The program on a device, until it is dropped.
#[derive(Debug)]
pub struct PassAll {
    _link: OwnedFd,
}

impl PassAll {
    /// Attaches it.
    pub fn on(namespace: &Namespace, device: &str) -> Result<Self> {
        let index = namespace.ifindex(device)?;
        namespace.run(|| {
            let load = Load {
                kind: PROG_TYPE_XDP,
                instructions: PASS.len() as u32,
                code: PASS.as_ptr() as u64,
                license: c"GPL".as_ptr() as u64,
            };
            let program = owned(BPF_PROG_LOAD, &load).context("loading the program that passes all")?;
            let create = [program.as_raw_fd() as u32, index, ATTACH_XDP, DRIVER_MODE];
            let link = owned(BPF_LINK_CREATE, &create);
            Ok(Self { _link: link.with_context(|| format!("attaching it to {device}"))? })
        })
    }
}
